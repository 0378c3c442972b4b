"""A Spark session for people who just want a job done: quiet, local, and with a Java that is found for them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.errors import MissingExtra, OperatorError
from penstock.spark.java import HINT, ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}


def local_session(
    name: str = "penstock", master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on this machine, or on the cluster that `master` names."""
    try:
        from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - the error says what to install
        from pyspark.sql import SparkSession  # noqa: PLC0415 - here, too, the error says what to install
    except ModuleNotFoundError as problem:
        raise MissingExtra("this needs Spark. Install it with: pip install 'penstock[spark,jre]'") from problem
    if master.startswith("local"):
        ensure_java()
        # Without it Spark looks up the machine's name, which many machines can't resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Else Spark's Python processes are the first `python3` on the PATH, which may know nothing of us.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**QUIET, **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as problem:
        if "JAVA_GATEWAY_EXITED" in str(problem):
            raise OperatorError(f"Spark could not start its Java. {HINT}") from problem
        raise
