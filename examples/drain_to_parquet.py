"""Drain a queue into Parquet, and count its jobs by minute on the way.

    python examples/drain_to_parquet.py sqlite:///jobs.db clicks out/

Each job ends up in the files exactly once: a batch that is run again after a crash is known by its jobs. If the
checkpoint is lost, a new run writes into folders of its own, and overwrites nothing.
"""

import sys

from pyspark.sql import functions as f

from penstock.spark.parquet import to_parquet
from penstock.spark.session import local_session


def main(url: str, queue: str, directory: str) -> None:
    spark = local_session("drain to parquet")
    jobs = spark.readStream.format("penstock").option("url", url).option("queue", queue).load()

    write = to_parquet(directory, lambda batch: batch.select("id", "body", "payload", "created"))
    log = f"{directory}/_checkpoint"
    jobs.writeStream.foreachBatch(write).option("checkpointLocation", log).trigger(
        availableNow=True
    ).start().awaitTermination()

    drained = spark.read.parquet(directory)
    when = f.coalesce("created", f.current_timestamp())
    minutes = drained.groupBy(f.window(when, "1 minute").start.alias("minute")).count().orderBy("minute")
    minutes.show(truncate=False)
    print(drained.count(), "jobs")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
