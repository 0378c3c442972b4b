"""The store of directories among processes: killed at any step, beside scanners, on full disks and without rights."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import fsq
from penstock.errors import OutcomeUnknown, PartlyAdded, StoreError
from penstock.fsq import auditing, constants, files
from penstock.fsq.names import parse
from penstock.fsq.reserved import bring_back
from penstock.queues import blocking
from penstock.queues.stores.fsq import mover
from tests.fsq import original, programs, small_disk
from tests.fsq.other_user import as_nobody
from tests.processes import wait_until

pytestmark = pytest.mark.usefixtures("root")

LONG = os.environ.get("PENSTOCK_LONG") == "1"
LEASE = 1000.0
ROUNDS = 60 if LONG else 8
WAIT_S = 60.0


def connect(root: Path, **options: Any) -> blocking.Store:
    return blocking.connect(f"fsq:{root}?sync=0", **options)


# Killed at any step


class MortalDisk(files.FileSystem):
    """Kills its process at one of its calls, before or after it was made."""

    def __init__(self, at: int, is_after: bool) -> None:
        self._left = at
        self._is_after = is_after

    def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        self._left -= 1
        if self._left == 0 and not self._is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return call(*args)
        finally:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def create(self, path: str, mode: int) -> int:
        return int(self._call(super().create, path, mode))

    def write(self, fd: int, data: bytes | memoryview) -> None:
        self._call(super().write, fd, data)

    def link(self, source: str, target: str) -> None:
        self._call(super().link, source, target)

    def unlink(self, path: str) -> None:
        self._call(super().unlink, path)

    def rename(self, source: str, target: str) -> None:
        self._call(super().rename, source, target)

    def make_directory(self, path: str, mode: int) -> None:
        self._call(super().make_directory, path, mode)

    def remove_directory(self, path: str) -> None:
        self._call(super().remove_directory, path)


def reserved(queue: blocking.Queue) -> Any:
    job = queue.reserve(0)
    assert job is not None
    return job


def look_later(queue: blocking.Queue) -> None:
    """When leases are over and times have come."""
    queue.store.shift_clock(2 * LEASE)
    queue.size()


STEPS: dict[str, Callable[[blocking.Queue], object]] = {
    "push": lambda queue: queue.push("new"),
    "push later": lambda queue: queue.push("new", delay=LEASE),
    "push unique": lambda queue: queue.push("new", unique="key", unique_for=9 * LEASE),
    "push many": lambda queue: queue.push_many(["new", "newer"]),
    "pop": lambda queue: queue.pop(0),
    "reserve": reserved,
    "ack": lambda queue: reserved(queue).ack(),
    "nack": lambda queue: reserved(queue).nack(),
    "nack later": lambda queue: reserved(queue).nack(delay=LEASE),
    "extend": lambda queue: reserved(queue).extend(2 * LEASE),
    "fail": lambda queue: reserved(queue).fail("no"),
    "release": lambda queue: queue.release_many([reserved(queue)]),
    "claim": lambda queue: queue.claim("key", 2),
    "claim again": lambda queue: (queue.claim("key", 2), queue.claim("key", 2)),
    "ack_claim": lambda queue: (queue.claim("key", 2), queue.ack_claim("key")),
    "nack_claim": lambda queue: (queue.claim("key", 2), queue.nack_claim("key")),
    "nack_claim later": lambda queue: (queue.claim("key", 2), queue.nack_claim("key", delay=LEASE)),
    "claim taken up": lambda queue: queue.claim("old", 2),
    "remove": lambda queue: queue.remove(*[job.id for job in queue.peek()]),
    "purge": lambda queue: queue.purge(),
    "redrive": lambda queue: queue.store.queue("given_up").redrive(),
    "look": look_later,
}
# What may be gone if the process that ends it was killed before it could say so; and what may be there or not.
ENDS = {"pop", "ack", "ack_claim", "remove", "purge"}
NEW = {"new", "newer"}


def prepare(root: Path) -> set[str]:
    """A queue with jobs in all states, and one among the dead; return their payloads."""
    with connect(root, dead_letter="9,given_up") as store:
        queue = store.queue("mail", lease=LEASE)
        queue.push("dead")
        reserved(queue).fail("why")
        queue.push("claimed")
        queue.claim("old", 1)
        queue.push("reserved")
        reserved(queue)
        queue.push("later", delay=LEASE)
        queue.push_many(["one", "two"])
    return {"dead", "claimed", "reserved", "later", "one", "two"}


def drained(root: Path) -> Counter[Any]:
    """Every job that comes, of all queues, when all leases and delays are over."""
    seen: Counter[Any] = Counter()
    with connect(root) as store:
        store.shift_clock(100 * LEASE)
        for name in store.queues():
            queue = store.queue(name, lease=LEASE)
            while jobs := queue.reserve_many(50):
                seen.update(job.payload for job in jobs)
                assert all(queue.ack_many(jobs))
    return seen


def killed_in(root: Path, step: str, at: int, is_after: bool) -> bool:
    """Do a step in a process that is killed at one of its calls; whether it came so far."""
    pid = os.fork()
    if pid == 0:
        try:
            with connect(root, dead_letter="9,given_up", stats="memory:") as store:
                files.disk = MortalDisk(at, is_after)
                STEPS[step](store.queue("mail", lease=LEASE))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the child has failed"
    return os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_is_killed_at_any_step_loses_and_doubles_nothing(tmp_path: Path, step: str) -> None:
    at = 0
    was_killed = True
    while was_killed:
        at += 1
        for is_after in (False, True):
            root = tmp_path / f"{at}{is_after}"
            root.mkdir()
            before = prepare(root)
            was_killed = killed_in(root, step, at, is_after)
            with constants.using(FSQ_ROOT=str(root)):
                assert [reason for _, reason in auditing.repair("mail", older_seconds=0) if reason] == []
            if step == "push unique":  # the producer tries again: the job must not be lost with its key
                with connect(root) as store:
                    store.queue("mail").push("new", unique="key")
                before.add("new")
            seen = drained(root)
            assert set(seen.values()) <= {1}, f"{step}, killed at call {at}: twice: {seen}"
            assert set(seen) <= before | NEW
            if step not in ENDS:
                assert before <= set(seen), f"{step}, killed at call {at}: lost: {before - set(seen)}"
    assert at > 1, "the step makes no call at all"


@pytest.mark.parametrize("step", ["reserve", "extend", "claim"])
def test_the_death_of_a_worker_counts_as_a_try(root: Path, step: str) -> None:
    with connect(root) as store:
        queue = store.queue("mail")
        queue.push("work")
        assert not killed_in(root, step, 10_000, is_after=True)
        assert queue.reserve(0) is None
        store.shift_clock(3 * LEASE)
        job = queue.reserve(0)
        assert job is not None
        assert job.tries == 1


WORKER = """
import os, random, sys
from penstock.queues import blocking
chance = random.Random(int(sys.argv[2]))
store = blocking.connect(f"fsq:{sys.argv[1]}?sync=0")
store.open()
queue = store.queue("mail", lease=100)
say = lambda *words: os.write(1, " ".join(map(str, words)).encode() + b"\\n")
number = 0
while True:
    for _ in range(3):
        number += 1
        say("pushed", queue.push(f"{os.getpid()} {number}" * 20, delay=chance.choice([0, 0, 0.01])))
    for job in queue.reserve_many(chance.randint(1, 3)):
        verb = chance.choice(["ack", "ack", "ack", "nack", "nack later", "extend"])
        if verb == "extend":
            job.extend(100)
        if verb.startswith("nack"):
            job.nack(delay=0.01 if verb == "nack later" else 0)
        else:
            job.ack()
            say("acked", job.id)
    if chance.random() < 0.2:
        jobs = queue.claim(f"{os.getpid()}", 3)
        if chance.random() < 0.7 and queue.ack_claim(f"{os.getpid()}") == len(jobs):
            for job in jobs:
                say("acked", job.id)
        else:
            queue.nack_claim(f"{os.getpid()}")
"""


def _has_grown(log: Path, size: int) -> bool:
    return log.stat().st_size > size


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(600)
def test_nothing_is_lost_when_workers_are_killed_under_load(root: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    log = tmp_path / "log"
    log.touch()
    for number in range(ROUNDS):
        before = log.stat().st_size
        with log.open("ab") as stream:
            workers = [
                subprocess.Popen(
                    [sys.executable, "-c", WORKER, str(root), str(3 * number + one)],
                    env=programs.environment(),
                    stdout=stream,
                )
                for one in range(3)
            ]
        try:
            wait_until(partial(_has_grown, log, before + 4000))
            time.sleep(chance.uniform(0, 0.1))  # so that the kill comes at any point
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    lines = [line.split(" ") for line in log.read_text().splitlines()]
    pushed = {words[1] for words in lines if words[0] == "pushed" and len(words) == 2}
    acked = Counter(words[1] for words in lines if words[0] == "acked" and len(words) == 2)
    with connect(root) as store:
        store.shift_clock(1000)
        queue = store.queue("mail", lease=LEASE)
        left: list[str] = []
        while jobs := queue.reserve_many(500):
            left += [job.id for job in jobs]
            assert all(len(job.payload) % 20 == 0 for job in jobs)
            queue.ack_many(jobs)
    assert set(acked.values()) == {1}, "a job was ended twice"
    assert len(left) == len(set(left)), "a job came twice"
    assert not set(left) & set(acked), "a job came that was ended"
    # What was ended in the moment of the kill could not be told any more: three jobs of a claim at most.
    assert len(pushed - set(acked) - set(left)) <= 3 * 3 * ROUNDS
    assert len(pushed) > 10 * ROUNDS


def test_threads_may_share_a_store(root: Path) -> None:
    count = 200
    with connect(root) as store, ThreadPoolExecutor(8) as threads:
        queue = store.queue("mail", lease=LEASE)

        def push(number: int) -> None:
            queue.push(number)

        def work(_: int) -> list[Any]:
            done = []
            while job := queue.reserve(0):
                done.append(job.payload)
                job.ack()
            return done

        list(threads.map(push, range(count)))
        done = [payload for part in threads.map(work, range(8)) for payload in part]
        assert sorted(done) == list(range(count))
        assert queue.stats()["ack"] == count


def test_calls_of_threads_come_one_after_the_other(root: Path) -> None:
    order = []
    is_begun, may_end = threading.Event(), threading.Event()

    def first() -> None:
        is_begun.set()
        may_end.wait(WAIT_S)
        order.append("first")

    with connect(root) as store, ThreadPoolExecutor(2) as threads:
        threads.submit(store._driver.root.guard, first)
        is_begun.wait(WAIT_S)
        second = threads.submit(store._driver.root.guard, order.append, "second")
        with pytest.raises(TimeoutError):
            second.result(0.1)
        may_end.set()
        second.result(WAIT_S)
    assert order == ["first", "second"]


def test_a_forked_child_can_go_on_with_the_store(root: Path) -> None:
    with connect(root, stats="memory:") as store:
        queue = store.queue("mail", lease=LEASE)
        queue.push_many(["one", "two"])
        queue.ack(reserved(queue))  # so that there is something to know
        is_held, may_end = threading.Event(), threading.Event()

        def hold() -> None:
            is_held.set()
            may_end.wait(WAIT_S)

        holder = threading.Thread(
            target=store._driver.root.guard, args=(hold,)
        )  # a call of another thread is under way
        holder.start()
        is_held.wait(WAIT_S)
        pid = os.fork()
        if pid == 0:
            signal.alarm(int(WAIT_S))
            with suppress(BaseException):
                queue.push("from the child")
                os._exit(0 if queue.pop(0).payload == "two" else 1)  # type: ignore[union-attr]  # then it fails, too
            os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        may_end.set()
        holder.join()
        assert [job.payload for job in queue.reserve_many(5)] == ["from the child"]


# Beside scanners

SHARER = """
import os, sys
from penstock.queues import blocking
from tests.fsq.original import note, wait_for_all
from penstock import fsq
root, log, kind = sys.argv[1:4]
wait_for_all(log)
if kind == "store":
    with blocking.connect(f"fsq:{root}?sync=0") as store:
        queue = store.queue("mail")
        while jobs := queue.reserve_many(3):
            for job in jobs:
                note(log, job.id, kind)
            queue.ack_many(jobs)
else:
    while os.listdir(f"{root}/mail/queue"):
        for item in fsq.scan("mail", max_tries=0):
            note(log, item.name.job_id, kind)
            fsq.success(item)
"""


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(300)
def test_workers_and_scanners_run_each_item_once(root: Path, tmp_path: Path) -> None:
    count = 1500
    fsq.install("mail")
    original.enqueue(str(root / "mail"), count // 2, "by-hand")
    with connect(root) as store:
        store.queue("mail").push_many(range(count - count // 2))
    log = tmp_path / "log"
    environment = programs.environment(PYTHONPATH=f"{programs.SOURCE}:{programs.SOURCE.parent}")
    kinds = ["store", "scan", "store", "scan"]
    children = [
        subprocess.Popen([sys.executable, "-c", SHARER, str(root), str(log), kind], env=environment) for kind in kinds
    ]
    try:
        ready = Path(f"{log}.ready")
        wait_until(lambda: ready.exists() and len(ready.read_text().splitlines()) == len(kinds))
        Path(f"{log}.go").touch()
        assert [child.wait(WAIT_S) for child in children] == [0] * len(kinds)
    finally:
        for child in children:
            child.kill()
            child.wait()
    ran = [line.split(" ") for line in log.read_text().splitlines()]
    assert Counter(job for _, job in ran).most_common(1)[0][1] == 1
    assert len(ran) == count
    assert {kind for kind, _ in ran} == {"store", "scan"}, "only one kind came to work at all"


# Full disks, and directories of others


@pytest.fixture(params=small_disk.KINDS)
def little_room(root: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root on a disk of a megabyte."""
    with small_disk.small_root(root, request.param, monkeypatch) as where:
        yield where


@pytest.mark.system
@pytest.mark.parametrize("size", [0, 50_000])
def test_a_full_disk_is_reported_and_loses_nothing(little_room: Path, size: int) -> None:
    with connect(little_room) as store:
        queue = store.queue("mail", lease=LEASE)
        ids = []

        def fill() -> None:
            while True:
                ids.append(queue.push(b"x" * size))

        with pytest.raises(StoreError, match="No space left on device"):
            fill()
        with pytest.raises(StoreError, match="No space left on device"):
            queue.push_many([b"x" * 600_000, b"x" * 600_000] if size else [b"", b""])
        assert list((little_room / "mail/tmp").iterdir()) == []
        assert [job.id for job in queue.jobs()] == ids
        for _ in range(3):  # these leave room for the directory of a lease
            assert queue.pop(0) is not None
        jobs = queue.reserve_many(len(ids))
        assert [job.id for job in jobs] == ids[3:]
        assert all(queue.ack_many(jobs))


def test_a_batch_that_only_partly_appears_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NarrowDisk(files.FileSystem):
        links = 0

        def link(self, source: str, target: str) -> None:
            NarrowDisk.links += 1
            if NarrowDisk.links > 2:
                raise OSError(28, "No space left on device")
            super().link(source, target)

    with connect(root) as store:
        queue = store.queue("mail")
        with monkeypatch.context() as patch:
            patch.setattr(files, "disk", NarrowDisk())
            with pytest.raises(PartlyAdded) as caught:
                queue.push_many(range(4))
        assert [job.id for job in queue.peek()] == caught.value.ids[:2]
        assert caught.value.ids[2:] == [None, None]
        assert list((root / "mail/tmp").iterdir()) == []


def test_a_sync_that_fails_leaves_the_outcome_unknown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WornDisk(files.FileSystem):
        def sync_directory(self, path: str) -> None:
            raise OSError(5, "Input/output error")

    with connect(root) as store:
        queue = store.queue("mail")
        queue.push("before")
        with monkeypatch.context() as patch:
            patch.setattr(files, "disk", WornDisk())
            with pytest.raises(OutcomeUnknown, match="power failure"):
                queue.push("work")
        assert queue.total() == 2


def open_to_all(root: Path) -> None:
    """Everybody may look, nobody but us may change."""
    for directory in [root, *root.parents]:
        if directory in {Path("/tmp"), Path("/")}:
            break
        directory.chmod(0o755)
    for entry in root.rglob("*"):
        entry.chmod(0o755 if entry.is_dir() else 0o644)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a directory of somebody else")
def test_a_user_who_may_only_read_can_read_and_gets_errors_for_the_rest(root: Path) -> None:
    with connect(root) as store:
        queue = store.queue("mail")
        queue.push_many(["one", "two"])
        store.shift_clock(-2 * LEASE)
        queue.reserve(0, lease=LEASE)
    open_to_all(root)

    def ask(call: Callable[[blocking.Queue], object]) -> str:
        def asked() -> str:
            with connect(root, stats="memory:") as mine:
                try:
                    return repr(call(mine.queue("mail")))
                except StoreError as problem:
                    return f"StoreError: {problem}"

        return as_nobody(asked)

    assert ask(lambda queue: queue.size()) == "2"
    assert ask(lambda queue: sorted(job.payload for job in queue.peek())) == "['one', 'two']"
    for call in (
        lambda queue: queue.push("x"),
        lambda queue: queue.pop(0),
        lambda queue: queue.reserve(0),
        lambda queue: queue.claim("key", 1),
        lambda queue: queue.pause(),
        lambda queue: queue.remove(*[job.id for job in queue.peek()]),
    ):
        said = ask(call)
        assert said.startswith("StoreError: fsq:"), said
        assert "Permission denied" in said
    with connect(root) as store:
        assert store.queue("mail").total() == 2


@pytest.mark.skipif(os.getuid() != 0, reason="needs items of somebody else")
def test_an_item_that_may_not_be_read_stands_in_nobodys_way(root: Path) -> None:
    with connect(root) as store:
        queue = store.queue("mail")
        queue.push_many(["closed", "open"])
    open_to_all(root)
    for directory in (root / "mail").rglob("*"):
        directory.chmod(0o777 if directory.is_dir() else 0o666)
    (root / "mail").chmod(0o777)
    closed = min((root / "mail/queue").iterdir(), key=lambda file: parse(file.name).entropy)
    closed.chmod(0)

    def work() -> str:
        with connect(root, stats="memory:") as mine:
            queue = mine.queue("mail")
            first = queue.reserve(0)
            try:
                queue.reserve(0)
            except StoreError as problem:
                return f"{first and first.payload}, then: {problem}"
        return "nothing was told"

    said = as_nobody(work)
    assert said.startswith("open, then: ")
    assert said.endswith("items that can't be had: Permission denied")


def test_nobody_brings_back_what_is_just_being_moved(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far_ms = int((time.time() + 9 * LEASE) * 1000)

    class BusyDisk(files.FileSystem):
        """After each step of the move, somebody looks by a clock that is far ahead."""

        is_looking = False

        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            if not self.is_looking:
                self.is_looking = True
                assert bring_back(str(root / "mail"), far_ms) == []
                self.is_looking = False

    with connect(root, dead_letter="1,given_up") as store:
        queue = store.queue("mail", lease=LEASE)
        queue.push("work")
        job = reserved(queue)
        store.queue("given_up").pause()
        store.queue("given_up").resume()  # it is installed now, which isn't a step of the move
        with monkeypatch.context() as patch:
            patch.setattr(files, "disk", BusyDisk())
            job.fail("no")
        assert (queue.total(), store.queue("given_up").total()) == (0, 1)


def test_many_jobs_are_moved_in_turns(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "TOGETHER", 2)
    with connect(root, dead_letter="1,given_up") as store:
        queue, given_up = store.queue("mail", lease=LEASE), store.queue("given_up")
        queue.push_many(range(5))
        assert all(queue.fail_many(queue.reserve_many(5), ["no"] * 5))
        assert (queue.total(), given_up.total()) == (0, 5)
        assert given_up.redrive() == 5
        assert [job.payload for job in queue.jobs()] == [0, 1, 2, 3, 4]
    assert list(root.glob("*/.penstock/lease/*")) == list(root.glob("*/tmp/*")) == []


def test_a_move_to_another_file_system_stores_before_it_removes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class TwoDisks(files.FileSystem):
        def rename(self, source: str, target: str) -> None:
            if "/given_up/" in target and "/mail/" in source:
                raise OSError(18, "Invalid cross-device link")
            super().rename(source, target)

    with connect(root, dead_letter="1,given_up") as store:
        queue = store.queue("mail")
        job_id = queue.push("work")
        job = reserved(queue)
        with monkeypatch.context() as patch:
            patch.setattr(files, "disk", TwoDisks())
            job.fail("no")
        assert queue.total() == 0
        (dead,) = store.queue("given_up").peek()
        assert (dead.id, dead.payload, dead.headers["x-dl-error"]) == (job_id, "work", "no")
