"""Results, status and progress of calls, in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock import App, Fail, Retry, current_job
from penstock.errors import CallerError, TaskCancelled, TaskFailed
from penstock.tasks import State
from penstock.tasks.results import done_text, key_of


@dataclass
class Report:
    path: Path
    seconds: float


@pytest.fixture
def app() -> App:
    return App("memory:")


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_result_has_the_type_that_the_function_returns(app: App, kind: str) -> None:
    if kind == "async":

        @app.task(queue="q")
        async def work(path: Path) -> Report:
            return Report(path, 1.5)
    else:

        @app.task(queue="q")
        def work(path: Path) -> Report:
            return Report(path, 1.5)

    with app.testing() as testing:
        handle = work.blocking.push(Path("a"))
        assert handle.status().state is State.WAITING
        testing.run()
        assert handle.result(timeout=0) == Report(Path("a"), 1.5)
        assert handle.result(timeout=0) == Report(Path("a"), 1.5)  # any number of times
        assert app.blocking_handle(handle.id, work).result() == Report(Path("a"), 1.5)
        assert app.blocking_handle(handle.id).result() == {"path": "a", "seconds": 1.5}
        assert handle.status().state is State.DONE
        assert handle.status().at == testing.clock.now.timestamp()


def test_the_status_of_a_call_through_its_life(app: App) -> None:
    seen = []

    @app.task(queue="q", backoff=60, max_tries=2)
    def work() -> int:
        current_job().progress(0.4, "half of it")
        seen.append(handle.status())
        raise ValueError("no")

    with app.testing() as testing:
        handle = work.options(delay=60).blocking.push()
        assert handle.status().state is State.SCHEDULED
        testing.clock.advance(minutes=1)
        assert (seen[0].state, seen[0].progress, seen[0].text) == (State.RUNNING, 0.4, "half of it")
        assert seen[0].since == seen[0].at == testing.clock.now.timestamp()
        assert handle.status().state is State.SCHEDULED
        testing.clock.advance(minutes=1, raises=False)
        status = handle.status()
        assert (status.state, status.error) == (State.FAILED, "ValueError: no")
        with pytest.raises(TaskFailed, match="ValueError: no") as failed:
            handle.result(timeout=0)
        assert "raise ValueError" in failed.value.traceback


def test_results_are_kept_for_their_time(app: App) -> None:
    @app.task(queue="q", result_ttl=60)
    async def work() -> str:
        return "x"

    with app.testing() as testing:
        handle = work.blocking.push()
        testing.run()
        testing.clock.advance(seconds=59)
        assert handle.status().state is State.DONE
        testing.clock.advance(seconds=2)
        assert handle.status().state is State.UNKNOWN
        with pytest.raises(TimeoutError, match="has no result"):
            handle.result(timeout=0.01)


def test_tasks_that_return_nothing_keep_nothing_unless_they_say_so(app: App) -> None:
    @app.task(queue="q")
    async def silent() -> None: ...

    @app.task(queue="q", result_ttl=60)
    async def told() -> None: ...

    @app.task(queue="q", result_ttl=0)
    async def off() -> int:
        return 5

    with app.testing() as testing:
        for task in (silent, off):
            handle = task.blocking.push()
            testing.run()
            assert handle.status().state is State.UNKNOWN
            with pytest.raises(CallerError, match="keeps no results"):
                handle.result()
        kept = told.blocking.push()
        testing.run()
        assert kept.result() is None


def test_a_failure_is_known_however_the_job_failed(app: App) -> None:
    @app.task(name="t", queue="q", max_tries=2)
    async def work(n: int) -> int:
        raise Fail("said so")

    with app.testing() as testing:
        store = app.blocking_client.store
        wrong = store.queue("q").push({"task": "t", "args": {}})
        spent = store.queue("q").push({"task": "t", "args": {"n": 1}}, tries=2)
        said = work.blocking.push(1)
        testing.run(raises=False)
        errors = [app.blocking_handle(one).status().error for one in (wrong, spent, said.id)]
        assert errors == ["task t: argument n is missing", errors[1], "said so"]
        assert errors[1].startswith("the worker died, or lost its lease, on the last try")


def test_a_failure_has_the_traceback_of_what_the_function_raised(app: App) -> None:
    """Whole, also when it may not be tried again."""

    def deep(n: int) -> int:
        if not n:
            raise ValueError("down here")
        return 1 + deep(n - 1) if n % 2 else deep(n - 1) + 1  # lines that differ, so that none are left out

    @app.task(queue="q", fail_on=ValueError)
    def work() -> int:
        return deep(4)

    with app.testing() as testing:
        handle = work.blocking.push()
        testing.run(raises=False)
        with pytest.raises(TaskFailed, match="ValueError: down here") as failed:
            handle.result()
    assert failed.value.traceback.endswith("ValueError: down here")
    assert failed.value.traceback.count("deep(n - 1)") >= 4
    assert "GivenUp" not in failed.value.traceback


def test_a_result_that_is_not_json_fails_the_call(app: App) -> None:
    @app.task(queue="q")
    async def work() -> object:
        return object()

    with app.testing() as testing:
        handle = work.blocking.push()
        testing.run(raises=False)
        with pytest.raises(TaskFailed, match="its result can't be kept"):
            handle.result()


def test_a_waiting_call_can_be_cancelled(app: App) -> None:
    @app.task(queue="q")
    async def work() -> int:
        return 1

    with app.testing() as testing:
        handle = work.options(delay=60).blocking.push()
        assert handle.cancel()
        assert not handle.cancel()
        assert testing.clock.advance(minutes=2).done == 0
        assert handle.status().state is State.CANCELLED


def test_what_a_cancelled_call_returns_is_dropped(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tasks.router.LONG_S", 0)  # as if it had taken long

    @app.task(queue="q")
    def work() -> int:
        assert app.blocking_handle(current_job().id).cancel()
        return 5

    with app.testing() as testing:
        handle = work.blocking.push()
        testing.run()
        assert handle.status().state is State.CANCELLED
        with pytest.raises(TaskCancelled, match="it was cancelled"):
            handle.result(timeout=0)


def test_progress_of_a_call_that_is_over_does_not_hide_its_end(app: App) -> None:
    """Of one that was cancelled, and of one that another worker ended, while its function still runs here."""

    @app.task(queue="q")
    def cancelled() -> int:
        assert app.blocking_handle(current_job().id).cancel()
        current_job().progress(0.9, "goes on")
        raise Retry(delay=60)

    @app.task(queue="q")
    def ended() -> int:
        app.blocking_client.keep(key_of(current_job().id), done_text(5, app.now()), 60)
        current_job().progress(0.9, "goes on")
        raise Retry(delay=60)

    with app.testing() as testing:
        first, second = cancelled.blocking.push(), ended.blocking.push()
        testing.run()
        assert first.status().state is State.CANCELLED
        with pytest.raises(TaskCancelled):
            first.result(timeout=0)
        assert second.status().state is State.DONE
        assert second.result(timeout=0) == 5


def test_results_in_another_store(tmp_path: Path) -> None:
    app = App("memory:", results=f"sqlite:///{tmp_path}/results.db")

    @app.task(queue="q")
    async def work() -> int:
        return 5

    async def main() -> int:
        async with app:
            handle = await work.push()
            await app.worker().run(until_empty=True)
            assert await app.client.store.value(f"task:{handle.id}") is None
            return await handle.result(timeout=5)

    assert asyncio.run(main()) == 5
