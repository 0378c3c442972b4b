"""Power failures while jobs go from queue to queue, and in calls for many jobs at once.

As in test_fsq_crashes.py, with two queues: dead letters, redrives, claims that are given back, and batches. Whatever is
left on the disk, no job is lost or torn, none is in two places as two files, and none comes again that was ended.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path

import pytest

from penstock.fsq import auditing, constants, files
from penstock.fsq.names import parse
from penstock.queues import blocking
from penstock.queues.dead_letter import FROM_QUEUE
from tests.fsq.crash_model import Left, Operation, RecordingDisk, Tree, lay_out, shared_directories
from tests.fsq.crash_walk import finds_fault, walk
from tests.fsq.test_crashes import mixed

LONG = os.environ.get("PENSTOCK_LONG") == "1"
HISTORIES = 500 if LONG else 60
TREES_MIN = 100_000 if LONG else 10_000
LAID_OUT_EVERY = 100
LEASE = 1000.0
FAR = 10**9  # seconds: whatever lease or delay there is, it is over then
QUEUES = ("mail", "given_up")
UNREAD = [f"{queue}/tmp" for queue in QUEUES]  # drafts: the other tests look at those

Action = Callable[[blocking.Store, blocking.Queue], Iterable[str]]


class Story:
    """What was there before, what each process did, and what it was told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = RecordingDisk(str(root))
        self.start: dict[str, bytes] = {}
        self.data: dict[str, set[bytes]] = {}  # what each job may look like: a move changes its headers
        self.ending: set[str] = set()  # jobs that somebody ends: they may be gone before that is told
        self.threads: list[list[Operation]] = []

    def store(self, sync: int = 1) -> blocking.Store:
        return blocking.connect(f"fsq:{self.root}?sync={sync}", stats="memory:", dead_letter="2,given_up")

    def items(self) -> Iterator[Path]:
        """All items, wherever they are."""
        for queue in QUEUES:
            found = [
                file
                for file in (self.root / queue).rglob("_*")
                if file.is_file() and file.parent.name not in {"lost", "back"}
            ]
            yield from found

    def learn(self) -> None:
        for file in self.items():
            self.data.setdefault(job_of(file.name), set()).add(file.read_bytes())

    def act(self, action: Action, *files: str) -> None:
        """Let a process do something while only these items wait: each has its own."""
        hidden = {self.root / f"hidden-{queue}": self.root / queue / "queue" for queue in QUEUES}
        for aside, waiting in hidden.items():
            aside.mkdir()
            for one in waiting.iterdir():
                if one.name not in files:
                    one.rename(aside / one.name)
        with self.store() as store:
            for ack in action(store, store.queue("mail", lease=LEASE)):
                self.disk.ack(ack)
            self.threads.append(self.disk.take())
            self.learn()
        for aside, waiting in hidden.items():
            for one in aside.iterdir():
                one.rename(waiting / one.name)
            aside.rmdir()

    def left(self, strict: bool = False, shared: Iterable[str] = ()) -> Left:
        return Left(self.start, strict, UNREAD, shared)


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
    """Jobs that wait, and dead letters; all of it is on the disk."""
    with told.store(sync=0) as store:
        queue = store.queue("mail", lease=LEASE)
        queue.push_many([f"dead {number}" for number in range(4)])
        queue.fail_many(queue.reserve_many(4), ["no luck"] * 4)
        store.queue("given_up").push("dead and delayed", delay=9 * LEASE, headers={FROM_QUEUE: "mail"})
        queue.push_many([f"job {number}" for number in range(24)])
        first = queue.reserve(0)
        assert first is not None
        first.nack()
    for queue_name in QUEUES:
        for directory in ("later", "claim", "lease"):
            (told.root / queue_name / ".penstock" / directory).mkdir(parents=True, exist_ok=True)
    told.learn()
    told.start = {str(file.relative_to(told.root)): file.read_bytes() for file in told.items()}


def taken(store: blocking.Store, queue: blocking.Queue, told: Story, verb: str, count: int) -> list[str]:
    """Reserve some jobs and do something with them; return what the caller was told."""
    jobs = queue.reserve_many(count)
    assert len(jobs) == count
    if verb == "extend, ack":
        assert all(queue.extend_many(jobs, 2 * LEASE))
    if verb in ("ack", "extend, ack"):
        told.ending.update(job.id for job in jobs)
        assert all(queue.ack_many(jobs))
    elif verb == "nack later":
        assert all(queue.nack_many(jobs, LEASE))
    elif verb == "nack":
        assert all(queue.nack_many(jobs))
    elif verb == "release":
        queue.release_many(jobs)
    else:
        assert all(queue.fail_many(jobs, ["no"] * count))
    ends = {"ack": "gone 0", "extend, ack": "gone 0", "nack": "mail/queue 1", "nack later": "mail/later 1"}
    ends |= {"release": "mail/queue 0", "fail": "given_up/queue 0"}
    return [f"{ends[verb]} {job.id}" for job in jobs]


def last_try(store: blocking.Store, queue: blocking.Queue) -> list[str]:
    """A job whose tries are used up goes to the dead letters when it is given back."""
    job = queue.reserve(0)
    assert job is not None
    job.nack()
    return [f"given_up/queue 0 {job.id}"]


def redriven(store: blocking.Store, queue: blocking.Queue, ids: set[str]) -> list[str]:
    given_up = store.queue("given_up")
    assert given_up.redrive(lambda job: job.id in ids) == len(ids)
    return [f"mail/queue 0 {job_id}" for job_id in sorted(ids)]


def claimed(store: blocking.Store, queue: blocking.Queue, told: Story, key: str, end: str) -> list[str]:
    jobs = queue.claim(key, 2)
    assert len(jobs) == 2
    if end == "ack":
        told.ending.update(job.id for job in jobs)
        assert queue.ack_claim(key) == 2
    elif end == "fail":
        assert all(queue.fail_many(jobs, ["no"] * 2))
    else:
        assert queue.nack_claim(key, LEASE if end == "later" else 0) == 2
    ends = {"ack": "gone 0", "fail": "given_up/queue 0", "later": "mail/later 1", "back": "mail/queue 1"}
    return [f"{ends[end]} {job.id}" for job in jobs]


def pushed(store: blocking.Store, queue: blocking.Queue, delay: float) -> list[str]:
    ids = queue.push_many(["one", "two", "three"], delay=delay)
    return [f"{'mail/later' if delay else 'mail/queue'} 0 {job_id}" for job_id in ids]


def popped(store: blocking.Store, queue: blocking.Queue, told: Story) -> list[str]:
    jobs = queue.pop_many(2)
    assert len(jobs) == 2
    told.ending.update(job.id for job in jobs)
    return [f"gone 0 {job.id}" for job in jobs]


def record(told: Story) -> None:
    waiting = iter(sorted(Path(path).name for path in told.start if path.startswith("mail/queue/")))
    dead = sorted(Path(path).name for path in told.start if path.startswith("given_up/queue/"))

    def some(count: int) -> list[str]:
        return [next(waiting) for _ in range(count)]

    told.act(last_try, *some(1))
    told.act(partial(taken, told=told, verb="fail", count=1), *some(1))
    for verb in ("fail", "ack", "extend, ack", "nack", "nack later", "release"):
        told.act(partial(taken, told=told, verb=verb, count=2), *some(2))
    told.act(partial(redriven, ids={job_of(dead[0])}), dead[0])
    told.act(partial(redriven, ids={job_of(file) for file in dead[1:3]}), *dead[1:3])
    told.act(partial(redriven, ids={job_of(Path(path).name) for path in told.start if "given_up/.penstock" in path}))
    for end in ("ack", "fail", "later", "back"):
        told.act(partial(claimed, told=told, key=end, end=end), *some(2))
    told.act(partial(pushed, delay=0))
    told.act(partial(pushed, delay=LEASE))
    told.act(partial(popped, told=told), *some(2))


@lru_cache(None)
def job_of(file: str) -> str:
    return parse(file).job_id


@lru_cache(None)
def place_of(directory: str) -> str:
    queue, place, *more = directory.split("/")
    return f"{queue}/{more[0] if place == '.penstock' else place}"


def is_item(directory: str, file: str) -> bool:
    return file.startswith("_") and not directory.endswith("/lost")


def whereabouts(tree: Tree) -> dict[str, list[tuple[str, str, int]]]:
    """Where each job is: place, name, and which file."""
    found: dict[str, list[tuple[str, str, int]]] = {}
    for directory, file, _, number in tree:
        if is_item(directory, file):
            found.setdefault(job_of(file), []).append((place_of(directory), file, number))
    return found


def complaints(told: Story, tree: Tree, acks: set[str]) -> list[str]:
    where = whereabouts(tree)
    wrong = [
        f"torn: {directory}/{file} is {data!r}"
        for directory, file, data, _ in tree
        if is_item(directory, file) and data not in told.data[job_of(file)]
    ]
    known = {job_of(Path(path).name) for path in told.start}
    known |= {job for kind, _, job in (ack.split(" ") for ack in acks) if kind != "gone"}
    wrong += [f"lost: {job}" for job in known - told.ending if job not in where]
    for job, found in where.items():
        if len({number for _, _, number in found}) > 1:
            wrong.append(f"doubled: {job} is in {found}, and they are not one file")
    for ack in acks:
        kind, tries, job = ack.split(" ")
        places = [f"{place} {parse(file).tries}" for place, file, _ in where.get(job, [])]
        if places != ([] if kind == "gone" else [f"{kind} {tries}"]):
            wrong.append(f"{ack}: but it is in {places}")
    return wrong


def is_between(found: list[tuple[str, str, int]]) -> bool:
    """A rename from one queue to the other that is half on the disk: the one case where a job may come twice."""
    return len({place.split("/")[0] for place, _, _ in found}) > 1


def recovered(told: Story, tree: Tree, base: Path, is_repaired: bool) -> list[str]:
    """Lay a tree out and drain both queues; whatever is in it must come once."""
    wrong: list[str] = []
    for queue in QUEUES:
        for place in ("tmp", "queue", "done", "fail"):
            (base / queue / place).mkdir(parents=True)
    for directory in {directory for directory, *_ in tree}:
        (base / directory).mkdir(parents=True, exist_ok=True)
    lay_out(tree, str(base))
    where = whereabouts(tree)
    seen: dict[str, list[str]] = {}
    with constants.using(FSQ_ROOT=str(base)), blocking.connect(f"fsq:{base}?sync=0", stats="memory:") as store:
        if is_repaired:
            left = [reason for queue in QUEUES for _, reason in auditing.repair(queue, 0) if reason is not None]
            wrong += [f"repair left something: {left}"] if left else []
        store.shift_clock(FAR)
        for name in QUEUES:
            queue = store.queue(name)
            while jobs := queue.reserve_many(100, lease=FAR / 1000):
                for job in jobs:
                    seen.setdefault(job.id, []).append(name)
                assert all(queue.ack_many(jobs))
    for job, queues in seen.items():
        if len(queues) > 1 and not (is_between(where[job]) and sorted(queues) == sorted(QUEUES)):
            wrong.append(f"{job} came from {queues}, and was {where[job]}")
    wrong += [f"lost: {job}" for job in where.keys() - seen.keys()]
    return wrong


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_crash_loses_or_doubles_a_job_on_its_way(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(12)
    plans = [(thread, story.left(strict=True)) for thread in story.threads]
    shared = shared_directories(story.threads)
    plans += [(mixed(story.threads, chance, most=3), story.left(shared=shared)) for _ in range(HISTORIES)]
    look, for_real = partial(complaints, story), partial(recovered, story)
    states, laid_out = walk(plans, look, for_real, LAID_OUT_EVERY, tmp_path / "laid-out", monkeypatch)
    assert states >= TREES_MIN
    assert laid_out >= TREES_MIN // LAID_OUT_EVERY


def test_the_record_is_what_happened(story: Story) -> None:
    left = story.left(shared=shared_directories(story.threads))
    for thread in story.threads:
        for step in thread:
            left.play(step)
    real = {(str(file.parent.relative_to(story.root)), file.name) for file in story.items()}
    assert {entry for entry in left.names if is_item(*entry)} == real


def faulty(told: Story, spoil: Callable[[Operation], bool]) -> bool:
    plans = ((thread, told.left(strict=True)) for thread in told.threads)
    return finds_fault(plans, partial(complaints, told), spoil)


@pytest.mark.parametrize("place", ["mail/queue", "mail/lease", "mail/later", "mail/claim", "given_up/queue"])
def test_a_missing_sync_would_be_noticed(story: Story, place: str) -> None:
    assert not faulty(story, lambda step: False)
    assert faulty(story, lambda step: step.kind == "sync_directory" and place_of(step.path) == place)


def test_a_missing_sync_of_the_data_would_be_noticed(story: Story) -> None:
    assert faulty(story, lambda step: step.kind == "sync")
