"""From `events` to the other tables: functions of DataFrames, in the order in which they need each other.

    events -> in_order -> attempts -> jobs
                      \\----------\\--> metric_parts
                                  \\-> worker_parts

Each gives all rows of the jobs that it gets, so that the partition of an hour of creation is replaced as a whole. None
knows a clock, a file or a state: the same events give the same rows, in whatever order and however often they come.
What kinds of events mean is in `life`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from penstock.lake.life import ADDING, BEGINNING, ENDED, ENDING, LIFE, RANKS, READY, RUNNING, WAITING
from penstock.lake.schemas import ATTEMPTS, JOBS, METRIC_PARTS, UNKNOWN, WORKER_PARTS

SKETCH_K = 1000  # with 200, which is the default, p99 is wrong by up to a quarter
ATTEMPT_HOURS_MAX = 24 * 32  # of one attempt in worker_parts: no lease is longer than 30 days
_ORDER = ("at", "rank", "attempt", "writer", "epoch", "seq")


def hour_of(time: Column) -> Column:
    """Return the hour of a time as partitions have it, in the zone of the session, which is UTC."""
    return f.coalesce(f.date_format(time, "yyyy-MM-dd'T'HH"), f.lit(UNKNOWN))


def ms_between(start: Column, end: Column) -> Column:
    """Return a time in milliseconds; null if it has no start or no end."""
    return f.floor((f.unix_micros(end) - f.unix_micros(start)) / 1000)


def _lookup(values: dict[str, object], key: Column) -> Column:
    return f.coalesce(*(f.when(key == kind, f.lit(value)) for kind, value in values.items()))


def distinct(events: DataFrame) -> DataFrame:
    """Return each event once. A segment that was copied to another name has the same events."""
    return events.dropDuplicates(["writer", "epoch", "seq"])


def in_order(events: DataFrame) -> DataFrame:
    """Return the events of jobs with what their order tells.

    round      how often the job was moved or redriven before: its attempts count from 1 each time
    delivery   the attempt that the event belongs to; 0 before the first
    ready      when the job was ready before this event
    waited     1 if it waited before this event, else 0
    waits      1 if it waits after it, else 0
    is_again   whether another event has ended its delivery before

    A node says `acked` of a delivery whose worker gave the job up, since the job leaves its queue. The worker's
    `failed` says why, so that ack is left out. So is a `gone` of a job that had ended before.
    """
    rows = events.where(f.col("job").isNotNull()).withColumns(
        {
            "rank": f.coalesce(_lookup(dict(RANKS), f.col("kind")), f.lit(len(RANKS))),
            # `redriven` names the dead letters as its queue; what it changes is the queue that the job comes to.
            "queue": f.when(f.col("kind") == "redriven", f.coalesce("to_queue", "queue")).otherwise(f.col("queue")),
        }
    )
    # One shuffle and one sort do for all that follows, so the windows are of this order, and `round` is not in them.
    order = Window.partitionBy("job").orderBy(*_ORDER)
    key = f.struct("writer", "epoch", "seq")
    rows = rows.withColumn("copy_of", f.lag(key).over(order)).where(~f.col("copy_of").eqNullSafe(key)).drop("copy_of")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    kind = f.col("kind")
    begun = f.coalesce(f.sum(kind.isin(*BEGINNING).cast("int")).over(before), f.lit(0)).cast("int")
    rows = rows.withColumns(
        {
            # A redriven job begins with that event; a moved one ends with it in its old queue.
            "round": begun + f.when(kind == "redriven", 1).otherwise(0),
            "reserves": f.sum((kind == "reserved").cast("int")).over(so_far),
            "had_ended": f.coalesce(f.last(_has_ended(kind), ignorenulls=True).over(before), f.lit(False)),
        }
    )
    given = f.last(f.when(f.col("attempt") > 0, f.struct("round", "attempt")), ignorenulls=True).over(so_far)
    first_of_round = f.coalesce(f.lag("round").over(order) != f.col("round"), f.lit(True))
    others = f.col("reserves") - (kind == "reserved").cast("int")  # before this event
    rows = rows.withColumns(
        {"given": given, "others": f.last(f.when(first_of_round, others), ignorenulls=True).over(so_far)}
    )
    counted = f.col("reserves") - f.col("others")
    last_given = f.when(f.col("given.round") == f.col("round"), f.col("given.attempt"))
    # Deliveries without a number (attempt 0) are counted here.
    delivery = f.when(f.col("attempt") > 0, f.col("attempt")).otherwise(
        f.greatest(f.coalesce(last_given, f.lit(0)), counted)
    )
    rows = rows.withColumn("delivery", delivery.cast("int"))
    end = f.struct("round", "delivery")
    job = Window.partitionBy("job")
    rows = rows.withColumns(
        {
            "created": f.min("created").over(job),
            "given_up": f.collect_set(f.when(kind == "failed", end)).over(job),
        }
    )
    rows = rows.where((kind != "acked") | ~f.array_contains("given_up", end)).where(
        (kind != "gone") | ~f.col("had_ended")
    )
    rows = rows.drop("given_up", "had_ended")
    waits = _lookup({name: int(row.after == WAITING) for name, row in LIFE.items() if row.after}, kind)
    return rows.withColumns(
        {
            "hour": hour_of(f.col("created")),
            "ready": f.last(f.when(kind.isin(*READY), f.greatest("at", "until")), ignorenulls=True).over(before),
            "waits": f.coalesce(f.last(waits, ignorenulls=True).over(so_far), f.lit(0)),
            "waited": f.coalesce(f.last(waits, ignorenulls=True).over(before), f.lit(0)),
            "is_again": f.coalesce(
                f.last(f.when(kind.isin(*ENDING), end), ignorenulls=True).over(before) == end, f.lit(False)
            ),
        }
    ).drop("reserves", "given", "others")


def _has_ended(kind: Column) -> Column:
    """Return whether a job has ended with an event; null if that changes nothing."""
    return _lookup({name: row.after in ENDED for name, row in LIFE.items() if row.after}, kind)


def _first(value: str, where: Column, *order: str) -> Column:
    """Return an aggregate: the value of the first row, in order, that meets a condition."""
    return f.min(f.when(where, f.struct(*(order or _ORDER), f.col(value).alias("value"))))["value"]


def _last(value: str, where: Column) -> Column:
    return f.max(f.when(where, f.struct(*_ORDER, f.col(value).alias("value"))))["value"]


def attempts(ordered: DataFrame) -> DataFrame:
    """Return one row for each delivery."""
    kind, reserved = f.col("kind"), f.col("kind") == "reserved"
    ends = ordered.where(f.col("delivery") > 0).withColumn("not_acked", (kind != "acked").cast("int"))
    rows = ends.groupBy("job", "round", f.col("delivery").alias("number")).agg(
        f.min("hour").alias("hour"),
        f.coalesce(_first("queue", reserved), _first("queue", f.lit(True))).alias("queue"),
        _first("ready", reserved).alias("ready"),
        f.coalesce(f.min(f.when(kind == "begun", f.col("at"))), f.min(f.when(reserved, f.col("at")))).alias("started"),
        _first("at", kind.isin(*ENDING), "not_acked", *_ORDER).alias("ended"),
        _first("kind", kind.isin(*ENDING), "not_acked", *_ORDER).alias("outcome"),
        _last("worker", f.col("worker").isNotNull()).alias("worker"),
        _first("node", reserved).alias("node"),
        _last("error", f.col("error").isNotNull()).alias("error"),
        f.max(kind == "gone").alias("is_gone"),
    )
    following = Window.partitionBy("job").orderBy("round", "number")
    # A worker that was killed says nothing; the next delivery shows that its lease was lost.
    inferred = f.when(f.lead("number").over(following).isNotNull(), f.lit("requeued")).otherwise(
        f.when(f.col("is_gone"), f.lit("gone")).otherwise(f.lit(RUNNING))
    )
    rows = rows.withColumns({"outcome": f.coalesce("outcome", inferred), "attempt": f.col("number")})
    rows = rows.withColumns(
        {
            "wait_ms": ms_between(f.col("ready"), f.col("started")),
            "run_ms": ms_between(f.col("started"), f.col("ended")),
        }
    )
    return rows.select(*ATTEMPTS.names)


def jobs(ordered: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return one row for each job."""
    kind = f.col("kind")
    states = {name: row.after for name, row in LIFE.items() if row.after}
    is_state = kind.isin(*states)
    rows = ordered.withColumn("target", f.coalesce("to_queue", "queue"))
    facts = rows.groupBy("job").agg(
        f.min("hour").alias("hour"),
        _first("queue", f.col("queue").isNotNull()).alias("queue"),
        _last("target", kind.isin(*BEGINNING, *ADDING)).alias("queue_now"),
        f.min("created").alias("created"),
        f.min(f.when(kind.isin(*ADDING), f.col("at"))).alias("added"),
        f.min(f.when(kind == "acked", f.col("at"))).alias("acked"),
        _last("kind", is_state).alias("state"),
        _last("at", is_state).alias("state_at"),
        f.max(f.when(kind.isin(*ADDING), f.col("size"))).alias("size"),
        _last("at", f.lit(True)).alias("last_event"),
        _last("kind", f.lit(True)).alias("last_kind"),
        _last("error", f.col("error").isNotNull()).alias("last_error"),
        f.count(f.lit(1)).cast("int").alias("events"),
    )
    state = f.coalesce(_lookup(dict(states), f.col("state")), f.lit(WAITING))
    outcome = f.when(f.col("acked").isNotNull(), f.lit("acked")).otherwise(state)
    ended = f.coalesce("acked", f.when(state.isin(*ENDED), f.col("state_at")))
    return (
        facts.join(_work(deliveries), "job", "left")
        .withColumns(
            {
                "outcome": outcome,
                "ended": ended,
                "queue_now": f.coalesce("queue_now", "queue"),
                "attempts": f.coalesce("attempts", f.lit(0)),
                "wait_ms": ms_between(f.col("added"), f.col("first_start")),
            }
        )
        .select(*JOBS.names)
    )


def _work(deliveries: DataFrame) -> DataFrame:
    """Return what the deliveries of each job add up to."""
    before = Window.partitionBy("job").orderBy("round", "attempt")
    pause = ms_between(f.lag("ended").over(before), f.col("started"))
    return (
        deliveries.withColumn("pause_ms", pause)
        .groupBy("job")
        .agg(
            f.min("started").alias("first_start"),
            f.count(f.lit(1)).cast("int").alias("attempts"),
            f.sum("run_ms").alias("run_ms"),
            f.sum("pause_ms").alias("retry_ms"),
            f.max(f.struct("round", "attempt", "worker"))["worker"].alias("last_worker"),
        )
    )


# Hours whose events were dropped for their age: what comes late for their jobs is added to the rows that are there.


def attempts_with(old: DataFrame, new: DataFrame) -> DataFrame:
    """Return the deliveries of two times, each once. Given the same `new` again, the rows stay the same."""
    keys = ["job", "round", "attempt"]
    both = old.alias("old").join(new.alias("new"), keys, "full")

    def either(name: str) -> Column:
        return f.coalesce(f"new.{name}", f"old.{name}").alias(name)

    ended = f.coalesce("new.ended", "old.ended")
    started = f.least("new.started", "old.started")
    outcome = f.when(f.col("new.ended").isNotNull(), f.col("new.outcome")).otherwise(
        f.coalesce(f.when(f.col("old.ended").isNotNull(), f.col("old.outcome")), "new.outcome", "old.outcome")
    )
    ready = f.coalesce("old.ready", "new.ready")
    columns = {
        "queue": f.coalesce("old.queue", "new.queue"),
        "ready": ready,
        "started": started,
        "ended": ended,
        "outcome": outcome,
        "wait_ms": ms_between(ready, started),
        "run_ms": ms_between(started, ended),
        "hour": f.coalesce("old.hour", "new.hour"),
    }
    names = [name for name in ATTEMPTS.names if name not in keys]
    return both.select(
        *keys, *(columns[name].alias(name) if name in columns else either(name) for name in names)
    ).select(*ATTEMPTS.names)


def jobs_with(old: DataFrame, new: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return the jobs of two times, each once; `deliveries` are all of theirs. Likewise the same when done again."""
    states = [name for name, row in LIFE.items() if row.after]
    both = old.alias("old").join(new.alias("new"), "job", "full")
    is_later = f.col("old.last_event").isNull() | (
        (f.col("new.last_event") >= f.col("old.last_event")) & f.col("new.last_kind").isin(*states)
    )
    is_new = f.col("new.last_event").isNotNull() & is_later
    was_acked = f.coalesce(f.col("old.outcome") == "acked", f.lit(False))

    def latest(name: str) -> Column:
        return f.when(is_new, f.col(f"new.{name}")).otherwise(f.col(f"old.{name}"))

    columns = {
        "queue": f.coalesce("old.queue", "new.queue"),
        "queue_now": f.coalesce(latest("queue_now"), "old.queue_now"),
        "created": f.least("old.created", "new.created"),
        "added": f.least("old.added", "new.added"),
        "ended": f.when(was_acked, f.col("old.ended")).otherwise(latest("ended")),
        "outcome": f.when(was_acked, f.lit("acked")).otherwise(latest("outcome")),
        "last_error": f.coalesce("new.last_error", "old.last_error"),
        "size": f.coalesce("old.size", "new.size"),
        "last_event": f.greatest("old.last_event", "new.last_event"),
        "last_kind": latest("last_kind"),
        "events": f.greatest("old.events", "new.events"),
        "hour": f.coalesce("old.hour", "new.hour"),
    }
    return (
        both.select("job", *(column.alias(name) for name, column in columns.items()))
        .join(_work(deliveries), "job", "left")
        .withColumns(
            {
                "attempts": f.coalesce("attempts", f.lit(0)),
                "wait_ms": ms_between(f.col("added"), f.col("first_start")),
            }
        )
        .select(*JOBS.names)
    )


_COUNTED = {
    "added": ("added", "imported", "redriven"),
    "acked": ("acked",),
    "retried": ("nacked", "requeued"),
    "failed": ("failed",),
    "expired": ("expired",),
}


def metric_parts(ordered: DataFrame, deliveries: DataFrame, samples: DataFrame) -> DataFrame:
    """Return counts and sketches for each queue and minute."""

    def rows(source: DataFrame, time: Column, **values: Column) -> DataFrame:
        columns = {name: values.get(name, f.lit(None)).cast("bigint") for name in names}
        return source.select(
            "queue",
            "hour",
            f.date_trunc("minute", time).alias("minute"),
            *(column.alias(name) for name, column in columns.items()),
        )

    names = [*_COUNTED, "started", "depth_change", "wait_ms", "run_ms", "sample", "sampled"]
    kind = f.col("kind")
    changed = f.col("waits") - f.col("waited")
    moved = kind == "moved"
    when = f.when(f.col("waits") == 1, f.greatest("at", "until")).otherwise(f.col("at"))
    # Most changes of the depth are in the minute of the event, and need no row of their own.
    is_later = (f.col("waits") == 1) & (f.date_trunc("minute", when) > f.date_trunc("minute", "at"))
    counts = {name: kind.isin(*kinds).cast("int") for name, kinds in _COUNTED.items()}
    # A node and the worker both say `nacked` of one delivery: the worker has the error.
    counts["retried"] = f.when(f.col("is_again"), 0).otherwise(counts["retried"])
    counted = rows(ordered, f.col("at"), **counts, depth_change=f.when(~moved & ~is_later, changed))
    depth = rows(ordered.where(~moved & (changed != 0) & is_later), when, depth_change=changed)
    left = rows(ordered.where(moved & (f.col("waited") == 1)), f.col("at"), depth_change=f.lit(-1))
    arrived = rows(
        ordered.where(moved & f.col("to_queue").isNotNull()).withColumn("queue", f.col("to_queue")),
        when,
        depth_change=f.lit(1),
    )
    begun = rows(
        deliveries.where(f.col("started").isNotNull()), f.col("started"), started=f.lit(1), wait_ms=f.col("wait_ms")
    )
    ran = rows(deliveries.where(f.col("run_ms").isNotNull()), f.col("ended"), run_ms=f.col("run_ms"))
    sizes = rows(
        distinct(samples.where((kind == "sample") & f.col("queue").isNotNull())).withColumn(
            "hour", hour_of(f.col("at"))
        ),
        f.col("at"),
        sample=f.col("size"),
        sampled=f.unix_micros("at"),
    )
    united = counted
    for more in (depth, left, arrived, begun, ran, sizes):
        united = united.unionByName(more)

    def total(name: str) -> Column:
        return f.coalesce(f.sum(name), f.lit(0)).alias(name)

    def sketch(name: str) -> Column:
        # `greatest` would make a zero of a null.
        values = f.when(f.col(name).isNotNull(), f.greatest(f.col(name), f.lit(0)))
        return f.kll_sketch_agg_bigint(values, f.lit(SKETCH_K))

    merged = (
        united.where(f.col("queue").isNotNull())
        .groupBy("queue", "minute", "hour")
        .agg(
            *(total(name) for name in (*_COUNTED, "started", "depth_change")),
            f.max(f.struct("sampled", "sample"))["sample"].alias("sample"),
            f.max("wait_ms").alias("wait_ms_max"),
            f.when(f.count("wait_ms") > 0, sketch("wait_ms")).alias("wait_sketch"),
            f.when(f.count("run_ms") > 0, sketch("run_ms")).alias("run_sketch"),
        )
        .withColumn("minutes", f.lit(1).cast("bigint"))
    )
    return merged.select(*METRIC_PARTS.names)


def by_hour(parts: DataFrame, before: Column) -> DataFrame:
    """Return the rows of `metric_parts`, with those of minutes before a time put together by hour.

    The sketches of an hour are merged: 60 of them become one.
    """
    is_old = f.col("minute") < before
    start = f.when(is_old, f.date_trunc("hour", "minute")).otherwise(f.col("minute"))
    minutes = f.when(is_old, f.lit(60)).otherwise(f.coalesce("minutes", f.lit(1)))
    rows = parts.withColumns({"start": start, "minutes": minutes.cast("bigint"), "sampled": f.col("minute")})
    return (
        rows.groupBy("queue", "start", "minutes", "hour")
        .agg(
            *(f.sum(name).alias(name) for name in (*_COUNTED, "started", "depth_change")),
            f.max(f.when(f.col("sample").isNotNull(), f.struct("sampled", "sample")))["sample"].alias("sample"),
            f.max("wait_ms_max").alias("wait_ms_max"),
            *(
                f.when(f.count(name) > 0, f.kll_merge_agg_bigint(name, f.lit(SKETCH_K))).alias(name)
                for name in ("wait_sketch", "run_sketch")
            ),
        )
        .withColumnRenamed("start", "minute")
        .select(*METRIC_PARTS.names)
    )


def worker_parts(deliveries: DataFrame) -> DataFrame:
    """Return what each worker did in each hour. An attempt that is longer than an hour counts in each of them."""
    rows = deliveries.where(f.col("worker").isNotNull() & f.col("started").isNotNull())
    first = f.date_trunc("hour", f.col("started"))
    latest = f.least("ended", first + f.expr(f"interval {ATTEMPT_HOURS_MAX} hours"))
    last = f.when(f.col("ended") >= f.col("started"), f.date_trunc("hour", latest))
    rows = rows.withColumn("worked", f.explode(f.sequence(first, f.coalesce(last, first), f.expr("interval 1 hour"))))
    begins = f.greatest("started", "worked")
    ends = f.least("ended", f.col("worked") + f.expr("interval 1 hour"))
    busy = f.when(f.col("ended").isNotNull(), f.greatest(ms_between(begins, ends), f.lit(0)))
    is_first = f.col("worked") == first
    return (
        rows.withColumns({"busy": busy, "is_first": is_first.cast("bigint")})
        .groupBy("worker", "worked", "hour")
        .agg(
            f.coalesce(f.sum("busy"), f.lit(0)).alias("busy_ms"),
            f.sum("is_first").alias("jobs"),
            f.sum(f.when(f.col("outcome") == "acked", f.col("is_first")).otherwise(0)).alias("acked"),
            f.sum(f.when(f.col("outcome").isin("acked", "gone", RUNNING), 0).otherwise(f.col("is_first"))).alias(
                "failures"
            ),
        )
        .select(*WORKER_PARTS.names)
    )
