"""The help of `penstock cluster` tells all there is, and mistakes are answered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import cluster
from penstock.cli.cluster.access import access
from penstock.errors import CallerError

SOURCE = Path(cluster.__file__).parents[3]
COMMANDS = [str(command.callback.__name__) for command in cluster.app.registered_commands if command.callback]


def test_the_commands_are_those_of_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.run([]) == 0
    overview = capsys.readouterr().out
    assert sorted(re.findall(r"^  ([a-z]+)(?: [A-Z]+)?  +[a-z]", overview, re.MULTILINE)) == sorted(COMMANDS)
    assert "Exit codes: 0" in overview


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_and_exit_codes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.run([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"Examples:\n +penstock cluster {name}\b", text)
    assert "Exit codes: 0" in text


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["crate"], "create"),
        (["create"], "Missing argument 'N'"),
        (["create", "three"], "'N'"),
        (["add", "127.0.0.1:7714"], "--to"),
        (["status", "--watch", "0"], "--watch"),
        (["drain"], "ADDRESS"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.run(words) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["create", "0"], "must be 1 to 50, got"),
        (["create", "51"], "must be 1 to 50, got"),
        (["create", "3", "--base-port", "60000"], "--base-port must be 1 to 22765, got 60000"),
        (["status", "127.0.0.1:x"], "must be a number"),
        (["status", "--key", "k.pem"], "--key needs --cert"),
        (["status", "--cacert", "/no/such.pem"], "/no/such.pem"),
    ],
)
def test_what_can_not_be_is_reported_before_anything_is_done(words: list[str], hint: str) -> None:
    with pytest.raises(CallerError, match=re.escape(hint)):
        cluster.run(words)


def test_files_of_tls_ask_for_tls() -> None:
    assert access(None, False, None, None, None).tls is None
    assert access(None, True, None, None, None).tls is not None


def test_the_overview_is_shown_without_loading_what_only_commands_need() -> None:
    script = (
        "import sys; from penstock.cli import cluster; cluster.run([]); print(sorted(sys.modules), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    for name in ("rich", "penstock.broker.core", "penstock.cli.cluster.change"):
        assert f"'{name}'" not in ended.stderr
