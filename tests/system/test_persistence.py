"""Real nodes that are killed, stopped, restarted and run out of disk: what they acknowledged is there again."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Connection
from penstock.errors import ConnectionLost, PenstockError, ReplyError
from tests.conftest import StartNode
from tests.processes import NodeProcess, wait_until

pytestmark = pytest.mark.system

LONG = os.environ.get("PENSTOCK_LONG") == "1"
KILLS = 100 if LONG else 20
KILLS_IN_REWRITES = 100 if LONG else 5
AOF = "disque.aof"


class Load:
    """Producers and consumers at work. What they were told is noted only after the reply has come."""

    def __init__(self, node: NodeProcess, ack: bool = True) -> None:
        self.node = node
        self.ack = ack
        self.added: set[bytes] = set()
        self.acking: set[bytes] = set()  # asked for; perhaps answered
        self.acked: set[bytes] = set()
        self.fetched: dict[bytes, int] = {}
        self.refusals: set[str] = set()
        self.rewrites = 0
        self.rewrites_seen = False  # one was seen under way
        self.body = b"x" * 100
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, producers: int = 3, consumers: int = 2, rewriters: int = 0) -> None:
        self._stop.clear()
        targets = [self._produce] * producers + [self._consume] * consumers + [self._rewrite] * rewriters
        self._threads = [threading.Thread(target=self._until_lost, args=(target,)) for target in targets]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def has_added(self, count: int) -> bool:
        return len(self.added) > count

    def _until_lost(self, work: Any) -> None:
        try:
            with self.node.connect() as link:
                while not self._stop.is_set():
                    work(link)
        except ConnectionLost:
            pass

    def _produce(self, link: Connection) -> None:
        try:
            if random.random() < 0.5:
                self.added.add(link.execute("ADDJOB", "work", self.body, 0, "RETRY", 300))
            else:
                self.added.update(link.execute("ADDJOBS", "work", 0, "RETRY", 300, "BODIES", *[self.body] * 5))
        except ReplyError as error:
            self.refusals.add(error.code)

    def _consume(self, link: Connection) -> None:
        try:
            jobs = link.execute("GETJOB", "NOHANG", "COUNT", 4, "FROM", "work") or []
            ids = [job_id for _, job_id, _ in jobs]
            for job_id in ids:
                self.fetched[job_id] = self.fetched.get(job_id, 0) + 1
            if ids and self.ack:
                done = ids[: random.randint(0, len(ids))]
                if done:
                    self.acking.update(done)
                    link.execute("ACKJOB", *done)
                    self.acked.update(done)
        except ReplyError as error:
            self.refusals.add(error.code)

    def _rewrite(self, link: Connection) -> None:
        """Begin a rewrite as soon as the last one has ended."""
        info = link.execute("INFO", "persistence")
        self.rewrites_seen |= b"aof_rewrite_in_progress:1" in info
        if b"aof_rewrite_in_progress:0" in info:
            link.execute("BGREWRITEAOF")
            self.rewrites += 1

    def check(self) -> None:
        """Compare what the node holds with what clients were told."""
        held = all_ids(self.node)
        lost = self.added - self.acking - held
        assert not lost, f"{len(lost)} of {len(self.added)} acknowledged jobs are lost"
        back = self.acked & held
        assert not back, f"{len(back)} of {len(self.acked)} acked jobs are back"


def all_ids(node: NodeProcess) -> set[bytes]:
    cursor, ids = node.call("JSCAN", "BUSYLOOP")
    assert cursor == b"0"
    return set(ids)


def queued(node: NodeProcess, queue: str = "q") -> list[bytes]:
    return [body for _, _, body in node.call("QPEEK", queue, 100_000)]


def rewrite(node: NodeProcess) -> None:
    node.call("BGREWRITEAOF")
    wait_until(lambda: node.info()["aof_rewrite_in_progress"] == "0")
    assert node.info()["aof_last_bgrewrite_status"] == "ok"


# Kills


@pytest.mark.slow
@pytest.mark.timeout(60 + 5 * KILLS)
def test_no_acknowledged_job_is_lost_by_kills_under_load(
    start_node: StartNode, record_property: Callable[[str, object], None]
) -> None:
    node = start_node(appendfsync="always")
    load = Load(node)
    for _ in range(KILLS):
        enough = len(load.added) + 50
        load.begin()
        wait_until(partial(load.has_added, enough))
        threading.Event().wait(random.random() / 5)  # any moment of the work will do
        node.kill()
        load.end()
        node.start()
        load.check()
    assert not load.refusals
    assert load.acked
    record_property("jobs fetched more than once", sum(count > 1 for count in load.fetched.values()))


@pytest.mark.slow
@pytest.mark.timeout(60 + 5 * KILLS_IN_REWRITES)
def test_no_acknowledged_job_is_lost_by_kills_under_load_and_constant_rewrites(start_node: StartNode) -> None:
    node = start_node(appendfsync="always")
    load = Load(node)
    for _ in range(KILLS_IN_REWRITES):
        enough, rewrites = len(load.added) + 50, load.rewrites + 2
        load.begin(rewriters=1)
        wait_until(lambda enough=enough, rewrites=rewrites: load.has_added(enough) and load.rewrites >= rewrites)
        threading.Event().wait(random.random() / 5)  # any moment of the work will do
        node.kill()
        load.end()
        node.start()
        load.check()
    assert not load.refusals
    assert load.acked
    assert load.rewrites_seen


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["everysec", "no"])
def test_a_kill_alone_loses_nothing_whatever_the_policy(start_node: StartNode, policy: str) -> None:
    node = start_node(appendfsync=policy)
    load = Load(node)
    for _ in range(3):
        load.begin()
        wait_until(lambda: len(load.added) > 100)
        node.kill()
        load.end()
        node.start()
        load.check()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_kill_in_the_middle_of_a_rewrite_loses_nothing(start_node: StartNode) -> None:
    node = start_node(appendfsync="always")
    load = Load(node)
    load.added.update(node.call("ADDJOBS", "old", 0, "BODIES", *[b"y" * 50] * 20_000))
    seen = 0
    for delay_s in (0.0, 0.005, 0.02, 0.05, 0.1, 0.2):
        load.begin(2, 1)
        node.call("BGREWRITEAOF")
        threading.Event().wait(delay_s)
        seen += (node.directory / f"temp-rewrite-{AOF}").exists()
        node.kill()
        load.end()
        node.start()
        load.check()
    assert seen, "no kill met a rewrite under way"


@pytest.mark.slow
def test_a_rewrite_under_load_loses_nothing_and_makes_the_file_smaller(start_node: StartNode) -> None:
    node = start_node(appendfsync="always")
    load = Load(node)
    ids = node.call("ADDJOBS", "old", 0, "BODIES", *[b"y" * 50] * 10_000)
    for at in range(0, 10_000, 1000):
        node.call("ACKJOB", *ids[at : at + 1000])
    big = (node.directory / AOF).stat().st_size
    load.begin()
    for _ in range(3):
        rewrite(node)
    load.end()
    assert (node.directory / AOF).stat().st_size < big
    assert not list(node.directory.glob("temp-rewrite-*"))
    node.kill()
    node.start()
    load.check()


def test_the_file_is_rewritten_by_itself_when_it_has_grown(start_node: StartNode) -> None:
    node = start_node(auto_aof_rewrite_min_size=100_000, auto_aof_rewrite_percentage=50)
    for _ in range(20):
        ids = node.call("ADDJOBS", "q", 0, "BODIES", *[b"x" * 100] * 100)
        node.call("ACKJOB", *ids)
    wait_until(
        lambda: node.info()["aof_last_rewrite_time_sec"] != "-1" and int(node.info()["aof_current_size"]) < 50_000
    )


# Restarts


def test_the_order_of_a_queue_is_the_same_after_every_kind_of_end(start_node: StartNode) -> None:
    node = start_node()
    for number in range(300):
        node.call("ADDJOB", "q", f"job {number}", 0)
    (first,) = node.call("GETJOB", "FROM", "q")
    node.call("NACK", first[1])
    before = queued(node)
    assert before[0] == b"job 0"
    node.kill()
    assert queued(node.start()) == before
    assert node.stop() == 0
    assert queued(node.start()) == before
    rewrite(node)
    node.kill()
    assert queued(node.start()) == before
    for words in (["SHUTDOWN"], ["SHUTDOWN", "REWRITE-AOF"]):
        shut_down(node, *words)
        assert queued(node.start()) == before


def shut_down(node: NodeProcess, *words: str) -> None:
    with node.connect() as link, pytest.raises(ConnectionLost):
        link.execute(*words)
    assert node.process is not None
    assert node.process.wait(30) == 0
    node.kill()


@pytest.mark.slow
@pytest.mark.parametrize("words", [["SHUTDOWN"], ["SHUTDOWN", "REWRITE-AOF"]])
def test_a_shutdown_under_load_loses_nothing(start_node: StartNode, words: list[str]) -> None:
    node = start_node(appendfsync="always")
    load = Load(node)
    for _ in range(4):
        load.begin(4, 2)
        wait_until(lambda: len(load.added) > 100)
        shut_down(node, *words)
        load.end()
        node.start()
        load.check()


def test_a_pause_survives(node: NodeProcess) -> None:
    node.call("PAUSE", "a", "in")
    node.call("PAUSE", "b", "all")
    node.call("PAUSE", "b", "none")
    for stop in (node.kill, node.stop):
        stop()
        node.start()
        assert [node.call("PAUSE", name, "state") for name in ("a", "b")] == [b"in", b"none"]


def test_a_claim_survives_a_kill(node: NodeProcess) -> None:
    node.call("ADDJOBS", "q", 0, "BODIES", *[f"job {n}" for n in range(10)])
    claimed = node.call("CLAIM", "batch", "COUNT", 6, "FROM", "q")
    node.kill()
    node.start()
    assert node.call("CLAIM", "batch", "COUNT", 6, "FROM", "q") == claimed
    assert len(queued(node)) == 4
    assert node.call("ACKCLAIM", "batch") == 6
    node.kill()
    node.start()
    assert node.call("CLAIM", "batch", "COUNT", 0, "FROM", "q") == []
    assert len(all_ids(node)) == 4


def test_a_lease_survives_a_kill(node: NodeProcess) -> None:
    node.call("ADDJOB", "q", "x", 0)
    ((_, job_id, _, token),) = node.call("GETJOB", "LEASE", 60_000, "FROM", "q")
    node.kill()
    node.start()
    assert queued(node) == []
    assert node.call("ACKLEASE", job_id, int(token) + 1) == [b"STALE"]
    assert node.call("ACKLEASE", job_id, token) == [b"OK"]


def test_an_at_most_once_job_is_delivered_once(node: NodeProcess) -> None:
    node.call("ADDJOB", "q", "fetched", 0, "RETRY", 0)
    node.call("ADDJOB", "q", "waiting", 0, "RETRY", 0)
    assert node.call("GETJOB", "FROM", "q")[0][2] == b"fetched"
    for stop in (node.kill, node.stop):
        stop()
        node.start()
        assert queued(node) == [b"waiting"]
    assert node.call("GETJOB", "FROM", "q")[0][2] == b"waiting"
    node.kill()
    node.start()
    assert queued(node) == []


class ConfiguredNode(NodeProcess):
    """A node with a configuration file."""

    @property
    def config(self) -> Path:
        return self.directory / "penstock.conf"

    @property
    def argv(self) -> list[str]:
        words = super().argv
        at = words.index("server") + 1
        return [*words[:at], str(self.config), *words[at:]]


def test_a_controlled_restart_queues_everything_once(tmp_path: Path) -> None:
    node = ConfiguredNode(tmp_path)
    node.config.write_text("# mine\nappendonly yes\n")
    node.start()
    try:
        node.call("ADDJOB", "q", "x", 0)
        node.call("CONFIG", "SET", "aof-enqueue-jobs-once", "yes")
        node.call("CONFIG", "REWRITE")
        assert "aof-enqueue-jobs-once yes" in node.config.read_text()
        shut_down(node, "SHUTDOWN", "REWRITE-AOF")
        for ours in ("state", "sum"):  # as an original node would leave it: without these files, jobs wait
            (tmp_path / f"{AOF}.{ours}").unlink()
        node.start()
        assert queued(node) == [b"x"]
        assert node.call("CONFIG", "GET", "aof-enqueue-jobs-once")[1] == b"no"
        assert "aof-enqueue-jobs-once yes" not in node.config.read_text()
        assert node.config.read_text().startswith("# mine\n")
    finally:
        node.kill()


def test_a_second_node_on_the_same_directory_refuses_to_start(node: NodeProcess) -> None:
    second = NodeProcess(node.directory)
    second.log = node.directory / "log2"
    second.start(wait=False)
    assert second.process is not None
    assert second.process.wait(30) == 1
    assert node.process is not None
    said = second.log.read_text()
    assert f"is locked by another node (process {node.process.pid})" in said
    assert "give this one its own --dir" in said
    assert "Traceback" not in said
    assert node.call("PING") == b"PONG"


def test_a_damaged_journal_stops_the_start_with_its_place(node: NodeProcess) -> None:
    node.call("ADDJOB", "q", "x", 0)
    node.kill()
    path = node.directory / AOF
    whole = path.read_bytes()
    path.write_bytes(whole + b"garbage" + whole)
    node.start(wait=False)
    assert node.process is not None
    assert node.process.wait(30) == 1
    said = node.log.read_text()
    assert f"{AOF}: bad framing at byte {len(whole)}. Nothing was changed" in said
    assert "Traceback" not in said
    assert path.read_bytes() == whole + b"garbage" + whole


def test_a_torn_tail_is_cut_and_kept(node: NodeProcess) -> None:
    node.call("ADDJOB", "q", "x", 0)
    node.kill()
    path = node.directory / AOF
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    node.start()
    assert queued(node) == [b"x"]
    assert path.read_bytes() == whole
    assert (node.directory / f"{AOF}.torn").read_bytes() == whole[:50]


# On and off


def test_the_journal_can_be_turned_on_and_off_while_the_node_runs(start_node: StartNode) -> None:
    node = start_node(appendonly="no")
    node.call("ADDJOB", "q", "before", 0)
    assert not (node.directory / AOF).exists()
    node.call("CONFIG", "SET", "appendonly", "yes")
    wait_until(lambda: node.info()["aof_state"] == "on")
    node.call("ADDJOB", "q", "after", 0)
    node.directives["appendonly"] = "yes"
    node.kill()
    node.start()
    assert queued(node) == [b"before", b"after"]
    node.call("CONFIG", "SET", "appendonly", "no")
    size = (node.directory / AOF).stat().st_size
    node.call("ADDJOB", "q", "unwritten", 0)
    assert (node.directory / AOF).stat().st_size == size
    node.kill()
    node.start()
    assert queued(node) == [b"before", b"after"]


def test_the_journal_can_be_loaded_again_and_again(node: NodeProcess) -> None:
    for number in range(20):
        node.call("ADDJOB", "q", f"job {number}", 0)
    node.call("CLAIM", "key", "COUNT", 2, "FROM", "q")
    before = queued(node)
    for _ in range(2):
        assert node.call("DEBUG", "LOADAOF") == b"OK"
        assert queued(node) == before
    assert len(node.call("CLAIM", "key", "COUNT", 0, "FROM", "q")) == 2
    node.kill()
    node.start()
    assert queued(node) == before


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, where that can be had."""
    place = tmp_path / "small"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount here")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a small file system can't be mounted here: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_a_full_disk_refuses_writes_and_loses_nothing(small_disk: Path, tmp_path: Path, policy: str) -> None:
    node = NodeProcess(small_disk, appendfsync=policy)
    node.log = tmp_path / "log"
    node.start()
    try:
        load = Load(node)
        load.body = b"x" * 2000
        while not load.refusals:  # a connection whose reply could not be kept is closed: then come again
            load.begin(2, 0)
            threading.Event().wait(0.1)
            load.end()
        assert load.refusals == {"MISCONF"}
        assert node.info()["aof_last_write_status"] == "err"
        with node.connect() as link, pytest.raises(ReplyError, match=r"MISCONF .*No space left"):
            link.execute("ADDJOB", "work", "x", 0)
        load.check()
        subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
        load.added.add(wait_until(lambda: try_add(node)))
        load.check()
        node.kill()
        node.start()
        load.check()
    finally:
        node.kill()


def try_add(node: NodeProcess) -> bytes | None:
    try:
        with node.connect() as link:
            return link.execute("ADDJOB", "work", "room again", 0)
    except PenstockError:
        return None
