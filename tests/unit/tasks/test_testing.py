"""`app.testing()`: tasks in memory, at once and in order, with time under control."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

import pytest

from penstock import App, Fixed, current_job
from penstock.errors import CallerError

pytest_plugins = ["pytester"]


@pytest.fixture
def app() -> App:
    return App("disque://127.0.0.1:1")  # no node is there: a test must not need one


def test_tasks_run_in_order_when_the_test_says_so(app: App) -> None:
    done: list[int] = []

    @app.task(queue="a")
    async def first(n: int) -> None:
        done.append(n)
        if n < 3:
            await first.push(n + 10)

    @app.task(queue="b")
    def second(n: int) -> None:
        done.append(n)

    with app.testing() as testing:
        for n in range(3):
            first.blocking.push(n)
        second.blocking.push(5)
        assert done == []
        assert testing.run().done == 7
    assert [n for n in done if n != 5] == [0, 1, 2, 10, 11, 12]


def test_plain_and_async_tasks_run_one_after_the_other(app: App) -> None:
    seen: list[str] = []

    @app.task
    def plain(n: int) -> None:
        seen.append(f"plain {n} begins")
        time.sleep(0.01)  # the event loop could run the next one meanwhile
        seen.append(f"plain {n} ends")

    @app.task
    async def other(n: int) -> None:
        seen.append(f"other {n} begins")
        await asyncio.sleep(0.01)
        seen.append(f"other {n} ends")

    with app.testing() as testing:
        for n in range(3):
            plain.blocking.push(n)
            plain.blocking.push(n + 10)
            other.blocking.push(n)
        testing.run()
    order = [f"{name} {n}" for at in range(3) for name, n in (("plain", at), ("plain", at + 10), ("other", at))]
    assert seen == [f"{call} {what}" for call in order for what in ("begins", "ends")]


def test_the_clock_stands_still_until_it_is_moved(app: App) -> None:
    at: list[timedelta] = []

    @app.task(queue="a")
    def task() -> None:
        at.append(testing.clock.now - begin)

    with app.testing() as testing:
        begin = testing.clock.now
        task.options(delay=timedelta(days=1)).blocking.push()
        task.options(delay=3600).blocking.push()
        testing.run()
        assert at == []
        testing.clock.advance(hours=1)
        assert at == [timedelta(hours=1)]
        testing.clock.advance(days=5)
        assert [round(one / timedelta(hours=1)) for one in at] == [1, 24]
        assert testing.clock.now - begin == timedelta(days=5, hours=1)


def test_retries_come_at_their_times_and_the_last_error_is_raised(app: App) -> None:
    tries: list[tuple[int, float]] = []

    @app.task(queue="a", backoff=Fixed(60), max_tries=3)
    async def task() -> None:
        tries.append((current_job().tries, (testing.clock.now - begin).total_seconds()))
        raise ZeroDivisionError(f"try {current_job().tries}")

    with app.testing() as testing:
        begin = testing.clock.now
        task.blocking.push()
        testing.run()  # an error that is followed by another try is not raised
        with pytest.raises(ZeroDivisionError, match="try 2"):
            testing.clock.advance(minutes=10)
        assert [(number, round(at)) for number, at in tries] == [(0, 0), (1, 60), (2, 120)]
        testing.run()  # it is raised once
        task.blocking.push()
        testing.clock.advance(minutes=10, raises=False)


def test_a_deadline_goes_by_the_clock_of_the_test(app: App) -> None:
    @app.task(queue="a", deadline=60)
    def task() -> None: ...

    with app.testing() as testing:
        task.options(delay=30).blocking.push()
        task.options(delay=90).blocking.push()
        summary = testing.clock.advance(minutes=5, raises=False)
        assert (summary.done, summary.failed) == (1, 1)


def test_in_an_event_loop_it_is_awaited(app: App) -> None:
    done: list[int] = []

    @app.task(queue="a")
    async def task(n: int) -> None:
        done.append(n)

    async def main() -> None:
        async with app.testing() as testing:
            await task.push(1)
            await task.options(delay=60).push(2)
            await testing.run()
            assert done == [1]
            await testing.clock.advance(minutes=2)
            assert done == [1, 2]

    asyncio.run(main())


def test_a_result_that_cannot_come_is_not_waited_for(app: App) -> None:
    """Before the test runs it, and within a task, beside which nothing runs."""

    @app.task(queue="a")
    def one() -> int:
        return 1

    @app.task(queue="a", max_tries=1)
    async def outer() -> int:
        return await (await one.push()).result()

    with app.testing() as testing:
        handle = one.blocking.push()
        with pytest.raises(TimeoutError, match=r"nothing runs before testing.run\(\)"):
            handle.result()
        testing.run()
        assert handle.result() == 1
        outer.blocking.push()
        with pytest.raises(TimeoutError, match="one task at a time"):
            testing.run()

    async def main() -> None:
        async with app.testing() as testing:
            handle = await one.push()
            with pytest.raises(TimeoutError, match="nothing runs before"):
                await handle.result()
            run = asyncio.create_task(testing.run())
            await asyncio.sleep(0)
            assert await handle.result() == 1
            await run

    asyncio.run(main())


def test_the_blocking_form_says_what_to_write_in_an_event_loop(app: App) -> None:
    @app.task(queue="a")
    def task() -> None: ...

    async def main() -> None:
        with app.testing() as testing:
            testing.run()

    with pytest.raises(CallerError, match=r"async with app.testing\(\)"):
        asyncio.run(main())


def test_each_test_begins_empty_and_leaves_the_app_as_it_was(app: App) -> None:
    @app.task(queue="a")
    def task() -> None: ...

    with app.testing():
        task.blocking.push()
        with pytest.raises(CallerError, match="under test already"), app.testing():
            pass
    with app.testing() as testing:
        assert testing.run().done == 0
    assert app.url == "disque://127.0.0.1:1"


SHOP = """
import penstock
app = penstock.App("disque://127.0.0.1:1")
seen = []
@app.task
def task(n: int) -> None:
    seen.append(n)
"""
TESTS = """
import shop
def test_one(penstock_app):
    shop.task.blocking.push(1)
    penstock_app.run()
    assert shop.seen == [1]
"""


def test_the_plugin_has_a_fixture(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(Path(__file__).resolve().parents[3] / "src")
    monkeypatch.setenv("PYTHONPATH", source)
    pytester.makepyfile(shop=SHOP, test_shop=TESTS)
    pytester.makeini("[pytest]\npenstock_app = shop:app\n")
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")  # the package names its plugin
    done.assert_outcomes(passed=1)
