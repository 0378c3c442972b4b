"""How far a long operation is: on a terminal it is told, and leaves nothing behind."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fsq import programs

ITEMS = 2500


def run_on_a_terminal(*words: str) -> tuple[bytes, bytes]:
    """Run `fsq` with a terminal for its messages; return its output, and what the terminal got."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.fsq", *words],
            env=programs.environment(),
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=programs.SECONDS_MAX,
            check=True,
        )
        os.close(theirs)
        return done.stdout, os.read(ours, 1 << 16)
    finally:
        os.close(ours)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("purge", "--older-than", "0", "mail"), b"mail: 2500 removed from done\n"),
        (("redrive", "--all", "-p", "done", "mail"), b"2500 put back\n"),
        (("audit", "mail"), b"nothing found\n"),
        (("repair", "mail"), b"0 repaired, 0 left\n"),
    ],
)
def test_a_long_operation_says_how_far_it_is(root: Path, queue: str, words: tuple[str, ...], said: bytes) -> None:
    for number in range(ITEMS):
        os.close(os.open(root / f"mail/done/_20250101000000_{number}_1_web_0_x", os.O_CREAT | os.O_WRONLY, 0o640))
    out, seen = run_on_a_terminal(*words)
    assert out == said
    assert b": 1000 items\r" in seen
    assert seen.endswith(b": 2000 items\r\x1b[K")


def test_where_nobody_listens_nothing_is_reported(root: Path, queue: str) -> None:
    for number in range(ITEMS):
        os.close(os.open(root / f"mail/done/_20250101000000_{number}_1_web_0_x", os.O_CREAT | os.O_WRONLY, 0o640))
    assert programs.run("purge", "--older-than", "0", "mail").stderr == b""
