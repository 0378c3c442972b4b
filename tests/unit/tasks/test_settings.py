"""Settings of an app: where each may come from, and which place goes before which."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock import App
from penstock.cli.config import run
from penstock.errors import CallerError
from penstock.tasks.loading import load_app
from penstock.tasks.settings import SETTINGS, find

PLACES = ["App(...)", "PENSTOCK_QUEUE", "penstock.toml", "pyproject.toml", "default"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in SETTINGS:
        monkeypatch.delenv(f"PENSTOCK_{name.upper()}", raising=False)
    return tmp_path


@pytest.mark.parametrize("first", range(len(PLACES)))
def test_the_first_place_that_has_a_setting_holds(folder: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    if first <= 1:
        monkeypatch.setenv("PENSTOCK_QUEUE", "PENSTOCK_QUEUE")
    if first <= 2:
        (folder / "penstock.toml").write_text('queue = "penstock.toml"')
    if first <= 3:
        (folder / "pyproject.toml").write_text('[tool.penstock]\nqueue = "pyproject.toml"')
    app = App("memory:", queue="App(...)" if first == 0 else None)
    assert app.queue == PLACES[first]
    assert find("queue", "App(...)" if first == 0 else None).origin == PLACES[first]


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("penstock.toml", 'quue = "a"', "penstock.toml has no setting 'quue'; there are url, queue"),
        ("penstock.toml", "queue = 5", "queue in penstock.toml must be the name of a queue, got 5"),
        ("penstock.toml", "queue =", "penstock.toml can't be read"),
        ("penstock.toml", "queues = [2]", "queues in penstock.toml must be queues and their concurrency"),
        ("penstock.toml", "queues = {a = true}", "queues in penstock.toml must have a concurrency of 1 or more"),
        ("pyproject.toml", '[tool.penstock]\nunknown = "no"', 'unknown in pyproject.toml must be "wait" or "fail"'),
    ],
)
def test_a_mistake_in_a_file_is_named(folder: Path, file: str, text: str, says: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(CallerError, match=says):
        App("memory:")


@pytest.mark.parametrize("place", ["App(...)", "PENSTOCK_QUEUES", "penstock.toml"])
def test_the_concurrency_of_queues_comes_from_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    given = ""
    if place == "PENSTOCK_QUEUES":
        monkeypatch.setenv(place, " video = 2,mail=20")
    elif place == "penstock.toml":
        (folder / place).write_text('queues = {video = 2, "mail" = 20}')
    else:
        given = "queues={'video': 2, 'mail': 20}"
    (folder / "queued.py").write_text(f"import penstock\napp = penstock.App('memory:', {given})\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "queued", raising=False)
    assert load_app("queued:app").queues == {"video": 2, "mail": 20}
    assert run(["queued:app"]) == 0
    assert f"queues\tvideo=2,mail=20\t{place}\n" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["video", "video=0", "video=two", "=2", "video=2,", "video=-1"])
def test_a_variable_with_queues_that_can_not_be_read_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PENSTOCK_QUEUES", text)
    with pytest.raises(CallerError, match="PENSTOCK_QUEUES must have a concurrency of 1 or more for each name, got '"):
        App("memory:")


def test_config_prints_what_holds_without_passwords(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "redis://me:secret@host:6379/0")
    (folder / "penstock.toml").write_text('results = "postgresql://you:hidden@host/db"')
    assert run([]) == 0
    printed = capsys.readouterr().out
    assert "secret" not in printed
    assert "hidden" not in printed
    assert printed.splitlines() == [
        "url\tredis://me:***@host:6379/0\tPENSTOCK_URL",
        "queue\tdefault\tdefault",
        "queues\t\tdefault",
        "unknown\twait\tdefault",
        "results\tpostgresql://you:***@host/db\tpenstock.toml",
    ]
    (folder / "configured.py").write_text("import penstock\napp = penstock.App('sqlite:///a.db', queue='q')\n")
    monkeypatch.syspath_prepend(folder)
    assert run(["configured:app", "--json"]) == 0
    assert '{"setting": "queue", "value": "q", "origin": "App(...)"}' in capsys.readouterr().out
