"""The bar of long commands: on a terminal only, and the count is right with and without it."""

from __future__ import annotations

import io
import sys

import pytest

from penstock.cli.output import ProgressCounter


class Terminal(io.StringIO):
    """Standard error of somebody who looks."""

    def isatty(self) -> bool:
        return True


def count_to(total: int, expected: int | None, quiet: bool = False) -> int:
    with ProgressCounter("jobs", expected, quiet=quiet) as counted:
        for _ in range(total):
            counted(1)
    return counted.total


@pytest.mark.parametrize(("expected", "shown"), [(3, "3/3"), (None, "3/?")])
def test_a_terminal_shows_how_far_it_is(expected: int | None, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert count_to(3, expected) == 3
    assert shown in screen.getvalue()


@pytest.mark.parametrize(("stream", "quiet"), [(io.StringIO, False), (Terminal, True)])
def test_a_pipe_and_somebody_who_wants_quiet_see_nothing(
    stream: type[io.StringIO], quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = stream()
    monkeypatch.setattr(sys, "stderr", screen)
    assert count_to(3, 3, quiet) == 3
    assert not screen.getvalue()
