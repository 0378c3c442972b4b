"""`penstock lake settle`: ends that no program recorded, as the store tells them; and nothing that it doesn't tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import blocking
from penstock.errors import CallerError, ConnectionLost
from penstock.events import EventWriter, Kind, Segment, list_segments
from penstock.lake.build import build
from penstock.lake.fold import fold
from penstock.lake.schemas import ATTEMPTS, JOBS
from penstock.lake.settle import settle
from penstock.lake.table import LakeTable
from penstock.queues.blocking import Store
from tests.conftest import StartNode
from tests.lake.test_fold import check_against_slow
from tests.processes import meet
from tests.stores.harness import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NO_TIME = timedelta(0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def recording(url: str, events: Path) -> Iterator[Store]:
    with blocking.connect(url, events=str(events)) as store:
        yield store


def rows(lake: Path, schema: Any = JOBS) -> dict[str, dict[str, Any]]:
    table = LakeTable(lake, schema)
    return {row["job"]: row for row in table.arrow(table.snapshot().files).to_pylist()}


def brought_up(spark: Any, events: Path, lake: Path) -> dict[str, tuple[str, str]]:
    build(spark, events, lake)
    fold(spark, lake)
    check_against_slow(lake)
    return {job: (row["outcome"], row["last_kind"]) for job, row in rows(lake).items()}


def recorded(events: Path) -> list[tuple[str, str | None]]:
    """Return what settling has recorded."""
    found = []
    for file in list_segments(events):
        if file.writer == "settle":
            columns = Segment(file.path).read()
            found += [(Kind(kind).name.lower(), job) for kind, job in zip(columns.kind, columns.job, strict=True)]
    return found


def test_ends_of_a_program_without_events_are_settled_by_a_look(
    spark: Any, url: str, events: Path, lake: Path, recording: Store
) -> None:
    mail = recording.queue("mail")
    done, dead, there, waits, taken = (mail.push({"n": number}) for number in range(5))
    later = mail.push({}, delay=3600)
    ours = mail.reserve(timeout=0)  # recorded: a delivery whose end is not
    assert ours is not None
    assert ours.id == done
    with blocking.connect(url) as foreign:  # records nothing
        jobs = {job.id: job for job in foreign.queue("mail").reserve_many(4, timeout=0)}  # `there` stays reserved
        jobs[dead].fail("Boom: x")
        jobs[waits].nack()
        jobs[taken].ack()
        foreign.queue("mail").ack_by_token(done, ours.token or "")
    outcomes = brought_up(spark, events, lake)
    assert {job: outcome for job, (outcome, _) in outcomes.items()} == {
        **dict.fromkeys((dead, there, waits, taken, later), "waiting"),
        done: "running",
    }

    found = settle(lake, events, url, quiet=NO_TIME, dry_run=True)
    assert recorded(events) == []
    found = settle(lake, events, url, quiet=NO_TIME)
    assert (found.present, found.failed, found.gone, found.elsewhere) == (3, 1, 2, 0)
    assert sorted(recorded(events)) == sorted([("failed", dead), ("gone", done), ("gone", taken)])
    again = settle(lake, events, url, quiet=NO_TIME)  # before a build
    assert (again.present, again.ends) == (3, 0)
    build(spark, events, lake)
    again = settle(lake, events, url, quiet=NO_TIME)  # built, and not folded
    assert (again.present, again.ends) == (3, 0)

    outcomes = brought_up(spark, events, lake)
    assert (outcomes[done], outcomes[taken], outcomes[dead]) == (("gone", "gone"),) * 2 + (("failed", "failed"),)
    assert [outcomes[job][0] for job in (there, waits, later)] == ["waiting"] * 3
    attempt = rows(lake, ATTEMPTS)[done]
    assert (attempt["outcome"], attempt["ended"], attempt["run_ms"]) == ("gone", None, None)
    assert rows(lake)[dead]["last_error"] == "Boom: x"
    assert settle(lake, events, url, quiet=NO_TIME).ends == 0
    assert len(recorded(events)) == 3


def test_jobs_of_other_stores_and_recent_ones_are_left_alone(
    spark: Any, tmp_path: Path, events: Path, lake: Path, recording: Store, url: str
) -> None:
    recording.queue("mail").push({})
    other = f"sqlite:///{tmp_path}/other.db"
    with blocking.connect(other) as store:
        store.queue("mail").push({})
    build(spark, events, lake)
    fold(spark, lake)
    found = settle(lake, events, url)
    assert (found.recent, found.present, found.elsewhere) == (1, 0, 0)
    found = settle(lake, events, other, quiet=NO_TIME)
    assert (found.elsewhere, found.present, found.ends) == (1, 0, 0)
    assert found.names == {f"sqlite:{tmp_path}/jobs.db"}
    words = ["--lake", str(lake), "--events", str(events), "--store", other, "--quiet-for", "0s"]
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", "lake", "settle", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["elsewhere"] == 1
    assert "use the same URL" in ended.stderr
    with pytest.raises(CallerError, match="doesn't exist"):
        settle(lake, events, f"sqlite:///{tmp_path}/nowhere.db", quiet=NO_TIME)
    assert recorded(events) == []


def test_a_job_that_one_look_misses_is_not_gone(
    spark: Any, events: Path, lake: Path, recording: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording.queue("mail").push({})
    build(spark, events, lake)
    fold(spark, lake)
    scan_parts = Store.scan_parts
    looks: list[int] = []

    def blind_at_first(self: Store, *words: Any) -> Any:  # as if the job changed its queue just then
        looks.append(1)
        return [] if len(looks) == 1 else scan_parts(self, *words)

    monkeypatch.setattr(Store, "scan_parts", blind_at_first)
    assert settle(lake, events, url, quiet=NO_TIME).present == 1
    assert len(looks) == 2


def test_a_store_that_can_not_be_seen_whole_settles_nothing(
    spark: Any, events: Path, lake: Path, recording: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording.queue("mail").push({})
    with blocking.connect(url) as foreign:
        foreign.queue("mail").pop()
    build(spark, events, lake)
    fold(spark, lake)
    names_in_events = Store.names_in_events
    calls: list[int] = []

    def away_after_the_look(self: Store) -> frozenset[str]:
        calls.append(1)
        if len(calls) > 1:
            raise ConnectionLost("a node is away")
        return names_in_events(self)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "names_in_events", away_after_the_look)
        with pytest.raises(ConnectionLost):
            settle(lake, events, url, quiet=NO_TIME)
    assert recorded(events) == []
    assert settle(lake, events, url, quiet=NO_TIME).gone == 1


def test_what_comes_late_overrules_gone(spark: Any, events: Path, lake: Path, recording: Store, url: str) -> None:
    mail = recording.queue("mail")
    expired, acked, alive = (mail.push({"n": number}) for number in range(3))
    with blocking.connect(url) as foreign:
        assert len(list(foreign.queue("mail").pop_many(3))) == 3
    build(spark, events, lake)
    fold(spark, lake)
    before = datetime.now(UTC)
    assert settle(lake, events, url, quiet=NO_TIME).gone == 3
    writer = EventWriter(events, "late")
    when = {expired: (Kind.EXPIRED, -1), acked: (Kind.ACKED, 60), alive: (Kind.QUEUED, 60)}
    for job, (kind, seconds) in when.items():
        at = int((before + timedelta(seconds=seconds)).timestamp() * 1e6)
        writer.record(kind, job, "mail", at=at, attempt=1)
    assert writer.close()
    outcomes = brought_up(spark, events, lake)
    assert [outcomes[job][0] for job in (expired, acked, alive)] == ["expired", "acked", "waiting"]


@pytest.mark.system
@pytest.mark.parametrize("kind", ["disque", "mongodb+ps"])
def test_servers_tell_what_they_keep(
    spark: Any, events: Path, lake: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """A dead letter of a broker has another id; MongoDB with history keeps what has ended, but not how."""
    if kind == "disque":
        url = f"disque://127.0.0.1:{request.getfixturevalue('shared_node').port}"
    else:
        url = request.getfixturevalue("mongo_server").url(kind, f"settle{os.getpid()}")
    with blocking.connect(url, events=str(events)) as store:
        done, dead, there = (store.queue("mail").push({"n": number}) for number in range(3))
    with blocking.connect(url) as foreign:
        jobs = {job.id: job for job in foreign.queue("mail").reserve_many(3, timeout=PATIENCE)}
        jobs[done].ack()
        jobs[dead].fail("Boom: x")
        build(spark, events, lake)
        fold(spark, lake)
        found = settle(lake, events, url, quiet=NO_TIME)
        assert (found.present, found.failed, found.gone) == (1, 1, 1)
        assert sorted(recorded(events)) == sorted([("failed", dead), ("gone", done)])
        outcomes = brought_up(spark, events, lake)
        assert [outcomes[job][0] for job in (done, dead, there)] == ["gone", "failed", "waiting"]
        jobs[there].ack()


@pytest.mark.system
def test_a_cluster_must_be_there_as_a_whole(start_node: StartNode) -> None:
    nodes = [start_node(appendonly="no") for _ in range(2)]
    meet(*nodes)
    with blocking.connect(f"disque://127.0.0.1:{nodes[0].port}") as store:
        names = store.names_in_events()
        assert {node.call("CLUSTER", "MYID").decode() for node in nodes} < names
        away = nodes[1].call("CLUSTER", "MYID").decode()
        nodes[1].kill()
        with pytest.raises(ConnectionLost, match=f"as each may have jobs that no other has; {away} did not"):
            store.names_in_events()
