"""A second user of the queue's group, who may write into its directories, and what only root may touch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

MEMBER = NOBODY = 65534
GROUP = 54321

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acting as a second user takes root")


def run_as(uid: int, group: int, action: Callable[[], object]) -> None:
    """Do something as another user, in a child; what it raises is raised here."""

    def silently() -> str:
        action()
        return ""

    text = said_as(uid, group, [group], silently)
    assert not text, text


def said_as(uid: int, group: int, groups: list[int], action: Callable[[], str]) -> str:
    """Do something as another user, in a child; return its text, or what it raised."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "it raised something else"
        try:
            os.setgroups(groups)
            os.setgid(group)
            os.setuid(uid)
            text = action()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(write, text.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    return text


def as_nobody(action: Callable[[], str]) -> str:
    """Do something as a user without rights, in a child; return its text."""
    return action() if os.getuid() != 0 else said_as(NOBODY, NOBODY, [], action)


def as_member(action: Callable[[], object]) -> None:
    """Do something as a member of the queue's group."""
    run_as(MEMBER, GROUP, action)


def let_in(path: Path) -> None:
    """Let every user reach a directory of a test."""
    for above in [path, *path.parents]:
        if above in (Path("/tmp"), Path("/")):
            break
        above.chmod(0o755)


def hard_link(source: Path, target: Path) -> None:
    """Add a second name as the member; as root where the system protects files of others (fs.protected_hardlinks)."""
    try:
        as_member(lambda: os.link(source, target))
    except AssertionError:
        os.link(source, target)


def replace_by_link(path: Path, target: Path) -> None:
    """Put a link in the place of a file or directory, as the member."""

    def attack() -> None:
        if path.exists():
            path.rename(path.with_name(path.name + ".away"))
        path.symlink_to(target)

    as_member(attack)


class Victim:
    """A directory of root's with files of root's, which nobody else may change."""

    def __init__(self, where: Path, names: list[str]) -> None:
        self.path = where
        where.mkdir(mode=0o711)
        for name in names:
            (where / name).write_bytes(b"precious")
            (where / name).chmod(0o600)
        self._before = self._state()

    def _state(self) -> list[tuple[str, int, int, int, bytes]]:
        found = [(".", self.path.stat())] + [(path.name, path.lstat()) for path in sorted(self.path.iterdir())]
        return [
            (
                name,
                status.st_mode,
                status.st_uid,
                status.st_gid,
                (self.path / name).read_bytes() if name != "." else b"",
            )
            for name, status in found
        ]

    def check(self) -> None:
        """Nothing was added, removed, changed or opened to others."""
        assert self._state() == self._before
