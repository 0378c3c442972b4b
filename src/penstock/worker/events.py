"""What a worker says, through the logger `penstock.worker`.

Each record has the name of an event and its facts in `record.penstock`, a dict, beside the sentence for people:

    event       level     when
    start       INFO      the worker begins
    summary     INFO      every few seconds in which something happened
    stopping    INFO      it was told to stop
    stop        INFO      it has ended
    done        DEBUG     a job's handler returned
    retry       WARNING   a job failed, and comes back
    failed      ERROR     a job went to the dead letters
    lost        WARNING   a lease was lost
    returned    WARNING   a job was given back unfinished, since the worker stopped
    trouble     WARNING   the store can't be reached, or refuses
    recovered   INFO      it answers again
    hook        ERROR     a callable of the application raised
    stuck       ERROR     handlers overran their time limit and still run
    child       WARNING   a process of the worker died, and is replaced

Facts have the same names everywhere: queue, job, tries, seconds, error, delay, and the counts of a summary.
"""

import logging
from typing import Any

log = logging.getLogger("penstock.worker")

LEVELS = {
    "start": logging.INFO,
    "summary": logging.INFO,
    "stopping": logging.INFO,
    "stop": logging.INFO,
    "done": logging.DEBUG,
    "retry": logging.WARNING,
    "failed": logging.ERROR,
    "lost": logging.WARNING,
    "returned": logging.WARNING,
    "trouble": logging.WARNING,
    "recovered": logging.INFO,
    "hook": logging.ERROR,
    "stuck": logging.ERROR,
    "child": logging.WARNING,
}


def say(event: str, sentence: str, problem: BaseException | None = None, /, **facts: Any) -> None:
    """Log an event, if anybody wants it."""
    level = LEVELS[event]
    if log.isEnabledFor(level):
        trace = None if problem is None else (type(problem), problem, problem.__traceback__)
        log.log(level, "%s", sentence, exc_info=trace, extra={"penstock": {"event": event, **facts}})
