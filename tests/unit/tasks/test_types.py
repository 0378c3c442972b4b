"""What type checkers and editors see of a task are the parameters of its function."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CALLS = Path(__file__).with_name("wrong_calls.py")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_mypy_refuses_wrong_calls_and_no_others() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--follow-imports=silent", str(CALLS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    refused = {int(line) for line in re.findall(r"wrong_calls\.py:(\d+): error", done.stdout)}
    lines = CALLS.read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    assert refused == expected, done.stdout + done.stderr
