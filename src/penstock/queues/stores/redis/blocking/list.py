# Written by scripts/blocking from ../aio/list.py: change that, then run `make blocking`.
"""`redis+list:` keeps jobs in Redis as Keuss' redis-list does: the fastest queue that Node and Python can share.

| key                          | type   | owner | contents                                                         |
|------------------------------|--------|-------|------------------------------------------------------------------|
| keuss:q:list:QUEUE           | list   | Keuss | `{"payload":..,"hdrs":..,"tries":N}`; pushed left, popped right  |
| penstock:list:signalled:...  | string | ours  | limits repeated signals to one in 50 ms                          |

Signals and statistics have Keuss' channels and hashes (`signal`, `stats`). There are no ids, no delays and no
reservations: `push` returns the length of the list, as Keuss does, and jobs are taken with `pop` only. Everything else
is refused. The time of a push is among an element's headers, as `x-penstock-created`; `job.headers` doesn't show it.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from penstock.job import JobState, NewJob, Sizes, StoredJob
from penstock.queues.blocking.driver import Driver, Page
from penstock.queues.blocking.runtime import to_the_end
from penstock.queues.blocking.signal import Signal
from penstock.queues.blocking.stats import Stats
from penstock.queues.capabilities import Capability
from penstock.queues.options import Options, StoreURL
from penstock.queues.stores.redis.blocking.link import RedisLink
from penstock.queues.stores.redis.blocking.signal import RedisSignal
from penstock.queues.stores.redis.blocking.stats import RedisStats
from penstock.queues.stores.redis.element import CREATED, stored_job, written_payload
from penstock.queues.stores.redis.keys import LIST, check_list_name, counters_key, list_keys, pattern_of
from penstock.queues.stores.redis.scripts import Argument, script


class RedisListDriver(Driver):
    """Jobs in lists."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.PEEK, Capability.HEADERS, Capability.SHARED_PAUSE}
    )
    type: ClassVar[str] = "redis:list"
    keeps_payloads: ClassVar[bool] = True
    can_count: ClassVar[bool] = True

    def __init__(self, address: StoreURL, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        self._link = RedisLink(address, extra)

    def open(self) -> None:
        self._link.open()

    def close(self) -> None:
        self._link.close()

    def own_signal(self) -> Signal | None:
        return RedisSignal(self.address, self.extra, self._link)

    def own_stats(self) -> Stats | None:
        return RedisStats(self.address, self.extra, self.options.namespace, self._link)

    def now_ms(self) -> int:
        return self._link.now_ms() + self.shift_ms

    def check_queue(self, queue: str) -> None:
        if self._link.is_cluster:
            check_list_name(queue, self._link.where)

    def counts(self, queue: str) -> bool:
        return self._counters_key(queue) is not None

    def _counters_key(self, queue: str) -> bytes | None:
        if self.counts_in is None or queue in self.uncounted:
            return None
        return counters_key(self.counts_in, queue, self._link.is_cluster)

    def _keys(self, queue: str) -> tuple[bytes, bytes, bytes]:
        self.check_queue(queue)
        return list_keys(queue, self._counters_key(queue))

    def prepare(self, job: NewJob) -> None:
        job.prepared = b'{%b,"tries":%d}' % (written_payload(job, int(time.time() * 1000)), job.tries)

    def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        args: list[Argument] = [channel or b"", *(job.prepared for job in jobs)]
        before = self._link.run(script("list_push"), self._keys(queue), args, idempotent=False)
        return [str(before + n) for n in range(1, len(jobs) + 1)]

    def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        pop = self._link.run(script("list_pop"), self._keys(queue), [count], idempotent=False)
        return _jobs(to_the_end(pop, partial(self._undo_pop, queue)))

    def _undo_pop(self, queue: str, reply: Any) -> None:
        self.put_back(queue, _jobs(reply))

    def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        if jobs:
            values = [job.raw for job in reversed(jobs)]
            self._link.run(script("list_put_back"), self._keys(queue), values, idempotent=False)

    def purge(self, queue: str) -> int:
        return int(self._link.run(script("list_purge"), self._keys(queue), [], idempotent=True))

    def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        """Pages are counted from the old end: jobs that are popped between two pages shift the second one."""
        if state not in {None, JobState.READY}:
            return Page([], None)
        key = self._keys(queue)[0]
        seen = int(cursor or 0)
        total, found = self._link.call_many([[b"LLEN", key], [b"LRANGE", key, -seen - count, -seen - 1]], key=key)
        return Page(_jobs(found[::-1]), str(seen + len(found)) if total > seen + len(found) else None)

    def sizes(self, queue: str) -> Sizes:
        key = self._keys(queue)[0]
        total = int(self._link.call(b"LLEN", key, key=key))
        return Sizes(total, total, 0, None)

    def next_mature_ms(self, queue: str) -> int | None:
        return self.now_ms() if (self.sizes(queue)).total else None

    def queues(self) -> list[str]:
        return [key[len(LIST) :].decode(errors="replace") for key in self._link.scan(pattern_of(LIST))]


def _jobs(reply: list[bytes] | None) -> list[StoredJob]:
    jobs = []
    for value in reply or ():
        job = stored_job("", value, None, JobState.READY)
        created_ms = job.headers.pop(CREATED, None)
        if isinstance(created_ms, int):
            job.recorded_ms = created_ms
        job.raw = value
        jobs.append(job)
    return jobs
