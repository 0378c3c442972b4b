"""A real node with events: killed under load, on a full disk, on a slow one, at the bound on disk."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConnectionLost
from penstock.events import Gap, Kind, Segment, gaps, list_segments
from penstock.events.segment import segment_name
from tests.processes import NodeProcess, wait_until

pytestmark = [pytest.mark.system, pytest.mark.slow]

KILLS = 20 if os.environ.get("PENSTOCK_LONG") == "1" else 5
OPERATIONS_BEFORE_KILL = 300


Running = Callable[[NodeProcess], NodeProcess]


@pytest.fixture
def running() -> Iterator[Running]:
    """Start a node that ends with the test."""
    nodes: list[NodeProcess] = []

    def start(node: NodeProcess) -> NodeProcess:
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.kill()


class Recorded:
    """What a directory of events holds."""

    def __init__(self, directory: Path) -> None:
        self.by_epoch: dict[int, list[tuple[int, int, str | None]]] = {}
        for file in list_segments(directory):
            columns = Segment(file.path).read()
            rows = zip(columns.seq, columns.kind, columns.job, strict=True)
            self.by_epoch.setdefault(file.epoch, []).extend(rows)

    def jobs(self, epoch: int, kind: int) -> list[str | None]:
        return [job for _, row_kind, job in self.by_epoch.get(epoch, []) if row_kind == kind]


class Load:
    """Adds jobs and finishes them until the node is gone, and knows what it was told, in order."""

    def __init__(self, node: NodeProcess) -> None:
        self.added: list[str] = []
        self.acked: list[str] = []
        self._node = node
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._node.connect() as connection:
                while True:
                    job = connection.execute("ADDJOB", "q", "body", 0)
                    self.added.append(job.decode())
                    connection.execute("GETJOB", "FROM", "q")
                    connection.execute("ACKJOB", job)
                    self.acked.append(job.decode())
        except ConnectionLost:
            pass

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_a_node_that_is_killed_loses_only_the_end_of_an_epoch(tmp_path: Path, running: Running) -> None:
    """What producers were told and the events miss comes after the last event that the gap names."""
    directory = tmp_path / "events"
    node = NodeProcess(tmp_path, events_dir=directory)
    loads: list[Load] = []
    for _ in range(KILLS):
        running(node)
        load = Load(node)
        loads.append(load)
        wait_until(lambda load=load: len(load.acked) >= OPERATIONS_BEFORE_KILL)
        node.kill()
        load.join()
    recorded = Recorded(directory)
    epochs = sorted(recorded.by_epoch)
    assert len(epochs) == KILLS
    open_ends = {gap.epoch: gap for gap in gaps(directory)}
    assert sorted(open_ends) == epochs
    for epoch, load in zip(epochs, loads, strict=True):
        rows = recorded.by_epoch[epoch]
        assert [seq for seq, _, _ in rows] == list(range(1, len(rows) + 1))
        assert (open_ends[epoch].first, open_ends[epoch].last) == (len(rows) + 1, None)
        for kind, told in ((Kind.ADDED, load.added), (Kind.ACKED, load.acked)):
            have = recorded.jobs(epoch, kind)
            have = have[-len(told) - 1 :] if kind == Kind.ACKED else have
            # One more than the producer was told: its reply may not have arrived.
            shared = min(len(have), len(told))
            assert have[:shared] == told[:shared]
            assert len(have) <= len(told) + 1


def test_a_node_that_stops_in_order_loses_nothing(tmp_path: Path, running: Running) -> None:
    directory = tmp_path / "events"
    node = running(NodeProcess(tmp_path, events_dir=directory))
    ids = [node.call("ADDJOB", "q", f"{number}", 0).decode() for number in range(50)]
    assert node.call("CONFIG", "GET", "events-dir") == [b"events-dir", str(directory).encode()]
    assert node.stop() == 0
    assert gaps(directory) == []
    (epoch,) = Recorded(directory).by_epoch
    assert Recorded(directory).jobs(epoch, Kind.ADDED) == ids
    (file,) = list_segments(directory)
    assert Segment(file.path).is_closed()
    assert file.path.stat().st_mode & 0o777 == 0o600


class LimitedNode(NodeProcess):
    """A node whose files can't grow beyond a size, as on a full disk."""

    file_bytes_max = 64 * 1024

    @property
    def process_options(self) -> dict[str, Any]:
        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_bytes_max, self.file_bytes_max))

        return {**super().process_options, "preexec_fn": limit}


def test_a_full_disk_refuses_no_command_and_is_noted(tmp_path: Path, running: Running) -> None:
    directory = tmp_path / "events"
    node = running(LimitedNode(tmp_path, events_dir=directory, appendonly="no"))
    for number in range(3000):  # five times what fits into a file
        node.call("ADDJOB", "q", f"{number}", 0)

    def has_noted() -> bool:
        node.call("ADDJOB", "q", "more", 0)
        return any(gap.reason == "File too large" for gap in gaps(directory))

    wait_until(has_noted)
    total = int(node.info()["registered_jobs"])
    assert node.stop() == 0
    found = [gap for gap in gaps(directory) if gap.last is not None]
    lost = sum((gap.last or 0) - gap.first + 1 for gap in found)
    (epoch,) = Recorded(directory).by_epoch
    assert len(Recorded(directory).jobs(epoch, Kind.ADDED)) + lost == total


def test_a_disk_that_hangs_delays_no_command(tmp_path: Path, running: Running) -> None:
    """The second segment is a pipe that nobody reads: opening it, and writing to it, hang."""
    directory = tmp_path / "events"
    node = running(
        NodeProcess(tmp_path, appendonly="no", maxmemory="4gb", events_dir=directory, events_max_bytes="1mb")
    )
    add = ("ADDJOBS", "q", 0, "BODIES", *(["body"] * 1000))
    first = wait_until(lambda: list_segments(directory))[0]
    pipe = first.path.with_name(segment_name(first.epoch, 3001))  # a segment is a quarter of the bound
    os.mkfifo(pipe)
    for _ in range(200):  # more than the buffer holds
        assert len(node.call(*add)) == 1000
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()  # the disk answers again
    reader.join(60)
    pipe.unlink()
    pipe.write_bytes(got[0])

    def slow() -> list[Gap]:
        node.call("ADDJOB", "q", "body", 0)
        return [gap for gap in gaps(directory) if gap.reason == "the disk is slow"]

    (gap,) = wait_until(slow)
    assert node.stop() == 0
    assert gap.last is not None
    assert gap.last > 200_000


def test_a_directory_that_cannot_be_written_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    node = NodeProcess(tmp_path, events_dir=tmp_path / "file" / "events")
    node.start(wait=False)
    assert node.process is not None
    assert node.process.wait(60) == 1
    assert "events can't be written to" in (tmp_path / "log").read_text()
