"""What a job may be pushed with, checked and turned into what stores take."""

import math
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, SupportsFloat, TypeGuard

from penstock.codec import encode
from penstock.errors import BadPayload, CallerError
from penstock.job import NewJob, new_id
from penstock.queues.capabilities import Capability, require

Duration = float | timedelta  # seconds, where it is a number

DELAY_S_MAX = 100 * 365 * 24 * 3600.0  # a century: what is later is a mistake in units
UNIQUE_KEY_BYTES_MAX = 1024  # keys stand in an index of PostgreSQL, where a row has room for 2,700
_MS = 1000
_SHOWN_MAX = 60  # characters of a key in an error


class Push(NamedTuple):
    """A payload with its options, for `push_many`. Times are seconds, or timedeltas."""

    payload: Any
    delay: Duration = 0
    mature: float | datetime | None = None  # a point in time, as unix time; it goes before the delay
    tries: int = 0
    headers: Mapping[str, Any] | None = None
    ttl: Duration | None = None
    retry: Duration | None = None
    replicate: int | None = None
    unique: str | None = None
    unique_for: Duration = 0


# Options, and what a store must be able to do for them.
NEEDS = {
    "delay": Capability.DELAY,
    "mature": Capability.DELAY,
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
    given = (push.delay, push.mature, push.headers, push.replicate)
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
        None if push.mature is None else point_ms("mature", push.mature),
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
    if push.unique is not None:
        _check_key(push.unique)


def _check_key(key: object) -> None:
    try:
        if isinstance(key, str) and 0 < len(key.encode()) <= UNIQUE_KEY_BYTES_MAX and "\0" not in key:
            return
    except UnicodeEncodeError:  # half of a surrogate pair
        pass
    shown = repr(key)
    shown = shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}... ({len(shown)} characters)"
    raise CallerError(f"a unique key must be 1 to {UNIQUE_KEY_BYTES_MAX} bytes of text without zero bytes, got {shown}")


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
    return isinstance(value, SupportsFloat)


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
