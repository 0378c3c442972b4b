"""URLs of the MongoDB stores, signals and statistics, and their options.

    mongodb://user:password@host:port,host:port/database?replicaSet=rs0&tls=true

The part behind the `+` of the scheme is the layout, and ours; the rest is MongoDB's own connection string, with all its
options. A URL without a database means `keuss`, as Keuss' own default does. As with Keuss, statistics are in the
database `DATABASE_stats`, collection `keuss_stats`, and signals in `DATABASE_signal`, collection `default`; a URL that
is given for statistics or signals names the database itself.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from pymongo.common import VALIDATORS
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from penstock.errors import BadUrl, CallerError
from penstock.queues.options import OPTIONS, StoreURL

DATABASE = "keuss"
STATS_SUFFIX = "_stats"
SIGNAL_SUFFIX = "_signal"

# In place of those of pymongo: 30 seconds without a server is too long for a caller that has to decide what to do.
DEFAULTS = {"serverSelectionTimeoutMS": "5000", "connectTimeoutMS": "5000", "socketTimeoutMS": "30000"}
# pymongo's arguments that take objects, and options that would change how documents are read.
_NOT_IN_URLS = frozenset(
    {
        "auto_encryption_opts",
        "connect",
        "datetime_conversion",
        "document_class",
        "driver",
        "event_listeners",
        "fsync",
        "password",
        "read_preference",
        "server_api",
        "server_selector",
        "type_registry",
        "tz_aware",
        "tzinfo",
        "unicode_decode_error_handler",
        "username",
        "uuidrepresentation",
    }
)
_KNOWN = frozenset(VALIDATORS) - _NOT_IN_URLS


@dataclass(frozen=True)
class MongoSettings:
    """Where a server is, and how to connect."""

    uri: str  # with the password
    where: str  # without it, for people
    database: str
    has_write_concern: bool  # the URL has one; otherwise ours depends on the server
    own: dict[str, Any]  # options of ours


def mongo_settings(address: StoreURL, extra: Mapping[str, Any], own: Collection[str] = ()) -> MongoSettings:
    """Return the settings of a URL; `own` are the names of options that are not MongoDB's."""
    given = {**address.rest, **extra}
    mine = {name: given.pop(name) for name in own if name in given}
    for name in given:
        if name.lower() not in _KNOWN:
            known = ", ".join(sorted({*OPTIONS, *own}))
            raise CallerError(
                f"{address.url} has no option {name!r}; there are {known}, and those of MongoDB's connection strings"
            )
    if str(given.get("w")) == "0":
        raise CallerError(f"w must be at least 1 in {address.url}, got 0: no call would know what was stored")
    if "loadBalanced" in given or "loadbalanced" in given:
        raise CallerError(f"{address.url} must not have the option loadBalanced: sharded clusters are not supported")
    if not address.netloc:
        raise BadUrl(f"{address.url} must name a host, as in mongodb://localhost:27017/keuss")
    lower = {name.lower() for name in given}
    options = {**{name: value for name, value in DEFAULTS.items() if name.lower() not in lower}, **given}
    database = unquote(address.path.strip("/")) or DATABASE
    query = "&".join(f"{name}={quote(_text(value), safe='')}" for name, value in options.items())
    uri = f"mongodb://{address.netloc}/{quote(database, safe='')}?{query}"
    try:
        parse_uri(uri)
    except (PyMongoError, ValueError) as problem:
        raise BadUrl(f"{address.url} can't be read: {problem}") from None
    return MongoSettings(uri, address.url, database, bool(lower & {"w", "journal", "wtimeoutms"}), mine)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
