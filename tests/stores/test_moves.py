"""A reserved job that goes on to another queue: what it becomes there, who may move it, and what a crash leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Capability
from penstock.errors import BadPayload, CallerError, LeaseLost, OutcomeUnknown
from tests.stores.harness import PATIENCE, Differs, Place, needs

MOVES = (Capability.RESERVE, Capability.PEEK)


async def _all(queue: Any) -> list[Any]:
    return [job async for job in queue.jobs()]


@needs(*MOVES)
async def test_a_job_moves_as_it_is(place: Place) -> None:
    async with place.connect() as store:
        raw, done = store.queue(place.new_name()), store.queue(place.new_name())
        job_id = await raw.push({"n": 1})
        job = await raw.reserve(timeout=PATIENCE)
        await job.move(done.name)
        assert job.ended
        assert await raw.total() == 0
        (moved,) = await _all(done)
        assert (moved.payload, moved.tries) == ({"n": 1}, 0)
        if not place.differs(Differs.OWN_IDS):
            assert moved.id == job_id
        await (await done.reserve(timeout=PATIENCE)).ack()


@needs(*MOVES)
@pytest.mark.parametrize("payload", [{"n": 2}, "text", None, 0, [1, "two"]], ids=repr)
async def test_a_job_moves_with_another_payload(place: Place, payload: Any) -> None:
    async with place.connect() as store:
        raw, done = store.queue(place.new_name()), store.queue(place.new_name())
        await raw.push({"n": 1})
        job = await raw.reserve(timeout=PATIENCE)
        await raw.move(job, done, payload=payload)
        (moved,) = await _all(done)
        assert moved.payload == payload
        assert await raw.total() == 0


@needs(*MOVES)
async def test_bytes_move_byte_for_byte(place: Place) -> None:
    body = b"\x00\xff{1:"
    async with place.connect(codec="bytes") as store:
        raw, done = store.queue(place.new_name()), store.queue(place.new_name())
        await raw.push(body)
        await (await raw.reserve(timeout=PATIENCE)).move(done.name)
        job = await done.reserve(timeout=PATIENCE)
        assert job.body == body
        await job.move(raw.name, payload=body[::-1])
        assert (await raw.reserve(timeout=PATIENCE)).body == body[::-1]


@needs(*MOVES, Capability.HEADERS)
async def test_headers_are_added_and_removed(place: Place) -> None:
    async with place.connect() as store:
        raw, done = store.queue(place.new_name()), store.queue(place.new_name())
        await raw.push("x", headers={"kept": 1, "changed": 1, "gone": 1})
        job = await raw.reserve(timeout=PATIENCE)
        await job.move(done.name, headers={"changed": 2, "new": "3", "gone": None})
        (moved,) = await _all(done)
        assert moved.headers == {"kept": 1, "changed": 2, "new": "3"}
        assert moved.payload == "x"


@needs(*MOVES, Capability.DELAY)
async def test_a_job_moves_with_a_delay(place: Place) -> None:
    async with place.connect() as store:
        raw, done = store.queue(place.new_name()), store.queue(place.new_name())
        await raw.push("x")
        await (await raw.reserve(timeout=PATIENCE)).move(done.name, delay=place.unit)
        assert await raw.total() == 0
        assert await done.scheduled() == 1
        assert await done.reserve(timeout=0) is None
        await place.advance(place.unit)
        assert (await done.reserve(timeout=PATIENCE)).payload == "x"


@needs(*MOVES)
async def test_tries_begin_again_and_the_creation_stays(place: Place) -> None:
    async with place.connect() as store:
        raw, done = store.queue(place.new_name()), store.queue(place.new_name())
        await raw.push("x")
        await (await raw.reserve(timeout=PATIENCE)).nack()
        job = await raw.reserve(timeout=PATIENCE)
        assert job.tries == 1
        created = job.created
        await place.advance(place.unit / 10)
        await job.move(done.name)
        moved = await done.reserve(timeout=PATIENCE)
        assert moved.tries == 0
        if not place.differs(Differs.OWN_IDS):
            assert moved.created == created


@needs(*MOVES, Capability.TOKEN)
@pytest.mark.parametrize("payload", ["new", "old"])
async def test_a_stale_lease_moves_nothing(place: Place, payload: str) -> None:
    async with place.connect() as store:
        raw, done = store.queue(place.new_name()), store.queue(place.new_name())
        await raw.push("old")
        stale = await raw.reserve(timeout=PATIENCE, lease=place.unit)
        await place.advance(place.unit)
        job = await raw.reserve(timeout=PATIENCE)
        changes = {"payload": payload} if payload == "new" else {}
        with pytest.raises(LeaseLost):
            await stale.move(done.name, **changes)
        assert await done.total() == 0
        assert await raw.total() == 1
        await job.move(done.name, **changes)
        assert [job.payload for job in await _all(done)] == [payload]


@needs(*MOVES)
async def test_a_job_that_was_ended_is_not_moved(place: Place) -> None:
    async with place.connect() as store:
        raw, done = store.queue(place.new_name()), store.queue(place.new_name())
        await raw.push("x")
        job = await raw.reserve(timeout=PATIENCE)
        await job.ack()
        with pytest.raises(LeaseLost):
            await raw.move(job, done, payload="y")
        if Capability.TOKEN in store.capabilities:
            assert await done.total() == 0


@needs(*MOVES)
async def test_many_jobs_move_to_several_queues_at_once(place: Place) -> None:
    async with place.connect() as store:
        raw, even, odd = (store.queue(place.new_name()) for _ in range(3))
        await raw.push_many(range(12))
        jobs: list[Any] = []
        while len(jobs) < 12:
            jobs += await raw.reserve_many(12, PATIENCE)
        await jobs[3].ack()
        transfers = [
            raw.transfer(job, odd.name if job.payload % 2 else even.name, payload=job.payload * 10) for job in jobs
        ]
        assert await raw.move_many(transfers) == [job is not jobs[3] for job in jobs]
        left = sorted(job.payload for job in jobs if job is not jobs[3])
        assert sorted(job.payload for job in await _all(even)) == [n * 10 for n in left if n % 2 == 0]
        assert sorted(job.payload for job in await _all(odd)) == [n * 10 for n in left if n % 2]
        assert await raw.total() == 0


@needs(*MOVES)
async def test_a_move_wakes_whoever_waits_at_the_other_queue(aio_place: Place) -> None:
    async with aio_place.connect() as store, aio_place.connect() as other:
        raw, done = store.queue(aio_place.new_name()), other.queue(aio_place.new_name())
        await raw.push("x")
        job = await raw.reserve(timeout=PATIENCE)
        waiting = asyncio.create_task(done.reserve(timeout=PATIENCE))
        await job.move(done.name, payload="y")
        assert (await waiting).payload == "y"


@needs(*MOVES)
async def test_a_move_counts_as_an_ack_and_as_a_push(place: Place) -> None:
    async with place.connect() as store:
        raw, done = store.queue(place.new_name()), store.queue(place.new_name())
        await raw.push("x")
        await (await raw.reserve(timeout=PATIENCE)).move(done.name, payload="y")
        source, target = await raw.stats(), await done.stats()
        assert (source["ack"], source["dead_letter"], target["push"]) == (1, 0, 1)


@needs(*MOVES)
async def test_what_can_not_be_moved_is_refused_before_anything_changes(place: Place) -> None:
    async with place.connect() as store:
        raw = store.queue(place.new_name())
        await raw.push("x")
        job = await raw.reserve(timeout=PATIENCE)
        with pytest.raises(CallerError, match="its own queue"):
            await job.move(raw.name)
        with pytest.raises(CallerError, match="must be 1 to"):
            await job.move("")
        with pytest.raises(BadPayload):
            await job.move(place.new_name(), payload={1, 2})
        with pytest.raises(CallerError, match="to="):
            await raw.move_many([job])
        await job.ack()


@needs(*MOVES)
async def test_a_worker_that_dies_between_the_two_steps_leaves_a_second_job_and_loses_none(
    aio_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a move is one step, or has a unique key, there is no second one."""
    async with aio_place.connect() as store:
        raw, done = store.queue(aio_place.new_name()), store.queue(aio_place.new_name())
        is_exact = raw.moves_atomically(done.name) or store._driver.keys_moves
        await raw.push("x")
        job = await raw.reserve(timeout=PATIENCE, lease=aio_place.unit)
        _die_between(store, aio_place.name, monkeypatch)
        with pytest.raises(OutcomeUnknown):
            await job.move(done.name, payload="y")
        monkeypatch.undo()
        await aio_place.advance(aio_place.unit + 60)
        again = await raw.reserve(timeout=0 if raw.moves_atomically(done.name) else PATIENCE)
        if again is not None:
            assert again.payload == "x"
            await again.move(done.name, payload="y")
        assert [job.payload for job in await _all(done)] == ["y"] * (1 if is_exact else 2)
        assert await raw.total() == 0


def _die_between(store: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut a move off after it has stored the new job; where that is one step, after all of it."""
    lost = OutcomeUnknown("the worker died")
    second_steps = {"mongodb+bucket": "_take_away"}
    if name in second_steps:

        async def no_ack(*_: Any) -> None:
            raise lost

        monkeypatch.setattr(store._driver, second_steps[name], no_ack)
    elif name == "fsq":

        def no_end(*_: Any) -> None:
            raise lost

        monkeypatch.setattr("penstock.queues.stores.fsq.driver.ack", no_end)
    else:
        real = store._driver.move

        async def all_of_it(*args: Any) -> None:
            await real(*args)
            raise lost

        monkeypatch.setattr(store._driver, "move", all_of_it)


async def test_moves_are_atomic_where_the_store_says_so(place: Place) -> None:
    async with place.connect() as store:
        raw = store.queue(place.new_name())
        has_it = Capability.ATOMIC_MOVE in store.capabilities
        assert raw.moves_atomically("other", changed=False) is has_it
        # In a directory only a rename is one step.
        assert raw.moves_atomically("other") is (has_it and place.name != "fsq")
