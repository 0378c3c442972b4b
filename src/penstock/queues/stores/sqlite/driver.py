"""`sqlite:///relative.db` and `sqlite:////absolute/path.db`: jobs in an SQLite file, the embedded default.

There is nothing to run, and any number of processes may share a file.

All of it, in tables that may lie beside an application's own (`file` makes them):

    penstock_meta       name, value             `version`: of these tables
    penstock_jobs       number                  order of arrival, the row's key
                        queue, id               by_id: unique
                        mature                  ms: ready from then on; of a reserved job the end of its lease
                        tries, created
                        token                   of a reserved job, also after its lease is over; NULL for all others
                        ahead                   of a lease that has not begun: 1, and 1 more for each such lease just
                                                before it that ran out; 0 for all others
                        claim                   the key that holds it. by_claim: (queue, claim), of those only
                        unique_key
                        headers                 JSON, or NULL for none
                        body
                                                by_time: (queue, mature, number, token), in the order of delivery
    penstock_claims     queue, claim            keys that were not ended yet, whether they still have jobs or not
    penstock_keys       queue, unique_key       unique keys that are taken
                        id                      of the job that has it
                        keep                    ms that it stays taken after the job's end
                        free_at                 ms: the end of that; NULL while the job is there. by_end: those only
    penstock_queues     namespace, queue        queues that were made known
                        options                 JSON, NULL if none were ever given
                        paused                  0 or 1
    penstock_counters   namespace, queue, counter, value
    penstock_values     name, value             texts under keys; made by the first one
                        ends                    ms: the end of its time. by_end

A call is a transaction. What it costs doesn't depend on how many jobs there are, but for `sizes` and `purge`, and for
`peek` of a state that few jobs are in.
"""

import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

from penstock.codec import from_json, to_json
from penstock.errors import BadPayload, BadUrl, CallerError
from penstock.job import JobMove, JobState, Lease, NewJob, Sizes, StoredJob
from penstock.queues.blocking.driver import Driver, NewValue, Page
from penstock.queues.blocking.stats import Stats
from penstock.queues.capabilities import STANDARD, Capability
from penstock.queues.options import Options, StoreURL
from penstock.queues.scan import Part, Rows, Wanted
from penstock.queues.stores.sqlite import scan
from penstock.queues.stores.sqlite.file import LOCK_S, MODE, SYNC, SqliteFile
from penstock.queues.stores.sqlite.stats import ADD, SqliteStats

_VALUES_TABLE = (
    "CREATE TABLE IF NOT EXISTS penstock_values (name TEXT PRIMARY KEY, value TEXT NOT NULL, ends INTEGER NOT NULL)",
    "CREATE INDEX IF NOT EXISTS penstock_values_by_end ON penstock_values (ends)",
)
BODY_BYTES_MAX = 256 * 1024 * 1024  # SQLite takes a thousand million, but a job has to fit into memory a few times

_COLUMNS = "number, id, mature, tries, created, token, ahead, unique_key, headers, body"
_NUMBER, _ID, _MATURE, _TRIES, _CREATED, _TOKEN, _AHEAD, _UNIQUE_KEY, _HEADERS, _BODY = range(10)
Row = tuple[Any, ...]

# Texts as bytes, in what runs on a caller's connection: the text_factory of that may make anything of a text.
_DATABASES = "SELECT CAST(name AS BLOB), CAST(file AS BLOB) FROM pragma_database_list"
_KEY_HOLDER = "SELECT CAST(id AS BLOB), free_at FROM {}penstock_keys WHERE queue = ? AND unique_key = ?"
_TAKE_KEY = "INSERT OR REPLACE INTO {}penstock_keys (queue, unique_key, id, keep, free_at) VALUES (?, ?, ?, ?, NULL)"
_INSERT = (
    "INSERT INTO {}penstock_jobs (queue, id, mature, tries, created, unique_key, headers, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_READY = f"SELECT {_COLUMNS} FROM penstock_jobs WHERE queue = ? AND mature <= ? ORDER BY mature, number LIMIT ?"
_IS_ANY_READY = "SELECT 1 FROM penstock_jobs WHERE queue = ? AND mature <= ? LIMIT 1"
_LEASE = "UPDATE penstock_jobs SET mature = ?, tries = ?, token = ?, ahead = ?, claim = ? WHERE number = ?"
_GIVE_BACK = "UPDATE penstock_jobs SET token = NULL, ahead = 0, claim = NULL"
_LEASED = "queue = ? AND id = ? AND token = ?"
_STATES = {
    None: "",
    JobState.READY: "AND mature <= :now",
    JobState.SCHEDULED: "AND mature > :now AND token IS NULL",
    JobState.RESERVED: "AND mature > :now AND token IS NOT NULL",
}
# Each name is found by searching for the next one, so that the many jobs of a queue are not read.
_QUEUES = (
    "WITH RECURSIVE names (name) AS (SELECT min(queue) FROM penstock_jobs UNION ALL"
    " SELECT (SELECT min(queue) FROM penstock_jobs WHERE queue > name) FROM names WHERE name IS NOT NULL)"
    " SELECT name FROM names WHERE name IS NOT NULL"
)


class SqliteDriver(Driver):
    """Jobs in a file that any number of processes share.

    Options of its own: `sync` is full (the default), normal or off; `lock_timeout` is how many seconds a change waits
    for those of other processes; `mode` is the mode of a new file, as an octal number: 0600 unless given. The file is
    made by the first push or the first consumer; reading from a path where none is leaves nothing there. Consumers of
    other processes hear of a job by watching the file's version: every 1 or 2 ms while jobs come, and every 20 ms when
    none has come for a second.

    If the file is removed or replaced while it is open, the next change fails with ConnectionLost (a read may take a
    second to notice), and the call after that uses what is there by then. Callers that wait for jobs go on waiting,
    there.
    """

    type: ClassVar[str] = "sqlite"
    capabilities: ClassVar[frozenset[Capability]] = STANDARD | {Capability.TRANSACTION}
    own_options: ClassVar[frozenset[str] | None] = frozenset({"sync", "lock_timeout", "mode"})
    watch_s: ClassVar[float | None] = 0.02  # at most, and less after a job: asking costs some 10 µs, and no disk
    compares: ClassVar[frozenset[str]] = scan.COMPARES
    can_count: ClassVar[bool] = True
    puts_values_together = True

    def __init__(self, address: StoreURL, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        given = {**address.rest, **extra}
        self.file = SqliteFile(_path(address), _sync(given), _lock_s(given), _mode(given))

    @property
    def place(self) -> str:
        return f"sqlite:{self.file.path.resolve()}"

    def put_value(self, key: str, value: str, ttl_ms: int) -> None:
        self.put_values([NewValue(key, value, ttl_ms)])

    def put_values(self, values: Sequence[NewValue]) -> None:
        now_ms = self.now_ms()
        with self.file.writing() as connection:
            for statement in _VALUES_TABLE:
                connection.execute(statement)
            connection.execute("DELETE FROM penstock_values WHERE ends <= ?", (now_ms,))
            connection.executemany(
                "INSERT INTO penstock_values (name, value, ends) VALUES (?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value, ends = excluded.ends",
                [(one.key, one.text, now_ms + one.ttl_ms) for one in values],
            )

    def _has_values(self) -> bool:
        return bool(self.file.read("SELECT 1 FROM sqlite_master WHERE name = 'penstock_values'"))

    def value(self, key: str) -> str | None:
        if not self._has_values():
            return None
        statement = "SELECT value FROM penstock_values WHERE name = ? AND ends > ?"
        rows = self.file.read(statement, (key, self.now_ms()))
        return rows[0][0] if rows else None

    def remove_value(self, key: str) -> None:
        if self._has_values():
            with self.file.writing() as connection:
                connection.execute("DELETE FROM penstock_values WHERE name = ?", (key,))

    def own_stats(self) -> Stats | None:
        return SqliteStats(self.file, self.options.namespace)

    def open(self) -> None:
        self.file.open()

    def close(self) -> None:
        self.file.close()

    def exists(self) -> bool:
        return self.file.exists()

    def version(self) -> int:
        """Another number whenever another connection has changed something. No table is read for it."""
        version = int(self.file.read("PRAGMA data_version")[0][0])
        return self.file.openings << 32 | version  # SQLite counts from 0 for each connection

    def prepare(self, job: NewJob) -> None:
        if len(job.body) > BODY_BYTES_MAX:
            raise BadPayload(f"a body must be at most {BODY_BYTES_MAX} bytes, got {len(job.body)}")
        job.prepared = to_json(dict(job.headers)) if job.headers else None

    def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        now_ms = self.now_ms()
        with self.file.writing() as connection:
            return self._push(connection.cursor(), queue, jobs, now_ms)

    def push_within(self, connection: Any, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        now_ms = self.now_ms()
        if not isinstance(connection, sqlite3.Connection):
            raise CallerError(f"connection is a {type(connection).__name__}, not an sqlite3.Connection")
        if not self.file.openings:  # else there is nothing to make, and the lock need not be waited for
            self.file.make()
        with self.file.explained():
            cursor = connection.cursor()
            cursor.row_factory = None  # the caller's own may make anything of a row
            return self._push(cursor, queue, jobs, now_ms, f'"{self._schema(cursor)}".')

    def _push(
        self, cursor: sqlite3.Cursor, queue: str, jobs: Sequence[NewJob], now_ms: int, schema: str = ""
    ) -> list[str]:
        ids = _push(cursor, queue, jobs, now_ms, schema)
        added = sum(job_id == job.id for job_id, job in zip(ids, jobs, strict=True))
        self._count(cursor, queue, "put", added, schema)
        return ids

    def _count(
        self, cursor: sqlite3.Cursor | sqlite3.Connection, queue: str, counter: str, by: int, schema: str = ""
    ) -> None:
        """Add to a counter, in the transaction of what it counts."""
        if by and self.counts(queue):
            cursor.execute(ADD.format(schema), (self.counts_in, queue, counter, by))

    def _schema(self, cursor: sqlite3.Cursor) -> str:
        """As what the caller's connection has this store's file open."""
        for schema, file in cursor.execute(_DATABASES).fetchall():
            path = Path(os.fsdecode(file)) if file else None
            if path is not None and path.exists() and self.file.path.samefile(path):
                return str(schema, "utf-8").replace('"', '""')
        raise CallerError(
            f"the connection is to another database than {self.file.path}: a push within a transaction needs the same"
        )

    def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        now_ms = self.now_ms()
        if not self._is_any_ready(queue, now_ms):
            return []
        with self.file.writing() as connection:
            rows = connection.execute(_READY, (queue, now_ms, count)).fetchall()
            connection.executemany("DELETE FROM penstock_jobs WHERE number = ?", [(row[_NUMBER],) for row in rows])
            _end_keys(connection, queue, (row[_UNIQUE_KEY] for row in rows), now_ms)
            self._count(connection, queue, "get", len(rows))
        return [_popped(row) for row in rows]

    def _is_any_ready(self, queue: str, now_ms: int) -> bool:
        """Whether a job is ready; without a lock, since a waiting caller mostly finds none."""
        return bool(self.file.read(_IS_ANY_READY, (queue, now_ms)))

    def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        with self.file.writing() as connection:
            for job in jobs:
                row: Row = job.raw
                key = row[_UNIQUE_KEY]
                if key is not None:
                    key = _take_back_key(connection, queue, key, job.id)
                values = (queue, job.id, row[_MATURE], job.tries, row[_CREATED], key, row[_HEADERS], row[_BODY])
                connection.execute(_INSERT.format(""), values)
            self._count(connection, queue, "get", -len(jobs))

    def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        now_ms = self.now_ms()
        if not self._is_any_ready(queue, now_ms):
            return []
        with self.file.writing() as connection:
            jobs = _reserve(connection, queue, count, now_ms, now_ms + lease_ms, begin)
            self._count(connection, queue, "reserve", len(jobs))
        return jobs

    def release(self, queue: str, leases: Sequence[Lease]) -> None:
        now_ms = self.now_ms()
        with self.file.writing() as connection:
            released = connection.executemany(
                f"{_GIVE_BACK}, mature = ? WHERE {_LEASED}",
                [(now_ms, queue, lease.id, _number(lease.token)) for lease in leases],
            )
            self._count(connection, queue, "reserve", -released.rowcount)

    def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        now_ms = self.now_ms()
        ended = []
        keys = []
        with self.file.writing() as connection:
            connection.executemany(
                f"UPDATE penstock_jobs SET ahead = 0 WHERE {_LEASED}",
                [(queue, lease.id, _number(lease.token)) for lease in begun],
            )
            for lease in leases:
                where = (queue, lease.id, _number(lease.token))
                row = connection.execute(
                    f"DELETE FROM penstock_jobs WHERE {_LEASED} RETURNING unique_key", where
                ).fetchone()
                ended.append(row is not None)
                if row is not None:
                    keys.append(row[0])
            _end_keys(connection, queue, keys, now_ms)
            self._count(connection, queue, "commit", len(keys))
        return ended

    def nack(self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None) -> list[bool]:
        now_ms = self.now_ms()
        statement = f"{_GIVE_BACK}, tries = tries + 1, mature = ? WHERE {_LEASED}"
        with self.file.writing() as connection:
            done = [
                connection.execute(statement, (now_ms + delay_ms, queue, lease.id, _number(lease.token))).rowcount > 0
                for lease, delay_ms in zip(leases, delays_ms, strict=True)
            ]
            self._count(connection, queue, "rollback", sum(done))
        return done

    def extend(
        self,
        queue: str,
        leases: Sequence[Lease],
        leases_ms: Sequence[int],
        begun: Sequence[bool] = (),
    ) -> list[str | None]:
        now_ms = self.now_ms()
        statement = f"UPDATE penstock_jobs SET mature = ?, token = ?, ahead = iif(?, 0, ahead) WHERE {_LEASED}"
        token = _new_token()
        tokens: list[str | None] = []
        with self.file.writing() as connection:
            for lease, lease_ms, has_begun in zip(leases, leases_ms, begun or [False] * len(leases), strict=True):
                values = (now_ms + lease_ms, token, has_begun, queue, lease.id, _number(lease.token))
                tokens.append(str(token) if connection.execute(statement, values).rowcount else None)
        return tokens

    def move(
        self, queue: str, to: str, moves: Sequence[JobMove], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        now_ms = self.now_ms()
        statement = "DELETE FROM penstock_jobs WHERE queue = ? AND id = ? AND token IS ? RETURNING unique_key"
        moved: list[NewJob] = []
        done = []
        keys = []
        with self.file.writing() as connection:
            for lease, job in moves:
                token = None if lease.token is None else _number(lease.token)
                row = connection.execute(statement, (queue, lease.id, token)).fetchone()
                done.append(row is not None)
                if row is not None:
                    keys.append(row[0])
                    moved.append(job)
            _end_keys(connection, queue, keys, now_ms)
            if counter is not None:
                self._count(connection, queue, counter, len(moved))
            self._push(connection.cursor(), to, moved, now_ms)
        return done

    def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        now_ms = self.now_ms()
        statement = (
            "DELETE FROM penstock_jobs WHERE queue = ? AND id = ? AND (token IS NULL OR mature <= ?)"
            " RETURNING unique_key"
        )
        with self.file.writing() as connection:
            rows = [connection.execute(statement, (queue, job_id, now_ms)).fetchone() for job_id in ids]
            _end_keys(connection, queue, (row[0] for row in rows if row is not None), now_ms)
        return [row is not None for row in rows]

    def purge(self, queue: str) -> int:
        now_ms = self.now_ms()
        where = "WHERE queue = ? AND (token IS NULL OR mature <= ?)"
        with self.file.writing() as connection:
            keys = connection.execute(
                f"SELECT unique_key FROM penstock_jobs {where} AND unique_key IS NOT NULL", (queue, now_ms)
            ).fetchall()
            _end_keys(connection, queue, (key for (key,) in keys), now_ms)
            return connection.execute(f"DELETE FROM penstock_jobs {where}", (queue, now_ms)).rowcount

    def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        now_ms = self.now_ms()
        after_ms, _, number = (cursor or "").partition(":")
        after = "AND (mature, number) > (:mature, :number)" if cursor is not None else ""
        values = {"queue": queue, "now": now_ms, "count": count + 1, "mature": after_ms, "number": number}
        if cursor is not None:
            values.update(mature=int(after_ms), number=int(number))
        statement = (
            f"SELECT {_COLUMNS} FROM penstock_jobs WHERE queue = :queue {_STATES[state]} {after}"
            " ORDER BY mature, number LIMIT :count"
        )
        rows = self.file.read(statement, values)
        jobs = [_stored(row, now_ms) for row in rows[:count]]
        last = rows[count - 1] if len(rows) > count else None
        return Page(jobs, None if last is None else f"{last[_MATURE]}:{last[_NUMBER]}")

    def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        now_ms = self.now_ms()
        statement = f"SELECT {_COLUMNS} FROM penstock_jobs WHERE queue = ? AND id = ? AND token IS NOT NULL"
        found = [self.file.read(statement, (queue, job_id)) for job_id in ids]
        return [_stored(rows[0], now_ms) if rows else None for rows in found]

    def sizes(self, queue: str) -> Sizes:
        now_ms = self.now_ms()
        # In two, since entries of an index are counted fast if nothing is asked of each.
        statement = (
            "SELECT (SELECT count(*) FROM penstock_jobs WHERE queue = :queue AND mature <= :now),"
            " count(*), count(token) FROM penstock_jobs WHERE queue = :queue AND mature > :now"
        )
        ((ready, others, reserved),) = self.file.read(statement, {"queue": queue, "now": now_ms})
        return Sizes(ready + others, ready, others - reserved, reserved)

    def next_mature_ms(self, queue: str) -> int | None:
        rows = self.file.read("SELECT mature FROM penstock_jobs WHERE queue = ? ORDER BY mature LIMIT 1", (queue,))
        return int(rows[0][0]) if rows else None

    def queues(self) -> list[str]:
        return [name for (name,) in self.file.read(_QUEUES)]

    def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        now_ms = self.now_ms()
        with self.file.writing() as connection:
            known = connection.execute("SELECT 1 FROM penstock_claims WHERE queue = ? AND claim = ?", (queue, key))
            if known.fetchone() is not None:
                self._lease_again(connection, queue, key, now_ms + lease_ms)
                rows = connection.execute(
                    f"SELECT {_COLUMNS} FROM penstock_jobs WHERE queue = ? AND claim = ? ORDER BY number", (queue, key)
                ).fetchall()
                return [_stored(row, now_ms) for row in rows]
            jobs = _reserve(connection, queue, count, now_ms, now_ms + lease_ms, claim=key)
            if jobs:
                connection.execute("INSERT INTO penstock_claims (queue, claim) VALUES (?, ?)", (queue, key))
            self._count(connection, queue, "reserve", len(jobs))
            return jobs

    @staticmethod
    def _lease_again(connection: sqlite3.Connection, queue: str, key: str, until_ms: int) -> int:
        statement = "UPDATE penstock_jobs SET mature = ?, token = ? WHERE queue = ? AND claim = ?"
        return connection.execute(statement, (until_ms, _new_token(), queue, key)).rowcount

    def extend_claim(self, queue: str, key: str, lease_ms: int) -> int:
        now_ms = self.now_ms()
        with self.file.writing() as connection:
            return self._lease_again(connection, queue, key, now_ms + lease_ms)

    def ack_claim(self, queue: str, key: str) -> int:
        now_ms = self.now_ms()
        with self.file.writing() as connection:
            connection.execute("DELETE FROM penstock_claims WHERE queue = ? AND claim = ?", (queue, key))
            rows = connection.execute(
                "DELETE FROM penstock_jobs WHERE queue = ? AND claim = ? RETURNING unique_key", (queue, key)
            ).fetchall()
            _end_keys(connection, queue, (row[0] for row in rows), now_ms)
            self._count(connection, queue, "commit", len(rows))
        return len(rows)

    def nack_claim(self, queue: str, key: str, delay_ms: int) -> int:
        now_ms = self.now_ms()
        statement = f"{_GIVE_BACK}, tries = tries + 1, mature = ? WHERE queue = ? AND claim = ?"
        with self.file.writing() as connection:
            connection.execute("DELETE FROM penstock_claims WHERE queue = ? AND claim = ?", (queue, key))
            given = connection.execute(statement, (now_ms + delay_ms, queue, key)).rowcount
            self._count(connection, queue, "rollback", given)
        return given

    def scan_page(self, part: Part, wanted: Wanted, count: int, cursor: str | None = None) -> Rows:
        return scan.scan_page(self.file, part, wanted, count, cursor, self.now_ms())


def _push(cursor: sqlite3.Cursor, queue: str, jobs: Iterable[NewJob], now_ms: int, schema: str = "") -> list[str]:
    """Store jobs in the transaction that is open."""
    insert = _INSERT.format(schema)
    ids = []
    for job in jobs:
        if job.unique is not None:
            holder = cursor.execute(_KEY_HOLDER.format(schema), (queue, job.unique)).fetchone()
            if holder is not None and (holder[1] is None or now_ms < holder[1]):
                ids.append(str(holder[0], "utf-8"))
                continue
            cursor.execute(_TAKE_KEY.format(schema), (queue, job.unique, job.id, job.unique_for_ms))
        mature_ms = job.mature_ms if job.mature_ms is not None else now_ms + job.delay_ms
        created_ms = now_ms if job.created_ms is None else job.created_ms
        cursor.execute(insert, (queue, job.id, mature_ms, job.tries, created_ms, job.unique, job.prepared, job.body))
        ids.append(job.id)
    return ids


def _reserve(
    connection: sqlite3.Connection,
    queue: str,
    count: int,
    now_ms: int,
    until_ms: int,
    begin: int | None = None,
    claim: str | None = None,
) -> list[StoredJob]:
    rows = connection.execute(_READY, (queue, now_ms, count)).fetchall()
    if claim is not None:
        rows.sort()  # by their number: in the order in which the claim returns them
    token = _new_token()
    jobs = [_popped(row) for row in rows]
    leases = []
    for place, (job, row) in enumerate(zip(jobs, rows, strict=True)):
        job.mature_ms, job.token, job.state, job.raw = until_ms, str(token), JobState.RESERVED, None
        job.has_begun = begin is None or (place < begin and not job.is_back)
        leases.append((until_ms, job.tries, token, 0 if job.has_begun else job.unbegun + 1, claim, row[_NUMBER]))
    connection.executemany(_LEASE, leases)
    return jobs


def _end_keys(connection: sqlite3.Connection, queue: str, keys: Iterable[str | None], now_ms: int) -> None:
    """The jobs that had these unique keys are gone: now their time of staying taken begins."""
    ended = [(now_ms, queue, key) for key in keys if key is not None]
    if not ended:
        return
    connection.executemany(
        "UPDATE penstock_keys SET free_at = ? + keep WHERE queue = ? AND unique_key = ? AND free_at IS NULL", ended
    )
    connection.execute("DELETE FROM penstock_keys WHERE free_at <= ?", (now_ms,))


def _take_back_key(connection: sqlite3.Connection, queue: str, key: str, job_id: str) -> str | None:
    """The unique key of a job that comes back, unless another job has it by now."""
    holder = connection.execute(_KEY_HOLDER.format(""), (queue, key)).fetchone()
    if holder is not None and holder[0] != job_id.encode():
        return None
    if holder is None:
        connection.execute(_TAKE_KEY.format(""), (queue, key, job_id, 0))
    connection.execute("UPDATE penstock_keys SET free_at = NULL WHERE queue = ? AND unique_key = ?", (queue, key))
    return key


def _stored(row: Row, now_ms: int) -> StoredJob:
    """A job as it lies there."""
    token = row[_TOKEN]
    if row[_MATURE] <= now_ms:
        state = JobState.READY
    else:
        state = JobState.SCHEDULED if token is None else JobState.RESERVED
    return StoredJob(
        row[_ID],
        row[_BODY],
        headers=from_json(row[_HEADERS]) if row[_HEADERS] else {},
        tries=row[_TRIES],
        mature_ms=row[_MATURE],
        recorded_ms=row[_CREATED],
        token=None if token is None else str(token),
        state=state,
        has_begun=not row[_AHEAD],
    )


def _popped(row: Row) -> StoredJob:
    """A job that is taken. One that still has a token comes back from a lease that ran out."""
    job = _stored(row, row[_MATURE])
    if job.token is not None:
        job.is_back, job.unbegun = True, row[_AHEAD]
        job.tries += not job.unbegun
        job.token = None
        job.has_begun = True
    job.raw = row
    return job


def _new_token() -> int:
    """By chance: so no lease has the token of an earlier one, whoever gave it."""
    return int.from_bytes(os.urandom(8), "big") >> 1


def _number(token: str | None) -> int:
    """Return a token as it is stored; a text that is not a token matches no job."""
    return int(token) if token is not None and token.isdecimal() and len(token) < 20 else -1


def _path(address: StoreURL) -> Path:
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
        raise CallerError(f"sync must be one of {', '.join(SYNC)}, got {sync!r}")
    return sync


def _lock_s(given: dict[str, Any]) -> float:
    try:
        seconds = float(given.get("lock_timeout", LOCK_S))
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise CallerError(f"lock_timeout must be 0 to 3600 seconds, got {given['lock_timeout']!r}")
    return seconds


def _mode(given: dict[str, Any]) -> int:
    value = given.get("mode", MODE)
    try:
        mode = value if isinstance(value, int) else int(str(value), 8)
    except ValueError:
        mode = 0
    if mode & MODE != MODE or mode & ~0o666:
        shown = f"{value:04o}" if isinstance(value, int) and value >= 0 else value
        raise CallerError(f"mode must be octal, from 0600 to 0666, and let the owner read and write, got {shown}")
    return mode
