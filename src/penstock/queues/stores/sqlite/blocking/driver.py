# Written by scripts/blocking from ../aio/driver.py: change that, then run `make blocking`.
"""`sqlite:///relative.db` and `sqlite:////absolute/path.db`: queues in a file.

Options of its own: `sync` is full (the default), normal or off; `lock_timeout` is how many seconds a change waits for
those of other processes. The file is made by the first push or the first consumer; looking at a path where none is
leaves nothing there. Consumers of other processes hear of a job by watching the file's version: every 1 or 2 ms
while jobs come, and every 20 ms when none has come for a second.

If the file is removed or replaced while it is open, the next change fails with ConnectionLost (a look may take a second
to notice), and the call after that uses what is there by then. Who waits for jobs goes on waiting, there.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

from penstock.errors import BadUrl, CallerError
from penstock.job import Move
from penstock.queues.blocking.engine_stats import EngineStats
from penstock.queues.blocking.stats.base import Stats
from penstock.queues.blocking.threaded import EngineDriver
from penstock.queues.blocking.threads import OneThread
from penstock.queues.capabilities import Capability
from penstock.queues.options import Address, Options
from penstock.queues.scan import Part, Rows, Wanted
from penstock.queues.stores.sqlite.engine import SqliteEngine
from penstock.queues.stores.sqlite.file import LOCK_S, SYNC, SqliteFile
from penstock.queues.stores.sqlite.scan import COMPARES, look
from penstock.queues.stores.sqlite.stats import SqliteStatistics


class SqliteDriver(EngineDriver):
    """Jobs in a file that any number of processes share."""

    type: ClassVar[str] = "sqlite"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.DELAY,
            Capability.RESERVE,
            Capability.EXTEND,
            Capability.TOKEN,
            Capability.CLAIM,
            Capability.PEEK,
            Capability.REMOVE,
            Capability.HEADERS,
            Capability.UNIQUE,
            Capability.ATOMIC_MOVE,
            Capability.TRANSACTION,
            Capability.SHARED_PAUSE,
        }
    )
    own_options: ClassVar[frozenset[str] | None] = frozenset({"sync", "lock_timeout"})
    watch_s: ClassVar[float | None] = 0.02  # at most, and less after a job: asking costs some 10 µs, and no disk
    compares: ClassVar[frozenset[str]] = COMPARES
    can_count: ClassVar[bool] = True

    engine: SqliteEngine

    def __init__(self, address: Address, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        given = {**address.rest, **extra}
        self._file = SqliteFile(_path(address), _sync(given), _lock_s(given))
        self.engine = SqliteEngine(self._file, self._counts_in)
        self.thread = OneThread("penstock-sqlite")

    def _counts_in(self, queue: str) -> str | None:
        return self.counts_in if self.counts(queue) else None

    def move(
        self, queue: str, to: str, moves: Sequence[Move], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        return self.run(self.engine.move, queue, to, moves, self._now(), counter)

    @property
    def place(self) -> str:
        return f"sqlite:{self._file.path.resolve()}"

    def own_stats(self) -> Stats | None:
        return EngineStats(self, SqliteStatistics(self._file, self.options.name))

    def exists(self) -> bool:
        return self._file.exists()

    def look(self, part: Part, wanted: Wanted, count: int, cursor: str | None = None) -> Rows:
        return self.run(look, self._file, part, wanted, count, cursor, self._now())


def _path(address: Address) -> Path:
    """The file; SQLAlchemy's way of writing it: three slashes before a relative path, four before an absolute one."""
    path = unquote(address.path)
    if address.netloc or not path.startswith("/") or path == "/" or "#" in address.full:
        raise BadUrl(
            f"{address.url} names no file: write sqlite:///jobs.db, or sqlite:////var/lib/jobs.db for an absolute path "
            "(and %23 for a # in it)"
        )
    if path[1:].startswith(":memory:"):
        raise BadUrl("an SQLite database in memory is seen by one connection only: use memory: or memory:NAME")
    return Path(path[1:])


def _sync(given: dict[str, Any]) -> str:
    sync = str(given.get("sync", "full"))
    if sync not in SYNC:
        raise CallerError(f"sync={sync}: it is one of {', '.join(SYNC)}")
    return sync


def _lock_s(given: dict[str, Any]) -> float:
    try:
        seconds = float(given.get("lock_timeout", LOCK_S))
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise CallerError(f"lock_timeout={given['lock_timeout']!r}: give seconds, 0 to 3600")
    return seconds
