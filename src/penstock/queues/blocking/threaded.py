# Written by scripts/blocking from ../aio/threaded.py: change that, then run `make blocking`.
"""The driver of stores that need no server: it hands each call to an engine, plain blocking code."""

import time
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from penstock.job import JobState, Lease, Move, NewJob, Sizes, StoredJob
from penstock.queues.blocking.driver import Driver, Page
from penstock.queues.blocking.threads import OneThread
from penstock.queues.stores.engine import Engine

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class EngineDriver(Driver):
    """An engine as a driver. Calls that take long go to a thread of their own; a subclass says so with a `thread`."""

    engine: Engine
    thread: OneThread | None = None

    def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        """A call of the engine, or of what belongs to it."""
        return call(*args, **named) if self.thread is None else self.thread.run(call, *args, **named)

    def _now(self) -> int:
        return time.time_ns() // 1_000_000 + self.shift_ms

    def open(self) -> None:
        self.run(self.engine.open)

    def close(self) -> None:
        self.run(self.engine.close)
        if self.thread is not None:
            self.thread.close()

    def now_ms(self) -> int:
        return self._now()

    def version(self) -> int:
        return self.run(self.engine.version)

    def prepare(self, job: NewJob) -> None:
        self.engine.prepare(job)

    def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        return self.run(self.engine.push, queue, jobs, self._now())

    def push_within(self, connection: Any, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        # On the caller's connection, so in the caller's thread.
        return self.engine.push_within(connection, queue, jobs, self._now())

    def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        return self.run(self.engine.pop, queue, count, self._now())

    def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        self.run(self.engine.put_back, queue, jobs, self._now())

    def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        return self.run(self.engine.reserve, queue, count, lease_ms, self._now(), begin)

    def release(self, queue: str, leases: Sequence[Lease]) -> None:
        self.run(self.engine.release, queue, leases, self._now())

    def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        return self.run(self.engine.ack, queue, leases, self._now(), begun)

    def nack(self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None) -> list[bool]:
        return self.run(self.engine.nack, queue, leases, delays_ms, self._now())

    def extend(
        self, queue: str, leases: Sequence[Lease], leases_ms: Sequence[int], begun: Sequence[bool] = ()
    ) -> list[str | None]:
        return self.run(self.engine.extend, queue, leases, leases_ms, self._now(), begun)

    def move(
        self, queue: str, to: str, moves: Sequence[Move], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        return self.run(self.engine.move, queue, to, moves, self._now())

    def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        return self.run(self.engine.remove, queue, ids, self._now())

    def purge(self, queue: str) -> int:
        return self.run(self.engine.purge, queue, self._now())

    def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        return Page(*self.run(self.engine.peek, queue, state, count, cursor, self._now()))

    def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        return self.run(self.engine.reserved, queue, ids, self._now())

    def sizes(self, queue: str) -> Sizes:
        return self.run(self.engine.sizes, queue, self._now())

    def next_mature_ms(self, queue: str) -> int | None:
        return self.run(self.engine.next_mature_ms, queue)

    def queues(self) -> list[str]:
        return self.run(self.engine.queues)

    def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        return self.run(self.engine.claim, queue, key, count, lease_ms, self._now())

    def extend_claim(self, queue: str, key: str, lease_ms: int) -> int:
        return self.run(self.engine.extend_claim, queue, key, lease_ms, self._now())

    def ack_claim(self, queue: str, key: str) -> int:
        return self.run(self.engine.ack_claim, queue, key, self._now())

    def nack_claim(self, queue: str, key: str, delay_ms: int) -> int:
        return self.run(self.engine.nack_claim, queue, key, delay_ms, self._now())
