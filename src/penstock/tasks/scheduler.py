"""Pushes the crons of an app when they are due. Every worker runs one; each run is pushed once by all of them.

    value `cron:NAME`        the time of the last run that was pushed
    unique key `cron:NAME:TIME`  of the push of one run, kept for longer than runs are caught up with

A scheduler that finds several runs due was away, or nobody was there: `missed` says which of them are pushed. On a
store without unique keys one scheduler is elected: whoever holds the lease of the one job in `__cron__`. If it dies,
another one goes on when its lease ends; a run is then pushed twice only if it died between the push and its note.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import CallerError, LeaseLost, PenstockError
from penstock.queues.aio import Job
from penstock.queues.capabilities import Capability
from penstock.tasks.options import PushOptions
from penstock.tasks.schedule import Schedule
from penstock.worker.reporting import Outage

if TYPE_CHECKING:
    from penstock.tasks.app import App
    from penstock.tasks.task import Task

MISSED = ("once", "all", "skip")
CATCH_UP_S = 7 * 24 * 3600.0  # runs that were missed for longer are not pushed
UNIQUE_S = CATCH_UP_S + 24 * 3600.0
SOON_S = 60.0  # with missed="skip": a run that is this late is missed
NOTE_S = 2 * 365 * 24 * 3600.0  # that the time of the last run is kept
WAIT_S_MAX = 30.0  # between two looks: the clock of the machine may be set
ELECTION_QUEUE = "__cron__"
LEASE_S = 30.0
CANDIDATES_MAX = 100


class Cron(NamedTuple):
    """A task that is pushed by the clock."""

    task: Task[Any, Any, Any]
    schedule: Schedule
    missed: str


def checked_missed(missed: str) -> str:
    """Return which missed runs are pushed."""
    if missed not in MISSED:
        raise CallerError(f"missed must be one of {', '.join(MISSED)}, got {missed!r}")
    return missed


class Scheduler:
    """The crons of an app."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._election = Election(app)

    async def run(self) -> None:
        """Push crons when they are due, until cancelled."""
        outage = Outage("Pushing crons")
        try:
            while True:
                try:
                    due = await self.step()
                except CallerError:
                    raise
                except PenstockError as problem:
                    await outage.wait_out(problem)
                    continue
                outage.recovered()
                await asyncio.sleep(max(0.0, min(due - self._app.now(), self._wait_s)))
        finally:
            await self._election.leave()

    @property
    def _wait_s(self) -> float:
        return LEASE_S / 3 if self._election.is_needed else WAIT_S_MAX

    async def step(self) -> float:
        """Push what is due; return when the next run is."""
        client = self._app.client
        await client.store.open()
        if not await self._election.is_won():
            return self._app.now() + WAIT_S_MAX
        due = [await self._push_due(cron) for cron in self._app.crons.values()]
        return min(due)

    async def _push_due(self, cron: Cron) -> float:
        client, now = self._app.client, self._app.now()
        key = f"cron:{cron.task.name}"
        noted = await client.store.value(key)
        if noted is None:
            await client.store.put_value(key, repr(now), ttl=NOTE_S)
            noted = repr(now)
        last = max(float(noted), now - CATCH_UP_S)
        runs = list(takewhile(lambda at: at <= now, cron.schedule.after(last)))
        for at in _chosen(runs, cron.missed, now):
            one = cron.task.prepared((), {}, self._options(cron, at))
            await self._app.push_prepared(one, cron.task)
        if runs:
            await client.store.put_value(key, repr(runs[-1]), ttl=NOTE_S)
        return next(cron.schedule.after(now))

    def _options(self, cron: Cron, at: float) -> PushOptions:
        if self._election.is_needed:
            return PushOptions()
        return PushOptions(unique=f"cron:{cron.task.name}:{at:.0f}", unique_for=UNIQUE_S)


def _chosen(runs: list[float], missed: str, now: float) -> Iterable[float]:
    if missed == "all":
        return runs
    if missed == "skip":
        runs = [at for at in runs if now - at <= SOON_S]
    return runs[-1:]


class Election:
    """Chooses one of several schedulers, on stores without unique keys."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._job: Job | None = None

    @property
    def is_needed(self) -> bool:
        """Whether schedulers can't rely on unique keys."""
        return Capability.UNIQUE not in self._app.client.store.capabilities

    async def is_won(self) -> bool:
        """Whether this scheduler is the one that pushes, for the time of a lease."""
        if not self.is_needed:
            return True
        queue = self._app.client.queue(ELECTION_QUEUE)
        if self._job is not None:
            try:
                await queue.extend(self._job, LEASE_S)
            except LeaseLost:
                self._job = None
            else:
                return True
        if not await queue.peek(1, state=None):
            await queue.push("scheduler")
        job = await queue.reserve(0, lease=LEASE_S)
        if job is None:
            return False
        # Two that began at the same time may each have pushed one: that of the lower id stays.
        if any(other.id < job.id for other in await queue.peek(CANDIDATES_MAX, state=None)):
            await queue.ack(job)
            return False
        self._job = job
        return True

    async def leave(self) -> None:
        """Let another scheduler go on at once."""
        job, self._job = self._job, None
        if job is not None:
            with suppress(PenstockError):  # else its lease ends
                await job.nack(0)
