"""A real `penstock worker`, the functions that it runs, and what they leave behind.

The functions stand in a module of the worker's directory, and report by appending lines to a file: what happened, the
payload, the tries before, the process. Some wait until a file called `go` is there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.processes import wait_until

SOURCE = Path(__file__).resolve().parents[1] / "src"
END_SECONDS = 60.0

HANDLERS = """
import asyncio, os, pathlib, signal, time

HERE = pathlib.Path(__file__).parent

def note(what, job):
    with open(HERE / "notes", "a") as notes:
        notes.write(f"{what} {job.payload} {job.tries} {os.getpid()}\\n")

def may_go():
    return (HERE / "go").exists()

async def quick(job):
    note("done", job)

async def fail(job):
    note("began", job)
    raise ValueError(f"no such address: {job.payload}")

async def hold(job):
    note("began", job)
    while not may_go():
        await asyncio.sleep(0.01)
    note("done", job)

def hold_plain(job):
    note("began", job)
    while not may_go():
        time.sleep(0.01)
    note("done", job)

def hang_if_bad(job):
    note("began", job)
    while job.payload == "bad":
        time.sleep(0.01)
    note("done", job)

async def _hold_on(job):
    while not may_go():
        try:
            await asyncio.sleep(0.01)
        except BaseException:
            pass

async def hold_on(job):
    note("began", job)
    await _hold_on(job)

async def hang_on_if_bad(job):
    note("began", job)
    if job.payload == "bad":
        await _hold_on(job)
    note("done", job)

async def die_if_bad(job):
    note("began", job)
    if job.payload == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    note("done", job)

def _dying(before):
    from penstock.queues.aio import Queue
    real = Queue.ack_many

    async def ack_many(self, jobs, begun=()):
        if not before:
            await real(self, jobs, begun)
        os.kill(os.getpid(), signal.SIGKILL)

    Queue.ack_many = ack_many

async def die_before_ack(job):
    note("done", job)
    _dying(before=True)

async def die_after_ack(job):
    note("done", job)
    _dying(before=False)
"""


class Note(NamedTuple):
    """One line that a function left."""

    what: str
    payload: str
    tries: int
    pid: int


class WorkerProcess:
    """`penstock worker` in a directory of its own."""

    def __init__(self, directory: Path, url: str, queue: str) -> None:
        self.directory = directory
        self.url = url
        self.queue = queue
        self.dead_letters = f"{queue}-dead"
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        (directory / "handlers.py").write_text(HANDLERS)

    def start(self, function: str, *options: str) -> Self:
        words = [self.url, self.queue, f"handlers:{function}", "--log", "json", "--dead-letters", self.dead_letters]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "worker", *words, *options],
                cwd=self.directory,
                env={**os.environ, "PYTHONPATH": str(SOURCE)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a group of its own, as at a terminal
            )
        return self

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def end(self) -> int:
        """Wait for its end, and return its exit code. It never shows a traceback of ours."""
        assert self.process is not None
        code = self.process.wait(END_SECONDS)
        self.process = None
        assert "Traceback" not in self.log.read_text(), self.log.read_text()
        return code

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        return self.end()

    def let_go(self) -> None:
        (self.directory / "go").touch()

    def notes(self, what: str | None = None) -> list[Note]:
        path = self.directory / "notes"
        lines = [line.split(" ") for line in path.read_text().splitlines()] if path.exists() else []
        notes = [Note(line[0], line[1], int(line[2]), int(line[3])) for line in lines]
        return [note for note in notes if what is None or note.what == what]

    def wait_for(self, what: str, count: int) -> list[Note]:
        """Wait until functions have noted something so often."""

        def enough() -> bool:
            assert self.process is None or self.process.poll() is None or len(self.notes(what)) >= count, (
                f"the worker has ended:\n{self.log.read_text()}"
            )
            return len(self.notes(what)) >= count

        wait_until(enough, END_SECONDS)
        return self.notes(what)

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it has said of a kind."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["event"] == name]
