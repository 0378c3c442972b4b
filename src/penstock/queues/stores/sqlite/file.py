"""One SQLite file: its connection, its tables, its transactions and its errors.

Rules that hold here:

1. A change is one transaction, which takes the file's write lock at its beginning: so it never fails in the middle
   because another process writes, and waits for at most `lock_s` seconds at its start. SQLite's own way of waiting
   sleeps for up to 100 ms between two attempts, while a change takes a few ms: so it must not wait, and we try more
   often.
2. Readers and writers don't hold each other up: the file is in WAL mode. With `sync=full` a change is on the disk when
   it is answered; with `normal` it outlives the process, but the last ones may go with the machine; `off` leaves all to
   the system. After kill -9 nothing that was answered is lost in any of them.
3. A connection must not go through fork: SQLite's locks belong to a process, and the child would believe to hold them.
   It is closed before Python forks, and opened again by whoever needs it, in the parent and in the child.
4. Threads may share it: one call at a time.
5. The file is made by the first change. Until then it is read as an empty one: to read a wrong path leaves nothing
   there.
6. A file that somebody has removed or replaced is noticed, before each change and now and then by a process that only
   reads. The call fails with ConnectionLost, nothing is done, and the next one opens what is there by then.
7. A new file has the mode 0600, unless the store's option `mode` has another. SQLite uses the same mode for the files
   `-wal` and `-shm`. An existing file keeps its mode.
"""

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from penstock.errors import CallerError, ConnectionLost, PenstockError, StoreError, TimedOut

VERSION = 1  # of the tables; a file with a higher one was made by a later Penstock
SQLITE_OLDEST = (3, 35, 0)  # the first with RETURNING
LOCK_S = 30.0  # how long a change waits for those of other processes
LOOK_S = 0.0005  # between two attempts to begin: at first, and when it has waited for long
LOOK_S_MAX = 0.005
PLACE_S = 1.0  # between two checks of a reader that the path still leads to the open file
CACHE_KIB = 16 * 1024  # of pages in memory: the inner pages of indexes over some million jobs
MODE = 0o600  # of a new file: that of the broker's journal
SYNC = {"full": "FULL", "normal": "NORMAL", "off": "OFF"}

TABLES = """
CREATE TABLE IF NOT EXISTS penstock_meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS penstock_jobs (
    number INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    id TEXT NOT NULL,
    mature INTEGER NOT NULL,
    tries INTEGER NOT NULL,
    created INTEGER NOT NULL,
    token INTEGER,
    claim TEXT,
    unique_key TEXT,
    headers TEXT,
    body BLOB NOT NULL,
    ahead INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX IF NOT EXISTS penstock_jobs_by_id ON penstock_jobs (queue, id);
CREATE INDEX IF NOT EXISTS penstock_jobs_by_time ON penstock_jobs (queue, mature, number, token);
CREATE INDEX IF NOT EXISTS penstock_jobs_by_claim ON penstock_jobs (queue, claim) WHERE claim IS NOT NULL;
CREATE TABLE IF NOT EXISTS penstock_claims (
    queue TEXT NOT NULL,
    claim TEXT NOT NULL,
    PRIMARY KEY (queue, claim)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS penstock_keys (
    queue TEXT NOT NULL,
    unique_key TEXT NOT NULL,
    id TEXT NOT NULL,
    keep INTEGER NOT NULL,
    free_at INTEGER,
    PRIMARY KEY (queue, unique_key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS penstock_keys_by_end ON penstock_keys (free_at) WHERE free_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS penstock_queues (
    namespace TEXT NOT NULL,
    queue TEXT NOT NULL,
    options TEXT,
    paused INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, queue)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS penstock_counters (
    namespace TEXT NOT NULL,
    queue TEXT NOT NULL,
    counter TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (namespace, queue, counter)
) WITHOUT ROWID;
"""

# What went wrong, by SQLite's code, and what to do.
ADVICE = {
    sqlite3.SQLITE_BUSY: "another process has its write lock for too long: end that, or set a longer lock_timeout",
    sqlite3.SQLITE_LOCKED: "another transaction of this connection is open: end it first",
    sqlite3.SQLITE_FULL: "the disk is full: make room. Nothing was changed",
    sqlite3.SQLITE_READONLY: "the file, or its folder, may not be written to: see to its owner and mode",
    sqlite3.SQLITE_PERM: "the file may not be opened: see to its owner and mode",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened: its folder must exist, and be open for writing",
    sqlite3.SQLITE_NOTADB: "this is a file of another kind: choose another path",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: check it with `sqlite3 FILE 'PRAGMA integrity_check'`",
    sqlite3.SQLITE_IOERR: "the disk fails, or is full: see the system's log",
}
_PRIMARY = 0xFF  # of an extended code

_creating = threading.Lock()  # held while a file is created: see `SqliteFile._create`

Result = TypeVar("Result")


class SqliteFile:
    """A file, opened when it is first needed."""

    def __init__(self, path: Path, sync: str = "full", lock_s: float = LOCK_S, mode: int = MODE) -> None:
        self.path = path.absolute()  # the process may change its directory before it opens the file again
        self.lock = threading.RLock()
        self._sync = SYNC[sync]
        self._lock_s = lock_s
        self._mode = mode
        self._connection: sqlite3.Connection | None = None
        self._nothing: sqlite3.Connection | None = None  # what is read while there is no file
        self._is_open = False
        self.openings = 0  # how often a connection was made
        self._opened: tuple[Path, int, int] | None = None  # what the connection is to: path, device and inode
        self._look_s = 0.0  # when to check the path again

    def open(self) -> None:
        """See whether the file can be used, or made."""
        if sqlite3.sqlite_version_info < SQLITE_OLDEST:
            raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: Penstock needs 3.35 or later")
        with self.lock:
            self._is_open = True
            _forks.files.add(self)
            try:
                if self.exists():
                    self.connection()
                elif not os.access(self.path.parent, os.W_OK | os.X_OK):
                    raise StoreError(f"{self.path}: {ADVICE[sqlite3.SQLITE_CANTOPEN]}")
            except BaseException:
                self.close()
                raise

    def exists(self) -> bool:
        """Whether somebody has made the file."""
        return self.path.exists()

    def make(self) -> None:
        """Make sure that the file is there, with its tables."""
        with self.lock:
            self.connection()

    def close(self) -> None:
        """Let go of the file."""
        with self.lock:
            self._is_open = False
            _forks.files.discard(self)
            self.let_go()

    def let_go(self) -> None:
        """Close the connection; the next call opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self._nothing is not None:
            self._nothing.close()
            self._nothing = None

    def start_anew(self) -> list[sqlite3.Connection]:
        """In a forked child: forget the lock and the connection; return the latter, if there is one."""
        connection, self._connection = self._connection, None
        self._nothing = None
        self.lock = threading.RLock()
        return [] if connection is None else [connection]

    def connection(self, to_read: bool = False) -> sqlite3.Connection:
        """The connection; the caller has the lock. To read, one to an empty database will do while there is no file."""
        if self._connection is not None and time.monotonic() >= self._look_s:
            self._look_s = time.monotonic() + PLACE_S
            self._check_place()
        if self._connection is None:
            if not self._is_open:
                raise CallerError(f"{self.path} is not open")
            if to_read and not self.exists():
                return self._empty()
            with self.explained():
                self._connection = self._patiently(self._connect)
        return self._connection

    def _empty(self) -> sqlite3.Connection:
        if self._nothing is None:
            self._nothing = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._nothing.executescript(TABLES)
        return self._nothing

    def _check_place(self) -> None:
        """Raise ConnectionLost if the file that is open is no longer what the path leads to."""
        path, *opened = self._opened or (self.path,)
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            is_same = False
        except OSError:
            is_same = True  # as far as can be known
        else:
            is_same = [found.st_dev, found.st_ino] == opened
        if not is_same:
            self.let_go()
            raise ConnectionLost(
                f"{self.path} was removed or replaced while it was open. Nothing was done; the next call opens what is "
                "there by then, or makes the file again"
            )

    def _patiently(self, call: Callable[[], Result]) -> Result:
        """Try again while others have the lock."""
        pause_s = LOOK_S
        began = time.monotonic()
        while True:
            try:
                return call()
            except sqlite3.OperationalError as problem:
                is_busy = problem.sqlite_errorcode & _PRIMARY == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() - began >= self._lock_s:
                    raise
                # Processes that wait should not all try at the same moment.
                time.sleep(pause_s * (0.5 + random.random()))
                pause_s = min(1.2 * pause_s, LOOK_S_MAX)

    def _create(self) -> None:
        """Create the file with its mode, if it doesn't exist. Where that fails, SQLite's error says why."""
        # Closing a descriptor ends all locks that the process has on a file. So no connection may be made between.
        with _creating, suppress(OSError):
            descriptor = os.open(self.path.resolve(), os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, MODE)
            try:
                os.fchmod(descriptor, self._mode)
            finally:
                os.close(descriptor)

    def _connect(self) -> sqlite3.Connection:
        self._create()
        connection = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            self._set_up(connection)
            path = self.path.absolute()
            found = path.stat()
        except BaseException:
            connection.close()
            raise
        self.openings += 1
        self._opened = path, found.st_dev, found.st_ino
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        self._use_wal(connection)
        connection.execute(f"PRAGMA synchronous = {self._sync}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        if self._version(connection) == 0:
            connection.execute("BEGIN IMMEDIATE")
            for statement in TABLES.split(";"):
                connection.execute(statement)
            connection.execute("INSERT OR IGNORE INTO penstock_meta (name, value) VALUES ('version', ?)", [VERSION])
            connection.execute("COMMIT")
        version = self._version(connection)
        if version == VERSION and not self._has_ahead(connection):
            self._add_ahead(connection)
        if version > VERSION:
            raise StoreError(
                f"{self.path} was made by a later Penstock: its tables have version {version}, this one knows "
                f"{VERSION}. Update Penstock, or choose another file."
            )

    @staticmethod
    def _has_ahead(connection: sqlite3.Connection) -> bool:
        found = connection.execute("SELECT 1 FROM pragma_table_info('penstock_jobs') WHERE name = 'ahead'")
        return found.fetchone() is not None

    def _add_ahead(self, connection: sqlite3.Connection) -> None:
        """Files of version 1 may lack the column. A Penstock that doesn't know it works with it all the same."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not self._has_ahead(connection):
                connection.execute("ALTER TABLE penstock_jobs ADD COLUMN ahead INTEGER NOT NULL DEFAULT 0")
        finally:
            connection.execute("COMMIT")

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(
                f"{self.path} can't be used in WAL mode, only in {mode!r}: put it on a local disk that this process "
                "may write to"
            )

    @staticmethod
    def _version(connection: sqlite3.Connection) -> int:
        """Of the tables; 0 if there are none. `user_version` is left alone: the file may be an application's own."""
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'penstock_meta'").fetchone():
            return 0
        row = connection.execute("SELECT value FROM penstock_meta WHERE name = 'version'").fetchone()
        return row[0] if row else 0

    def read(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """The rows of a statement that changes nothing. It waits only for a repair of the file after a crash."""
        with self.lock, self.explained():
            connection = self.connection(to_read=True)
            return self._patiently(lambda: connection.execute(statement, values).fetchall())

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it, or nothing if something is raised."""
        with self.lock:
            self._look_s = 0.0
            connection = self.connection()
            with self.explained():
                self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        if connection.in_transaction:
                            connection.execute("ROLLBACK")
                    raise

    @contextmanager
    def explained(self) -> Iterator[None]:
        """SQLite's errors as Penstock's."""
        try:
            yield
        except sqlite3.Error as problem:
            raise self._explain(problem) from problem

    def _explain(self, problem: sqlite3.Error) -> PenstockError:
        code = getattr(problem, "sqlite_errorcode", 0) & _PRIMARY
        advice = ADVICE.get(code)
        text = f"{self.path}: {problem}" + (f"; {advice}" if advice else "")
        # Nothing was done, and to repeat it is harmless: a caller that waits for jobs goes on waiting.
        return TimedOut(text) if code == sqlite3.SQLITE_BUSY else StoreError(text)


class _Forks:
    """Whoever forks waits for the calls that other threads have under way, and no call begins until it is done."""

    def __init__(self) -> None:
        self.files: WeakSet[SqliteFile] = WeakSet()  # those that are open
        self._one_at_a_time = threading.Lock()
        self._held: list[SqliteFile] = []
        self._abandoned: list[sqlite3.Connection] = []  # kept, so that nobody closes them
        os.register_at_fork(
            before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
        )

    def _before(self) -> None:
        self._one_at_a_time.acquire()
        for file in list(self.files):
            file.lock.acquire()
            self._held.append(file)
            file.let_go()

    def _after_in_parent(self) -> None:
        while self._held:
            self._held.pop().lock.release()
        self._one_at_a_time.release()

    def _after_in_child(self) -> None:
        """Also where somebody forked behind Python's back: not even to close such a connection would be safe."""
        for file in list(self.files):
            self._abandoned += file.start_anew()
        self._held.clear()
        self._one_at_a_time = threading.Lock()


_forks = _Forks()
