"""Every queue as a source and a sink of Spark: `format("penstock")`.

    spark.readStream.format("penstock").option("url", "sqlite:///jobs.db").option("queue", "mail").load()
    spark.read.format("penstock")...    a batch read of the jobs, which changes nothing
    df.write.format("penstock")...      each row is a job

Read in this order: `rows` (jobs as rows), `settings` (options), `streaming` (micro-batches), `claims` (what holds their
jobs), `lease_keeper` (their leases), `batch_size`, `scan` and `filters` (batch reads), `sink` (rows to jobs),
`dead_letters` (jobs that can't be processed), `errors` (retries, and errors as one sentence), `refused`, `listener`,
`parquet` and `drain`; then `java` and `session` (how Spark is started) and `doctor` (why it isn't).

Spark finds the format by the top-level module `pyspark_penstock`. The rest of Penstock imports nothing from here.
"""
