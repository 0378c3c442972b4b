"""A process says whether it runs the compiled modules or their sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.native import PURE_VARIABLE
from tests.conftest import StartNode

ASK = """
import penstock.wire.record as record
from penstock.native import modules_in_use
print(record.__file__.endswith(".so"), modules_in_use())
"""


def told(*words: str, pure: bool) -> str:
    environment = {**os.environ, PURE_VARIABLE: "1" if pure else "0"}
    return subprocess.run(
        [sys.executable, *words], env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_it_says_what_was_loaded() -> None:
    is_compiled, _, words = told("-c", ASK, pure=False).partition(" ")
    assert words.startswith("compiled modules" if is_compiled == "True" else "plain modules: ")
    assert told("-c", ASK, pure=True) == "False plain modules: PENSTOCK_PURE=1 is set"


def test_the_version_says_it() -> None:
    assert told("-m", "penstock", "--version", pure=True).endswith(" (plain modules: PENSTOCK_PURE=1 is set)")
    assert told("-m", "penstock", "--version", pure=False).endswith(
        f" ({told('-c', ASK, pure=False).partition(' ')[2]})"
    )


@pytest.mark.system
def test_a_node_says_it_at_its_start_and_in_info(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PURE_VARIABLE, "1")
    node = start_node()
    assert node.info()["penstock_modules"] == "plain modules: PENSTOCK_PURE=1 is set"
    first_line = Path(node.log).read_text().splitlines()[0]
    assert "INFO penstock " in first_line
    assert first_line.endswith(" starting, plain modules: PENSTOCK_PURE=1 is set")
