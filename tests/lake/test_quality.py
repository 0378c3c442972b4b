"""`penstock lake status` and `check`: how far a lake is, and whether its tables can be trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.events import Kind
from penstock.lake.build import build
from penstock.lake.fold import fold
from penstock.lake.quality import checks
from tests.lake.conftest import Recorder


def lake_command(*words: str) -> tuple[int, list[Any]]:
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", "lake", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/nowhere", "PYTHONPATH": str(root / "src"), "HOME": os.environ.get("HOME", "/")},
    )
    assert not ended.stderr, ended.stderr
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_checks_say_what_is_wrong_and_status_what_is_missing(spark: Any, events: Path, lake: Path) -> None:
    recorder = Recorder(events, segment_s=0)  # each flush is a segment
    for number in range(3):
        recorder.life(f"j{number}", number)
        recorder.flush()
    recorder.put(Kind.SAMPLE, None, 600, None, size=0)
    recorder.close()
    late = sorted(events.glob("*/*.events"))[1]
    late.rename(late.with_suffix(".away"))
    build(spark, events, lake)
    fold(spark, lake)
    assert {one.name: one.found for one in checks(lake) if not one.is_ok} == {"gaps": 3}
    code, said = lake_command("check", "--lake", str(lake))
    assert code == 1
    assert [one["check"] for one in said if not one["ok"]] == ["gaps"]

    late.with_suffix(".away").rename(late)
    code, (status,) = lake_command("status", "--lake", str(lake), "--events", str(events))
    assert (code, status["events"], status["lag"], status["unfolded"]) == (0, 7, {"node-1": 3}, 0)
    assert status["checked"]["failed"] == {"gaps": 3}
    build(spark, events, lake)
    code, (status,) = lake_command("status", "--lake", str(lake), "--events", str(events))
    assert (status["events"], status["lag"], status["unfolded"]) == (10, {}, 1)

    second = Recorder(events)
    second.put(Kind.ACKED, "nobody added it", 700, 0.0)
    second.put(Kind.ADDED, "early", 650, 650)
    second.put(Kind.RESERVED, "early", 640, 650, attempt=1)  # by a clock that is behind
    second.put(Kind.SAMPLE, None, 1200, None, size=5)
    second.close()
    build(spark, events, lake)
    fold(spark, lake)
    failed = {one.name: one.found for one in checks(lake) if not one.is_ok}
    assert failed == {"late events": 3, "ends without adds": 1, "negative times": 1, "depth": 1}
