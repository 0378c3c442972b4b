"""Disks that are full, directories that may not be written, as another user than root."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import fsq
from tests.fsq import programs, small_disk
from tests.fsq.other_user import NOBODY, as_nobody


def error_of(action: Callable[[], object]) -> Callable[[], str]:
    def attempt() -> str:
        try:
            action()
        except fsq.FSQError as error:
            return f"{type(error).__name__} {errno.errorcode[error.errno or 0]}: {error.strerror}"
        return "nothing was refused"

    return attempt


@pytest.fixture
def open_root(root: Path, queue: str) -> Path:
    """A root that everybody may enter, with a queue that everybody may read and nobody but us may change."""
    for path in [root, *root.parents]:
        if path == Path("/tmp") or path == Path("/"):
            break
        path.chmod(0o755)
    fsq.senqueue(queue, "kept", mode=0o644)
    for path in [root / "mail", *(root / "mail").iterdir()]:
        path.chmod(0o755 if os.getuid() == 0 else 0o555)
    (root / "mail/queue" / os.listdir(root / "mail/queue")[0]).chmod(0o644)
    return root


def test_a_directory_that_may_not_be_written_is_reported_and_loses_nothing(open_root: Path) -> None:
    (name,) = os.listdir(open_root / "mail/queue")
    assert as_nobody(error_of(lambda: fsq.senqueue("mail", "x"))).startswith(
        "FSQEnqueueError EACCES: cannot enqueue into mail: Permission denied"
    )
    assert as_nobody(error_of(lambda: fsq.down("mail"))).startswith("FSQConfigError EACCES")
    assert as_nobody(error_of(lambda: fsq.install("new"))).startswith(
        "FSQInstallError EACCES" if os.getuid() == 0 else "nothing"
    )

    def complete() -> None:
        for item in fsq.scan("mail"):
            fsq.success(item)

    assert as_nobody(error_of(complete)).startswith("FSQDoneError EACCES: cannot move item")
    assert os.listdir(open_root / "mail/queue") == [name]
    assert (open_root / "mail/queue" / name).read_bytes() == b"kept"


def test_an_item_that_may_not_be_read_is_reported_and_stays(open_root: Path) -> None:
    (name,) = os.listdir(open_root / "mail/queue")
    (open_root / "mail/queue" / name).chmod(0)
    said = as_nobody(error_of(lambda: next(fsq.scan("mail"))))
    assert said.startswith("FSQWorkItemError EACCES")
    assert os.listdir(open_root / "mail/queue") == [name]


def test_not_being_allowed_to_read_is_not_being_up(open_root: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs a directory of somebody else")
    (open_root / "mail").chmod(0o700)
    assert as_nobody(error_of(lambda: fsq.is_down("mail"))).startswith("FSQConfigError EACCES")


def test_the_command_line_says_it_too(open_root: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs a directory of somebody else")
    # The interpreter may lie where only root may go, so the command is called within the child.
    program = (
        "import os, sys\nfrom penstock.cli import fsq\nfrom penstock.fsq import distributing\n"
        "import subprocess, penstock.cli.fsq.work, penstock.cli.fsq.man\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "sys.exit(fsq.run(sys.argv[1:]))"
    )
    for words, text in (
        (["enqueue", "-e", "mail"], b"fsq enqueue: cannot enqueue into mail: Permission denied"),
        (["scan", "mail", "true"], b"cannot move item"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *words], env=programs.environment(), capture_output=True, check=False
        )
        assert done.returncode == 111
        assert text in done.stderr
        assert b"Traceback" not in done.stderr
    assert len(os.listdir(open_root / "mail/queue")) == 1


@pytest.fixture(params=small_disk.KINDS)
def little_room(root: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root on a disk of a megabyte."""
    with small_disk.small_root(root, request.param, monkeypatch) as where:
        fsq.set_const("FSQ_ROOT", str(where))
        yield where


@pytest.mark.system
def test_a_full_disk_is_reported_and_loses_nothing(little_room: Path) -> None:
    fsq.install("mail")
    made: list[str] = []

    def fill() -> None:
        while True:
            made.append(fsq.senqueue("mail", b"x" * 50_000))

    with pytest.raises(fsq.FSQEnqueueError, match="No space left on device") as caught:
        fill()
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(little_room / "mail/tmp") == []
    assert sorted(os.listdir(little_room / "mail/queue")) == sorted(made)
    done = []
    for item in fsq.scan("mail"):
        assert item.item is not None
        assert item.item.read() == b"x" * 50_000
        fsq.success(item)
        done.append(item.id)
    assert sorted(done) == sorted(made)


@pytest.mark.system
def test_no_inode_left_is_reported_too(little_room: Path) -> None:
    fsq.install("mail")

    def fill() -> None:
        while True:
            fsq.senqueue("mail", b"")

    with pytest.raises(fsq.FSQEnqueueError, match="No space left on device"):
        fill()
    assert os.listdir(little_room / "mail/tmp") == []
    count = len(os.listdir(little_room / "mail/queue"))
    # There is no room for notes of attempts either.
    assert sum(1 for item in fsq.scan("mail") if fsq.success(item) is None) == count
