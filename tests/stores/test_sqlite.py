"""What is SQLite's own: its URLs, files and errors, locks, and transactions of the application."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import blocking
from penstock.errors import BadPayload, BadUrl, CallerError, ConnectionLost, StoreError, TimedOut
from penstock.queues.stores.sqlite import driver as driver_module
from penstock.queues.stores.sqlite import file as file_module
from tests.stores.harness import PATIENCE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


def _pragma(store: Any, name: str) -> Any:
    return store._driver.file.read(f"PRAGMA {name}")[0][0]


# URLs and options


def test_three_slashes_are_a_relative_path_and_four_an_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a folder").mkdir()
    for url, file in {
        "sqlite:///here.db": tmp_path / "here.db",
        f"sqlite:///{tmp_path}/there.db": tmp_path / "there.db",
        "sqlite:///a%20folder/a%23b.db?sync=off": tmp_path / "a folder" / "a#b.db",
    }.items():
        with blocking.connect(url) as store:
            store.queue("q").push(1)
            assert file.is_file()
            assert store.url == url.partition("?")[0]


def test_two_ways_to_a_file_lead_to_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a push is heard at once by others of the process, whatever they call the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to("jobs.db")
    stores = [blocking.connect(f"sqlite:///{path}") for path in ("jobs.db", f"{tmp_path}/jobs.db", "link.db")]
    assert len({store._driver.place for store in stores}) == 1


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("sqlite:", "sqlite:///jobs.db"),
        ("sqlite:///", "sqlite:///jobs.db"),
        ("sqlite:jobs.db", "sqlite:///jobs.db"),
        ("sqlite://jobs.db", "sqlite:///jobs.db"),
        ("sqlite:///a#b.db", "%23"),
        ("sqlite:///:memory:", "memory:NAME"),
    ],
)
def test_a_url_without_a_file_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(BadUrl, match=hint):
        blocking.connect(url)


@pytest.mark.parametrize(("sync", "level"), [(None, 2), ("full", 2), ("normal", 1), ("off", 0)])
def test_what_is_answered_is_on_the_disk_by_default(url: str, sync: str | None, level: int) -> None:
    with blocking.connect(url if sync is None else f"{url}?sync={sync}") as store:
        store.queue("q").push(1)
        assert (_pragma(store, "synchronous"), _pragma(store, "journal_mode")) == (level, "wal")


@pytest.mark.parametrize(
    "query",
    ["sync=maybe", "lock_timeout=soon", "lock_timeout=-1", "lock_timeout=nan", "mode=all", "mode=0400", "mode=1777"],
)
def test_options_that_can_not_be(url: str, query: str) -> None:
    with pytest.raises(CallerError, match=query.partition("=")[0]):
        blocking.connect(f"{url}?{query}")


# Files


def test_a_file_of_another_kind_is_refused(path: Path, url: str) -> None:
    path.write_bytes(b"a letter to my aunt, of some length, as files that aren't databases are " * 100)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="file of another kind"), blocking.connect(url):
        pass
    assert path.read_bytes() == before


def _modes(path: Path) -> dict[str, str]:
    return {file.name.removeprefix(path.name): f"{file.stat().st_mode & 0o7777:04o}" for file in path.parent.iterdir()}


@pytest.mark.parametrize(
    ("query", "mode"), [("", "0600"), ("?mode=0660", "0660"), ("?mode=640", "0640"), ("?mode=0o666", "0666")]
)
def test_a_file_is_its_owners_alone_by_default(path: Path, url: str, query: str, mode: str) -> None:
    before = os.umask(0o022)
    try:
        with blocking.connect(url + query) as store:
            store.queue("q").push(1)
            assert _modes(path) == {"": mode, "-wal": mode, "-shm": mode}
    finally:
        os.umask(before)


def test_the_mode_may_be_a_number(path: Path, url: str) -> None:
    with blocking.connect(url, mode=0o660) as store:
        store.queue("q").push(1)
    assert _modes(path) == {"": "0660"}


def test_a_file_that_exists_keeps_its_mode(path: Path, url: str) -> None:
    path.touch()
    path.chmod(0o644)
    with blocking.connect(f"{url}?mode=0600") as store:
        store.queue("q").push(1)
        assert _modes(path) == {"": "0644", "-wal": "0644", "-shm": "0644"}


def test_a_file_behind_a_link_is_its_owners_alone(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to("jobs.db")
    with blocking.connect(f"sqlite:///{link}") as store:
        store.queue("q").push(1)
    assert (tmp_path / "jobs.db").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"missing/jobs\.db.*folder must exist"):
        blocking.connect(f"sqlite:///{tmp_path}/missing/jobs.db").open()


def test_a_path_that_is_only_read_stays_as_it_was(path: Path, url: str) -> None:
    with blocking.connect(url) as store:
        queue = store.queue("q")
        assert (queue.peek(), queue.total(), queue.next_mature(), store.queues()) == ([], 0, None, [])
        assert (queue.paused(), queue.stats()["push"], store.exists()) == (False, 0, False)
        queue.drain()
    assert list(path.parent.iterdir()) == []


async def test_the_same_in_an_event_loop(path: Path, url: str) -> None:
    async with penstock.connect(url) as store:
        assert await store.queue("q").peek() == []
    assert list(path.parent.iterdir()) == []


def test_a_file_that_is_made_later_is_seen(url: str) -> None:
    with blocking.connect(url) as store, blocking.connect(url) as other:
        queue = store.queue("q")
        assert queue.total() == 0
        other.queue("q").push("work")
        assert (queue.total(), store.exists()) == (1, True)
        assert queue.pop(timeout=0).payload == "work"


def test_a_lock_that_is_held_for_long_is_waited_for(path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many looks as take minutes."""
    with blocking.connect(url, lock_timeout=3600) as store:
        store.queue("q").push("first")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        looks = 0

        def sleep(seconds: float) -> None:
            nonlocal looks
            assert 0 < seconds < 1
            looks += 1
            if looks == 10_000:
                other.execute("COMMIT")

        monkeypatch.setattr(file_module.time, "sleep", sleep)
        store.queue("q").push("second")
        assert looks == 10_000
        other.close()


def test_a_file_of_a_later_version_is_refused(path: Path, url: str) -> None:
    with blocking.connect(url) as store:
        store.queue("q").push(1)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE penstock_meta SET value = 99")
    connection.close()
    with pytest.raises(StoreError, match=r"later Penstock.*99"), blocking.connect(url):
        pass


def test_an_applications_own_file_keeps_what_is_its(path: Path, url: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 42")
        connection.execute("CREATE TABLE jobs (mine)")
    connection.close()
    with blocking.connect(url) as store:
        store.queue("q").push(1)
        assert _pragma(store, "user_version") == 42
        assert store.queue("q").total() == 1


@pytest.mark.parametrize(
    ("pragma", "error"), [("max_page_count = 1", "disk is full"), ("query_only = ON", "may not be written")]
)
def test_a_disk_that_is_full_or_read_only_is_reported_and_nothing_is_changed(url: str, pragma: str, error: str) -> None:
    with blocking.connect(url) as store:
        queue = store.queue("q")
        queue.push("kept")
        _set(store, pragma)
        with pytest.raises(StoreError, match=error):
            queue.push(b"x" * 100_000)
        _set(store, "max_page_count = 1000000")
        _set(store, "query_only = OFF")
        queue.push("after")
        assert [job.payload for job in queue.peek()] == ["kept", "after"]


def _set(store: Any, pragma: str) -> None:
    store._driver.file.read(f"PRAGMA {pragma}")


def test_a_body_that_is_too_large_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "BODY_BYTES_MAX", 1000)
    with blocking.connect(url) as store:
        with pytest.raises(BadPayload, match="at most 1000 bytes, got 1001"):
            store.queue("q").push(b"x" * 1001)
        store.queue("q").push(b"x" * 1000)


def test_what_a_call_costs_does_not_depend_on_the_backlog(url: str) -> None:
    """By SQLite's own word: every statement of the hot path goes through an index, and sorts nothing."""
    with blocking.connect(url) as store:
        connection = store._driver.file.connection()
        plans: dict[str, str] = {}

        def explain(statement: str) -> None:
            if statement.partition(" ")[0] in {"SELECT", "UPDATE", "DELETE", "WITH"}:
                connection.set_trace_callback(None)
                rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
                plans[statement] = "; ".join(row[3] for row in rows)
                connection.set_trace_callback(explain)

        connection.set_trace_callback(explain)
        queue = store.queue("q", dead_letter=penstock.DeadLetter(2))
        for number in range(6):
            queue.push(number, unique=f"key {number}", unique_for=10)
        queue.pop(timeout=0)
        jobs = queue.reserve_many(3)
        jobs[0].extend()
        jobs[0].ack()
        jobs[1].nack()
        jobs[2].fail()
        queue.claim("key", 1)
        queue.claim("key", 1)
        queue.ack_claim("key")
        queue.next_mature()
        store.queues()
        connection.set_trace_callback(None)
    assert len(plans) > 15
    slow = {
        statement: plan
        for statement, plan in plans.items()
        if "TEMP B-TREE" in plan or ("SCAN penstock_jobs" in plan) or ("SCAN penstock_keys" in plan)
    }
    assert slow == {}


# Locks


def test_a_file_that_is_locked_for_too_long_is_reported(path: Path, url: str) -> None:
    with blocking.connect(f"{url}?lock_timeout=0.05") as store:
        queue = store.queue("q")
        queue.push("before")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimedOut, match="lock_timeout"):
            queue.push("locked out")
        assert queue.total() == 1  # a reader isn't held up
        other.execute("ROLLBACK")
        other.close()
        queue.push("after")
        assert [job.payload for job in queue.peek()] == ["before", "after"]


async def test_a_caller_that_waits_for_jobs_outlasts_a_lock(path: Path, url: str) -> None:
    async with penstock.connect(f"{url}?lock_timeout=0.01") as store:
        queue = store.queue("q")
        await queue.push("work")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        wait = asyncio.create_task(queue.reserve(timeout=PATIENCE))
        await asyncio.sleep(0.2)
        assert not wait.done()
        other.execute("ROLLBACK")
        other.close()
        assert (await wait).payload == "work"


# A file that somebody takes away


def _make(path: Path, payload: str) -> None:
    """A file with one job, which nobody has open."""
    with blocking.connect(f"sqlite:///{path}") as store:
        store.queue("q").push(payload)


def _remove(path: Path) -> None:
    """With what SQLite has beside it."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def test_a_push_to_a_file_that_was_made_again_is_reported_and_the_next_one_gets_there(path: Path, url: str) -> None:
    with blocking.connect(url) as store:
        queue = store.queue("q")
        queue.push("old")
        _remove(path)
        with blocking.connect(url) as new:
            new.queue("q").push("first")
            with pytest.raises(ConnectionLost, match="removed or replaced"):
                queue.push("lost")
            queue.push("second")
            assert path.with_name("jobs.db-wal").stat().st_size > 0  # SQLite has not cleaned up what is another's
            assert [job.payload for job in new.queue("q").peek()] == ["first", "second"]


async def test_a_waiting_caller_hears_of_a_job_in_a_file_that_was_replaced(path: Path, url: str) -> None:
    async with penstock.connect(url, poll=300) as store:
        queue = store.queue("q")
        wait = asyncio.create_task(queue.reserve(timeout=PATIENCE))
        await asyncio.sleep(0)
        _make(path.with_name("new.db"), "work")
        _remove(path)
        path.with_name("new.db").rename(path)
        assert (await wait).payload == "work"


def test_reading_a_file_that_was_removed_is_an_error(path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "PLACE_S", 0.0)
    with blocking.connect(url) as store:
        queue = store.queue("q")
        queue.push("old")
        path.unlink()
        with pytest.raises(ConnectionLost, match="removed or replaced"):
            queue.total()
        assert queue.total() == 0


def test_who_goes_to_another_directory_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with blocking.connect("sqlite:///jobs.db") as store:
        queue = store.queue("q")
        queue.push(1)
        monkeypatch.chdir("/")
        queue.push(2)
        assert queue.total() == 2


# The application's own transactions


@pytest.mark.parametrize("call", ["next_mature_ms", "version", "reserve"])
async def test_a_waiting_caller_hears_of_a_file_that_can_not_be_read_any_more(
    url: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreError("the disk fails")

    async with penstock.connect(url) as store:
        monkeypatch.setattr(store._driver.inner, call, fail)
        with pytest.raises(StoreError, match="the disk fails"):
            await asyncio.wait_for(store.queue("q").reserve(), PATIENCE)
    with blocking.connect(url) as store:
        monkeypatch.setattr(store._driver, call, fail)
        with pytest.raises(StoreError, match="the disk fails"):
            store.queue("q").reserve(timeout=PATIENCE)


@pytest.fixture
def application(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (name)")
    connection.commit()
    yield connection
    connection.close()


def test_a_push_within_a_transaction_is_as_true_as_the_transaction(url: str, application: sqlite3.Connection) -> None:
    with blocking.connect(url) as store:
        queue = store.queue("q")
        application.execute("INSERT INTO orders VALUES ('first')")
        job_id = queue.push("rolled back", connection=application)
        assert job_id
        application.rollback()
        assert queue.total() == 0
        application.execute("INSERT INTO orders VALUES ('second')")
        job_id = queue.push({"n": 1}, headers={"h": 1}, connection=application)
        ids = queue.push_many([2, 3], connection=application)
        assert queue.total() == 0
        application.commit()
        assert [job.id for job in queue.peek()] == [job_id, *ids]
        assert queue.pop(timeout=0).headers == {"h": 1}
        assert queue.stats()["push"] == 3  # the one that was rolled back was not counted
        assert application.execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_unique_keys_hold_within_a_transaction(url: str, application: sqlite3.Connection) -> None:
    with blocking.connect(url) as store:
        queue = store.queue("q")
        first = queue.push(1, unique="key")
        assert queue.push(2, unique="key", connection=application) == first
        other = queue.push(3, unique="other", connection=application)
        assert queue.push(4, unique="other", connection=application) == other
        application.commit()
        assert queue.total() == 2


async def test_the_commit_wakes_waiting_callers(url: str, application: sqlite3.Connection) -> None:
    async with penstock.connect(url, poll=300) as store:
        queue = store.queue("q")
        wait = asyncio.create_task(queue.pop(timeout=PATIENCE))
        await asyncio.sleep(0.1)
        await queue.push("work", connection=application)
        await asyncio.sleep(0.1)
        assert not wait.done()
        application.commit()
        assert (await wait).payload == "work"


def test_a_connection_that_has_the_file_attached_will_do(
    tmp_path: Path, path: Path, url: str, application: sqlite3.Connection
) -> None:
    with blocking.connect(url) as store, blocking.connect(f"sqlite:///{tmp_path}/main.db") as main:
        queue = store.queue("q")
        connection = sqlite3.connect(tmp_path / "main.db")
        connection.row_factory = sqlite3.Row
        connection.execute("ATTACH ? AS 'other \"jobs\"'", [str(path)])
        queue.push("work", unique="key", connection=connection)
        connection.commit()
        connection.close()
        assert (queue.total(), main.queue("q").total()) == (1, 0)


def test_a_connection_that_makes_something_else_of_texts_will_do(url: str, application: sqlite3.Connection) -> None:
    application.text_factory = bytes
    with blocking.connect(url) as store:
        queue = store.queue("q")
        job_id = queue.push("work", unique="key", connection=application)
        assert queue.push("again", unique="key", connection=application) == job_id
        application.commit()
        assert [job.id for job in queue.peek()] == [job_id]


def test_a_connection_to_something_else_is_refused(tmp_path: Path, url: str) -> None:
    with blocking.connect(url) as store:
        queue = store.queue("q")
        with pytest.raises(CallerError, match=r"not an sqlite3\.Connection"):
            queue.push(1, connection=object())
        for target in (":memory:", tmp_path / "other.db"):
            other = sqlite3.connect(target)
            with pytest.raises(CallerError, match="another database"):
                queue.push(1, connection=other)
            other.close()
