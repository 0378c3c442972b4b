"""Looking after queues: list, stats, redrive, purge, audit and repair."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from penstock import fsq
from penstock.fsq import auditing, inspecting
from penstock.fsq import redrive as redriving
from penstock.fsq.redrive import purge, redrive

OLD = "_20200101000000_0_1_web_0_old"


def fail(queue: str, tries: int = 0) -> str:
    name = fsq.senqueue(queue, "data", "arg")
    with fsq.FSQWorkItem(queue, name, max_tries=0) as item:
        for _ in range(tries):
            name = item.fail_tmp()
            item.id = name
        return item.fail_perm()


def kinds(queue: str, age: float = 0) -> list[str]:
    return sorted(finding.kind for finding in auditing.audit(queue, age))


def test_items_are_described_wherever_they_are(root: Path, queue: str) -> None:
    waiting, failed = fsq.senqueue(queue, "data", "a", "b"), fail(queue)
    (root / "mail/queue/stray").touch()
    (root / "mail/queue" / os.fsdecode(b"\xff")).touch()
    seen = {item.id: item for item in inspecting.entries(queue)}
    assert (seen[waiting].arguments, seen[waiting].size, seen[waiting].tries) == (("a", "b"), 4, 0)
    assert seen["stray"].error
    assert seen[os.fsdecode(b"\xff")].error
    assert inspecting.find(queue, failed).place == "fail"
    with pytest.raises(fsq.FSQScanError):
        inspecting.find(queue, "absent")
    with pytest.raises(fsq.FSQPathError):
        inspecting.find(queue, "../fail")
    assert sorted(os.listdir(root / "mail")) == ["attempts", "done", "fail", "queue", "tmp"]


def test_a_queue_is_counted(root: Path, queue: str) -> None:
    fsq.install_host(queue, "far")
    fail(queue)
    (root / "mail/queue" / OLD).touch()
    fsq.down(queue)
    told = inspecting.stats(queue)
    assert (told["queue_items"], told["fail_items"], told["done_items"], told["tmp_items"]) == (1, 1, 0, 0)
    assert told["down"]
    assert told["oldest_seconds"] > 10**6
    assert told["hosts"] == ["far"]
    assert inspecting.stats(queue, "far")["oldest_seconds"] is None


def test_failed_items_come_back_with_new_tries(root: Path, queue: str) -> None:
    failed = fail(queue, tries=3)
    assert "_3_arg" in failed
    (back,) = redrive(queue)
    assert back == failed.replace("_3_arg", "_0_arg")
    assert (root / "mail/queue" / back).read_bytes() == b"data"
    assert os.listdir(root / "mail/fail") == []
    with fsq.FSQWorkItem(queue, back) as item:
        item.success()
    assert redrive(queue, [back], place="done", keep_tries=True) == [back]


def test_a_redrive_replaces_nothing_and_passes_over_what_it_can_not_read(root: Path, queue: str) -> None:
    failed = fail(queue)
    (root / "mail/queue" / failed).write_bytes(b"another")
    with pytest.raises(fsq.FSQFailError) as caught:
        redrive(queue, [failed])
    assert caught.value.errno == errno.EEXIST
    assert (root / "mail/queue" / failed).read_bytes() == b"another"
    (root / "mail/fail/stray").touch()
    (root / "mail/queue" / failed).unlink()
    assert redrive(queue) == [failed]
    assert os.listdir(root / "mail/fail") == ["stray"]
    with pytest.raises(fsq.FSQFailError):
        redrive(queue, ["_20200101000000_0_1_web_0_absent"])
    with pytest.raises(ValueError, match="fail or done"):
        redrive(queue, place="tmp")


def test_a_redrive_that_can_not_go_on_has_done_what_came_before(root: Path, queue: str) -> None:
    good, stopped, unread = fail(queue, tries=1), fail(queue, tries=2), fail(queue)
    (root / "mail/queue" / stopped.replace("_2_arg", "_0_arg")).touch()
    with pytest.raises(fsq.FSQFailError, match="already"):
        redrive(queue, [good, stopped, unread])
    assert (root / "mail/queue" / good.replace("_1_arg", "_0_arg")).read_bytes() == b"data"
    assert sorted(os.listdir(root / "mail/fail")) == sorted([stopped, unread])


def test_a_redrive_of_many_is_done_in_turns(root: Path, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redriving, "SYNC_ITEMS", 2)
    failed = [fail(queue, tries=1) for _ in range(5)]
    told: list[int] = []
    back = redrive(queue, progress=told.append)
    assert back == [name.replace("_1_arg", "_0_arg") for name in failed]
    assert sorted(os.listdir(root / "mail/queue")) == sorted(back)
    assert told == [2, 4]


def test_old_items_are_removed(root: Path, queue: str) -> None:
    new = fail(queue)
    (root / "mail/fail" / OLD).touch()
    assert purge(queue, "fail", older_seconds=3600, dry_run=True) == 1
    assert purge(queue, "fail", older_seconds=3600) == 1
    assert os.listdir(root / "mail/fail") == [new]
    assert purge(queue, "fail") == 1
    with pytest.raises(ValueError, match="queue, done or fail"):
        purge(queue, "tmp")


def test_a_waiting_item_that_somebody_has_is_not_removed(root: Path, queue: str) -> None:
    held, free = fsq.senqueue(queue, ""), fsq.senqueue(queue, "")
    (root / "mail/queue/stray").touch()
    with fsq.FSQWorkItem(queue, held):
        assert purge(queue, "queue", older_seconds=-5) == 2
    assert os.listdir(root / "mail/queue") == [held]
    assert free != held


def test_a_sound_queue_is_sound(root: Path, queue: str) -> None:
    fsq.install_host(queue, "far")
    fsq.senqueue(queue, "")
    fail(queue)
    assert kinds(queue) == []


def test_litter_is_found_and_removed_once_it_is_old(root: Path, queue: str) -> None:
    waiting = fsq.senqueue(queue, "")
    (root / "mail/tmp/litter").touch()
    os.link(root / "mail/queue" / waiting, root / "mail/tmp" / waiting)
    assert kinds(queue, age=3600) == []
    assert kinds(queue) == ["half-linked", "tmp-litter"]
    assert [reason for _, reason in auditing.repair(queue, 0)] == [None, None]
    assert os.listdir(root / "mail/tmp") == []
    assert os.listdir(root / "mail/queue") == [waiting]


def test_a_half_completed_item_is_completed(root: Path, queue: str) -> None:
    name = fsq.senqueue(queue, "x")
    os.link(root / "mail/queue" / name, root / "mail/done" / name)
    assert kinds(queue) == ["completed"]
    assert [reason for _, reason in auditing.repair(queue)] == [None]
    assert (os.listdir(root / "mail/queue"), os.listdir(root / "mail/done")) == ([], [name])


def test_modes_names_and_notes_are_put_right(root: Path, queue: str) -> None:
    fsq.install_host(queue, "far")
    wide, closed = fsq.senqueue(queue, ""), fsq.senqueue(queue, "")
    (root / "mail/queue" / wide).chmod(0o666)
    (root / "mail/queue" / closed).chmod(0o000)
    (root / "mail/hosts/far/queue").chmod(0o700)
    (root / "mail/hosts/far/tmp").rmdir()
    (root / "mail/queue" / os.fsdecode(b"\xff")).touch(0o640)
    (root / "mail/attempts").mkdir()
    (root / "mail/attempts" / OLD).touch()
    assert kinds(queue) == ["attempt", "directory-mode", "missing", "mode", "mode", "unreadable"]
    assert {reason for _, reason in auditing.repair(queue)} == {None}
    assert kinds(queue) == []
    assert os.listdir(os.fsencode(root / "mail/fail")) == [b"\xff"]
    assert stat.S_IMODE((root / "mail/hosts/far/tmp").stat().st_mode) == 0o2770
    assert set(auditing.KINDS) >= {"attempt", "directory-mode", "missing", "mode", "unreadable"}


def test_what_is_no_file_is_left_to_a_person(root: Path, queue: str) -> None:
    (root / "mail/queue/folder").mkdir()
    (root / "mail/done/link").symlink_to("/etc/passwd")
    assert kinds(queue) == ["stray", "stray"]
    assert {reason for _, reason in auditing.repair(queue)} == {"a person must look at it"}


def test_an_absent_queue_is_reported(root: Path) -> None:
    with pytest.raises(fsq.FSQConfigError):
        list(auditing.audit("absent"))
    with pytest.raises(fsq.FSQScanError):
        list(inspecting.entries("absent"))
    with pytest.raises(fsq.FSQScanError):
        purge("absent", "done")


def test_a_slow_enqueuer_is_no_litter(root: Path, queue: str) -> None:
    with fsq.NewItem(queue) as item:
        item.write(b"begun")
        os.utime(root / "mail/tmp" / item.name, (time.time() - 9999, time.time()))
        assert kinds(queue, age=3600) == []
        item.commit()
