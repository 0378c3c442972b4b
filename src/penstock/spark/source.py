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

from penstock.errors import CallerError
from penstock.spark.errors import without_traceback
from penstock.spark.refused import refused_by_reader
from penstock.spark.rows import checked, chosen, schema_text
from penstock.spark.scan import FilteringScan, QueueScan
from penstock.spark.settings import QuerySettings, check_use, read_settings
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

    @refused_by_reader
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        check_use(self.options, "stream")
        return QueueStream(read_settings(self.options), checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return QueueWriter(self._write_settings(schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        settings = self._write_settings(schema)
        if settings.count_file is not None:
            raise CallerError("the option countFile is for a write that is not a stream: leave it out")
        return QueueStreamWriter(settings, schema)

    def _write_settings(self, schema: StructType) -> QuerySettings:
        check_use(self.options, "write")
        return read_settings(self.options, needs_queue="queue" not in schema.names)


DefaultSource: Any = PenstockSource
