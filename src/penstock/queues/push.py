"""What a job may be pushed with, checked and turned into what stores take."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, SupportsFloat, TypeGuard

from penstock.codec import encode
from penstock.errors import BadPayload, CallerError
from penstock.job import NewJob, new_id
from penstock.queues.capabilities import Capability, require

Duration = float | timedelta  # seconds, where it is a number

DELAY_S_MAX = 100 * 365 * 24 * 3600.0  # a century: what is later is a mistake in units
UNIQUE_KEY_BYTES_MAX = 1024  # keys stand in an index of PostgreSQL, where a row has room for 2,700
_MS = 1000
_SHOWN_MAX = 60  # characters of a wrong name or key in an error


RENAMED = {"mature": "at"}  # options: old name -> new


def unexpected_keyword(call: str, unknown: Iterable[str], renamed: Mapping[str, str]) -> TypeError:
    """Return Python's error for a keyword that a call doesn't take; of one that was renamed it says the new name."""
    name = next(iter(unknown))
    now = f": {name}= is now {renamed[name]}=" if name in renamed else ""
    return TypeError(f"{call}() got an unexpected keyword argument {name!r}{now}")


@dataclass(slots=True)
class Push:
    """A payload with its options, for `push_many`. Times are seconds, or timedeltas."""

    payload: Any
    delay: Duration = 0
    at: float | datetime | None = None  # a point in time, as unix time; it goes before the delay
    tries: int = 0
    headers: Mapping[str, Any] | None = None
    ttl: Duration | None = None
    retry: Duration | None = None
    replicate: int | None = None
    unique: str | None = None
    unique_for: Duration = 0
    _: KW_ONLY
    mature: InitVar[None] = None  # the old name of `at`

    def __post_init__(self, mature: None) -> None:
        if mature is not None:
            raise unexpected_keyword("Push", ["mature"], RENAMED)


class _Unchanged:
    """The value of an option that leaves a job as it is; None is a payload."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Any = _Unchanged()


@dataclass(frozen=True, slots=True)
class Transfer:
    """A reserved job and what it becomes in another queue; made by `queue.transfer`, for `move_many`."""

    job: Any  # a Job, of either form
    to: str
    new: NewJob


# Options, and what a store must be able to do for them.
NEEDS = {
    "delay": Capability.DELAY,
    "at": Capability.DELAY,
    "headers": Capability.HEADERS,
    "ttl": Capability.TTL,
    "retry": Capability.RETRY,
    "replicate": Capability.REPLICATE,
    "unique": Capability.UNIQUE,
}
# Options that mean something even where they are 0 or empty.
_MEANT = frozenset({"ttl", "retry", "unique"})


def new_job(push: Push, codec: str, having: Collection[Capability], store: str) -> NewJob:
    """The job that a push makes."""
    given = (push.delay, push.at, push.headers, push.replicate)
    if any(given) or push.unique is not None or push.ttl is not None or push.retry is not None:
        _check(push, having, store)
    if push.tries < 0:
        raise CallerError(f"tries must be 0 or more, got {push.tries}")
    return NewJob(
        push.payload,
        encode(push.payload, codec),
        dict(push.headers) if push.headers else {},
        new_id(),
        push.tries,
        milliseconds("delay", push.delay) if push.delay else 0,
        None if push.at is None else point_ms("at", push.at),
        None if push.ttl is None else seconds("ttl", push.ttl),
        None if push.retry is None else seconds("retry", push.retry),
        push.replicate,
        push.unique,
        milliseconds("unique_for", push.unique_for) if push.unique_for else 0,
    )


def _check(push: Push, having: Collection[Capability], store: str) -> None:
    for option, capability in NEEDS.items():
        value = getattr(push, option)
        if value or (value is not None and option in _MEANT):
            require(having, capability, store)
    if push.headers is not None and not all(isinstance(name, str) for name in push.headers):
        raise BadPayload("the names of headers must be text")
    key = push.unique
    if key is not None and not (is_text(key, UNIQUE_KEY_BYTES_MAX) and "\0" not in key):
        raise CallerError(
            f"a unique key must be 1 to {UNIQUE_KEY_BYTES_MAX} bytes of text without zero bytes, got {shortened(key)}"
        )


def is_text(value: object, bytes_max: float = math.inf) -> TypeGuard[str]:
    """Whether a value is text that isn't empty and that every store can encode: half of a surrogate pair can't be."""
    try:
        return isinstance(value, str) and value != "" and len(value.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False


def check_text(what: str, value: object) -> None:
    """Refuse an id, a token or a value that isn't text."""
    if value != "" and not is_text(value):
        raise CallerError(f"{what} must be text that can be encoded, got {shortened(value)}")


def check_claim_key(key: object) -> None:
    """Refuse a key that no claim can have."""
    if not is_text(key):
        raise CallerError(f"a claim key must be text that can be encoded, and can't be empty, got {shortened(key)}")


def shortened(value: object) -> str:
    """Return a value as an error shows it."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}... ({len(shown)} characters)"


def move_key(queue: str, job_id: str) -> str:
    """Return the unique key of what a job becomes in another queue."""
    return "penstock-move:" + sha256(f"{queue}\0{job_id}".encode()).hexdigest()[:32]


def seconds(option: str, duration: Duration) -> float:
    """Return a duration in seconds; one that can't be is refused."""
    value = plain_seconds(duration)
    if not is_number(value) or not 0 <= value <= DELAY_S_MAX:
        raise CallerError(f"{option} must be 0 to {DELAY_S_MAX:.0f} seconds, got {duration!r}")
    return value


def plain_seconds(duration: Any) -> Any:
    """Return a timedelta as seconds, and everything else as it is."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value can be compared with numbers: those of other packages can, texts can't."""
    # Python's own first: this is asked in every call, and the check of a protocol takes longer than the rest of a pop.
    return isinstance(value, (int, float, SupportsFloat))


def milliseconds(option: str, duration: Duration) -> int:
    """Return a duration in whole milliseconds, rounded up; one that can't be is refused."""
    return math.ceil(seconds(option, duration) * _MS)


def point_ms(option: str, when: float | datetime) -> int:
    """Return a point in time in milliseconds since 1970."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise CallerError(f"{option} must have a time zone, as datetime.now(UTC) has one, got {when!r}")
        when = when.timestamp()
    return milliseconds(f"{option}, as a unix time,", when)
