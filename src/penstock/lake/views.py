"""What people ask: the tables and views of a lake, in a Spark session.

Tables are registered with the files of one snapshot each; views are SQL over them, and the documentation prints them.
`metrics` and `workers` merge the additive parts of `metric_parts` and `worker_parts`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.lake.schemas import TABLES
from penstock.lake.table import LakeTable, use_utc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STUCK_AFTER = "1 hour"
_QUANTILE = "kll_sketch_get_quantile_bigint"

# In the order in which they need each other. `last` is the time of the last event that the lake has.
VIEWS = {
    "last": "select max(last_event) as at from jobs",
    "metrics": f"""
select *, sum(depth_change) over (partition by queue order by minute) as depth,
       {_QUANTILE}(waits, 0.5) as wait_p50_ms, {_QUANTILE}(waits, 0.95) as wait_p95_ms,
       {_QUANTILE}(waits, 0.99) as wait_p99_ms, {_QUANTILE}(runs, 0.5) as run_p50_ms,
       {_QUANTILE}(runs, 0.95) as run_p95_ms, {_QUANTILE}(runs, 0.99) as run_p99_ms
from (select queue, minute, sum(added) as added, sum(started) as started, sum(acked) as acked, sum(retried) as retried,
             sum(failed) as failed, sum(expired) as expired, sum(depth_change) as depth_change, max(sample) as sample,
             max(wait_ms_max) as wait_ms_max, max(coalesce(minutes, 1)) as minutes,
             case when count(wait_sketch) > 0 then kll_merge_agg_bigint(wait_sketch) end as waits,
             case when count(run_sketch) > 0 then kll_merge_agg_bigint(run_sketch) end as runs
      from metric_parts group by queue, minute)""",
    "workers": """
select worker, worked, sum(busy_ms) as busy_ms, sum(busy_ms) / 3600000 as busy_share, sum(jobs) as jobs,
       sum(acked) as acked, sum(failures) as failures
from worker_parts group by worker, worked""",
    "jobs_now": "select * from jobs where outcome in ('waiting', 'running')",
    "stuck": f"select jobs_now.* from jobs_now, last where last_event < last.at - interval {STUCK_AFTER}",
    "dead": "select * from jobs where outcome = 'failed'",
    "errors": """
select queue, split(error, ':')[0] as error_class, count(*) as attempts, count(distinct job) as jobs,
       max(coalesce(ended, started)) as last_seen, max(error) as example
from attempts where error is not null group by queue, split(error, ':')[0]""",
}


def register(spark: SparkSession, lake: str | Path) -> dict[str, int]:
    """Make the tables and views of a lake known to a session; return the version of each table."""
    use_utc(spark)
    versions = {}
    for schema in TABLES:
        table = LakeTable(lake, schema)
        snapshot = table.snapshot()
        versions[schema.name] = snapshot.version
        table.dataframe(spark, snapshot.files).createOrReplaceTempView(schema.name)
    for name, text in VIEWS.items():
        spark.sql(text).createOrReplaceTempView(name)
    return versions
