"""Tasks pushed and run in one process: arguments, errors, retries, hooks."""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import re
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

import penstock
from penstock import App, Fail, Fixed, Retry, chain, current_job
from penstock.errors import BadPayload, CallerError, Unsupported
from penstock.queues.dead_letter import ERROR, TRIES
from penstock.tasks.message import UNKNOWN_QUEUE


class Size(enum.Enum):
    HD = "hd"


class Tags(TypedDict):
    name: str


@dataclass
class Preset:
    width: int
    size: Size


class Customer(pydantic.BaseModel):
    name: str
    age: int


@attrs.define
class Address:
    street: str
    number: int | None = None


class Point(NamedTuple):
    x: int
    y: int


class Parcel(msgspec.Struct):
    weight: float
    to: Address


EVERYTHING: dict[str, Any] = {
    "path": Path("/tmp/a.mov"),
    "preset": Preset(3, Size.HD),
    "tags": Tags(name="x"),
    "when": datetime(2026, 3, 29, 2, 30, tzinfo=UTC),
    "span": timedelta(minutes=2),
    "key": UUID(int=7),
    "price": Decimal("1.10"),
    "raw": b"\0\xff",
    "customer": Customer(name="ann", age=5),
    "address": Address("Quay"),
    "points": (Point(1, 2), Point(3, 4)),
    "parcel": Parcel(1.5, Address("Quay", 7)),
    "how": "fast",
}


def run(app: App, **options: Any) -> penstock.Summary:
    """Run what is ready; one at a time, so that the order is known."""
    return app.worker(**{"concurrency": 1, **options}).main(until_empty=True)


def dead(app: App) -> list[tuple[Any, str]]:
    queue = app.blocking_client.store.dead_letters()
    return [(job.payload, job.headers[ERROR]) for job in queue.peek(100)]


@pytest.fixture
def app() -> App:
    return App("memory:")


def test_arguments_arrive_as_they_were_given(app: App) -> None:
    got: list[Any] = []

    @app.task
    async def keep(
        path: Path,
        preset: Preset,
        tags: Tags,
        when: datetime,
        span: timedelta,
        *,
        key: UUID,
        price: Decimal,
        raw: bytes,
        customer: Customer,
        address: Address,
        points: tuple[Point, ...],
        parcel: Parcel,
        how: Literal["fast", "slow"],
        left_out: int = 5,
    ) -> None:
        rest = [customer, address, points, parcel, how, left_out]
        got.append([path, preset, tags, when, span, key, price, raw, *rest])

    keep.blocking.push(**EVERYTHING)
    assert run(app).done == 1
    assert got == [[*EVERYTHING.values(), 5]]


def test_a_job_is_an_object_that_any_program_can_write(app: App) -> None:
    got = []

    @app.task(name="mail.welcome", queue="mail")
    def welcome(user_id: int, *rest: int, note: str = "", **more: float) -> None:
        got.append((user_id, rest, note, more))

    welcome.blocking.push(42, 1, 2, x=1.5)
    queue = app.blocking_client.store.queue("mail")
    assert [job.payload for job in queue.peek()] == [
        {"task": "mail.welcome", "args": {"user_id": 42, "rest": [1, 2], "more": {"x": 1.5}}}
    ]
    queue.push({"task": "mail.welcome", "args": {"user_id": 7, "note": "by hand"}, "of a newer version": 1})
    assert run(app).done == 2
    assert got == [(42, (1, 2), "", {"x": 1.5}), (7, (), "by hand", {})]


@pytest.mark.parametrize(
    ("args", "named", "error", "says"),
    [
        (("42",), {}, BadPayload, "argument user_id: expected int, got str"),
        ((1,), {"preset": Preset("3", Size.HD)}, BadPayload, "argument preset.width: expected int, got str"),  # type: ignore[arg-type]  # on purpose
        ((1,), {"anything": object()}, BadPayload, "argument anything can't be pushed: a value of type object"),
        ((1,), {"anything": float("nan")}, BadPayload, "argument anything can't be pushed"),
        ((), {}, TypeError, "missing a required argument: 'user_id'"),
        ((1,), {"users": 2}, TypeError, "unexpected keyword argument 'users'"),
        ((1, None, None, 4), {}, TypeError, "too many positional arguments"),
    ],
)
def test_a_wrong_call_fails_at_the_push_with_the_name(
    app: App, args: tuple[Any, ...], named: dict[str, Any], error: type[Exception], says: str
) -> None:
    @app.task(queue="mail")
    def welcome(user_id: int, preset: Preset | None = None, anything: Any = None) -> None: ...

    with pytest.raises(error, match=says) as raised:
        welcome.blocking.push(*args, **named)
    assert "welcome" in str(raised.value)
    assert app.blocking_client.store.queue("mail").total() == 0


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"task": "t", "args": {"count": "x"}}, "argument count: expected int, got str"),
        ({"task": "t"}, "argument count is missing"),
        ({"task": "t", "args": {"count": 1, "cuont": 1}}, "there is no parameter cuont"),
        ({"task": "t", "args": [1]}, "expected object, got array"),
        (5, "the body must be an object such as"),
        ({"args": {}}, "missing required field task"),
    ],
)
def test_a_stored_job_that_does_not_fit_is_a_dead_letter_with_a_sentence(app: App, payload: Any, says: str) -> None:
    @app.task(name="t", queue="q")
    def task(count: int) -> None: ...

    app.blocking_client.store.open()
    app.blocking_client.store.queue("q").push(payload)
    assert run(app).failed == 1
    ((kept, error),) = dead(app)
    assert kept == payload
    assert says.lower() in error.lower()


@pytest.mark.parametrize(
    ("queue", "body", "error"),
    [
        ("mail", {"task": "shop.later", "args": json.loads('{"n":' * 600 + "1" + "}" * 600)}, "a payload must have"),
        (UNKNOWN_QUEUE, {"task": "known", "queue": "q" * 2000}, "the name of the target queue must be 1 to 1024"),
        (UNKNOWN_QUEUE, {"task": "known", "queue": 5}, "the body must be an object such as"),
    ],
    ids=["too deep", "to a queue that can't be", "to no name"],
)  # fmt: skip
def test_a_job_that_can_never_be_put_aside_or_back_is_a_dead_letter(
    app: App, queue: str, body: dict[str, Any], error: str
) -> None:
    @app.task(name="known", queue="mail")
    def known() -> None: ...

    store = app.blocking_client.store
    store.open()
    store.queue(queue).push(json.dumps(body).encode())
    asyncio.run(_until(app, lambda: dead(app)))
    ((_, said),) = dead(app)
    assert said.startswith(error)


def test_a_job_of_an_unknown_task_waits_for_a_worker_that_has_it(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(queue="mail", max_tries=1)
    def known() -> None: ...

    store = app.blocking_client.store
    store.open()
    sent = {"task": "shop.later", "args": {"n": 1}}
    job_id = store.queue("mail").push(sent)
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        run(app)
    assert "waits in __unknown__: there is no task shop.later in this app" in caplog.text
    assert [job.payload for job in store.queue(UNKNOWN_QUEUE).peek()] == [{**sent, "queue": "mail", "id": job_id}]

    got = []

    @app.task(name="shop.later", queue="elsewhere", max_tries=1)
    def later(n: int) -> None:
        got.append((n, current_job().queue, current_job().tries, current_job().id))

    asyncio.run(_until(app, lambda: bool(got)))
    assert got == [(1, "mail", 0, job_id)]
    assert dead(app) == []


async def _until(app: App, is_over: Any) -> None:
    """Run a worker as `penstock worker` does until something is true."""
    async with app, asyncio.timeout(30):
        worker = app.worker()
        task = asyncio.create_task(worker.run())
        while not is_over():  # noqa: ASYNC110 - what is waited for happens in a thread
            await asyncio.sleep(0.01)
        worker.stop()
        await task


def test_unknown_tasks_fail_by_choice() -> None:
    app = App("memory:", unknown="fail")

    @app.task(queue="mail")
    def known() -> None: ...

    app.blocking_client.store.open()
    app.blocking_client.store.queue("mail").push({"task": "shop.nix"})
    assert run(app).failed == 1
    assert [error for _, error in dead(app)] == ["there is no task shop.nix in this app"]


def test_async_and_plain_tasks_of_several_queues_share_a_worker(app: App) -> None:
    done = []

    @app.task(queue="a")
    async def soft(n: int) -> None:
        done.append(n)

    @app.task(queue="b")
    def hard(n: int) -> None:
        done.append(n)

    for n in range(50):
        (soft if n % 2 else hard).blocking.push(n)
    assert run(app, concurrency=4).done == 50
    assert sorted(done) == list(range(50))


def test_only_the_queues_that_were_named(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(queue="a")
    def first() -> None: ...

    @app.task(queue="b")
    def second() -> None: ...

    first.blocking.push()
    second.blocking.push()
    assert run(app, queues=["b"]).done == 1
    assert app.blocking_client.store.queue("a").size() == 1
    assert "No task" not in caplog.text
    second.options(queue="c").blocking.push()  # tasks may be pushed to any queue
    assert run(app, queues=["c"]).done == 1
    assert "No task of the app is for the queue c; its queues are a, b." in caplog.text


def test_each_task_has_its_own_number_of_tries(app: App) -> None:
    tries: list[str] = []

    @app.task(queue="q", max_tries=1)
    async def once() -> None:
        tries.append("once")
        raise OSError("no")

    @app.task(queue="q", max_tries=3, backoff=0)
    def thrice() -> None:
        tries.append("thrice")
        raise OSError("never")

    once.blocking.push()
    thrice.blocking.push()
    summary = run(app)
    assert (summary.failed, summary.retried) == (2, 2)
    assert sorted(tries) == ["once", "thrice", "thrice", "thrice"]
    assert sorted(error for _, error in dead(app)) == ["OSError: never", "OSError: no"]


def test_errors_of_some_kinds_are_not_tried_again(app: App) -> None:
    @app.task(queue="q", backoff=0, fail_on=KeyError, max_tries=5)
    def first() -> None:
        raise KeyError("gone")

    @app.task(queue="q", backoff=0, retry_on=(OSError,), max_tries=5)
    async def second(what: str) -> None:
        if what == "os" and current_job().tries == 2:
            return
        raise OSError("again") if what == "os" else ValueError("bad")

    @app.task(queue="q", retry_on=OSError)
    def third() -> None:
        if not current_job().tries:
            raise Retry(delay=0)
        raise Fail("said so")

    first.blocking.push()
    second.blocking.push("os")
    second.blocking.push("value")
    third.blocking.push()
    summary = run(app)
    assert (summary.done, summary.failed, summary.retried) == (1, 3, 3)
    assert sorted(error for _, error in dead(app)) == ["KeyError: 'gone'", "ValueError: bad", "said so"]


def test_an_alias_runs_the_jobs_of_an_earlier_name(app: App) -> None:
    got = []

    @app.task(name="shop.new", aliases=["shop.old"], queue="q")
    def task(n: int) -> None:
        got.append(n)

    task.blocking.push(1)
    app.blocking_client.store.queue("q").push({"task": "shop.old", "args": {"n": 2}})
    assert run(app).done == 2
    assert got == [1, 2]


def test_a_job_past_its_deadline_is_not_started(app: App) -> None:
    @app.task(queue="q", deadline=60)
    def task() -> None: ...

    task.blocking.push()
    task.options(deadline=200).blocking.push()
    app.now = lambda: datetime.now(UTC).timestamp() + 100
    summary = run(app)
    assert (summary.done, summary.failed) == (1, 1)
    assert "its deadline was" in dead(app)[0][1]


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_task_that_overruns_its_time_limit_fails(app: App, kind: str) -> None:
    import threading

    go_on = threading.Event()
    if kind == "async":

        @app.task(queue="q", time_limit=0.05, max_tries=1)
        async def slow() -> None:
            await asyncio.sleep(60)
    else:

        @app.task(queue="q", time_limit=0.05, max_tries=1)
        def slow() -> None:
            go_on.wait(60)

    @app.task(queue="q")
    async def unlimited() -> None: ...

    slow.blocking.push()
    unlimited.blocking.push()
    summary = run(app, concurrency=2)
    go_on.set()
    assert (summary.done, summary.failed) == (1, 1)
    assert "longer than its time limit of 0.05 s" in dead(app)[0][1]


def test_no_more_of_a_task_run_at_the_same_time_than_it_allows(app: App) -> None:
    running: dict[str, int] = {"few": 0, "many": 0}
    most = dict(running)

    async def work(name: str) -> None:
        running[name] += 1
        most[name] = max(most[name], running[name])
        await asyncio.sleep(0.005)
        running[name] -= 1

    @app.task(queue="q", concurrency=2)
    async def few() -> None:
        await work("few")

    @app.task(queue="q")
    async def many() -> None:
        await work("many")

    for _ in range(10):
        few.blocking.push()
        many.blocking.push()
    assert run(app, concurrency=8).done == 20
    assert most["few"] == 2
    assert most["many"] > 2


def test_a_call_that_waits_for_others_of_its_task_counts_no_try_if_its_worker_dies(app: App) -> None:
    has_begun: list[list[bool]] = []

    @app.task(queue="q", concurrency=1)
    async def one() -> None:
        reserved = app.blocking_client.store.queue("q").peek(10, state="reserved")
        has_begun.append([job.has_begun for job in reserved if job.id != current_job().job_id])

    for _ in range(3):
        one.blocking.push()
    assert run(app, concurrency=3).done == 3
    assert has_begun[0] == [False, False]


def test_a_call_whose_worker_died_in_its_last_try_has_the_number_of_tries_before(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="t", queue="q", max_tries=2)
    async def work() -> None: ...

    store = app.blocking_client.store
    store.queue("q").push({"task": "t", "args": {}}, tries=2)  # as it comes back after two workers died
    assert run(app).failed == 1
    (job,) = store.dead_letters().peek()
    assert job.headers[TRIES] == 1
    assert any("to the dead letters after 2 deliveries: the worker died" in line for line in caplog.messages)


def test_hooks_surround_a_task_and_may_fail() -> None:
    seen: list[Any] = []

    class Watch:
        def __init__(self, name: str) -> None:
            self.name = name

        def pushed(self, call: Any) -> None:
            seen.append((self.name, "pushed", call.task, call.args))

        def before(self, call: Any) -> None:
            seen.append((self.name, "before", call.id))
            raise RuntimeError("a hook costs no job")

        def after(self, call: Any, result: Any) -> None:
            seen.append((self.name, "after", result))

        def failed(self, call: Any, error: BaseException) -> None:
            seen.append((self.name, "failed", str(error)))

    app = App("memory:", hooks=[Watch("app")])

    @app.task(name="t", queue="q", hooks=[Watch("own")], max_tries=1)
    def task(n: int) -> int:
        if n:
            raise ValueError("no")
        return 5

    first, second = task.blocking.push(0), task.blocking.push(1)
    run(app)
    assert seen == [
        ("app", "pushed", "t", {"n": 0}),
        ("own", "pushed", "t", {"n": 0}),
        ("app", "pushed", "t", {"n": 1}),
        ("own", "pushed", "t", {"n": 1}),
        ("app", "before", first.id),
        ("own", "before", first.id),
        ("own", "after", 5),
        ("app", "after", 5),
        ("app", "before", second.id),
        ("own", "before", second.id),
        ("own", "failed", "no"),
        ("app", "failed", "no"),
    ]


tenant: ContextVar[str] = ContextVar("tenant")


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_context_goes_from_the_pusher_to_the_task(kind: str) -> None:
    app = App("memory:", context=[tenant])
    seen: list[str] = []

    def note() -> None:
        seen.append(tenant.get("none"))

    async def note_async() -> None:
        note()

    task: Any = app.task(queue="q")(note_async if kind == "async" else note)
    token = tenant.set("acme")
    task.blocking.push()
    tenant.reset(token)
    task.blocking.push()
    run(app)
    assert seen == ["acme", "none"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rate_limit": 5}, "rate_limit= is not there yet"),
        ({"priority": 5}, "priority= is not there yet"),
        ({"global_concurrency": 5}, "global_concurrency= is not there yet"),
        ({"fair": True}, "fair= is not there yet"),
        ({"max_tires": 5}, "there is no option max_tires="),
        ({"max_tries": -1}, "max_tries must be 0 or more"),
        ({"time_limit": 0}, "time_limit must be above 0 seconds, got 0"),
        ({"retry_on": "OSError"}, "retry_on must be exception classes, got 'O'"),
        ({"queue": ""}, "queue must be the name of a queue"),
        ({"concurrency": 0}, "concurrency must be 1 or more"),
        ({"backoff": "soon"}, "backoff must be seconds"),
        ({"aliases": "old"}, "aliases must be a list of names"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(app: App, options: dict[str, Any], says: str) -> None:
    with pytest.raises((CallerError, TypeError), match=says):

        @app.task(**options)
        def task() -> None: ...


def test_options_of_a_push_that_are_to_come_are_refused_by_name(app: App) -> None:
    @app.task
    def task() -> None: ...

    with pytest.raises(CallerError, match="priority= is not there yet: priorities; give urgent tasks a queue"):
        task.options(priority=5)  # type: ignore[call-arg]  # which is what is tested


def test_a_retry_of_0_is_not_taken_for_none(app: App) -> None:
    """It asks for at most once, which a store refuses if it can't."""

    @app.task
    def task() -> None: ...

    with app.testing(), pytest.raises(Unsupported, match="lacks retry"):
        task.options(retry=0).blocking.push()
    with pytest.raises(CallerError, match="a call of a workflow can't have retry="):
        chain(task.options(retry=0).call(), task.call()).blocking.push()


def test_annotations_that_no_json_fits_are_refused_before_the_worker_begins(app: App) -> None:
    @app.task(name="t")
    def task(a: Preset | Customer | Path) -> None: ...

    with pytest.raises(CallerError, match="task t: parameter a can't be read from JSON"):
        app.worker()


def test_a_task_that_is_called_is_the_function(app: App) -> None:
    @app.task
    def double(n: int) -> int:
        """Twice."""
        return 2 * n

    @app.task
    async def soft(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    assert asyncio.run(soft(4)) == 8
    assert (double.__doc__, double.__name__) == ("Twice.", "double")


@pytest.mark.parametrize(
    ("name", "here"), [("delay", r"work\.push\("), ("s", r"work\.call\("), ("nonsense", "'nonsense'$")]
)
def test_what_other_libraries_call_it_is_answered_with_what_it_is_called_here(app: App, name: str, here: str) -> None:
    @app.task(name="work", queue="q")
    def work() -> None: ...

    with pytest.raises(AttributeError, match=f"no attribute '{name}'") as refused:
        getattr(work, name)
    assert re.search(here, str(refused.value))


def test_many_calls_go_to_their_queues_together(app: App) -> None:
    @app.task(queue="a")
    def first(n: int) -> None: ...

    @app.task(queue="b")
    def second(n: int) -> None: ...

    async def push() -> list[str]:
        async with app:
            handles = await app.push_many([first.call(1), second.options(delay=60).call(2), first.call(3)])
            return [handle.id for handle in handles]

    ids = asyncio.run(push())
    store = app.blocking_client.store
    store.open()
    assert [job.id for job in store.queue("a").peek()] == [ids[0], ids[2]]
    assert store.queue("b").scheduled() == 1


def test_a_task_that_waits_for_a_thread_to_leave_it_a_slot_goes_back_when_the_worker_stops(app: App) -> None:
    began, go = threading.Event(), threading.Event()

    @app.task
    def plain() -> None:
        began.set()
        go.wait(30)

    @app.task
    async def other() -> None:
        raise AssertionError("it had no slot")

    async def work() -> None:
        async with app, asyncio.timeout(30):
            await plain.push()
            await other.push()
            worker = app.worker(concurrency=1, prefetch=10)
            task = asyncio.create_task(worker.run())
            queue = app.client.store.queue("default")
            while await queue.size() or not began.is_set():  # noqa: ASYNC110 - until the worker has both
                await asyncio.sleep(0.01)
            worker.stop()
            while not await queue.size():  # noqa: ASYNC110 - until one is back
                await asyncio.sleep(0.01)
            go.set()
            assert (await task).counts()["done"] == 1
            (left,) = [job async for job in queue.jobs()]
            assert (left.payload["task"], left.tries) == (other.name, 0)

    asyncio.run(work())


def test_a_queue_may_have_a_concurrency_of_its_own() -> None:
    app = App("memory:", queues={"slow": 1})
    running, most = 0, 0

    @app.task(queue="slow")
    async def slow(n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    @app.task(queue="fast")
    async def fast() -> None:
        await slow.push(5)

    for n in range(5):
        slow.blocking.push(n)
    fast.blocking.push()
    assert run(app, concurrency=10).done == 7
    assert most == 1


def test_a_blocking_push_in_an_event_loop_is_refused(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(name="t")
    def task() -> None: ...

    async def push() -> None:
        task.blocking.push()

    with pytest.raises(CallerError, match=r"await t.push\(\)"):
        asyncio.run(push())


def test_an_app_without_a_store_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    app = App()
    with pytest.raises(CallerError, match="set PENSTOCK_URL"):
        str(app.url)
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///x.db")
    assert app.url == "sqlite:///x.db"


def test_backoff_of_a_task_decides_when_it_comes_back(app: App) -> None:
    @app.task(queue="q", backoff=Fixed(50))
    def task() -> None:
        raise OSError

    task.blocking.push()
    run(app)
    (job,) = app.blocking_client.store.queue("q").peek(state="scheduled")
    assert job.mature is not None
    assert 40 < job.mature - datetime.now(UTC).timestamp() <= 50
