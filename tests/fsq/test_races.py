"""Scanners and enqueuers as real processes on one directory: each item exactly once, also with originals beside us."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import fsq
from tests.fsq import programs
from tests.processes import wait_until

LONG = os.environ.get("PENSTOCK_LONG") == "1"
SCANNERS = 8
ITEMS = 5000
ROUNDS = 5
ORIGINAL = str(Path(__file__).with_name("original.py"))

OURS = """
import sys
from penstock import fsq
from tests.fsq.original import note, wait_for_all
wait_for_all(sys.argv[1])
while True:
    count = 0
    for item in fsq.scan("mail"):
        count += 1
        note(sys.argv[1], item.id, "ours")
        fsq.success(item)
    if not count:
        break
"""


def start_ours(log: Path) -> subprocess.Popen[bytes]:
    tree = str(Path(__file__).resolve().parents[2])
    environment = programs.environment()
    environment["PYTHONPATH"] += os.pathsep + tree
    return subprocess.Popen([sys.executable, "-c", OURS, str(log)], env=environment)


def start_original(root: Path, command: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, ORIGINAL, command, str(root), "mail", *words])


def run_all(log: Path, children: list[subprocess.Popen[bytes]]) -> None:
    """Let all begin at once, and wait for their end."""
    ready = Path(f"{log}.ready")
    wait_until(lambda: ready.exists() and len(ready.read_text().splitlines()) == len(children), seconds=120)
    Path(f"{log}.go").touch()
    assert [child.wait(240) for child in children] == [0] * len(children)


def runs(log: Path) -> Counter[tuple[str, str]]:
    """How often each kind of scanner ran each item."""
    return Counter(tuple(line.split(" ", 1)) for line in log.read_text().splitlines())  # type: ignore[misc]  # two words


def fill(root: Path, count: int) -> list[str]:
    made = [f"_20261115184212_{number}_1_web_0_{number}" for number in range(count)]
    for name in made:
        (root / "mail/queue" / name).touch()
    return made


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("turn", range(ROUNDS))
def test_each_item_is_run_exactly_once(root: Path, queue: str, tmp_path: Path, turn: int) -> None:
    made = fill(root, ITEMS)
    log = tmp_path / "log"
    run_all(log, [start_ours(log) for _ in range(SCANNERS)])
    assert runs(log) == Counter(("ours", name) for name in made)
    assert sorted(os.listdir(root / "mail/done")) == sorted(made)
    assert os.listdir(root / "mail/queue") == os.listdir(root / "mail/fail") == []
    assert os.listdir(root / "mail/attempts") == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("turn", range(5 if LONG else 2))
def test_beside_originals_ours_run_nothing_twice(
    root: Path, queue: str, tmp_path: Path, turn: int, record_property: Callable[[str, object], None]
) -> None:
    made = fill(root, 1000)
    log = tmp_path / "log"
    ours = [start_ours(log), start_ours(log)]
    run_all(log, [*ours, *(start_original(root, "scan", str(log)) for _ in range(2))])
    seen = runs(log)
    assert {who for who, _ in seen} == {"ours", "original"}, "both kinds were at work"
    assert all(count == 1 for (who, _), count in seen.items() if who == "ours")
    order = [line.split(" ", 1) for line in log.read_text().splitlines()]
    first = {name: who for who, name in reversed(order)}
    late = [name for who, name in order if who == "ours" and first[name] != "ours"]
    assert late == [], "ours ran what an original had"
    assert {name for _, name in seen} == set(made)
    assert sorted(os.listdir(root / "mail/done")) == sorted(made)
    reruns = sum(seen.values()) - len(made)
    record_property("reruns_by_originals", reruns)


def test_items_of_the_original_are_run_by_ours_and_the_other_way_round(root: Path, queue: str, tmp_path: Path) -> None:
    assert start_original(root, "enqueue", "20", "x").wait(60) == 0
    seen = {}
    for item in fsq.scan(queue):
        assert item.item is not None
        seen[item.arguments] = item.item.read()
        fsq.success(item)
    assert seen == {(f"x{number}",): b"x" for number in range(20)}
    name = fsq.senqueue(queue, "ours", "é_/")
    log = tmp_path / "log"
    run_all(log, [start_original(root, "scan", str(log))])
    assert runs(log) == Counter({("original", name): 1})
    assert (root / "mail/done" / name).read_bytes() == b"ours"


def test_an_original_that_holds_an_item_keeps_ours_away(root: Path, queue: str) -> None:
    import fcntl

    name = fsq.senqueue(queue, "x")
    with open(root / "mail/queue" / name) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert list(fsq.scan(queue)) == []
    assert [item.id for item in fsq.scan(queue)] == [name]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_scan_with_many_jobs_runs_each_item_once(root: Path, queue: str, tmp_path: Path) -> None:
    made = [fsq.senqueue(queue, "", number) for number in range(60)]
    log = tmp_path / "log"
    program = f'echo "$FSQ_ITEM_ID" >> {log}'
    children = [programs.start("scan", "-j", "4", "mail", "sh", "-c", program) for _ in range(2)]
    assert [child.wait(100) for child in children] == [0, 0]
    assert sorted(log.read_text().split()) == sorted(made)
    assert sorted(os.listdir(root / "mail/done")) == sorted(made)
