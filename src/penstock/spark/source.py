"""`format("penstock")`: the data source that Spark asks for readers and writers.

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

from penstock.spark.errors import without_traceback
from penstock.spark.rows import checked, chosen, schema_text
from penstock.spark.scan import FilteringScan, QueueScan
from penstock.spark.settings import Settings, check_use, read_settings
from penstock.spark.sink import QueueStreamWriter, QueueWriter
from penstock.spark.streaming import QueueStream


@without_traceback
class PenstockSource(DataSource):
    """Queues for Spark."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        return schema_text(chosen(read_settings(self.options, needs_queue=False).columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        check_use(self.options, "read")
        settings = read_settings(self.options, has_many=True)
        return (FilteringScan if settings.has_pushdown else QueueScan)(settings, checked(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        check_use(self.options, "stream")
        return QueueStream(read_settings(self.options), checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return QueueWriter(self._write_settings(schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        return QueueStreamWriter(self._write_settings(schema), schema)

    def _write_settings(self, schema: StructType) -> Settings:
        check_use(self.options, "write")
        return read_settings(self.options, needs_queue="queue" not in schema.names)


DefaultSource: Any = PenstockSource
