"""Goes through all states in which a crash may leave a disk, and has each checked; some of them on a real disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from penstock.fsq import constants, files
from tests.fsq.crash_model import Left, Operation, Tree

Check = Callable[[Tree, set[str]], list[str]]  # complaints, given what is on the disk and what was acknowledged
CheckForReal = Callable[[Tree, Path, bool], list[str]]  # complaints after a recovery there; in two ways, by turns


def walk(
    plans: Iterable[tuple[list[Operation], Left]],
    check: Check,
    check_for_real: CheckForReal,
    every: int,
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[int, int]:
    """Return how many different states there were, and how many of them were made real: one of `every`."""
    seen: set[tuple[Tree, frozenset[str]]] = set()
    laid_out = 0
    for history, left in plans:
        for step in [None, *history]:
            if step is not None:
                left.play(step)
            for tree in left.trees():
                state = (tree, frozenset(left.acks))
                if state in seen:
                    continue
                seen.add(state)
                assert check(tree, left.acks) == [], f"after {step}"
                if len(seen) % every == 0:
                    with monkeypatch.context() as patch:
                        patch.setattr(files, "disk", files.FileSystem())
                        patch.setattr(constants, "_values", {**constants._values, "FSQ_SYNC": 0})
                        assert check_for_real(tree, base, laid_out % 2 == 0) == [], f"after {step}"
                    shutil.rmtree(base)
                    laid_out += 1
    return len(seen), laid_out


def finds_fault(
    plans: Iterable[tuple[list[Operation], Left]], check: Check, spoil: Callable[[Operation], bool]
) -> bool:
    """Whether a check finds fault with the same operations less some system calls."""
    for history, left in plans:
        for step in history:
            if not spoil(step):
                left.play(step)
            if any(check(tree, left.acks) for tree in left.trees()):
                return True
    return False
