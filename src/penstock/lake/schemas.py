"""The columns of the lake's tables: Spark's schemas, Delta's and the documentation are made of them.

Columns are only ever added. A table that lacks a column of this version gets it when it is next written to, with nulls
in the rows that are there; one with columns that this version doesn't know is refused (`table`).
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

UNKNOWN = "unknown"  # the partition of jobs whose creation is not known

ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
}


class Column(NamedTuple):
    """A column, its type in Spark SQL, and what it holds."""

    name: str
    type: str
    meaning: str


class TableSchema(NamedTuple):
    """A table: its partition column comes last."""

    name: str
    grain: str
    partition: str
    columns: tuple[Column, ...]

    def spark(self) -> str:
        """Return the schema as Spark reads it."""
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)

    def arrow(self) -> pa.Schema:
        """Return the schema as Delta and pyarrow read it."""
        return pa.schema([pa.field(column.name, ARROW[column.type]) for column in self.columns])

    @property
    def names(self) -> list[str]:
        """Return the names of the columns, in order."""
        return [column.name for column in self.columns]


def _columns(text: str) -> tuple[Column, ...]:
    rows = (line.split(None, 2) for line in text.strip().splitlines())
    return tuple(Column(name, kind, meaning) for name, kind, meaning in rows)


EVENT_COLUMNS = _columns("""
    writer    string     what wrote the event: a node, a store of a process, a worker
    epoch     bigint     which start of the writer
    seq       bigint     number of the event within the epoch, from 1, without gaps
    at        timestamp  when it happened
    created   timestamp  when its job was created; null if unknown
    job       string     id of the job; null for events of a writer or a queue
    queue     string     queue of the job
    kind      string     what happened
    attempt   int        number of the delivery, from 1; 0 if it is not known, or before the first
    node      string     where it happened
    worker    string     which worker had the job
    error     string     error that the worker reported
    size      bigint     bytes of the body; of `sample`, jobs in the queue; of `lost`, events
    to_queue  string     queue that the job went to
    until     timestamp  what it waits for: the end of a lease, or the time at which it becomes ready
""")

EVENTS = TableSchema(
    "events",
    "one row for each event",
    "day",
    (*EVENT_COLUMNS, Column("day", "string", "day on which the job was created, in UTC; `unknown` if it is not known")),
)

_HOUR = Column(
    "hour", "string", "hour in which the job was created, in UTC: 2026-11-18T20; `unknown` if it is not known"
)

JOBS = TableSchema(
    "jobs",
    "one row for each job",
    "hour",
    (
        *_columns("""
    job          string     id
    queue        string     queue that it was added to
    queue_now    string     queue that it was moved to last
    created      timestamp  when it was created
    added        timestamp  when it was added
    first_start  timestamp  when a worker first reserved it
    ended        timestamp  when it ended; null if it has not
    outcome      string     acked, expired, failed, removed or gone if it has ended; else waiting or running
    attempts     int        number of deliveries
    wait_ms      bigint     from added to first_start
    run_ms       bigint     sum over its attempts
    retry_ms     bigint     between the end of one attempt and the start of the next one, in sum
    last_worker  string     worker of the last attempt
    last_error   string     last error that a worker reported
    size         bigint     bytes of the body
    last_event   timestamp  when something last happened to it
    last_kind    string     what that was
    events       int        number of events
"""),
        _HOUR,
    ),
)

ATTEMPTS = TableSchema(
    "attempts",
    "one row for each delivery of a job",
    "hour",
    (
        *_columns("""
    job      string     id of the job
    round    int        how often it was moved or redriven before: attempts count from 1 each time
    queue    string     queue that it was taken from
    attempt  int        number of the delivery, from 1
    ready    timestamp  when the job became ready for it
    started  timestamp  when a worker reserved it
    ended    timestamp  when the attempt ended; null if it has not
    outcome  string     as the event that ended it (requeued: the lease was lost); gone if none tells; else running
    wait_ms  bigint     from ready to started
    run_ms   bigint     from started to ended
    worker   string     worker that had it
    node     string     where it was reserved
    error    string     error that the worker reported
"""),
        _HOUR,
    ),
)

METRIC_PARTS = TableSchema(
    "metric_parts",
    "queue, minute and hour of creation: additive, and merged by the view `metrics`",
    "hour",
    (
        *_columns("""
    queue        string     queue
    minute       timestamp  beginning of the minute
    added        bigint     jobs added, imported or redriven
    started      bigint     deliveries
    acked        bigint     jobs acknowledged
    retried      bigint     deliveries that a nack or a lost lease ended
    failed       bigint     jobs that went to the dead letters
    expired      bigint     jobs that expired
    depth_change bigint     jobs that came to wait, less those that stopped waiting
    sample       bigint     size of the queue as its store counted it; null without a sample
    wait_ms_max  bigint     longest wait of a delivery that started
    wait_sketch  binary     sketch of the waits of deliveries that started, in ms (KLL, k = 1000)
    run_sketch   binary     sketch of the run times of deliveries that ended, in ms (KLL, k = 1000)
    minutes      bigint     minutes that the row stands for: 1, or 60 where `lake vacuum` has put an hour together
"""),
        _HOUR,
    ),
)

WORKER_PARTS = TableSchema(
    "worker_parts",
    "worker, hour and hour of creation: additive, and merged by the view `workers`",
    "hour",
    (
        *_columns("""
    worker     string     worker
    worked     timestamp  beginning of the hour in which it worked
    busy_ms    bigint     time in which it had jobs, summed over jobs that ran at once
    jobs       bigint     deliveries that began
    acked      bigint     deliveries that ended with an ack
    failures   bigint     deliveries that ended otherwise
"""),
        _HOUR,
    ),
)

CHECKS = TableSchema(
    "checks",
    "one row for each check of each run: after a build, and by `penstock lake check`",
    "day",
    _columns("""
    at              timestamp  when the run was made
    name            string     what was checked
    ok              boolean    whether it passed
    found           bigint     rows, events or jobs that should not be there
    events_version  bigint     version of `events` that was checked
    day             string     day of the run, in UTC
"""),
)

FOLDED = (JOBS, ATTEMPTS, METRIC_PARTS, WORKER_PARTS)
TABLES = (EVENTS, *FOLDED, CHECKS)
