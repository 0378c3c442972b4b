# Written by scripts/blocking from ../aio/ordered.py: change that, then run `make blocking`.
"""`redis+oq:` keeps jobs in Redis as Keuss' redis-oq does: Node and Python share queues.

| key                                 | type       | whose | read and written                                        |
|-------------------------------------|------------|-------|---------------------------------------------------------|
| keuss:q:ordered_queue:index:QUEUE   | sorted set | Keuss | id -> ready at, or lease ends at, in ms                 |
| keuss:q:ordered_queue:hash:QUEUE    | hash       | Keuss | id -> the element, JSON (see `redis.element`)           |
| penstock:oq:unique:QUEUE            | hash       | ours  | unique key -> how long it is kept, when it ended, id    |
| penstock:oq:unique-ids:QUEUE        | hash       | ours  | id -> unique key                                        |
| penstock:oq:unique-ends:QUEUE       | sorted set | ours  | unique key -> when it is forgotten                      |
| penstock:oq:claim:LENGTH:QUEUE:KEY  | hash       | ours  | the ids that a claim was given                          |
| penstock:oq:claimed:QUEUE           | hash       | ours  | id -> the claim that it is under, and its token         |
| penstock:oq:told:QUEUE              | string     | ours  | keeps signals that may be needless apart                |

Signals and statistics have Keuss' channels and hashes (`signal`, `stats`). All times are the
server's. Everything is done by scripts (`lua/`), many jobs in one call. What is better than Keuss:

- A lease ends at its beginning plus its length; Keuss adds to the time of maturity, and gives old jobs out twice.
- A token is the lease's end as stored, and the tries: whatever a Node peer does to the job makes it stale. (A job that
  was given back unseen and is taken again in the same millisecond has the token that nobody was given.)
- A lease that ran out counts as a try when the job is reserved or popped again, if work on the job had begun. (Node
  peers don't count it.) That it has not begun is kept in the fraction of the lease's end: `queue.lua`.
- Elements are never decoded and encoded in Redis, which would cut numbers and turn `[]` into `{}`.

A unique key whose job a Node peer ended counts as ended when that is first noticed: when the key is pushed again, or by
chance when another one is. Redis must be 6.2 or newer, and must not be told to evict keys (`maxmemory-policy
noeviction`). A Redis that is full still gives jobs out, takes them back and ends them.

In a Redis Cluster names of queues need a hash tag; only the default queue of dead letters, `__deadletter__`, has one by
itself. A move is one step between queues of the same tag. Between others the job is stored there before it is ended
here: a process that dies in between leaves it in both, and it is delivered again when its lease is over.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from penstock.errors import PenstockError
from penstock.job import JobState, Lease, Move, NewJob, Sizes, StoredJob
from penstock.queues.blocking.driver import Driver, Page
from penstock.queues.blocking.signal import Signal
from penstock.queues.blocking.stats import Stats
from penstock.queues.capabilities import Capability
from penstock.queues.options import Address, Options
from penstock.queues.stores.redis.blocking.link import RedisLink
from penstock.queues.stores.redis.blocking.signal import RedisSignal
from penstock.queues.stores.redis.blocking.stats import RedisStats
from penstock.queues.stores.redis.element import stored_job, written_id, written_payload
from penstock.queues.stores.redis.keys import (
    OQ_INDEX,
    check_tag,
    claim_key,
    name_in_cluster,
    oq_keys,
    pattern_of,
    queue_in_cluster,
    stats_key,
    tag_of,
)
from penstock.queues.stores.redis.packing import Word
from penstock.queues.stores.redis.scripts import script

LOOK = 500  # jobs that one call of peek, sizes or purge looks at: a few milliseconds of the server's time
COUNT_MAX = 20_000  # jobs that are not ready and that `sizes` looks at; beyond that it can't tell how many are reserved
MOVE_MS = 30_000  # lease of a job that waited and is on its way to another slot of a Cluster
_SCORE_MAX = 9_999_999_999_999


class RedisOqDriver(Driver):
    """Jobs in sorted sets and hashes."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.DELAY,
            Capability.RESERVE,
            Capability.EXTEND,
            Capability.TOKEN,
            Capability.CLAIM,
            Capability.PEEK,
            Capability.REMOVE,
            Capability.HEADERS,
            Capability.UNIQUE,
            Capability.ATOMIC_MOVE,
            Capability.SHARED_PAUSE,
        }
    )
    type: ClassVar[str] = "redis:oq"
    keeps_payloads: ClassVar[bool] = True
    can_count: ClassVar[bool] = True

    def __init__(self, address: Address, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        self.link = RedisLink(address, extra)

    def open(self) -> None:
        self.link.open()

    def close(self) -> None:
        self.link.close()

    def own_signal(self) -> Signal | None:
        return RedisSignal(self.address, self.extra, self.link)

    def own_stats(self) -> Stats | None:
        return RedisStats(self.address, self.extra, self.options.name, self.link)

    def now_ms(self) -> int:
        return self.link.now_ms() + self.shift_ms

    def check_queue(self, queue: str) -> None:
        if self.link.is_cluster:
            check_tag(self._name(queue), self.link.where)

    def _name(self, queue: str) -> str:
        """The name in a queue's keys."""
        return name_in_cluster(queue) if self.link.is_cluster else queue

    def counts(self, queue: str) -> bool:
        return self._stats_key(queue) is not None

    def _stats_key(self, queue: str) -> bytes | None:
        """The key of the counters, where scripts can write them: in a Cluster only in the slot of the jobs."""
        if self.counts_in is None or queue in self.uncounted:
            return None
        name = self._name(queue)
        key = stats_key(self.counts_in, name)
        return None if self.link.is_cluster and tag_of(key) != tag_of(name) else key

    def _keys(self, queue: str) -> tuple[bytes, ...]:
        self.check_queue(queue)
        return oq_keys(self._name(queue), self._stats_key(queue))

    def _run(self, name: str, queue: str, *args: Word, again: bool = True) -> Any:
        return self.link.run(script(name), self._keys(queue), [self.shift_ms, *args], again=again)

    def prepare(self, job: NewJob) -> None:
        job.prepared = b'{"_id":%b,%b,"mature":' % (written_id(job.id), written_payload(job))

    def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        fields = max(map(_fields_needed, jobs), default=2)
        args: list[Word] = [channel or b"", fields]
        for job in jobs:
            args += _new(job)[:fields]
        return _texts(self._run("push", queue, *args, again=False))

    def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        args = [self.shift_ms, count]
        undo = partial(self._unpop, queue)
        return _popped(self.link.run(script("pop"), self._keys(queue), args, again=False, undo=undo))

    def _unpop(self, queue: str, reply: Any) -> None:
        self.put_back(queue, _popped(reply))

    def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        args: list[Word] = []
        for job in jobs:
            args += job.raw
        if args:
            self._run("put_back", queue, *args)

    def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        return _reserved(self._run("reserve", queue, count, lease_ms, b"" if begin is None else begin), begin)

    def release(self, queue: str, leases: Sequence[Lease]) -> None:
        self._give_back(queue, leases, [0] * len(leases), None, tries=0)

    def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        return self._end(queue, leases, "commit", begun)

    def _end(self, queue: str, leases: Sequence[Lease], counter: str, begun: Sequence[Lease] = ()) -> list[bool]:
        args: list[Word] = [counter, len(begun)]
        for job_id, token in (*begun, *leases):
            args += (job_id, token or b"")
        return _flags(self._run("ack", queue, *args))

    def nack(self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None) -> list[bool]:
        return self._give_back(queue, leases, delays_ms, channel, tries=1)

    def _give_back(
        self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None, *, tries: int
    ) -> list[bool]:
        args: list[Word] = [channel or b"", tries]
        for (job_id, token), delay_ms in zip(leases, delays_ms, strict=True):
            args += (job_id, token or b"", delay_ms)
        return _flags(self._run("nack", queue, *args))

    def extend(
        self, queue: str, leases: Sequence[Lease], leases_ms: Sequence[int], begun: Sequence[bool] = ()
    ) -> list[str | None]:
        args: list[Word] = []
        for (job_id, token), lease_ms, has_begun in zip(leases, leases_ms, begun or [False] * len(leases), strict=True):
            args += (job_id, token or b"", lease_ms, int(has_begun))
        return [token or None for token in _texts(self._run("extend", queue, *args))]

    def move(
        self, queue: str, to: str, moves: Sequence[Move], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        if self.link.is_cluster and tag_of(self._name(queue)) != tag_of(self._name(to)):
            return self._move_in_steps(queue, to, moves, channel, counter)
        args: list[Word] = [self.shift_ms, channel or b"", counter or b""]
        for (job_id, token), job in moves:
            args += (job_id, token or b"", *_new(job))
        keys = [*self._keys(queue), *self._keys(to)]
        return _flags(self.link.run(script("move"), keys, args, again=True))

    def _move_in_steps(
        self, queue: str, to: str, moves: Sequence[Move], channel: str | None, counter: str | None
    ) -> list[bool]:
        """Between slots: the job is stored there before it is ended here, under the same id, so that a second attempt
        stores it once. It is in both only if this was cut off in between, or the lease was over by then."""
        self.check_queue(to)
        args: list[Word] = [MOVE_MS]
        for (job_id, token), _ in moves:
            args += (job_id, token or b"")
        tokens = _texts(self._run("hold", queue, *args))
        held = [at for at, token in enumerate(tokens) if token]
        done = [False] * len(moves)
        if not held:
            return done
        leases = [Lease(moves[at].lease.id, tokens[at]) for at in held]
        try:
            self.push(to, [moves[at].job for at in held], channel)
        except PenstockError:
            # Those that waited wait again. The others are still their workers'.
            waited = [Lease(moves[at].lease.id, tokens[at]) for at in held if moves[at].lease.token is None]
            with suppress(PenstockError):
                self._give_back(queue, waited, [0] * len(waited), None, tries=0)
            raise
        for at, is_done in zip(held, self._end(queue, leases, counter or ""), strict=True):
            done[at] = is_done
        return done

    def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        removed: list[bool] = []
        for begin in range(0, len(ids), self.batch_max):
            removed += _flags(self._run("remove", queue, *ids[begin : begin + self.batch_max]))
        return removed

    def purge(self, queue: str) -> int:
        removed = 0
        score = last = b""
        while True:
            count, score, last = self._run("purge", queue, LOOK, score, last)
            removed += int(count)
            if not last:
                return removed

    def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        jobs: list[StoredJob] = []
        score, _, last = (cursor or " ").partition(" ")
        while True:
            look = LOOK if state is not None else min(LOOK, count - len(jobs))
            reply = self._run("peek", queue, state or b"", count - len(jobs), look, score, last)
            score, last = _texts(reply[:2])
            jobs += [_seen(*reply[at : at + 5]) for at in range(2, len(reply), 5)]
            if not last or len(jobs) >= count:
                return Page(jobs, f"{score} {last}" if last else None)

    def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        reply = self._run("reserved", queue, *ids)
        return [_held(job_id, *reply[2 * n : 2 * n + 2]) for n, job_id in enumerate(ids)]

    def sizes(self, queue: str) -> Sizes:
        total, ready, reserved, score, last = self._run("sizes", queue, LOOK, b"", b"")
        looked = LOOK
        while last and looked < COUNT_MAX:
            _, _, more, score, last = self._run("sizes", queue, LOOK, score, last)
            reserved += more
            looked += LOOK
        if last:
            return Sizes(total, ready, total - ready, None)
        return Sizes(total, ready, max(0, total - ready - reserved), reserved)

    def next_mature_ms(self, queue: str) -> int | None:
        score = self._run("next", queue)
        return _milliseconds(score) if score else None

    def queues(self) -> list[str]:
        found = self.link.scan(pattern_of(OQ_INDEX))
        names = [key[len(OQ_INDEX) :].decode(errors="surrogateescape") for key in found]
        return [queue_in_cluster(name) for name in names] if self.link.is_cluster else names

    def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        keys = [*self._keys(queue), claim_key(self._name(queue), key)]
        jobs: list[StoredJob] = []
        while True:
            wanted = min(count - len(jobs), self.batch_max)
            args: list[Word] = [self.shift_ms, key, lease_ms, wanted, 1 if jobs else 0]
            is_new, *reply = self.link.run(script("claim"), keys, args, again=True)
            if not is_new and not jobs:
                return self._claim_again(queue, key, lease_ms)
            more = _reserved(reply) if is_new else []
            jobs += more
            if len(more) < wanted or len(jobs) >= count:
                return jobs

    def _claim_again(self, queue: str, key: str, lease_ms: int) -> list[StoredJob]:
        keys = [*self._keys(queue), claim_key(self._name(queue), key)]
        jobs: list[StoredJob] = []
        begin = 1
        while True:
            args: list[Word] = [self.shift_ms, key, lease_ms, begin, begin + self.batch_max - 1]
            size, *reply = self.link.run(script("claim_lease"), keys, args, again=True)
            for at in range(0, len(reply), 3):
                jobs += _reserved([reply[at], [], *reply[at + 1 : at + 3]])
            begin += self.batch_max
            if begin > size:
                return jobs

    def extend_claim(self, queue: str, key: str, lease_ms: int) -> int:
        return len(self._claim_again(queue, key, lease_ms))

    def ack_claim(self, queue: str, key: str) -> int:
        return self._end_claim(queue, key, b"")

    def nack_claim(self, queue: str, key: str, delay_ms: int) -> int:
        return self._end_claim(queue, key, delay_ms)

    def _end_claim(self, queue: str, key: str, delay_ms: Word) -> int:
        keys = [*self._keys(queue), claim_key(self._name(queue), key)]
        ended = 0
        begin = 1
        while True:
            args: list[Word] = [self.shift_ms, key, delay_ms, begin, begin + self.batch_max - 1]
            size, count = self.link.run(script("claim_end"), keys, args, again=True)
            ended += int(count)
            begin += self.batch_max
            if begin > size:
                return ended


def _fields_needed(job: NewJob) -> int:
    """How much of a job must be sent: most are ready at once, were never tried, and have no key."""
    if job.unique is not None:
        return 6
    return 4 if job.delay_ms or job.mature_ms is not None or job.tries else 2


def _new(job: NewJob) -> tuple[Word, ...]:
    """A job's arguments, as `adding.lua` wants them."""
    when: Word = b"" if job.mature_ms is None else job.mature_ms
    if job.mature_ms is None and job.delay_ms:
        when = b"d%d" % job.delay_ms
    return job.id, job.prepared, when, job.tries, job.unique or b"", job.unique_for_ms


def _popped(reply: Any) -> list[StoredJob]:
    found, keys = reply
    jobs = []
    for at in range(0, len(found), 3):
        job_id, value, score = found[at : at + 3]
        job = stored_job(job_id.decode(errors="surrogateescape"), value, _milliseconds(score), JobState.READY)
        n = at // 3 * 2
        job.raw = (job_id, value, score, *(keys[n : n + 2] or (b"", b"")))
        jobs.append(job)
    return jobs


def _reserved(reply: Any, begin: int | None = None) -> list[StoredJob]:
    time = reply[0].decode()
    jobs = [
        stored_job(reply[at].decode(errors="surrogateescape"), reply[at + 1], int(time), JobState.RESERVED, time)
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


def _seen(job_id: bytes, value: bytes, score: bytes, state: bytes, is_reserved: int) -> StoredJob:
    text = score.decode()
    whole, _, fraction = text.partition(".")
    job = stored_job(
        job_id.decode(errors="surrogateescape"),
        value,
        _milliseconds(score),
        JobState(state.decode()),
        whole if is_reserved else None,
    )
    job.has_begun = not (is_reserved and fraction)
    return job


def _held(job_id: str, value: bytes, score: bytes) -> StoredJob | None:
    if not value or not score:
        return None
    whole, _, fraction = score.decode().partition(".")
    job = stored_job(job_id, value, _milliseconds(score), JobState.RESERVED, whole)
    job.has_begun = not fraction
    return job


def _milliseconds(score: bytes) -> int:
    """A score as a time; a peer may have written any number, even an infinite one."""
    return int(max(-_SCORE_MAX, min(_SCORE_MAX, float(score))))


def _texts(reply: list[bytes]) -> list[str]:
    return [text.decode(errors="surrogateescape") for text in reply]


def _flags(reply: list[int]) -> list[bool]:
    return [flag == 1 for flag in reply]
