"""What is ours alone in a database, which no Node peer reads: unique keys, claims, counters and pauses.

| table | columns | what for |
|---|---|---|
| `penstock_queues` | namespace, queue (key); options jsonb; paused boolean | which queues there are, and their pauses |
| `penstock_counters` | namespace, queue, counter (key); value bigint | Keuss' counters, as they were folded last |
| `penstock_counter_deltas` | namespace, queue, counter, value (no key) | what was counted since |
| `penstock_claims` | queue, key (key); ids text[]; reserved timestamptz | the jobs leased under a key |
| `penstock_unique` | queue, key (key); id text; keep_ms bigint; free_at timestamptz | which job has a unique key |

Indexes of `penstock_unique`: on (queue, id), for the jobs' ends, and on free_at, for tidying up. A key is taken while
`free_at` is null, which is while its job is there, and until `free_at`, which is `keep_ms` after the job's end.

That end is written by the trigger `penstock_ended` on the queue's table, with its function of the same name: so it is
exact whoever ends the job, Keuss included. It is made when a queue gets its first unique key, and asks for the right to
make triggers on the table (its owner has it). Without the trigger, a job's end counts from when somebody first asks
for its key again.

A counter is the sum of its row in `penstock_counters` and of its rows in `penstock_counter_deltas`. Statements only
insert into the latter, so nobody waits for another's counter, also not for a transaction that a caller keeps open; what
is rolled back was not counted. Now and then one client folds: it takes the rows out and adds them up, in one statement,
so that a counter never changes by it.

Tables are made in the first schema of the search path, when they are first needed.
"""

from penstock.queues.stores.postgres.sql import COUNTED, MS, NOW, counted, insertion, told, us

TRIGGER = "penstock_ended"
DELTAS = "penstock_counter_deltas"
FOLD_EVERY = 1000  # statements of a client that count: a fold of that many rows takes a few milliseconds
FOLD_ROWS_MAX = 20_000  # of one fold, so that it stays short after many processes that never folded
KEPT_S = 60  # keys that are free stay for so long, lest one be missed by a pop that is undone

# What is made for each part, as one transaction. `{schema}` is the schema that it is made in.
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
    -- The queue's name is the table's, behind its beginning. Tests may have moved the clock of this connection.
    UPDATE penstock_unique AS held
    SET free_at = clock_timestamp()
        + (held.keep_ms + coalesce(nullif(current_setting('penstock.shift_ms', true), ''), '0')::int8) * {MS}
    FROM gone WHERE held.queue = substr(TG_TABLE_NAME, 8) AND held.id = gone._id AND held.free_at IS NULL;
    RETURN NULL;
EXCEPTION WHEN undefined_table OR undefined_column THEN
    -- Somebody took our table away: no reason to keep jobs from ending.
    RETURN NULL;
END
$body$""",
}
# Only one may make things at a time: PostgreSQL stumbles over two that make the same.
LOCK = "SELECT pg_advisory_xact_lock(hashtext('penstock'));"
IS_THERE = "SELECT to_regclass($1) IS NOT NULL, quote_ident(current_schema())"
HAS_TRIGGER = f"SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = '{TRIGGER}')"
SHIFT = "SELECT set_config('penstock.shift_ms', $1, false)"


def trigger(table: str) -> str:
    """What makes the trigger on a queue's table. Who waits for the table's lock holds up its users, so not for long."""
    return f"""
SET LOCAL lock_timeout = '2s';
CREATE TRIGGER {TRIGGER} AFTER DELETE ON {table} REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION {TRIGGER}()"""


# Counters and pauses. $1 is the namespace, $2 the queue, or a batch.
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


# Unique keys. $4 is the queue.
_IS_FREE = f"held.free_at <= {NOW}"
_UNIQUE_FIELDS = "i text, p jsonb, u int8, d int8, t int4, k text, f int8"


def _unique_push() -> str:
    """Stores records whose key is free, and those without a key; gives the id that each has, or that has its key.

    $2 records, $3 the channel. Keys are gone through in their order, so that two that push the same ones never wait for
    each other in a circle. A key that is taken is written as it was: so its row is locked, and its id the present one.
    """
    chosen = (
        "(SELECT given.* FROM given LEFT JOIN owners ON key = k WHERE k IS NULL OR id = i ORDER BY place) AS chosen"
    )
    return f"""
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
), stored AS ({insertion("{table}", chosen)}){counted("put", "stored")}
SELECT coalesce(id, i), {told("stored")} FROM given LEFT JOIN owners ON key = k ORDER BY place"""


UNIQUE_PUSH = _unique_push()


def missed_ends(table: str) -> str:
    """Notes the end of jobs that are gone although nobody noted it, of the keys that $2 names; gives how many keys.

    The id is looked for as it was when the statement began: a key that got another job meanwhile is left alone.
    """
    return f"""
WITH seen AS MATERIALIZED (
    SELECT key, id FROM json_to_recordset($2::json) AS given (k text) JOIN penstock_unique ON key = k
    WHERE queue = $3 AND free_at IS NULL
), noted AS (
    UPDATE penstock_unique AS held SET free_at = {NOW} + keep_ms * {MS} FROM seen
    WHERE held.queue = $3 AND held.key = seen.key AND held.id = seen.id AND held.free_at IS NULL
        AND NOT EXISTS (SELECT FROM {table} AS job WHERE job._id = seen.id)
    RETURNING 1
)
SELECT count(*) FROM noted"""


# $1 the queue, $2 records of jobs that are back: their keys are taken again.
RETAKE = """
UPDATE penstock_unique AS held SET free_at = NULL FROM json_to_recordset($2::json) AS given (i text)
WHERE held.queue = $1 AND held.id = given.i"""
# $2 is how many keys to forget at most, of all queues.
TIDY = f"""
DELETE FROM penstock_unique WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM penstock_unique WHERE free_at < {NOW} - interval '{KEPT_S} seconds'
    LIMIT $2::int8 FOR UPDATE SKIP LOCKED))"""


# Claims. $2 is the queue, $3 the key. A job is under the key while it has the time of reservation that it got with it:
# every other reserve has another, and what gives it back takes it away. Its lease may be made longer.
_JOB = f"job._id, job._pl::text, job.tries, {us('job.mature')} AS until"
_HELD = "unnest(claim.ids) WITH ORDINALITY AS held (id, place)"
_IS_HELD = "job._id = held.id AND job.reserved = claim.reserved"


# Reserves up to $4 jobs for $5 ms under a key that is new; the last row only tells whether the key is known.
CLAIM = f"""
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
){counted("reserve", "leased")}
SELECT leased.*, NULL::boolean FROM leased
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, EXISTS (SELECT FROM known)"""
# Leases the jobs that a key still has for $4 ms from now; gives them, each with its place.
CLAIM_AGAIN = f"""
UPDATE {{table}} AS job SET mature = {NOW} + $4::int8 * {MS}
FROM penstock_claims AS claim, {_HELD} WHERE claim.queue = $2 AND claim.key = $3 AND {_IS_HELD}
RETURNING {_JOB}, {us("job.reserved")}, held.place"""
# Ends a key and its jobs; gives how many. $1 is the queue, $2 the key.
ACK_CLAIM = f"""
WITH claim AS (DELETE FROM penstock_claims WHERE queue = $1 AND key = $2 RETURNING *),
gone AS (
    DELETE FROM {{table}} AS job USING claim, {_HELD} WHERE {_IS_HELD} RETURNING 1
){counted("commit", "gone")}
SELECT count(*) FROM gone"""
# Ends a key and gives its jobs back, ready in $4 ms; gives how many.
NACK_CLAIM = f"""
WITH claim AS (DELETE FROM penstock_claims WHERE queue = $2 AND key = $3 RETURNING *),
back AS (
    UPDATE {{table}} AS job SET mature = {NOW} + $4::int8 * {MS}, reserved = NULL FROM claim, {_HELD} WHERE {_IS_HELD}
    RETURNING 1
){counted("rollback", "back")}
SELECT count(*) FROM back"""
