"""Routes: what a worker does with the jobs of a queue that has several kinds of them.

A worker that is given a function calls it for every job. One that is given a `Router` asks it for each job it takes,
and gets a `Route`: the handler, and whatever is different for that kind of job. The same object must be returned for
all jobs of a kind, as it counts those that run.

    the job                      the worker calls, if set      then
    its handler returned         `done(job, result, seconds)`  what that returns: an ack, or a move
    `done` raised                                              as if the handler had raised
    it goes to the dead letters  `failed(job, failure)`        it goes there
    its lease is extended        `is_cancelled(job)`           if so, its handler is stopped, and it is acked
    it has run for a second      `still_runs(job, seconds)`    nothing; asked again while it runs, see `run.NOTE_S`

All are awaited in the event loop, for plain handlers too, while the lease is still extended. They run again if the
worker crashes before the store has heard of the outcome, and so must bear to be called twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from penstock.queues.aio import Job
from penstock.queues.backoff import Backoff
from penstock.queues.dead_letter import DeadLetter, Failure
from penstock.worker.outcomes import Outcome


class Route:
    """What a worker does with one kind of job."""

    __slots__ = (
        "backoff",
        "concurrency",
        "done",
        "failed",
        "handler",
        "is_async",
        "is_cancelled",
        "limit",
        "running",
        "still_runs",
        "time_limit",
    )

    def __init__(
        self,
        handler: Callable[[Any], Any],
        *,
        is_async: bool,
        max_tries: int,
        time_limit: float | None = None,
        backoff: Backoff | None = None,
        concurrency: int | None = None,
        done: Callable[[Job, Any, float], Awaitable[Outcome]] | None = None,
        failed: Callable[[Job, Failure], Awaitable[None]] | None = None,
        is_cancelled: Callable[[Job], Awaitable[bool]] | None = None,
        still_runs: Callable[[Job, float], Awaitable[None]] | None = None,
    ) -> None:
        self.handler = handler
        self.is_async = is_async
        self.limit = DeadLetter(max_tries)  # which checks it; 0 is without limit
        self.time_limit = time_limit
        self.backoff = backoff  # None: the worker's
        self.concurrency = concurrency  # how many run at the same time in this worker, of all its slots
        self.done = done
        self.failed = failed
        self.is_cancelled = is_cancelled
        self.still_runs = still_runs
        self.running = 0

    @property
    def is_full(self) -> bool:
        """Whether no other job of this kind may begin now."""
        return self.concurrency is not None and self.running >= self.concurrency


class Router(Protocol):
    """Chooses the route of each job. It must neither block nor raise.

    It may have an attribute `counts_late`. If that is true, a job counts a try only when its handler begins, not when
    it is reserved. A router needs it if it has routes with a `concurrency`: their jobs may have to wait in the worker.
    """

    def route(self, job: Job) -> Route: ...
