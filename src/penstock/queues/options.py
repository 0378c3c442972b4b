"""A store's URL and options: what each means, and how texts in a URL become values.

Options may stand in the URL's query or be given as arguments, which go before it. What the table doesn't know belongs
to the store's driver.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from penstock.errors import BadUrl, CallerError
from penstock.queues.dead_letter import DEAD_LETTER_QUEUE, DeadLetter
from penstock.queues.push import Duration, is_number, plain_seconds

LEASE_S = 120.0  # Keuss' reserve_delay
LEASE_S_MAX = 30 * 24 * 3600.0  # beyond that a lease is a job nobody will ever see again
POLL_S = 15.0  # what a lost signal may cost

Limit = DeadLetter | int | str | Mapping[str, Any]  # what the option dead_letter takes


@dataclass(slots=True)
class Options:
    """How a store behaves, whatever its kind."""

    name: str = "N"  # Keuss' namespace: in the names of signals and statistics
    lease: float = LEASE_S
    poll: float | None = None  # None leaves it to the store
    signal: str | None = None
    stats: str | None = None
    dead_letter: DeadLetter | None = None
    codec: str = "json"


@dataclass(slots=True)
class Address:
    """A URL in pieces."""

    url: str  # without a password, for people
    scheme: str
    netloc: str
    path: str
    rest: dict[str, str] = field(default_factory=dict)  # what the driver must understand
    full: str = ""  # without the query

    @property
    def host(self) -> str:
        return urlsplit(self.full).hostname or ""

    @property
    def port(self) -> int | None:
        return urlsplit(self.full).port

    @property
    def places(self) -> list[tuple[str, int | None]]:
        """Each host with its port, where there may be several: host:port,host:port."""
        found = [urlsplit(f"//{place}") for place in self.netloc.rpartition("@")[2].split(",")]
        return [(place.hostname or "", place.port) for place in found if place.hostname]

    @property
    def user(self) -> str | None:
        user = urlsplit(self.full).username
        return None if user is None else unquote(user)

    @property
    def password(self) -> str | None:
        password = urlsplit(self.full).password
        return None if password is None else unquote(password)


def _seconds(text: str | float) -> float:
    value = float(text)
    if not 0 < value <= LEASE_S_MAX:
        raise ValueError(f"it must be above 0 and at most {LEASE_S_MAX:.0f} seconds")
    return value


def checked_lease(lease: Duration) -> float:
    """Return a lease that was given as an argument, in seconds."""
    value = plain_seconds(lease)
    if not is_number(value) or not 0 < value <= LEASE_S_MAX:
        raise CallerError(f"lease must be above 0 and at most {LEASE_S_MAX:.0f} seconds, got {lease!r}")
    return value


def checked_dead_letter(value: Limit) -> DeadLetter:
    """Return a limit on deliveries that was given as an argument."""
    try:
        return _dead_letter(value)
    except (TypeError, ValueError) as problem:
        raise CallerError(f"dead_letter must be a DeadLetter or a number of deliveries, got {value!r}") from problem


def _dead_letter(value: Limit) -> DeadLetter:
    """`3` or `3,name-of-queue` in a URL; a DeadLetter, its fields or a number of deliveries as an argument."""
    if isinstance(value, DeadLetter):
        return value
    if isinstance(value, Mapping):
        return DeadLetter(**value)
    tries, _, queue = str(value).partition(",")
    return DeadLetter(int(tries), queue or DEAD_LETTER_QUEUE)


def _name(value: str) -> str:
    if not value or ":" in value:
        raise ValueError("it must not be empty, nor have a colon")
    return str(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "name": _name,
    "lease": _seconds,
    "poll": _seconds,
    "signal": str,
    "stats": str,
    "dead_letter": _dead_letter,
    "codec": str,
}


OPTIONS = tuple(_READERS)
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
PASSWORD_HINT = "In a user or a password, write / as %2F, @ as %40, : as %3A, ? as %3F, # as %23 and % as %25."


def parse(url: str, given: Mapping[str, Any]) -> tuple[Address, Options, dict[str, Any]]:
    """The address, the options that every store has, and those that only the driver knows."""
    # What is wrong with a URL is said without a piece of it: in `redis://user:pass/word@host`, the port is `pass`.
    try:
        parts = urlsplit(url)
        # A port that isn't a number is noticed only here. There may be several places: host:port,host:port.
        for place in parts.netloc.rpartition("@")[2].split(","):
            urlsplit(f"//{place}").port  # noqa: B018 - a port that is not a number is noticed only when it is read
    except ValueError:
        raise BadUrl(
            f"{without_password(url)} must have a port from 0 to 65535, or none, behind its host. {PASSWORD_HINT}"
        ) from None
    if not parts.scheme:
        raise BadUrl(
            f"a store's URL must begin with a scheme, as in redis://localhost:6379/0 or sqlite:///jobs.db, "
            f"got {without_password(url)!r}"
        )
    if _BAD_ESCAPE.search(parts.netloc):
        raise BadUrl(f"{without_password(url)} has a % that two hexadecimal digits must follow. {PASSWORD_HINT}")
    if ":" in parts.netloc and "@" not in parts.netloc and _has_at_behind_host(parts):
        raise BadUrl(f"{without_password(url)} has an @ behind its path. {PASSWORD_HINT}")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    options = Options()
    others: dict[str, Any] = {name: plain_seconds(value) for name, value in given.items() if name not in _READERS}
    for name, reader in _READERS.items():
        value = plain_seconds(given.get(name))
        if value is None:
            value = query.pop(name, None)
        else:
            query.pop(name, None)
        if value is None:
            continue
        try:
            setattr(options, name, reader(value))
        except (TypeError, ValueError) as problem:
            shown = without_password(str(value))
            why = str(problem).replace(str(value), shown)
            raise CallerError(f"the option {name}={shown!r} of {without_password(url)} is wrong: {why}") from None
    # Cut rather than put together, which would lose the empty host of sqlite:///jobs.db.
    full = url.partition("#")[0].partition("?")[0] + (f"#{parts.fragment}" if parts.fragment else "")
    address = Address(without_password(full), parts.scheme, parts.netloc, parts.path, query, full)
    return address, options, others


def _has_at_behind_host(parts: SplitResult) -> bool:
    """Whether a password with / ? or # in it was cut, which left the `@` in what follows."""
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    return "@" in parts.path or "@" in parts.fragment or any("@" in name for name in names)


def without_password(url: str) -> str:
    """Return the URL as it may be shown: what stands between the first colon and the last @ is left out."""
    front, slashes, rest = url.partition("//")
    if not slashes or "@" not in rest or rest.startswith("/"):
        return url
    access, _, place = rest.rpartition("@")
    user, colon, _ = access.partition(":")
    return f"{front}//{user}{':***' if colon else ''}@{place}"
