"""What a worker says and counts: hooks, records of the logger, text and JSON."""

import asyncio
import json
import logging

import pytest

import penstock
from penstock import Fail, Fixed, Job, Summary, Worker
from penstock.worker.logs import LINES_A_SECOND, EventFilter, JsonFormatter, RateLimit, TextFormatter, facts_of
from penstock.worker.prefetch import PREFETCH_MAX
from penstock.worker.reporting import HOOKS_MAX, LEVELS, log_event
from penstock.worker.worker import Handler
from tests.unit.worker.virtual_time import memory_store, virtual


@virtual
async def test_hooks_are_called_as_it_happens() -> None:
    async with memory_store() as store:
        await store.queue("mail").push_many(["good", "bad"])
        heard: list[tuple[str, object]] = []

        async def handle(job: Job) -> None:
            if job.payload == "bad":
                raise ValueError("no")

        worker = Worker(
            store,
            "mail",
            handle,
            max_tries=1,
            concurrency=1,
            on_start=lambda job: heard.append(("start", job.payload)),
            on_done=lambda job, seconds: heard.append(("done", seconds >= 0)),
            on_error=lambda job, error: heard.append(("error", str(error))),
        )
        await worker.run(until_empty=True)
        assert sorted(heard, key=str) == [("done", True), ("error", "no"), ("start", "bad"), ("start", "good")]


def _plain(job: Job) -> None:
    if job.payload == "bad":
        raise ValueError("no")


async def _awaiting(job: Job) -> None:
    _plain(job)


@pytest.mark.parametrize("handler", [_plain, _awaiting])
def test_hooks_that_await_are_awaited(handler: Handler) -> None:
    asyncio.run(_check_hooks(handler))


async def _check_hooks(handler: Handler) -> None:
    async with penstock.connect("memory:") as store:
        mail, seen = store.queue("mail"), store.queue("seen")
        await mail.push_many(["good", "bad"])
        heard: list[tuple[str, object]] = []

        async def started(job: Job) -> None:
            await asyncio.sleep(0)
            heard.append(("start", job.payload))

        async def done(job: Job, seconds: float) -> None:
            await seen.push(["done", job.payload])

        async def failed(job: Job, error: BaseException) -> None:
            await seen.push(["error", str(error)])

        worker = Worker(
            store, "mail", handler, max_tries=1, concurrency=1, on_start=started, on_done=done, on_error=failed
        )
        await worker.run(until_empty=True)
        assert heard == [("start", "good"), ("start", "bad")]
        assert [job.payload for job in await seen.peek()] == [["done", "good"], ["error", "no"]]


@virtual
async def test_a_hook_that_awaits_and_pushes_is_part_of_what_until_empty_waits_for() -> None:
    async with memory_store() as store:
        mail = store.queue("mail")
        await mail.push(3)

        async def done(job: Job, seconds: float) -> None:
            await asyncio.sleep(60)
            if job.payload:
                await mail.push(job.payload - 1)

        summary = await Worker(store, "mail", _succeed, on_done=done).run(until_empty=True)
        assert (summary.done, await mail.total()) == (4, 0)


@virtual
async def test_hooks_that_await_without_end_keep_neither_jobs_nor_the_end() -> None:
    async with memory_store() as store:
        await store.queue("mail").push_many(range(3 * HOOKS_MAX))
        begun = 0

        async def done(job: Job, seconds: float) -> None:
            nonlocal begun
            begun += 1
            await asyncio.Event().wait()

        worker = Worker(store, "mail", _succeed, on_done=done, shutdown_timeout=5)
        run = asyncio.create_task(worker.run())
        await asyncio.sleep(1000)
        # Not more jobs are run than hooks may be pending.
        assert HOOKS_MAX <= begun < 2 * HOOKS_MAX + 2 * PREFETCH_MAX
        worker.stop()
        summary = await run
        assert summary.done == begun
        assert await store.queue("mail").reserved() == 0


async def _succeed(job: Job) -> None:
    pass


async def _fail(job: Job) -> None:
    raise Fail("never")


@pytest.mark.parametrize("awaits", [False, True], ids=["plain", "awaits"])
@pytest.mark.parametrize("problem", [ZeroDivisionError("by 0"), SystemExit("bye")])
@pytest.mark.parametrize(
    ("hook", "handler"),
    [
        ("on_start", _succeed),
        ("on_start", lambda job: None),
        ("on_done", _succeed),
        ("on_done", lambda job: None),
        ("on_error", _fail),
    ],
)
def test_a_hook_that_raises_is_reported_and_costs_no_job(
    hook: str, handler: Handler, problem: BaseException, awaits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        def broken(*facts: object) -> None:
            raise problem

        async def broken_later(*facts: object) -> None:
            await asyncio.sleep(0)
            raise problem

        async with memory_store() as store:
            await store.queue("mail").push_many([1, 2])
            summary = await Worker(store, "mail", handler, **{hook: broken_later if awaits else broken}).run(
                until_empty=True
            )
            assert (summary.done, summary.failed) == ((0, 2) if handler is _fail else (2, 0))
            assert await store.queue("mail").total() == 0

    asyncio.run(main())
    assert [facts_of(record)["event"] for record in caplog.records].count("hook") == 2


@virtual
async def test_every_job_leaves_a_record_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "penstock.worker")
    async with memory_store() as store:
        queue = store.queue("mail")
        ids = {word: await queue.push(word) for word in ("good", "bad", "worst")}

        async def handle(job: Job) -> None:
            if job.payload == "worst":
                raise Fail("never")
            if job.payload == "bad":
                raise ValueError("not now")

        await Worker(store, "mail", handle, backoff=Fixed(60)).run(until_empty=True)
    facts = {facts_of(record)["job"]: facts_of(record) for record in caplog.records if "job" in facts_of(record)}
    assert {word: facts[ids[word]]["event"] for word in ids} == {"good": "done", "bad": "retry", "worst": "failed"}
    assert facts[ids["bad"]]["error"] == "ValueError: not now"
    assert facts[ids["bad"]]["delay"] == 60
    assert facts[ids["worst"]]["error"] == "never"
    assert all(
        facts[job]["queue"] == "mail" and facts[job]["tries"] == 0 and facts[job]["seconds"] >= 0 for job in facts
    )
    events = [facts_of(record)["event"] for record in caplog.records]
    assert (events[0], events[-1]) == ("start", "stop")


@virtual
async def test_a_summary_is_said_only_while_something_happens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.worker")
    async with memory_store() as store:
        await store.queue("mail").push_many(range(10))

        async def handle(job: Job) -> None:
            await asyncio.sleep(1)

        worker = Worker(store, "mail", handle, concurrency=1)
        run = asyncio.create_task(worker.run())
        await asyncio.sleep(1000)
        worker.stop()
        await run
    summaries = [record for record in caplog.records if facts_of(record)["event"] == "summary"]
    assert 2 <= len(summaries) <= 4
    assert facts_of(summaries[-1])["done"] == 10


def test_a_summary_reads_well() -> None:
    assert str(Summary()) == "0 done"
    assert str(Summary(done=12345, retried=2, lost=1)) == "12,345 done, 2 retried, 1 lost"


def record_of(event: str, sentence: str = "mail 1: done", **facts: object) -> logging.LogRecord:
    record = logging.LogRecord("penstock.worker", LEVELS[event], "x.py", 1, "%s", (sentence,), None)
    record.penstock = {"event": event, **facts}
    return record


def test_a_line_of_json_has_the_events_facts() -> None:
    record = record_of("retry", job="a", queue="mail", tries=2, seconds=0.5, error="ValueError", delay=None)
    fields = json.loads(JsonFormatter(False, pid=7).format(record))
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "warning",
        "event": "retry",
        "text": "mail 1: done",
        "pid": 7,
        "job": "a",
        "queue": "mail",
        "tries": 2,
        "seconds": 0.5,
        "error": "ValueError",
    }


def test_records_of_the_application_have_the_same_form() -> None:
    record = logging.LogRecord("shop", logging.INFO, "x.py", 1, "sold %d", (3,), None)
    fields = json.loads(JsonFormatter(False).format(record))
    assert (fields["event"], fields["logger"], fields["text"]) == ("log", "shop", "sold 3")
    assert TextFormatter(False, False).format(record).endswith(" shop: sold 3")


def test_a_text_line_has_colours_only_if_wanted() -> None:
    assert "\x1b[33m" in TextFormatter(True, False).format(record_of("retry"))
    assert "\x1b" not in TextFormatter(False, False).format(record_of("retry"))


def test_a_name_or_an_error_of_somebody_else_neither_controls_the_terminal_nor_ends_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        log_event("retry", "mail 1 again: no \x1b]0;title\x07\n12:00:00 mail 2 done\x9b2J")
    line = TextFormatter(False, False).format(caplog.records[0])
    assert line.endswith(r" mail 1 again: no \x1b]0;title\x07\n12:00:00 mail 2 done\x9b2J")


def test_where_an_error_arose_is_reported_only_on_request(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("here")
    except ValueError as problem:
        log_event("retry", "mail 1 again", problem)
    (record,) = caplog.records
    assert "Traceback" not in TextFormatter(False, False).format(record)
    assert "Traceback" in TextFormatter(False, True).format(record)
    assert "traceback" not in json.loads(JsonFormatter(False).format(record))
    assert "Traceback" in json.loads(JsonFormatter(True).format(record))["traceback"]


def test_only_so_many_lines_a_second_are_said_about_single_jobs() -> None:
    sparing = RateLimit()
    records = [record_of("retry") for _ in range(100)]
    for at, record in enumerate(records):
        record.created = 1000.0 + at // 50  # two seconds
    assert sum(map(sparing.filter, records)) == 2 * LINES_A_SECOND
    assert all(sparing.filter(record_of("summary")) for _ in range(100))


def test_events_can_be_left_out() -> None:
    quiet = EventFilter({"summary"})
    assert not quiet.filter(record_of("summary"))
    assert quiet.filter(record_of("retry"))
    assert quiet.filter(logging.LogRecord("shop", logging.INFO, "x.py", 1, "sold", None, None))
