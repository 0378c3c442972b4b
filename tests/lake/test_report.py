"""The report: one file that opens offline, with 1 queue and with 200."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.lake.report import DEEPEST, ReportData, bucket_s, render, write
from tests.lake.conftest import NOON
from tests.processes import lacking

NAMES = ("wait_p50", "wait_p95", "wait_p99", "run_p50", "run_p95", "run_p99")


def report_data(queues: int, hours: int = 24) -> ReportData:
    """Return a made-up day: an hour in which the workers are away, and a queue whose jobs fail."""
    random_ = random.Random(queues)
    rates, depths, backlog = [], [], 0
    for number in range(hours * 12):
        time = NOON + timedelta(minutes=5 * number)
        added = int(300 + 200 * (1 + ((number % 288) - 144) / 144) + random_.randrange(60))
        acked = 0 if 100 <= number < 112 else min(added + backlog, 900)
        backlog += added - acked
        wait = 40 + backlog * 8
        run = 120 + random_.randrange(30)
        quantiles = (wait, wait * 3, wait * 4, run, run * 3, run * 6)
        counts = {"added": added, "started": acked, "acked": acked, "retried": acked // 40, "failed": acked // 200}
        rates.append({"time": time, **counts, "expired": 0, **dict(zip(NAMES, quantiles, strict=True))})
        depths += [
            {"time": time, "queue": f"queue-{one}", "depth": backlog // (one + 1)}
            for one in range(min(queues, DEEPEST))
        ]
    table = [
        {"queue": f"queue-{one}", "jobs": 9000 // (one + 1), "waiting": 3, "running": 1, "acked": 8900 // (one + 1)}
        | {"failed": 4, "retried": 17, "wait_p95": 900 * (one + 1), "run_p95": 420}
        for one in range(queues)
    ]
    error = {"queue": "queue-0", "error_class": "Timeout", "attempts": 412, "jobs": 300, "last_seen": NOON}
    slow = {"job": "D-10f25568-u+wC6z9ONxw1rM7hg1RCdmzM-ffff", "queue": "queue-0", "outcome": "acked", "run_ms": 93_000}
    stuck = {"job": "<b>j1</b>", "queue": "queue-0", "outcome": "running", "last_kind": "reserved", "last_event": NOON}
    worker = {
        "worker": "mail-1",
        "jobs": 51_000,
        "failures": 312,
        "busy_ms": 61_000_000,
        "busy_share": 0.71,
        "hours": 24,
    }
    return ReportData(
        NOON,
        NOON + timedelta(hours=hours),
        300,
        rates=rates,
        depths=depths,
        queues=table,
        errors=[
            {**error, "example": "Timeout: no answer from smtp.example.org"},
            {**error, "error_class": "Boom" * 20},
        ],
        slowest=[{**slow, "attempts": 2, "last_worker": "mail-1"}],
        stuck=[{**stuck, "attempts": 1, "last_worker": "mail-2"}],
        workers=[worker, {**worker, "worker": "mail-2", "busy_share": 0.64}],
        totals={"jobs": 143_812, "acked": 142_003, "open": 1_200, "failed": 609, "attempts": 151_320},
    )


@pytest.mark.parametrize("queues", [1, 200])
def test_the_file_loads_nothing_from_elsewhere(queues: int) -> None:
    page = render(report_data(queues))
    assert not re.findall(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//""", page)
    assert f"queue-{queues - 1}" in page
    assert len(page) < 2_000_000


def test_what_jobs_are_called_is_text_in_the_page() -> None:
    page = render(report_data(1))
    assert "<b>j1</b>" not in page
    assert "&lt;b&gt;j1&lt;/b&gt;" in page


def test_a_name_in_a_chart_can_not_end_the_script_that_draws_it() -> None:
    name = "</script><script>evil()</script>"
    depths = [{"time": NOON, "queue": name, "depth": 3}]
    errors = [{"queue": name, "error_class": name, "attempts": 1, "jobs": 1, "last_seen": NOON, "example": name}]
    page = render(ReportData(NOON, NOON, 60, depths=depths, errors=errors))
    assert "evil()" in page
    assert "<script>evil()" not in page


def test_a_lake_of_a_minute_and_without_errors_has_a_report() -> None:
    page = render(ReportData(NOON, NOON, 60))
    assert "No worker reported an error." in page


@pytest.mark.parametrize(
    ("hours", "seconds"), [(0, 60), (5, 60), (24, 300), (24 * 30, 3 * 3600), (24 * 400, 7 * 86400)]
)
def test_points_stand_for_more_time_in_a_longer_report(hours: int, seconds: int) -> None:
    found = bucket_s(timedelta(hours=hours))
    assert hours * 3600 / found <= 300 or found == 7 * 86400
    assert found >= min(seconds, found)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("queues", "theme"), [(1, "light"), (200, "dark")])
def test_a_browser_shows_the_charts_without_errors(tmp_path: Path, queues: int, theme: str) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        lacking("chromium")
    file = tmp_path / "report.html"
    write(report_data(queues), file)
    file.write_text(PROBE + file.read_text("utf-8"), "utf-8")
    dark = ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
    flags: list[Any] = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1240,1500", *dark]
    shown = subprocess.run(
        [browser, *flags, "--virtual-time-budget=20000", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert 'data-roots="6"' in shown.stdout
    assert "data-problem" not in shown.stdout


PROBE = """<!DOCTYPE html><script>
addEventListener("error", event => document.documentElement.dataset.problem = event.message);
addEventListener("load", () => setInterval(() => {
  document.documentElement.dataset.roots = Bokeh.documents[0].roots().length;
}, 100));
</script>
"""
