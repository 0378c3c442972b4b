"""`penstock worker shop:app` as real processes that are killed: no call is lost, every run of a cron is pushed once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock import blocking
from tests.processes import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]
SOURCE = Path(__file__).resolve().parents[2] / "src"
PATIENCE_S = 90.0  # the machine may be busy

SHOP = """
import asyncio, os, sys, time
from pathlib import Path
import penstock
app = penstock.App("sqlite:///shop.db?lease=1.5&poll=0.05")

@app.task(queue="q", max_tries=5)
def note(n: int) -> int:
    with open("runs", "a") as file:
        file.write(f"{n} {penstock.current_job().tries}\\n")
    if Path("stall").exists():
        time.sleep(600)
    return 2 * n

@app.task(queue="q", max_tries=2)
async def killer() -> int:
    with open("kills", "a") as file:
        file.write("x\\n")
    os.kill(os.getpid(), 9)

@app.task(queue="q", isolate=True)
def isolated() -> int:
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(600)

@app.cron("* * * * * *", queue="cron", missed="all", name="tick")
async def tick() -> None: ...
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `penstock worker shop:app` with these words, in the folder of the test."""
    (tmp_path / "shop.py").write_text(SHOP)
    processes: list[subprocess.Popen[bytes]] = []

    def run(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock", "worker", "shop:app", *words]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=log)
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.wait()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def push(folder: Path, code: str) -> str:
    """Run a line of a program that has the app; returns what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", f"import shop; {code}"], cwd=folder, env=environment, check=True, capture_output=True
    )
    return done.stdout.decode().strip()


def test_calls_of_a_worker_that_was_killed_are_run_by_another_one(start: Start, tmp_path: Path) -> None:
    (tmp_path / "stall").touch()
    call_id = push(tmp_path, "print(shop.note.blocking.push(4).id)")
    first = start("--queues", "q")
    wait_until(lambda: lines(tmp_path / "runs") == ["4 0"], PATIENCE_S)
    first.kill()
    first.wait()
    (tmp_path / "stall").unlink()
    start("--queues", "q")
    asked = f"print(shop.app.blocking_handle({call_id!r}).result(timeout={PATIENCE_S}))"
    assert push(tmp_path, asked) == "8"
    assert lines(tmp_path / "runs") == ["4 0", "4 1"]


def test_a_task_that_kills_its_worker_is_given_up_after_its_tries(start: Start, tmp_path: Path) -> None:
    call_id = push(tmp_path, "print(shop.killer.blocking.push().id)")
    start("--queues", "q", "--processes", "1")
    code = f"""
try:
    shop.app.blocking_handle({call_id!r}).result(timeout={PATIENCE_S})
except Exception as problem:
    print(type(problem).__name__, problem)
"""
    (tmp_path / "ask.py").write_text(f"import shop\n{code}")
    answer = push(tmp_path, "import ask")
    assert answer == "TaskFailed the worker died, or lost its lease, on the last try"
    assert lines(tmp_path / "kills") == ["x", "x"]


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_processes_of_isolated_calls_are_killed_when_these_are_cancelled(start: Start, tmp_path: Path) -> None:
    made = "shop.isolated.blocking.push(), penstock.group([shop.isolated.call()]).blocking.push()"
    ids = push(tmp_path, f"import penstock; print(*[handle.id for handle in ({made})])").split()
    start("--queues", "q")
    wait_until(lambda: len(lines(tmp_path / "pids")) == 2, PATIENCE_S)
    assert push(tmp_path, f"print([shop.app.blocking_handle(one).cancel() for one in {ids}])") == "[True, True]"
    wait_until(lambda: not any(_is_alive(int(one)) for one in lines(tmp_path / "pids")), PATIENCE_S)
    asked = f"print(*[shop.app.blocking_handle(one).status().state for one in {ids}])"
    assert push(tmp_path, asked) == "cancelled cancelled"


def test_every_run_of_a_cron_is_pushed_once_whatever_schedulers_die(start: Start, tmp_path: Path) -> None:
    store = blocking.connect(f"sqlite:///{tmp_path}/shop.db")
    with store:

        def pushed() -> int:
            return int(store.queue("cron").total()) if store.exists() else 0

        workers = [start("--queues", "q") for _ in range(2)]  # they push the crons, and don't run them
        for count in (2, 5, 8):
            wait_until(lambda count=count: pushed() >= count, PATIENCE_S)  # type: ignore[misc]  # bound now
            workers.pop(0).send_signal(signal.SIGKILL)
            workers.append(start("--queues", "q"))
        wait_until(lambda: pushed() >= 11, PATIENCE_S)
        for worker in workers:
            worker.kill()
            worker.wait()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        keys = [key for (key,) in file.execute("SELECT unique_key FROM penstock_jobs WHERE queue = 'cron'")]
    seconds = sorted(int(key.rpartition(":")[2]) for key in keys)
    # With missed="all" each second from the first run to the last one has its job, and none has two.
    assert seconds == list(range(seconds[0], seconds[-1] + 1))


ISOLATED = """
import os, sys, time
from pathlib import Path
import penstock
app = penstock.App("sqlite:///shop.db?lease=5&poll=0.05")

@app.task(queue="q", isolate=True, max_tries=1)
def work(what: str) -> int:
    if what == "raise":
        raise KeyError("gone")
    if what == "fail":
        raise penstock.Fail("said so")
    if what == "die":
        os.kill(os.getpid(), 9)
    return os.getppid()

@app.task(queue="q", isolate=True, max_tries=1)
def stall() -> int:
    Path("draft").write_text(str(os.getpid()))
    Path("draft").rename("pid")
    time.sleep(600)
    return 1

stall_for_a_second = app.task(queue="q", isolate=True, max_tries=1, time_limit=1, name="short")(stall.function)
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def answers(folder: Path, calls: list[str]) -> list[str]:
    """Push calls, and return their results or errors."""
    program = f"""
import shop
for handle in [{", ".join(calls)}]:
    try:
        print(handle.result(timeout={PATIENCE_S}))
    except Exception as problem:
        print(str(problem).splitlines()[0])
"""
    (folder / "ask.py").write_text(program)
    return push(folder, "import ask").splitlines()


def test_isolated_calls_run_in_processes_of_their_own(start: Start, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(ISOLATED)
    worker = start()
    told = answers(tmp_path, [f"shop.work.blocking.push({what!r})" for what in ("fine", "raise", "fail", "die")])
    assert told == [
        str(worker.pid),
        "IsolatedError: KeyError: 'gone'",
        "said so",
        "IsolatedError: the process of the task was killed by signal 9",
    ]
    assert "Warning" not in (tmp_path / "log").read_text()


def test_the_time_limit_and_the_end_of_the_worker_kill_an_isolated_call(start: Start, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(ISOLATED)
    worker = start()
    told = answers(tmp_path, ["shop.stall_for_a_second.blocking.push()"])
    assert told == ["it took longer than its time limit of 1 s"]
    pid = tmp_path / "pid"
    if pid.exists():  # a busy machine may have killed it before it began
        wait_until(lambda: not is_running(int(pid.read_text())), PATIENCE_S)
        pid.unlink()
    push(tmp_path, "shop.stall.blocking.push()")
    wait_until(pid.exists, PATIENCE_S)
    worker.kill()
    worker.wait()
    wait_until(lambda: not is_running(int(pid.read_text())), PATIENCE_S)


HOOKED = """
import os
from contextvars import ContextVar
from pathlib import Path
import penstock

tenant = ContextVar("tenant")

def note(what):
    with open("notes", "a") as file:
        file.write(f"{what} {os.getpid()}\\n")

class Notes:
    def pushed(self, call): note(f"pushed {call.task}")
    def before(self, job): note(f"before {job.task}")
    def after(self, job, result): note(f"after {job.task}")
    def failed(self, job, error): note(f"failed {job.task}")

app = penstock.App("sqlite:///shop.db?poll=0.05", hooks=[Notes()], context=[tenant])

@app.task(name="fine")
async def fine() -> None: note(f"of {tenant.get()}")

@app.task(name="wrong", max_tries=1)
def wrong() -> None: raise ValueError("wrong")

@app.task(name="alone", isolate=True)
def alone() -> None: note(f"of {tenant.get()}")
"""


def test_hooks_and_context_work_in_all_processes_of_a_worker_and_in_those_of_isolated_calls(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(HOOKED)
    worker = start("--processes", "2")
    push(tmp_path, "shop.tenant.set('ann'); [shop.app.tasks[n].blocking.push() for n in ('fine', 'wrong', 'alone')]")
    wanted = sorted(
        [f"{what} {task}" for task in ("fine", "alone") for what in ("pushed", "before", "after")]
        + ["of ann", "of ann", "pushed wrong", "before wrong", "failed wrong"]
    )
    notes = tmp_path / "notes"
    wait_until(lambda: len(lines(notes)) >= len(wanted), PATIENCE_S)
    assert sorted(line.rpartition(" ")[0] for line in lines(notes)) == wanted
    # None of them ran in the supervisor.
    assert str(worker.pid) not in {line.rpartition(" ")[2] for line in lines(notes)}
