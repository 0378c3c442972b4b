"""`penstock why`: what it finds in segments, tables and stores, as a process of its own, without a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import blocking
from penstock.errors import CallerError
from penstock.events import Kind
from penstock.lake.why import collect
from tests.lake.conftest import Recorder
from tests.processes import NodeProcess
from tests.servers import MongoServer


def why(*words: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", "why", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/nowhere"} | _python_path(),
    )
    return ended.returncode, ended.stdout + ended.stderr


def _python_path() -> dict[str, str]:
    return {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}


def test_raw_segments_alone_tell_a_story(events: Path, recorder: Recorder) -> None:
    recorder.life("j1", 0)
    long_id = "i" * 50  # longer than a record has room for
    recorder.put(Kind.ADDED, long_id, 5, size=3)
    recorder.close()
    code, said = why("j1", "--events", str(events))
    assert code == 0
    assert said.startswith("Job j1 of mail is done: w1 acknowledged it at 2026-03-10 12:00:03Z, after 2.0 s of work.\n")
    assert [line.split("  ")[2].split(",")[0] for line in said.splitlines()[1:]] == [
        "added to mail",
        "reserved by w1 at node-1",
        "acknowledged by w1",
    ]
    assert "added to mail, 3 bytes" in why(long_id, "--events", str(events))[1]


def test_an_id_that_is_part_of_another_id_is_not_that_job(events: Path, recorder: Recorder) -> None:
    recorder.life("j11", 0)
    recorder.close()
    code, said = why("j1", "--events", str(events))
    assert (code, said) == (1, "Job j1 is unknown: the events could know it. Check the id.\n")


def test_words_that_are_not_utf_8_are_refused_in_a_sentence(events: Path) -> None:
    for job, lake in (("\udcff", str(events)), ("j1", f"{events}\udcff")):
        with pytest.raises(CallerError, match="must be text"):
            collect(job, lake=lake, events=str(events))


def test_the_store_alone_tells_where_a_job_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with blocking.connect(url) as store:
        queue = store.queue("mail")
        waiting = queue.push({"to": "ann"})
        later = queue.push({"to": "bob"}, delay=3600)
        queue.pause()
    text = "without events its past is not known. Its queue is paused."
    assert why(waiting, "--store", url) == (0, f"Job {waiting} of mail waits for a worker; {text}\n")
    code, said = why(later, "--store", url)
    assert code == 0
    assert said.startswith(f"Job {later} of mail waits for its time until ")
    assert why("nope", "--store", url)[0] == 1


def test_a_store_finds_a_dead_letter_that_got_another_id(shared_node: NodeProcess) -> None:
    url = f"disque://127.0.0.1:{shared_node.port}"
    with blocking.connect(url) as store:
        queue = store.queue("mail")
        queue.push({"to": "ann"})
        job = queue.reserve(timeout=5)
        assert job is not None
        job.fail("Boom: x")
    code, said = why(job.id, "--store", url)
    assert code == 0
    assert said.startswith(f"Job {job.id} of __deadletter__ is dead: Boom: x; `penstock redrive` sends it back;")


def test_a_store_with_history_has_jobs_that_have_ended(mongo_server: MongoServer) -> None:
    url = mongo_server.url("mongodb+ps", f"why{os.getpid()}")
    with blocking.connect(url) as store:
        store.queue("mail").push({"to": "ann"})
        job = store.queue("mail").reserve(timeout=5)
        assert job is not None
        job.ack()
    code, said = why(job.id, "--store", url)
    text = "has ended, and its store keeps it for a while; without events its past is not known."
    assert (code, said) == (0, f"Job {job.id} of mail {text}\n")


def test_a_store_that_lost_the_job_contradicts_the_events(tmp_path: Path, events: Path, recorder: Recorder) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with blocking.connect(url) as store:
        store.queue("mail").push({})
    recorder.put(Kind.ADDED, "gone", 0)
    recorder.close()
    code, said = why("gone", "--events", str(events), "--store", url)
    assert code == 0
    assert "Job gone of mail has ended, and no event says how" in said


def test_it_needs_a_place_to_look(events: Path) -> None:
    assert why("j1") == (2, "penstock: penstock why needs --lake, --events or --store: where to look for the job\n")
    code, said = why("j1", "--events", str(events / "none"))
    assert (code, said) == (2, f"penstock: the directory of events must exist, got {events / 'none'}\n")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tables_tell_the_story_and_segments_what_is_newer(
    spark: Any, events: Path, lake: Path, recorder: Recorder
) -> None:
    from penstock.lake.build import build

    recorder.put(Kind.ADDED, "j1", 0, size=10)
    recorder.close()
    build(spark, events, lake)
    code, said = why("j1", "--lake", str(lake))
    assert code == 0
    assert "waits for a worker since 2026-03-10 12:00:00Z" in said
    assert "The lake ends at 2026-03-10 12:00:00Z" in said
    second = Recorder(events)
    second.put(Kind.ACKED, "j1", 3, attempt=1, worker="w2")
    second.close()
    code, said = why("j1", "--lake", str(lake), "--events", str(events))
    assert said.startswith(
        "Job j1 of mail is done: w2 acknowledged it at 2026-03-10 12:00:03Z.\nThe lake is 1 event behind"
    )
