"""Jobs that can't be done: when they are given up, where they go, what is written on them, and how they come back."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock import Capability, DeadLetter
from penstock.codec import HEADERS_BYTES_MAX, to_json
from penstock.errors import CallerError
from penstock.queues.dead_letter import ERROR, ERROR_CHARACTERS_MAX, FROM_QUEUE, HEADERS, JOB, TIME, TRACEBACK, TRIES
from tests.stores.harness import PATIENCE, Differs, Place, needs

ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def _limit(place: Place, **named: Any) -> DeadLetter:
    return DeadLetter(queue=place.new_name("dead"), **named)


async def _dead(store: Any, limit: DeadLetter) -> list[Any]:
    return [job async for job in store.queue(limit.queue).jobs()]


@needs(Capability.RESERVE, Capability.PEEK)
@pytest.mark.parametrize(("named", "deliveries"), [({"max_tries": 1}, 1), ({"max_tries": 3}, 3), ({"max_ko": 1}, 3)])
async def test_a_job_is_delivered_so_often_and_then_given_up(
    place: Place, named: dict[str, int], deliveries: int
) -> None:
    limit = _limit(place, **named)
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit)
        await queue.push("hopeless")
        for tries in range(deliveries):
            assert await _dead(store, limit) == []
            job = await queue.reserve(timeout=PATIENCE)
            assert job.tries == tries
            await job.nack(error=f"no luck {tries}")
        assert await queue.total() == 0
        assert await queue.reserve(timeout=0) is None
        (dead,) = await _dead(store, limit)
        assert (dead.payload, dead.tries, dead.headers[TRIES]) == ("hopeless", 0, deliveries - 1)
        assert dead.headers[ERROR] == f"no luck {deliveries - 1}"


@needs(Capability.RESERVE, Capability.PEEK)
@pytest.mark.parametrize("given", [2, "2", {"max_tries": 2}, DeadLetter(2)], ids=repr)
async def test_a_queue_takes_a_number_of_deliveries_as_its_limit(place: Place, given: Any) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=given)
        assert queue.dead_letter == DeadLetter(2)
        job_id = await queue.push("hopeless")
        for _ in range(2):
            await (await queue.reserve(timeout=PATIENCE)).nack()
        dead = [job async for job in store.dead_letters().jobs() if job.headers[FROM_QUEUE] == queue.name]
        assert [job.payload for job in dead] == ["hopeless"]
        assert job_id
        assert (await store.recreate())[queue.name].dead_letter == DeadLetter(2)


@needs(Capability.RESERVE, Capability.PEEK)
@pytest.mark.parametrize("max_tries", [1, 2])
async def test_deliveries_to_workers_that_died_count(place: Place, max_tries: int) -> None:
    limit = _limit(place, max_tries=max_tries)
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name(), dead_letter=limit)
        await queue.push({"kills": "workers"})
        for tries in range(max_tries):
            job = await queue.reserve(timeout=PATIENCE, lease=place.unit)
            assert job.tries == tries
            await place.advance(place.unit)
        worker = other.queue(queue.name, dead_letter=limit)
        assert await worker.reserve(timeout=place.kind.slack) is None
        (dead,) = await _dead(store, limit)
        assert (dead.payload, dead.headers[TRIES]) == ({"kills": "workers"}, max_tries - 1)
        assert "died" in dead.headers[ERROR]
        assert await queue.total() == 0


@needs(Capability.RESERVE, Capability.PEEK)
async def test_deaths_and_nacks_count_together(place: Place) -> None:
    limit = _limit(place, max_tries=3)
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit)
        await queue.push("work")
        await (await queue.reserve(timeout=PATIENCE)).nack()
        await queue.reserve(timeout=PATIENCE, lease=place.unit)
        await place.advance(place.unit)
        job = await queue.reserve(timeout=PATIENCE)
        assert job.tries == 2
        await job.nack()
        assert len(await _dead(store, limit)) == 1


@needs(Capability.RESERVE, Capability.PEEK)
async def test_a_job_that_is_given_up_does_not_hide_those_behind_it(place: Place) -> None:
    limit = _limit(place, max_tries=1)
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit)
        await queue.push_many(["deadly", "deadly too"])
        for _ in range(2):
            await queue.reserve(timeout=PATIENCE, lease=place.unit)
        await place.advance(place.unit)
        await queue.push("harmless")
        # With no time to wait: what is ready has to come.
        job = await queue.reserve(timeout=0 if place.can_shift else PATIENCE)
        assert job.payload == "harmless"


@needs(Capability.RESERVE, Capability.PEEK)
async def test_what_is_written_on_a_dead_letter(place: Place) -> None:
    limit = _limit(place, max_tries=1)
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit)
        job_id = await queue.push("work")
        await (await queue.reserve(timeout=PATIENCE)).nack(error="broken pipe")
        (dead,) = await _dead(store, limit)
        assert dead.headers.get(JOB, dead.id) == job_id
        assert set(dead.headers) - {JOB} == set(HEADERS) - {TRACEBACK, JOB}
        assert dead.headers[FROM_QUEUE] == queue.name
        assert dead.headers[TRIES] == 0
        assert dead.headers[ERROR] == "broken pipe"
        assert ISO_TIME.fullmatch(dead.headers[TIME])
        if not place.differs(Differs.OWN_IDS):
            assert dead.id == job_id


@needs(Capability.RESERVE, Capability.PEEK, Capability.HEADERS)
async def test_a_dead_letter_keeps_the_headers_of_its_job(place: Place) -> None:
    limit = _limit(place)
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit)
        await queue.push(b"\x00\xff", headers={"mine": 1, ERROR: "an old one"})
        await (await queue.reserve(timeout=PATIENCE)).fail()
        (dead,) = await _dead(store, limit)
        assert dead.payload == b"\x00\xff"
        assert dead.headers["mine"] == 1
        assert ERROR not in dead.headers


@needs(Capability.RESERVE, Capability.PEEK)
async def test_fail_moves_a_job_to_the_dead_letters_at_once(place: Place) -> None:
    limit = _limit(place, max_tries=9)
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit)
        await queue.push_many(["one", "two", "three"])
        jobs = [await queue.reserve(timeout=PATIENCE) for _ in range(3)]
        await jobs[0].fail("x" * 2 * ERROR_CHARACTERS_MAX)
        assert await queue.fail_many(jobs[1:], ["no such address", ""]) == [True, True]
        assert await queue.total() == 0
        dead = {job.payload: job.headers.get(ERROR) for job in await _dead(store, limit)}
        assert dead == {"one": "x" * ERROR_CHARACTERS_MAX, "two": "no such address", "three": None}


@needs(Capability.RESERVE, Capability.PEEK)
async def test_without_an_option_dead_letters_have_keuss_queue(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        payload = place.new_name("lost")
        await queue.push(payload)
        await (await queue.reserve(timeout=PATIENCE)).fail()
        assert store.dead_letters().name == "__deadletter__"
        dead = [job async for job in store.dead_letters().jobs() if job.payload == payload]
        assert [job.headers[FROM_QUEUE] for job in dead] == [queue.name]


@needs(Capability.RESERVE)
async def test_without_a_limit_a_job_is_never_given_up(place: Place) -> None:
    async with place.connect() as store:
        for limit in (None, DeadLetter(queue=place.new_name("dead"))):
            queue = store.queue(place.new_name(), dead_letter=limit)
            await queue.push("patient")
            for _ in range(5):
                await (await queue.reserve(timeout=PATIENCE)).nack()
            assert await queue.total() == 1


@needs(Capability.RESERVE)
async def test_a_limit_may_be_the_stores(place: Place) -> None:
    name = place.new_name("dead")
    async with place.connect(dead_letter=f"1,{name}") as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        await (await queue.reserve(timeout=PATIENCE)).nack()
        assert store.dead_letters().name == name
        assert (await store.dead_letters().pop(timeout=PATIENCE)).payload == "work"


@needs(Capability.RESERVE)
async def test_dead_letters_are_not_given_up_themselves(place: Place) -> None:
    name = place.new_name("dead")
    async with place.connect(dead_letter=f"1,{name}") as store:
        dead = store.dead_letters()
        await dead.push("letter")
        for _ in range(3):
            await (await dead.reserve(timeout=PATIENCE)).nack()
        job = await dead.reserve(timeout=PATIENCE)
        with pytest.raises(CallerError, match="dead-letter queue itself"):
            await job.fail()
        await job.ack()


@needs(Capability.RESERVE)
async def test_a_batch_returns_some_and_gives_up_others(place: Place) -> None:
    limit = _limit(place, max_tries=2)
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit)
        await queue.push("old")
        await (await queue.reserve(timeout=PATIENCE)).nack()
        await queue.push("young")
        jobs = [await queue.reserve(timeout=PATIENCE) for _ in range(2)]
        assert {job.payload: job.tries for job in jobs} == {"old": 1, "young": 0}
        assert await queue.nack_many(jobs, error="both") == [True, True]
        assert (await queue.reserve(timeout=PATIENCE)).payload == "young"
        assert (await store.queue(limit.queue).pop(timeout=PATIENCE)).payload == "old"


@needs(Capability.RESERVE, Capability.PEEK, Capability.HEADERS)
async def test_redrive_sends_dead_letters_home_as_they_were(place: Place) -> None:
    limit = _limit(place)
    async with place.connect() as store:
        queues = [store.queue(place.new_name(color), dead_letter=limit) for color in ("red", "green")]
        for queue in queues:
            await queue.push({"for": queue.name}, headers={"mine": 1})
            await (await queue.reserve(timeout=PATIENCE)).nack()
            await (await queue.reserve(timeout=PATIENCE)).fail("why")
        assert await store.queue(limit.queue).redrive() == 2
        assert await store.queue(limit.queue).total() == 0
        for queue in queues:
            job = await queue.reserve(timeout=PATIENCE)
            assert (job.payload, job.headers, job.tries) == ({"for": queue.name}, {"mine": 1}, 0)
            await job.ack()


async def _fail_all(place: Place, store: Any, limit: DeadLetter, payloads: list[Any]) -> Any:
    """Dead letters with these payloads; return the queue that they came from."""
    queue = store.queue(place.new_name(), dead_letter=limit)
    await queue.push_many(payloads)
    for _ in payloads:
        await (await queue.reserve(timeout=PATIENCE)).fail()
    return queue


@needs(Capability.RESERVE, Capability.PEEK)
async def test_redrive_takes_those_that_are_chosen_up_to_a_limit(place: Place) -> None:
    limit = _limit(place)
    async with place.connect() as store:
        home = await _fail_all(place, store, limit, list(range(10)))
        dead = store.queue(limit.queue)
        assert await dead.redrive(lambda job: job.payload % 2 == 0, limit=3) == 3
        jobs = [await home.pop(timeout=PATIENCE) for _ in range(3)]
        assert all(job.payload % 2 == 0 for job in jobs)
        assert await home.total() == 0
        assert await dead.redrive(lambda job: False) == 0
        assert await dead.redrive(limit=0) == 0
        assert await dead.total() == 7
        assert await dead.redrive(limit=100) == 7


@needs(Capability.RESERVE, Capability.PEEK)
async def test_redrive_may_go_elsewhere(place: Place) -> None:
    limit = _limit(place)
    async with place.connect() as store:
        home = await _fail_all(place, store, limit, ["work"])
        elsewhere = store.queue(place.new_name("elsewhere"))
        dead = store.queue(limit.queue)
        with pytest.raises(CallerError, match="itself"):
            await dead.redrive(to=dead.name)
        assert await dead.redrive(to=elsewhere.name) == 1
        assert await home.total() == 0
        assert (await elsewhere.pop(timeout=PATIENCE)).payload == "work"


@needs(Capability.RESERVE, Capability.PEEK)
async def test_redrive_leaves_jobs_without_a_home_and_those_that_somebody_has(place: Place) -> None:
    limit = _limit(place)
    async with place.connect() as store:
        await _fail_all(place, store, limit, ["held", "free"])
        dead = store.queue(limit.queue)
        held = await dead.reserve(timeout=PATIENCE, lease=1000)
        await dead.push("homeless")
        assert await dead.redrive() == 1
        assert await dead.total() == 2
        await held.ack()
        assert (await dead.pop(timeout=PATIENCE)).payload == "homeless"


@needs(Capability.RESERVE, Capability.PEEK)
async def test_redrive_goes_through_all_pages(place: Place) -> None:
    limit = _limit(place)
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit, lease=1000)
        await queue.push_many(range(1100))
        while jobs := await queue.reserve_many(1100):
            assert all(await queue.fail_many(jobs, ["full"] * len(jobs)))
        assert await store.queue(limit.queue).redrive(lambda job: job.payload >= 100) == 1000
        assert await store.queue(limit.queue).total() == 100
        assert await queue.total() == 1000


@pytest.mark.parametrize("name", ["x" * 2000, "", "\ud800"], ids=["long", "empty", "half a character"])
async def test_the_name_of_the_dead_letters_is_checked_when_the_queue_is_made(place: Place, name: str) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        with pytest.raises(CallerError, match="name"):
            store.queue(queue.name, dead_letter=DeadLetter(3, name))


def _divide(number: int) -> float:
    return number / 0


@needs(Capability.RESERVE, Capability.PEEK)
async def test_the_last_lines_of_a_traceback_are_kept(place: Place) -> None:
    limit = _limit(place, max_tries=1)
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit)
        await queue.push_many(["block", "fail", "nack"])
        jobs = [await queue.reserve(timeout=PATIENCE) for _ in range(3)]
        with pytest.raises(ZeroDivisionError):
            async with jobs[0]:
                _divide(1)
        try:
            _divide(2)
        except ZeroDivisionError as problem:
            await jobs[1].fail(problem)
            await jobs[2].nack(error=problem)
        for dead in await _dead(store, limit):
            assert dead.headers[ERROR] == "ZeroDivisionError: division by zero"
            lines = dead.headers[TRACEBACK].splitlines()
            assert lines[-1] == "ZeroDivisionError: division by zero"
            assert any("in _divide" in line for line in lines)


@needs(Capability.RESERVE, Capability.PEEK)
async def test_any_text_can_be_an_error(place: Place) -> None:
    limit = _limit(place)
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit)
        await queue.push("work")
        await (await queue.reserve(timeout=PATIENCE)).fail(ValueError("\0 and \ud800 and ü"))
        (dead,) = await _dead(store, limit)
        assert dead.headers[ERROR] == "ValueError: \\x00 and \\ud800 and ü"


@needs(Capability.RESERVE, Capability.PEEK, Capability.HEADERS)
async def test_a_job_whose_headers_leave_no_room_for_the_error_is_given_up(place: Place) -> None:
    limit = _limit(place)
    headers = {"large": "x" * (HEADERS_BYTES_MAX - 2100)}
    assert len(to_json(headers)) < HEADERS_BYTES_MAX
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit)
        await queue.push("work", headers=headers)
        await (await queue.reserve(timeout=PATIENCE)).fail("no" * ERROR_CHARACTERS_MAX)
        (dead,) = await _dead(store, limit)
        assert dead.headers["large"] == headers["large"]
        assert dead.headers[FROM_QUEUE] == queue.name
