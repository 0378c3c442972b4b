"""`format("penstock")`: what Spark asks for a reader or a writer.

>>> df = spark.readStream.format("penstock").option("url", "sqlite:///jobs.db").option("queue", "mail").load()
>>> df.select("id", "payload").writeStream.format("console").trigger(availableNow=True).start().awaitTermination()
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.spark.columns import chosen, schema_text
from penstock.spark.looking import FilteringLook, QueueLook
from penstock.spark.settings import read_settings
from penstock.spark.sink import QueueStreamWriter, QueueWriter
from penstock.spark.streaming import QueueStream


class PenstockSource(DataSource):
    """Queues for Spark."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        return schema_text(chosen(read_settings(self.options, needs_queue=False).columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        settings = read_settings(self.options, has_many=True)
        return (FilteringLook if settings.has_pushdown else QueueLook)(settings, schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return QueueStream(read_settings(self.options), schema.names)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return QueueWriter(read_settings(self.options, needs_queue="queue" not in schema.names), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        return QueueStreamWriter(read_settings(self.options, needs_queue="queue" not in schema.names), schema)


DefaultSource: Any = PenstockSource
