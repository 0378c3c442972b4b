"""A blocking driver in asyncio: for stores that need no server.

Such a store is written once, as a blocking driver. Here each of its calls runs in a thread of the store's own, one
after the other; those of a store in memory run at once, in the event loop.
"""

from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any, ParamSpec, TypeVar

from penstock.job import NewJob
from penstock.queues.aio.driver import Driver
from penstock.queues.aio.runtime import OneThread
from penstock.queues.aio.signal import Signal
from penstock.queues.aio.stats import Stats
from penstock.queues.blocking.driver import Driver as BlockingDriver
from penstock.queues.blocking.stats import Stats as BlockingStats

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Run = Callable[..., Coroutine[Any, Any, Any]]


class ThreadedDriver(Driver):
    """Any blocking driver as an async one. What is not written here is forwarded: see the end of this module."""

    def __init__(self, inner: BlockingDriver) -> None:
        self.inner = inner
        self.address, self.options, self.extra = inner.address, inner.options, inner.extra
        self.freed = inner.freed
        for name in Driver.__annotations__:  # capabilities, type, poll_s and the like
            setattr(self, name, getattr(inner, name))
        self._thread = None if inner.is_in_memory else OneThread(f"penstock-{inner.type}")

    async def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        """Return the result of a call of the inner driver, or of a part of it."""
        return call(*args, **named) if self._thread is None else await self._thread.run(call, *args, **named)

    async def close(self) -> None:
        await self.run(self.inner.close)
        if self._thread is not None:
            self._thread.close()

    async def now_ms(self) -> int:
        return self.inner.now_ms()

    async def push_within(self, connection: Any, queue: str, jobs: Any) -> list[str]:
        # On the caller's connection, so in the caller's thread.
        return self.inner.push_within(connection, queue, jobs)

    def freeze(self, now: Callable[[], float]) -> None:
        self.inner.freeze(now)

    @property
    def place(self) -> str:
        return self.inner.place

    @property
    def delays_by_id(self) -> bool:
        return self.inner.delays_by_id

    @property
    def shift_ms(self) -> int:
        return self.inner.shift_ms

    @shift_ms.setter
    def shift_ms(self, value: int) -> None:
        self.inner.shift_ms = value

    @property
    def counts_in(self) -> str | None:
        return self.inner.counts_in

    @counts_in.setter
    def counts_in(self, value: str | None) -> None:
        self.inner.counts_in = value

    @property
    def uncounted(self) -> set[str]:  # type: ignore[override]  # an attribute there
        return self.inner.uncounted

    def counts(self, queue: str) -> bool:
        return self.inner.counts(queue)

    def moves_in_one_step(self, queue: str, to: str, is_changed: bool) -> bool:
        return self.inner.moves_in_one_step(queue, to, is_changed)

    def check_queue(self, queue: str) -> None:
        self.inner.check_queue(queue)

    def prepare(self, job: NewJob) -> None:
        self.inner.prepare(job)

    def own_signal(self) -> Signal | None:
        signal: Signal | None = self.inner.aio_signal()
        return signal

    def own_stats(self) -> Stats | None:
        stats = self.inner.own_stats()
        return None if stats is None else ThreadedStats(stats, self.run)


class ThreadedStats(Stats):
    """The statistics of a blocking driver; their calls run where the driver's do."""

    def __init__(self, inner: BlockingStats, run: Run) -> None:
        self.inner = inner
        self.run = run


def _forward(form: type, contract: type) -> None:
    """Let all calls of a contract that `form` doesn't write by itself go to the inner object."""

    def forwarding(name: str) -> Run:
        async def call(self: Any, *args: Any, **named: Any) -> Any:
            return await self.run(getattr(self.inner, name), *args, **named)

        return call

    for name, method in vars(contract).items():
        if iscoroutinefunction(method) and name not in vars(form):
            setattr(form, name, forwarding(name))


_forward(ThreadedDriver, Driver)
_forward(ThreadedStats, Stats)
