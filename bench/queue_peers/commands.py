"""The table of all peers and settings, and how one of them is measured: in its own environment, by its own command."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import postgres
from bench.servers import NotRunError, running

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-bench" / "bin" / "python"
OWN_ENVIRONMENTS = {"arq"}  # it wants another Redis client than the rest
NODE_FOLDER = Path(__file__).parent / "node"
TIME_LIMIT_S = 1200.0

JOBS = 20_000
LATENCIES = 200

PYTHON_PEERS = ("celery", "rq", "dramatiq", "huey", "arq", "taskiq", "procrastinate")


@dataclass(frozen=True)
class Run:
    """A peer with settings. Slow ones run a fraction of the jobs: they are compared by rates."""

    peer: str
    settings: str
    divisor: int = 1
    results: bool = False  # no-ops return a number, and it is kept

    @property
    def name(self) -> str:
        return f"{self.peer} ({self.settings}{', results' if self.results else ''})"


RUNS = [
    Run("celery", "prefork", divisor=4),
    Run("celery", "solo", divisor=4),
    Run("celery", "threads", divisor=4),
    Run("rq", "forking", divisor=20),
    Run("rq", "simple", divisor=10),
    Run("dramatiq", "default"),
    Run("dramatiq", "prefetch 64"),
    Run("huey", "1 thread"),
    Run("huey", "1 process"),
    Run("arq", "default", divisor=20),
    Run("arq", "eager"),
    Run("taskiq", "1 process"),
    Run("procrastinate", "concurrency 10", divisor=4),
    Run("bullmq", "concurrency 100"),
    Run("keuss", "redis-list, alone"),
    Run("keuss", "redis-list, shared"),
    Run("keuss", "redis-oq, alone"),
    Run("keuss", "redis-oq, shared"),
    Run("keuss", "postgres, alone", divisor=4),
    Run("keuss", "postgres, shared", divisor=4),
]


def measure(run: Run, jobs: int = JOBS, latencies: int = LATENCIES) -> dict[str, Any]:
    """The figures of a run, as the package's docstring has them; NotRunError where they can't be had."""
    count = max(1, jobs // run.divisor)
    if run.peer in PYTHON_PEERS:
        figures = output(_python_words(run, count, latencies))
    elif run.peer == "bullmq":
        with running("redis") as redis:
            figures = output(_node_words("bullmq", redis.port, count, latencies))
    else:
        with _keuss_words(run, count, latencies) as words:
            figures = output(words)
    if "error" in figures:
        raise NotRunError(figures["error"])
    return figures


def _python_words(run: Run, jobs: int, latencies: int) -> list[str]:
    name = f".venv-bench-{run.peer}" if run.peer in OWN_ENVIRONMENTS else ".venv-bench"
    python = ROOT / name / "bin" / "python"
    if not python.exists():
        raise NotRunError(f"there is no {name}: run `scripts/setup bench`")
    numbers = ["--jobs", str(jobs), "--latencies", str(latencies)]
    more = ["--results"] if run.results else []
    return [str(python), "-m", "bench.queue_peers.run", run.peer, "--settings", run.settings, *numbers, *more]


@contextlib.contextmanager
def _keuss_words(run: Run, jobs: int, latencies: int) -> Iterator[list[str]]:
    """Keuss' command, with its servers for the length of a block."""
    backend, _, providers = run.settings.partition(", ")
    with contextlib.ExitStack() as servers:
        redis = servers.enter_context(running("redis"))
        place: list[object] = [redis.port]
        if backend == "postgres":
            place += [servers.enter_context(postgres.running()).port, postgres.USER, postgres.DATABASE]
        yield _node_words("keuss", backend, providers, jobs, latencies, *place)


def node_program() -> str:
    """Where Node is."""
    # Where there was none on the PATH, setup has put one beside our Python.
    node = shutil.which("node", path=f"{os.environ.get('PATH', '')}:{ROOT / '.venv' / 'bin'}:{PYTHON.parent}")
    if node is None:
        raise NotRunError("Node is missing: run `scripts/setup bench`")
    return node


def _node_words(program: str, *words: object) -> list[str]:
    node = node_program()
    if not (NODE_FOLDER / "node_modules" / program).is_dir():
        raise NotRunError(f"Node's package {program} is missing: run `scripts/setup bench`")
    return [node, str(NODE_FOLDER / f"{program}.js"), *map(str, words)]


def output(words: list[str]) -> dict[str, Any]:
    """The last line that the command printed, which is JSON."""
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        printed, complaints = process.communicate(timeout=TIME_LIMIT_S)
    except BaseException:
        # Asked, not killed, so that it ends the servers and workers that it started.
        process.terminate()
        process.communicate()
        raise
    if process.returncode:
        raise NotRunError(f"{words[-1]} ended with code {process.returncode}: {complaints[-500:].strip()}")
    figures: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return figures
