"""`penstock tasks`: what is shown of each task."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from penstock.cli.tasks import run
from penstock.errors import CallerError
from penstock.tasks.loading import load_app

MODULE = """
import penstock
app = penstock.App("memory:")

@app.task(queue="a", max_tries=0)
async def waits(n: int) -> None: ...

@app.task(queue="b", aliases=["listed.before"])
def computes(n: int = 1) -> int: return n

@app.task(queue="b", isolate=True, time_limit=5)
def is_killed() -> None: ...
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listed.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "listed", raising=False)


def test_tasks_are_listed_with_how_they_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["listed:app"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "listed.computes\tb\t(n: int = 1)\t25\t\tthread\tlisted.before",
        "listed.is_killed\tb\t()\t25\t5 s\tprocess\t",
        "listed.waits\ta\t(n: int)\tno limit\t\tasync\t",
    ]


@pytest.mark.parametrize(("name", "error"), [("listed:ap", "has no 'ap'; it has app$"), ("json:app", "has no 'app'$")])
def test_an_app_that_is_not_there_is_answered_with_those_that_are(name: str, error: str) -> None:
    with pytest.raises(CallerError, match=error):
        load_app(name)


def test_tasks_are_listed_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["listed:app", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["kind"] for row in rows] == ["thread", "process", "async"]
    assert rows[1]["time_limit"] == 5
