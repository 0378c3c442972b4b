"""Which scheme is which store. Third parties add theirs through the entry points `penstock.stores`.

An entry point's name is the scheme. Its value is a package with two modules, `aio` and `blocking`, each with a class
`StoreDriver`; a store with only one of the forms has only that module.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from penstock.errors import BadUrl, MissingExtra


class Part(NamedTuple):
    """Where a class of a store is, and what it needs."""

    module: str  # below `penstock.queues`; {form} is aio or blocking
    name: str
    extra: str | None = None
    is_threaded: bool = False  # a blocking driver; the async form runs it in a thread


STORES = {
    "memory": Part("stores.memory", "MemoryDriver", is_threaded=True),
    "sqlite": Part("stores.sqlite.driver", "SqliteDriver", is_threaded=True),
    "fsq": Part("stores.fsq.driver", "FsqDriver", is_threaded=True),
    "disque": Part("stores.disque.{form}.driver", "DisqueDriver"),
    "disques": Part("stores.disque.{form}.driver", "DisqueDriver"),
    "redis+list": Part("stores.redis.{form}.list", "RedisListDriver", "redis"),
    "rediss+list": Part("stores.redis.{form}.list", "RedisListDriver", "redis"),
    "redis+oq": Part("stores.redis.{form}.ordered", "RedisOqDriver", "redis"),
    "rediss+oq": Part("stores.redis.{form}.ordered", "RedisOqDriver", "redis"),
    "redis": Part("stores.redis.{form}.ordered", "RedisOqDriver", "redis"),
    "rediss": Part("stores.redis.{form}.ordered", "RedisOqDriver", "redis"),
    "postgresql": Part("stores.postgres.{form}.driver", "PostgresDriver", "postgres"),
    "postgres": Part("stores.postgres.{form}.driver", "PostgresDriver", "postgres"),
}
SIGNALS = {
    "local": Part("{form}.signal", "LocalSignal"),
    "redis": Part("stores.redis.{form}.signal", "RedisSignal", "redis"),
    "rediss": Part("stores.redis.{form}.signal", "RedisSignal", "redis"),
    "postgresql": Part("stores.postgres.{form}.signal", "PostgresSignal", "postgres"),
    "postgres": Part("stores.postgres.{form}.signal", "PostgresSignal", "postgres"),
}
STATS = {
    "memory": Part("{form}.stats", "MemoryStats"),
    "redis": Part("stores.redis.{form}.stats", "RedisStats", "redis"),
    "rediss": Part("stores.redis.{form}.stats", "RedisStats", "redis"),
    "postgresql": Part("stores.postgres.{form}.stats", "PostgresStats", "postgres"),
    "postgres": Part("stores.postgres.{form}.stats", "PostgresStats", "postgres"),
}
_TABLES = {"stores": STORES, "signals": SIGNALS, "stats": STATS}

ENTRY_POINTS = "penstock.stores"


def is_store_url(text: str) -> bool:
    """Whether a text is meant as the URL of a store, and not as the name of a queue."""
    scheme, colon, rest = text.partition(":")
    return bool(colon) and (rest.startswith("//") or scheme in STORES)


def find(table: str, scheme: str, form: str) -> Any:
    """Return the class for a scheme; `table` is stores, signals or stats, `form` is aio or blocking."""
    part = _TABLES[table].get(scheme)
    if part is None:
        return _found_elsewhere(table, scheme, form)
    try:
        module = import_module(f"penstock.queues.{part.module.format(form=form)}")
    except ModuleNotFoundError as problem:
        if part.extra is None or (problem.name or "").startswith("penstock"):
            raise
        raise MissingExtra(
            f"{scheme}: needs the package {problem.name}. Install it with: pip install 'penstock[{part.extra}]'"
        ) from problem
    found = getattr(module, part.name)
    if not part.is_threaded or form == "blocking":
        return found
    threaded = import_module("penstock.queues.aio.threaded").ThreadedDriver
    return lambda *args: threaded(found(*args))


def _found_elsewhere(table: str, scheme: str, form: str) -> Any:
    if table == "stores":
        for entry in entry_points(group=ENTRY_POINTS, name=scheme):
            return import_module(f"{entry.value}.{form}").StoreDriver
    known = ", ".join(f"{name}:" for name in _TABLES[table])
    raise BadUrl(f"there is no {table.rstrip('s')} {scheme}: known are {known}")
