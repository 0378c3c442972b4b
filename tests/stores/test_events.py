"""Events of a store: each fact once, after the store said yes, in both forms of the library."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock import Capability, DeadLetter
from penstock.blocking import connect
from penstock.errors import LeaseLost, OperatorError
from penstock.events import Segment, gaps, kind_name, list_segments
from penstock.queues.events import process_name
from tests.processes import NodeProcess
from tests.stores.harness import PATIENCE, Differs, Place, needs


class Row(NamedTuple):
    kind: str
    job: str | None
    queue: str | None
    attempt: int
    error: str | None
    to_queue: str | None


def rows(directory: Path) -> list[Row]:
    """Return the events of a directory whose writers are closed."""
    assert gaps(directory) == []
    found: list[tuple[int, Row]] = []
    for file in list_segments(directory):
        columns = Segment(file.path).read()
        for at, kind, *rest in zip(
            columns.at, columns.kind, columns.job, columns.queue, columns.attempt, columns.error, columns.to_queue,
            strict=True,
        ):  # fmt: skip
            found.append((at, Row(kind_name(kind), *rest)))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def workers(directory: Path, kind: str) -> set[str | None]:
    """Return the workers of the events of a kind."""
    columns = [Segment(file.path).read() for file in list_segments(directory)]
    return {
        worker
        for one in columns
        for number, worker in zip(one.kind, one.worker, strict=True)
        if kind_name(number) == kind
    }


def kinds(directory: Path) -> list[tuple[str, int]]:
    return [(row.kind, row.attempt) for row in rows(directory)]


def cut(error: str | None) -> str | None:
    return None if error is None else error.partition(":")[0]


@needs(Capability.RESERVE)
async def test_a_life(place: Place, tmp_path: Path) -> None:
    directory = tmp_path / "events"
    name = place.new_name()
    async with place.connect(events=directory) as store:
        queue = store.queue(name, dead_letter=DeadLetter(3, name + "-dead"))
        await queue.push("work")
        first = await queue.reserve(timeout=PATIENCE)
        await first.nack(error=ValueError("no"))
        await (await queue.reserve(timeout=PATIENCE)).nack()
        last = await queue.reserve(timeout=PATIENCE)
        await last.nack(error="at last")
    found = rows(directory)
    assert [(row.kind, row.attempt) for row in found] == [
        ("added", 0), ("reserved", 1), ("nacked", 1), ("reserved", 2), ("nacked", 2), ("reserved", 3), ("failed", 3),
    ]  # fmt: skip
    assert [row.error for row in found if row.kind in ("nacked", "failed")] == ["ValueError: no", None, "at last"]
    assert found[-1].to_queue == name + "-dead"
    assert {row.queue for row in found} == {name}
    if Differs.NO_IDS not in place.kind.differs:
        assert {row.job for row in found} == {first.id}


@needs(Capability.RESERVE)
async def test_what_the_store_refuses_is_no_event(place: Place, tmp_path: Path) -> None:
    directory = tmp_path / "events"
    async with place.connect(events=directory) as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE)
        await job.ack()
        with pytest.raises(LeaseLost):
            await job.ack()
        with pytest.raises(LeaseLost):
            await job.nack(error="late")
    assert kinds(directory) == [("added", 0), ("reserved", 1), ("acked", 1)]


@needs(Capability.RESERVE)
async def test_many_at_once(place: Place, tmp_path: Path) -> None:
    directory = tmp_path / "events"
    name = place.new_name()
    async with place.connect(events=directory) as store:
        queue = store.queue(name)
        await queue.push_many([b"1", b"2", b"3"])
        jobs = await queue.reserve_many(3, timeout=PATIENCE)
        jobs += await queue.reserve_many(3 - len(jobs), timeout=PATIENCE) if len(jobs) < 3 else []
        assert all(await queue.ack_many(jobs[:1]))
        assert all(await queue.nack_many(jobs[1:2], delay=0, error="no"))
        assert all(await queue.move_many(jobs[2:], name + "-next"))
    found = rows(directory)
    assert [row.kind for row in found] == ["added"] * 3 + ["reserved"] * 3 + ["acked", "nacked", "moved"]
    assert [row.to_queue for row in found if row.kind == "moved"] == [name + "-next"]


@needs(Capability.RESERVE, Capability.PEEK)
async def test_dead_letters_and_back(place: Place, tmp_path: Path) -> None:
    directory = tmp_path / "events"
    name = place.new_name()
    async with place.connect(events=directory) as store:
        queue = store.queue(name, dead_letter=DeadLetter(3, name + "-dead"))
        await queue.push("work")
        await (await queue.reserve(timeout=PATIENCE)).fail("broken")
        assert await store.queue(name + "-dead").redrive() == 1
    found = rows(directory)
    assert [(row.kind, row.queue, row.to_queue) for row in found][-2:] == [
        ("failed", name, name + "-dead"),
        ("redriven", name + "-dead", name),
    ]


async def test_a_pop(place: Place, tmp_path: Path) -> None:
    directory = tmp_path / "events"
    async with place.connect(events=directory) as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        assert await queue.pop(timeout=PATIENCE) is not None
    assert [kind for kind, _ in kinds(directory)] == ["added", "reserved"]


async def test_a_directory_that_cannot_be_written_is_named(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = place.connect(events=tmp_path / "file" / "events")
    with pytest.raises(OperatorError, match="events can't be written to"):
        await store.open()


def test_stores_of_a_process_share_a_writer_and_a_child_has_its_own(tmp_path: Path) -> None:

    directory = tmp_path / "events"
    url = f"sqlite:///{tmp_path}/jobs.db"
    with connect(url, events=directory) as one, connect(url, events=directory) as two:
        one.queue("q").push("1")
        two.queue("q").push("2")
        child = os.fork()
        if not child:
            status = 1
            try:
                with connect(url, events=directory) as three:
                    three.queue("q").push("3")
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        one.queue("q").push("4")
    by_writer: dict[str, int] = {}
    for file in list_segments(directory):
        by_writer[file.writer] = by_writer.get(file.writer, 0) + len(Segment(file.path).read())
    assert sorted(by_writer.values()) == [1, 3]
    assert gaps(directory) == []


def test_a_url_names_the_directory(tmp_path: Path) -> None:

    with connect(f"sqlite:///{tmp_path}/jobs.db?events={tmp_path}/events") as store:
        store.queue("q").push("1")
    assert [row.kind for row in rows(tmp_path / "events")] == ["added"]


def test_where_the_node_records_the_library_adds_what_it_cannot_know(tmp_path: Path) -> None:

    node = NodeProcess(tmp_path, appendonly="no", events_dir=tmp_path / "node").start()
    try:
        with connect(f"disque://{node.host}:{node.port}", events=tmp_path / "own") as store:
            queue = store.queue("q", dead_letter=DeadLetter(2, "dead"))
            queue.push("work")
            queue.reserve(timeout=PATIENCE).nack(error="first")
            queue.reserve(timeout=PATIENCE).nack(error="last")
        assert node.stop() == 0
    finally:
        node.kill_hard()
    assert [(row.kind, row.attempt, row.error) for row in rows(tmp_path / "own")] == [
        ("nacked", 1, "first"),
        ("failed", 2, "last"),
    ]
    assert workers(tmp_path / "node", "reserved") == workers(tmp_path / "own", "nacked") == {process_name()}
    of_queue: list[Any] = [(row.kind, row.attempt) for row in rows(tmp_path / "node") if row.queue == "q"]
    assert [row for row in of_queue if row[0] != "extended"] == [
        ("added", 0), ("reserved", 1), ("nacked", 1), ("reserved", 2), ("acked", 2),  # it left, for the dead letters
    ]  # fmt: skip
