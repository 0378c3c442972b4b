"""What a node records: each fact once, with the number of the delivery and who did it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.broker.events import NodeEvents
from penstock.events import EventWriter, Segment, kind_name, list_segments
from tests.unit.broker.harness import LocalServer

S = 1_000_000


class Row(NamedTuple):
    kind: str
    job: str | None
    attempt: int
    worker: str | None
    until_s: float | None  # from the event on


class Node(LocalServer):
    """A node that records its events below a directory."""

    def __init__(self, directory: Path, bodies_max: int = 0) -> None:
        super().__init__()
        self.directory = directory
        self.broker.use_events(NodeEvents(self.broker.node, EventWriter(directory, "n1"), bodies_max))

    def rows(self) -> list[Row]:
        """Return what was recorded; the node can't go on then."""
        assert self.broker.events is not None
        self.broker.events.close()
        (file,) = list_segments(self.directory)
        columns = Segment(file.path).read()
        assert all(
            size == 4 for kind, size in zip(columns.kind, columns.size, strict=True) if kind_name(kind) == "added"
        )
        return [
            Row(kind_name(kind), job, attempt, worker, (until - at) / S if until else None)
            for kind, job, attempt, worker, until, at in zip(
                columns.kind, columns.job, columns.attempt, columns.worker, columns.until, columns.at, strict=True
            )
        ]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def named(node: Node, name: str) -> Any:
    client = node.client()
    client.call("CLIENT", "SETNAME", name)
    return client


def lease(client: Any, *options: str | int) -> tuple[bytes, bytes]:
    ((_, job_id, _, token, *_),) = client.call("GETJOB", "NOHANG", "LEASE", 10_000, *options, "FROM", "q")
    return job_id, token


def kinds(rows: list[Row]) -> list[str]:
    return [row.kind for row in rows]


def test_a_life_with_a_lease(node: Node) -> None:
    producer, worker = named(node, "p"), named(node, "w1")
    job = producer.call("ADDJOB", "q", "body", 0)
    job_id, token = lease(worker)
    worker.call("EXTEND", 60_000, job_id, token)
    worker.call("ACKLEASE", job_id, token)
    assert node.rows() == [
        Row("added", job.decode(), 0, None, None),
        Row("reserved", job.decode(), 1, "w1", 10.0),
        Row("extended", job.decode(), 1, "w1", 60.0),
        Row("acked", job.decode(), 1, "w1", None),
    ]


def test_attempts_are_counted(node: Node) -> None:
    worker = named(node, "w1")
    worker.call("ADDJOB", "q", "body", 0)
    worker.call("NACKLEASE", 5000, *lease(worker))
    node.advance(6)
    lease(worker)
    node.advance(11)  # the lease is over
    worker.call("ACKLEASE", *lease(worker))
    rows = node.rows()
    assert [(row.kind, row.attempt) for row in rows] == [
        ("added", 0), ("reserved", 1), ("nacked", 1), ("queued", 1), ("reserved", 2), ("requeued", 2), ("reserved", 3),
        ("acked", 3),
    ]  # fmt: skip
    assert rows[2].until_s == 5.0
    assert [row.worker for row in rows if row.kind in ("queued", "requeued")] == [None, None]


def test_attempts_without_leases_are_counted(node: Node) -> None:
    client = named(node, "w1")
    job = client.call("ADDJOB", "q", "body", 0, "RETRY", 5)
    client.call("GETJOB", "FROM", "q")
    node.advance(6)
    client.call("GETJOB", "FROM", "q")
    client.call("NACK", job)
    client.call("GETJOB", "FROM", "q")
    client.call("ACKJOB", job)
    client.call("ACKJOB", job)  # nothing is left to finish
    assert [(row.kind, row.attempt) for row in node.rows()] == [
        ("added", 0), ("reserved", 1), ("requeued", 1), ("reserved", 2), ("nacked", 2), ("reserved", 3), ("acked", 3),
    ]  # fmt: skip


def test_a_delay(node: Node) -> None:
    client = node.client()
    client.call("ADDJOB", "q", "body", 0, "DELAY", 5)
    node.advance(7)
    rows = node.rows()
    assert kinds(rows) == ["added", "queued"]
    assert rows[0].until_s == 5.0


def test_an_expiry(node: Node) -> None:
    node.client().call("ADDJOB", "q", "body", 0, "TTL", 5, "RETRY", 1)
    node.advance(7)
    assert kinds(node.rows()) == ["added", "expired"]


def test_who_waited_is_the_worker_not_the_producer(node: Node) -> None:
    producer, worker = named(node, "p"), named(node, "w1")
    worker.send(["GETJOB", "FROM", "q"])
    producer.call("ADDJOB", "q", "body", 0)
    worker.pushed()
    assert [(row.kind, row.worker) for row in node.rows()] == [("added", None), ("reserved", "w1")]


def test_a_client_without_a_name_has_its_address(node: Node) -> None:
    client = node.client()
    client.call("ADDJOB", "q", "body", 0)
    client.call("GETJOB", "FROM", "q")
    worker = node.rows()[1].worker
    assert worker is not None
    assert ":" in worker


@pytest.mark.parametrize(("command", "kind"), [("DELJOB", "removed"), ("FASTACK", "acked"), ("ACKJOB", "acked")])
def test_ends_by_a_command(node: Node, command: str, kind: str) -> None:
    client = node.client()
    job = client.call("ADDJOB", "q", "body", 0)
    client.call(command, job)
    client.call(command, job)
    assert kinds(node.rows()) == ["added", kind]


def test_work_that_begins_later(node: Node) -> None:
    worker = named(node, "w1")
    worker.call("ADDJOB", "q", "body", 0)
    job_id, token = lease(worker, "BEGIN", 0)
    worker.call("BEGIN", job_id, token)
    worker.call("ACKLEASE", job_id, token)
    assert [(row.kind, row.attempt) for row in node.rows()] == [
        ("added", 0), ("reserved", 1), ("begun", 1), ("acked", 1),
    ]  # fmt: skip


def test_a_job_that_is_released_was_not_delivered(node: Node) -> None:
    worker = named(node, "w1")
    worker.call("ADDJOB", "q", "body", 0)
    worker.call("RELEASE", *lease(worker, "BEGIN", 0))
    lease(worker)
    assert [(row.kind, row.attempt) for row in node.rows()] == [
        ("added", 0), ("reserved", 1), ("requeued", 1), ("reserved", 1),
    ]  # fmt: skip


def test_a_claim(node: Node) -> None:
    client = node.client()
    for _ in range(3):
        client.call("ADDJOB", "q", "body", 0)
    client.call("CLAIM", "key", "COUNT", 3, "FROM", "q")
    client.call("CLAIM", "key", "COUNT", 3, "FROM", "q")
    client.call("ACKCLAIM", "key")
    assert kinds(node.rows()) == ["added"] * 3 + ["reserved"] * 3 + ["extended"] * 3 + ["acked"] * 3


def test_many_at_once(node: Node) -> None:
    client = node.client()
    ids = client.call("ADDJOBS", "q", 0, "BODIES", "bod1", "bod2", "bod3")
    assert [(row.kind, row.job) for row in node.rows()] == [("added", job.decode()) for job in ids]


def test_a_refused_add_is_no_event(node: Node) -> None:
    client = node.client()
    client.call("ADDJOB", "q", "body", 0)
    client.raw("ADDJOB", "q", "body", 0, "MAXLEN", 1)
    assert kinds(node.rows()) == ["added"]


def test_the_lengths_of_queues_are_noted_each_minute(node: Node) -> None:
    client = node.client()
    client.call("ADDJOB", "q", "body", 0)
    client.call("ADDJOB", "q", "body", 0)
    node.advance(130)
    assert node.broker.events is not None
    node.broker.events.close()
    columns = Segment(list_segments(node.directory)[0].path).read()
    assert [
        (kind_name(kind), queue, size)
        for kind, queue, size in zip(columns.kind, columns.queue, columns.size, strict=True)
        if kind_name(kind) == "sample"
    ] == [("sample", "q", 2)] * 2


def test_bodies_up_to_a_size_are_kept(tmp_path: Path) -> None:
    node = Node(tmp_path, bodies_max=4)
    client = node.client()
    client.call("ADDJOB", "q", "body", 0)
    client.call("ADDJOBS", "q", 0, "BODIES", "12345", "1234")
    assert node.broker.events is not None
    node.broker.events.close()
    assert list(Segment(list_segments(tmp_path)[0].path).bodies()) == [(1, b"body"), (3, b"1234")]


def test_without_events_nothing_is_recorded() -> None:
    server = LocalServer()
    server.client().call("ADDJOB", "q", "body", 0)
    assert server.broker.node.events is None
