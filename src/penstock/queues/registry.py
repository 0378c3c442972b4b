"""Which scheme is which store. Third parties add theirs through the entry points `penstock.stores`.

An entry point's name is the scheme. Its value is a package with two modules, `aio` and `blocking`, each with a class
`StoreDriver`; a store with only one of the forms has only that module.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from penstock.errors import BadUrl, MissingExtra


class ClassEntry(NamedTuple):
    """Where a class of a store is, and what it needs."""

    module: str  # below `penstock.queues`; {form} is aio or blocking
    name: str
    extra: str | None = None
    is_threaded: bool = False  # a blocking driver; the async form runs it in a thread


STORES = {
    "memory": ClassEntry("stores.memory", "MemoryDriver", is_threaded=True),
    "sqlite": ClassEntry("stores.sqlite.driver", "SqliteDriver", is_threaded=True),
    "fsq": ClassEntry("stores.fsq.driver", "FsqDriver", is_threaded=True),
    "disque": ClassEntry("stores.disque.{form}.driver", "DisqueDriver"),
    "disques": ClassEntry("stores.disque.{form}.driver", "DisqueDriver"),
    "redis+list": ClassEntry("stores.redis.{form}.list", "RedisListDriver", "redis"),
    "rediss+list": ClassEntry("stores.redis.{form}.list", "RedisListDriver", "redis"),
    "redis+oq": ClassEntry("stores.redis.{form}.ordered", "RedisOqDriver", "redis"),
    "rediss+oq": ClassEntry("stores.redis.{form}.ordered", "RedisOqDriver", "redis"),
    "redis": ClassEntry("stores.redis.{form}.ordered", "RedisOqDriver", "redis"),
    "rediss": ClassEntry("stores.redis.{form}.ordered", "RedisOqDriver", "redis"),
    "postgresql": ClassEntry("stores.postgres.{form}.driver", "PostgresDriver", "postgres"),
    "postgres": ClassEntry("stores.postgres.{form}.driver", "PostgresDriver", "postgres"),
    "mongodb": ClassEntry("stores.mongo.{form}.driver", "MongoDriver", "mongo"),
    "mongodb+pl": ClassEntry("stores.mongo.{form}.driver", "MongoDriver", "mongo"),
    "mongodb+ps": ClassEntry("stores.mongo.{form}.driver", "MongoDriver", "mongo"),
    "mongodb+stream": ClassEntry("stores.mongo.{form}.driver", "MongoDriver", "mongo"),
    "mongodb+intraorder": ClassEntry("stores.mongo.{form}.driver", "MongoDriver", "mongo"),
    "mongodb+bucket": ClassEntry("stores.mongo.{form}.bucket", "MongoBucketDriver", "mongo"),
    "mongodb+bucket-plain": ClassEntry("stores.mongo.{form}.plain_bucket", "MongoPlainBucketDriver", "mongo"),
}
SIGNALS = {
    "local": ClassEntry("{form}.signal", "LocalSignal"),
    "redis": ClassEntry("stores.redis.{form}.signal", "RedisSignal", "redis"),
    "rediss": ClassEntry("stores.redis.{form}.signal", "RedisSignal", "redis"),
    "postgresql": ClassEntry("stores.postgres.{form}.signal", "PostgresSignal", "postgres"),
    "postgres": ClassEntry("stores.postgres.{form}.signal", "PostgresSignal", "postgres"),
    "mongodb": ClassEntry("stores.mongo.{form}.signal", "MongoSignal", "mongo"),
}
STATS = {
    "memory": ClassEntry("{form}.stats", "MemoryStats"),
    "redis": ClassEntry("stores.redis.{form}.stats", "RedisStats", "redis"),
    "rediss": ClassEntry("stores.redis.{form}.stats", "RedisStats", "redis"),
    "postgresql": ClassEntry("stores.postgres.{form}.stats", "PostgresStats", "postgres"),
    "postgres": ClassEntry("stores.postgres.{form}.stats", "PostgresStats", "postgres"),
    "mongodb": ClassEntry("stores.mongo.{form}.stats", "MongoStats", "mongo"),
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
