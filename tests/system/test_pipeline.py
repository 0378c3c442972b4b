"""`penstock pipeline` as real processes on SQLite: checked, drawn, run, changed while it runs, stopped."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import blocking
from penstock.queues.dead_letter import FROM_QUEUE
from tests.processes import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

SOURCE = Path(__file__).resolve().parents[2] / "src"
END_S = 60.0

STEPS = """
import os, pathlib, time

HERE = pathlib.Path(__file__).parent

def note(what):
    with open(HERE / "notes", "a") as notes:
        notes.write(f"{what} {os.getpid()}\\n")

def first(payload):
    note(f"first {payload}")
    return payload + 1

async def second(job):
    note(f"second {job.payload}")
    return job.payload * 10

def hold(payload):
    note(f"began {payload}")
    while not (HERE / "go").exists():
        time.sleep(0.01)

def fail(payload):
    raise ValueError("no luck")
"""


class Pipelines:
    """A folder with a recipe, and processes that run it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/jobs.db?poll=0.05"
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "steps.py").write_text(STEPS)

    def write(self, **links: dict[str, Any]) -> None:
        """Write the recipe, as an editor does: beside the old one, and renamed over it."""
        draft = self.folder / "draft"
        draft.write_text(json.dumps({"store": self.url, "links": links}))
        draft.rename(self.folder / "recipe.json")

    def command(self, *words: str) -> dict[str, Any]:
        return {
            "args": [sys.executable, "-m", "penstock", "pipeline", words[0], "recipe.json", *words[1:]],
            "cwd": self.folder,
            "env": {**os.environ, "PYTHONPATH": str(SOURCE)},
            "stdin": subprocess.DEVNULL,
        }

    def call(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(**self.command(*words), capture_output=True, text=True, timeout=END_S, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def start(self, *options: str) -> None:
        with (self.folder / "log").open("ab") as log:
            command = self.command("run", "--json", *options)
            self.process = subprocess.Popen(**command, stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: self.events("start"), END_S)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self) -> int:
        assert self.process is not None
        code = self.process.wait(END_S)
        self.process = None
        assert "Traceback" not in (self.folder / "log").read_text(), (self.folder / "log").read_text()
        return code

    def kill(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.terminate()
            self.process.kill()
            self.process.wait()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.folder / "log").read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["event"] == name]

    def push(self, queue: str, *payloads: Any) -> None:
        with blocking.connect(self.url) as store:
            store.queue(queue).push_many(payloads)

    def payloads(self, queue: str) -> list[Any]:
        with blocking.connect(self.url) as store:
            return sorted((job.payload for job in store.queue(queue).jobs()), key=str)

    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, queue: str, *payloads: Any) -> None:
        wait_until(lambda: self.payloads(queue) == sorted(payloads, key=str), END_S)


FIRST = {"from": "a", "to": "b", "function": "steps:first", "takes": "payload"}
SECOND = {"from": "b", "to": "c", "function": "steps:second"}
HOLD = {"from": "a", "to": "b", "function": "steps:hold", "takes": "payload"}


@pytest.fixture
def pipes(tmp_path: Path) -> Iterator[Pipelines]:
    made = Pipelines(tmp_path)
    made.write(first=FIRST, second=SECOND)
    yield made
    made.kill()


def test_check_imports_functions_and_asks_the_store(pipes: Pipelines) -> None:
    assert pipes.call("check").stdout == "recipe.json: 2 links, 3 queues, no problem found.\n"
    pipes.write(first={**FIRST, "function": "steps:frist"}, second={**SECOND, "function": "stepz:second"})
    problems = json.loads(pipes.call("check", "--json", code=2).stdout)["problems"]
    assert [problem.partition(":")[0] for problem in problems] == ["links.first.function", "links.second.function"]
    pipes.write(first={**FIRST, "to": 3})
    said = pipes.call("check", code=2).stderr
    assert said == "recipe.json: links.first.to: must be a queue or a list of queues, got 3\n"


@pytest.mark.parametrize("command", ["show", "status"])
def test_no_module_beside_a_recipe_is_run_by_a_command_that_needs_no_function(
    pipes: Pipelines, tmp_path_factory: pytest.TempPathFactory, command: str
) -> None:
    text = f"open({str(pipes.folder / 'ran')!r}, 'w')\nraise ImportError"
    for name in ("steps", "sqlite3", "html", "statistics"):
        (pipes.folder / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", command, str(pipes.folder / "recipe.json")],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (pipes.folder / "ran").exists()


def test_show_draws_and_says_what_a_step_is(pipes: Pipelines) -> None:
    lines = pipes.call("show").stdout.splitlines()
    assert lines[0].startswith("recipe on sqlite:///")
    assert lines[1].startswith("  a -> [first] -> b    direct, one atomic move   steps:first")
    assert pipes.call("show", "--format", "mermaid").stdout.startswith("flowchart LR\n")
    assert pipes.call("show", "--format", "svg").stdout.startswith("<svg ")
    assert "direct, two steps under a unique key " in pipes.call("show", "--store", f"fsq:{pipes.folder}/root").stdout
    assert "--format must be text, mermaid, svg, got png" in pipes.call("show", "--format", "png", code=2).stderr


def test_run_until_empty_ends_when_all_queues_are_empty(pipes: Pipelines) -> None:
    pipes.push("a", *range(50))
    pipes.call("run", "--until-empty")
    assert pipes.payloads("c") == sorted(((number + 1) * 10 for number in range(50)), key=str)
    status = json.loads(pipes.call("status", "--json", "--interval", "0.1").stdout)
    assert [(row["link"], row["ready"], row["done"]) for row in status["links"]] == [
        ("first", 0, 50),
        ("second", 0, 50),
    ]
    assert status["queues"] == {"c": 50}


def test_what_each_link_has_done_is_shown_on_a_terminal(pipes: Pipelines) -> None:
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 80))
    pipes.push("a", 1, 2, 3)
    try:
        process = pipes.process = subprocess.Popen(
            **pipes.command("run"), stdout=end, stderr=end, start_new_session=True
        )
        shown = b""
        while not re.search(rb"first 3 \([0-9,]+/s\)  second 3 \([0-9,]+/s\)", shown):
            assert process.poll() is None
            assert select.select([terminal], [], [], END_S)[0], shown
            shown += os.read(terminal, 4096)
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0
        pipes.process = None
    finally:
        os.close(end)
        os.close(terminal)


def test_a_link_by_name_leaves_the_others_alone(pipes: Pipelines) -> None:
    pipes.start("--link", "first")
    pipes.push("a", 1)
    pipes.wait_for("b", 2)
    assert pipes.stop() == 0
    assert pipes.payloads("c") == []
    assert "--link must be one of first, second, got third" in pipes.call("run", "--link", "third", code=2).stderr


@pytest.mark.parametrize("processes", [(), ("--processes", "2")], ids=["alone", "supervised"])
def test_a_recipe_that_changes_is_followed_without_a_restart(pipes: Pipelines, processes: tuple[str, ...]) -> None:
    pipes.start(*processes)
    if processes:
        wait_until(lambda: [has_begun(pid) for pid in children(pipes)] == [True, True], END_S)
    pipes.push("a", 1)
    pipes.wait_for("c", 20)
    pipes.write(first=FIRST, second={**SECOND, "paused": True})
    count = 2 if processes else 1
    wait_until(
        lambda: [event["text"] for event in pipes.events("recipe")].count("Link second is paused.") == count, END_S
    )
    pipes.push("a", 2)
    pipes.wait_for("b", 3)
    pipes.write(first={"from": 3}, second=SECOND)
    wait_until(lambda: pipes.events("refused"), END_S)
    assert "links.first.from: must be a queue" in pipes.events("refused")[0]["text"]
    third = {"from": "c", "to": "d", "function": "steps:first", "takes": "payload"}
    pipes.write(second=SECOND, third=third)
    pipes.wait_for("d", 21, 31)
    said = "Link first was dropped. 0 jobs stay in 'a', those under way included."
    wait_until(lambda: [event["text"] for event in pipes.events("recipe")].count(said) == count, END_S)
    pipes.push("a", 3)
    pipes.push("b", 0)
    pipes.wait_for("d", 1, 21, 31)
    assert pipes.payloads("a") == [3]
    assert pipes.stop() == 0


def test_a_link_gets_processes_of_its_own_and_loses_them(pipes: Pipelines) -> None:
    def pids(what: str) -> set[str]:
        return {note.split()[-1] for note in pipes.notes() if note.startswith(what)}

    pipes.write(first=FIRST, second={**SECOND, "processes": 1})
    pipes.start()
    pipes.push("a", 1)
    pipes.wait_for("c", 20)
    assert pids("first").isdisjoint(pids("second"))
    pipes.write(hold={**HOLD, "concurrency": 1, "processes": 3})
    # The supervisor has three others then, and those of the old links have ended.
    wait_until(lambda: len(children(pipes)) == 3, END_S)
    pipes.push("a", 5, 6, 7)
    wait_until(lambda: len(pids("began")) == 3, END_S)  # one in each
    pipes.write(hold={**HOLD, "concurrency": 1, "processes": 1})
    assert pipes.process is not None
    pipes.process.send_signal(signal.SIGHUP)
    (pipes.folder / "go").touch()
    pipes.wait_for("b", 5, 6, 7)
    wait_until(lambda: len(children(pipes)) == 1, END_S)
    assert pipes.stop() == 0


def children(pipes: Pipelines) -> list[str]:
    assert pipes.process is not None
    pid = pipes.process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize("form", [("--store", "{}"), ("--store={}",)], ids=["two words", "one"])
def test_the_url_of_the_store_is_not_in_the_words_of_the_processes(pipes: Pipelines, form: tuple[str, ...]) -> None:
    url = f"sqlite:///{pipes.folder}/jobs.db?poll=0.0512"
    pipes.start(*(word.format(url) for word in form), "--processes", "2")
    # Two at once: one of them may be starting.
    wait_until(lambda: len([pid for pid in children(pipes) if has_begun(pid)]) == 2, END_S)
    for pid in children(pipes):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"recipe.json" in words
        assert b"sqlite" not in words
    assert pipes.stop() == 0


def has_begun(pid: str) -> bool:
    """Whether a process has read the recipe, and opened its store."""
    try:
        return any("jobs.db" in str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # a file that was closed meanwhile
        return False


def test_sigterm_lets_running_jobs_end(pipes: Pipelines) -> None:
    pipes.write(hold=HOLD)
    pipes.start()
    pipes.push("a", 1)
    wait_until(lambda: pipes.notes() != [], END_S)
    assert pipes.process is not None
    pipes.process.send_signal(signal.SIGTERM)
    wait_until(lambda: pipes.events("stopping"), END_S)
    (pipes.folder / "go").touch()
    assert pipes.end() == 0
    assert pipes.payloads("b") == [1]


def test_dead_letters_go_back_to_the_link_that_they_came_from(pipes: Pipelines) -> None:
    pipes.write(first={**FIRST, "function": "steps:fail", "max_tries": 1}, second=SECOND)
    pipes.push("a", 1, 2)
    pipes.call("run", "--until-empty")
    with blocking.connect(pipes.url) as store:
        assert {job.headers[FROM_QUEUE] for job in store.dead_letters().jobs()} == {"a"}
    pipes.write(first=FIRST, second=SECOND)
    assert pipes.call("redrive", "--link", "second").stdout == "0 jobs sent back.\n"
    assert pipes.call("redrive").stdout == "2 jobs sent back.\n"
    pipes.call("run", "--until-empty")
    assert pipes.payloads("c") == [20, 30]
