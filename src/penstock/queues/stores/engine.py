"""What a store without a server must do: the same as a driver (see `penstock.queues.aio.driver`), without waiting."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.job import JobState, Lease, Move, NewJob, Sizes, StoredJob

Page = tuple[list[StoredJob], str | None]
FIND_BATCH = 1000  # reserved jobs that are looked at in one go to find one


class Engine:
    """One store in this process. Each call is whole: nothing else happens in the store meanwhile, or it seems so.

    `now_ms` is given with each call, so that the driver's clock rules. Threads may share an engine.
    """

    def open(self) -> None:
        """Make ready."""

    def close(self) -> None:
        """Let go."""

    def version(self) -> int:
        """Another number whenever somebody else has changed the store."""
        raise NotImplementedError

    def prepare(self, job: NewJob) -> None:
        """Check a job before anything is stored."""

    def push(self, queue: str, jobs: Sequence[NewJob], now_ms: int) -> list[str]:
        raise NotImplementedError

    def push_within(self, connection: Any, queue: str, jobs: Sequence[NewJob], now_ms: int) -> list[str]:
        raise NotImplementedError

    def pop(self, queue: str, count: int, now_ms: int) -> list[StoredJob]:
        raise NotImplementedError

    def put_back(self, queue: str, jobs: Sequence[StoredJob], now_ms: int) -> None:
        raise NotImplementedError

    def reserve(self, queue: str, count: int, lease_ms: int, now_ms: int, begin: int | None = None) -> list[StoredJob]:
        raise NotImplementedError

    def release(self, queue: str, leases: Sequence[Lease], now_ms: int) -> None:
        raise NotImplementedError

    def ack(self, queue: str, leases: Sequence[Lease], now_ms: int, begun: Sequence[Lease] = ()) -> list[bool]:
        raise NotImplementedError

    def nack(self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], now_ms: int) -> list[bool]:
        raise NotImplementedError

    def extend(
        self,
        queue: str,
        leases: Sequence[Lease],
        leases_ms: Sequence[int],
        now_ms: int,
        begun: Sequence[bool] = (),
    ) -> list[str | None]:
        raise NotImplementedError

    def move(self, queue: str, to: str, moves: Sequence[Move], now_ms: int) -> list[bool]:
        raise NotImplementedError

    def remove(self, queue: str, ids: Sequence[str], now_ms: int) -> list[bool]:
        raise NotImplementedError

    def purge(self, queue: str, now_ms: int) -> int:
        raise NotImplementedError

    def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None, now_ms: int) -> Page:
        raise NotImplementedError

    def reserved(self, queue: str, ids: Sequence[str], now_ms: int) -> list[StoredJob | None]:
        raise NotImplementedError

    def sizes(self, queue: str, now_ms: int) -> Sizes:
        raise NotImplementedError

    def next_mature_ms(self, queue: str) -> int | None:
        raise NotImplementedError

    def queues(self) -> list[str]:
        raise NotImplementedError

    def claim(self, queue: str, key: str, count: int, lease_ms: int, now_ms: int) -> list[StoredJob]:
        raise NotImplementedError

    def extend_claim(self, queue: str, key: str, lease_ms: int, now_ms: int) -> int:
        raise NotImplementedError

    def ack_claim(self, queue: str, key: str, now_ms: int) -> int:
        raise NotImplementedError

    def nack_claim(self, queue: str, key: str, delay_ms: int, now_ms: int) -> int:
        raise NotImplementedError


class Statistics:
    """Counters, pauses and options of queues beside the jobs of an engine: see `penstock.queues.aio.stats.base`."""

    def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        raise NotImplementedError

    def counters(self, queue: str) -> dict[str, int]:
        raise NotImplementedError

    def register(self, queue: str, options: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def options(self, queue: str) -> dict[str, Any]:
        raise NotImplementedError

    def queues(self) -> list[str]:
        raise NotImplementedError

    def paused(self, queue: str) -> bool:
        raise NotImplementedError

    def set_paused(self, queue: str, paused: bool) -> None:
        raise NotImplementedError
