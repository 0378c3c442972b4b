"""How jobs are put into buckets, and the options of that."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import bson
from bson import DatetimeMS
from bson.raw_bson import RawBSONDocument

from penstock.errors import BadPayload, CallerError
from penstock.job import NewJob
from penstock.queues.stores.mongo.bucket import BucketPosition, Document, wrapped
from penstock.queues.stores.mongo.element import new_object_id, packed

SCHEME = "mongodb+bucket"
OPTIONS = frozenset({"bucket_size", "bucket_wait", "buffered", "channel"})
BUCKET_SIZE = 1024  # Keuss' bucket_max_size
BUCKET_SIZE_MAX = 100_000  # a bucket is read whole
BUCKET_WAIT_S = 0.5  # Keuss' bucket_max_wait
BUCKET_WAIT_S_MAX = 60.0
BUCKET_BYTES_MAX = 4 * 1024 * 1024  # of the jobs of one bucket, but for a single one
JOB_BYTES_MAX = 16 * 1024 * 1024 - 8192  # MongoDB takes documents of 16 MiB; leases are noted in them, too
_YES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class BucketOptions(NamedTuple):
    """How buckets are filled."""

    size: int = BUCKET_SIZE
    wait_s: float = BUCKET_WAIT_S
    is_buffered: bool = False
    is_bare: bool = False  # entries are bare payloads, as in Keuss' old bucket-mongo


class BucketEntry(NamedTuple):
    """A job as an entry of a bucket."""

    value: Any
    bytes: int


def read_options(given: Mapping[str, Any]) -> BucketOptions:
    """Return the options of a URL or of arguments."""
    return BucketOptions(
        _size(given.get("bucket_size", BUCKET_SIZE)),
        _wait(given.get("bucket_wait", BUCKET_WAIT_S)),
        _buffered(given.get("buffered", False)),
    )


def _size(value: Any) -> int:
    try:
        size = int(value)
    except (TypeError, ValueError):
        size = 0
    if not 1 <= size <= BUCKET_SIZE_MAX:
        raise CallerError(f"bucket_size must be 1 to {BUCKET_SIZE_MAX} jobs, got {value!r}")
    return size


def _wait(value: Any) -> float:
    try:
        wait_s = float(value)
    except (TypeError, ValueError):
        wait_s = 0.0
    if not 0 < wait_s <= BUCKET_WAIT_S_MAX:
        raise CallerError(f"bucket_wait must be above 0 and at most {BUCKET_WAIT_S_MAX:.0f} seconds, got {value!r}")
    return wait_s


def _buffered(value: Any) -> bool:
    known = _YES.get(str(value).lower())
    if known is None:
        raise CallerError(f"buffered must be yes or no, got {value!r}")
    return known


class Filled:
    """A bucket that is being filled."""

    def __init__(self, mature_ms: int, tries: int, made_s: int | None = None, is_bare: bool = False) -> None:
        self._is_bare = is_bare
        self.id = new_object_id(None if made_s is None else made_s * 1000)
        self.mature_ms = mature_ms
        self.entries: list[Any] = []
        self.positions: list[int] = []  # of the jobs in the call
        self.bytes = 0
        self._tries = tries

    def add(self, job: NewJob, position: int) -> str:
        """Add a job; return its id."""
        self.entries.append(job.prepared.value)
        self.positions.append(position)
        self.bytes += job.prepared.bytes
        if self._is_bare:
            return f"{self.id}--{len(self.entries)}"
        return str(BucketPosition(self.id, len(self.entries) - 1))

    def has_room(self, job: NewJob, size: int) -> bool:
        return len(self.entries) < size and self.bytes + job.prepared.bytes <= BUCKET_BYTES_MAX

    @property
    def document(self) -> Document:
        """The bucket as it is stored."""
        found: Document = {
            "_id": self.id,
            "b": self.entries,
            "mature": DatetimeMS(self.mature_ms),
            "n": len(self.entries),
        }
        if self._tries:
            found["tries"] = self._tries
        return found


class Filling:
    """Buckets that are being filled, one for each time and number of tries, and second in which jobs were made."""

    def __init__(self, size: int, is_bare: bool = False) -> None:
        self._size = size
        self._is_bare = is_bare
        self._open: dict[tuple[int | None, int, int | None], Filled] = {}
        self.buckets: list[Filled] = []
        self.jobs = 0

    def add(self, job: NewJob, low_ms: int, high_ms: int, position: int = 0) -> str:
        """Add a job; return its id. Jobs that are ready at once share a bucket, whenever they came."""
        at_ms = _ready_ms(job, low_ms, high_ms)
        made_s = None if job.created_ms is None else job.created_ms // 1000
        key = at_ms, job.tries, made_s
        bucket = self._open.get(key)
        if bucket is None or not bucket.has_room(job, self._size):
            bucket = self._open[key] = Filled(low_ms if at_ms is None else at_ms, job.tries, made_s, self._is_bare)
            self.buckets.append(bucket)
        self.jobs += 1
        return bucket.add(job, position)

    @property
    def is_full(self) -> bool:
        return self.jobs >= self._size


def _ready_ms(job: NewJob, low_ms: int, high_ms: int) -> int | None:
    """When a job is ready; None for at once. A delay must not end early, and so is counted from the later bound."""
    if job.mature_ms is not None:
        return job.mature_ms
    if job.delay_ms == 0:
        return None
    return (high_ms if job.delay_ms > 0 else low_ms) + job.delay_ms


def buckets_of(jobs: Sequence[NewJob], low_ms: int, high_ms: int, size: int) -> list[Filled]:
    """Return the buckets of the jobs of one call, each with the positions of its jobs."""
    filling = Filling(size)
    for position, job in enumerate(jobs):
        filling.add(job, low_ms, high_ms, position)
    return filling.buckets


def entry_of(job: NewJob) -> BucketEntry:
    """Return a job as an entry of a bucket, encoded. Raises BadPayload if MongoDB can't store it.

    It must be known here, since jobs of several callers are stored together: one that can't be stored must not make
    the pushes of others fail. Keuss takes an entry with the payload 0, false or an empty text for one of its old
    format: these are stored as bytes, which are read as the same payload.
    """
    document = packed(job)
    payload = document["payload"]
    stored = payload if payload or isinstance(payload, list | dict) else job.body
    entry = RawBSONDocument(bson.encode(wrapped(stored, document["hdrs"])))
    return _checked(BucketEntry(entry, len(entry.raw)), SCHEME)


def bare_entry_of(job: NewJob) -> BucketEntry:
    """Return a job as an entry of an old bucket: the payload alone. Raises as `entry_of` does."""
    payload = packed(job)["payload"]
    return _checked(BucketEntry(payload, len(bson.encode({"": payload}))), f"{SCHEME}-plain")


def _checked(entry: BucketEntry, scheme: str) -> BucketEntry:
    if entry.bytes > JOB_BYTES_MAX:
        raise BadPayload(
            f"a job on {scheme} must be at most {JOB_BYTES_MAX} bytes as MongoDB stores it, got {entry.bytes}. "
            "Keep the payload elsewhere, and send its address."
        )
    return entry
