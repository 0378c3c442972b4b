"""Spark imports all top-level modules whose names begin with `pyspark_`: `format("penstock")` needs no registration."""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
