"""Spark imports all top-level modules whose names begin with `pyspark_`: this one is `format("penstock_events")`."""

from penstock.lake.source import EventsSource as DefaultSource

__all__ = ["DefaultSource"]
