"""A store's URL and options: what each means, and how texts in a URL become values.

Options may stand in the URL's query or be given as arguments, which go before it. What the table doesn't know belongs
to the store's driver.
"""

import os
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

    namespace: str = "N"  # Keuss' namespace: in the names of signals and statistics
    lease: float = LEASE_S
    poll: float | None = None  # None leaves it to the store
    signal: str | None = None
    stats: str | None = None
    dead_letter: DeadLetter | None = None
    codec: str = "json"
    events: str | None = None  # a directory


@dataclass(slots=True)
class StoreURL:
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


def _namespace(value: str) -> str:
    if not value or ":" in value:
        raise ValueError("it must not be empty, nor have a colon")
    return str(value)


def _directory(value: str | os.PathLike[str]) -> str:
    path = os.fspath(value)
    if not path:
        raise ValueError("it must be a directory")
    return path


_READERS: dict[str, Callable[[Any], Any]] = {
    "namespace": _namespace,
    "lease": _seconds,
    "poll": _seconds,
    "signal": str,
    "stats": str,
    "dead_letter": _dead_letter,
    "codec": str,
    "events": _directory,
}


OPTIONS = tuple(_READERS)
RENAMED = {"name": "namespace"}  # old name -> new
FILE_SCHEMES = frozenset(("sqlite", "fsq", "memory"))  # what follows is a path or a name, in which @ and : are fine
_SCHEME = re.compile("([a-z][a-z0-9+.-]*):(/*)", re.IGNORECASE)
# Such as password, tlsCertificateKeyFilePassword, and authMechanismProperties, which may hold the token of a session.
_SECRET_OPTION = re.compile("([?&][^=&]*(?:pass|secret|token|properties)[^=&]*=)[^&#]*", re.IGNORECASE)
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
PASSWORD_HINT = "In a user or a password, write / as %2F, @ as %40, : as %3A, ? as %3F, # as %23 and % as %25."


def parse(url: str, given: Mapping[str, Any]) -> tuple[StoreURL, Options, dict[str, Any]]:
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
    if not parts.netloc and parts.scheme not in FILE_SCHEMES and "@" in parts.path:
        raise BadUrl(f"{without_password(url)} must have // behind its scheme, as in redis://user:password@host:6379/0")
    if ":" in parts.netloc and "@" not in parts.netloc and _has_at_behind_host(parts):
        raise BadUrl(f"{without_password(url)} has an @ behind its path. {PASSWORD_HINT}")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    for old, new in RENAMED.items():
        if old in query or old in given:
            raise CallerError(f"the option {old}= of {without_password(url.partition('?')[0])} is now {new}=")
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
    address = StoreURL(without_password(full), parts.scheme, parts.netloc, parts.path, query, full)
    return address, options, others


def _has_at_behind_host(parts: SplitResult) -> bool:
    """Whether a password with / ? or # in it was cut, which left the `@` in what follows."""
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    return "@" in parts.path or "@" in parts.fragment or any("@" in name for name in names)


def without_password(url: str) -> str:
    """Return the URL as it may be shown: without what stands between the first colon and the last @, and without the
    values of options whose names tell of a secret.

    It is used for URLs with mistakes, too: `redis:/user:password@host` has no host, but a password.
    """
    found = _SCHEME.match(url)
    if found is None:
        _, at, place = url.rpartition("@")
        return f"***@{place}" if at and not url.startswith(("/", ".")) else url  # a path may have an @
    if found[1] in FILE_SCHEMES:
        return url
    shown = _SECRET_OPTION.sub(r"\1***", url)
    front, rest = shown[: found.end()], shown[found.end() :]
    access, at, place = rest.rpartition("@")
    if not at:
        return shown
    user, colon, _ = access.partition(":")
    hidden = "***" if not found[2] else f"{user}:***" if colon else user
    return f"{front}{hidden}@{place}"
