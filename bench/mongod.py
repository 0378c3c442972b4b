"""A mongod for measurements: a replica set of one member, as the tests start it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.servers import NotRunError
from tests.servers import MongoServer


@contextlib.contextmanager
def running() -> Iterator[MongoServer]:
    """A mongod for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="bench-mongo-") as folder:
        server = MongoServer(Path(folder), wiredTigerCacheSizeGB=1)
        try:
            server.start()
        except BaseException as problem:
            server.stop()
            raise NotRunError(f"mongod: {problem}") from problem
        try:
            yield server
        finally:
            server.stop()
