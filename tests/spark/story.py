"""A small program on queues, the same wherever Spark runs.

    python story.py MASTER URL DIRECTORY

Rows become jobs, a look counts them, and a stream takes them into Parquet. It prints what it saw, as JSON.
"""

import json
import sys

from penstock.spark.parquet import to_parquet
from penstock.spark.session import local_session

JOBS = 200


def main(master: str, url: str, directory: str) -> None:
    spark = local_session("story", master)
    queue = {"url": url, "queue": "story"}

    numbers = spark.range(0, JOBS, 1, 4).selectExpr("cast(id as string) as payload")
    numbers.write.format("penstock").options(**queue).mode("append").save()

    look = spark.read.format("penstock").options(**queue).load()
    states = {row.state: row["count"] for row in look.groupBy("state").count().collect()}

    # Four partitions in the first batch.
    jobs = spark.readStream.format("penstock").options(**queue, maxJobsPerTrigger=120, partitionJobs=30).load()

    write = to_parquet(directory, lambda batch: batch.select("id", "payload"))
    log = f"{directory}/_log"
    query = jobs.writeStream.foreachBatch(write).option("checkpointLocation", log).trigger(availableNow=True).start()
    query.awaitTermination()

    rows = spark.read.parquet(directory).collect()
    batches, payloads = sorted({row.batch for row in rows}), sorted(int(row.payload) for row in rows)
    sys.stdout.write(json.dumps({"states": states, "batches": batches, "jobs": payloads}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
