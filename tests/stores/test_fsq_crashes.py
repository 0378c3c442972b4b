"""Power failures under the store of directories: no job is lost, doubled or torn, and none comes that was ended.

As in tests/fsq/test_crashes.py: the system calls of each step are recorded once, steps of several processes are mixed
at random, and every tree is looked at that a crash may leave at any point. Many are laid out and drained with the real
code.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest

from penstock.fsq import auditing, constants, files
from penstock.fsq.names import parse
from penstock.fsq.reserved import KEY_FILE, key_name
from penstock.queues import blocking
from tests.fsq.crash_model import Left, Operation, RecordingDisk, Tree, lay_out, shared_directories
from tests.fsq.crash_walk import finds_fault, walk
from tests.fsq.test_crashes import mixed

LONG = os.environ.get("PENSTOCK_LONG") == "1"
HISTORIES = 600 if LONG else 30
TREES_MIN = 100_000 if LONG else 5_000
LAID_OUT_EVERY = 50
LEASE = 1000.0
HELD = (f".penstock/claim/{key_name('held')}", KEY_FILE)
FAR = 10**9  # seconds: whatever lease or delay there is, it is over then


class Story:
    """What was there before, what each process did, and what it was told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = RecordingDisk(str(root / "mail"))
        self.start: dict[str, bytes] = {}
        self.data: dict[str, bytes] = {}  # of each job
        self.ending: set[str] = set()  # jobs that somebody ends: they may be gone before that is told
        self.threads: list[list[Operation]] = []

    def store(self, **options: Any) -> blocking.Store:
        """A process of its own."""
        return blocking.connect(f"fsq:{self.root}", stats="memory:", **options)

    def act(self, action: Callable[[blocking.Queue], str], file: str = "", **options: Any) -> None:
        """Let a process do something while nothing but one item is in the queue: each has its own."""
        hidden, waiting = self.root / "hidden", self.root / "mail/queue"
        hidden.mkdir()
        for one in waiting.iterdir():
            if one.name != file:
                one.rename(hidden / one.name)
        with self.store(**options) as store:
            self.disk.ack(action(store.queue("mail", lease=LEASE)))
            self.threads.append(self.disk.take())
        for one in hidden.iterdir():
            one.rename(waiting / one.name)
        hidden.rmdir()


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    root = tmp_path / "root"
    root.mkdir()
    with constants.using(FSQ_ROOT=str(root), FSQ_SYNC=1):
        told = Story(root)
        prepare(told)
        monkeypatch.setattr(files, "disk", told.disk)
        record(told)
        yield told


def prepare(told: Story) -> None:
    """Jobs that wait, one whose lease is over, one whose time has come; all of it is on the disk."""
    with told.store(sync=0) as store:
        queue = store.queue("mail")
        store.shift_clock(-3 * LEASE)
        queue.push("due", delay=LEASE)
        queue.push("leased")
        queue.push("claimed before")
        queue.reserve(0, lease=LEASE)
        queue.claim("before", 1, lease=LEASE)
        store.shift_clock(3 * LEASE)
        for number in range(9):
            queue.push(f"job {number}")
    mail = told.root / "mail"
    for directory in ("later", "claim", "lease", "stats"):
        (mail / ".penstock" / directory).mkdir(exist_ok=True)
    for file in mail.rglob("*"):
        if file.is_file() and file.name.startswith("_"):
            told.start[str(file.relative_to(mail))] = file.read_bytes()
            told.data[parse(file.name).job_id] = file.read_bytes()
    (key,) = mail.glob(".penstock/claim/*/key")
    told.start[str(key.relative_to(mail))] = key.read_bytes()


def record(told: Story) -> None:
    def push(queue: blocking.Queue, **options: Any) -> str:
        job_id = queue.push("new", **options)
        told.data[job_id] = b'"new"'
        return f"{'later' if options else 'waits'} 0 {job_id}"

    def taken(queue: blocking.Queue, verb: str) -> str:
        job = queue.reserve(0)
        assert job is not None
        if verb == "extend, ack":
            job.extend(2 * LEASE)
        if verb in ("ack", "extend, ack"):
            told.ending.add(job.id)
            job.ack()
            return f"gone 0 {job.id}"
        if verb == "release":
            queue.release_many([job])
            return f"waits 0 {job.id}"
        job.nack(delay=LEASE if verb == "nack later" else 0)
        return f"{'later' if verb == 'nack later' else 'waits'} 1 {job.id}"

    def kept(queue: blocking.Queue) -> str:
        job = queue.reserve(0)
        assert job is not None
        job.ack()
        return f"done 0 {job.id}"

    def pop(queue: blocking.Queue) -> str:
        job = queue.pop(0)
        assert job is not None
        told.ending.add(job.id)
        return f"gone 0 {job.id}"

    def claim(queue: blocking.Queue) -> str:
        (job,) = queue.claim("mine", 1)
        told.ending.add(job.id)
        queue.claim("mine", 1)
        assert queue.ack_claim("mine") == 1
        return f"gone 0 {job.id}"

    def claim_only(queue: blocking.Queue) -> str:
        (job,) = queue.claim("held", 1)
        return f"claimed 0 {job.id}"

    def look(queue: blocking.Queue) -> str:
        queue.size()
        (job_id,) = [parse(Path(path).name).job_id for path in told.start if path.startswith(".penstock/lease")]
        return f"waits 1 {job_id}"

    mine = iter(sorted(Path(path).name for path in told.start if path.startswith("queue/")))
    told.act(look)
    told.act(push)
    told.act(lambda queue: push(queue, delay=LEASE))
    for verb in ("ack", "extend, ack", "nack", "nack later", "release"):
        told.act(partial(taken, verb=verb), next(mine))
    told.act(kept, next(mine), keep=1)
    for action in (pop, claim, claim_only):
        told.act(action, next(mine))


@lru_cache(None)
def job_of(file: str) -> str:
    return parse(file).job_id


@lru_cache(None)
def tries_of(file: str) -> int:
    return parse(file).tries


def place_of(directory: str) -> str:
    return directory.split("/")[1] if directory.startswith(".penstock") else directory


def complaints(told: Story, tree: Tree, acks: set[str]) -> list[str]:
    wrong = []
    where: dict[str, list[tuple[str, str, int]]] = {}
    for directory, file, data, number in tree:
        place = place_of(directory)
        if place in {"tmp", "stats"} or not file.startswith("_") or directory.endswith("lost"):
            continue
        where.setdefault(job_of(file), []).append((place, file, number))
        if data != told.data[job_of(file)]:
            wrong.append(f"torn: {directory}/{file} is {data!r}")
    began = {job_of(Path(path).name) for path in told.start if Path(path).name.startswith("_")}
    stored = {ack.split(" ")[2] for ack in acks if ack.split(" ")[0] in {"waits", "later"}}
    wrong += [f"lost: {job}" for job in (began | stored) - told.ending if job not in where]
    for job, found in where.items():
        if len({number for _, _, number in found}) > 1:
            wrong.append(f"doubled: {job} is in {found}, and they are not one file")
    for ack in acks:
        kind, tries, job = ack.split(" ")
        places = [(place, tries_of(file)) for place, file, _ in where.get(job, [])]
        wanted = {"waits": "queue", "later": "later", "done": "done", "claimed": "claim"}
        expected = [] if kind == "gone" else [(wanted[kind], int(tries))]
        if places != expected:
            wrong.append(f"{ack}: but it is in {places}")
        if kind == "claimed" and HELD not in {(directory, file) for directory, file, _, _ in tree}:
            wrong.append(f"{ack}: but the claim is not there")
    return wrong


def recovered(told: Story, tree: Tree, base: Path, is_repaired: bool) -> list[str]:
    """Lay a tree out and drain it; whatever is in it must come once, and what is done must not come."""
    wrong: list[str] = []
    mail = base / "mail"
    for place in ("tmp", "queue", "done", "fail", *{directory for directory, *_ in tree}):
        (mail / place).mkdir(parents=True, exist_ok=True)
    lay_out(tree, str(mail))
    done = {job_of(file) for directory, file, *_ in tree if directory == "done"}
    there = {
        job_of(file)
        for directory, file, *_ in tree
        if place_of(directory) not in {"tmp", "stats"} and file.startswith("_") and not directory.endswith("lost")
    }
    if is_repaired:
        with constants.using(FSQ_ROOT=str(base)):
            left = [reason for _, reason in auditing.repair("mail", older_seconds=0) if reason is not None]
            wrong += [f"repair left something: {left}"] if left else []
    seen: set[str] = set()
    with blocking.connect(f"fsq:{base}?sync=0", stats="memory:") as store:
        queue = store.queue("mail")
        if not is_repaired:
            queue.claim("held", 9, lease=LEASE)
        store.shift_clock(FAR)
        while jobs := queue.reserve_many(100, lease=FAR / 1000):
            for job in jobs:
                if job.id in seen:
                    wrong.append(f"{job.id} came twice")
                if job.body != told.data[job.id]:
                    wrong.append(f"{job.id} came torn")
                seen.add(job.id)
            queue.ack_many(jobs)
    wrong += [f"{job} came though it is done" for job in seen & done]
    wrong += [f"lost: {job}" for job in there - seen - done]
    return wrong


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_crash_loses_doubles_or_tears_a_job(story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(11)
    plans = [(thread, Left(story.start, strict=True)) for thread in story.threads]
    shared = shared_directories(story.threads)
    plans += [(mixed(story.threads, chance), Left(story.start, shared=shared)) for _ in range(HISTORIES)]
    look, for_real = partial(complaints, story), partial(recovered, story)
    states, laid_out = walk(plans, look, for_real, LAID_OUT_EVERY, tmp_path / "laid-out", monkeypatch)
    assert states >= TREES_MIN
    assert laid_out >= TREES_MIN // LAID_OUT_EVERY


def test_the_record_is_what_happened(story: Story) -> None:
    left = Left(story.start)
    for thread in story.threads:
        for step in thread:
            left.play(step)
    mail = story.root / "mail"
    real = {
        (str(file.parent.relative_to(mail)), file.name)
        for file in mail.rglob("*")
        if file.is_file() and file.name.startswith("_") and file.parent.name not in {"lost", "back"}
    }
    recorded = {entry for entry in left.names if entry[1].startswith("_") and not entry[0].endswith("lost")}
    assert recorded == real


def faulty(told: Story, spoil: Callable[[Operation], bool]) -> bool:
    plans = ((thread, Left(told.start, strict=True)) for thread in told.threads)
    return finds_fault(plans, partial(complaints, told), spoil)


@pytest.mark.parametrize("place", ["queue", "lease", "later", "done", "claim"])
def test_a_missing_sync_would_be_noticed(story: Story, place: str) -> None:
    assert not faulty(story, lambda step: False)
    assert faulty(story, lambda step: step.kind == "sync_directory" and place_of(step.path) == place)


def test_a_missing_sync_of_the_data_would_be_noticed(story: Story) -> None:
    assert faulty(story, lambda step: step.kind == "sync")
