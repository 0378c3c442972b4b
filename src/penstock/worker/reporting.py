"""Counts what a worker does, says it, and calls the application's hooks.

A hook that is an `async def` is awaited: `on_start` before its handler runs, `on_done` and `on_error` in tasks of their
own, so that they hold up no other job. While HOOKS_MAX of them are pending no more jobs are taken, and the worker waits
for them before it ends.
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
from penstock.worker.choices import Kind, Stopped
from penstock.worker.events import log, say
from penstock.worker.held import Held
from penstock.worker.running import CANCEL_S

HOOKS_MAX = 1000  # as many tasks as a loop runs with ease

OnDone = Callable[[Job, float], object]
OnError = Callable[[Job, BaseException], object]


@dataclass(slots=True)
class Summary:
    """What became of the jobs of a run."""

    done: int = 0  # acked
    retried: int = 0  # given back after an error, to be tried again
    failed: int = 0  # to the dead letters
    returned: int = 0  # given back unfinished, since the worker stopped
    released: int = 0  # given back without having been begun
    lost: int = 0  # the lease was over before the end
    seconds: float = 0.0  # how long the run took

    def counts(self) -> dict[str, int]:
        """The counts alone."""
        names = ("done", "retried", "failed", "returned", "released", "lost")
        return {name: getattr(self, name) for name in names}

    def add(self, counts: dict[str, int]) -> None:
        """Add the counts of another."""
        for name, count in counts.items():
            setattr(self, name, getattr(self, name) + count)

    def __str__(self) -> str:
        others = [f"{count:,} {name}" for name, count in self.counts().items() if count and name != "done"]
        return ", ".join([f"{self.done:,} done", *others])


class Reporter:
    """What happened, for people, programs and the application."""

    def __init__(self, on_done: OnDone | None, on_error: OnError | None) -> None:
        self.summary = Summary()
        self._on_done = on_done
        self._on_error = on_error
        self._pending: set[asyncio.Task[None]] = set()  # hooks that await
        self.hook_ended: Callable[[], None] = lambda: None
        self._began = monotonic()
        self._said = (self._began, 0, 0)  # when a summary was said last, and what had been done and ended by then

    def ended(self, held: Held, is_told: bool | None) -> None:
        """The store has been told of a job: False if the lease was gone, None if nobody knows."""
        kind = held.verdict.kind if held.verdict is not None else Kind.LOST
        if is_told is False or kind is Kind.LOST:
            self._lost(held)
        elif kind in (Kind.ACK, Kind.ENDED):
            self._done(held)
        elif kind is Kind.RELEASE:
            self.summary.released += 1
        else:
            self._not_done(held, kind)

    def _done(self, held: Held) -> None:
        self.summary.done += 1
        if self._on_done is not None:
            self._call(self._on_done, held.job, held.seconds)
        if log.isEnabledFor(logging.DEBUG):
            say("done", f"{_name(held)} done in {_time(held.seconds)}", **_facts(held))

    def _not_done(self, held: Held, kind: Kind) -> None:
        verdict, problem = held.verdict, held.problem
        assert verdict is not None
        if kind is Kind.FAIL:
            self.summary.failed += 1
            event, what = "failed", f"to the dead letters after {_tries(held)}"
        elif isinstance(problem, Stopped):
            self.summary.returned += 1
            event, what = "returned", "given back unfinished"
        else:
            self.summary.retried += 1
            event, what = "retry", f"again after {_time(verdict.delay or 0.0)}"
        facts = {**_facts(held), "error": verdict.error, "delay": verdict.delay}
        # What the worker itself raised has no place in the handler's code to show.
        trace = problem if problem is not None and problem.__traceback__ is not None else None
        say(event, f"{_name(held)} {what}: {verdict.error}", trace, **facts)
        if self._on_error is not None and problem is not None:
            self._call(self._on_error, held.job, problem)

    def _lost(self, held: Held) -> None:
        self.summary.lost += 1
        text = "its lease was lost: it runs again elsewhere, or has been ended there"
        say("lost", f"{_name(held)}: {text}", **_facts(held), error=text)
        if self._on_error is not None:
            self._call(self._on_error, held.job, LeaseLost(f"job {held.job.id}: {text}"))

    @property
    def pending_hooks(self) -> int:
        """How many hooks have begun and not ended."""
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
        """Wait for hooks that are pending; cancel those that are not done in time, or at once if `now` is set."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        cut_short = loop.create_task(now.wait())
        while self._pending and not now.is_set() and loop.time() < end:
            await asyncio.wait({*self._pending, cut_short}, timeout=end - loop.time(), return_when="FIRST_COMPLETED")
        cut_short.cancel()
        if self._pending:
            text = f"{len(self._pending)} hooks were not done when the worker ended, and were cancelled"
            say("hook", text, error=text)
            for task in self._pending:
                task.cancel()
            await asyncio.wait(self._pending, timeout=CANCEL_S)

    def say_summary(self, running: int | None = None) -> None:
        """Say what was done since the last time, if anything was."""
        now = monotonic()
        then, done_before, ended_before = self._said
        ended = sum(self.summary.counts().values())
        if ended == ended_before:
            return
        rate = (self.summary.done - done_before) / max(now - then, 1e-9)
        self._said = (now, self.summary.done, ended)
        text = f"{self.summary}; {rate:,.0f} a second"
        if running is not None:
            text += f", {running} running"
        say("summary", text, **self.summary.counts(), rate=round(rate, 1), running=running)

    def gave_up(self, count: int) -> None:
        """The worker ends, and could not tell the store of some jobs."""
        text = f"{count} jobs are left to their leases: the store could not be told of them"
        say("trouble", text, error=text)

    def finish(self) -> Summary:
        """The run is over."""
        self.summary.seconds = monotonic() - self._began
        return self.summary


def call_hook(hook: Callable[..., object], *arguments: object) -> Coroutine[Any, Any, None] | None:
    """Call a hook; returns what is left to await of one that awaits. Whatever a hook raises must not cost a job."""
    try:
        result = hook(*arguments)
    except BaseException as problem:
        _say_raised(hook, problem)
        return None
    return _awaited(hook, result) if inspect.isawaitable(result) else None


async def _awaited(hook: Callable[..., object], rest: Awaitable[object]) -> None:
    try:
        await rest
    except asyncio.CancelledError:
        raise
    except BaseException as problem:
        _say_raised(hook, problem)


def _say_raised(hook: Callable[..., object], problem: BaseException) -> None:
    say("hook", f"{hook!r} raised {described(problem)}", problem, error=described(problem))


def _name(held: Held) -> str:
    return f"{held.job.queue.name} {held.job.id}"


def _tries(held: Held) -> str:
    deliveries = held.job.tries + 1
    return "1 delivery" if deliveries == 1 else f"{deliveries} deliveries"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _facts(held: Held) -> dict[str, object]:
    job = held.job
    return {
        "queue": job.queue.name,
        "job": job.id,
        "tries": job.tries,
        "delivery": job.tries + 1,
        "seconds": round(held.seconds, 6),
    }
