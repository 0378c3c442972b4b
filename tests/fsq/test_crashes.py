"""Power failures: whatever is left on the disk, no acknowledged item is lost or doubled, and no torn one is visible.

The system calls of each operation are recorded once. Operations of several processes are mixed at random; at every
point of such a history every tree that a crash may leave (crash_model.py) is looked at, and many are laid out and
scanned with the real code.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock import fsq
from penstock.fsq import auditing, files
from penstock.fsq.names import parse
from tests.fsq import programs
from tests.fsq.crash_model import DIRECTORY, Left, Operation, RecordingDisk, Tree, lay_out, split
from tests.fsq.crash_walk import finds_fault, walk

LONG = os.environ.get("PENSTOCK_LONG") == "1"
HISTORIES = 1000 if LONG else 90
TREES_MIN = 100_000 if LONG else 10_000  # the least number of different states that must have been looked at
LAID_OUT_EVERY = 20  # one tree of this number is scanned with the real code
PLACES = ("tmp", "queue", "done", "fail")


class Story:
    """The recorded operations on one queue: what was there before, and what each caller did."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.disk = RecordingDisk(base)
        self.start: dict[str, bytes] = {}
        self.data: dict[str, bytes] = {}  # of each job
        self.threads: list[list[Operation]] = []

    def job(self, name: str) -> str:
        return parse(name).job_id

    def add(self, steps: list[Operation]) -> None:
        self.threads.append(steps)


def put(queue: str, data: bytes, tries: int = 0) -> str:
    """An item that is there from the start."""
    name = fsq.senqueue(queue, data, "old")
    renamed = parse(name).with_tries(tries)
    os.rename(fsq.path.item(queue, name), fsq.path.item(queue, renamed))
    return renamed


@pytest.fixture
def story(queue: str, monkeypatch: pytest.MonkeyPatch) -> Story:
    """Two enqueues, a batch, a done, a fail, two retries and a redrive, each by a process of its own."""
    fsq.set_const("FSQ_SYNC", 1)
    told = Story(fsq.path.base(queue))
    for data in (b"to be done", b"to fail", b"to be retried", b"to be given up"):
        told.data[told.job(put(queue, data))] = data
    failed = put(queue, b"to come back", tries=3)
    told.data[told.job(failed)] = b"to come back"
    os.rename(fsq.path.item(queue, failed), f"{fsq.path.fail(queue)}/{failed}")
    waiting = sorted(os.listdir(fsq.path.queue(queue)), key=lambda name: int(name.split("_")[2]))
    told.start = {f"queue/{name}": told.data[told.job(name)] for name in waiting} | {f"fail/{failed}": b"to come back"}
    monkeypatch.setattr(files, "disk", told.disk)
    _record(told, queue, waiting, failed)
    return told


def _record(told: Story, queue: str, waiting: list[str], failed: str) -> None:
    def enqueue(data: bytes) -> None:
        name = fsq.senqueue(queue, data, "new")
        told.data[told.job(name)] = data
        told.disk.ack(f"waits {name}")

    def enqueue_many() -> None:
        for name in fsq.enqueue_many(queue, [(b"first of two", ["x"]), (b"second of two", [])]):
            told.data[told.job(name)] = b"first of two" if parse(name).arguments else b"second of two"
            told.disk.ack(f"waits {name}")

    def complete(name: str, how: Callable[[fsq.FSQWorkItem], object], ack: str) -> None:
        with fsq.FSQWorkItem(queue, name, max_tries=9) as item:
            new_id = how(item)
        told.disk.ack(f"{ack} {new_id or name}")

    def give_up(item: fsq.FSQWorkItem) -> None:
        with pytest.raises(fsq.FSQMaxTriesError):
            fsq.fail_tmp(item, max_tries=1)

    def redrive() -> None:
        from penstock.fsq.redrive import redrive

        (name,) = redrive(queue, [failed])
        told.disk.ack(f"waits {name}")

    actions: list[Callable[[], object]] = [
        lambda: enqueue(b"one, longer than a word"),
        lambda: enqueue(b"two"),
        enqueue_many,
        lambda: complete(waiting[0], fsq.success, "done"),
        lambda: complete(waiting[1], fsq.fail_perm, "fail"),
        lambda: complete(waiting[2], fsq.retry, "waits"),
        lambda: complete(waiting[3], give_up, "fail"),
        redrive,
    ]
    for action in actions:
        action()
        told.add(told.disk.take())


def mixed(threads: list[list[Operation]], chance: random.Random, most: int = 6) -> list[Operation]:
    """One history of several processes: each one's steps in their order."""
    chosen = [list(thread) for thread in chance.sample(threads, chance.randint(2, most))]
    history = []
    while chosen:
        thread = chance.choice(chosen)
        history.append(thread.pop(0))
        if not thread:
            chosen.remove(thread)
    return history


def complaints(told: Story, tree: Tree, acks: set[str]) -> list[str]:
    """What is wrong with a tree after a crash, seen from those who were told that something is done."""
    wrong = []
    where: dict[str, list[tuple[str, str, int]]] = {}
    for place, name, data, file in tree:
        if place == "tmp":
            continue
        job = told.job(name)
        where.setdefault(job, []).append((place, name, file))
        if place == "queue" and data != told.data[job]:
            wrong.append(f"torn: {name} is {data!r}")
    wrong += [f"lost: {path} was there from the start" for path in told.start if told.job(split(path)[1]) not in where]
    for job, found in where.items():
        waiting = [name for place, name, _ in found if place == "queue"]
        if len(waiting) > 1:
            wrong.append(f"doubled: {job} waits as {waiting}")
        if len(found) > 1 and len({(name, file) for _, name, file in found}) > 1:
            wrong.append(f"doubled: {job} is in {found}, and nobody could see that they are one")
    for ack in acks:
        kind, _, name = ack.partition(" ")
        places = {place for place, found_name, _ in where.get(told.job(name), []) if found_name == name}
        if places != {"queue" if kind == "waits" else kind}:
            wrong.append(f"{ack}: but it is in {places}")
        if {found_name for _, found_name, _ in where.get(told.job(name), [])} - {name}:
            wrong.append(f"{ack}: but it has another name too")
    return wrong


def recovered(told: Story, tree: Tree, base: Path) -> list[str]:
    """Lay a tree out, repair it, scan it, and say what is wrong with what comes."""
    fsq.set_const("FSQ_ROOT", str(base))
    fsq.set_const("FSQ_SYNC", 0)
    for place in PLACES:
        (base / "mail" / place).mkdir(parents=True)
    lay_out(tree, str(base / "mail"))
    left = [reason for _, reason in auditing.repair("mail", older_seconds=0) if reason is not None]
    wrong = [f"repair left something: {left}"] if left else []
    ended = {told.job(name) for place in ("done", "fail") for name in os.listdir(base / "mail" / place)}
    seen: set[str] = set()
    for item in fsq.scan("mail", max_tries=0):
        assert item.item is not None
        job = item.name.job_id
        if item.item.read() != told.data[job]:
            wrong.append(f"{item.id} came torn")
        if job in seen:
            wrong.append(f"{item.id} came twice")
        if (base / "mail" / "done" / item.id).exists():
            wrong.append(f"{item.id} came though it is done")
        seen.add(job)
        fsq.success(item)
    there = {told.job(name) for place, name, _, _ in tree if place != "tmp"}
    if there - seen - ended:
        wrong.append(f"lost: {there - seen - ended}")
    if os.listdir(base / "mail" / "tmp"):
        wrong.append("repair left litter")
    return wrong


def histories(told: Story, count: int) -> Iterator[tuple[list[Operation], Left]]:
    """Each operation alone, on the worst of disks; then mixtures of several."""
    chance = random.Random(8)
    for thread in told.threads:
        yield thread, Left(told.start, strict=True)
    for _ in range(count):
        yield mixed(told.threads, chance), Left(told.start)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_crash_loses_doubles_or_tears_an_item(story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def for_real(tree: Tree, base: Path, is_odd: bool) -> list[str]:
        return recovered(story, tree, base)

    plans = histories(story, HISTORIES)
    look = partial(complaints, story)
    states, laid_out = walk(plans, look, for_real, LAID_OUT_EVERY, tmp_path / "laid-out", monkeypatch)
    assert states >= TREES_MIN
    assert laid_out >= TREES_MIN // LAID_OUT_EVERY


def test_syncing_the_wrong_directory_first_would_be_noticed(story: Story) -> None:
    swapped = {"queue": "done", "done": "queue"}
    for thread in story.threads:
        thread[:] = [
            Operation(step.kind, swapped.get(step.path, step.path)) if step.kind == "sync_directory" else step
            for step in thread
        ]
    assert faulty(story, lambda step: False)


def faulty(told: Story, spoil: Callable[[Operation], bool]) -> bool:
    plans = ((thread, Left(told.start, strict=True)) for thread in told.threads)
    return finds_fault(plans, partial(complaints, told), spoil)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda step: step.kind == "sync",
        lambda step: step.kind == "sync_directory" and step.path == "queue",
        lambda step: step.kind == "sync_directory" and step.path == "done",
        lambda step: step.kind == "sync_directory" and step.path == "fail",
    ],
    ids=["no sync of the data", "none of queue", "none of done", "none of fail"],
)
def test_a_missing_sync_would_be_noticed(story: Story, spoil: Callable[[Operation], bool]) -> None:
    assert not faulty(story, lambda step: False)
    assert faulty(story, spoil)


def test_every_change_of_a_queue_goes_through_the_recorded_disk(story: Story) -> None:
    """What the record says is there is what is there."""
    left = Left(story.start)
    for thread in story.threads:
        for step in thread:
            left.play(step)
    real = {(place, name) for place in PLACES for name in os.listdir(f"{story.base}/{place}")}
    assert {entry for entry, file in left.names.items() if file != DIRECTORY} == real


def test_an_item_that_is_done_and_still_waits_is_not_run_again(queue: str) -> None:
    name = fsq.senqueue(queue, "x")
    os.link(fsq.path.item(queue, name), f"{fsq.path.done(queue)}/{name}")
    assert list(fsq.scan(queue)) == []
    assert os.listdir(fsq.path.queue(queue)) == []
    assert os.listdir(fsq.path.done(queue)) == [name]


def test_completing_what_has_both_names_takes_the_old_one_away(queue: str) -> None:
    """The system takes a rename between two names of one file for nothing to do."""
    name = fsq.senqueue(queue, "x")
    with fsq.FSQWorkItem(queue, name) as item:
        os.link(fsq.path.item(queue, name), f"{fsq.path.done(queue)}/{name}")
        fsq.success(item)
    assert os.listdir(fsq.path.queue(queue)) == []
    assert os.listdir(fsq.path.done(queue)) == [name]


@pytest.mark.system
def test_the_record_is_what_the_system_was_asked_for(queue: str, tmp_path: Path) -> None:
    """The recorded calls stand for the real ones: the kernel's view of an enqueue and a done, in order."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace isn't installed")
    fsq.set_const("FSQ_SYNC", 1)
    program = "from penstock import fsq\nfsq.senqueue('mail', 'data')\n[fsq.success(item) for item in fsq.scan('mail')]"
    log = tmp_path / "calls"
    calls = "trace=openat,write,fsync,link,linkat,unlink,unlinkat,rename,renameat,renameat2"
    words = [strace, "-y", "-e", calls, "-o", str(log), sys.executable, "-c", program]
    done = subprocess.run(words, env=programs.environment(), capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    seen = []
    for line in log.read_text().splitlines():
        kind = line.partition("(")[0]
        place = re.findall(r"root/mail/(\w+)", line)
        if place and place[-1] != "attempts" and (kind != "openat" or "O_CREAT" in line):
            seen.append((kind.removesuffix("at"), place[-1]))
    assert seen == [
        ("open", "tmp"),
        ("write", "tmp"),
        ("fsync", "tmp"),
        ("link", "queue"),
        ("unlink", "tmp"),
        ("fsync", "queue"),
        ("rename", "done"),
        ("fsync", "done"),
        ("fsync", "queue"),
    ]
