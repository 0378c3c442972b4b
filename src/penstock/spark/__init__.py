"""Every queue as a source and a sink of Spark: `format("penstock")`.

    spark.readStream.format("penstock").option("url", "sqlite:///jobs.db").option("queue", "mail").load()
    spark.read.format("penstock")...    a look at the jobs, which changes nothing
    df.write.format("penstock")...      each row is a job

Read in this order: `columns` (a job as a row), `settings` (options), `streaming` (batches that are claimed), `heart`
(their leases), `room` (how much goes into a batch), `marks` (batches without claims), `looking` and `filters` (a
look), `sink` (rows to jobs), `failing` (jobs that can't be processed), `refusals` (errors as one sentence), `draining`;
then `java` and `session` (how Spark starts where it was just installed) and `doctor` (why it doesn't).

Spark finds the format by the top-level module `pyspark_penstock`. Nothing here is imported by the rest of Penstock.
"""
