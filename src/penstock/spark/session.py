"""A Spark session that finds a Java and a Python by itself, and prints little.

    local_session()                               all of Spark on this machine
    local_session(master="spark://host:7077")     on a cluster, with the driver here; also `yarn` and `k8s://…`
    local_session(master="sc://host:15002")       through Spark Connect: the driver, too, is on the server

`docs/how-to/use-spark.md` says what must be installed where.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.errors import CallerError, MissingExtra, OperatorError
from penstock.spark.java import HINT, ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT = "sc://"
CONNECT_PORT = 15002  # the default of Spark Connect
CONNECT_S_MAX = 10.0
DRIVER_MEMORY = "2g"  # Spark's own 1g is little for the batches of a stream, which are in the driver's memory

QUIET = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# A cluster has settings of its own for these.
QUIET_HERE = {
    **QUIET,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


def local_session(
    name: str = "penstock", master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session on this machine, or on the cluster or Connect server that `master` names."""
    try:
        from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - the error says what to install
        from pyspark.sql import SparkSession  # noqa: PLC0415 - here, too, the error says what to install
    except ModuleNotFoundError as problem:
        raise MissingExtra("this needs Spark. Install it with: pip install 'penstock[spark,jre]'") from problem
    given = dict(settings or {})
    builder = SparkSession.builder.appName(name)
    session: SparkSession
    if is_remote(master):
        _check_server(master)
        session = _configured(builder.remote(master), given).getOrCreate()
        return session
    is_here = master.startswith("local")
    ensure_java()
    _set_python(given)
    # Settings and spark-defaults.conf take precedence over this variable.
    os.environ.setdefault("SPARK_DRIVER_MEMORY", DRIVER_MEMORY)
    if is_here:
        # Without it Spark looks up the machine's name, which many machines can't resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    quiet = QUIET_HERE if is_here else QUIET
    try:
        session = _configured(builder.master(master), {**quiet, **given}).getOrCreate()
    except PySparkRuntimeError as problem:
        if "JAVA_GATEWAY_EXITED" in str(problem):
            raise OperatorError(f"Spark could not start its Java. {HINT}") from problem
        raise
    return session


def is_remote(master: str) -> bool:
    """Whether the driver is on a Spark Connect server."""
    return master.startswith(CONNECT)


def _configured(builder: Any, settings: Mapping[str, str]) -> Any:
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder


def _set_python(settings: Mapping[str, str]) -> None:
    """Set the Python that runs sources and sinks, on the driver and on the executors.

    Spark reads it from the driver's environment, and else uses the first `python3` on the PATH, which may not have this
    package. It reads the setting spark.pyspark.python only for functions of users.
    """
    wanted = settings.get("spark.pyspark.python")
    if wanted is not None:
        os.environ["PYSPARK_PYTHON"] = wanted
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _check_server(address: str) -> None:
    """Raise if Connect can't be used: Spark's client would try to reach the server for ten minutes."""
    try:
        import_module("pyspark.sql.connect.session")
    except ImportError as problem:
        text = f"Spark Connect needs more packages. Install them with: pip install 'penstock[connect]' ({problem})"
        raise MissingExtra(text) from problem
    try:
        place = urlsplit(address)
        host, port = place.hostname or "localhost", place.port or CONNECT_PORT
    except ValueError as problem:
        raise CallerError(f"a Connect server must be sc://HOST:PORT, got {address!r} ({problem})") from problem
    try:
        socket.create_connection((host, port), CONNECT_S_MAX).close()
    except OSError as problem:
        raise OperatorError(f"can't reach a Spark Connect server at {host}:{port}: {problem}") from problem
