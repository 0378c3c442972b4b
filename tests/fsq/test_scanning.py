"""Scanning, locks, limits, and completion."""

from __future__ import annotations

import errno
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from penstock import fsq
from penstock.fsq import files
from penstock.fsq.snapshot import BLOCK_ROWS, ItemSnapshot


def put(root: Path, name: str, data: bytes = b"", place: str = "queue", queue: str = "mail") -> str:
    (root / queue / place / name).write_bytes(data)
    return name


def name(at: str = "20261115184212", entropy: int = 0, tries: object = 0, *args: str) -> str:
    return fsq.construct([at, entropy, 1, "web", tries, *args])


def ids(queue: str, **options: object) -> list[str]:
    return [item.id for item in fsq.scan(queue, **options)]  # type: ignore[arg-type]  # whatever a test gives


def places(root: Path, queue: str = "mail") -> dict[str, list[str]]:
    return {place: sorted(os.listdir(root / queue / place)) for place in ("tmp", "queue", "done", "fail")}


def test_an_item_is_read_and_done(root: Path, queue: str) -> None:
    made = fsq.senqueue(queue, "data", "ann", "")
    for item in fsq.scan(queue):
        assert item.item is not None
        assert (item.id, item.arguments, item.tries, item.item.read()) == (made, ("ann", ""), 0, b"data")
        assert (item.queue, item.host, item.pid, item.delimiter) == (queue, None, str(os.getpid()), "_")
        assert abs(datetime.now() - item.enqueued_at) < timedelta(minutes=1)  # noqa: DTZ005 - as in the name
        fsq.success(item)
    assert places(root) == {"tmp": [], "queue": [], "done": [made], "fail": []}


def test_the_oldest_comes_first(root: Path, queue: str) -> None:
    in_order = [
        name("20251231235959", 7),
        ".20260101000000.0.1.web.0",
        name("20260101000000", 2),
        name("20260101000000", 10),
        name("20260101000001", 0),
    ]
    for each in reversed(in_order):
        put(root, each)
    assert ids(queue) == in_order


@pytest.mark.parametrize("held_bytes", [1 << 20, 3000, 0])
@pytest.mark.parametrize("has_file", [True, False])
def test_runs_of_a_large_snapshot_are_merged_in_order(
    root: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int, has_file: bool
) -> None:
    from penstock.fsq import snapshot

    def refuse() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(snapshot, "RUN_ROWS", BLOCK_ROWS + 7)
    monkeypatch.setattr(snapshot, "HELD_BYTES_MAX", held_bytes)
    if not has_file:
        monkeypatch.setattr(snapshot.tempfile, "mkstemp", refuse)
    directory = root / "many"
    directory.mkdir()
    made = [name("20260101000000", number, 0, "é\n") for number in range(2000)]
    for each in made:
        (directory / each).touch()
    found = ItemSnapshot([(str(directory), "h")])
    assert found.count == 2000
    assert list(found) == [(each, "h") for each in made]
    assert list(found) == [(each, "h") for each in made], "once more"


def test_a_snapshot_that_nobody_needs_leaves_no_file(
    root: Path, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.fsq import snapshot

    monkeypatch.setattr(snapshot, "RUN_ROWS", 2)
    monkeypatch.setattr(snapshot, "HELD_BYTES_MAX", 0)
    monkeypatch.setattr(snapshot.tempfile, "tempdir", str(tmp_path))
    made = [fsq.senqueue(queue, "") for _ in range(9)]
    next(fsq.scan(queue)).close()  # all directories of the queue are open now, and stay open
    before = len(os.listdir("/dev/fd"))
    items = fsq.scan(queue)
    assert len(os.listdir("/dev/fd")) == before + 1
    assert os.listdir(tmp_path) == ["root"]
    assert [item.id for item in items] == made
    del items
    assert len(os.listdir("/dev/fd")) == before


def test_what_arrives_later_waits_for_the_next_scan(queue: str) -> None:
    first = fsq.senqueue(queue, "")
    items = fsq.scan(queue)
    second = fsq.senqueue(queue, "")
    assert [item.id for item in items] == [first]
    assert ids(queue) == [first, second]


def test_an_absent_queue_is_an_error_at_the_call(root: Path) -> None:
    with pytest.raises(fsq.FSQScanError) as caught:
        fsq.scan("absent")
    assert caught.value.errno == errno.ENOENT


def test_a_locked_item_is_skipped(queue: str) -> None:
    made = fsq.senqueue(queue, "")
    with fsq.FSQWorkItem(queue, made):
        assert ids(queue) == []
        assert ids(queue, lock=False) == [made]
        assert ids(queue, no_open=True) == [made]
        with pytest.raises(fsq.FSQWorkItemError) as caught:
            fsq.FSQWorkItem(queue, made)
        assert caught.value.errno == errno.EAGAIN
    assert ids(queue) == [made]


def test_an_item_that_was_finished_between_open_and_lock_is_skipped(
    root: Path, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.fsq import items

    made = fsq.senqueue(queue, "")
    real = items.lock

    def late(fd: int) -> None:
        os.rename(root / "mail/queue" / made, root / "mail/done" / made)
        real(fd)

    monkeypatch.setattr(items, "lock", late)
    with pytest.raises(fsq.FSQWorkItemError) as caught:
        fsq.FSQWorkItem(queue, made)
    assert caught.value.errno == errno.ENOENT
    assert ids(queue) == []


def test_another_file_under_the_same_name_is_not_taken_for_the_item(
    root: Path, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.fsq import items

    made = fsq.senqueue(queue, "old")
    real = items.lock

    def replaced(fd: int) -> None:
        put(root, "new", b"new", "tmp")
        os.rename(root / "mail/tmp/new", root / "mail/queue" / made)
        real(fd)

    monkeypatch.setattr(items, "lock", replaced)
    with pytest.raises(fsq.FSQWorkItemError) as caught:
        fsq.FSQWorkItem(queue, made)
    assert caught.value.errno == errno.ENOENT


def test_no_open_does_not_even_stat(queue: str) -> None:
    item = fsq.FSQWorkItem(queue, name(), no_open=True)
    assert item.item is None
    with pytest.raises(fsq.FSQDoneError):
        item.success()


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (b"stray", fsq.FSQMalformedEntryError),
        (b"%stray", fsq.FSQEncodeError),
        (b".hidden", fsq.FSQMalformedEntryError),
        (b"_1_2", fsq.FSQMalformedEntryError),
        (name(tries="x").encode(), fsq.FSQTimeFmtError),
        (b"_20261115184212_0_1_web_0_%zz", fsq.FSQEncodeError),
        (b"_20261115184212_0_1_web_0_\xff\xfe", fsq.FSQEncodeError),
        (b"\xff", fsq.FSQEncodeError),
    ],
)
def test_a_bad_name_goes_to_fail_and_stops_nobody(
    root: Path, queue: str, bad: bytes, error: type[fsq.FSQError]
) -> None:
    Path(os.fsdecode(os.fsencode(root / "mail/queue") + b"/" + bad)).write_bytes(b"kept")
    good = fsq.senqueue(queue, "")
    items = fsq.scan(queue)
    seen: list[str] = []

    def look() -> None:
        seen.extend(item.id for item in items)

    with pytest.raises(error) as caught:
        look()
    assert "failed permanently" in str(caught.value)
    look()
    assert seen == [good]
    assert os.listdir(os.fsencode(root / "mail/fail")) == [bad]


def test_a_scan_with_look_moves_nothing(root: Path, queue: str) -> None:
    bad = put(root, "_1_2")
    tried = put(root, name(tries=5))
    items = fsq.scan(queue, look=True, max_tries=0)
    with pytest.raises(fsq.FSQMalformedEntryError):
        next(items)
    assert next(items).id == tried
    assert places(root)["queue"] == sorted([bad, tried])
    assert sorted(os.listdir(root / "mail")) == ["done", "fail", "queue", "tmp"]


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
def test_what_is_no_file_stays_and_stops_nobody(root: Path, queue: str, kind: str) -> None:
    odd = root / "mail/queue" / name("20200101000000")
    if kind == "directory":
        odd.mkdir()
    elif kind == "link":
        odd.symlink_to("/etc/passwd")
    else:
        os.mkfifo(odd)
    good = fsq.senqueue(queue, "")
    items = fsq.scan(queue)
    with pytest.raises(fsq.FSQWorkItemError):
        next(items)
    assert next(items).id == good
    assert odd.name in os.listdir(root / "mail/queue")


def test_a_down_queue_raises_for_each_item_and_only_then(root: Path, queue: str) -> None:
    fsq.down(queue)
    assert ids(queue) == []
    made = fsq.senqueue(queue, "")
    items = fsq.scan(queue)
    with pytest.raises(fsq.FSQDownError) as caught:
        next(items)
    assert caught.value.errno == errno.EAGAIN
    assert isinstance(caught.value, fsq.FSQScanError)
    assert ids(queue, ignore_down=True) == [made]


def test_a_queue_that_goes_down_in_a_scan_stops_it(queue: str) -> None:
    fsq.senqueue(queue, "")
    fsq.senqueue(queue, "")
    items = fsq.scan(queue)
    next(items)
    fsq.down(queue)
    with pytest.raises(fsq.FSQDownError):
        next(items)


# Limits.


def test_tries_are_counted_in_the_name(root: Path, queue: str) -> None:
    made = fsq.senqueue(queue, "data", "a_b")
    with fsq.FSQWorkItem(queue, made, max_tries=3) as item:
        again = fsq.retry(item)
        assert (item.id, item.tries) == (made, 1)
        with pytest.raises(fsq.FSQFailError) as caught:
            fsq.fail_tmp(item)
        assert caught.value.errno == errno.ENOENT
    assert places(root)["queue"] == [again]
    with fsq.FSQWorkItem(queue, again, max_tries=3) as item:
        assert (item.tries, item.arguments) == (1, ("a_b",))
        last = item.fail_tmp()
    with fsq.FSQWorkItem(queue, last, max_tries=3) as item, pytest.raises(fsq.FSQMaxTriesError) as ended:
        item.fail_tmp()
    assert ended.value.errno == errno.EINTR
    assert "max tries exceeded: 3 (3)" in str(ended.value)
    assert places(root) == {"tmp": [], "queue": [], "done": [], "fail": [last]}


def test_by_default_the_first_failure_is_the_last(root: Path, queue: str) -> None:
    made = fsq.senqueue(queue, "")
    with fsq.FSQWorkItem(queue, made) as item, pytest.raises(fsq.FSQMaxTriesError):
        item.fail_tmp()
    assert places(root)["fail"] == [made]


def test_an_item_that_was_tried_often_enough_is_failed_unrun(root: Path, queue: str) -> None:
    used = put(root, name(tries=2))
    with pytest.raises(fsq.FSQMaxTriesError, match="failed permanently"):
        next(fsq.scan(queue, max_tries=2))
    assert places(root)["fail"] == [used]
    put(root, name(tries=10**6))
    assert len(ids(queue, max_tries=0)) == 1


def test_a_name_without_room_for_another_try_fails_for_good(root: Path, queue: str) -> None:
    name = "_20261115184212_0_1_web_9_".ljust(255, "x")
    (root / "mail/queue" / name).touch()
    with fsq.FSQWorkItem(queue, name, max_tries=0) as item, pytest.raises(fsq.FSQMaxTriesError, match="no name"):
        fsq.fail_tmp(item)
    assert places(root)["fail"] == [name]
    assert places(root)["queue"] == []


def test_an_old_item_is_failed_and_a_young_one_is_run(root: Path, queue: str) -> None:
    old = put(root, name("20200101000000"))
    young = fsq.senqueue(queue, "")
    items = fsq.scan(queue, ttl=100)
    with pytest.raises(fsq.FSQTTLExpiredError) as caught:
        next(items)
    assert caught.value.errno == errno.EINTR
    item = next(items)
    assert item.id == young
    assert places(root)["fail"] == [old]
    item.enqueued_at -= timedelta(seconds=200)
    with pytest.raises(fsq.FSQTTLExpiredError):
        item.fail_tmp(max_tries=9)
    assert places(root)["queue"] == []


# Attempts of workers that were killed.


def abandon(queue: str, made: str, max_tries: int = 0) -> None:
    """Take an item as a worker does that is killed: nothing of ours is run any more."""
    pid = os.fork()
    if pid == 0:
        item = fsq.FSQWorkItem(queue, made, max_tries=max_tries)
        os.kill(os.getpid(), 9 if item else 0)
    os.waitpid(pid, 0)


def test_a_killed_worker_counts_as_a_try(root: Path, queue: str) -> None:
    made = fsq.senqueue(queue, "")
    abandon(queue, made)
    abandon(queue, made)
    assert places(root)["queue"] == [made], "the name changes with an outcome only"
    with fsq.FSQWorkItem(queue, made, max_tries=5) as item:
        assert item.tries == 2
        again = item.fail_tmp()
    with fsq.FSQWorkItem(queue, again, max_tries=5) as item:
        assert item.tries == 3
    assert os.listdir(root / "mail/attempts") == []


def test_a_killed_worker_uses_up_the_last_try(root: Path, queue: str) -> None:
    made = fsq.senqueue(queue, "")
    abandon(queue, made)
    with pytest.raises(fsq.FSQMaxTriesError):
        next(fsq.scan(queue))
    assert places(root)["fail"] == [made]
    assert os.listdir(root / "mail/attempts") == []


def test_an_item_that_is_put_down_unfinished_has_not_been_tried(root: Path, queue: str) -> None:
    fsq.senqueue(queue, "")
    for _ in range(3):
        assert [item.tries for item in fsq.scan(queue)] == [0]
    assert os.listdir(root / "mail/attempts") == []


def test_scanners_of_one_group_count_on_each_other(root: Path, queue: str) -> None:
    made = fsq.senqueue(queue, "")
    before = os.umask(0o077)
    try:
        abandon(queue, made)
    finally:
        os.umask(before)
    assert (root / "mail/attempts" / made).stat().st_mode & 0o777 == 0o660
    assert (root / "mail/attempts").stat().st_mode & 0o7777 == 0o2770


def test_where_attempts_can_not_be_noted_work_goes_on(root: Path, queue: str) -> None:
    made = fsq.senqueue(queue, "")
    (root / "mail/attempts").touch()
    assert ids(queue) == [made]


# Completion.


def test_done_and_fail_go_by_exit_codes(root: Path, queue: str) -> None:
    for code, place in ((None, "done"), (0, "done"), (100, "fail"), (7, "fail"), (111, "queue")):
        made = fsq.senqueue(queue, "")
        with fsq.FSQWorkItem(queue, made, max_tries=2) as item:
            result = fsq.done(item, code)
        assert result == {"done": None, "fail": made, "queue": item.name.with_tries(1)}[place]
        (found,) = os.listdir(root / "mail" / place)
        (root / "mail" / place / found).unlink()
    with fsq.FSQWorkItem(queue, fsq.senqueue(queue, ""), max_tries=2) as item:
        assert fsq.fail(item) == item.id


def test_codes_can_be_changed(root: Path, queue: str) -> None:
    fsq.set_const("FSQ_SUCCESS", 5)
    with fsq.FSQWorkItem(queue, fsq.senqueue(queue, "")) as item:
        fsq.done(item, 5)
    assert len(places(root)["done"]) == 1


def test_only_items_can_be_completed(queue: str) -> None:
    for call in (fsq.success, fsq.fail_perm, fsq.fail_tmp, fsq.fail, fsq.done):
        with pytest.raises(TypeError):
            call("mail")  # type: ignore[operator]  # that is the mistake


def test_completing_what_is_gone_is_an_error_of_ours(queue: str) -> None:
    item = fsq.FSQWorkItem(queue, fsq.senqueue(queue, ""), max_tries=9)
    fsq.success(item)
    errors = {fsq.success: fsq.FSQDoneError, fsq.fail_perm: fsq.FSQFailError, fsq.fail_tmp: fsq.FSQFailError}
    for call, error in errors.items():
        with pytest.raises(error) as caught:
            call(item)  # type: ignore[operator]  # each of them takes an item
        assert caught.value.errno == errno.ENOENT
    item.close()


def test_an_item_is_renamed_before_it_is_unlocked(root: Path, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fsq.senqueue(queue, "")
    item = fsq.FSQWorkItem(queue, made)
    real = files.FileSystem.rename

    def watched(disk: files.FileSystem, source: str, target: str) -> None:
        assert ids(queue) == [], "somebody else could have it while it is renamed"
        real(disk, source, target)

    monkeypatch.setattr(files.FileSystem, "rename", watched)
    item.success()
    item.close()


# Hosts.


def test_hosts_are_scanned_together_and_completed_apart(root: Path, queue: str) -> None:
    fsq.install_host(queue, "a", "b")
    late, early = name("20261115184213"), name("20261115184212")
    (root / "mail/hosts/a/queue" / late).touch()
    (root / "mail/hosts/b/queue" / early).touch()
    seen = []
    for item in fsq.scan(queue, host=True):
        seen.append((item.host, item.id))
        fsq.success(item)
    assert seen == [("b", early), ("a", late)]
    assert os.listdir(root / "mail/hosts/a/done") == [late]
    assert ids(queue, hosts=["a"]) == []


def test_a_host_waits_while_it_or_its_queue_is_down(root: Path, queue: str) -> None:
    fsq.install_host(queue, "a")
    (root / "mail/hosts/a/queue" / name()).touch()
    fsq.down_host(queue, "a")
    with pytest.raises(fsq.FSQDownError):
        next(fsq.scan(queue, host=True))
    fsq.up_host(queue, "a")
    fsq.down(queue)
    with pytest.raises(fsq.FSQDownError):
        next(fsq.scan(queue, host=True))
    fsq.up(queue)
    assert ids(queue, host=True) == [name()]


# Re-enqueueing.


def test_an_item_keeps_its_name_in_other_queues(root: Path, queue: str) -> None:
    for other in ("one", "two"):
        fsq.install(other)
    made = fsq.senqueue(queue, "data", "arg")
    with fsq.FSQWorkItem(queue, made) as item:
        assert fsq.reenqueue(item, "one", "two") == made
    for _ in range(2):
        assert fsq.reenqueue(made, "one", src_queue=queue) == made
    assert (root / "one/queue" / made).read_bytes() == (root / "two/queue" / made).read_bytes() == b"data"
    assert os.listdir(root / "one/tmp") == []
    assert fsq.sreenqueue(made, "other data", "one") == made
    assert (root / "one/queue" / made).read_bytes() == b"data"


def test_linked_items_share_a_file(root: Path, queue: str) -> None:
    fsq.install_host(queue, "a", "b")
    made = fsq.senqueue(queue, "data")
    fsq.vreenqueue(made, [queue], src_queue=queue, link=True, all_hosts=True)
    paths = [root / "mail/queue" / made, *(root / "mail/hosts" / host / "queue" / made for host in "ab")]
    assert len({path.stat().st_ino for path in paths}) == 1
    with pytest.raises(ValueError, match="only an item of a queue"):
        fsq.vreenqueue(str(paths[0]), made, [queue], link=True)


@pytest.mark.parametrize("bad", ["../../victim", "/etc/passwd", "..", "", "a\0b", "\udcff"])
def test_an_id_that_leads_elsewhere_destroys_nothing(root: Path, queue: str, bad: str) -> None:
    (root / "victim").write_bytes(b"precious")
    for call in (lambda: fsq.sreenqueue(bad, "x", queue), lambda: fsq.reenqueue(bad, queue, src_queue=queue)):
        with pytest.raises(fsq.FSQError) as caught:
            call()
        assert caught.value.errno == errno.EINVAL
    assert (root / "victim").read_bytes() == b"precious"
    assert places(root)["tmp"] == []


def test_an_id_that_is_refused_leaves_no_file_open(queue: str, tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    before = os.listdir("/dev/fd")
    for _ in range(3):
        with pytest.raises(fsq.FSQPathError):
            fsq.reenqueue(str(tmp_path / "data"), "../x", queue)
    assert len(os.listdir("/dev/fd")) == len(before)


def test_a_target_that_is_not_there_is_reported(root: Path, queue: str) -> None:
    fsq.install("one")
    with pytest.raises(fsq.FSQReenqueueError, match="cannot reenqueue into absent"):
        fsq.sreenqueue(name(), "x", "one", "absent")
    assert places(root, "one")["tmp"] == places(root, "one")["queue"] == []
    for call in (
        lambda: fsq.sreenqueue(name(), "x"),
        lambda: fsq.reenqueue("x"),
        lambda: fsq.vreenqueue("x", "y", "z", "w"),
    ):
        with pytest.raises(ValueError, match="queue"):
            call()


def test_items_are_distributed_to_hosts(root: Path, queue: str) -> None:
    fsq.install_host(queue, "a", "b")
    made = fsq.senqueue(queue, "data")
    assert fsq.fork_exec_items(queue, hosts=["a", "b"], link=True) == 0
    assert places(root)["done"] == [made]
    assert [os.listdir(root / "mail/hosts" / host / "queue") for host in "ab"] == [[made], [made]]


# Rates.


def test_a_rate_spaces_items_and_catches_up() -> None:
    now = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 3))
        now[0] += seconds

    items = fsq.RatelimitedIterator(10, 1, iter(range(6)), clock_func=lambda: now[0], sleep_func=sleep)
    got = [next(items), next(items)]
    now[0] += 0.25
    got += list(items)
    assert got == [0, 1, 2, 3, 4, 5]
    assert slept == [0.1, 0.05, 0.1]
    with pytest.raises(ValueError, match="rate"):
        fsq.ratelimited(0, 1, [])
