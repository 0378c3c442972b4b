"""A Spark session for people who just want a job done: quiet, and with a Java and a Python that are found for them.

    local_session()                               all of Spark on this machine
    local_session(master="spark://host:7077")     on a cluster, with the driver here; also `yarn` and `k8s://…`
    local_session(master="sc://host:15002")       through Spark Connect: the driver, too, is at the server

`docs/how-to/use-spark.md` tells what must be installed where.
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
CONNECT_PORT = 15002  # where Spark Connect listens unless told otherwise
CONNECT_S_MAX = 10.0
DRIVER_MEMORY = "2g"  # Spark's own 1g is little for a batch of a stream, which is in the driver

QUIET = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# A cluster has its own ideas of these.
QUIET_HERE = {
    **QUIET,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


def local_session(
    name: str = "penstock", master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on this machine, or on the cluster or the Connect server that `master` names."""
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
    _name_python(given)
    # Of all ways to say it this one is asked last: settings and spark-defaults.conf go before.
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
    """Whether the driver is somewhere else, behind Spark Connect."""
    return master.startswith(CONNECT)


def _configured(builder: Any, settings: Mapping[str, str]) -> Any:
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder


def _name_python(settings: Mapping[str, str]) -> None:
    """Say in which Python sources and sinks run, on the driver and on the executors alike.

    Spark asks the driver's environment alone, and would else take the first `python3` on the PATH, which may know
    nothing of us. The setting that is meant for this it reads for functions of users only.
    """
    wanted = settings.get("spark.pyspark.python")
    if wanted is not None:
        os.environ["PYSPARK_PYTHON"] = wanted
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _check_server(address: str) -> None:
    """Whether Connect can be used at all: Spark's client would try for ten minutes to reach nobody."""
    try:
        import_module("pyspark.sql.connect.session")
    except ImportError as problem:
        text = f"Spark Connect needs more packages. Install them with: pip install 'penstock[connect]' ({problem})"
        raise MissingExtra(text) from problem
    try:
        place = urlsplit(address)
        host, port = place.hostname or "localhost", place.port or CONNECT_PORT
    except ValueError as problem:
        raise CallerError(f"{address!r}: write sc://HOST:PORT ({problem})") from problem
    try:
        socket.create_connection((host, port), CONNECT_S_MAX).close()
    except OSError as problem:
        raise OperatorError(f"no Spark Connect server answers at {host}:{port}: {problem}") from problem
