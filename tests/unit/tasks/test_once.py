"""An effect that happens once for a job: in SQLite. `tests/system/test_once.py` kills workers, on every database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import App, Retry, current_job
from penstock.errors import CallerError

Effects = sqlite3.Connection


@pytest.fixture
def app() -> App:
    return App("memory:")


@pytest.fixture
def effects(tmp_path: Path) -> Iterator[Effects]:
    """A database of the application, used in worker threads."""
    connection = sqlite3.connect(tmp_path / "bank.db", check_same_thread=False)
    connection.execute("CREATE TABLE paid (n)")
    yield connection
    connection.close()


def paid(connection: Effects) -> list[Any]:
    return [n for (n,) in connection.execute("SELECT n FROM paid ORDER BY n")]


def test_a_job_that_runs_again_after_its_effect_has_it_once(app: App, effects: Effects) -> None:
    seen = []

    @app.task(backoff=0)
    def pay(n: int) -> None:
        with current_job().once(effects) as first:
            seen.append(bool(first))
            if first:
                effects.execute("INSERT INTO paid VALUES (?)", (n,))
        if current_job().tries < 2:
            raise Retry(delay=0)

    @app.task(backoff=0)
    async def pay_too(n: int) -> None:
        async with current_job().once(effects) as first:
            if first:
                effects.execute("INSERT INTO paid VALUES (?)", (n,))
        if current_job().tries < 2:
            raise Retry(delay=0)

    with app.testing() as testing:
        pay.blocking.push(1)
        pay.blocking.push(2)
        pay_too.blocking.push(3)
        testing.run()
    assert paid(effects) == [1, 2, 3]
    assert sorted(seen) == [False] * 4 + [True] * 2
    assert not effects.in_transaction


def test_an_effect_that_fails_is_undone_with_its_mark(app: App, effects: Effects) -> None:
    @app.task(backoff=0)
    def pay(n: int) -> None:
        with current_job().once(effects) as first:
            if first:
                effects.execute("INSERT INTO paid VALUES (?)", (n,))
            if not current_job().tries:
                raise ValueError("the bank is closed")

    with app.testing() as testing:
        pay.blocking.push(7)
        testing.run()
    assert paid(effects) == [7]


def test_each_step_of_a_job_has_its_effect(app: App, effects: Effects) -> None:
    @app.task(backoff=0)
    def pay() -> None:
        for step in ("buyer", "seller"):
            with current_job().once(effects, step) as first:
                if first:
                    effects.execute("INSERT INTO paid VALUES (?)", (step,))
        if not current_job().tries:
            raise Retry(delay=0)

    with app.testing() as testing:
        pay.blocking.push()
        testing.run()
    assert paid(effects) == ["buyer", "seller"]


def test_a_block_that_does_not_ask_is_rolled_back_and_refused(app: App, effects: Effects) -> None:
    @app.task(max_tries=1)
    def pay() -> None:
        with current_job().once(effects):
            effects.execute("INSERT INTO paid VALUES (1)")

    with app.testing() as testing:
        pay.blocking.push()
        with pytest.raises(CallerError, match="must ask whether it is the first"):
            testing.run()
    assert paid(effects) == []
    assert not effects.in_transaction


def test_within_a_transaction_of_the_task_the_block_is_a_part_of_it(app: App, effects: Effects) -> None:
    @app.task(backoff=0)
    def pay() -> None:
        effects.execute("INSERT INTO paid VALUES ('before')")  # which begins a transaction
        with suppress(ValueError), current_job().once(effects, "a") as first:
            assert first
            effects.execute("INSERT INTO paid VALUES ('a')")
            raise ValueError("only the block")
        with current_job().once(effects, "b") as first:
            if first:
                effects.execute("INSERT INTO paid VALUES ('b')")
        assert effects.in_transaction
        if current_job().tries:
            effects.commit()
        else:
            effects.rollback()
            raise Retry(delay=0)

    with app.testing() as testing:
        pay.blocking.push()
        testing.run()
    assert paid(effects) == ["b", "before"]
    assert [step for (step,) in effects.execute("SELECT step FROM penstock_once")] == ["b"]


def test_a_block_that_commits_by_itself_is_told_so(app: App, effects: Effects) -> None:
    @app.task(max_tries=1)
    def pay() -> None:
        with current_job().once(effects) as first:
            if first:
                effects.commit()

    with app.testing() as testing:
        pay.blocking.push()
        with pytest.raises(CallerError, match="must not commit"):
            testing.run()


def test_marks_are_kept_for_their_time_and_their_number_is_bounded(app: App, effects: Effects) -> None:
    @app.task
    def pay() -> None:
        with current_job().once(effects, keep=timedelta(days=2)) as first:
            assert first

    def marks() -> int:
        return int(effects.execute("SELECT count(*) FROM penstock_once").fetchone()[0])

    with app.testing() as testing:
        counts = []
        for _ in range(6):
            for _ in range(5):
                pay.blocking.push()
            testing.clock.advance(days=1)
            counts.append(marks())
    assert counts == [5, 10, 15, 15, 15, 15]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda job, _: job.once("bank.db"), "connection must be one of sqlite3 or psycopg, or a session of pymongo"),
        (lambda job, effects: job.once(effects, 5), "step must be a text, got 5"),
        (lambda job, effects: job.once(effects, keep=-1), "keep must be 0 to"),
    ],
    ids=["connection", "step", "keep"],
)
def test_what_cannot_be_is_refused(app: App, effects: Effects, wrong: Any, says: str) -> None:
    @app.task(max_tries=1)
    def pay() -> None:
        wrong(current_job(), effects)

    with app.testing() as testing:
        pay.blocking.push()
        with pytest.raises(CallerError, match=says):
            testing.run()


def test_a_job_that_waited_as_unknown_is_the_same_call(app: App, effects: Effects) -> None:
    ids = []
    with app.testing() as testing:
        app.task(name="other")(lambda: None)
        queue = app.blocking_client.queue("default")
        ids.append(queue.push({"task": "late"}))
        testing.run()
        ids += [job.payload["id"] for job in app.blocking_client.queue("__unknown__").jobs()]
    assert ids == [ids[0]] * 2
