"""Chains and groups in memory: what is run, with what, how often, and what becomes of the whole."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from penstock import App, Fail, Retry, chain, current_job, group
from penstock.errors import CallerError, TaskCancelled, TaskFailed
from penstock.queues.dead_letter import ERROR
from penstock.tasks import FailedCall, State
from penstock.tasks.workflow import DEPTH_MAX


@dataclass
class Page:
    url: str
    size: int


class Shop:
    """An app with some tasks, and what they have seen."""

    def __init__(self) -> None:
        self.app = app = App("memory:", queue="q")
        self.seen: list[Any] = []

        @app.task(name="load")
        async def load(url: str, size: int = 1) -> Page:
            self.seen.append(f"load {url}")
            return Page(url, size)

        @app.task(name="measure", queue="other")
        def measure(page: Page, unit: int = 1) -> int:
            assert isinstance(page, Page)
            return page.size * unit

        @app.task(name="total")
        async def total(sizes: list[int]) -> int:
            self.seen.append(sizes)
            return sum(sizes)

        @app.task(name="note")
        async def note(text: str = "nothing") -> None:
            self.seen.append(text)

        @app.task(name="fail", max_tries=2, backoff=0)
        async def fail(number: int) -> int:
            self.seen.append(f"fail {number}")
            raise ValueError(f"no {number}")

        @app.task(name="alert")
        async def alert(failed: FailedCall, who: str = "us") -> None:
            self.seen.append((failed.task, failed.error, failed.args, who))

        self.load, self.measure, self.total, self.note = load, measure, total, note
        self.fail, self.alert = fail, alert


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_each_call_of_a_chain_gets_the_result_of_the_one_before(shop: Shop) -> None:
    with shop.app.testing() as testing:
        handle = chain(shop.load.call("a", size=3), shop.measure.step(unit=5)).blocking.push()
        assert handle.status().state is State.WAITING
        assert (handle.status().done, handle.status().total) == (0, 2)
        testing.run()
        assert handle.result(timeout=0) == 15
        assert (handle.status().state, handle.status().done, handle.status().total) == (State.DONE, 2, 2)
        assert shop.app.blocking_handle(handle.id).result(timeout=0) == 15
        assert shop.app.blocking_handle(handle.id).status().total == 2
        assert shop.app.blocking_handle(f"{handle.id}.0", shop.load).result(timeout=0) == Page("a", 3)


def test_a_call_that_has_all_its_arguments_gets_no_result(shop: Shop) -> None:
    with shop.app.testing() as testing:
        chain(shop.load.call("a"), shop.note.call(), shop.note.call("x")).blocking.push()
        shop.load.call("b").then(shop.measure.call()).then(shop.note.call("y")).blocking.push()
        testing.run()
        assert shop.seen == ["load a", "load b", "nothing", "x", "y"]


def test_what_follows_a_group_gets_all_results_in_order_once(shop: Shop) -> None:
    for size in (1, 2, 3, 5, 8, 13):
        shop.seen.clear()
        with shop.app.testing() as testing:
            members = [chain(shop.load.call("a", size=n), shop.measure.call()) for n in range(size)]
            handle = group(members).then(shop.total.call()).blocking.push()
            testing.run()
            assert handle.result(timeout=0) == sum(range(size))
            assert [one for one in shop.seen if one != "load a"] == [list(range(size))]
            assert handle.status().done == handle.status().total == 2 * size + 1


def test_the_result_of_a_group_is_the_list_of_its_members_results(shop: Shop) -> None:
    with shop.app.testing() as testing:
        handle = group([shop.load.call("a"), shop.load.call("b")]).blocking.push()
        testing.run()
        assert handle.result(timeout=0) == [Page("a", 1), Page("b", 1)]


def test_each_member_of_a_group_in_a_chain_gets_the_result_before_it(shop: Shop) -> None:
    with shop.app.testing() as testing:
        both = group([shop.measure.step(unit=2), shop.measure.step(unit=3)])
        inner = group([both.then(shop.total.call()), shop.measure.call()])
        handle = chain(shop.load.call("a", size=10), inner, shop.total.call()).blocking.push()
        testing.run()
        assert handle.result(timeout=0) == 60
        assert shop.seen == ["load a", [20, 30], [50, 10]]


def test_a_group_may_be_the_last_part_and_within_a_group(shop: Shop) -> None:
    with shop.app.testing() as testing:
        pair = group([shop.measure.call(), shop.measure.step(unit=7)])
        handle = shop.load.call("a").then(group([pair, pair])).blocking.push()
        testing.run()
        assert handle.result(timeout=0) == [[1, 7], [1, 7]]


def test_a_failure_ends_the_chain_and_pushes_what_is_for_failures_once(shop: Shop) -> None:
    with shop.app.testing() as testing:
        inner = chain(shop.fail.call(7), shop.note.call("never"), on_failure=shop.alert.step("inner"))
        handle = chain(
            shop.note.call("first"), inner, shop.note.call("nor this"), on_failure=shop.note.call("failed")
        ).blocking.push()
        testing.run(raises=False)
        alert = ("fail", "ValueError: no 7", {"number": 7}, "inner")
        assert shop.seen == ["first", "fail 7", "fail 7", alert, "failed"]
        assert handle.status().state is State.FAILED
        with pytest.raises(TaskFailed, match="no 7") as failed:
            handle.result(timeout=0)
        assert "raise ValueError" in failed.value.traceback


def test_a_group_fails_with_its_first_member_and_its_callback_is_not_run(shop: Shop) -> None:
    with shop.app.testing() as testing:
        members = [shop.fail.call(1), shop.fail.call(2), chain(shop.load.call("a"), shop.measure.call())]
        work = group(members, on_failure=shop.alert.call()).then(shop.note.call("never"))
        handle = work.blocking.push()
        testing.run(raises=False)
        assert [one for one in shop.seen if isinstance(one, tuple)] == [
            ("fail", "ValueError: no 1", {"number": 1}, "us")
        ]
        assert "never" not in shop.seen
        assert "load a" in shop.seen
        assert (handle.status().state, handle.status().done) == (State.FAILED, 2)


def test_a_group_goes_on_when_its_dead_letter_is_sent_back(shop: Shop) -> None:
    is_broken = [True]

    @shop.app.task(name="mend", max_tries=1)
    async def mend() -> int:
        if is_broken[0]:
            raise ValueError("broken")
        return 5

    with shop.app.testing() as testing:
        handle = group([mend.call(), mend.call()]).then(shop.total.call()).blocking.push()
        testing.run(raises=False)
        assert handle.status().state is State.FAILED
        is_broken[0] = False
        store = shop.app.blocking_client.store
        assert store.dead_letters().redrive() == 2
        testing.run()
        assert handle.result(timeout=0) == 10
        assert shop.seen == [[5, 5]]


def test_a_single_call_can_have_something_for_its_failure(shop: Shop) -> None:
    @shop.app.task(name="bad", max_tries=1, on_failure=shop.alert.step(who="task"))
    async def bad(number: int) -> None:
        raise Fail("bad")

    with shop.app.testing() as testing:
        shop.fail.options(on_failure=shop.alert.step("push")).blocking.push(1)
        bad.blocking.push(2)
        bad.options(on_failure=chain(shop.note.call("a"), shop.note.call("b"))).blocking.push(3)
        testing.run(raises=False)
        alerts = [one for one in shop.seen if isinstance(one, tuple)]
        assert sorted(alerts, key=str) == [
            ("bad", "bad", {"number": 2}, "task"),
            ("bad", "bad", {"number": 3}, "task"),
            ("fail", "ValueError: no 1", {"number": 1}, "push"),
        ]
        assert [one for one in shop.seen if isinstance(one, str) and len(one) == 1] == ["a", "b"]


def test_nothing_of_a_cancelled_workflow_is_started(shop: Shop) -> None:
    with shop.app.testing() as testing:
        handle = shop.load.options(delay=60).call("a").then(shop.note.call("never")).blocking.push()
        assert handle.status().state is State.SCHEDULED
        assert handle.cancel()
        assert not handle.cancel()
        testing.clock.advance(minutes=2)
        assert shop.seen == []
        assert handle.status().state is State.CANCELLED
        with pytest.raises(TaskCancelled):
            handle.result(timeout=0)


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_call_that_cancels_its_own_workflow_is_the_last(shop: Shop, kind: str) -> None:
    if kind == "async":

        @shop.app.task(name="stop")
        async def stop() -> None:
            await shop.app.handle(current_job().id.partition(".")[0]).cancel()
    else:

        @shop.app.task(name="stop")
        def stop() -> None:
            shop.app.blocking_handle(current_job().id.partition(".")[0]).cancel()

    with shop.app.testing() as testing:
        handle = group([stop.call(), stop.call()]).then(shop.note.call("never")).blocking.push()
        testing.run()
        assert shop.seen == []
        assert handle.status().state is State.CANCELLED


def test_a_part_is_not_cancelled_alone(shop: Shop) -> None:
    with shop.app.testing(), pytest.raises(CallerError, match="cancelled as a whole"):
        shop.app.blocking_handle("flow-x.1").cancel()


def test_calls_keep_their_options_and_the_context(shop: Shop) -> None:
    with shop.app.testing() as testing:
        begin = testing.clock.now.timestamp()

        @shop.app.task(name="when")
        async def when() -> float:
            return shop.app.now() - begin

        later = when.options(delay=3600, queue="late")
        handle = chain(when.call(), group([later.call(), when.call()])).blocking.push()
        testing.run()
        assert handle.status().state is State.RUNNING
        testing.app.queues["late"] = 1
        testing.clock.advance(hours=1)
        assert handle.result(timeout=0) == [3600, 0]
        with pytest.raises(CallerError, match="can't have unique="):
            when.options(unique="x").call().then(when.call()).blocking.push()


def test_a_workflow_that_takes_longer_than_it_is_kept_ends_in_the_dead_letters(shop: Shop) -> None:
    @shop.app.task(name="late")
    async def late() -> None:
        if current_job().tries == 0:
            raise Retry(delay=timedelta(days=8))

    with shop.app.testing() as testing:
        handle = group([late.call(), shop.note.call()]).then(shop.note.call("never")).blocking.push()
        testing.clock.advance(days=8, raises=False)
        with pytest.raises(TaskFailed, match="must end within 7 days"):
            handle.result(timeout=0)
        assert shop.seen == ["nothing"]


def test_a_result_that_does_not_fit_is_a_failure_with_a_sentence(shop: Shop) -> None:
    with shop.app.testing() as testing:
        handle = chain(shop.load.call("a"), shop.total.call()).blocking.push()  # type: ignore[arg-type]  # on purpose
        testing.run(raises=False)
        with pytest.raises(TaskFailed, match="task total: argument sizes: expected array, got object"):
            handle.result(timeout=0)


def test_mistakes_are_found_where_the_workflow_is_written(shop: Shop) -> None:
    with shop.app.testing():
        with pytest.raises(CallerError, match="lacks its first argument, and nothing comes before it"):
            chain(shop.measure.call(), shop.note.call()).blocking.push()  # type: ignore[misc]  # on purpose
        with pytest.raises(CallerError, match="lacks its first argument"):
            shop.measure.call().blocking.push()  # type: ignore[misc]  # on purpose
        with pytest.raises(CallerError, match="a chain must have at least one call"):
            chain()  # type: ignore[call-overload]  # on purpose
        with pytest.raises(CallerError, match="a group must have at least one member"):
            group([])
        with pytest.raises(CallerError, match="a chain is made of calls, chains and groups"):
            chain(shop.note)  # type: ignore[call-overload]  # on purpose
        with pytest.raises(TypeError, match="load: missing a required argument: 'url'"):
            shop.load.call(size=3)  # type: ignore[call-overload]  # on purpose
        deep: Any = shop.note.call()
        for _ in range(DEPTH_MAX + 1):
            deep = group([deep])
        with pytest.raises(CallerError, match="at most 8 deep"):
            deep.blocking.push()


def test_a_workflow_fails_if_a_call_of_it_is_unknown_and_is_not_to_wait() -> None:
    shop = Shop()
    shop.app.unknown = "fail"
    with shop.app.testing() as testing:
        handle = shop.load.call("a").then(shop.note.call()).blocking.push()
        del shop.app.tasks["note"]
        testing.run(raises=False)
        with pytest.raises(TaskFailed, match="there is no task note in this app"):
            handle.result(timeout=0)


async def _push_many(app: App, calls: list[Any]) -> None:
    await app.push_many(calls)


def test_only_calls_are_pushed_many_at_a_time(shop: Shop) -> None:
    with shop.app.testing():
        for wrong in (shop.measure.call(), shop.note.call().then(shop.note.call())):
            with pytest.raises(CallerError, match="push_many takes calls"):
                asyncio.run(_push_many(shop.app, [wrong]))


def test_a_group_whose_members_wait_runs(shop: Shop) -> None:
    with shop.app.testing() as testing:
        handle = group([shop.note.options(delay=60).call()]).blocking.push()
        testing.run()
        assert (handle.status().state, handle.status().done, handle.status().total) == (State.RUNNING, 0, 1)


def test_a_group_starts_however_many_workers_died_before() -> None:
    app = App("memory:")

    @app.task
    def one(n: int) -> int:
        return n

    with app.testing() as testing:
        handle = group([one.call(1), one.call(2)]).blocking.push()
        queue = app.blocking_client.store.queue(app.queue)
        (first,) = queue.peek(1)
        queue.remove(first.id)
        queue.push(first.payload, tries=100)
        testing.run()
        assert handle.result() == [1, 2]


def test_hooks_hear_of_each_call_that_is_pushed() -> None:
    pushed = []

    class Pushed:
        def pushed(self, call: Any) -> None:
            pushed.append(call.task)

    app = App("memory:", hooks=[Pushed()])
    numbers = itertools.count()

    @app.task(name="one")
    async def one() -> int:
        return next(numbers)

    @app.task(name="two", queue="b")
    async def two(values: list[int]) -> None: ...

    with app.testing() as testing:
        group([one.call(), one.call()]).then(two.call()).blocking.push()
        testing.run()
    assert pushed == ["one", "one", "two"]


FLOW = {"id": "forged", "keep": 60.0, "until": 1e12}
MEMBER = {"at": "A.0", "task": "note", "queue": "q"}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            {
                "task": "penstock.start",
                "flow": FLOW | {"then": [{"start": {"at": "A", "group": [MEMBER]}}, {"member": ["A", 0, 1]}]},
            },
            "the frames of a workflow must lead out of it, and those of group 'A' lead back into it",
        ),
        (
            {"task": "note", "flow": FLOW | {"at": "A.0", "then": [{"member": ["A", 2**29, 2**29 + 1]}]}},
            "a group must have 1 to 10000 members, numbered from 0, got number 536870912 of 536870913",
        ),
        (
            {"task": "penstock.join", "args": {"size": 2**29}, "flow": FLOW | {"at": "A"}},
            "a group must have 1 to 10000 members, numbered from 0, got number 0 of 536870912",
        ),
        (
            {"task": "note", "flow": FLOW | {"then": [{"start": {"at": "1", "group": []}}]}},
            "a part of a workflow must have the key task, or parts in chain or group",
        ),
        (
            {
                "task": "penstock.start",
                "flow": FLOW | {"keep": -5.0, "then": [{"start": {"at": "A", "group": [MEMBER]}}]},
            },
            "ttl must be 0 to 3153600000 seconds, got -5.0",
        ),
        (
            {"task": "penstock.join", "args": {"size": 1}, "flow": FLOW | {"id": "a\nb"}},
            "a key must be 1 to 200 bytes of printable text, got 'stop:a\\nb'",
        ),
    ],
    ids=[
        "frames that lead back",
        "a member of a huge group",
        "a wait for a huge group",
        "a part without parts",
        "a start with a time that can't be",
        "a wait under an id that can't be",
    ],
)
def test_a_workflow_that_no_app_has_pushed_ends_in_the_dead_letters(shop: Shop, body: Any, error: str) -> None:
    with shop.app.testing() as testing:
        store = shop.app.blocking_client.store
        store.queue("q").push(body)
        testing.run(raises=False)
        assert [job.headers[ERROR] for job in store.dead_letters().peek()] == [error]


def test_a_job_whose_flow_is_null_is_a_plain_call(shop: Shop) -> None:
    with shop.app.testing() as testing:
        shop.app.blocking_client.store.queue("q").push({"task": "note", "flow": None})
        testing.run()
        assert shop.seen == ["nothing"]
