"""The fault matrix: EIO and ENOSPC on the Nth call of the disk, N = 1, 2, 3, ... until a start and a stop have passed.

A node with a journal on a real directory is started, loaded with commands, rewritten and stopped, and one call of its
disk fails. Then a node with a good disk is started there: what was acknowledged is there, and what was finished isn't.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hiredis import ReplyError

from penstock.broker.disk import RealDisk, RealFile
from penstock.errors import PenstockError
from tests.unit.broker.harness import NODE_ID, LocalServer

LONG = os.environ.get("PENSTOCK_LONG") == "1"
EVERY = 1 if LONG else 7
CALLS_MAX = 2000  # more than a life has: one that goes beyond doesn't end
STEPS_MAX = 100_000


class Faults:
    """Counts the calls of a disk, and lets one of them fail, or all from there on."""

    def __init__(self, fail_at: int, code: int, lasting: bool) -> None:
        self.calls = 0
        self._fail_at = fail_at
        self._code = code
        self._lasting = lasting

    def count(self, what: str) -> None:
        self.calls += 1
        if self.calls == self._fail_at or (self._lasting and self.calls > self._fail_at):
            raise OSError(self._code, os.strerror(self._code), what)

    @property
    def is_first(self) -> bool:
        """Whether the last call was the first of many that fail."""
        return self._lasting and self.calls == self._fail_at

    @property
    def happened(self) -> bool:
        return self.calls >= self._fail_at


class FaultyFile:
    """A real file whose calls are counted. Where all calls fail from one on, and that is a write, it writes a part."""

    def __init__(self, file: RealFile, faults: Faults) -> None:
        self._file = file
        self._faults = faults
        self._sync_failure: OSError | None = None

    @property
    def size(self) -> int:
        return self._file.size

    def write(self, data: bytes) -> int:
        try:
            self._faults.count("write")
        except OSError:
            if self._faults.is_first and len(data) > 1:
                return self._file.write(data[: len(data) // 2])  # as on a disk that is full: the next call fails
            raise
        return self._file.write(data)

    def sync(self) -> None:
        self._faults.count("sync")
        self._file.sync()

    def begin_sync(self) -> None:
        try:
            self._faults.count("sync")
        except OSError as failure:
            self._sync_failure = failure
        self._file.begin_sync()

    def sync_done(self) -> bool:
        if not self._file.sync_done():
            return False
        failure, self._sync_failure = self._sync_failure, None
        if failure is not None:
            raise failure
        return True

    def close(self) -> None:
        self._file.close()


class FaultyDisk:
    """A real directory whose calls are counted."""

    def __init__(self, directory: Path, faults: Faults) -> None:
        self._disk = RealDisk(str(directory))
        self._faults = faults

    def read(self, name: str) -> Iterator[bytes]:
        self._faults.count("read")
        return self._disk.read(name)

    def append(self, name: str, fresh: bool = False) -> FaultyFile:
        self._faults.count("open")
        return FaultyFile(self._disk.append(name, fresh), self._faults)

    def truncate(self, name: str, size: int) -> None:
        self._faults.count("truncate")
        self._disk.truncate(name, size)

    def replace(self, name: str, by: str) -> None:
        self._faults.count("rename")
        self._disk.replace(name, by)

    def remove(self, name: str) -> None:
        self._faults.count("remove")
        self._disk.remove(name)

    def boot_id(self) -> bytes:
        return b"boot"


class Told:
    """What clients were told, over all lives of a node."""

    def __init__(self) -> None:
        self.added: set[bytes] = set()
        self.acking: set[bytes] = set()  # asked for; perhaps answered
        self.acked: set[bytes] = set()


class Life:
    """A node on a disk, from its start to its end."""

    def __init__(self, directory: Path, faults: Faults, told: Told) -> None:
        self._server = LocalServer(appendfsync="always")
        self._server.broker.disk = FaultyDisk(directory, faults)
        self._server.broker.node.entropy = os.urandom  # a server's own chance would give the same ids in each life
        self._server.broker.node.adopt_id(NODE_ID)
        self._told = told
        self._seat = self._server.client()
        self.refusals: list[str] = []
        self.has_started = False

    @property
    def _persistence(self) -> Any:
        return self._server.broker.persistence

    def start(self) -> None:
        """Load the journal and open it; a failure is raised, as the server ends with it."""
        for _ in self._persistence.begin_load(0):
            pass
        self._persistence.end_load()
        self._server.broker.config.appendonly = True
        self._persistence.open()
        self.has_started = True

    def ask(self, *words: bytes | str | int) -> Any:
        """Run a command; None if it was refused, or if its connection was closed in place of an answer."""
        if self._seat.closed:
            self._seat = self._server.client()
        self._seat.send(list(words))
        replies = self._seat.pushed()
        if not replies:
            self.refusals.append("closed")
            return None
        (reply,) = replies
        if isinstance(reply, ReplyError):
            self.refusals.append(str(reply))
            return None
        return reply

    def add(self, count: int) -> None:
        for number in range(count):
            job_id = self.ask("ADDJOB", "q", f"body-{number}", 0, "RETRY", 300)
            if job_id is not None:
                self._told.added.add(job_id)

    def add_many(self, count: int) -> None:
        self._told.added.update(self.ask("ADDJOBS", "q", 0, "BODIES", *["body"] * count) or ())

    def work(self, count: int) -> None:
        """Fetch jobs and finish them."""
        ids = [job_id for _, job_id, *_ in self.ask("GETJOB", "NOHANG", "COUNT", count, "FROM", "q") or ()]
        for job_id in ids:
            self._told.acking.add(job_id)
            if self.ask("ACKJOB", job_id) is not None:
                self._told.acked.add(job_id)

    def rewrite(self) -> None:
        self.ask("BGREWRITEAOF")
        for _ in range(STEPS_MAX):
            if not self._persistence.step():
                return
        raise AssertionError("a rewrite that doesn't end")

    def wait(self, seconds: float) -> None:
        self._server.advance(seconds)

    def stop(self) -> bool:
        """Stop in order; False if the node says that it can't."""
        return bool(self._persistence.close(rewrite=False))

    def held(self) -> set[bytes]:
        return {job.id for job in self._server.broker.node.jobs}

    def has_said_so(self) -> bool:
        """Whether the node has refused something, or shows a failure."""
        return bool(self.refusals) or not self._persistence.last_rewrite_ok or bool(self._persistence.failure)


def live(directory: Path, faults: Faults, told: Told) -> bool:
    """Lead a node through a life of everything; whether it has said that something went wrong."""
    life = Life(directory, faults, told)
    try:
        life.start()
    except (OSError, PenstockError):
        return True  # the server ends with this error
    life.add(3)
    life.add_many(3)
    life.work(2)
    life.rewrite()
    life.add(2)
    life.work(1)
    life.wait(2)
    life.add(1)
    return life.has_said_so() or not life.stop()


def good_disk() -> Faults:
    return Faults(CALLS_MAX, errno.EIO, lasting=False)


def check(directory: Path, told: Told) -> None:
    """Start a node with a good disk, and compare what it holds with what clients were told."""
    life = Life(directory, good_disk(), told)
    life.start()
    held = life.held()
    lost = told.added - told.acking - held
    assert not lost, f"{len(lost)} of {len(told.added)} acknowledged jobs are lost"
    back = told.acked & held
    assert not back, f"{len(back)} finished jobs are back"
    assert life.stop()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewrites go in several steps; what nodes say about faults that were meant isn't shown."""
    monkeypatch.setattr("penstock.broker.journal.REWRITE_JOBS", 2)
    caplog.set_level("CRITICAL", "penstock")


def calls_of_a_life(directory: Path) -> int:
    faults = good_disk()
    told = Told()
    assert not live(directory, faults, told)
    assert len(told.added) == 9
    assert len(told.acked) == 3
    check(directory, told)
    return faults.calls


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_nothing_acknowledged_is_lost_whichever_call_of_the_disk_fails(
    tmp_path: Path, code: int, lasting: bool
) -> None:
    for is_second_life in (False, True):
        calls = 0
        for fail_at in range(1, CALLS_MAX, EVERY):
            directory = tmp_path / f"{is_second_life}-{fail_at}"
            directory.mkdir()
            told = Told()
            if is_second_life:  # with something to load
                assert not live(directory, good_disk(), told)
            faults = Faults(fail_at, code, lasting)
            has_said_so = live(directory, faults, told)
            try:
                check(directory, told)
            except AssertionError as problem:
                raise AssertionError(f"call {fail_at}: {problem}") from None
            if not faults.happened:
                break
            calls = fail_at
            # A life ends with a write of checksums, of what is safe already: a start does without them. Its rest is one
            # more call.
            is_last = faults.calls <= fail_at + 1
            assert has_said_so or not lasting or is_last, (
                f"all calls from {fail_at} on failed, and the node said nothing"
            )
        assert calls > 40


def test_a_life_has_calls_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[str, int] = {}
    count = Faults.count

    def counting(faults: Faults, what: str) -> None:
        kinds[what] = kinds.get(what, 0) + 1
        count(faults, what)

    monkeypatch.setattr(Faults, "count", counting)
    assert calls_of_a_life(tmp_path) > 40
    assert set(kinds) == {"read", "open", "write", "sync", "rename", "remove"}


# Defects planted on purpose: the matrix must find them.


def ignore_failed_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: FaultyFile, data: bytes) -> int:
        try:
            file._faults.count("write")
        except OSError:
            return len(data)
        return file._file.write(data)

    monkeypatch.setattr(FaultyFile, "write", write)


@pytest.mark.parametrize("plant", [ignore_failed_writes])
def test_the_matrix_finds_writes_that_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    calls = calls_of_a_life(tmp_path)
    plant(monkeypatch)
    for fail_at in range(calls // 4, calls + 1):
        directory = tmp_path / f"{fail_at}"
        directory.mkdir()
        told = Told()
        live(directory, Faults(fail_at, errno.EIO, lasting=False), told)
        try:
            check(directory, told)
        except (AssertionError, PenstockError):
            return
    pytest.fail("no lost write was found")
