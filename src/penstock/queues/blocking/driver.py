# Written by scripts/blocking from ../aio/driver.py: change that, then run `make blocking`.
"""What a store must do for the queue library.

A driver moves jobs in and out of one store, many at a time, one round trip a call. It knows nothing of codecs, waiting,
dead-letter limits or coalescing: `queue` does that for all of them. Rules that hold for every driver:

1. The store's clock rules. Times are unix milliseconds of the server, plus `shift_ms`, which tests move.
2. A lease's token is a text that the store can check: no lease has the token of an earlier one of the same job.
   What a stale token asks for changes nothing, and is answered with False or None.
3. A job whose lease ran out is ready again, for everybody. When it is handed out, its `tries` has grown by one if work
   on it had begun under that lease; if not, `unbegun` has grown by one in place of it. A lease begins at the reserve,
   unless the caller says how many of the jobs begin at once: then the first ones do, but for those that come back from
   a lease that ran out. The others begin when `ack` or `extend` says so. To begin doesn't change a token. `unbegun`
   counts leases in a row: it is 0 again once a lease has begun, or the job was given back. A nack always counts as a
   try.
4. Calls take lists and return lists, an entry for each, in order.
5. Cancelling a call, or losing the connection under it, never loses a job that the server kept: it stays, or it comes
   back when its lease is over. The errors are `ConnectionLost` where nothing was done (or where to repeat it is
   harmless), `OutcomeUnknown` where it may have been done, `StoreError` where the server refuses.
6. What Keuss also writes has Keuss' names and forms; what is only ours is stored where a Node peer never reads.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from penstock.errors import CallerError
from penstock.job import LIVE, JobMove, JobState, Lease, Mark, NewJob, Sizes, StoredJob
from penstock.queues.blocking.signal import Signal
from penstock.queues.blocking.stats import Stats
from penstock.queues.capabilities import Capability, lacking
from penstock.queues.options import OPTIONS, POLL_S, Options, StoreURL
from penstock.queues.scan import NOTHING, Part, Rows, Wanted, bound, columns_of

PAGE = 500  # jobs read in one call


class Page(NamedTuple):
    """Some jobs, and where the next ones begin: None if there are no more."""

    jobs: list[StoredJob]
    cursor: str | None


class NewValue(NamedTuple):
    """A text to be kept under a key."""

    key: str
    text: str
    ttl_ms: int


class Driver:
    """The base of all drivers. What a driver's capabilities leave out, it need not write."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    # What kind of store it is: Keuss' word where the layout is Keuss'.
    type: ClassVar[str] = "unknown"
    # Keuss' layouts keep payloads; others keep bodies, and the queue's codec reads them.
    keeps_payloads: ClassVar[bool] = False
    # `pop` and `reserve` wait on the server for `wait_ms`; others answer at once, and the queue waits for a signal.
    can_wait: ClassVar[bool] = False
    # The store itself holds back the jobs of a paused queue.
    pauses_itself: ClassVar[bool] = False
    # It has `push_bodies`, a faster call for jobs without options.
    takes_bodies: ClassVar[bool] = False
    poll_s: ClassVar[float] = POLL_S
    # How often to ask for the store's `version` while somebody waits: for stores whose other users send no signals.
    watch_s: ClassVar[float | None] = None
    batch_max: ClassVar[int] = 1000  # jobs in one call: the queue cuts larger ones
    # Options that only this kind of store has; any other is refused. None: the driver checks them itself.
    own_options: ClassVar[frozenset[str] | None] = None
    # What `scan_page` compares by itself: columns of `Wanted.limits`, and `id` for `Wanted.ids`. States it always does.
    compares: ClassVar[frozenset[str]] = frozenset()
    # Jobs are leased before the key of their claim is written: a failure in between leaves them to their leases.
    claims_in_steps: ClassVar[bool] = False
    # Whether jobs can be had again by their marks, where there are no claims.
    has_marks: ClassVar[bool] = False
    # Calls take no time, so that the async form needs no thread for them.
    is_in_memory: ClassVar[bool] = False
    # Whether it can write a counter in the same step as what it counts, where its own statistics are in use.
    can_count: ClassVar[bool] = False
    # Jobs can be where they are known of, but not reached: those are READY, and shown as AWAY.
    has_away: ClassVar[bool] = False
    # A move that takes two steps is given a unique key, and stores no second job if it is repeated.
    keys_moves: ClassVar[bool] = False
    # A job that moves to another queue keeps its id.
    keeps_ids: ClassVar[bool] = True
    # It has `put_values`; others are asked to keep one text after the other.
    puts_values_together: bool = False

    def __init__(self, address: StoreURL, options: Options, extra: dict[str, Any]) -> None:
        self.address = address
        self.options = options
        self.extra = extra  # options that only this driver knows, as arguments; those of the URL are in address.rest
        self.shift_ms = 0
        self.counts_in: str | None = None  # the namespace whose counters this driver writes by itself
        self.uncounted: set[str] = set()  # queues whose counters are kept elsewhere all the same
        # Queues in which the end of a job has made another one ready, which consumers have not heard of yet.
        self.freed: set[str] = set()
        if self.own_options is not None:
            self._check_options(self.own_options)

    def _check_options(self, own: frozenset[str]) -> None:
        unknown = sorted({*self.address.rest, *self.extra} - own)
        if unknown:
            known = ", ".join(sorted({*OPTIONS, *own}))
            raise CallerError(f"{self.address.url} has no option {unknown[0]!r}; there are {known}")

    @classmethod
    def kind_of(cls, scheme: str) -> tuple[str, frozenset[Capability]]:
        """Return the type and the capabilities of a scheme: they differ where several schemes share a driver."""
        return cls.type, cls.capabilities

    @property
    def place(self) -> str:
        """Where the jobs are: stores of one process with the same place share their local signals."""
        # Several schemes may mean one kind of store.
        return f"{type(self).__name__}:{self.address.url.partition(':')[2]}"

    @property
    def delays_by_id(self) -> bool:
        """Whether a nack can have a delay with a token that `reserved` returned."""
        return True

    def open(self) -> None:
        """Connect. Raises ConnectionLost or StoreError, with what to do, if the server isn't there or refuses."""

    def close(self) -> None:
        """Let go of everything. Never raises for a server that is gone."""

    def own_signal(self) -> Signal | None:
        """Return the store's own signal; None if it has none: then signals stay in this process."""
        return None

    def aio_signal(self) -> Any:
        """Return `own_signal` for asyncio; only of blocking drivers that the async form runs in a thread."""
        return None

    def own_stats(self) -> Stats | None:
        """Counters and pauses kept by this store itself; None if it can't: then they stay in this process."""
        return None

    def counters(self, queue: str) -> dict[str, int]:
        """Return what the store's server counts by itself, beside the counters of the library."""
        return {}

    def records_events(self) -> bool:
        """Whether the store's server records the events of jobs by itself."""
        return False

    def names_in_events(self) -> frozenset[str]:
        """Return what events call this store (`node`). Raises if a scan can't show every job that has not ended."""
        for capability in (Capability.PEEK, Capability.RESERVE):  # else jobs are in the memory of programs, too
            if capability not in self.capabilities:
                raise lacking(capability, self.address.url)
        return frozenset({self.place})

    def moves_in_one_step(self, queue: str, to: str, is_changed: bool) -> bool:
        """Whether a move between two queues is atomic; `is_changed` says that the job becomes another one by it."""
        return Capability.ATOMIC_MOVE in self.capabilities

    def counts(self, queue: str) -> bool:
        """Whether the counters of a queue are written by the driver, each in one step with what it counts."""
        return self.counts_in is not None and queue not in self.uncounted

    def exists(self) -> bool:
        """Whether there is something behind the URL: a file may not have been made yet, or its path may be wrong."""
        return True

    def check_queue(self, queue: str) -> None:
        """Raise CallerError for a name that no queue of this store can have. Nothing is sent."""

    def now_ms(self) -> int:
        """Return the store's time: here that of this machine, for stores that have no server."""
        return time.time_ns() // 1_000_000 + self.shift_ms

    def freeze(self, now: Callable[[], float]) -> None:
        """Let the store's time be what a function returns, in seconds; only where no server has a clock of its own."""
        raise CallerError(f"{self.address.url} has its server's clock, which can't be replaced")

    def version(self) -> int:
        """Another number whenever somebody else has changed the store; only for stores that are to be watched."""
        raise NotImplementedError

    def prepare(self, job: NewJob) -> None:
        """Check a job and put what will be sent into `job.prepared`: BadPayload is raised here, before all else."""

    def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        """Store jobs; return their ids, or, for a unique key that is taken, the id of the job that has it.

        Several keys in one call may be equal: the first wins. With a channel, the store's own signal is sent along,
        with the lowest time of maturity in milliseconds.
        """
        raise NotImplementedError

    def flush(self, queue: str) -> None:
        """Store what `push` has only buffered. Raises if it can't; then it is kept."""

    def push_bodies(self, queue: str, bodies: Sequence[bytes]) -> list[str]:
        """Store jobs that are ready at once and have no options; return their ids."""
        raise NotImplementedError

    def push_within(self, connection: Any, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        """Store jobs in the transaction that is open on the caller's connection. The signal goes out at its commit."""
        raise NotImplementedError

    def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        """Take up to `count` ready jobs out of the store, oldest maturity first."""
        raise NotImplementedError

    def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        """Undo a pop: jobs that nobody was given return with their id, time and tries."""
        raise NotImplementedError

    def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        """Lease up to `count` ready jobs, oldest maturity first, each with a token.

        Work on the first `begin` of them begins at once (see rule 3); None: on all of them.
        """
        raise NotImplementedError

    def release(self, queue: str, leases: Sequence[Lease]) -> None:
        """Undo a reserve: jobs that nobody was given are ready again, and no try is counted."""
        raise NotImplementedError

    def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        """End jobs. Work on those of `begun`, which are others, has begun."""
        raise NotImplementedError

    def nack(self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None) -> list[bool]:
        """Return jobs to their queue; each is ready after its delay, with one try more."""
        raise NotImplementedError

    def extend(
        self, queue: str, leases: Sequence[Lease], leases_ms: Sequence[int], begun: Sequence[bool] = ()
    ) -> list[str | None]:
        """Let leases end at a time from now; return the new tokens.

        `begun` has an entry for each: whether work on the job has begun. Without entries, that stays as it is.
        """
        raise NotImplementedError

    def move(
        self, queue: str, to: str, moves: Sequence[JobMove], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        """Take jobs out of a queue and put what they become into another, each in one step where the store can.

        A lease without a token is for a job that waits: one that is reserved isn't moved. Where it takes two steps, the
        new job is stored before the old one goes. `counter` is the queue's counter that they add to, if there is one.
        """
        raise NotImplementedError

    def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        """Remove jobs that wait. Reserved ones stay."""
        raise NotImplementedError

    def purge(self, queue: str) -> int:
        """Remove all jobs that nobody has reserved; return how many."""
        raise NotImplementedError

    def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        """Read jobs without taking them, oldest maturity first, of all states if none is named. Jobs may come and go
        between pages."""
        raise NotImplementedError

    def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        """Look up reserved jobs by id, each with the token of its lease; None for one that nobody has reserved.

        Here by `peek`, which reads all reserved jobs. A store that can do better overrides it.
        """
        wanted = set(ids)
        found: dict[str, StoredJob] = {}
        cursor: str | None = None
        while wanted:
            page = self.peek(queue, JobState.RESERVED, PAGE, cursor)
            found.update({job.id: job for job in page.jobs if job.id in wanted})
            wanted.difference_update(found)
            cursor = page.cursor
            if cursor is None:
                break
        return [found.get(job_id) for job_id in ids]

    def parts(self, queues: Sequence[str], wanted: Wanted) -> list[Part]:
        """Return the parts of a scan of these queues, which several processes can read at the same time."""
        return [Part((queue,)) for queue in queues]

    def scan_page(self, part: Part, wanted: Wanted, count: int, cursor: str | None = None) -> Rows:
        """Return the next jobs of a part, about `count`. Here by `peek`, state after state.

        It ends on a busy queue, too: of each state it returns as many jobs as there were at the beginning.
        """
        (queue,) = part.queues
        states = [state for state in LIVE if state in wanted.states]
        if cursor is None:
            sizes = self.sizes(queue)
            left, begin = [bound(sizes, state) for state in states], None
        else:
            left, begin = json.loads(cursor)
        at = next((at for at, jobs in enumerate(left) if jobs > 0), None)
        if at is None:
            return NOTHING
        page = self.peek(queue, states[at], min(count, left[at]), begin)
        left[at] = left[at] - len(page.jobs) if page.cursor is not None else 0
        following = json.dumps([left, page.cursor if left[at] > 0 else None]) if any(n > 0 for n in left) else None
        return Rows(len(page.jobs), columns_of(page.jobs, queue, wanted.columns), following)

    def sizes(self, queue: str) -> Sizes:
        """How many jobs there are."""
        raise NotImplementedError

    def ready(self, queue: str) -> int:
        """Return how many jobs are ready. A store where the other sizes cost more overrides it."""
        return (self.sizes(queue)).ready

    def next_mature_ms(self, queue: str) -> int | None:
        """Return when the next job is ready, scheduled and reserved ones included; None for an empty queue."""
        raise NotImplementedError

    def queues(self) -> list[str]:
        """Names of the queues that have jobs."""
        raise NotImplementedError

    def set_paused(self, queue: str, paused: bool) -> None:
        """Only for stores that pause by themselves."""
        raise NotImplementedError

    def paused(self, queue: str) -> bool:
        """Only for stores that pause by themselves."""
        raise NotImplementedError

    def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        """Reserve up to `count` jobs under a key, or return those that the key has, with new leases.

        Of an old key: jobs that were ended or taken by others are left out, and no others come in their place, also if
        none is left. A key lives until it is acked or nacked, also past the end of its leases. If there was no job to
        reserve, or `count` is 0, no key is made: the next call with it reserves.
        """
        raise NotImplementedError

    def claim_unread(self, queue: str, key: str, count: int, lease_ms: int) -> int:
        """Claim as `claim` does, and return how many jobs the key has; the jobs themselves need not leave the store."""
        return len(self.claim(queue, key, count, lease_ms))

    def extend_claim(self, queue: str, key: str, lease_ms: int) -> int:
        """Make the leases under a key end `lease_ms` from now; return how many jobs it still has."""
        raise NotImplementedError

    def ack_claim(self, queue: str, key: str) -> int:
        """Acknowledge the jobs under a key, and end the key; return how many."""
        raise NotImplementedError

    def nack_claim(self, queue: str, key: str, delay_ms: int) -> int:
        """Return the jobs under a key to their queue, and end the key; return how many."""
        raise NotImplementedError

    # Values under keys, beside the queues.

    def put_values(self, values: Sequence[NewValue]) -> None:
        """Keep several texts, in one step or one round trip; only asked where `puts_values_together`."""
        raise NotImplementedError

    def put_value(self, key: str, value: str, ttl_ms: int) -> None:
        """Keep a text under a key for a time, in place of what was there."""
        raise NotImplementedError

    def value(self, key: str) -> str | None:
        """Return the text under a key; None if there is none, or its time is over."""
        raise NotImplementedError

    def remove_value(self, key: str) -> None:
        """Remove what is under a key."""
        raise NotImplementedError

    # Jobs by their marks: for callers that note what they hold, on a store without claims.

    def regain(self, queue: str, marks: Sequence[Mark]) -> list[StoredJob]:
        """Have jobs again that were reserved: those that nobody has had since, with new leases. Others are left out."""
        raise NotImplementedError

    def keep(self, queue: str, marks: Sequence[Mark]) -> float | None:
        """Start the leases of jobs again; return how many seconds the shortest has now, None if none is known."""
        raise NotImplementedError

    def end(self, queue: str, marks: Sequence[Mark]) -> int:
        """End jobs, whoever has them; return how many were not ended yet."""
        raise NotImplementedError
