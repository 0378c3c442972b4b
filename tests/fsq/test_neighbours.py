"""A member of the queue's group attacks root's `fsq`: links, FIFOs, hard links and directories in place of others."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import fsq
from penstock.fsq import auditing, directory, redrive
from tests.fsq import programs
from tests.fsq.other_user import GROUP, MEMBER, Victim, as_member, hard_link, let_in, needs_root, replace_by_link

pytestmark = needs_root

NAME = "_20200101000000_0_1_web_0_x"
OTHER = "_20200101000001_0_1_web_0_y"
REFUSED = b"must be a directory, got a link"


@pytest.fixture
def shared(root: Path) -> Path:
    """A queue of root's whose group may write, with a waiting, a done and a failed item."""
    let_in(root)
    fsq.install("mail", group=GROUP, item_group=GROUP)
    for place in ("queue", "done", "fail"):
        (root / "mail" / place / OTHER).write_bytes(b"an item")
        (root / "mail" / place / OTHER).chmod(0o640)
    return root / "mail"


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    """What the attack is aimed at: files whose names look like items."""
    return Victim(tmp_path / "victim", [NAME, "secret"])


def run(*words: str) -> tuple[int, bytes]:
    done = programs.run(*words)
    assert b"Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


COMMANDS: dict[str, list[tuple[str, ...]]] = {
    "done": [
        ("purge", "--older-than", "0", "mail"),
        ("redrive", "--all", "--place", "done", "mail"),
        ("list", "--place", "done", "mail"),
        ("scan", "mail", "true"),
        ("stats", "mail"),
    ],
    "fail": [
        ("purge", "--older-than", "0", "--place", "fail", "mail"),
        ("redrive", "--all", "mail"),
        ("scan", "mail", "false"),
    ],
    "queue": [
        ("purge", "--older-than", "0", "--place", "queue", "mail"),
        ("redrive", "--all", "mail"),
        ("scan", "mail", "true"),
        ("enqueue", "-e", "mail"),
        ("list", "mail"),
    ],
    "tmp": [("enqueue", "-e", "mail"), ("stats", "mail")],
    "hosts": [("add-host", "far", "mail"), ("scan", "--all-hosts", "mail", "true"), ("host-dist", "mail")],
}


@pytest.mark.system
@pytest.mark.parametrize(("place", "words"), [(place, words) for place, rows in COMMANDS.items() for words in rows])
def test_a_directory_that_a_member_replaced_by_a_link_is_refused(
    shared: Path, victim: Victim, place: str, words: tuple[str, ...]
) -> None:
    replace_by_link(shared / place, victim.path)
    status, said = run(*words)
    victim.check()
    assert status == 111
    assert REFUSED in said
    assert str(shared / place).encode() in said


@pytest.mark.system
@pytest.mark.parametrize("place", ["queue", "done", "fail", "tmp", "hosts", "attempts", ".penstock"])
def test_repair_names_a_link_in_place_of_a_directory_and_leaves_both(shared: Path, victim: Victim, place: str) -> None:
    replace_by_link(shared / place, victim.path)
    for command in ("audit", "repair"):
        status, said = run(command, "--older-than", "0", "mail")
        assert status == 111
        assert b"stray: " + str(shared / place).encode() in said
    assert (shared / place).is_symlink()
    victim.check()


def test_a_link_that_comes_and_goes_is_never_followed(shared: Path, tmp_path: Path) -> None:
    names = [f"_20200101000000_{number}_1_web_0_x" for number in range(50)]
    victim = Victim(tmp_path / "victim", names)
    pid = os.fork()
    if pid == 0:
        os.setgroups([GROUP])
        os.setgid(GROUP)
        os.setuid(MEMBER)
        done, away, link = str(shared / "done"), str(shared / "away"), str(shared / "link")
        os.symlink(victim.path, link)
        while True:
            os.rename(done, away)
            os.rename(link, done)
            os.rename(done, link)
            os.rename(away, done)
    try:
        refused = removed = 0
        while refused < 20 or removed < 20:
            try:
                for name in names[:5]:
                    (shared / "queue" / name).write_bytes(b"mine")
                    with fsq.FSQWorkItem("mail", name) as item:
                        item.success()
                removed += redrive.purge("mail", "done")
            except fsq.FSQError:
                refused += 1
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    victim.check()


@pytest.mark.parametrize("place", ["queue", "done", "fail", "tmp"])
def test_a_directory_of_another_owner_is_refused(shared: Path, place: str) -> None:
    def attack() -> None:
        (shared / place).rename(shared / "away")
        (shared / place).mkdir(mode=0o777)
        (shared / place / NAME).write_bytes(b"theirs")

    as_member(attack)
    text = rf"{place} must belong to the owner of the queue \(uid 0\), got uid {MEMBER}"
    calls: dict[str, Callable[[], object]] = {
        "queue": lambda: fsq.scan("mail"),
        "done": lambda: redrive.purge("mail", "done"),
        "fail": lambda: redrive.redrive("mail"),
        "tmp": lambda: fsq.senqueue("mail", "x"),
    }
    with pytest.raises(fsq.FSQError, match=text):
        calls[place]()
    assert [finding.kind for finding in auditing.audit("mail") if str(shared / place) == finding.where] == ["stray"]
    assert (shared / place / NAME).read_bytes() == b"theirs"


def test_workers_of_several_users_share_what_they_make(shared: Path) -> None:
    def work() -> None:
        fsq.set_const("FSQ_ITEM_MODE", 0o660)
        name = fsq.senqueue("mail", "x")
        fsq.FSQWorkItem("mail", name).close()

    as_member(work)
    assert (shared / "attempts").stat().st_uid == MEMBER
    for item in fsq.scan("mail"):
        fsq.success(item)
    assert os.listdir(shared / "queue") == []


def test_a_missing_directory_is_made_for_the_owner_of_the_queue_or_not_at_all(root: Path, shared: Path) -> None:
    (shared / "tmp").rmdir()
    reasons: list[str | None] = []

    def repair() -> None:
        reasons.extend(reason for finding, reason in auditing.repair("mail") if finding.kind == "missing")
        assert reasons == ["Operation not permitted"], reasons

    as_member(repair)
    assert not (shared / "tmp").exists()
    os.chown(shared, MEMBER, GROUP)
    list(auditing.repair("mail"))
    assert (shared / "tmp").stat().st_uid == MEMBER
    assert stat.S_IMODE((shared / "tmp").stat().st_mode) == 0o2770


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_taking_a_queue_down_changes_no_other_file(shared: Path, victim: Victim, kind: str) -> None:
    if kind == "link":
        as_member(lambda: (shared / "down").symlink_to(victim.path / "secret"))
    else:
        hard_link(victim.path / "secret", shared / "down")
    with pytest.raises(fsq.FSQConfigError, match=r"got a link|must be a file with one name"):
        fsq.down("mail", user=MEMBER, mode=0o666)
    if kind == "hard link":
        (shared / "down").unlink()
    victim.check()


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_a_trigger_of_somebody_else_is_not_opened_to_others(shared: Path, tmp_path: Path, kind: str) -> None:
    private = tmp_path / "private"
    os.mkfifo(private, 0o600)
    if kind == "link":
        as_member(lambda: (shared / "trigger-s").symlink_to(private))
    else:
        hard_link(private, shared / "trigger-s")
    with pytest.raises(fsq.FSQConfigError):
        fsq.trigger("mail", user=MEMBER, mode=0o666)
    assert (private.stat().st_uid, stat.S_IMODE(private.stat().st_mode)) == (0, 0o600)


@pytest.mark.system
@pytest.mark.parametrize("kind", ["link", "fifo", "hard link", "directory"])
def test_a_note_of_an_attempt_that_is_something_else_stops_nobody(shared: Path, victim: Victim, kind: str) -> None:
    def attack() -> None:
        (shared / "attempts").mkdir(exist_ok=True)
        note = shared / "attempts" / OTHER
        if kind == "link":
            note.symlink_to(victim.path / "secret")
        elif kind == "fifo":
            os.mkfifo(note)
        elif kind == "directory":
            note.mkdir()

    as_member(attack)
    if kind == "hard link":
        hard_link(victim.path / "secret", shared / "attempts" / OTHER)
    status, said = run("scan", "mail", "true")
    assert (status, said) == (0, b"")
    assert OTHER in os.listdir(shared / "done")
    victim.check()


def test_repair_changes_the_mode_of_no_file_that_has_another_name(shared: Path, victim: Victim) -> None:
    hard_link(victim.path / NAME, shared / "done" / NAME)
    (victim.path / NAME).chmod(0o604)
    reasons = {finding.kind: reason for finding, reason in auditing.repair("mail")}
    assert "must be a file with one name" in str(reasons["mode"])
    assert stat.S_IMODE((victim.path / NAME).stat().st_mode) == 0o604


@pytest.mark.system
@pytest.mark.parametrize("words", [("host-dist", "mail"), ("host-dist", "--link", "mail")])
def test_an_item_that_is_a_link_is_not_copied_to_hosts(shared: Path, victim: Victim, words: tuple[str, ...]) -> None:
    fsq.install_host("mail", "far")
    as_member(lambda: (shared / "queue" / NAME).symlink_to(victim.path / "secret"))
    _, said = run(*words)
    assert b"must be a regular file, got a link" in said
    assert os.listdir(shared / "hosts/far/queue") == [OTHER]
    with pytest.raises(fsq.FSQError, match="must be a regular file, got a link"):
        fsq.reenqueue(NAME, "mail", src_queue="mail", link="--link" in words, hosts=["far"])
    assert os.listdir(shared / "hosts/far/queue") == [OTHER]
    assert os.listdir(shared / "hosts/far/tmp") == []
    victim.check()


@pytest.mark.system
@pytest.mark.parametrize("kind", ["link", "fifo"])
@pytest.mark.parametrize("place", ["queue", "fail"])
def test_reading_something_that_is_not_an_item_neither_follows_nor_waits(
    shared: Path, victim: Victim, place: str, kind: str
) -> None:
    odd = shared / place / NAME
    as_member(lambda: odd.symlink_to(victim.path / "secret") if kind == "link" else os.mkfifo(odd))
    for words in (("show", "--data", "mail", NAME), ("show", "mail", NAME)):
        status, said = run(*words)
        assert b"precious" not in said
        assert f"got a {'FIFO' if kind == 'fifo' else 'link'}".encode() in said
    status, said = run("redrive", "mail", NAME) if place == "fail" else run("scan", "mail", "cat")
    assert status == 111
    assert b"must be a regular file" in said
    victim.check()


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
@pytest.mark.parametrize("place", ["queue", "done"])
def test_purge_passes_over_what_is_no_item(shared: Path, victim: Victim, place: str, kind: str) -> None:
    odd = shared / place / NAME
    attacks: dict[str, Callable[[], object]] = {
        "directory": odd.mkdir,
        "link": lambda: odd.symlink_to(victim.path / "secret"),
        "fifo": lambda: os.mkfifo(odd),
    }
    as_member(attacks[kind])
    redrive.purge("mail", place)
    assert not (shared / place / OTHER).exists()
    victim.check()


def test_a_queue_may_be_a_link_of_the_administrator_and_of_nobody_else(
    root: Path, shared: Path, tmp_path: Path, victim: Victim
) -> None:
    (root / "post").symlink_to(shared)
    name = fsq.senqueue("post", "x")
    assert (shared / "queue" / name).exists()
    os.chown(root, 0, GROUP)
    root.chmod(0o1775)
    for place in ("tmp", "queue"):
        (victim.path / place).mkdir()
    as_member(lambda: (root / "trap").symlink_to(victim.path))
    with pytest.raises(fsq.FSQEnqueueError, match=f"got a link of uid {MEMBER}"):
        fsq.senqueue("trap", "x")
    assert os.listdir(victim.path / "tmp") == os.listdir(victim.path / "queue") == []


def test_a_queue_that_was_removed_and_made_again_is_found(root: Path, queue: str) -> None:
    first = fsq.senqueue(queue, "x")
    (root / "mail").rename(root / "old")
    fsq.install(queue)
    second = fsq.senqueue(queue, "y")
    assert os.listdir(root / "old/queue") == [first]
    assert os.listdir(root / "mail/queue") == [second]


def test_no_path_leads_out_by_dots(shared: Path) -> None:
    with pytest.raises(fsq.FSQPathError, match=r"can't have \. or \.\."):
        directory.directory(f"{shared}/done/../..")
    with pytest.raises(fsq.FSQPathError, match="must be below FSQ_ROOT"):
        directory.directory("/etc")
