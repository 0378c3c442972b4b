"""Spark's own servers for tests: a standalone cluster of a master and two workers, and a Spark Connect server.

They run from the installed pyspark package, with the Java that Penstock finds, on loopback. The machine that they
believe to be on has Spark and Java, and no Penstock: what executors need of it must come by the settings that are
tested. Each server leads a process group, in which its executors are too; the group is ended by its id, whatever
happens.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyspark

from penstock.spark.java import ensure_java
from tests.processes import HOST, STOP_SECONDS, ServerProcess, free_port, wait_until

SPARK = Path(pyspark.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
PROGRAM_SECONDS_MAX = 240.0
# Java starts faster so, and nothing here runs for long enough to gain by the other compiler.
FAST_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": HOST,
    "spark.driver.extraJavaOptions": FAST_JAVA,
    "spark.executor.extraJavaOptions": FAST_JAVA,
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    # No task begins before both executors are there, so that both get some.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def machine(directory: Path) -> dict[str, str]:
    """The environment of a machine with Spark and Java; settings and scratch files of Spark lie in the directory."""
    ensure_java()
    settings = directory / "conf"
    settings.mkdir(exist_ok=True)
    (settings / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in DEFAULTS.items()))
    ours = Path(sys.executable).parent
    path = os.pathsep.join(word for word in os.environ["PATH"].split(os.pathsep) if Path(word) != ours)
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LANG", "USER") if name in os.environ}
    return {
        **kept,
        "PATH": path,
        "SPARK_HOME": str(SPARK),
        "SPARK_CONF_DIR": str(settings),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(directory / "scratch"),
        "SPARK_DAEMON_MEMORY": "1g",
        "SPARK_DAEMON_JAVA_OPTS": FAST_JAVA,
        "SPARK_LAUNCHER_OPTS": FAST_JAVA,
    }


def with_penstock(environment: dict[str, str]) -> dict[str, str]:
    """The same machine with this tree installed, in the Python of the tests."""
    more = os.environ.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *([more] if more else [])])}


def run_program(words: list[str], environment: dict[str, str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end, as a user of the machine would."""
    return subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS_MAX,
        check=False,
    )


class SparkServer(ServerProcess):
    """A server of Spark's, and what it starts."""

    name = "Spark's server"

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        super().__init__(directory)
        self.environment = environment

    @property
    def process_options(self) -> dict[str, Any]:
        return {"env": self.environment, "cwd": self.directory, "start_new_session": True}

    def is_ready(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), 1.0).close()
        except OSError:
            return False
        return True

    def wait_until_it_answers(self) -> None:
        wait_until(self._answers, 120.0, every=0.05)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill_hard(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        group = self.process.pid
        os.killpg(group, number)
        try:
            wait_until(lambda: not _is_alive(group), STOP_SECONDS)
        finally:
            # Its leader has not been waited for, so that the id is still its own.
            os.killpg(group, signal.SIGKILL)
            self.process.wait()
            self.process = None


def _is_alive(group: int) -> bool:
    """Whether a process of a group still runs."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name in parentheses may hold blanks, so fields are counted from behind it.
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except (OSError, ValueError):
                continue
            if its_group == str(group) and state not in "ZX":
                return True
    return False


class Master(SparkServer):
    """The master of a standalone cluster."""

    name = "Spark's master"

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        super().__init__(directory, environment)
        self.web_port = free_port()

    @property
    def argv(self) -> list[str]:
        words = ["--host", self.host, "--port", str(self.port), "--webui-port", str(self.web_port)]
        return [str(SPARK / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master", *words]

    @property
    def url(self) -> str:
        return f"spark://{self.host}:{self.port}"

    def is_ready(self) -> bool:
        return self.workers() is not None

    def workers(self) -> int | None:
        """How many workers it knows, once it answers."""
        link = http.client.HTTPConnection(self.host, self.web_port, timeout=5)
        try:
            link.request("GET", "/json/")
            return int(json.load(link.getresponse())["aliveworkers"])
        except (OSError, ValueError):  # while it starts, it has no such page
            return None
        finally:
            link.close()


class Worker(SparkServer):
    """A worker, with one core."""

    name = "Spark's worker"

    def __init__(self, directory: Path, environment: dict[str, str], master: Master) -> None:
        super().__init__(directory, environment)
        self.master = master

    @property
    def argv(self) -> list[str]:
        place = ["--host", self.host, "--port", str(self.port), "--webui-port", "0", "--work-dir", str(self.directory)]
        words = [*place, "--cores", "1", "--memory", "1g", self.master.url]
        return [str(SPARK / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker", *words]


class StandaloneCluster:
    """A master and two workers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = machine(directory)
        self.master = Master(self._folder("master"), self.environment)
        self.workers = [Worker(self._folder(name), self.environment, self.master) for name in ("worker1", "worker2")]

    def _folder(self, name: str) -> Path:
        folder = self.directory / name
        folder.mkdir()
        return folder

    @property
    def url(self) -> str:
        return self.master.url

    def start(self) -> StandaloneCluster:
        self.master.start()
        for worker in self.workers:
            worker.start(wait=False)
        wait_until(lambda: self.master.workers() == len(self.workers), 120.0, every=0.05)
        return self

    def stop(self) -> None:
        for server in (*self.workers, self.master):
            server.stop()


class ConnectServer(SparkServer):
    """A Spark Connect server, with Spark on this machine behind it."""

    name = "Spark Connect"

    @property
    def argv(self) -> list[str]:
        settings = {"binding.address": self.host, "binding.port": str(self.port)}
        words = [word for key, value in settings.items() for word in ("--conf", f"spark.connect.grpc.{key}={value}")]
        kind = "org.apache.spark.sql.connect.service.SparkConnectServer"
        return [str(SPARK / "bin" / "spark-submit"), "--class", kind, "--master", "local[2]", *words]

    @property
    def url(self) -> str:
        return f"sc://{self.host}:{self.port}"


def pack_environment(directory: Path, calls: Path) -> Path:
    """An archive of a Python environment, as venv-pack makes one, unpacked in the directory as well.

    Its Python is that of the tests, and writes down in which directory it was started.
    """
    python = directory / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\npwd >> "{calls}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    archive = directory / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(python.parent, "bin")
    return archive
