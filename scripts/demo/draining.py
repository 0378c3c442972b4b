"""The other end of the pipe: the results that workers make, moved to where they stay.

With Spark, `penstock spark drain` is a streaming query that writes Parquet files, and goes on while they are read
here. Where Spark or its Java can't be had, `penstock move` moves the results into a file of SQLite, over and over.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from books import Row
from parts import Part, Parts

from penstock.blocking import connect
from penstock.errors import MissingExtra, PenstockError

QUEUE = "shipped"
COPY_PAUSE_S = 1.0


class Drain(Protocol):
    """Takes results out of their queue, and knows what it has."""

    name: str
    place: str  # where they go, in a word
    command: str  # as one would type it

    def check(self) -> None:
        """Raise if it can't go on."""

    def is_ready(self) -> bool:
        """Whether it would take results, if there were any."""

    def count(self) -> int:
        """How many rows there are."""

    def rows(self) -> list[Row]:
        """All of them."""

    def stop(self) -> None:
        """End it in order."""


def why_no_spark(folder: Path) -> str:
    """What is missing for Spark; nothing if all is there."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # where the script for a packaged Java goes
    try:
        import_module("pyarrow.parquet")
        import_module("penstock.spark.drain")
        import_module("penstock.spark.java").ensure_java()
    except (ImportError, MissingExtra) as problem:
        return str(problem)
    return ""


class SparkDrain:
    """A streaming query into Parquet files."""

    name = "spark"
    place = "Parquet"
    command = f"penstock spark drain $JOBS {QUEUE} --to parquet:{QUEUE} --follow --every 2s"

    def __init__(self, parts: Parts, url: str) -> None:
        self._directory = parts.folder / "parquet"
        self._counts: dict[Path, int] = {}  # rows by file, which don't change once their batch is done
        self._count = 0
        words = ("spark", "drain", url, QUEUE, "--to", f"parquet:{self._directory}", "--follow", "--every", "2s")
        self._part: Part = parts.start(*words, variables=spark_variables(parts.folder))

    def check(self) -> None:
        self._part.check()

    def is_ready(self) -> bool:
        return (self._directory / "_penstock" / "checkpoint" / "metadata").exists()  # the query has begun

    def count(self) -> int:
        read = import_module("pyarrow.parquet").read_metadata
        files = self._files()
        # A merge of small files may take one away meanwhile: it is counted the next time.
        with contextlib.suppress(FileNotFoundError):
            for path in files:
                if path not in self._counts:
                    self._counts[path] = read(path).num_rows
            self._count = sum(self._counts[path] for path in files)
        return self._count

    def rows(self) -> list[Row]:
        read = import_module("pyarrow.parquet").ParquetFile
        return [
            _row(line["payload"], line["id"])
            for path in self._files()
            for line in read(path).read(["id", "payload"]).to_pylist()
        ]

    def _files(self) -> list[Path]:
        """The files of batches that are done."""
        done = [path.parent for path in self._directory.glob("batch=*/_SUCCESS")]
        return [path for folder in done for path in folder.glob("part-*.parquet")]

    def stop(self) -> None:
        self._part.stop()


def spark_variables(folder: Path) -> dict[str, str]:
    """Lets Spark keep its files where ours are, and its Java spend no time on what pays off after minutes."""
    temporary = folder / "spark"
    temporary.mkdir(exist_ok=True)
    java = f"-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={temporary}"
    return {
        "TMPDIR": str(temporary),
        "SPARK_LOCAL_DIRS": str(temporary),
        "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData",
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {java}".strip(),
    }


class CopyDrain:
    """`penstock move`, again and again: it ends when the queue is empty, or when its node is gone."""

    name = "move"
    place = "SQLite"

    def __init__(self, parts: Parts, url: str) -> None:
        self._parts, self._url = parts, url
        self._target = f"sqlite:///{parts.folder / 'shipped.db'}"
        self.command = f"penstock move $JOBS {QUEUE} sqlite:///shipped.db {QUEUE}"
        self._part = self._begin()
        self._ended_at = 0.0

    def _begin(self) -> Part:
        return self._parts.start("move", self._url, QUEUE, self._target, QUEUE, "--quiet")

    def check(self) -> None:
        if self._part.process.poll() is None:
            self._ended_at = time.monotonic()
        elif time.monotonic() - self._ended_at >= COPY_PAUSE_S:
            self._part.end()
            self._part = self._begin()

    def is_ready(self) -> bool:
        return True

    def count(self) -> int:
        with contextlib.suppress(PenstockError), connect(self._target) as store:
            return store.queue(QUEUE).size()
        return 0

    def rows(self) -> list[Row]:
        with connect(self._target) as store:
            return [_row(job.payload, job.id) for job in store.queue(QUEUE).jobs()]

    def stop(self) -> None:
        self._part.stop()


def _row(payload: Any, result: str) -> Row:
    facts = json.loads(payload) if isinstance(payload, str) else payload
    return Row(int(facts["order"]), str(facts["job"]), result)
