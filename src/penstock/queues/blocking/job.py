# Written by scripts/blocking from ../aio/job.py: change that, then run `make blocking`.
"""A job in a worker's hands."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.codec import decode, encode
from penstock.errors import LeaseLost
from penstock.job import JobState, Lease, StoredJob
from penstock.queues.dead_letter import Error
from penstock.queues.push import UNCHANGED, Duration

if TYPE_CHECKING:
    from penstock.queues.blocking.queue import Queue


class Job:
    """One delivery of a job.

    A reserved job is ended by one of `ack`, `nack`, `fail` and `move`; each raises LeaseLost, and changes nothing, if
    the lease is over. As a context manager it is acked when the block ends, and given back when the block raises:

        with queue.reserve() as job:
            send(job.payload)
    """

    __slots__ = ("_payload", "ended", "lease", "lost", "queue", "stored")

    def __init__(self, queue: Any, stored: StoredJob, lease: float | None = None) -> None:
        self.queue: Queue = queue  # Any above, since the parts of a queue make its jobs
        self.stored = stored
        self.lease = lease  # seconds, as asked for; None for a job that was popped or peeked at
        self.ended = False  # whether `ack`, `nack` or `fail` of this object ended the delivery
        self.lost = False  # set by a worker once the lease is gone: a handler that sees it may as well stop
        self._payload: Any = _UNREAD

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self.queue.name!r}, tries {self.tries}>"

    @property
    def id(self) -> str:
        """The job's id, the one that `push` gave."""
        return self.stored.id

    @property
    def payload(self) -> Any:
        """The Python value, by the queue's codec.

        With the default codec bytes that are JSON come back as JSON, and bytes that are text as a `str`: whoever pushes
        bytes and wants bytes uses `codec="bytes"`, or `body`.
        """
        if self._payload is _UNREAD:
            self._payload = self._read()
        return self._payload

    def _read(self) -> Any:
        codec, payload = self.queue.codec, self.stored.payload
        if self.stored.body is None and not isinstance(payload, bytes):
            if codec == "json" or (codec == "text" and isinstance(payload, str)):
                return payload
        return decode(self.body, codec)

    @property
    def body(self) -> bytes:
        """The bytes: as they are stored, or as the queue's codec writes the payload where the store keeps payloads."""
        if self.stored.body is not None:
            return self.stored.body
        payload = self.stored.payload
        if self.queue.codec == "text" and isinstance(payload, str):
            return payload.encode(errors="replace")
        return encode(payload)

    @property
    def headers(self) -> dict[str, Any]:
        """What was pushed beside the payload."""
        return self.stored.headers

    @property
    def tries(self) -> int:
        """The number of earlier deliveries in which work on the job began: 0 at the first."""
        return self.stored.tries

    @property
    def has_begun(self) -> bool:
        """Whether this delivery counts as a try when its lease runs out; False for one that only waits in a worker."""
        return self.stored.has_begun

    @property
    def state(self) -> JobState:
        """Where the job stood when it was read."""
        return self.stored.state

    @property
    def created(self) -> float | None:
        """When it was pushed, as unix time, where the store knows."""
        return None if self.stored.created_ms is None else self.stored.created_ms / 1000

    @property
    def mature(self) -> float | None:
        """When it was or will be ready, as unix time, where the store knows."""
        return None if self.stored.mature_ms is None else self.stored.mature_ms / 1000

    @property
    def token(self) -> str | None:
        """Proof of the lease."""
        return self.stored.token

    @property
    def as_lease(self) -> Lease:
        """Id and token."""
        return Lease(self.stored.id, self.stored.token)

    def ack(self) -> None:
        """The job is done: it goes."""
        self.queue.ack(self)
        self.ended = True

    def nack(self, delay: Duration | None = None, error: Error = "", *, at: float | datetime | None = None) -> None:
        """The job was not done: it comes back after the delay (by default the queue's back-off) or at the time `at`,
        or goes to the dead letters if this was its last try."""
        self.queue.nack(self, delay, error, at=at)
        self.ended = True

    def extend(self, lease: Duration | None = None) -> None:
        """Let the lease end `lease` seconds from now; by default as long as it was at the reserve."""
        self.queue.extend(self, lease)

    def fail(self, error: Error = "") -> None:
        """The job can't be done at all: it goes to the dead letters, with the text, or the exception and the last lines
        of its traceback."""
        self.queue.fail(self, error)
        self.ended = True

    def move(
        self,
        to: "str | Queue",
        *,
        payload: Any = UNCHANGED,
        headers: Mapping[str, Any] | None = None,
        delay: Duration = 0,
        at: float | datetime | None = None,
    ) -> None:
        """This step is done: the job goes to another queue of the store, with another payload if one is given; see
        `Queue.move`."""
        self.queue.move(self, to, payload=payload, headers=headers, delay=delay, at=at)
        self.ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is None:
            self.ack()
            return
        # A lease that was lost must not hide what went wrong in the block.
        with suppress(LeaseLost):
            self.nack(error=problem)


_UNREAD = object()
