"""How jobs come in: as many at a time as wanted, ahead where it helps, of several queues, until there are none."""

import asyncio
from typing import Any

import pytest

from penstock import DeadLetter, Fixed, Job, Store, Worker
from penstock.errors import CallerError, Unsupported
from penstock.queues.capabilities import Capability
from penstock.worker.worker import MAX_TRIES
from tests.unit.worker.driver_calls import watch
from tests.unit.worker.virtual_time import memory_store, virtual


@virtual
async def test_never_more_handlers_run_than_wanted_and_no_fewer() -> None:
    async with memory_store() as store:
        await store.queue("mail").push_many(range(50))
        running = 0
        seen = []

        async def handle(job: Job) -> None:
            nonlocal running
            running += 1
            seen.append(running)
            await asyncio.sleep(1)
            running -= 1

        began = asyncio.get_running_loop().time()
        summary = await Worker(store, "mail", handle, concurrency=5).run(until_empty=True)
        assert (summary.done, max(seen)) == (50, 5)
        assert round(asyncio.get_running_loop().time() - began) == 10


@virtual
async def test_jobs_that_take_long_are_not_taken_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push_many(range(20))
        taken = []
        _count_run_times_in(monkeypatch, asyncio.get_running_loop())

        async def handle(job: Job) -> None:
            taken.append(await queue.reserved())
            await asyncio.sleep(60)

        await Worker(store, "mail", handle, concurrency=3).run(until_empty=True)
        assert max(count or 0 for count in taken) == 3


@virtual
async def test_short_jobs_are_taken_ahead_and_acked_together() -> None:
    async with memory_store() as store:
        await store.queue("mail").push_many(range(2000))
        reserved, acked = watch(store, "reserve"), watch(store, "ack")

        async def handle(job: Job) -> None:
            pass

        summary = await Worker(store, "mail", handle, concurrency=50).run(until_empty=True)
        assert summary.done == 2000
        assert max(reserved) > 200
        assert len(reserved) < 50
        assert len(acked) < 200


@virtual
async def test_the_number_of_jobs_taken_ahead_can_be_set() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push_many(range(20))
        taken = []

        async def handle(job: Job) -> None:
            taken.append(await queue.reserved())
            await asyncio.sleep(60)

        await Worker(store, "mail", handle, concurrency=2, prefetch=3).run(until_empty=True)
        assert max(count or 0 for count in taken) == 5


@virtual
async def test_jobs_that_were_taken_ahead_and_cannot_begin_go_back_without_a_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        # Short ones first, so that many are taken ahead; then one that holds all up.
        await queue.push_many(["short"] * 30 + ["long"] + ["behind"] * 30)
        _count_run_times_in(monkeypatch, asyncio.get_running_loop())
        free = []

        async def handle(job: Job) -> None:
            if job.payload == "long":
                assert await queue.reserved() > 1
                await asyncio.sleep(5)
                free.extend(await queue.peek(100))
                await asyncio.sleep(5)

        summary = await Worker(store, "mail", handle, concurrency=1).run(until_empty=True)
        assert [(job.payload, job.tries) for job in free] == [("behind", 0)] * 30
        assert (summary.done, summary.retried) == (61, 0)
        assert summary.released > 0


@virtual
async def test_few_jobs_are_taken_ahead_after_jobs_came_back_from_a_worker_that_died() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push("came back")
        assert await queue.reserve(lease=10)
        await asyncio.sleep(11)
        await queue.push_many(range(2000))
        reserved = watch(store, "reserve")

        async def handle(job: Job) -> None:
            pass

        assert (await Worker(store, queue, handle, concurrency=50).run(until_empty=True)).done == 2001
        assert max(reserved) <= 2 * 50


@virtual
async def test_jobs_that_came_back_from_a_worker_that_died_begin_one_after_the_other() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push_many(range(5))
        assert len(await queue.reserve_many(5, lease=10)) == 5
        await asyncio.sleep(11)
        running = most = 0

        async def handle(job: Job) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.05)
            running -= 1

        assert (await Worker(store, queue, handle, concurrency=5).run(until_empty=True)).done == 5
        assert most == 1


@virtual
async def test_the_store_knows_that_a_job_begins_before_its_last_try_and_after_a_worker_died() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push("came back")
        assert await queue.reserve(lease=10)
        await asyncio.sleep(11)
        known = []

        async def handle(job: Job) -> None:
            known.extend(one.has_begun for one in await queue.peek(state="reserved") if one.id == job.id)

        await Worker(store, queue, handle).run(until_empty=True)
        await queue.push_many(["last try"] * 3)
        await Worker(store, queue, handle, max_tries=1, concurrency=1, prefetch=2).run(until_empty=True)
        assert known == [True] * 4


@virtual
async def test_queues_share_the_slots_and_an_empty_one_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_store() as store:
        _count_run_times_in(monkeypatch, asyncio.get_running_loop())
        for name in ("a", "b"):
            await store.queue(name).push_many([name] * 40)
        order: list[str] = []
        running = 0
        most = 0

        async def handle(job: Job) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            order.append(job.payload)
            await asyncio.sleep(10)
            running -= 1
            if len(order) == 80 and not running:
                worker.stop()

        worker = Worker(store, ["a", "b", "empty"], handle, concurrency=4)
        summary = await worker.run()
        assert (summary.done, most) == (80, 4)
        assert 8 <= order[4:24].count("a") <= 12  # the first four are those of the queue that asks first


@virtual
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_until_empty_queues_take_turns(concurrency: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_store() as store:
        _count_run_times_in(monkeypatch, asyncio.get_running_loop())
        for name in ("a", "b"):
            await store.queue(name).push_many([name] * 40)
        order: list[str] = []

        async def handle(job: Job) -> None:
            order.append(job.payload)
            await asyncio.sleep(10)

        worker = Worker(store, ["a", "empty", "b"], handle, concurrency=concurrency)
        summary = await worker.run(until_empty=True)
        assert summary.done == 80
        assert 8 <= order[4:24].count("a") <= 12  # the first four are those of the queue that asks first


@virtual
async def test_queues_that_were_empty_give_one_job_each_beyond_the_free_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_store() as store:
        queues = [store.queue(name) for name in ("a", "b", "c")]
        _count_run_times_in(monkeypatch, asyncio.get_running_loop())

        async def handle(job: Job) -> None:
            await asyncio.sleep(60)

        worker = Worker(store, ["a", "b", "c"], handle, concurrency=2)
        run = asyncio.create_task(worker.run())
        await asyncio.sleep(1)
        for queue in queues:
            await queue.push_many(range(10))
        await asyncio.sleep(0.5)
        assert sum([await queue.reserved() or 0 for queue in queues]) <= 2 + 3
        worker.stop(now=True)
        await run


@virtual
async def test_a_job_in_an_idle_queue_is_run_at_once() -> None:
    async with memory_store() as store:
        waits = []

        async def handle(job: Job) -> None:
            waits.append(asyncio.get_running_loop().time() - job.payload)
            if len(waits) == 3:
                worker.stop()

        worker = Worker(store, ["a", "b"], handle, concurrency=1)
        run = asyncio.create_task(worker.run())
        for name in ("a", "b", "a"):
            await asyncio.sleep(3600)
            await store.queue(name).push(asyncio.get_running_loop().time())
        await run
        assert [round(wait, 3) for wait in waits] == [0, 0, 0]


@virtual
async def test_until_empty_leaves_what_waits_for_its_time() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push("now")
        await queue.push("later", delay=60)

        async def handle(job: Job) -> None:
            pass

        summary = await Worker(store, "mail", handle).run(until_empty=True)
        assert (summary.done, await queue.scheduled()) == (1, 1)


@virtual
async def test_until_empty_goes_on_while_jobs_make_jobs() -> None:
    async with memory_store() as store:
        first, second = store.queue("first"), store.queue("second")
        await first.push(3)

        async def handle(job: Job) -> None:
            await asyncio.sleep(7)
            if job.queue.name == "first":
                await second.push(job.payload)
            elif job.payload:
                await first.push(job.payload - 1)
            await asyncio.sleep(50)

        summary = await Worker(store, ["second", "first"], handle).run(until_empty=True)
        assert summary.done == 8


@virtual
async def test_until_empty_waits_for_retries_that_come_at_once() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")

        async def handle(job: Job) -> None:
            if job.tries < 5:
                raise ValueError

        summary = await Worker(store, "mail", handle, backoff=Fixed(0)).run(until_empty=True)
        assert (summary.done, summary.retried) == (1, 5)


@virtual
async def test_a_paused_queue_returns_nothing_until_it_is_resumed() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.pause()
        await queue.push("x")
        done = []

        async def handle(job: Job) -> None:
            done.append(asyncio.get_running_loop().time())
            worker.stop()

        worker = Worker(store, "mail", handle)
        run = asyncio.create_task(worker.run())
        await asyncio.sleep(500)
        assert done == []
        await queue.resume()
        await run
        assert len(done) == 1


@virtual
async def test_a_queue_object_brings_its_own_options() -> None:
    async with memory_store() as store:
        queue = store.queue("mail", codec="text", lease=5, backoff=Fixed(77))
        await queue.push("42")
        seen = []

        async def handle(job: Job) -> None:
            seen.append((job.payload, job.lease))
            raise ValueError

        await Worker(store, queue, handle).run(until_empty=True)
        assert seen == [("42", 5)]
        assert await queue.next_mature() == asyncio.get_running_loop().time() + 77


async def _always_fails(job: Job) -> None:
    if job.tries < 2 * MAX_TRIES:  # so that a test of a limit that doesn't hold ends, too
        raise ValueError("never")


@virtual
async def test_max_tries_of_the_worker_holds_for_a_queue_object() -> None:
    async with memory_store() as store:
        queue = store.queue("mail", backoff=Fixed(0))
        await queue.push("x")
        summary = await Worker(store, queue, _always_fails, max_tries=2).run(until_empty=True)
        assert (summary.retried, summary.failed) == (1, 1)
        assert queue.dead_letter is None  # the caller's object stays as it was


@virtual
async def test_a_queue_object_without_a_limit_has_the_default_number_of_tries() -> None:
    async with memory_store() as store:
        queue = store.queue("mail", backoff=Fixed(0))
        await queue.push("x")
        summary = await Worker(store, queue, _always_fails).run(until_empty=True)
        assert (summary.retried, summary.failed) == (MAX_TRIES - 1, 1)


@virtual
async def test_the_dead_letter_option_of_the_worker_comes_before_that_of_a_queue_object() -> None:
    async with memory_store() as store:
        queue = store.queue("mail", dead_letter=DeadLetter(9, "unwanted"), backoff=Fixed(0))
        await queue.push("x")
        worker = Worker(store, queue, _always_fails, dead_letter=DeadLetter(1, "rejected"))
        await worker.run(until_empty=True)
        assert (await store.queue("rejected").size(), await store.queue("unwanted").size()) == (1, 0)


@pytest.mark.parametrize("limit", [1, "1,rejected"])
@virtual
async def test_the_dead_letter_option_of_the_worker_takes_what_that_of_a_queue_takes(limit: int | str) -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push("x")
        await Worker(store, queue, _always_fails, dead_letter=limit).run(until_empty=True)
        assert await store.queue("__deadletter__" if limit == 1 else "rejected").size() == 1
        with pytest.raises(CallerError, match="dead_letter must be a DeadLetter or a number of deliveries, got 'x'"):
            Worker(store, queue, _always_fails, dead_letter="x")


@virtual
async def test_max_tries_keeps_the_name_of_the_dead_letter_queue() -> None:
    async with memory_store(dead_letter=DeadLetter(9, "of-the-store")) as store:
        queue = store.queue("mail", dead_letter=DeadLetter(9, "of-the-queue"))
        await queue.push("x")
        await Worker(store, queue, _always_fails, max_tries=1).run(until_empty=True)
        await queue.push("y")
        await Worker(store, "mail", _always_fails, max_tries=1).run(until_empty=True)
        assert [job.payload for job in await store.queue("of-the-queue").peek()] == ["x"]
        assert [job.payload for job in await store.queue("of-the-store").peek()] == ["y"]


@virtual
async def test_the_back_off_of_the_worker_comes_before_that_of_a_queue_object() -> None:
    async with memory_store() as store:
        queue = store.queue("mail", backoff=Fixed(77))
        await queue.push("x")
        await Worker(store, queue, _always_fails, backoff=Fixed(5)).run(until_empty=True)
        assert await queue.next_mature() == asyncio.get_running_loop().time() + 5


@virtual
async def test_a_queue_object_that_says_no_limit_has_none() -> None:
    async with memory_store() as store:
        queue = store.queue("mail", dead_letter=DeadLetter(0), backoff=Fixed(0))
        await queue.push("x")
        summary = await Worker(store, queue, _always_fails).run(until_empty=True)
        assert (summary.retried, summary.done, summary.failed) == (2 * MAX_TRIES, 1, 0)


@virtual
async def test_a_store_that_cannot_reserve_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_store() as store:
        monkeypatch.setattr(store._driver, "capabilities", frozenset[Capability]())
        with pytest.raises(Unsupported) as refused:
            await Worker(store, "mail", _nothing).run()
        assert refused.value.capability == Capability.RESERVE


@virtual
async def test_a_worker_runs_once_at_a_time_and_may_run_again() -> None:
    async with memory_store() as store:
        worker = Worker(store, "mail", _nothing)
        run = asyncio.create_task(worker.run())
        await asyncio.sleep(1)
        with pytest.raises(CallerError, match="already running"):
            await worker.run()
        worker.stop()
        await run
        await store.queue("mail").push("x")
        assert (await worker.run(until_empty=True)).done == 1


@virtual
async def test_the_end_of_waits_ends_the_worker() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        run = asyncio.create_task(Worker(store, queue, _nothing).run())
        await asyncio.sleep(1)
        await queue.drain()
        with pytest.raises(CallerError, match="drained"):
            await run


@virtual
async def test_the_waits_of_a_worker_are_seen_and_ended_at_the_queue_object_it_was_given() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        run = asyncio.create_task(Worker(store, queue, _nothing).run())
        await asyncio.sleep(1)
        assert (queue.waiters, [one.is_reserving for one in queue.consumers()]) == (1, [True])
        assert queue.cancel() == 1
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run


async def _nothing(job: Job) -> None:
    pass


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"concurrency": 0}, "concurrency must be 1 to 10000, got 0"),
        ({"lease": 0}, "lease must be above 0"),
        ({"time_limit": 0}, "time_limit must be above 0 seconds, got 0"),
        ({"shutdown_timeout": -1}, "shutdown_timeout must be at least 0 seconds, got -1"),
        ({"prefetch": -1}, "prefetch must be at least 0 jobs, got -1"),
        ({"max_tries": -1}, "max_tries"),
        ({"handler": "send"}, "'send'"),
        ({"queues": []}, "at least one queue, got none"),
        ({"store": 7}, "a URL"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], hint: str) -> None:
    given = {"store": "memory:", "queues": "mail", "handler": _nothing, **options}
    with pytest.raises(CallerError, match=hint):
        Worker(**given)


@pytest.mark.parametrize(("old", "new"), [("stop_within", "shutdown_timeout"), ("stuck_max", "max_stuck")])
def test_the_old_name_of_an_argument_raises_an_error_that_says_the_new_one(old: str, new: str) -> None:
    given: dict[str, Any] = {"store": "memory:", "queues": "mail", "handler": _nothing, old: 1}
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{old}': {old}= is now {new}="):
        Worker(**given)


def test_an_unknown_argument_is_refused() -> None:
    given: dict[str, Any] = {"store": "memory:", "queues": "mail", "handler": _nothing, "speed": 1}
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'speed'$"):
        Worker(**given)


def test_max_tries_and_dead_letter_exclude_each_other() -> None:
    with pytest.raises(CallerError, match="can't be given together"):
        Worker("memory:", "mail", _nothing, max_tries=1, dead_letter=DeadLetter(2))


def test_a_store_of_the_blocking_form_is_refused() -> None:
    from penstock import blocking

    store: Store = blocking.connect("memory:")
    with pytest.raises(CallerError, match=r"penstock\.connect"):
        Worker(store, "mail", _nothing)


def _count_run_times_in(monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop) -> None:
    """Let handlers take as long as the virtual clock says."""
    monkeypatch.setattr("penstock.worker.runners.perf_counter", loop.time)
