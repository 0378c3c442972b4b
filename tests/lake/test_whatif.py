"""`penstock lake whatif`: its waits beside those of days whose waits are known."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.cli.lake import run
from penstock.errors import CallerError
from penstock.lake.schemas import ATTEMPTS, EVENTS
from penstock.lake.table import LakeTable
from penstock.lake.whatif import Day, quantile, read_day, recorded, simulate
from penstock.lake.writing import stats_of
from tests.lake.conftest import NOON

SECOND = 1_000_000
MEAN_RUN_S = 0.4


def seeded_day(load: float, workers: int, jobs: int = 40_000, seed: int = 7) -> Day:
    """Return a day of Poisson arrivals and exponential run times that keep workers busy for a share of the time."""
    random_ = random.Random(seed)
    day = Day(NOON.date(), None)
    at = 0.0
    for _ in range(jobs):
        at += random_.expovariate(load * workers / MEAN_RUN_S)
        day.ready.append(int(at * SECOND))
        day.run.append(int(random_.expovariate(1 / MEAN_RUN_S) * SECOND))
        day.pause.append(None)
        day.waited.append(0)
    return day


def erlang_p95_s(load: float, workers: int) -> float:
    """Return the 95th percentile of the wait that the theory of queues gives (M/M/c)."""
    offered = load * workers
    terms = [offered**number / math.factorial(number) for number in range(workers)]
    last = offered**workers / math.factorial(workers) / (1 - load)
    waits = last / (sum(terms) + last)
    return max(0.0, math.log(waits / 0.05) * MEAN_RUN_S / (workers * (1 - load)))


@pytest.mark.parametrize(("load", "workers"), [(0.52, 2), (0.7, 4), (0.8, 8), (0.9, 4), (0.93, 2)])
def test_its_p95_is_that_of_the_theory(load: float, workers: int) -> None:
    found = simulate(seeded_day(load, workers, 100_000), workers)
    truth_ms = erlang_p95_s(load, workers) * 1000
    assert abs(found.wait_p95_ms - truth_ms) <= max(0.15 * truth_ms, 50), (found, truth_ms)
    assert found.busy_share == pytest.approx(load, rel=0.03)
    assert found.doubt == ""


@pytest.mark.parametrize(("load", "word"), [(0.2, "below 50%"), (0.97, "above 95%"), (1.5, "grow while jobs come")])
def test_outside_of_what_was_compared_it_says_so(load: float, word: str) -> None:
    found = simulate(seeded_day(load, 4), 4)
    assert word in found.doubt


def test_a_retry_comes_as_long_after_the_failed_delivery_as_it_did() -> None:
    # Two jobs; the first one fails after 10 s and is ready again 5 s later.
    day = Day(NOON.date(), None, [0, 20, 1], [10, 3, 4], [None, 5, None], [0, 0, 0])
    assert simulate(day, 1)._replace(load=0) == (1, 3, 0.0, 0.009, 17 / 18, 0)  # 0 to 10, 10 to 14, 15 to 18
    assert simulate(day, 2).wait_p95_ms == 0
    with pytest.raises(CallerError, match="workers must be 1 to 100000, got 0"):
        simulate(day, 0)


def test_quantiles_are_values_that_were_seen() -> None:
    assert [quantile([3, 1, 2, 4], share) for share in (0.25, 0.5, 0.95, 1)] == [1, 2, 4, 4]
    assert quantile([], 0.5) == 0


Deliveries = list[tuple[str, int, float, float, float | None]]


def write_attempts(lake: Path, deliveries: Deliveries) -> None:
    """Commit a table of attempts as a fold does, without Spark: job, attempt, ready, started and ended after noon."""
    table = LakeTable(lake, ATTEMPTS)
    table.create()
    LakeTable(lake, EVENTS).create()

    def time(seconds: float | None) -> Any:
        return None if seconds is None else NOON + timedelta(seconds=seconds)

    rows = [
        dict.fromkeys(ATTEMPTS.names)
        | {"job": job, "round": 0, "queue": "mail", "attempt": attempt, "ready": time(ready), "started": time(started)}
        | {"ended": time(ended), "hour": "x"}
        for job, attempt, ready, started, ended in deliveries
    ]
    file = table.path / "_staging" / "x" / "hour=x" / "part-0.parquet"
    file.parent.mkdir(parents=True)
    schema = ATTEMPTS.arrow().remove(len(ATTEMPTS.names) - 1)
    pa.parquet.write_table(pa.Table.from_pylist(rows, schema), file)
    stats = json.dumps(stats_of(pa.parquet.read_metadata(file)))
    action = table._publish(file, file.parents[1], stats)
    table.commit(table.snapshot(), [action], {"kind": "fold"})


def as_it_happened(arrivals: list[tuple[float, float]], workers: int) -> Deliveries:
    """Serve jobs in the order in which they come, worker by worker: what events would say of such a day."""
    free = [0.0] * workers
    found: Deliveries = []
    for number, (at, length) in enumerate(arrivals):
        worker = min(range(workers), key=free.__getitem__)
        start = max(at, free[worker])
        free[worker] = start + length
        found.append((f"j{number:06}", 1, at, start, start + length))
    return found


def whatif(*words: str) -> tuple[int, list[Any], str]:
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", "lake", "whatif", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/nowhere", "PYTHONPATH": str(root / "src")},
    )
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()], ended.stderr


def test_a_day_with_other_workers_waits_as_that_day_would_have(lake: Path) -> None:
    day = seeded_day(0.45, 8, 4000)  # of 8 workers; 4 are busy for 90 % of the time
    arrivals = [(ready / SECOND, run / SECOND) for ready, run in zip(day.ready, day.run, strict=True)]
    write_attempts(lake, [*as_it_happened(arrivals, 8), ("running", 1, 5.0, 6.0, None)])
    truth = sorted(start - ready for _, _, ready, start, _ in as_it_happened(arrivals, 4))
    code, lines, complaint = whatif("--lake", str(lake), "--workers", "8", "--workers", "4", "--json")
    assert (code, complaint) == (0, "")
    was, eight, four = lines
    assert (was["day"], was["deliveries"], was["left_out"]) == ("2026-03-10", 4000, 1)
    assert eight["wait_p95_ms"] == pytest.approx(was["wait_p95_ms"], abs=1)
    assert four["wait_p95_ms"] == pytest.approx(truth[int(0.95 * len(truth)) - 1] * 1000, abs=1)
    assert four["busy_share"] == pytest.approx(0.9, rel=0.05)
    assert "below 50%" in eight["doubt"]
    assert four["doubt"] is None


def test_people_read_a_table_and_what_is_wrong(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_attempts(lake, [("j1", 1, 1.0, 2.0, 3.0), ("j2", 1, 1.0, 3.0, 4.0), ("running", 1, 5.0, 6.0, None)])
    where = ["whatif", "--lake", str(lake), "--workers", "1"]
    assert run([*where, "--workers", "2", "--queue", "mail"]) == 0
    shown, complaint = capsys.readouterr()
    assert [line.split("\t") for line in shown.splitlines()] == [
        ["as it was", "1.0 s", "2.0 s", ""],
        ["1 worker", "0 ms", "1.0 s", "100%"],
        ["2 workers", "0 ms", "0 ms", "100%"],
    ]
    assert complaint.splitlines()[-1] == "Deliveries left out, as they have not ended or have no start: 1."
    with pytest.raises(CallerError, match="must have deliveries that ended, got none of sms on 2026-03-10"):
        run([*where, "--queue", "sms"])
    with pytest.raises(CallerError, match="--day must be a day such as 2026-11-18, got 'soon'"):
        run([*where, "--day", "soon"])


def test_a_day_begins_with_what_was_under_way_and_does_not_count_it(lake: Path) -> None:
    midnight = (datetime(2026, 3, 11, tzinfo=UTC) - NOON).total_seconds()
    write_attempts(
        lake,
        [
            ("long", 1, 100.0, 101.0, midnight + 10),  # since the day before: it has one worker until 00:00:10
            ("first", 1, midnight + 1, midnight + 10, midnight + 12),
            ("gone", 1, 5.0, 6.0, 7.0),
        ],
    )
    day = read_day(lake, date(2026, 3, 11))
    assert simulate(day, 1)[:4] == (1, 1, pytest.approx(9000.0), pytest.approx(9000.0))
    assert simulate(day, 2)[:4] == (2, 1, 0.0, 0.0)
    assert recorded(day) == pytest.approx((9000.0, 9000.0))
