"""Refusals of a stream, on their way through Spark.

When `streamReader` of a data source raises an error, the worker of Spark that called it reports an UnboundLocalError in
its place (4.2 and 4.3). It reports what the methods of a reader raise. So in a worker a reader is returned all the
same, whose methods raise the error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import PenstockError
from penstock.spark.errors import is_in_worker, without_traceback

Source = TypeVar("Source")
Make = Callable[[Source, StructType], DataSourceStreamReader]


def refused_by_reader(make: Make[Source]) -> Make[Source]:
    """Decorate `streamReader`: in a worker of Spark, the reader that it returns raises the errors of ours."""

    @wraps(make)
    def made(source: Source, schema: StructType) -> DataSourceStreamReader:
        try:
            return make(source, schema)
        except PenstockError as problem:
            if not is_in_worker():
                raise
            return RefusedStream(problem)

    return made


@without_traceback
class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream that was refused: whatever Spark calls first raises the error."""

    def __init__(self, problem: PenstockError) -> None:
        self._problem = problem

    def initialOffset(self) -> NoReturn:  # noqa: N802 - Spark's name
        raise self._problem

    def getDefaultReadLimit(self) -> NoReturn:  # noqa: N802 - Spark's name
        raise self._problem

    def prepareForTriggerAvailableNow(self) -> NoReturn:  # noqa: N802 - Spark's name
        raise self._problem

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:  # noqa: N802 - Spark's name
        raise self._problem

    def reportLatestOffset(self) -> NoReturn:  # noqa: N802 - Spark's name
        raise self._problem

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:
        raise self._problem

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._problem
