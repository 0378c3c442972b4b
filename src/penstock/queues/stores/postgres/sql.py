"""The SQL of a queue.

The table, as Keuss 2.0.4 and later makes it (`names` says how it and its index are called):

| column | type | meaning |
|---|---|---|
| `_id` | varchar(64), primary key | the id, which looks like a UUID |
| `_pl` | jsonb | payload and headers: see `elements` |
| `mature` | timestamptz, not null, now by default, indexed | when it is ready; of a reserved job, when its lease ends |
| `tries` | integer, not null, 0 by default | how often it was delivered: reserve counts, a release takes back |
| `reserved` | timestamptz | when it was reserved; null if it was not, or was given back; after `mature`: see rule 6 |

Rules that hold in all of it:

1. A statement is a transaction, and takes a batch (see `elements`).
2. Now is `statement_timestamp()`, plus what tests add: the server's clock, and in a transaction of the caller's the
   time of the call, not the transaction's beginning, lest a delayed job be early. It is the same for the whole
   statement, so that an index can be used with it.
3. Jobs of one push mature a microsecond after each other, so that they come out in their order: the index on `mature`
   is all that Keuss' layout has. A call has at most 1,000 jobs, so within a millisecond. Where maturities are equal (an
   exact time given to several pushes), the order is that of the table.
4. A lease's token names `mature` and `tries`, and whatever ends or changes a leased job looks for both. Every reserve,
   be it ours or Keuss', writes others.
5. Rows are taken with SKIP LOCKED: consumers never wait for each other. They are looked up again by `ctid`, which can't
   change while they are locked.

6. Counters are written by the statement that does what they count, as rows of `penstock_counter_deltas` (see
   `side_tables`): nobody ever waits for another's counter. The namespace and the queue stand in the text.
7. A lease under which work on the job has not begun has `reserved` after `mature`, which no reserve of Keuss' writes:
   by 1 microsecond, and 1 more for each such lease just before it that ran out. It costs no try when it runs out: the
   next reserve of ours leaves `tries` as it is, and what shows `tries` takes 1 off. When work begins, `reserved` is the
   time.

Every reserve moves a row in the index, so no update is heap-only, and entries that are dead pile up at the index's
beginning until a vacuum: `floors` has what we do about it. Tables that we make are vacuumed more often than others.
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

# How PostgreSQL shall plan. It keeps the plan of a prepared statement, and the one for an empty table, which reads all
# of it, would be ruin for a table of a million rows. There is one good plan for each statement here: by index. What is
# switched off can still be used where nothing else is possible, at estimated costs that would call for JIT.
SETTINGS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}
PREPARE = "SELECT " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in SETTINGS.items())

# $1 is what tests add to the clock, in milliseconds, in all statements but those that need no time.
MS = "interval '1 millisecond'"
US = "interval '1 microsecond'"
NOW = f"(statement_timestamp() + $1::int8 * {MS})"
EPOCH = "timestamptz 'epoch'"

NOW_MS = f"SELECT floor(extract(epoch FROM {NOW}) * 1000)::int8"
NOTIFY = "SELECT pg_notify($1, $2)"

# What is known of a table: its columns with their types, and whether it has the index.
LOOK = """
SELECT array_agg(attname || ' ' || format_type(atttypid, NULL)),
    EXISTS (SELECT FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
            WHERE indrelid = to_regclass($1) AND attname = 'mature' AND indisvalid)
FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""
# Whether a name is that of something else than an index of the table $2.
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


def us(value: str) -> str:
    """A time as microseconds since 1970."""
    return f"(extract(epoch FROM {value}) * 1000000)::int8"


def at_us(value: str) -> str:
    """Microseconds since 1970 as a time."""
    return f"({EPOCH} + {value} * {US})"


def told(rows: str, channel: str = "$3::text") -> str:
    """Sends the signal for rows that got a maturity, if there is a channel. Who selects it makes it happen, once."""
    lowest = f"(SELECT floor(extract(epoch FROM min(mature)) * 1000)::int8::text FROM {rows})"
    return f"(SELECT pg_notify({channel}, {lowest}) WHERE {channel} IS NOT NULL AND EXISTS (SELECT FROM {rows}))"


def counted(counter: str, rows: str, sign: str = "", name: str = "counted", queue: str = "{queue}") -> str:
    """A part of a statement that counts the rows of another part. It is left out where others keep the counters."""
    return f"""{{counting}}, {name} AS (
    INSERT INTO penstock_counter_deltas (namespace, queue, counter, value)
    SELECT {{namespace}}, {queue}, '{counter}', {sign}count(*) FROM {rows} HAVING count(*) > 0
){{/counting}}"""


_COUNTING = re.compile(r"\{counting\}(.*?)\{/counting\}", re.DOTALL)


@lru_cache(1024)
def for_queue(statement: str, queue: str, namespace: str | None, to: str | None = None) -> str:
    """A statement with the names filled in: of a queue, of its target if it moves jobs, of the namespace if it counts.

    In one pass, so that a name which looks like one of the places to fill is left alone.
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
    """What makes a queue's table and its index, as one text: PostgreSQL does all of it, or nothing.

    Vacuum comes after a few thousand ended jobs, however large the table is: a scan of the index's beginning meets all
    that ended since the last one.
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
    """Stores records. Those whose id is there already are left alone: to store twice is to store once."""
    return f"""
    INSERT INTO {table} (_id, _pl, mature, tries)
    SELECT i, p, {_MATURE}, coalesce(t, 0) FROM {rows}
    ON CONFLICT (_id) DO NOTHING
    RETURNING mature
"""


def _taking(counter: str, then: str) -> str:
    """Takes the ready jobs that matured first, from a floor on: $2 is how many, $3 the floor in microseconds."""
    return f"""
WITH picked AS MATERIALIZED (
    SELECT ctid AS place, mature, reserved FROM {{table}}
    WHERE mature >= {at_us("$3::int8")} AND mature <= {NOW}
    ORDER BY mature LIMIT $2::int8 FOR UPDATE SKIP LOCKED
), taken AS ({then}
){counted(counter, "taken")}
SELECT * FROM taken"""


# Whether a lease still holds. Not with `=`: jobs that were reserved together mature together, and PostgreSQL might take
# it into its head to look each of them up among all of those, by the index on `mature`.
_HOLDS = f"job.mature IS NOT DISTINCT FROM {at_us('given.m')} AND job.tries = given.n AND job.reserved IS NOT NULL"
_LEASED = f"job._id = given.i AND {_HOLDS}"
# Whether a lease, also one that ran out, is one under which work has not begun; how many of those there were in a row.
IS_AHEAD = "coalesce({0}reserved > {0}mature, false)"
_AHEAD = f"(CASE WHEN {IS_AHEAD.format('job.')} THEN {us('job.reserved')} - {us('job.mature')} ELSE 0 END)"
COUNTED = f"job.tries + CASE WHEN {IS_AHEAD.format('job.')} THEN 0 ELSE 1 END"
# A job that was just reserved. `unbegun` is null if it doesn't come back from a lease that ran out, else how many
# leases in a row ran out before work began.
_RESERVED = f"""job._id, job._pl::text, job.tries, {us("job.mature")} AS mature, {us("picked.mature")} AS before,
    CASE WHEN picked.reserved IS NULL THEN NULL
         WHEN picked.reserved > picked.mature THEN {us("picked.reserved")} - {us("picked.mature")}
         ELSE 0 END AS unbegun,
    job.reserved <= job.mature AS has_begun"""
# Whether a job is in somebody's hands.
_IS_RESERVED = f"(mature > {NOW} AND reserved IS NOT NULL)"

_TEXTS = {
    # $2 records, $3 the channel, which may be null.
    "push": f"""
WITH stored AS ({insertion("{table}", f"{_GIVEN} ({_FIELDS})")}){counted("put", "stored")}
SELECT {told("stored")}""",
    # $1 records, as they were.
    "put_back": f"""
WITH back AS (
    INSERT INTO {{table}} (_id, _pl, mature, tries)
    SELECT i, p, {at_us("u")}, t FROM json_to_recordset($1::json) AS given (i text, p jsonb, u int8, t int4)
    ON CONFLICT (_id) DO NOTHING
    RETURNING 1
){counted("get", "back", "-")}
SELECT count(*) FROM back""",
    "pop": _taking(
        "get",
        f"""
DELETE FROM {{table}} AS job USING picked WHERE job.ctid = picked.place
RETURNING job._id, job._pl::text, job.tries - {IS_AHEAD.format("job.")}::int AS tries, {us("job.mature")} AS mature""",
    ),
    # $4 is the lease in milliseconds.
    "reserve": _taking(
        "reserve",
        f"""
UPDATE {{table}} AS job
SET tries = {COUNTED}, mature = {NOW} + $4::int8 * {MS}, reserved = {NOW}
FROM picked WHERE job.ctid = picked.place
RETURNING {_RESERVED}""",
    ),
    # $5 is how many of them begin at once.
    "reserve_ahead": _taking(
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
SELECT _id, {told("back")} FROM back""",
    "extend": f"""
UPDATE {{table}} AS job SET mature = {NOW} + given.d * {MS},
    reserved = CASE WHEN NOT {IS_AHEAD.format("job.")} THEN job.reserved
        WHEN given.s THEN {NOW} ELSE {NOW} + given.d * {MS} + {_AHEAD} * {US} END
FROM {_GIVEN} (i text, m int8, n int4, d int8, s boolean) WHERE {_LEASED}
RETURNING job._id, {us("job.mature")}""",
    "remove": f"""
DELETE FROM {{table}} AS job USING {_GIVEN} (i text)
WHERE job._id = given.i AND NOT {_IS_RESERVED}
RETURNING job._id""",
    "purge": f"""
WITH gone AS (DELETE FROM {{table}} WHERE NOT {_IS_RESERVED} RETURNING 1)
SELECT count(*) FROM gone""",
    "reserved": f"""
SELECT job._id, job._pl::text, job.tries, {us("job.mature")}, {us("job.reserved")}, job.mature > {NOW}
FROM {_GIVEN} (i text) JOIN {{table}} AS job ON job._id = given.i WHERE job.reserved IS NOT NULL""",
    "next_mature": f"SELECT {us('mature')} FROM {{table}} ORDER BY mature LIMIT 1",
}
# $2 and $3 are where the last page ended, $4 how many.
_PEEK = f"""
SELECT _id, _pl::text, tries, {us("mature")}, {us("reserved")}, mature > {NOW} FROM {{table}}
WHERE (mature, _id) > ({at_us("$2::int8")}, $3) AND {{where}}
ORDER BY mature, _id LIMIT $4::int8"""
_STATES = {
    None: "true",
    JobState.READY: f"mature <= {NOW}",
    JobState.SCHEDULED: f"mature > {NOW} AND reserved IS NULL",
    JobState.RESERVED: _IS_RESERVED,
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

    @classmethod
    def of(cls, queue: str, namespace: str | None) -> "Statements":
        """Those of a queue; they count in the namespace, if one is given."""
        texts = (for_queue(_TEXTS[field.name], queue, namespace) for field in fields(cls)[1:])
        return cls(quoted(table_of(queue)), *texts)

    def peek_at(self, state: JobState | None) -> str:
        """A look at jobs of a state, or of all."""
        return _PEEK.replace("{where}", _STATES[state]).replace("{table}", self.table)

    def sizes(self, shift_ms: int) -> str:
        """Counts. The one statement that reads a whole table, so that is allowed for it; it takes no values."""
        now = NOW.replace("$1", str(shift_ms))
        return f"""
SET LOCAL enable_seqscan = on;
SELECT count(*), count(*) FILTER (WHERE mature <= {now}),
    count(*) FILTER (WHERE mature > {now} AND reserved IS NULL),
    count(*) FILTER (WHERE mature > {now} AND reserved IS NOT NULL)
FROM {self.table}"""


def moving(counter: str | None, counts_put: bool) -> str:
    """Takes jobs out of a table and puts what they become into another: $2 records, $3 the channel.

    A job that is already at its target is written over: it is the same job. `counter` is that of the source, if it
    counts; `counts_put` is whether the target does.
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
SELECT o, {told("stored")} FROM gone"""


def with_jobs(tables: Iterable[str]) -> str:
    """Which of these queues have jobs: $1, $2 and so on are their names."""
    return " UNION ALL ".join(
        f"SELECT ${number}::text WHERE EXISTS (SELECT FROM {table})" for number, table in enumerate(tables, 1)
    )
