"""Which scheme is which store. Third parties add theirs through the entry points `penstock.stores`.

An entry point's name is the scheme. Its value is a package with two modules, `aio` and `blocking`, each with a class
`StoreDriver`; a store with only one of the forms has only that module.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from penstock.errors import BadUrl, MissingExtra


class Kind(NamedTuple):
    """Where a store's driver is, and what it needs."""

    module: str  # below `penstock.queues.aio.stores` and `penstock.queues.blocking.stores`
    driver: str
    extra: str | None = None


STORES = {
    "memory": Kind("memory", "MemoryDriver"),
    "sqlite": Kind("sqlite", "SqliteDriver"),
    "fsq": Kind("fsq", "FsqDriver"),
    "disque": Kind("disque", "DisqueDriver"),
    "disques": Kind("disque", "DisqueDriver"),
    "redis+list": Kind("redis_list", "RedisListDriver", "redis"),
    "rediss+list": Kind("redis_list", "RedisListDriver", "redis"),
    "redis+oq": Kind("redis_oq", "RedisOqDriver", "redis"),
    "rediss+oq": Kind("redis_oq", "RedisOqDriver", "redis"),
    "redis": Kind("redis_oq", "RedisOqDriver", "redis"),
    "rediss": Kind("redis_oq", "RedisOqDriver", "redis"),
    "postgresql": Kind("postgres", "PostgresDriver", "postgres"),
    "postgres": Kind("postgres", "PostgresDriver", "postgres"),
}
SIGNALS = {
    "local": Kind("local", "LocalSignal"),
    "redis": Kind("redis_pubsub", "RedisSignal", "redis"),
    "rediss": Kind("redis_pubsub", "RedisSignal", "redis"),
    "postgresql": Kind("postgres_notify", "PostgresSignal", "postgres"),
    "postgres": Kind("postgres_notify", "PostgresSignal", "postgres"),
}
STATS = {
    "memory": Kind("memory", "MemoryStats"),
    "redis": Kind("redis", "RedisStats", "redis"),
    "rediss": Kind("redis", "RedisStats", "redis"),
    "postgresql": Kind("postgres", "PostgresStats", "postgres"),
    "postgres": Kind("postgres", "PostgresStats", "postgres"),
}
_TABLES = {"stores": STORES, "signals": SIGNALS, "stats": STATS}

ENTRY_POINTS = "penstock.stores"


def is_store_url(text: str) -> bool:
    """Whether a text is meant as the URL of a store, and not as the name of a queue."""
    scheme, colon, rest = text.partition(":")
    return bool(colon) and (rest.startswith("//") or scheme in STORES)


def find(folder: str, scheme: str, form: str) -> Any:
    """The class for a scheme; `folder` is stores, signals or stats, `form` is aio or blocking."""
    kind = _TABLES[folder].get(scheme)
    if kind is None:
        return _found_elsewhere(folder, scheme, form)
    try:
        module = import_module(f"penstock.queues.{form}.{folder}.{kind.module}")
    except ModuleNotFoundError as problem:
        if kind.extra is None or (problem.name or "").startswith("penstock"):
            raise
        raise MissingExtra(
            f"{scheme}: needs the package {problem.name}. Install it with: pip install 'penstock[{kind.extra}]'"
        ) from problem
    return getattr(module, kind.driver)


def _found_elsewhere(folder: str, scheme: str, form: str) -> Any:
    if folder == "stores":
        for entry in entry_points(group=ENTRY_POINTS, name=scheme):
            return import_module(f"{entry.value}.{form}").StoreDriver
    known = ", ".join(f"{name}:" for name in _TABLES[folder])
    raise BadUrl(f"there is no {folder.rstrip('s')} {scheme}: known are {known}")
