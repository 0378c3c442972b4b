"""Personal data leaves all tables, old versions, the log and raw segments; what can't be deleted yet is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CallerError
from penstock.events import Kind
from penstock.lake.build import build
from penstock.lake.fold import fold
from penstock.lake.forget import choose, forget
from penstock.lake.quality import checks
from penstock.lake.schemas import EVENTS
from penstock.lake.table import LakeTable
from tests.lake.conftest import Recorder
from tests.lake.test_fold import check_against_slow, rows
from tests.lake.test_vacuum import MIDDLE, old_lake, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def files_with(directory: Path, text: str) -> list[str]:
    """Return the files below a directory that have a text, however they are compressed."""
    import pyarrow.parquet

    found = []
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".parquet":
                data += repr(pyarrow.parquet.read_table(path, partitioning=None).to_pylist()).encode()
            if text.encode() in data:
                found.append(str(path.relative_to(directory)))
    return found


def test_no_trace_of_a_forgotten_job_is_left(spark: Any, events: Path, lake: Path) -> None:
    secret = "ann@example.com'; drop table jobs"
    recorder = Recorder(events)
    recorder.life(secret, MIDDLE)
    recorder.put(Kind.ADDED, secret + "/2", MIDDLE + 1, None)  # its creation is unknown
    recorder.writer.record(Kind.ADDED, secret, "mail", body=secret.encode(), error=secret)
    recorder.life("j1", MIDDLE)
    recorder.close()
    old_lake(spark, events, lake)
    run(spark, lake)  # small files are rewritten: old versions are left, and the day of `dead` is sealed
    open_one = Recorder(events, "node-9")
    open_one.put(Kind.ACKED, secret, MIDDLE + 9, MIDDLE, attempt=1)
    open_one.flush()
    build(spark, events, lake)

    quoted = secret.replace("'", "''")
    plan = choose(spark, lake, f"job like '{quoted}%' or job in (select job from dead)")
    assert (plan.jobs, plan.sample) == (3, (secret, f"{secret}/2", "dead"))
    done = forget(spark, lake, f"job like '{quoted}%' or job = 'dead'", events=events)
    assert (done.jobs, done.events) == (3, 6), "the events of `dead` had left before"
    assert done.left == ("1 raw segments with these jobs are still written to: vacuum deletes them later",)
    open_one.close()
    assert files_with(lake, "ann@example.com") == []
    assert [path for path in files_with(events, "ann@example.com") if "node-9" not in path] == []
    assert "dead" not in {row["job"] for row in rows(lake)}
    assert {row["job"] for row in rows(lake)} >= {"j1", "open"}
    assert not [one for one in checks(lake) if not one.is_ok and one.name not in ("depth", "lost")]
    again = fold(spark, lake, everything=True)
    assert again.commits, "and a fold brings nothing back"
    assert files_with(lake, "ann@example.com") == []
    assert forget(spark, lake, f"job = '{quoted}'").jobs == 0
    assert build(spark, events, lake).events == 0, "they are not read again"


def test_other_jobs_stay_as_they_were(spark: Any, events: Path, lake: Path, recorder: Recorder) -> None:
    for number in range(4):
        recorder.life(f"j{number}", number)
    recorder.close()
    build(spark, events, lake)
    fold(spark, lake)
    done = forget(spark, lake, "job = 'j1'")
    assert (done.jobs, done.events, done.segments) == (1, 3, 0)
    assert "not looked at: give --events" in done.left[0]
    assert sorted({row["job"] for row in rows(lake, EVENTS)}) == ["j0", "j2", "j3"]
    check_against_slow(lake)
    assert LakeTable(lake, EVENTS).snapshot().note["dropped"] == 3


@pytest.mark.parametrize(
    "where",
    ["", "job = 'j1'; drop table jobs", "nobody = 1", "job", "job = 'a' or", "job = 'a') or (true", "count(*) > 1"],
)
def test_what_is_no_condition_is_refused(spark: Any, lake: Path, where: str) -> None:
    LakeTable(lake, EVENTS).create()
    with pytest.raises(CallerError, match="--where must be a condition on the columns of jobs"):
        choose(spark, lake, where)
