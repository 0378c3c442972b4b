"""Counts what a worker does, logs it, and calls the application's hooks.

Records go to the logger `penstock.worker`. Each has the name of an event and its facts in `record.penstock`, a dict,
beside the sentence for people:

    event       level     when
    start       INFO      the worker begins
    summary     INFO      every few seconds, if something has changed
    stopping    INFO      it begins to stop
    stop        INFO      it has ended
    done        DEBUG     a job's handler returned
    retry       WARNING   a job failed, and comes back
    failed      ERROR     a job went to the dead letters
    lost        WARNING   a lease was lost
    returned    WARNING   a job was returned unfinished, as the worker stopped
    trouble     WARNING   the store is unreachable, or refuses a call
    recovered   INFO      the store answers again
    hook        ERROR     a hook or the back-off of the application raised
    stuck       ERROR     handlers overran their time limit and still run
    child       WARNING   a process of the worker ended, and is replaced
    recipe      INFO      a pipeline has a new recipe, or a link of it starts or stops
    refused     ERROR     a new recipe is wrong: the old one stays
    held        INFO      a link of a pipeline waits, as a target has too many jobs
    resumed     INFO      it goes on
    unknown     WARNING   a job waits for a worker that has its task
    reload      INFO      a source file has changed, and all processes are replaced
    waiting     WARNING   the changed program did not begin: the next change is waited for

Facts have the same names everywhere: queue, job, tries, seconds, error, delay, and the counts of a summary.

A hook that is an `async def` is awaited: `on_start` before its handler runs, `on_done` and `on_error` in tasks of their
own, so that they don't hold up other jobs. While HOOKS_MAX of them are pending no more jobs are taken, and the worker
waits for them before it ends.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from time import monotonic
from typing import Any

from penstock.errors import LeaseLost
from penstock.queues.aio import Job
from penstock.queues.dead_letter import described
from penstock.worker.outcomes import Action, InFlightJob, WorkerStopped
from penstock.worker.runners import CANCEL_S

HOOKS_MAX = 1000  # pending tasks that an event loop runs with ease
FIRST_PAUSE_S = 0.25
PAUSE_S_MAX = 5.0  # a store that is back waits no longer for its worker

OnDone = Callable[[Job, float], object]
OnError = Callable[[Job, BaseException], object]

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
    "cancelled": logging.INFO,
    "returned": logging.WARNING,
    "trouble": logging.WARNING,
    "recovered": logging.INFO,
    "hook": logging.ERROR,
    "stuck": logging.ERROR,
    "child": logging.WARNING,
    "reload": logging.INFO,
    "waiting": logging.WARNING,
    "recipe": logging.INFO,
    "refused": logging.ERROR,
    "held": logging.INFO,
    "resumed": logging.INFO,
    "unknown": logging.WARNING,
    "queues": logging.WARNING,
}


def log_event(event: str, sentence: str, problem: BaseException | None = None, /, **facts: Any) -> None:
    """Log an event, if its level is enabled."""
    level = LEVELS[event]
    if log.isEnabledFor(level):
        trace = None if problem is None else (type(problem), problem, problem.__traceback__)
        log.log(level, "%s", sentence, exc_info=trace, extra={"penstock": {"event": event, **facts}})


class Outage:
    """Failures of one kind of call to the store: logged once, repeated with growing pauses, logged when over."""

    def __init__(self, call: str, pause_s_max: float = PAUSE_S_MAX) -> None:
        self._call = call  # for the log: "Getting jobs of 'mail' from sqlite:///jobs.db"
        self._pause_s = 0.0
        self._pause_s_max = min(pause_s_max, PAUSE_S_MAX)

    def failed(self, problem: Exception) -> None:
        """Note that the call failed."""
        if not self._pause_s:
            text = described(problem)
            log_event("trouble", f"{self._call} failed, and is tried again until it works. {text}", error=text)
        self._pause_s = min(self._pause_s_max, 2 * self._pause_s or FIRST_PAUSE_S)

    async def wait_out(self, problem: Exception) -> None:
        """Note that the call failed, and wait before the next attempt."""
        self.failed(problem)
        await asyncio.sleep(self._pause_s)

    def recovered(self) -> None:
        """Note that the call succeeded."""
        if self._pause_s:
            self._pause_s = 0.0
            log_event("recovered", f"{self._call} works again.")


@dataclass(slots=True)
class Summary:
    """What became of the jobs of a run."""

    done: int = 0  # acked
    retried: int = 0  # returned after an error, to be tried again
    failed: int = 0  # to the dead letters
    returned: int = 0  # returned unfinished, as the worker stopped
    released: int = 0  # returned without having begun
    lost: int = 0  # the lease ended before the job
    seconds: float = 0.0  # duration of the run

    def counts(self) -> dict[str, int]:
        """Return the counts without the duration."""
        names = ("done", "retried", "failed", "returned", "released", "lost")
        return {name: getattr(self, name) for name in names}

    def add(self, counts: dict[str, int]) -> None:
        """Add the counts of another summary."""
        for name, count in counts.items():
            setattr(self, name, getattr(self, name) + count)

    def __str__(self) -> str:
        others = [f"{count:,} {name}" for name, count in self.counts().items() if count and name != "done"]
        return ", ".join([f"{self.done:,} done", *others])


class Reporter:
    """Counts and logs what becomes of jobs, and calls `on_done` and `on_error`."""

    def __init__(self, on_done: OnDone | None, on_error: OnError | None, label: str = "") -> None:
        self.summary = Summary()
        self._label = label  # of the worker, where a process has several
        self._on_done = on_done
        self._on_error = on_error
        self._pending: set[asyncio.Task[None]] = set()  # hooks that are awaited
        self.hook_ended: Callable[[], None] = lambda: None
        self._began = monotonic()
        self._last_summary = (self._began, 0, 0)  # time of the last summary, and its counts of done and of all jobs

    def ended(self, entry: InFlightJob, is_settled: bool | None) -> None:
        """Report a job whose outcome was sent: False if the lease was lost, None if that is unknown."""
        action = entry.outcome.action if entry.outcome is not None else Action.LOST
        if is_settled is False or action is Action.LOST:
            self._lost(entry)
        elif action in (Action.ACK, Action.MOVE, Action.ENDED):
            self._done(entry)
        elif action is Action.RELEASE or (entry.outcome is not None and entry.outcome.is_wait):
            self.summary.released += 1
        else:
            self._not_done(entry, action)

    def _done(self, entry: InFlightJob) -> None:
        self.summary.done += 1
        if self._on_done is not None:
            self._call(self._on_done, entry.job, entry.seconds)
        if log.isEnabledFor(logging.DEBUG):
            log_event("done", f"{_name(entry)} done in {_time(entry.seconds)}", **_facts(entry))

    def _not_done(self, entry: InFlightJob, action: Action) -> None:
        outcome, problem = entry.outcome, entry.problem
        assert outcome is not None
        if action is Action.FAIL:
            self.summary.failed += 1
            event, what = "failed", f"to the dead letters after {_deliveries(entry.job)}"
        elif isinstance(problem, WorkerStopped):
            self.summary.returned += 1
            event, what = "returned", "returned unfinished"
        else:
            self.summary.retried += 1
            event, what = "retry", f"again after {_time(outcome.delay or 0.0)}"
        facts = {**_facts(entry), "error": outcome.error, "delay": outcome.delay}
        # What the worker itself raised has no traceback in the handler's code.
        trace = problem if problem is not None and problem.__traceback__ is not None else None
        log_event(event, f"{_name(entry)} {what}: {outcome.error}", trace, **facts)
        if self._on_error is not None and problem is not None:
            self._call(self._on_error, entry.job, problem)

    def exhausted(self, job: Job, error: str) -> None:
        """Report a job that went to the dead letters instead of to a handler: its worker died in its last try."""
        self.summary.failed += 1
        facts = {"queue": job.queue.name, "job": job.id, "tries": job.tries, "delivery": job.tries + 1, "error": error}
        log_event("failed", f"{job.queue.name} {job.id} to the dead letters after {_deliveries(job)}: {error}", **facts)

    def _lost(self, entry: InFlightJob) -> None:
        self.summary.lost += 1
        text = "its lease was lost: another worker runs it, or it was ended or cancelled elsewhere"
        log_event("lost", f"{_name(entry)}: {text}", **_facts(entry), error=text)
        if self._on_error is not None:
            self._call(self._on_error, entry.job, LeaseLost(f"job {entry.job.id}: {text}"))

    @property
    def pending_hooks(self) -> int:
        """Return the number of hooks that have begun and not ended."""
        return len(self._pending)

    def _call(self, hook: Callable[..., object], *arguments: object) -> None:
        rest = call_hook(hook, *arguments)
        if rest is not None:
            task = asyncio.get_running_loop().create_task(rest)
            self._pending.add(task)
            task.add_done_callback(self._ended_hook)

    def _ended_hook(self, task: asyncio.Task[None]) -> None:
        self._pending.discard(task)
        self.hook_ended()

    async def end_hooks(self, seconds: float, now: asyncio.Event) -> None:
        """Wait for pending hooks; cancel those that are not done in time, or at once if `now` is set."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        stopped = loop.create_task(now.wait())
        while self._pending and not now.is_set() and loop.time() < end:
            await asyncio.wait({*self._pending, stopped}, timeout=end - loop.time(), return_when="FIRST_COMPLETED")
        stopped.cancel()
        if self._pending:
            text = f"{len(self._pending)} hooks were not done when the worker ended, and were cancelled"
            log_event("hook", text, error=text)
            for task in self._pending:
                task.cancel()
            await asyncio.wait(self._pending, timeout=CANCEL_S)

    def log_summary(self, running: int | None = None) -> None:
        """Log the counts, if they have changed since the last time."""
        now = monotonic()
        then, done_before, ended_before = self._last_summary
        ended = sum(self.summary.counts().values())
        if ended == ended_before:
            return
        rate = (self.summary.done - done_before) / max(now - then, 1e-9)
        self._last_summary = (now, self.summary.done, ended)
        text = f"{self.summary}; {rate:,.0f} a second"
        if running is not None:
            text += f", {running} running"
        self.log_labelled("summary", text, **self.summary.counts(), rate=round(rate, 1), running=running)

    def log_labelled(self, event: str, sentence: str, **facts: Any) -> None:
        """Log an event of the whole worker, with its label."""
        if self._label:
            sentence, facts = f"{self._label}: {sentence}", {"link": self._label, **facts}
        log_event(event, sentence, **facts)

    def log_unsettled(self, count: int) -> None:
        """Log that the worker ends and could not settle some jobs."""
        text = f"{count} jobs could not be settled, and come back when their leases end"
        log_event("trouble", text, error=text)

    def finish(self) -> Summary:
        """Return the summary of a run that is over."""
        self.summary.seconds = monotonic() - self._began
        return self.summary


def call_hook(hook: Callable[..., object], *arguments: object) -> Coroutine[Any, Any, None] | None:
    """Call a hook; returns what is left to await of an async one. Whatever a hook raises must not cost a job."""
    try:
        result = hook(*arguments)
    except BaseException as problem:
        _log_raised(hook, problem)
        return None
    return _awaited(hook, result) if inspect.isawaitable(result) else None


async def _awaited(hook: Callable[..., object], rest: Awaitable[object]) -> None:
    try:
        await rest
    except asyncio.CancelledError:
        raise
    except BaseException as problem:
        _log_raised(hook, problem)


def _log_raised(hook: Callable[..., object], problem: BaseException) -> None:
    log_event("hook", f"{hook!r} raised {described(problem)}", problem, error=described(problem))


def _name(entry: InFlightJob) -> str:
    return f"{entry.job.queue.name} {entry.job.id}"


def _deliveries(job: Job) -> str:
    deliveries = job.tries + 1
    return "1 delivery" if deliveries == 1 else f"{deliveries} deliveries"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _facts(entry: InFlightJob) -> dict[str, object]:
    job = entry.job
    return {
        "queue": job.queue.name,
        "job": job.id,
        "tries": job.tries,
        "delivery": job.tries + 1,
        "seconds": round(entry.seconds, 6),
    }
