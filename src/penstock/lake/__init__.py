"""The lake: events become tables, and tables answer what happened to every job.

    segments of events -> format("penstock_events") -> events -> jobs, attempts, metric_parts, worker_parts -> answers

Read in this order: `schemas` (the tables), `coverage` (which events a table has), `segments` and `source` (what Spark
reads), `table` (Parquet files and their Delta log), `build` (segments to `events`), `life` (what each kind of event
means), `tables` (`events` to the other tables, as functions of DataFrames), `fold` (when these run), `views`; then
what asks: `why` and `story`, `query`, `report`.
"""
