"""Every table, index, trigger and channel of the PostgreSQL store, and all SQL on them but for scans (`scan`).

The table of a queue, `_k_tbl_QUEUE`, as Keuss 2.0.4 and later makes it (`names` has the names):

| column | type | meaning |
|---|---|---|
| `_id` | varchar(64), primary key | the id, in the form of a UUID |
| `_pl` | jsonb | payload and headers: see `element` |
| `mature` | timestamptz, not null, now by default, indexed | when it is ready; of a reserved job, when its lease ends |
| `tries` | integer, not null, 0 by default | number of deliveries: a reserve adds 1, a release takes it off |
| `reserved` | timestamptz | when it was reserved; null if it was not, or was given back; after `mature`: see rule 7 |

Tables that only Penstock uses. They are made in the first schema of the search path, when they are first needed:

| table | columns | contents |
|---|---|---|
| `penstock_queues` | namespace, queue (key); options jsonb; paused boolean | the known queues, and their pauses |
| `penstock_counters` | namespace, queue, counter (key); value bigint | Keuss' counters, as they were last folded |
| `penstock_counter_deltas` | namespace, queue, counter, value (no key) | what was counted since |
| `penstock_claims` | queue, key (key); ids text[]; reserved timestamptz | the jobs leased under a key |
| `penstock_values` | key text (key); value text; ends timestamptz | texts under keys, until their time is over |
| `penstock_unique` | queue, key (key); id text; keep_ms bigint; free_at timestamptz | the job that has a unique key |

Indexes of `penstock_unique`: `penstock_unique_id` on (queue, id), for the ends of jobs, and `penstock_unique_free_at`
on free_at, for removal. Trigger `penstock_ended` on the table of a queue with unique keys, and its function of that
name. Channels of LISTEN and NOTIFY: see `names`.

Rules that hold for all statements:

1. A statement is a transaction, and takes a batch (see `element`).
2. Now is `statement_timestamp()`, plus what tests add: the server's clock, and in a transaction of the caller the time
   of the call, not the beginning of the transaction, or a delayed job would be early. It is the same for the whole
   statement, so that an index can be used with it.
3. Jobs of one push mature a microsecond after each other, so that they come out in their order: the index on `mature`
   is all that Keuss' layout has. A call has at most 1,000 jobs, so within a millisecond. Where maturities are equal (an
   exact time given to several pushes), the order is that of the table.
4. A lease's token names `mature` and `tries`, and whatever ends or changes a leased job compares both. Every reserve,
   also one by Keuss, writes others.
5. Rows are taken with SKIP LOCKED: consumers never wait for each other. They are looked up again by `ctid`, which can't
   change while they are locked.
6. A counter is the sum of its row in `penstock_counters` and of its rows in `penstock_counter_deltas`. The statement
   that does what is counted also inserts into the latter, so nobody waits for the counter of another, also not for a
   transaction that a caller keeps open; what is rolled back was not counted. Every 1,000 statements a client folds: it
   takes the rows out and adds them up in one statement, which never changes a counter. The namespace and the queue
   stand in the text of the statement.
7. A lease under which work on the job has not begun has `reserved` after `mature`, which no reserve of Keuss writes:
   by 1 microsecond, and 1 more for each such lease just before it that ran out. It costs no try when it runs out: the
   next reserve of ours leaves `tries` as it is, and what shows `tries` takes 1 off. When work begins, `reserved` is the
   time.
8. A unique key is taken while `free_at` is null, which is while its job is there, and until `free_at`, which is
   `keep_ms` after the job's end. The trigger writes that end: so it is exact also if Keuss ends the job. It is made
   when a queue gets its first unique key, and needs the right to make triggers on the table (its owner has it). Without
   the trigger, a job's end counts from when its key is next asked for.

Every reserve moves a row in the index, so no update is heap-only, and dead entries pile up at the beginning of the
index until a vacuum: `ScanStart` skips them. Tables that we make are vacuumed more often than others.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache

from penstock.job import JobState
from penstock.queues.stores.postgres.names import literal, quoted, table_of

COLUMNS = {
    "_id": "character varying",
    "_pl": "jsonb",
    "mature": "timestamp with time zone",
    "tries": "integer",
    "reserved": "timestamp with time zone",
}

# Settings of the planner. PostgreSQL keeps the plan of a prepared statement, and the one that it makes for an empty
# table reads all of it, which is far too slow with a million rows. Each statement here has one good plan: by index.
# What is switched off can still be used where nothing else is possible, at estimated costs that would start JIT.
SETTINGS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}
SESSION = "SELECT " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in SETTINGS.items())

# $1 is what tests add to the clock, in milliseconds, in all statements but those that need no time.
MS = "interval '1 millisecond'"
US = "interval '1 microsecond'"
NOW = f"(statement_timestamp() + $1::int8 * {MS})"
EPOCH = "timestamptz 'epoch'"

# The maturity before all others.
BEGINNING_US = -(2**53)

NOW_MS = f"SELECT floor(extract(epoch FROM {NOW}) * 1000)::int8"
NOTIFY = "SELECT pg_notify($1, $2)"

# The columns of a table with their types, and whether it has the index.
DESCRIBE = """
SELECT array_agg(attname || ' ' || format_type(atttypid, NULL)),
    EXISTS (SELECT FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
            WHERE indrelid = to_regclass($1) AND attname = 'mature' AND indisvalid)
FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""
# Whether the name $1 belongs to something else than an index of the table $2.
IS_TAKEN = """
SELECT to_regclass($1) IS NOT NULL
    AND NOT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1) AND indrelid = to_regclass($2))
"""
# Tables of queues that this role may read, in the schemas of its search path.
TABLES = """
SELECT substr(relname, 8) FROM pg_class
WHERE relkind IN ('r', 'p') AND left(relname, 7) = '_k_tbl_' AND length(relname) > 7
    AND pg_table_is_visible(oid) AND has_table_privilege(oid, 'SELECT')
"""


def set_shift(shift_ms: int) -> str:
    """Return a script that sets what tests add to the clock, for the trigger."""
    return f"SELECT set_config('penstock.shift_ms', '{shift_ms}', false)"


def us(value: str) -> str:
    """Return SQL for a time in microseconds since 1970."""
    return f"(extract(epoch FROM {value}) * 1000000)::int8"


def at_us(value: str) -> str:
    """Return SQL for the time that is a number of microseconds after 1970."""
    return f"({EPOCH} + {value} * {US})"


def notified(rows: str, channel: str = "$3::text") -> str:
    """Return an expression that sends the signal for rows with a new maturity, once, if there is a channel."""
    lowest = f"(SELECT floor(extract(epoch FROM min(mature)) * 1000)::int8::text FROM {rows})"
    return f"(SELECT pg_notify({channel}, {lowest}) WHERE {channel} IS NOT NULL AND EXISTS (SELECT FROM {rows}))"


def counted(counter: str, rows: str, sign: str = "", name: str = "counted", queue: str = "{queue}") -> str:
    """Return a part of a statement that counts the rows of another part, for stores that count."""
    return f"""{{counting}}, {name} AS (
    INSERT INTO penstock_counter_deltas (namespace, queue, counter, value)
    SELECT {{namespace}}, {queue}, '{counter}', {sign}count(*) FROM {rows} HAVING count(*) > 0
){{/counting}}"""


_COUNTING = re.compile(r"\{counting\}(.*?)\{/counting\}", re.DOTALL)


@lru_cache(1024)
def for_queue(statement: str, queue: str, namespace: str | None, to: str | None = None) -> str:
    """Return a statement with the names of a queue, of the target of a move, and of the namespace if it counts.

    All are filled in at once, so that a name which looks like a placeholder is left alone.
    """
    if namespace is None:
        statement = _COUNTING.sub("", statement)
    names = {
        "{table}": quoted(table_of(queue)),
        "{queue}": literal(queue),
        "{namespace}": literal(namespace or ""),
        "{counting}": "",
        "{/counting}": "",
    }
    if to is not None:
        names |= {"{target}": quoted(table_of(to)), "{to}": literal(to)}
    return _NAMES.sub(lambda found: names[found[0]], statement)


_NAMES = re.compile(r"\{(?:table|queue|namespace|/?counting|target|to)\}")


def creation(queue: str, index: str) -> str:
    """Return a script that makes a queue's table and its index, in one transaction.

    Vacuum runs after a few thousand ended jobs, however large the table is: a scan from the beginning of the index
    reads all that ended since the last one.
    """
    table = quoted(table_of(queue))
    columns = (
        "_id VARCHAR(64) PRIMARY KEY",
        "_pl JSONB",
        "mature TIMESTAMPTZ DEFAULT CURRENT_TIMESTAMP NOT NULL",
        "tries INTEGER DEFAULT 0 NOT NULL",
        "reserved TIMESTAMPTZ",
    )
    return (
        f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)}) "
        "WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000); "
        f"CREATE INDEX IF NOT EXISTS {quoted(index)} ON {table} (mature)"
    )


_FIELDS = "i text, p jsonb, u int8, d int8, t int4"
_GIVEN = "json_to_recordset($2::json) AS given"
_MATURE = f"coalesce({at_us('u')}, {NOW} + coalesce(d, 0) * {MS}) + (row_number() OVER () - 1) * {US}"


def insertion(table: str, rows: str) -> str:
    """Return an INSERT of records. Those whose id is there already are left alone: a push can be repeated."""
    return f"""
    INSERT INTO {table} (_id, _pl, mature, tries)
    SELECT i, p, {_MATURE}, coalesce(t, 0) FROM {rows}
    ON CONFLICT (_id) DO NOTHING
    RETURNING mature
"""


def _take(counter: str, then: str) -> str:
    """Return a statement that takes the ready jobs with the lowest maturity: $2 is how many, $3 the `ScanStart`."""
    return f"""
WITH picked AS MATERIALIZED (
    SELECT ctid AS place, mature, reserved FROM {{table}}
    WHERE mature >= {at_us("$3::int8")} AND mature <= {NOW}
    ORDER BY mature LIMIT $2::int8 FOR UPDATE SKIP LOCKED
), taken AS ({then}
){counted(counter, "taken")}
SELECT * FROM taken"""


# Whether a lease still holds. Not with `=`: jobs that were reserved together mature together, and PostgreSQL might look
# for each of them among all of those, by the index on `mature`.
_HOLDS = f"job.mature IS NOT DISTINCT FROM {at_us('given.m')} AND job.tries = given.n AND job.reserved IS NOT NULL"
_LEASED = f"job._id = given.i AND {_HOLDS}"
# Whether a lease, also one that ran out, is one under which work has not begun; how many of those there were in a row.
IS_AHEAD = "coalesce({0}reserved > {0}mature, false)"
_AHEAD = f"(CASE WHEN {IS_AHEAD.format('job.')} THEN {us('job.reserved')} - {us('job.mature')} ELSE 0 END)"
COUNTED = f"job.tries + CASE WHEN {IS_AHEAD.format('job.')} THEN 0 ELSE 1 END"
# A job that was just reserved. `unbegun` is null if its last lease did not run out, else the number of leases in a row
# that ran out before work began.
_RESERVED = f"""job._id, job._pl::text, job.tries, {us("job.mature")} AS mature, {us("picked.mature")} AS before,
    CASE WHEN picked.reserved IS NULL THEN NULL
         WHEN picked.reserved > picked.mature THEN {us("picked.reserved")} - {us("picked.mature")}
         ELSE 0 END AS unbegun,
    job.reserved <= job.mature AS has_begun"""
# Whether a job is reserved now.
IS_RESERVED = f"(mature > {NOW} AND reserved IS NOT NULL)"

# Claims: $2 is the queue, $3 the key. A job is under the key while it has the time of reservation that it got with it:
# every other reserve writes another, and what returns the job clears it. Its lease may be extended.
_JOB = f"job._id, job._pl::text, job.tries, {us('job.mature')} AS until"
_HELD = "unnest(claim.ids) WITH ORDINALITY AS held (id, place)"
_IS_HELD = "job._id = held.id AND job.reserved = claim.reserved"
_CLAIM = f"""\
WITH known AS MATERIALIZED (SELECT FROM penstock_claims WHERE queue = $2 AND key = $3),
picked AS MATERIALIZED (
    SELECT ctid AS place, mature FROM {{table}}
    WHERE NOT EXISTS (SELECT FROM known) AND mature <= {NOW}
    ORDER BY mature LIMIT $4::int8 FOR UPDATE SKIP LOCKED
), leased AS (
    UPDATE {{table}} AS job SET tries = {COUNTED}, mature = {NOW} + $5::int8 * {MS}, reserved = {NOW}
    FROM picked WHERE job.ctid = picked.place
    RETURNING {_JOB}, {us("picked.mature")} AS before
), kept AS (
    INSERT INTO penstock_claims (queue, key, ids, reserved)
    SELECT $2, $3, array_agg(_id ORDER BY before, _id COLLATE "C"), {NOW} FROM leased HAVING count(*) > 0
){counted("reserve", "leased")}"""
_EXTENDED = f"""\
UPDATE {{table}} AS job SET mature = {NOW} + $4::int8 * {MS}
FROM penstock_claims AS claim, {_HELD} WHERE claim.queue = $2 AND claim.key = $3 AND {_IS_HELD}"""
_IS_FREE = f"held.free_at <= {NOW}"
_UNIQUE_FIELDS = "i text, p jsonb, u int8, d int8, t int4, k text, f int8"
_CHOSEN = "(SELECT given.* FROM given LEFT JOIN owners ON key = k WHERE k IS NULL OR id = i ORDER BY place) AS chosen"

_TEXTS = {
    # $2 records, $3 the channel, which may be null.
    "push": f"""
WITH stored AS ({insertion("{table}", f"{_GIVEN} ({_FIELDS})")}){counted("put", "stored")}
SELECT {notified("stored")}""",
    # $1 records, as they were.
    "put_back": f"""
WITH back AS (
    INSERT INTO {{table}} (_id, _pl, mature, tries)
    SELECT i, p, {at_us("u")}, t FROM json_to_recordset($1::json) AS given (i text, p jsonb, u int8, t int4)
    ON CONFLICT (_id) DO NOTHING
    RETURNING 1
){counted("get", "back", "-")}
SELECT count(*) FROM back""",
    "pop": _take(
        "get",
        f"""
DELETE FROM {{table}} AS job USING picked WHERE job.ctid = picked.place
RETURNING job._id, job._pl::text, job.tries - {IS_AHEAD.format("job.")}::int AS tries, {us("job.mature")} AS mature""",
    ),
    # $4 is the lease in milliseconds.
    "reserve": _take(
        "reserve",
        f"""
UPDATE {{table}} AS job
SET tries = {COUNTED}, mature = {NOW} + $4::int8 * {MS}, reserved = {NOW}
FROM picked WHERE job.ctid = picked.place
RETURNING {_RESERVED}""",
    ),
    # Work begins at once on the first $5 of them.
    "reserve_ahead": _take(
        "reserve",
        f"""
UPDATE {{table}} AS job
SET tries = {COUNTED}, mature = {NOW} + $4::int8 * {MS},
    reserved = CASE WHEN job.reserved IS NULL AND number <= $5::int8 THEN {NOW}
        ELSE {NOW} + $4::int8 * {MS} + (1 + {_AHEAD}) * {US} END
FROM (SELECT *, row_number() OVER () AS number FROM picked) AS picked WHERE job.ctid = picked.place
RETURNING {_RESERVED}""",
    ),
    "release": f"""
WITH back AS (
    UPDATE {{table}} AS job SET tries = job.tries - 1, mature = {at_us("given.b")}, reserved = NULL
    FROM json_to_recordset($1::json) AS given (i text, m int8, n int4, b int8)
    WHERE {_LEASED}
    RETURNING 1
){counted("reserve", "back", "-")}
SELECT count(*) FROM back""",
    "ack": f"""
WITH gone AS (
    DELETE FROM {{table}} AS job USING json_to_recordset($1::json) AS given (i text, m int8, n int4)
    WHERE {_LEASED}
    RETURNING job._id
){counted("commit", "gone")}
SELECT _id FROM gone""",
    # $2 leases, $3 leases of others on which work has begun.
    "ack_and_begin": f"""
WITH begun AS (
    UPDATE {{table}} AS job SET reserved = {NOW}
    FROM json_to_recordset($3::json) AS given (i text, m int8, n int4)
    WHERE {_LEASED} AND {IS_AHEAD.format("job.")}
), gone AS (
    DELETE FROM {{table}} AS job USING {_GIVEN} (i text, m int8, n int4)
    WHERE {_LEASED}
    RETURNING job._id
){counted("commit", "gone")}
SELECT _id FROM gone""",
    # $2 leases, $3 the channel.
    "nack": f"""
WITH back AS (
    UPDATE {{table}} AS job SET mature = {NOW} + given.d * {MS}, reserved = NULL
    FROM {_GIVEN} (i text, m int8, n int4, d int8) WHERE {_LEASED}
    RETURNING job._id, job.mature
){counted("rollback", "back")}
SELECT _id, {notified("back")} FROM back""",
    "extend": f"""
UPDATE {{table}} AS job SET mature = {NOW} + given.d * {MS},
    reserved = CASE WHEN NOT {IS_AHEAD.format("job.")} THEN job.reserved
        WHEN given.s THEN {NOW} ELSE {NOW} + given.d * {MS} + {_AHEAD} * {US} END
FROM {_GIVEN} (i text, m int8, n int4, d int8, s boolean) WHERE {_LEASED}
RETURNING job._id, {us("job.mature")}""",
    "remove": f"""
DELETE FROM {{table}} AS job USING {_GIVEN} (i text)
WHERE job._id = given.i AND NOT {IS_RESERVED}
RETURNING job._id""",
    "purge": f"""
WITH gone AS (DELETE FROM {{table}} WHERE NOT {IS_RESERVED} RETURNING 1)
SELECT count(*) FROM gone""",
    "reserved": f"""
SELECT job._id, job._pl::text, job.tries, {us("job.mature")}, {us("job.reserved")}, job.mature > {NOW}
FROM {_GIVEN} (i text) JOIN {{table}} AS job ON job._id = given.i WHERE job.reserved IS NOT NULL""",
    "next_mature": f"SELECT {us('mature')} FROM {{table}} ORDER BY mature LIMIT 1",
    # Claims. Reserve up to $4 jobs for $5 ms under a key that is new; the last row only says whether the key is known.
    "claim": f"""
{_CLAIM}
SELECT leased.*, NULL::boolean FROM leased
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, EXISTS (SELECT FROM known)""",
    # The same without reading the jobs: their number, and whether the key is known.
    "claim_unread": f"""
{_CLAIM}
SELECT count(*), EXISTS (SELECT FROM known) FROM leased""",
    # Lease the jobs that a key still has for $4 ms from now; each has its place in the claim.
    "claim_again": f"""
{_EXTENDED}
RETURNING {_JOB}, {us("job.reserved")}, held.place""",
    # The same without reading the jobs.
    "extend_claim": f"""
WITH extended AS ({_EXTENDED} RETURNING 1)
SELECT count(*) FROM extended""",
    # End a key and its jobs. $1 is the queue, $2 the key.
    "ack_claim": f"""
WITH claim AS (DELETE FROM penstock_claims WHERE queue = $1 AND key = $2 RETURNING *),
gone AS (
    DELETE FROM {{table}} AS job USING claim, {_HELD} WHERE {_IS_HELD} RETURNING 1
){counted("commit", "gone")}
SELECT count(*) FROM gone""",
    # End a key, and return its jobs to the queue, ready in $4 ms.
    "nack_claim": f"""
WITH claim AS (DELETE FROM penstock_claims WHERE queue = $2 AND key = $3 RETURNING *),
back AS (
    UPDATE {{table}} AS job SET mature = {NOW} + $4::int8 * {MS}, reserved = NULL FROM claim, {_HELD} WHERE {_IS_HELD}
    RETURNING 1
){counted("rollback", "back")}
SELECT count(*) FROM back""",
    # Unique keys. Store records whose key is free, and those without a key; return the id that each has, or that has
    # its key: $2 records, $3 the channel, $4 the queue. Keys are locked in their order, so that two pushes of the same
    # ones never deadlock. A key that is taken is written as it was: so its row is locked, and its id the present one.
    "push_unique": f"""
WITH given AS MATERIALIZED (
    SELECT row_number() OVER () AS place, * FROM json_to_recordset($2::json) AS given ({_UNIQUE_FIELDS})
), asked AS (
    SELECT DISTINCT ON (k) k, i, f FROM given WHERE k IS NOT NULL ORDER BY k, place
), owners AS (
    INSERT INTO penstock_unique AS held (queue, key, id, keep_ms) SELECT $4, k, i, f FROM asked
    ON CONFLICT (queue, key) DO UPDATE SET
        id = CASE WHEN {_IS_FREE} THEN excluded.id ELSE held.id END,
        keep_ms = CASE WHEN {_IS_FREE} THEN excluded.keep_ms ELSE held.keep_ms END,
        free_at = CASE WHEN {_IS_FREE} THEN NULL ELSE held.free_at END
    RETURNING key, id
), stored AS ({insertion("{table}", _CHOSEN)}){counted("put", "stored")}
SELECT coalesce(id, i), {notified("stored")} FROM given LEFT JOIN owners ON key = k ORDER BY place""",
    # Note the end of jobs that are gone although nobody noted it, of the keys in $2; return the number of keys. $3 is
    # the queue. The id is the one from when the statement began: a key that got another job since is left alone.
    "missed_ends": f"""
WITH seen AS MATERIALIZED (
    SELECT key, id FROM json_to_recordset($2::json) AS given (k text) JOIN penstock_unique ON key = k
    WHERE queue = $3 AND free_at IS NULL
), noted AS (
    UPDATE penstock_unique AS held SET free_at = {NOW} + keep_ms * {MS} FROM seen
    WHERE held.queue = $3 AND held.key = seen.key AND held.id = seen.id AND held.free_at IS NULL
        AND NOT EXISTS (SELECT FROM {{table}} AS job WHERE job._id = seen.id)
    RETURNING 1
)
SELECT count(*) FROM noted""",
}
# $2 and $3 are where the last page ended, $4 is the number of jobs.
_PEEK = f"""
SELECT _id, _pl::text, tries, {us("mature")}, {us("reserved")}, mature > {NOW} FROM {{table}}
WHERE (mature, _id) > ({at_us("$2::int8")}, $3) AND {{where}}
ORDER BY mature, _id LIMIT $4::int8"""
STATES = {
    None: "true",
    JobState.READY: f"mature <= {NOW}",
    JobState.SCHEDULED: f"(mature > {NOW} AND reserved IS NULL)",
    JobState.RESERVED: IS_RESERVED,
}


@dataclass(frozen=True, slots=True)
class Statements:
    """The SQL of one queue."""

    table: str
    push: str
    put_back: str
    pop: str
    reserve: str
    reserve_ahead: str
    release: str
    ack: str
    ack_and_begin: str
    nack: str
    extend: str
    remove: str
    purge: str
    reserved: str
    next_mature: str
    claim: str
    claim_unread: str
    claim_again: str
    extend_claim: str
    ack_claim: str
    nack_claim: str
    push_unique: str
    missed_ends: str

    @classmethod
    def of(cls, queue: str, namespace: str | None) -> "Statements":
        """Return those of a queue; they count in the namespace, if one is given."""
        texts = (for_queue(_TEXTS[field.name], queue, namespace) for field in fields(cls)[1:])
        return cls(quoted(table_of(queue)), *texts)

    def peek(self, state: JobState | None) -> str:
        """Return the statement that reads jobs of a state, or of all states."""
        return _PEEK.replace("{where}", STATES[state]).replace("{table}", self.table)

    def sizes(self, shift_ms: int) -> str:
        """Return the script that counts jobs: the only one that reads a whole table. It takes no values."""
        now = NOW.replace("$1", str(shift_ms))
        return f"""
SET LOCAL enable_seqscan = on;
SELECT count(*), count(*) FILTER (WHERE mature <= {now}),
    count(*) FILTER (WHERE mature > {now} AND reserved IS NULL),
    count(*) FILTER (WHERE mature > {now} AND reserved IS NOT NULL)
FROM {self.table}"""


def move_between(counter: str | None, counts_put: bool) -> str:
    """Return a statement that moves jobs to another table: $2 records, $3 the channel.

    A job that is already there is overwritten: it is the same job. `counter` is the counter of the source, if it
    counts; `counts_put` is whether the target counts.
    """
    given_up = "" if counter is None else counted(counter, "gone", name="given_up")
    put = counted("put", "stored", queue="{to}") if counts_put else ""
    return f"""
WITH gone AS (
    DELETE FROM {{table}} AS job USING {_GIVEN} (o text, m int8, n int4, {_FIELDS})
    WHERE job._id = given.o AND CASE WHEN given.m IS NULL THEN job.reserved IS NULL ELSE {_HOLDS} END
    RETURNING given.o, given.i, given.p, given.u, given.d, given.t
), stored AS (
    INSERT INTO {{target}} (_id, _pl, mature, tries)
    SELECT i, p, {_MATURE}, coalesce(t, 0) FROM gone
    ON CONFLICT (_id) DO UPDATE
    SET _pl = excluded._pl, mature = excluded.mature, tries = excluded.tries, reserved = NULL
    RETURNING mature
){given_up}{put}
SELECT o, {notified("stored")} FROM gone"""


def with_jobs(tables: Iterable[str]) -> str:
    """Return a query for those of the queues $1, $2, ... that have jobs."""
    return " UNION ALL ".join(
        f"SELECT ${number}::text WHERE EXISTS (SELECT FROM {table})" for number, table in enumerate(tables, 1)
    )


TRIGGER = "penstock_ended"
QUEUES_TABLE = "penstock_queues"
DELTAS_TABLE = "penstock_counter_deltas"
CLAIMS_TABLE = "penstock_claims"
UNIQUE_TABLE = "penstock_unique"
VALUES_TABLE = "penstock_values"
FOLD_EVERY = 1000  # statements of a client that count: a fold of that many rows takes a few milliseconds
FOLD_ROWS_MAX = 20_000  # of one fold, which stays short also after many processes that never folded
KEPT_S = 60  # free keys are kept for this time, as the pop that freed one may be undone

# What makes each table, as one transaction. `{schema}` is the schema that it is made in.
CREATION = {
    "penstock_queues": """
CREATE TABLE IF NOT EXISTS penstock_queues (
    namespace text, queue text, options jsonb NOT NULL DEFAULT '{}', paused boolean NOT NULL DEFAULT false,
    PRIMARY KEY (namespace, queue));
CREATE TABLE IF NOT EXISTS penstock_counters (
    namespace text, queue text, counter text, value bigint NOT NULL,
    PRIMARY KEY (namespace, queue, counter)) WITH (fillfactor = 50)""",
    "penstock_counter_deltas": """
CREATE TABLE IF NOT EXISTS penstock_counter_deltas (
    namespace text NOT NULL, queue text NOT NULL, counter text NOT NULL, value bigint NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)""",
    "penstock_values": """
CREATE TABLE IF NOT EXISTS penstock_values (key text PRIMARY KEY, value text NOT NULL, ends timestamptz NOT NULL);
CREATE INDEX IF NOT EXISTS penstock_values_ends ON penstock_values (ends)""",
    "penstock_claims": """
CREATE TABLE IF NOT EXISTS penstock_claims (
    queue text, key text, ids text[] NOT NULL, reserved timestamptz NOT NULL,
    PRIMARY KEY (queue, key))""",
    "penstock_unique": f"""
CREATE TABLE IF NOT EXISTS penstock_unique (
    queue text, key text, id text NOT NULL, keep_ms bigint NOT NULL, free_at timestamptz,
    PRIMARY KEY (queue, key));
CREATE INDEX IF NOT EXISTS penstock_unique_id ON penstock_unique (queue, id);
CREATE INDEX IF NOT EXISTS penstock_unique_free_at ON penstock_unique (free_at) WHERE free_at IS NOT NULL;
CREATE OR REPLACE FUNCTION {TRIGGER}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = {{schema}}, pg_temp AS
$body$
BEGIN
    -- The queue's name follows the prefix of the table's. Tests may have moved the clock of this session.
    UPDATE penstock_unique AS held
    SET free_at = clock_timestamp()
        + (held.keep_ms + coalesce(nullif(current_setting('penstock.shift_ms', true), ''), '0')::int8) * {MS}
    FROM gone WHERE held.queue = substr(TG_TABLE_NAME, 8) AND held.id = gone._id AND held.free_at IS NULL;
    RETURN NULL;
EXCEPTION WHEN undefined_table OR undefined_column THEN
    -- Our table was dropped: jobs can end all the same.
    RETURN NULL;
END
$body$""",
}
# One session at a time creates tables: in PostgreSQL, two that create the same one collide.
CREATION_LOCK = "SELECT pg_advisory_xact_lock(hashtext('penstock'));"
IS_THERE = "SELECT to_regclass($1) IS NOT NULL, quote_ident(current_schema())"
HAS_TRIGGER = f"SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = '{TRIGGER}')"


def trigger(table: str) -> str:
    """Return a script that makes the trigger on a queue's table.

    It gives up soon, as others wait behind it for the table's lock.
    """
    return f"""
SET LOCAL lock_timeout = '2s';
CREATE TRIGGER {TRIGGER} AFTER DELETE ON {table} REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION {TRIGGER}()"""


# Statistics. $1 is the namespace, $2 the queue, or a batch.
COUNT = """
INSERT INTO penstock_counter_deltas (namespace, queue, counter, value)
SELECT $1, q, c, v FROM json_to_recordset($2::json) AS given (q text, c text, v int8)"""
COUNTERS = """
SELECT counter, sum(value)::int8 FROM (
    SELECT counter, value FROM penstock_counters WHERE namespace = $1 AND queue = $2
    UNION ALL SELECT counter, value FROM penstock_counter_deltas WHERE namespace = $1 AND queue = $2
) AS counted GROUP BY counter"""
# One client folds at a time, at most $1 rows.
FOLD = """
WITH turn AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(hashtext('penstock_counter_deltas')) AS is_mine),
gone AS (
    DELETE FROM penstock_counter_deltas WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM penstock_counter_deltas WHERE (SELECT is_mine FROM turn)
        LIMIT $1::int8 FOR UPDATE SKIP LOCKED))
    RETURNING namespace, queue, counter, value
)
INSERT INTO penstock_counters (namespace, queue, counter, value)
SELECT namespace, queue, counter, sum(value)::int8 FROM gone GROUP BY namespace, queue, counter
ON CONFLICT (namespace, queue, counter) DO UPDATE SET value = penstock_counters.value + excluded.value"""
REGISTER = """
INSERT INTO penstock_queues (namespace, queue, options) VALUES ($1, $2, $3::jsonb)
ON CONFLICT (namespace, queue) DO UPDATE SET options = excluded.options WHERE excluded.options <> '{}'"""
OPTIONS = "SELECT options::text FROM penstock_queues WHERE namespace = $1 AND queue = $2"
QUEUES = "SELECT queue FROM penstock_queues WHERE namespace = $1 ORDER BY queue"
PAUSED = "SELECT paused FROM penstock_queues WHERE namespace = $1 AND queue = $2"
SET_PAUSED = """
INSERT INTO penstock_queues (namespace, queue, paused) VALUES ($1, $2, $3::boolean)
ON CONFLICT (namespace, queue) DO UPDATE SET paused = excluded.paused"""

# $1 the queue, $2 records of jobs that are back: their keys are taken again.
RETAKE = """
UPDATE penstock_unique AS held SET free_at = NULL FROM json_to_recordset($2::json) AS given (i text)
WHERE held.queue = $1 AND held.id = given.i"""
# $2 is the maximum number of keys, of all queues.
REMOVE_FREE_KEYS = f"""
DELETE FROM penstock_unique WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM penstock_unique WHERE free_at < {NOW} - interval '{KEPT_S} seconds'
    LIMIT $2::int8 FOR UPDATE SKIP LOCKED))"""


class ScanStart:
    """Where in the index of a queue to begin the scan for ready jobs.

    A job that is taken leaves a dead entry at the beginning of the index on `mature`, which stays until a vacuum; and
    nothing is vacuumed while an old transaction is open anywhere in the database, a dump for example. A scan from the
    beginning reads all of them, every time. So a consumer that takes many jobs remembers the maturity that it has come
    to, and begins there; once a second, and whenever it finds fewer jobs than it wants, it begins at the beginning.

    What it may miss for that second are jobs that became ready before others that are ready, and came later: those of a
    peer with a slow clock, or with a maturity in the past. Those of this process reset it.
    """

    JOBS_MIN = 5000  # taken before it is worth it
    TRUST_S = 1.0

    __slots__ = ("_since", "_taken", "_us")

    def __init__(self) -> None:
        self._taken = 0
        self._us = BEGINNING_US
        self._since = 0.0  # when the last scan from the beginning was

    def begin(self, now: float) -> int:
        """Return where to begin, in microseconds; `now` is a monotonic time in seconds."""
        if self._us == BEGINNING_US or now - self._since >= self.TRUST_S:
            self._us = BEGINNING_US
            self._since = now
        return self._us

    def took(self, matures_us: list[int]) -> None:
        """Jobs were taken: those that are left matured later, but for those that others have reserved."""
        self._taken += len(matures_us)
        if self._taken >= self.JOBS_MIN:
            self._us = max(self._us, min(matures_us, default=BEGINNING_US))

    def reset(self) -> None:
        """A job may have come before it."""
        self._us = BEGINNING_US


# Texts under keys. Some of those whose time is over are removed with each that is put: more than come, in the long run.
PUT_VALUE = """\
WITH over AS (
    SELECT key FROM penstock_values WHERE ends <= clock_timestamp() + $4::int8 * interval '1 ms' AND key <> $1
    LIMIT 10 FOR UPDATE SKIP LOCKED
), removed AS (DELETE FROM penstock_values AS old USING over WHERE old.key = over.key)
INSERT INTO penstock_values (key, value, ends)
VALUES ($1, $2, clock_timestamp() + ($3::int8 + $4::int8) * interval '1 ms')
ON CONFLICT (key) DO UPDATE SET value = excluded.value, ends = excluded.ends"""
# $1 are records, each key once and in the order of the keys, so that two clients never wait for each other's rows.
PUT_VALUES = """\
WITH given AS (SELECT k, v, t FROM json_to_recordset($1::json) AS given (k text, v text, t int8)), over AS (
    SELECT key FROM penstock_values
    WHERE ends <= clock_timestamp() + $2::int8 * interval '1 ms' AND key NOT IN (SELECT k FROM given)
    LIMIT 2000 FOR UPDATE SKIP LOCKED
), removed AS (DELETE FROM penstock_values AS old USING over WHERE old.key = over.key)
INSERT INTO penstock_values (key, value, ends)
SELECT k, v, clock_timestamp() + (t + $2::int8) * interval '1 ms' FROM given
ON CONFLICT (key) DO UPDATE SET value = excluded.value, ends = excluded.ends"""
VALUE = """\
SELECT value FROM penstock_values WHERE key = $1 AND ends > clock_timestamp() + $2::int8 * interval '1 ms'"""
REMOVE_VALUE = "DELETE FROM penstock_values WHERE key = $1"
