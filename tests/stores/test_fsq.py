"""Directories as a store: what is on the disk, and how it is shared with scanners, originals and people."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Push, fsq
from penstock.errors import BadPayload, BadUrl, CallerError, StoreError
from penstock.fsq import auditing, inspecting, path, waiting
from penstock.fsq.names import parse
from penstock.fsq.reserved import ReservedArea
from penstock.fsq.snapshot import ItemSnapshot
from penstock.fsq.waiting import QueueWatch
from penstock.job import JobState, NewJob
from penstock.queues import aio, blocking
from penstock.queues.blocking.migration import move
from penstock.queues.stores.fsq import listing, scan
from penstock.queues.stores.fsq import unique as keys
from penstock.queues.stores.fsq.names import ARGUMENTS, directory_of, queue_of
from penstock.queues.stores.fsq.writer import JobWriter
from tests.fsq import original

pytestmark = pytest.mark.usefixtures("root")

PATIENCE = 30.0
LEASE = 1000.0


@pytest.fixture
def store(root: Path) -> Iterator[blocking.Store]:
    with blocking.connect(f"fsq:{root}?sync=0") as opened:
        yield opened


@pytest.fixture
def queue(store: blocking.Store) -> blocking.Queue:
    """A queue that is installed."""
    fsq.install("mail")
    return store.queue("mail", lease=LEASE)


def names(root: Path, *places: str) -> list[str]:
    """The files in some places of the queue."""
    return sorted(entry.name for place in places for entry in (root / "mail" / place).rglob("*") if entry.is_file())


def name(number: int = 0, tries: str = "0", arguments: str = "", mark: str = "_") -> str:
    """A name as the original writes it."""
    return mark + mark.join(["20260101120000", str(number), "17", "web", tries]) + arguments


def put(root: Path, file: str, data: bytes = b"data") -> Path:
    """An item, put in by hand."""
    where = root / "mail" / "queue" / file
    where.write_bytes(data)
    return where


# Items of originals are jobs, and jobs are items


def test_an_item_of_an_original_is_a_job(root: Path, queue: blocking.Queue) -> None:
    put(root, name(arguments="_ann%40example_x%2fy_", tries="2"), b"\x00data")
    job = queue.reserve(0)
    assert job is not None
    assert (job.body, job.tries, job.headers) == (b"\x00data", 2, {ARGUMENTS: ["ann@example", "x/y", ""]})
    assert job.id == "_20260101120000_0_17_web_ann@example_x%2fy_"


def test_a_job_is_an_item_that_a_scanner_can_run(root: Path, queue: blocking.Queue) -> None:
    queue.push(b"raw bytes", headers={ARGUMENTS: ["ann", "a_b"]})
    queue.push({"json": True})
    items = fsq.scan("mail")
    item = next(items)
    assert (item.item.read(), item.arguments, item.tries) == (b"raw bytes", ("ann", "a_b"), 0)
    assert next(items).item.read() == b'{"json":true}'


def test_other_headers_stand_in_front_of_the_body(root: Path, queue: blocking.Queue) -> None:
    queue.push(b"body", headers={"mine": 1, ARGUMENTS: ["x"]})
    (file,) = (root / "mail/queue").iterdir()
    assert parse(file.name).arguments == ("x",)
    assert file.read_bytes().startswith(b"\xffPNSK\x01")
    job = queue.pop(0)
    assert job is not None
    assert (job.body, job.headers) == (b"body", {"mine": 1, ARGUMENTS: ["x"]})


def test_arguments_outlive_a_copy_to_another_store_and_back(root: Path, queue: blocking.Queue) -> None:
    put(root, name(arguments="_ann_%00_x"))
    with blocking.connect("memory:") as other:
        there = other.queue("there")
        assert move(queue, there) == 1
        assert there.peek()[0].headers == {ARGUMENTS: ["ann", "\0", "x"]}
        assert move(there, queue) == 1
    (file,) = (root / "mail/queue").iterdir()
    assert parse(file.name).arguments == ("ann", "\0", "x")


@pytest.mark.parametrize("arguments", [["x" * 250], ["\ud800"]])
def test_arguments_that_no_name_has_room_for_are_refused(queue: blocking.Queue, arguments: list[str]) -> None:
    with pytest.raises(BadPayload, match=ARGUMENTS):
        queue.push(1, headers={ARGUMENTS: arguments})


@pytest.mark.parametrize("value", [[], "text", [1], {"a": 1}, None])
def test_what_is_no_list_of_texts_is_a_header_like_any_other(queue: blocking.Queue, value: Any) -> None:
    queue.push(1, headers={ARGUMENTS: value})
    job = queue.pop(0)
    assert job is not None
    assert job.headers == {ARGUMENTS: value}


@pytest.mark.parametrize(
    "file",
    [
        name(mark="."),
        name(tries="00"),
        name(tries="+0"),
        name(arguments="_%41_%5F"),
        name(arguments="_ünï"),
    ],
)
def test_a_job_keeps_its_id_whatever_its_name_looks_like(root: Path, queue: blocking.Queue, file: str) -> None:
    put(root, file)
    ids = set()
    for tries in range(3):
        job = queue.reserve(0)
        assert job is not None
        assert job.tries == tries
        ids.add(job.id)
        job.nack()
    assert ids == {parse(file).job_id}


def test_items_with_one_id_are_not_lost(root: Path, queue: blocking.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote push that is repeated puts an item in that somebody has reserved."""
    monkeypatch.setattr(listing, "WORTH", 1e9)  # some come back only when one reserve is half through
    bodies = [b"first", b"second", b"third"]
    for body in bodies:
        put(root, name(), body)
        assert queue.reserve(0) is not None
    put(root, name(tries="1"), b"fourth")
    queue.store.shift_clock(2 * LEASE)
    jobs = queue.reserve_many(10)
    assert sorted(job.body for job in jobs) == sorted([*bodies, b"fourth"])
    assert queue.extend_many(jobs) == [True] * 4
    assert queue.nack_many(jobs) == [True] * 4
    jobs = queue.claim("key", 9)
    assert sorted(job.body for job in jobs) == sorted([*bodies, b"fourth"])
    assert len(queue.claim("key", 9)) == 4


def test_a_name_that_can_not_be_read_goes_to_fail(root: Path, queue: blocking.Queue) -> None:
    put(root, "stray")
    put(root, os.fsdecode(b"_\xff"))
    (root / "mail/queue/folder").mkdir()
    queue.push("work")
    (job,) = queue.reserve_many(9)
    assert job.payload == "work"
    assert names(root, "fail") == sorted(["stray", os.fsdecode(b"_\xff")])
    assert (root / "mail/queue/folder").is_dir()


def test_an_item_that_is_linked_into_other_queues_is_a_job_of_each(root: Path, queue: blocking.Queue) -> None:
    fsq.install("other")
    first = fsq.senqueue("mail", "data")
    fsq.reenqueue(first, "other", src_queue="mail", link=True)
    for place in (queue, queue.store.queue("other")):
        with place.reserving(0) as job:
            assert job is not None
            assert job.body == b"data"
    assert queue.total() == queue.store.queue("other").total() == 0


# Order


def test_names_sort_as_jobs_shall_run_for_originals_too(root: Path, queue: blocking.Queue) -> None:
    ids = [queue.push(number) for number in range(50)]
    files = sorted(entry.name for entry in (root / "mail/queue").iterdir())
    assert [parse(file).job_id for file in files] == ids


def test_a_delayed_job_has_its_due_time_in_its_name(root: Path, queue: blocking.Queue) -> None:
    queue.push("later", at=1_900_000_000.25)
    (file,) = names(root, ".penstock/later")
    assert parse(file).enqueued_at.timestamp() == 1_900_000_000
    assert parse(file).entropy.startswith("250")


def test_a_job_that_is_given_back_keeps_its_place_in_the_line(queue: blocking.Queue) -> None:
    queue.push_many(["first", "second"])
    job = queue.reserve(0)
    assert job is not None
    job.nack()
    assert [one.payload for one in queue.reserve_many(2)] == ["first", "second"]


# Where jobs are


def test_scanners_do_not_see_what_is_reserved(root: Path, queue: blocking.Queue) -> None:
    queue.push("work")
    job = queue.reserve(0)
    assert job is not None
    assert names(root, "queue") == []
    assert list(fsq.scan("mail")) == []
    job.nack()
    (item,) = [item.tries for item in fsq.scan("mail", max_tries=0)]
    assert item == 1


def test_what_a_scanner_works_on_is_not_handed_out(root: Path, queue: blocking.Queue) -> None:
    first, second = name(1), name(2)
    put(root, first)
    put(root, second)
    with fsq.FSQWorkItem("mail", first, max_tries=0):
        job = queue.reserve(0)
        assert job is not None
        assert job.id == parse(second).job_id
        job.ack()
        assert queue.reserve(0) is None
        # Nobody will tell when it is free again: it is tried after a while, and not again and again.
        next_mature = queue.next_mature()
        assert next_mature is not None
        assert next_mature > time.time() + 0.5
    job = queue.reserve(0)
    assert job is not None
    assert job.id == parse(first).job_id


def test_tries_of_killed_scanners_count(root: Path, queue: blocking.Queue) -> None:
    file = name()
    put(root, file)
    (root / "mail/attempts").mkdir()
    (root / "mail/attempts" / file).write_bytes(b"..")
    job = queue.reserve(0)
    assert job is not None
    assert (job.tries, job.id) == (2, parse(file).job_id)
    assert names(root, "attempts") == []
    job.ack()
    assert names(root, ".") == [file for file in names(root, ".") if "stats" in file or file == "N.json"]


@pytest.mark.parametrize("way", ["pop", "ack", "ack_claim"])
@pytest.mark.parametrize("keep", [0, 1])
def test_ended_jobs_are_removed_or_kept_in_done(root: Path, queue: blocking.Queue, keep: int, way: str) -> None:
    put(root, name())
    with blocking.connect(f"fsq:{root}?sync=0&keep={keep}") as store:
        mine = store.queue("mail")
        if way == "pop":
            mine.pop(0)
        elif way == "ack":
            job = mine.reserve(0)
            assert job is not None
            job.ack()
        else:
            mine.claim("key", 1)
            mine.ack_claim("key")
    assert names(root, "done") == [name()] * keep
    assert names(root, "queue", ".penstock/lease", ".penstock/claim") == []


def test_a_popped_job_that_nobody_was_given_is_in_the_queue_again(root: Path) -> None:
    for keep in (0, 1):
        with blocking.connect(f"fsq:{root}?sync=0&keep={keep}") as store:
            store.queue("mail").push("work", headers={"a": 1}, tries=2, unique="key")
            (job,) = store._driver.pop("mail", 1)
            store._driver.put_back("mail", [job])
            assert names(root, "done") == []
            assert store.queue("mail").push("again", unique="key") == job.id
            (again,) = store._driver.pop("mail", 1)
            assert (again.id, again.body, again.headers, again.tries) == (job.id, b'"work"', {"a": 1}, 2)


def test_scheduled_jobs_are_out_of_sight_until_one_of_our_processes_reads(root: Path, queue: blocking.Queue) -> None:
    queue.push("later", delay=LEASE)
    log = root / "log"
    original.scan(str(root / "mail"), str(log))
    assert not log.exists()
    queue.store.shift_clock(LEASE)
    assert queue.size() == 1
    original.scan(str(root / "mail"), str(log))
    assert len(log.read_text().splitlines()) == 1


def test_our_scanners_bring_back_what_is_due(root: Path, queue: blocking.Queue) -> None:
    queue.store.shift_clock(-2 * LEASE)  # so that by the scanner's clock all is over
    queue.push("later", delay=LEASE)
    queue.push("reserved")
    queue.reserve(0, lease=LEASE)
    queue.push("claimed")
    queue.claim("key", 1, lease=LEASE)
    assert list(fsq.scan("mail", look=True)) == [], "a look moves nothing"
    tries = sorted((item.item.read(), item.tries) for item in fsq.scan("mail", max_tries=0))
    assert tries == [(b'"claimed"', 1), (b'"later"', 0), (b'"reserved"', 1)]


def test_a_name_without_room_for_another_try_fails_for_good(root: Path, queue: blocking.Queue) -> None:
    file = name(tries="9")
    file += "_" + "x" * (254 - len(file))
    put(root, file)
    job = queue.reserve(0)
    assert job is not None
    job.nack()
    assert names(root, "queue", ".penstock/lease") == []
    assert names(root, "fail") == [file]


def test_queues_have_directories_of_their_names(root: Path, store: blocking.Store) -> None:
    store.queue("plain 50%").push(1)
    store.queue("a/b").push(1)
    store.queue(".hidden").push(1)
    assert sorted(entry.name for entry in root.iterdir()) == ["%%2ehidden", "%a%2fb", "plain 50%"]
    assert store.queues() == [".hidden", "a/b", "plain 50%"]
    for queue in ("..", ".", "%41", "a\0b", "/", "%"):
        assert queue_of(directory_of(queue)) == queue
        assert not {"/", "\0"} & set(directory_of(queue))
        assert directory_of(queue) not in {".", "..", queue}
    with pytest.raises(CallerError, match="at most 255 bytes"):
        store.queue("ü" * 200).push(1)


def test_reading_and_taking_install_nothing(root: Path, store: blocking.Store) -> None:
    queue = store.queue("mail")
    assert queue.pop(0) is None
    assert queue.reserve(0) is None
    assert queue.claim("key", 1) == []
    assert (queue.size(), queue.peek(), queue.next_mature(), queue.purge()) == (0, [], None, 0)
    assert queue.remove("_x") == [False]
    assert list(root.iterdir()) == []


# Pauses are down files


def test_a_pause_is_a_down_file(root: Path, queue: blocking.Queue) -> None:
    queue.push("work")
    queue.pause()
    assert fsq.is_down("mail")
    with pytest.raises(fsq.FSQDownError):
        next(fsq.scan("mail"))
    queue.resume()
    assert not fsq.is_down("mail")


def test_a_queue_that_somebody_took_down_is_paused(queue: blocking.Queue) -> None:
    queue.push("work")
    fsq.down("mail")
    assert queue.paused()
    assert queue.reserve(0) is None
    assert queue.pop(0.05) is None
    assert queue.claim("key", 1) == []
    fsq.up("mail")
    assert queue.reserve(0) is not None


@pytest.mark.parametrize("state", ["paused", "worked on"])
def test_a_waiting_caller_does_not_ask_again_and_again(
    root: Path, queue: blocking.Queue, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """There is a job that is ready, and that nobody will be given now."""
    asked = []
    real = queue.store._driver.pop

    def pop(*args: Any) -> Any:
        asked.append(args)
        return real(*args)

    monkeypatch.setattr(queue.store._driver, "pop", pop)
    put(root, name())
    if state == "paused":
        queue.pause()
        assert queue.pop(0.2) is None
    else:
        with fsq.FSQWorkItem("mail", name(), max_tries=0):
            assert queue.pop(0.2) is None
    assert 0 < len(asked) < 10


def test_a_trigger_is_pulled_whenever_a_job_gets_ready(queue: blocking.Queue) -> None:
    fsq.trigger("mail")
    fifo = os.open(path.trigger("mail"), os.O_RDONLY | os.O_NONBLOCK)

    def pulls() -> int:
        try:
            return len(os.read(fifo, 100))
        except BlockingIOError:
            return 0

    try:
        queue.push("now")
        assert pulls() == 1
        queue.push("later", delay=LEASE)
        assert pulls() == 0
        job = queue.reserve(0)
        assert job is not None
        job.nack()
        assert pulls() == 1
        queue.store.shift_clock(2 * LEASE)
        queue.size()
        assert pulls() == 1
    finally:
        os.close(fifo)


# Unique keys beside originals


def test_a_key_whose_job_an_original_ended_is_counted_from_when_that_is_noticed(
    root: Path, queue: blocking.Queue
) -> None:
    first = queue.push("work", unique="key", unique_for=100)
    original.scan(str(root / "mail"), str(root / "log"))
    queue.store.shift_clock(90)
    assert queue.push("again", unique="key") == first
    queue.store.shift_clock(90)
    assert queue.push("again", unique="key") == first
    queue.store.shift_clock(20)
    assert queue.push("again", unique="key") != first


def test_a_key_whose_push_was_cut_off_is_free(queue: blocking.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the key was written down and before the job was stored: the job must not be lost with it."""

    class KilledError(Exception):
        pass

    def die(*args: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(JobWriter, "_appear", die)
        with pytest.raises(KilledError):
            queue.push("first", unique="key", unique_for=LEASE)
    second = queue.push("second", unique="key", unique_for=LEASE)
    assert queue.push("third", unique="key") == second
    assert [job.payload for job in queue.peek()] == ["second"]


def test_keys_that_are_over_are_thrown_out(root: Path, queue: blocking.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "TIDY_KEYS", 10)
    queue.push_many([Push(number, unique=f"key {number}") for number in range(9)])
    queue.purge()
    queue.push("ended by an original", unique="theirs")
    original.scan(str(root / "mail"), str(root / "log"))
    queue.push_many([Push(number, unique=f"more {number}") for number in range(10)])
    queue.push_many([Push(number, unique=f"yet more {number}") for number in range(10)])
    assert len([entry for entry in (root / "mail/.penstock/unique").iterdir() if entry.is_file()]) == 20
    assert len(list((root / "mail/.penstock/unique/job").iterdir())) == 20


# Claims


def test_a_claim_that_was_never_made_returns_what_it_has(root: Path, queue: blocking.Queue) -> None:
    queue.push("work")
    queue.claim("key", 1)
    (key,) = (root / "mail/.penstock/claim").glob("*/key")
    key.unlink()
    (job,) = queue.claim("key", 1)
    assert (job.payload, job.tries) == ("work", 0)


def test_the_key_of_a_claim_can_be_read_by_people(root: Path, queue: blocking.Queue) -> None:
    queue.push("work")
    queue.claim("batch/17 ü", 1)
    (key,) = (root / "mail/.penstock/claim").glob("*/key")
    assert key.read_text() == "batch/17 ü"


def test_a_claim_that_scanners_were_given_back_knows_what_they_took(root: Path, queue: blocking.Queue) -> None:
    queue.store.shift_clock(-2 * LEASE)
    queue.push_many([1, 2, 3])
    queue.claim("key", 3, lease=LEASE)
    queue.store.shift_clock(2 * LEASE)
    items = fsq.scan("mail", max_tries=0)
    fsq.success(next(items))
    fsq.fail_tmp(next(items))
    items.close()
    assert [job.payload for job in queue.claim("key", 3)] == [3]
    assert queue.ack_claim("key") == 1
    assert [(job.payload, job.tries) for job in queue.reserve_many(5)] == [(2, 2)]


# Repair


def test_repair_brings_back_what_is_over_and_removes_what_is_left(root: Path, queue: blocking.Queue) -> None:
    queue.store.shift_clock(-2 * LEASE)  # so that by the clock of `repair` what was short is over
    queue.push_many(["reserved", "claimed", "held"])
    queue.reserve(0, lease=LEASE)
    queue.claim("key", 1, lease=LEASE)
    held = queue.reserve(0, lease=9 * LEASE)
    queue.push("later", delay=LEASE)
    queue.push("much later", delay=9 * LEASE)
    aside = ReservedArea(str(root / "mail"))
    aside.make(aside.new_lease(1))
    aside.make(aside.new_lease(1, "0" * 32))
    found = [finding.kind for finding in auditing.audit("mail")]
    assert sorted(found) == ["due", "lease-over", "lease-over", "leftover", "leftover", "leftover"]
    assert [reason for _, reason in auditing.repair("mail") if reason] == []
    assert list(auditing.audit("mail")) == []
    waiting = {job.payload: job.tries for job in queue.peek()}
    assert waiting == {"reserved": 1, "claimed": 1, "later": 0}
    assert held is not None
    held.ack()
    assert [job.payload for job in queue.claim("key", 9)] == ["claimed"]
    assert queue.scheduled() == 1


def test_people_see_what_is_set_aside(queue: blocking.Queue) -> None:
    queue.push_many([1, 2, 3])
    queue.reserve(0)
    queue.push("later", delay=LEASE)
    told = inspecting.stats("mail")
    assert (told["queue_items"], told["aside_items"]) == (2, 2)


# What a power failure may leave


def twin(root: Path, source: str, target: Path) -> None:
    """A second name of an item."""
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(root / "mail/queue" / source, target)


@pytest.mark.parametrize(
    ("place", "is_there"), [("lease", False), ("later", False), ("claim", False), ("done", False), ("tmp", True)]
)
def test_an_item_with_two_names_is_handed_out_once(
    root: Path, queue: blocking.Queue, place: str, is_there: bool
) -> None:
    until = int((time.time() + LEASE) * 1000)
    where = {
        "lease": f".penstock/lease/{until}.{'0' * 16}",
        "claim": f".penstock/claim/{'0' * 32}/{until}.{'0' * 16}",
        "later": f".penstock/later/{until // 60000}/{until}",
    }.get(place, place)
    put(root, name())
    twin(root, name(), root / "mail" / where / name())
    assert (queue.reserve(0) is not None) == is_there
    assert (queue.total() == 1) == (place != "done")
    queue.store.shift_clock(2 * LEASE)
    assert len(queue.reserve_many(5)) == (0 if place == "done" else 1)


def test_a_nack_that_was_cut_in_two_is_finished(root: Path, queue: blocking.Queue) -> None:
    put(root, name(tries="1"))
    twin(root, name(tries="1"), root / f"mail/.penstock/lease/5.{'0' * 16}" / name())
    jobs = queue.reserve_many(5)
    assert [(job.id, job.tries) for job in jobs] == [(parse(name()).job_id, 1)]


# Cost


def count_snapshots(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[Any]:
    """Every listing of a whole queue that a module makes from now on."""
    made: list[Any] = []

    def counted(directories: Any) -> Any:
        made.append(ItemSnapshot(directories))
        return made[-1]

    monkeypatch.setattr(module, "ItemSnapshot", counted)
    return made


def test_a_directory_is_not_listed_for_each_job(
    root: Path, queue: blocking.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings = count_snapshots(monkeypatch, listing)
    monkeypatch.setattr(listing, "WORTH", 1e9)  # time must not decide here
    for number in range(500):
        put(root, name(number))
    for number in range(500):
        job = queue.reserve(0)
        assert job is not None
        assert job.id == parse(name(number)).job_id
        if number % 3:
            job.ack()
    assert len(listings) == 1


def test_a_caller_that_would_get_nothing_lists_again(
    root: Path, queue: blocking.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "WORTH", 1e9)
    for number in range(3):
        assert queue.reserve(0) is None
        put(root, name(number))
        assert queue.next_mature() is not None
        with queue.reserving(0) as job:
            assert job is not None


def test_pages_come_from_one_listing(root: Path, queue: blocking.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    listings = count_snapshots(monkeypatch, scan)
    for number in range(1600):
        put(root, name(number), b"")
    assert [job.id for job in queue.jobs()] == [parse(name(number)).job_id for number in range(1600)]
    assert len(listings) == 1


def test_a_cursor_is_good_for_another_connection(root: Path, queue: blocking.Queue) -> None:
    for number in range(7):
        put(root, name(number))
    page = queue.store._driver.peek("mail", JobState.READY, 3)
    with blocking.connect(f"fsq:{root}") as other:
        rest = other._driver.peek("mail", JobState.READY, 30, page.cursor)
    assert [job.id for job in page.jobs + rest.jobs] == [parse(name(number)).job_id for number in range(7)]


def test_directories_of_leases_are_used_again(root: Path, queue: blocking.Queue) -> None:
    queue.push_many(range(20))
    for _ in range(10):
        queue.ack_many(queue.reserve_many(2))
    assert len(list((root / "mail/.penstock/lease").iterdir())) == 1
    queue.store.close()
    assert list((root / "mail/.penstock/lease").iterdir()) == []


# Waiting


async def test_another_process_is_heard(root: Path) -> None:
    """In this process the hub tells; so the item is put in as another process does."""
    async with aio.connect(f"fsq:{root}?sync=0", poll=300) as store:
        for is_there in (False, True):
            wait = asyncio.create_task(store.queue("mail").reserve())
            await asyncio.sleep(0.1)
            if not is_there:
                fsq.install("mail")
            await asyncio.sleep(0.1)
            fsq.senqueue("mail", "work")
            job = await asyncio.wait_for(wait, PATIENCE)
            assert job is not None
            await job.ack()


@pytest.mark.parametrize("form", ["aio", "blocking"])
@pytest.mark.parametrize("has_inotify", [True, False])
async def test_whatever_makes_a_job_ready_is_heard(
    root: Path, monkeypatch: pytest.MonkeyPatch, form: str, has_inotify: bool
) -> None:
    if not has_inotify:
        monkeypatch.setattr(waiting, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
        monkeypatch.setattr(waiting, "POLL_SECONDS", 0.05)
    url = f"fsq:{root}?sync=0"
    fsq.install("mail")

    def later() -> None:
        # As another process does it: nobody of this one is told.
        with blocking.connect(url, signal="local:") as store:
            store._driver.push("mail", [_new_job(store, "later", delay_ms=100)], None)

    def resumed() -> None:
        fsq.down("mail")
        fsq.senqueue("mail", "work")
        time.sleep(0.1)
        fsq.up("mail")

    for make in (lambda: fsq.senqueue("mail", "work"), later, resumed):
        if form == "aio":
            async with aio.connect(url, poll=300) as store:
                wait: Any = asyncio.create_task(store.queue("mail").pop())
                await asyncio.sleep(0.1)
                await asyncio.to_thread(make)
                assert await asyncio.wait_for(wait, PATIENCE) is not None
        else:
            with blocking.connect(url, poll=300) as blocking_store:
                wait = asyncio.get_running_loop().run_in_executor(None, blocking_store.queue("mail").pop)
                await asyncio.sleep(0.1)
                make()
                assert await asyncio.wait_for(wait, PATIENCE) is not None


def _new_job(store: blocking.Store, payload: str, delay_ms: int) -> Any:
    job = NewJob(payload, payload.encode(), delay_ms=delay_ms)
    store._driver.prepare(job)
    return job


@pytest.mark.parametrize("form", ["aio", "blocking"])
async def test_a_closed_store_keeps_nothing_open(root: Path, form: str) -> None:
    async def use() -> int:
        if form == "aio":
            async with aio.connect(f"fsq:{root}?sync=0") as store:
                await store.queue("mail").push(1)
                assert await store.queue("mail").pop(0.01) is not None
                assert await store.queue("mail").pop(0.01) is None
        else:
            with blocking.connect(f"fsq:{root}?sync=0") as plain:
                plain.queue("mail").push(1)
                assert plain.queue("mail").pop(0.01) is not None
                assert plain.queue("mail").pop(0.01) is None
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number counts

    assert await use() == await use()


def test_pulls_of_the_trigger_are_left_to_other_listeners(queue: blocking.Queue) -> None:
    fsq.trigger("mail")
    with QueueWatch("mail", aside=True) as ours:
        fsq.trigger_pull("mail")  # it finds somebody
        assert not ours.check()
        with QueueWatch("mail") as theirs:
            assert theirs.check()


# URLs and errors


def test_urls_that_name_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with blocking.connect("fsq:relative%20root") as store:
        store.queue("mail").push(1)
    assert (tmp_path / "relative root/mail/queue").is_dir()
    with blocking.connect(f"fsq://{tmp_path}/relative%20root") as store:
        assert store.queue("mail").size() == 1
    with blocking.connect("fsq:") as store:
        assert store._driver.root.path == str(tmp_path / "root")  # type: ignore[attr-defined]  # only this driver has it


@pytest.mark.parametrize("url", ["fsq://host/path", "fsq:///x#y"])
def test_urls_without_a_directory_are_refused(url: str) -> None:
    with pytest.raises(BadUrl, match="must name a directory"):
        blocking.connect(url)


def test_options_are_switches(root: Path) -> None:
    for option in ("keep", "sync"):
        with pytest.raises(CallerError, match=f"{option} must be 0 or 1, got '2'"):
            blocking.connect(f"fsq:{root}?{option}=2")
        blocking.connect(f"fsq:{root}", **{option: True})


def test_a_root_that_can_not_be_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        blocking.connect(f"fsq:{tmp_path}/no/such").open()
