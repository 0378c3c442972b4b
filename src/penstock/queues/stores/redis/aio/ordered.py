"""`redis+oq:` keeps jobs in Redis as Keuss' redis-oq does: Node and Python share queues.

| key                                 | type       | owner | contents                                                |
|-------------------------------------|------------|-------|---------------------------------------------------------|
| keuss:q:ordered_queue:index:QUEUE   | sorted set | Keuss | id -> ready at, or lease ends at, in ms                 |
| keuss:q:ordered_queue:hash:QUEUE    | hash       | Keuss | id -> the element, JSON (see `redis.element`)           |
| penstock:oq:unique:QUEUE            | hash       | ours  | unique key -> how long it is kept, when it ended, id    |
| penstock:oq:unique-ids:QUEUE        | hash       | ours  | id -> unique key                                        |
| penstock:oq:unique-ends:QUEUE       | sorted set | ours  | unique key -> expires at, in ms                         |
| penstock:oq:claim:LENGTH:QUEUE:KEY  | hash       | ours  | the ids of a claim                                      |
| penstock:oq:claimed:QUEUE           | hash       | ours  | id -> its claim, and its token                          |
| penstock:oq:signalled:QUEUE         | string     | ours  | limits repeated signals to one in 50 ms                 |
| penstock:value:KEY                  | string     | ours  | a text under a key, which expires                       |

Signals and statistics have Keuss' channels and hashes (`signal`, `stats`). All times are the server's. Everything is
done by scripts (`lua/`), many jobs in one call. Differences from Keuss:

- A lease ends its length after the reserve. Keuss adds the length to the time at which the job became ready, and so
  delivers old jobs twice.
- A token is the lease's end as stored, and the tries: any change that a Node peer makes to the job makes it stale. (A
  job that was returned undelivered and is reserved again in the same millisecond has the token of the undelivered one.)
- An expired lease counts as a try when the job is reserved or popped again, if work on the job had begun. (Node peers
  don't count it.) A fraction in the lease's end says that work has not begun: `queue.lua`.
- Elements are never decoded and encoded in Redis, which would round numbers and turn `[]` into `{}`.

The end of a job with a unique key by a Node peer is noticed when the key is pushed again, or by chance when another one
is: the key's time begins then. Redis must be 6.2 or newer, and must not evict keys (`maxmemory-policy noeviction`).
While its memory is full, jobs can still be reserved, returned and acknowledged.

In a Redis Cluster, names of queues need a hash tag; only the default dead-letter queue, `__deadletter__`, gets one by
itself. Between queues of the same tag a move is atomic. Between others the job is stored there before it is ended here:
if the process dies in between, the job is in both, and is delivered again when its lease ends.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from penstock.errors import PenstockError
from penstock.job import JobMove, JobState, Lease, NewJob, Sizes, StoredJob
from penstock.queues.aio.driver import Driver, NewValue, Page
from penstock.queues.aio.runtime import to_the_end
from penstock.queues.aio.signal import Signal
from penstock.queues.aio.stats import Stats
from penstock.queues.capabilities import STANDARD, Capability
from penstock.queues.options import Options, StoreURL
from penstock.queues.stores.redis.aio.link import RedisLink
from penstock.queues.stores.redis.aio.signal import RedisSignal
from penstock.queues.stores.redis.aio.stats import RedisStats
from penstock.queues.stores.redis.element import stored_job, written_id, written_payload
from penstock.queues.stores.redis.keys import (
    OQ_INDEX,
    check_tag,
    claim_key,
    counters_key,
    name_in_cluster,
    oq_keys,
    pattern_of,
    queue_in_cluster,
    tag_of,
)
from penstock.queues.stores.redis.scripts import Argument, script

SCAN_JOBS = 500  # jobs that one call of peek, sizes or purge reads: a few milliseconds of the server's time
COUNT_MAX = 20_000  # jobs that `sizes` reads of those not ready; with more, the number of reserved ones is unknown
MOVE_MS = 30_000  # lease of a waiting job that moves to another slot of a Cluster
_SCORE_MAX = 9_999_999_999_999

VALUE_PREFIX = b"penstock:value:"


class RedisOqDriver(Driver):
    """Jobs in sorted sets and hashes."""

    capabilities: ClassVar[frozenset[Capability]] = STANDARD
    type: ClassVar[str] = "redis:oq"
    keeps_payloads: ClassVar[bool] = True
    can_count: ClassVar[bool] = True

    def __init__(self, address: StoreURL, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        self._link = RedisLink(address, extra)

    async def open(self) -> None:
        await self._link.open()
        self.puts_values_together = not self._link.is_cluster  # where each key has a node of its own

    async def close(self) -> None:
        await self._link.close()

    async def put_value(self, key: str, value: str, ttl_ms: int) -> None:
        name = VALUE_PREFIX + key.encode()
        await self._link.call(b"SET", name, value, b"PX", max(1, ttl_ms), key=name)

    async def put_values(self, values: Sequence[NewValue]) -> None:
        await self._link.call_many(
            [(b"SET", VALUE_PREFIX + one.key.encode(), one.text, b"PX", max(1, one.ttl_ms)) for one in values]
        )

    async def value(self, key: str) -> str | None:
        name = VALUE_PREFIX + key.encode()
        found = await self._link.call(b"GET", name, key=name)
        return None if found is None else _text(found)

    async def remove_value(self, key: str) -> None:
        name = VALUE_PREFIX + key.encode()
        await self._link.call(b"DEL", name, key=name)

    def own_signal(self) -> Signal | None:
        return RedisSignal(self.address, self.extra, self._link)

    def own_stats(self) -> Stats | None:
        return RedisStats(self.address, self.extra, self.options.namespace, self._link)

    async def now_ms(self) -> int:
        return await self._link.now_ms() + self.shift_ms

    def check_queue(self, queue: str) -> None:
        if self._link.is_cluster:
            check_tag(self._name(queue), self._link.where)

    def _name(self, queue: str) -> str:
        """Return the name that a queue has in its keys."""
        return name_in_cluster(queue) if self._link.is_cluster else queue

    def counts(self, queue: str) -> bool:
        return self._counters_key(queue) is not None

    def _counters_key(self, queue: str) -> bytes | None:
        if self.counts_in is None or queue in self.uncounted:
            return None
        return counters_key(self.counts_in, self._name(queue), self._link.is_cluster)

    def _keys(self, queue: str) -> tuple[bytes, ...]:
        self.check_queue(queue)
        return oq_keys(self._name(queue), self._counters_key(queue))

    async def _run(self, name: str, queue: str, *args: Argument, idempotent: bool = True) -> Any:
        return await self._link.run(script(name), self._keys(queue), (self.shift_ms, *args), idempotent=idempotent)

    def prepare(self, job: NewJob) -> None:
        job.prepared = b'{"_id":%b,%b,"mature":' % (written_id(job.id), written_payload(job))

    async def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        fields = max(map(_fields_needed, jobs), default=2)
        args: list[Argument] = [channel or b"", fields]
        for job in jobs:
            args += (job.id, job.prepared) if fields == 2 else _fields(job)[:fields]
        ids = await self._run("push", queue, *args, idempotent=False)
        return _texts(ids) if ids else [job.id for job in jobs]

    async def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        pop = self._run("pop", queue, count, idempotent=False)
        return _popped(await to_the_end(pop, partial(self._undo_pop, queue)))

    async def _undo_pop(self, queue: str, reply: Any) -> None:
        await self.put_back(queue, _popped(reply))

    async def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        args: list[Argument] = []
        for job in jobs:
            args += job.raw
        if args:
            await self._run("put_back", queue, *args)

    async def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        return _reserved(await self._run("reserve", queue, count, lease_ms, b"" if begin is None else begin), begin)

    async def release(self, queue: str, leases: Sequence[Lease]) -> None:
        await self._return(queue, leases, [0] * len(leases), None, tries=0)

    async def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        return await self._remove_reserved(queue, leases, "commit", begun)

    async def _remove_reserved(
        self, queue: str, leases: Sequence[Lease], counter: str, begun: Sequence[Lease] = ()
    ) -> list[bool]:
        args: list[Argument] = [counter, len(begun)]
        for job_id, token in (*begun, *leases):
            args += (job_id, token or b"")
        return _flags(await self._run("ack", queue, *args))

    async def nack(
        self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None
    ) -> list[bool]:
        return await self._return(queue, leases, delays_ms, channel, tries=1)

    async def _return(
        self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None, *, tries: int
    ) -> list[bool]:
        args: list[Argument] = [channel or b"", tries]
        for (job_id, token), delay_ms in zip(leases, delays_ms, strict=True):
            args += (job_id, token or b"", delay_ms)
        return _flags(await self._run("nack", queue, *args))

    async def extend(
        self, queue: str, leases: Sequence[Lease], leases_ms: Sequence[int], begun: Sequence[bool] = ()
    ) -> list[str | None]:
        args: list[Argument] = []
        for (job_id, token), lease_ms, has_begun in zip(leases, leases_ms, begun or [False] * len(leases), strict=True):
            args += (job_id, token or b"", lease_ms, int(has_begun))
        return [token or None for token in _texts(await self._run("extend", queue, *args))]

    def moves_in_one_step(self, queue: str, to: str, is_changed: bool) -> bool:
        return not self._link.is_cluster or tag_of(self._name(queue)) == tag_of(self._name(to))

    async def move(
        self, queue: str, to: str, moves: Sequence[JobMove], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        if not self.moves_in_one_step(queue, to, is_changed=True):
            return await self._move_between_slots(queue, to, moves, channel, counter)
        args: list[Argument] = [self.shift_ms, channel or b"", counter or b""]
        for (job_id, token), job in moves:
            args += (job_id, token or b"", *_fields(job))
        keys = [*self._keys(queue), *self._keys(to)]
        return _flags(await self._link.run(script("move"), keys, args, idempotent=True))

    async def _move_between_slots(
        self, queue: str, to: str, moves: Sequence[JobMove], channel: str | None, counter: str | None
    ) -> list[bool]:
        """The job is stored there before it is ended here, under the same id, so that a second attempt stores it once.

        It is in both only if the process dies in between, or the lease has ended by then.
        """
        self.check_queue(to)
        args: list[Argument] = [MOVE_MS]
        for (job_id, token), _ in moves:
            args += (job_id, token or b"")
        tokens = _texts(await self._run("hold", queue, *args))
        held = [at for at, token in enumerate(tokens) if token]
        done = [False] * len(moves)
        if not held:
            return done
        leases = [Lease(moves[at].lease.id, tokens[at]) for at in held]
        try:
            await self.push(to, [moves[at].job for at in held], channel)
        except PenstockError:
            # Those that waited wait again. The others are still reserved by their workers.
            waited = [Lease(moves[at].lease.id, tokens[at]) for at in held if moves[at].lease.token is None]
            with suppress(PenstockError):
                await self._return(queue, waited, [0] * len(waited), None, tries=0)
            raise
        for at, is_done in zip(held, await self._remove_reserved(queue, leases, counter or ""), strict=True):
            done[at] = is_done
        return done

    async def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        removed: list[bool] = []
        for begin in range(0, len(ids), self.batch_max):
            removed += _flags(await self._run("remove", queue, *ids[begin : begin + self.batch_max]))
        return removed

    async def purge(self, queue: str) -> int:
        removed = 0
        score = last = b""
        while True:
            count, score, last = await self._run("purge", queue, SCAN_JOBS, score, last)
            removed += int(count)
            if not last:
                return removed

    async def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        jobs: list[StoredJob] = []
        score, _, last = (cursor or " ").partition(" ")
        while True:
            left = count - len(jobs)
            scanned = SCAN_JOBS if state is not None else min(SCAN_JOBS, left)
            reply = await self._run("peek", queue, state or b"", left, scanned, score, last)
            score, last = _texts(reply[:2])
            for at in range(2, len(reply), 5):
                job_id, value, at_ms, found, is_reserved = reply[at : at + 5]
                jobs.append(_found(_text(job_id), value, at_ms, JobState(found.decode()), bool(is_reserved)))
            if not last or len(jobs) >= count:
                return Page(jobs, f"{score} {last}" if last else None)

    async def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        reply = await self._run("reserved", queue, *ids)
        found = zip(ids, reply[::2], reply[1::2], strict=True)
        return [
            _found(job_id, value, score, JobState.RESERVED, True) if value and score else None
            for job_id, value, score in found
        ]

    async def sizes(self, queue: str) -> Sizes:
        total, ready, reserved, score, last = await self._run("sizes", queue, SCAN_JOBS, b"", b"")
        scanned = SCAN_JOBS
        while last and scanned < COUNT_MAX:
            _, _, more, score, last = await self._run("sizes", queue, SCAN_JOBS, score, last)
            reserved += more
            scanned += SCAN_JOBS
        if last:
            return Sizes(total, ready, total - ready, None)
        return Sizes(total, ready, max(0, total - ready - reserved), reserved)

    async def next_mature_ms(self, queue: str) -> int | None:
        score = await self._run("next_score", queue)
        return _milliseconds(score) if score else None

    async def queues(self) -> list[str]:
        found = await self._link.scan(pattern_of(OQ_INDEX))
        names = [_text(key[len(OQ_INDEX) :]) for key in found]
        return [queue_in_cluster(name) for name in names] if self._link.is_cluster else names

    async def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        jobs: list[StoredJob] = []
        while True:
            wanted = min(count - len(jobs), self.batch_max)
            is_new, *reply = await self._run_claim("claim", queue, key, lease_ms, wanted, 1 if jobs else 0, 0)
            if not is_new and not jobs:
                return await self._renew_claim(queue, key, lease_ms)
            more = _reserved(reply) if is_new else []
            jobs += more
            if len(more) < wanted or len(jobs) >= count:
                return jobs

    async def claim_unread(self, queue: str, key: str, count: int, lease_ms: int) -> int:
        total = 0
        while True:
            wanted = min(count - total, self.batch_max)
            is_new, *reply = await self._run_claim("claim", queue, key, lease_ms, wanted, 1 if total else 0, 1)
            if not is_new and not total:
                return await self.extend_claim(queue, key, lease_ms)
            more = reply[0] if is_new else 0
            total += more
            if more < wanted or total >= count:
                return total

    async def _run_claim(self, name: str, queue: str, key: str, *args: Argument) -> Any:
        keys = (*self._keys(queue), claim_key(self._name(queue), key))
        return await self._link.run(script(name), keys, (self.shift_ms, key, *args), idempotent=True)

    async def _renew_claim(self, queue: str, key: str, lease_ms: int) -> list[StoredJob]:
        jobs: list[StoredJob] = []
        begin = 1
        while True:
            end = begin + self.batch_max - 1
            size, *reply = await self._run_claim("renew_claim", queue, key, lease_ms, begin, end, 0)
            for at in range(0, len(reply), 3):
                jobs += _reserved([reply[at], [], *reply[at + 1 : at + 3]])
            begin += self.batch_max
            if begin > size:
                return jobs

    async def extend_claim(self, queue: str, key: str, lease_ms: int) -> int:
        extended = 0
        begin = 1
        while True:
            end = begin + self.batch_max - 1
            size, count = await self._run_claim("renew_claim", queue, key, lease_ms, begin, end, 1)
            extended += int(count)
            begin += self.batch_max
            if begin > size:
                return extended

    async def ack_claim(self, queue: str, key: str) -> int:
        return await self._end_claim(queue, key, b"")

    async def nack_claim(self, queue: str, key: str, delay_ms: int) -> int:
        return await self._end_claim(queue, key, delay_ms)

    async def _end_claim(self, queue: str, key: str, delay_ms: Argument) -> int:
        ended = 0
        begin = 1
        while True:
            end = begin + self.batch_max - 1
            size, count = await self._run_claim("end_claim", queue, key, delay_ms, begin, end)
            ended += int(count)
            begin += self.batch_max
            if begin > size:
                return ended


def _fields_needed(job: NewJob) -> int:
    """Return how many fields of a job must be sent: most are ready at once, were never tried, and have no key."""
    if job.unique is not None:
        return 6
    return 4 if job.delay_ms or job.mature_ms is not None or job.tries else 2


def _fields(job: NewJob) -> tuple[Argument, ...]:
    """Return a job's fields, as `push.lua` reads them."""
    when: Argument = b"" if job.mature_ms is None else job.mature_ms
    if job.mature_ms is None and job.delay_ms:
        when = b"d%d" % job.delay_ms
    return job.id, job.prepared, when, job.tries, job.unique or b"", job.unique_for_ms


def _popped(reply: Any) -> list[StoredJob]:
    found, keys = reply
    jobs = []
    for at in range(0, len(found), 3):
        job_id, value, score = found[at : at + 3]
        job = stored_job(_text(job_id), value, _milliseconds(score), JobState.READY)
        n = at // 3 * 2
        job.raw = (job_id, value, score, *(keys[n : n + 2] or (b"", b"")))
        jobs.append(job)
    return jobs


def _reserved(reply: Any, begin: int | None = None) -> list[StoredJob]:
    time = reply[0].decode()
    jobs = [
        stored_job(_text(reply[at]), reply[at + 1], int(time), JobState.RESERVED, time)
        for at in range(2, len(reply), 2)
    ]
    if begin is not None:
        for job in jobs[begin:]:
            job.has_begun = False
    back = reply[1]
    for at in range(0, len(back), 2):
        job = jobs[back[at]]
        job.is_back, job.unbegun, job.has_begun = True, back[at + 1], begin is None
    return jobs


def _found(job_id: str, value: bytes, score: bytes, state: JobState, is_reserved: bool) -> StoredJob:
    """Return a job that was found by a scan or by its id."""
    whole, _, fraction = score.decode().partition(".")
    job = stored_job(job_id, value, _milliseconds(score), state, whole if is_reserved else None)
    job.has_begun = not (is_reserved and fraction)
    return job


def _milliseconds(score: bytes) -> int:
    """Return a score as a time. A peer may have written any number, even an infinite one."""
    return int(max(-_SCORE_MAX, min(_SCORE_MAX, float(score))))


def _text(reply: bytes) -> str:
    return reply.decode(errors="surrogateescape")


def _texts(reply: list[bytes]) -> list[str]:
    return list(map(_text, reply))


def _flags(reply: list[int]) -> list[bool]:
    return [flag == 1 for flag in reply]
