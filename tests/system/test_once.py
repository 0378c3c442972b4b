"""Effects equal jobs: workers that are killed, or stopped past their leases, anywhere around `once`, on each database.

A task notes in the table or collection `paid` that it was run, within the block of `once`. Files tell it what to do.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.processes import wait_until
from tests.servers import MongoServer, PostgresServer

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]
SOURCE = Path(__file__).resolve().parents[2] / "src"
PATIENCE_S = 90.0  # the machine may be busy
JOBS = 40 if os.environ.get("PENSTOCK_LONG") else 4

BANK = """
import os, time
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
import penstock

URL = os.environ["BANK"]
# A worker that dies takes the other jobs that it runs with it.
app = penstock.App("sqlite:///jobs.db?lease=1.5&poll=0.05", queues={"bank": 2})

def note(what):
    with open("notes", "a") as file:
        file.write(f"{what} {os.getpid()}\\n")

def die(n, place):
    # Job 0 never, job 1 once before its effect, job 2 once in it, job 3 once after its commit, and so on.
    if [None, "before", "within", "after"][n % 4] == place and not Path(f"died-{n}").exists():
        Path(f"died-{n}").touch()
        note(f"died {place}")
        os.kill(os.getpid(), 9)

def stall(place):
    if Path(place).exists():
        Path(place).unlink()
        note(place)
        while not Path("go").exists():
            time.sleep(0.01)

@app.task(queue="bank", max_tries=0, backoff=0.1)
async def pay(n: int) -> None:
    die(n, "before")
    async with opened() as (connection, add):
        async with penstock.current_job().once(connection) as first:
            if first:
                await add(n)
            die(n, "within")
    die(n, "after")
    note("paid")

@app.task(queue="bank", max_tries=0, backoff=0.1)
def pay_in_a_thread(n: int) -> None:  # which is not cancelled when its lease is lost
    note("began")
    stall("stall-before")
    with opened_in_a_thread() as (connection, add):
        with penstock.current_job().once(connection) as first:
            if first:
                add(n)
            stall("stall-within")
    note("paid")
"""

OPENED = {
    "sqlite": """
import sqlite3

@contextmanager
def opened_in_a_thread():
    with closing(sqlite3.connect(URL, timeout=60)) as connection:
        yield connection, lambda n: connection.execute("INSERT INTO paid VALUES (?)", (n,))

@asynccontextmanager
async def opened():
    with opened_in_a_thread() as (connection, add_now):
        async def add(n):
            add_now(n)
        yield connection, add
""",
    "postgresql": """
import psycopg

@contextmanager
def opened_in_a_thread():
    with psycopg.connect(URL) as connection:
        yield connection, lambda n: connection.execute("INSERT INTO paid VALUES (%s)", (n,))

@asynccontextmanager
async def opened():
    async with await psycopg.AsyncConnection.connect(URL) as connection:
        yield connection, lambda n: connection.execute("INSERT INTO paid VALUES (%s)", (n,))
""",
    "mongodb": """
import pymongo

@contextmanager
def opened_in_a_thread():
    with pymongo.MongoClient(URL) as client, client.start_session() as session:
        paid = client.get_default_database()["paid"]
        yield session, lambda n: paid.insert_one({"n": n}, session=session)

@asynccontextmanager
async def opened():
    async with pymongo.AsyncMongoClient(URL) as client, client.start_session() as session:
        paid = client.get_default_database()["paid"]
        yield session, lambda n: paid.insert_one({"n": n}, session=session)
""",
}


class Bank:
    """The application's database, its workers, and what they left."""

    def __init__(self, kind: str, url: str, folder: Path) -> None:
        self.kind = kind
        self.url = url
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "bank.py").write_text(BANK + OPENED[kind])

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(SOURCE), "BANK": self.url}

    def push(self, task: str, numbers: range) -> None:
        code = f"import bank\nfor n in {numbers}: bank.{task}.blocking.push(n)"
        subprocess.run([sys.executable, "-c", code], cwd=self.folder, env=self.environment, check=True)

    def work(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock", "worker", "bank:app", "--concurrency", "2", *words]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stderr=log)
        self.processes.append(process)
        return process

    def notes(self, what: str) -> list[int]:
        """The processes that noted it."""
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == what]

    def wait_until_empty(self) -> None:
        def is_empty() -> bool:
            with closing(sqlite3.connect(self.folder / "jobs.db", timeout=60)) as file:
                return file.execute("SELECT count(*) FROM penstock_jobs").fetchone() == (0,)

        wait_until(is_empty, PATIENCE_S, every=0.05)

    def paid(self) -> Counter[int]:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.url, timeout=60)) as file:
                return Counter(n for (n,) in file.execute("SELECT n FROM paid"))
        if self.kind == "postgresql":
            import psycopg

            with psycopg.connect(self.url) as connection:
                return Counter(n for (n,) in connection.execute("SELECT n FROM paid").fetchall())
        import pymongo

        client: Any = pymongo.MongoClient(self.url)
        with client:
            return Counter(found["n"] for found in client.get_default_database()["paid"].find())

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def prepared(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a database with what takes the effects."""
    if kind == "sqlite":
        path = folder / "bank.db"
        with closing(sqlite3.connect(path)) as file:
            file.execute("CREATE TABLE paid (n)")
        return str(path)
    if kind == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url: str = request.getfixturevalue("postgres_database")
        with server.connect(url.rpartition("/")[2]) as connection:
            connection.execute("CREATE TABLE paid (n int)")
        return url
    mongo: MongoServer = request.getfixturevalue("mongo_server")
    mongo_url: str = request.getfixturevalue("mongo_database")
    with mongo.client() as client:
        client[mongo_url.rpartition("/")[2]].create_collection("paid")
    return mongo_url


@pytest.fixture
def short_transactions(request: pytest.FixtureRequest) -> Iterator[None]:
    """MongoDB ends the transaction of a client that died after a minute. No test waits that long."""
    if request.getfixturevalue("bank").kind != "mongodb":
        yield
        return
    mongo: MongoServer = request.getfixturevalue("mongo_server")
    with mongo.client() as client:
        client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=3)
        yield
        client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=60)


@pytest.fixture(params=list(OPENED))
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bank]:
    made = Bank(request.param, prepared(request.param, request, tmp_path), tmp_path)
    yield made
    made.end()


@pytest.mark.usefixtures("short_transactions")
def test_workers_that_are_killed_before_within_and_after_the_effect(bank: Bank) -> None:
    bank.push("pay", range(JOBS))
    bank.work("--processes", "2")
    bank.wait_until_empty()
    assert bank.paid() == Counter(range(JOBS))
    for place in ("before", "within", "after"):
        assert len(bank.notes(f"died {place}")) == JOBS // 4


@pytest.mark.parametrize("place", ["stall-before", "stall-within"])
def test_a_worker_that_is_stopped_past_its_lease_and_goes_on(bank: Bank, place: str) -> None:
    (bank.folder / place).touch()
    bank.push("pay_in_a_thread", range(1))
    first = bank.work()
    wait_until(lambda: bank.notes(place), PATIENCE_S)
    first.send_signal(signal.SIGSTOP)
    second = bank.work()
    wait_until(lambda: second.pid in bank.notes("began"), PATIENCE_S)
    if place == "stall-before":  # else the second one waits for the first
        bank.wait_until_empty()
        assert bank.notes("paid") == [second.pid]
    (bank.folder / "go").touch()
    first.send_signal(signal.SIGCONT)
    bank.wait_until_empty()
    wait_until(lambda: sorted(bank.notes("paid")) == sorted([first.pid, second.pid]), PATIENCE_S)
    assert bank.paid() == Counter([0])
