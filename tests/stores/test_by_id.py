"""Jobs ended by their id alone, or at a point in time; what is refused that is not a job; and types of queues."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import Capability, DeadLetter
from penstock.errors import CallerError, LeaseLost, Unsupported
from tests.stores.harness import PATIENCE, Differs, Place, needs

UNKNOWN = "0195c3d2-7a11-4f00-8a00-000000000000"


TYPES = {
    "redis+list": "redis:list",
    "redis+oq": "redis:oq",
    "postgresql": "postgres:simple",
    "mongodb": "mongo:simple",
    "mongodb+pl": "mongo:pipeline",
    "mongodb+ps": "mongo:persistent",
    "mongodb+stream": "mongo:stream",
    "mongodb+intraorder": "mongo:intraorder",
    "mongodb+bucket": "mongo:bucket-safe",
    "mongodb+bucket-plain": "mongo:bucket",
}


async def test_a_queue_says_its_type(place: Place) -> None:
    async with place.connect() as store:
        assert store.queue(place.new_name()).type == TYPES.get(place.name, place.name)


@needs(Capability.RESERVE)
async def test_ack_by_id_ends_a_job_whoever_reserved_it(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        await queue.push_many(["first", "second"])
        job = await queue.reserve(timeout=PATIENCE)
        await other.queue(queue.name).ack(job.id)
        assert await queue.total() == 1
        with pytest.raises(LeaseLost):
            await job.ack()


@needs(Capability.RESERVE)
@pytest.mark.parametrize("end", ["ack", "nack"])
async def test_what_is_not_reserved_is_not_ended_by_its_id(place: Place, end: str) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        job_id = await queue.push("waits")
        for wrong in (job_id, UNKNOWN, "no id at all", ""):
            with pytest.raises(LeaseLost, match="not reserved"):
                await getattr(queue, end)(wrong)
        assert [job.payload for job in await queue.peek()] == ["waits"]
        job = await queue.reserve(timeout=PATIENCE)
        assert (job.id, job.tries) == (job_id, 0)
        await queue.ack(job_id)
        with pytest.raises(LeaseLost, match="not reserved"):
            await getattr(queue, end)(job_id)


@needs(Capability.RESERVE)
async def test_a_job_of_another_queue_is_not_ended_by_its_id(place: Place) -> None:
    async with place.connect() as store:
        queue, other = store.queue(place.new_name()), store.queue(place.new_name())
        await queue.push("mine")
        job = await queue.reserve(timeout=PATIENCE)
        with pytest.raises(LeaseLost, match="not reserved"):
            await other.ack(job.id)
        await job.ack()


@needs(Capability.RESERVE, Capability.HEADERS)
async def test_nack_by_id_returns_a_job_with_a_try_more(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        await queue.push({"n": 1}, headers={"h": "x"})
        job = await queue.reserve(timeout=PATIENCE)
        await other.queue(queue.name).nack(job.id)
        with pytest.raises(LeaseLost):
            await job.ack()
        again = await queue.reserve(timeout=PATIENCE)
        assert (again.payload, again.headers, again.tries) == ({"n": 1}, {"h": "x"}, 1)


@needs(Capability.RESERVE)
async def test_nack_by_id_of_the_last_try_goes_to_the_dead_letters(place: Place) -> None:
    async with place.connect() as store:
        limit = DeadLetter(2, place.new_name())
        queue = store.queue(place.new_name(), dead_letter=limit)
        await queue.push("poison")
        for _ in range(2):
            job = await queue.reserve(timeout=PATIENCE)
            await queue.nack(job.id, error="no good")
        assert await queue.total() == 0
        (dead,) = await store.queue(limit.queue).peek()
        assert (dead.payload, dead.headers["x-dl-error"]) == ("poison", "no good")


@needs(Capability.RESERVE, Capability.TOKEN)
async def test_nack_by_id_takes_a_delay(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("later")
        job = await queue.reserve(timeout=PATIENCE)
        await queue.nack(job.id, delay=1000)
        assert (await queue.size(), await queue.scheduled()) == (0, 1)


@needs(Capability.RESERVE, Capability.EXTEND)
@pytest.mark.parametrize("wrong", [None, 7, b"id", {"id": "x"}], ids=str)
@pytest.mark.parametrize("end", ["ack", "nack", "fail", "extend"])
async def test_what_is_no_job_is_refused_by_what_must_be(place: Place, end: str, wrong: Any) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        with pytest.raises(CallerError) as refused:
            await getattr(queue, end)(wrong)
        if isinstance(refused.value, Unsupported):
            raise refused.value
        assert str(refused.value).startswith(f"{end} takes a reserved job")
        assert str(refused.value).endswith(f"got {wrong!r}")
        many: tuple[Any, ...] = ([wrong], ["why"]) if end == "fail" else ([wrong],)
        with pytest.raises(CallerError, match="takes a reserved job"):
            await getattr(queue, f"{end}_many")(*many)


@needs(Capability.RESERVE, Capability.TOKEN)
@pytest.mark.parametrize("form", ["unix", "datetime"])
async def test_nack_at_a_point_in_time(place: Place, form: str) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(["a", "b"])
        when = time.time() + 86400
        jobs = await queue.reserve_many(2, timeout=PATIENCE)
        at = when if form == "unix" else datetime.fromtimestamp(when, UTC)
        await jobs[0].nack(at=at)
        assert await queue.nack_many(jobs[1:], at=at) == [True]
        assert await queue.scheduled() == 2
        if not place.differs(Differs.NO_NEXT_MATURE):
            mature = await queue.next_mature()
            assert mature is not None
            assert abs(mature - when) < 3600  # stores have clocks of their own


@needs(Capability.RESERVE)
async def test_nack_at_a_time_that_is_over_is_ready_at_once(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("a")
        job = await queue.reserve(timeout=PATIENCE)
        await job.nack(at=1.0)
        assert await queue.size() == 1


@needs(Capability.RESERVE)
async def test_nack_takes_a_delay_or_a_time_but_not_both(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("a")
        job = await queue.reserve(timeout=PATIENCE)
        with pytest.raises(CallerError, match="delay or at"):
            await job.nack(delay=1, at=time.time())
        with pytest.raises(CallerError, match="time zone"):
            await job.nack(at=datetime(2030, 1, 1))  # noqa: DTZ001 - what is refused
        await job.ack()


@needs(Capability.RESERVE, Capability.REMOVE)
async def test_a_job_can_be_removed_whoever_has_it(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        first, second = await queue.push_many(["first", "second"])
        job = await queue.reserve(timeout=PATIENCE)
        assert await other.queue(queue.name).remove(job.id) == [False]
        assert await other.queue(queue.name).remove(first, UNKNOWN, second, reserved=True) == [True, False, True]
        with pytest.raises(LeaseLost):
            await job.extend()
        assert await queue.total() == 0
