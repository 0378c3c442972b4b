"""`penstock lake status` and `check`: how far a lake is, and whether its tables can be trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import lake as lake_cli
from penstock.events import Kind
from penstock.lake import fold as fold_module
from penstock.lake.build import build
from penstock.lake.fold import fold
from penstock.lake.quality import checks, is_check_due, status
from penstock.lake.schemas import CHECKS, EVENTS, TABLES
from penstock.lake.table import LakeTable
from tests.lake.conftest import NOON, Recorder


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
    code, (found,) = lake_command("status", "--lake", str(lake), "--events", str(events))
    assert (code, found["events"], found["lag"], found["unfolded"]) == (0, 7, {"node-1": 3}, 0)
    assert found["checked"]["failed"] == {"gaps": 3}
    build(spark, events, lake)
    code, (found,) = lake_command("status", "--lake", str(lake), "--events", str(events))
    assert (found["events"], found["lag"], found["unfolded"]) == (10, {}, 1)

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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_build_checks_what_it_made_and_no_check_stops_it(
    spark: Any, events: Path, lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(events, segment_s=0)
    for number in range(3):
        recorder.life(f"j{number}", number)
        recorder.flush()
    recorder.close()
    late = sorted(events.glob("*/*.events"))[1]
    late.rename(late.with_suffix(".away"))
    what = "; `penstock lake check` says what is counted"
    monkeypatch.setattr(lake_cli, "_spark", lambda *_: nullcontext(spark))

    def built(*words: str) -> tuple[int, list[str], str]:
        code = lake_cli.run(["build", "--events", str(events), "--lake", str(lake), *words])
        said = capsys.readouterr()
        return code, said.out.splitlines()[1:], said.err

    def runs() -> int:
        table = LakeTable(lake, CHECKS)
        return len({row["at"] for row in table.arrow(table.snapshot().files).to_pylist()})

    assert built() == (0, [f"checks failed: gaps (3){what}"], "")
    assert status(lake).failed == {"gaps": 3}
    assert (built(), runs()) == ((0, [], ""), 1), "nothing is new"
    late.with_suffix(".away").rename(late)
    assert (built("--no-fold"), runs()) == ((0, [], ""), 1)
    assert (built(), runs()) == ((0, [f"checks failed: late events (3){what}"], ""), 2)
    assert status(lake).failed == {"late events": 3}

    second = Recorder(events)
    second.life("j4", 4)
    second.close()
    damaged = LakeTable(lake, EVENTS)
    with monkeypatch.context() as patch:  # a file that is gone when the checks read it
        fold_tables = fold_module.fold

        def then_lose_a_file(*words: Any, **named: Any) -> Any:
            folded = fold_tables(*words, **named)
            (damaged.path / damaged.snapshot().files[0].path).unlink()
            return folded

        patch.setattr(fold_module, "fold", then_lose_a_file)
        code, said, problem = built()
    assert (code, said) == (0, [])
    assert problem.startswith("The tables could not be checked: ")


def test_checks_of_builds_take_a_small_part_of_the_time(lake: Path) -> None:
    for schema in TABLES:
        LakeTable(lake, schema).create()
    events, table = LakeTable(lake, EVENTS), LakeTable(lake, CHECKS)
    assert is_check_due(lake, NOON), "there was no run yet"

    def ran(took_s: float) -> None:
        run = {"at": NOON.isoformat(), "took_s": took_s, "events_version": events.snapshot().version}
        table.commit(table.snapshot(), [], run)

    def due_after(seconds: float, pause_s: float = 0) -> bool:
        return is_check_due(lake, NOON + timedelta(seconds=seconds), timedelta(seconds=pause_s))

    ran(5)
    assert not due_after(1000), "nothing is new"
    events.commit(events.snapshot(), [], {})
    assert due_after(0)
    assert [due_after(at, 600) for at in (599, 600)] == [False, True]
    ran(60)
    events.commit(events.snapshot(), [], {})
    assert [due_after(at, 600) for at in (1199, 1200)] == [False, True]
    assert due_after(-1), "the clock was set back"
