"""A link on a worker: what its function returned becomes an outcome of the worker.

| `Link.decide`  | the store is told | and the job                                          |
|----------------|-------------------|------------------------------------------------------|
| `Move`         | move              | is in the target, in one step where the store can    |
| `DROP`         | ack               | is gone                                              |
| `Later`        | nack              | comes back; after the last try it is a dead letter   |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock import DeadLetter
from penstock.errors import CallerError
from penstock.pipelines.back_pressure import BackPressure
from penstock.pipelines.frames import FORMS, results_of
from penstock.pipelines.link import Link
from penstock.pipelines.results import Drop, Later, Move
from penstock.queues.aio import Job, Store
from penstock.queues.blocking import Job as BlockingJob
from penstock.queues.push import seconds
from penstock.worker import Summary, Worker, payload_handler
from penstock.worker.batches import BatchHandler
from penstock.worker.handlers import load
from penstock.worker.outcomes import DONE, Action, Destination, Outcome
from penstock.worker.reporting import OnError
from penstock.worker.runners import unfinished_work
from penstock.worker.worker import MAX_TRIES, Handler, is_async, refuse_generator

# A link that a new recipe changes lets its running jobs end. The pipeline itself limits how long it waits at its end.
LET_END_S = 30 * 24 * 3600.0

_OUTCOMES: dict[type, Callable[[Any], Outcome]] = {
    Move: lambda move: Outcome(
        Action.MOVE, destination=Destination(move.to, move.payload, move.headers, move.delay, move.at)
    ),
    Drop: lambda _: DONE,
    Later: lambda later: Outcome(Action.NACK, seconds("delay", later.delay), later.why),
}


def outcome_of_link(link: Link, returned: object) -> Outcome:
    """Return what the worker does with a job for which the link's function returned this."""
    problem = unfinished_work(returned)
    if problem is not None:
        raise problem
    decided = link.decide(returned)
    return _OUTCOMES[type(decided)](decided)


def function_of(link: Link) -> Handler:
    """Return the function of a link, imported if it is given by its name."""
    function = load(link.function) if isinstance(link.function, str) else link.function
    refuse_generator(function)
    return function


def handler_of(link: Link) -> Handler:
    """Return the handler that a worker calls for the jobs of a link."""
    function: Any = function_of(link)
    if link.takes in FORMS:
        return _frame_handler(link, function)
    call: Any = payload_handler(function) if link.takes == "payload" else function
    if is_async(call):

        async def awaiting(job: Job) -> Outcome:
            return outcome_of_link(link, await call(job))

        return awaiting

    def plain(job: Job) -> Outcome:
        return outcome_of_link(link, call(job))

    return plain


def _frame_handler(link: Link, function: Any) -> BatchHandler:
    """Return the handler of a function that takes many jobs at once."""
    if is_async(function):
        raise CallerError(f"a function that takes {link.takes} must be a plain one, got the async {function!r}")

    def call(jobs: Sequence[BlockingJob]) -> list[object]:
        results = results_of(function, FORMS[link.takes], [job.id for job in jobs], [job.payload for job in jobs])
        return [_outcome_or_error(link, result) for result in results]

    return BatchHandler(call)


def _outcome_or_error(link: Link, result: object) -> object:
    if isinstance(result, BaseException):
        return result
    try:
        return outcome_of_link(link, result)
    except Exception as problem:  # a result that this link can't have is an error of its own job
        return problem


class LinkRun(Protocol):
    """A link that an engine runs: a Worker, or what stands for one elsewhere."""

    async def run(self) -> Summary: ...
    def stop(self) -> None: ...
    def stop_at(self, level: int) -> None: ...
    @property
    def summary(self) -> Summary: ...
    @property
    def is_stuck(self) -> bool: ...


# Makes a run of a link: with the store, the queue of dead letters, and `max_stuck` of its workers.
Engine = Callable[[Link, Store, str | None, int | None], LinkRun]


def worker_of(
    link: Link, store: Store, dead_letters: str | None, max_stuck: int | None, on_error: OnError | None = None
) -> Worker:
    """Return a worker that runs a link."""
    admit = None
    if link.max_waiting is not None and link.targets:
        queues = [store.queue(name) for name in link.targets]
        admit = BackPressure(link.name, queues, link.max_waiting).admit
    own = store.options.dead_letter or DeadLetter(MAX_TRIES)
    limit = DeadLetter(own.max_tries if link.max_tries is None else link.max_tries, dead_letters or own.queue)
    return Worker(
        store,
        link.source,
        handler_of(link),
        concurrency=link.batch if link.takes in FORMS else link.concurrency,
        lease=link.lease,
        time_limit=link.time_limit,
        dead_letter=limit,
        backoff=link.backoff,
        shutdown_timeout=LET_END_S,
        max_stuck=max_stuck,
        on_error=on_error,
        admit=admit,
        label=link.name,
    )
