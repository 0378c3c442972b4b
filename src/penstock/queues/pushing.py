"""What a job may be pushed with, checked and turned into what stores take."""

import math
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from penstock.codec import encode
from penstock.errors import BadPayload, CallerError
from penstock.job import NewJob, new_id
from penstock.queues.capabilities import Capability, require

DELAY_S_MAX = 100 * 365 * 24 * 3600.0  # a century: what is later is a mistake in units
_MS = 1000


class Push(NamedTuple):
    """A payload with its options, for `push_many`. Times are in seconds."""

    payload: Any
    delay: float = 0
    mature: float | datetime | None = None  # a point in time, as unix time; it goes before the delay
    tries: int = 0
    headers: Mapping[str, Any] | None = None
    ttl: float | None = None
    retry: float | None = None
    replicate: int | None = None
    unique: str | None = None
    unique_for: float = 0


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


def new_job(push: Push, codec: str, having: Collection[Capability], store: str) -> NewJob:
    """The job that a push makes."""
    if any((push.delay, push.mature, push.headers, push.ttl, push.retry is not None, push.replicate, push.unique)):
        _check(push, having, store)
    if push.tries < 0:
        raise CallerError(f"tries is a count, and {push.tries} is none")
    return NewJob(
        push.payload,
        encode(push.payload, codec),
        dict(push.headers) if push.headers else {},
        new_id(),
        push.tries,
        milliseconds("delay", push.delay) if push.delay else 0,
        None if push.mature is None else point_ms("mature", push.mature),
        push.ttl,
        push.retry,
        push.replicate,
        push.unique,
        milliseconds("unique_for", push.unique_for) if push.unique_for else 0,
    )


def _check(push: Push, having: Collection[Capability], store: str) -> None:
    for option, capability in NEEDS.items():
        value = getattr(push, option)
        if value is not None and (value or option == "retry"):
            require(having, capability, store)
    if push.headers is not None and not all(isinstance(name, str) for name in push.headers):
        raise BadPayload("the names of headers are texts")
    if push.unique is not None and not isinstance(push.unique, str):
        raise CallerError("a unique key is a text")
    for option in ("ttl", "retry"):
        value = getattr(push, option)
        if value is not None and not 0 <= value <= DELAY_S_MAX:
            raise CallerError(f"{option}={value!r} is no number of seconds that can be")


def milliseconds(option: str, seconds: float) -> int:
    """Whole milliseconds; an option that is no sensible number of seconds is refused."""
    if not math.isfinite(seconds) or abs(seconds) > DELAY_S_MAX:
        raise CallerError(f"{option}={seconds!r} is no number of seconds that can be")
    return math.ceil(seconds * _MS)


def point_ms(option: str, when: float | datetime) -> int:
    """A point in time in milliseconds since 1970."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise CallerError(f"{option} needs a time zone: datetime.now(UTC), for one")
        when = when.timestamp()
    value = milliseconds(option, when)
    if value < 0:
        raise CallerError(f"{option}={when!r} is before 1970: a point in time is a unix time in seconds")
    return value
