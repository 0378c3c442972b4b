"""Batch reads of all jobs of queues, as columns: each job once, in parts and pages, also while others are busy."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from penstock import Capability, JobState
from penstock.queues.scan import IDS_MAX, Limit, Same, Wanted
from tests.stores.harness import PATIENCE, Differs, Place, needs

EVERYTHING = Wanted()
PAGES_MAX = 500  # that a look here can have; one that never ends has more

EVERY_STATE = needs(Capability.PEEK, Capability.RESERVE, Capability.DELAY)


async def look(
    store: Any, *queues: str, wanted: Wanted = EVERYTHING, count: int = 100, between: Any = None
) -> list[dict[str, Any]]:
    """All rows of a look, as dicts."""
    rows: list[dict[str, Any]] = []
    pages = 0
    for part in await store._driver.parts(queues, wanted):
        cursor = None
        while True:
            page = await store._driver.scan_page(part, wanted, count, cursor)
            columns = {
                name: [column.value] * page.count if isinstance(column, Same) else column
                for name, column in page.columns.items()
            }
            assert {len(column) for column in columns.values()} <= {page.count}
            rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            pages += 1
            assert pages < PAGES_MAX
            cursor = page.cursor
            if cursor is None:
                break
            if between is not None:
                await between()
    return rows


def content(row: dict[str, Any]) -> Any:
    return row["payload"] if row.get("body") is None else row["body"]


def states_of(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["id"]: str(row["state"]) for row in rows}


@EVERY_STATE
@needs(Capability.HEADERS)
async def test_a_read_shows_jobs_of_all_states_as_they_are(aio_place: Place) -> None:
    async with aio_place.connect_aio() as store:
        queue = store.queue(aio_place.new_name(), lease=1000)
        ids = [await queue.push("reserved", headers={"a": 1})]
        await queue.reserve(timeout=PATIENCE)
        ids += [await queue.push("ready"), await queue.push("scheduled", delay=1000)]
        rows = await look(store, queue.name)
        assert states_of(rows) == dict(zip(ids, ("reserved", "ready", "scheduled"), strict=True))
        for row in rows:
            assert (row["queue"], row["tries"]) == (queue.name, 0)
            assert row["headers"] == ({"a": 1} if row["state"] == "reserved" else {})
            assert content(row) in (str(row["state"]), b'"%b"' % str(row["state"]).encode())
            time_s = row["mature_ms"] / 1000 - aio_place.now()
            assert (time_s > 900) == (row["state"] != "ready")
        assert {job.id: str(job.state) async for job in queue.jobs()} == states_of(rows)


@EVERY_STATE
@pytest.mark.parametrize("states", [{JobState.READY}, {JobState.SCHEDULED, JobState.RESERVED}, set()])
async def test_a_read_of_some_states_shows_no_others(aio_place: Place, states: set[JobState]) -> None:
    async with aio_place.connect_aio() as store:
        queue = store.queue(aio_place.new_name(), lease=1000)
        await queue.push("reserved")
        await queue.reserve(timeout=PATIENCE)
        await queue.push_many(["ready", "ready"])
        await queue.push("scheduled", delay=1000)
        rows = await look(store, queue.name, wanted=Wanted(states=frozenset(states)))
        assert Counter(str(row["state"]) for row in rows) == {
            str(state): 2 if state is JobState.READY else 1 for state in states
        }


@needs(Capability.PEEK)
async def test_a_read_goes_through_all_pages_of_all_queues(aio_place: Place) -> None:
    async with aio_place.connect_aio() as store:
        names = [aio_place.new_name() for _ in range(3)]
        await store.queue(names[0]).push_many([f"a{number}" for number in range(1234)])
        await store.queue(names[1]).push_many([f"b{number}" for number in range(5)])
        await store.queue(names[2]).push("another's")
        rows = await look(store, *names[:2])
        assert Counter(row["queue"] for row in rows) == {names[0]: 1234, names[1]: 5}
        assert len({bytes(str(content(row)), "utf-8") for row in rows}) == 1239


@needs(Capability.PEEK)
async def test_a_read_of_a_busy_queue_ends_and_shows_what_was_there(aio_place: Place) -> None:
    async with aio_place.connect_aio() as store:
        queue = store.queue(aio_place.new_name())
        ids = await queue.push_many(range(1000))

        async def push_more() -> None:
            await queue.push_many(range(1000, 1300))

        rows = await look(store, queue.name, between=push_more)
        if aio_place.differs(Differs.NO_IDS):
            assert len(rows) == 1000
        else:
            seen = Counter(row["id"] for row in rows)
            assert set(ids) <= set(seen)
            assert set(seen.values()) == {1}


@EVERY_STATE
async def test_jobs_are_found_by_their_ids(aio_place: Place) -> None:
    async with aio_place.connect_aio() as store:
        if "id" not in store._driver.compares:
            pytest.skip(f"{aio_place.name} finds no jobs by id")
        queue = store.queue(aio_place.new_name(), lease=1000)
        reserved = await queue.push("reserved")
        await queue.reserve(timeout=PATIENCE)
        ids = [reserved, *await queue.push_many(range(10)), *await queue.push_many(range(10), delay=1000)]
        chosen = [ids[0], ids[1], ids[-1]]
        wanted = Wanted(ids=(*chosen, "no-such-id", "0'; \0"))
        expected = dict(zip(chosen, ("reserved", "ready", "scheduled"), strict=True))
        assert states_of(await look(store, queue.name, wanted=wanted)) == expected
        ready = wanted._replace(states=frozenset({JobState.READY}))
        assert states_of(await look(store, queue.name, wanted=ready)) == {ids[1]: "ready"}
        assert await look(store, queue.name, wanted=Wanted(ids=())) == []
        many = Wanted(ids=tuple(f"no-{number}" for number in range(IDS_MAX)))
        assert await look(store, queue.name, wanted=many) == []


@EVERY_STATE
async def test_a_store_compares_as_it_shows(aio_place: Place) -> None:
    """What it leaves out is just what a look at everything would not show."""
    async with aio_place.connect_aio() as store:
        columns = store._driver.compares - {"id"}
        if not columns:
            pytest.skip(f"{aio_place.name} compares nothing")
        queue = store.queue(aio_place.new_name(), lease=1000)
        await queue.push_many(range(3))
        await (await queue.reserve(timeout=PATIENCE)).nack(delay=500)
        await queue.reserve(timeout=PATIENCE)
        rows = await look(store, queue.name)
        fields = {"tries": ("tries", 1), "mature": ("mature_ms", 1000), "created": ("created_ms", 1000)}
        signs = {"=": int.__eq__, "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__}
        for column in columns:
            field, unit = fields[column]
            values = {row["id"]: row[field] * unit for row in rows}
            for sign, compare in signs.items():
                for value in values.values():
                    for near in (value - 1, value, value + 1):
                        found = await look(store, queue.name, wanted=Wanted(limits=(Limit(column, sign, near),)))
                        expected = {job_id for job_id, one in values.items() if compare(one, near)}
                        assert {row["id"] for row in found} == expected, (column, sign)


@needs(Capability.PEEK)
async def test_a_read_of_no_job_is_empty(aio_place: Place) -> None:
    async with aio_place.connect_aio() as store:
        assert await look(store) == []
        assert await look(store, aio_place.new_name()) == []
