"""`isolate=True`: a plain function in a process of its own, which can be stopped, as a thread can't.

Each call is a fresh process that runs `main` below, and imports the module of the task. It reads the job as a line of
JSON from its standard input, and writes what became of it to a pipe. When the call is cancelled (its time limit, a lost
lease, the end of the worker) the process is killed; when the worker is gone, its standard input ends, and the process
ends itself.

    {"result": VALUE} | {"error": TEXT, "traceback": TEXT, "kind": "error" | "fail" | "retry", "delay": SECONDS | null}
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.queues.aio import Job
from penstock.queues.dead_letter import described
from penstock.tasks.arguments import to_plain
from penstock.tasks.options import module_of
from penstock.worker import Fail, Retry
from penstock.worker.outcomes import GivenUp, trace_of

if TYPE_CHECKING:
    from penstock.tasks.task import Task

# Not `python -m`: that warns of a module which its own package has imported already.
PROGRAM = "import sys; from penstock.tasks.isolation import main; main(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
LINE_BYTES_MAX = 16 * 1024 * 1024  # of a job, and of what became of it


class IsolatedError(Exception):
    """A task raised in its own process. Its text has the kind of the error; `traceback` the last lines there."""

    def __init__(self, text: str, traceback: str = "") -> None:
        super().__init__(text)
        self.traceback = traceback

    def __str__(self) -> str:
        text = str(self.args[0])
        return f"{text}\n{self.traceback}" if self.traceback else text


class IsolatedRunner:
    """Runs the calls of a task in processes of their own."""

    def __init__(self, task: Task[Any, Any, Any]) -> None:
        name = task.function.__qualname__
        self._command = [sys.executable, "-c", PROGRAM, module_of(task.function), name]

    async def run(self, job: Job) -> Any:
        """Run the task of a job."""
        facts = {"id": job.id, "queue": job.queue.name, "tries": job.tries, "payload": job.payload}
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, str(writing), stdin=asyncio.subprocess.PIPE, pass_fds=[writing], start_new_session=True
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(facts).encode() + b"\n")
            with suppress(ConnectionError):  # it ended before it read: what became of it says why
                await process.stdin.drain()
            answer = await _read_all(reading)
            code = await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with what it has started
                await process.wait()
        return _outcome(answer, code)


async def _read_all(file: int) -> bytes:
    """Return everything that is written to a pipe until its end."""
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(file, "rb")
    )
    try:
        return await reader.read()
    finally:
        transport.close()


def _outcome(answer: bytes, code: int) -> Any:
    try:
        told = json.loads(answer)
    except ValueError:
        what = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        raise IsolatedError(f"the process of the task {what}") from None
    if "result" in told:
        return told["result"]
    if told["kind"] == "retry":
        raise Retry(told["error"], delay=told["delay"])
    if told["kind"] == "fail":
        raise GivenUp(told["error"]) from IsolatedError(told["error"], told["traceback"])
    raise IsolatedError(told["error"], told["traceback"])


# In the process of a call.


class _QueueName:
    def __init__(self, name: str) -> None:
        self.name = name


class _Job:
    """The job, as far as a task can ask for it."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.id = facts["id"]
        self.tries = facts["tries"]
        self.payload = facts["payload"]
        self.queue = _QueueName(facts["queue"])
        self.lost = False  # a process whose job is lost is killed


def _told(module: str, name: str, facts: dict[str, Any]) -> dict[str, Any]:
    from penstock.tasks.router import PlainRunner  # noqa: PLC0415 - the router imports this module

    try:
        task: Any = import_module(module)
        for part in name.split("."):
            task = getattr(task, part)
        return {"result": to_plain(PlainRunner(task).run(_Job(facts)))}
    except BaseException as problem:  # whatever the application's code raises
        kind = "retry" if isinstance(problem, Retry) else "fail" if isinstance(problem, Fail) else "error"
        text = str(problem) if kind != "error" else described(problem)
        delay = problem.delay if isinstance(problem, Retry) else None
        return {"error": text, "traceback": trace_of(problem), "kind": kind, "delay": delay}


def _end_with_the_worker() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main(module: str, name: str, file: int) -> None:
    """Run one call."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    facts = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_the_worker, daemon=True).start()
    told = _told(module, name, facts)
    sys.stdout.flush()
    with os.fdopen(file, "wb") as answer:
        answer.write(json.dumps(told).encode())
    os._exit(0)  # threads that the function has left must not keep it
