"""`penstock lake redrive`: each job of a plan is sent once, whenever the run is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from penstock import blocking
from penstock.cli.lake import _show_plan, run
from penstock.cli.output import EventPrinter
from penstock.events import EventWriter, Kind, Segment, list_segments
from penstock.lake import redrive
from penstock.lake.redrive import Chosen, Plan, Plans, Question, carry_out
from penstock.queues.blocking import Queue, Store, dead_letters
from tests.processes import NodeProcess, wait_until

DEAD_JOBS, ENDED_JOBS = 30, 20
BATCH = 4

Fill = Callable[[str], Plan]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "BATCH", BATCH)
    monkeypatch.setattr(dead_letters, "PAGE", BATCH)


@pytest.fixture
def fill(events: Path) -> Iterator[Fill]:
    """Make dead letters in a store, and bodies of ended jobs in segments; return a plan for all of them."""
    writer = EventWriter(events, "node-1")

    def make(url: str) -> Plan:
        with blocking.connect(url) as store:
            mail = store.queue("mail")
            dead = mail.push_many([{"dead": number} for number in range(DEAD_JOBS)])
            mail.push({"dead": "other"})
            while job := mail.reserve(timeout=0):
                job.fail("Timeout: no answer")
        jobs = [Chosen(job, "mail", "failed", "Timeout: no answer") for job in dead]
        for number in range(ENDED_JOBS):
            body = None if number == 0 else json.dumps({"ended": number}).encode()
            writer.record(Kind.ADDED, f"e{number}", "mail", body=body)
            jobs.append(Chosen(f"e{number}", "mail", "acked", None, (("node-1", writer.epoch, writer.seq - 1),)))
        writer.flush()
        writer.close()
        question = Question("true", url, "again", replay=True)
        return Plan(f"{question.digest}-1", question, jobs)

    yield make
    writer.close()


def payloads(store: Store, queue: str) -> list[Any]:
    return sorted((job.payload for job in store.queue(queue).jobs()), key=str)


EXPECTED = sorted(
    [{"dead": number} for number in range(DEAD_JOBS)] + [{"ended": number} for number in range(1, ENDED_JOBS)], key=str
)


def killed_at(step: str, times: int, plan: Plan, lake: Path, url: str, events: Path) -> bool:
    """Carry a plan out in a process that is killed right before a step, when it comes to it this often; whether it
    was."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def stopping(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                nonlocal count
                count += 1
                if count == times:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **named)

            return call

        try:
            owner: Any = Plans if step in ("note", "end") else Queue
            setattr(owner, step, stopping(getattr(owner, step)))
            with blocking.connect(url) as store:
                carry_out(plan, Plans(lake), store, events)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


STEPS = [("redrive", 1), ("note", 1), ("note", 3), ("push_many", 2), ("note", 2), ("end", 1)]


def run_and_kill(url: str, plan: Plan, lake: Path, events: Path, steps: list[tuple[str, int]]) -> list[Any]:
    """Carry a plan out, killed at each of the steps; return what is in the target queue in the end."""
    plans = Plans(lake)
    plans.write(plan)
    for step, times in steps:
        left = plans.unfinished(plan.question)
        assert left is not None
        assert killed_at(step, times, left, lake, url, events), (step, times)
    left = plans.unfinished(plan.question)
    assert left is not None
    with blocking.connect(url) as store:
        sent = carry_out(left, plans, store, events)
        assert [job.payload for job in store.dead_letters().jobs()] == [{"dead": "other"}]
        assert sent.without_body == ["e0"]
        assert plans.is_ended(plan)
        assert plans.unfinished(plan.question) is None
        return payloads(store, "again")


def test_a_run_that_is_killed_at_any_step_sends_each_job_once(
    fill: Fill, tmp_path: Path, lake: Path, events: Path
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    plan = fill(url)
    with blocking.connect(url) as store:
        assert store.dead_letters().moves_atomically("again")
        assert plan.promise(store) == "once"
        ids = {job.id for job in store.dead_letters().jobs()}
    steps = [("redrive", 1), ("note", 1), ("note", 3), ("push_many", 2), ("note", 2), ("end", 1)]
    assert run_and_kill(url, plan, lake, events, steps) == EXPECTED
    with blocking.connect(url) as store:
        assert len(ids & {job.id for job in store.queue("again").jobs()}) == DEAD_JOBS, "a move keeps the id"


def test_so_it_does_where_a_dead_letter_moves_in_two_steps(
    fill: Fill, tmp_path: Path, lake: Path, events: Path
) -> None:
    url = f"fsq:{tmp_path}/root"
    plan = fill(url)
    with blocking.connect(url) as store:
        assert not store.dead_letters().moves_atomically("again")
        assert plan.promise(store) == "once"
    steps = [("push_many", 1), ("remove", 1), ("note", 2), ("remove", 3), ("push_many", 8), ("note", 1), ("end", 1)]
    assert run_and_kill(url, plan, lake, events, steps) == EXPECTED


def test_a_store_without_keys_sends_at_least_once_and_says_so(
    fill: Fill, lake: Path, events: Path, shared_node: NodeProcess
) -> None:
    url = f"disque://127.0.0.1:{shared_node.port}"
    plan = fill(url)
    with blocking.connect(url) as store:
        assert plan.promise(store) == "at least once"
        # The job has another id among the dead letters, and its old one in a header.
        headers = [job.headers for job in store.dead_letters().jobs()]
        assert {one["x-dl-job"] for one in headers} >= {one.job for one in plan.jobs if one.is_dead}
        assert Plan("p", plan.question, [one for one in plan.jobs if one.is_dead]).promise(store) == "once"
    # Killed before the first push, when all dead letters have moved; then between a push and its note.
    found = run_and_kill(url, plan, lake, events, [("note", 3), ("push_many", 1), ("note", 1)])
    assert {str(one) for one in found} == {str(one) for one in EXPECTED}
    assert len(found) - len(EXPECTED) == BATCH, "the batch that was pushed, and not noted when it was killed"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_a_query_chooses_goes_back_or_is_pushed_again(
    spark: Any,
    tmp_path: Path,
    events: Path,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from penstock.cli import lake as commands
    from penstock.lake.build import build
    from penstock.lake.fold import fold

    def said(*words: str) -> tuple[int, list[str], str]:
        code = run(["redrive", "--lake", str(lake), *words])
        shown = capsys.readouterr()
        return code, shown.out.splitlines(), shown.err

    monkeypatch.setattr(commands, "_spark", lambda *_: nullcontext(spark))
    node = NodeProcess(tmp_path, appendonly="no", events_dir=events, events_bodies="64kb").start()
    url = f"disque://127.0.0.1:{node.port}"
    try:
        with blocking.connect(f"{url}?events={events}") as store:
            mail = store.queue("mail")
            jobs = mail.push_many([{"n": number} for number in range(6)])
            for job in mail.reserve_many(5, timeout=5):
                if job.payload["n"] < 3:
                    job.fail(f"Timeout: no answer {job.payload['n']}")
                else:
                    job.ack()
        with blocking.connect(url) as store:
            # The node writes the events of some milliseconds together, and the last ones may come in a second piece.
            wait_until(lambda: (count(events, Kind.ADDED), count(events, Kind.ACKED)) == (6 + 3, 2 + 3))
            build(spark, events, lake)
            fold(spark, lake)
            where = ["--store", url, "--where", "queue = 'mail' and (error like 'Timeout%' or outcome <> 'failed')"]
            code, lines, _ = said(*where, "--dry-run")
            assert code == 0
            assert re.fullmatch(
                r"Plan \w+-\d: 3 jobs, to the queues that they came from, each once if this is killed and started .*",
                lines[0],
            )
            assert sorted(lines[2:5]) == sorted(
                f"  such as {jobs[n]} of mail, failed: Timeout: no answer {n}" for n in range(3)
            )
            assert [lines[1], *lines[5:]] == [
                "  3 failed of mail: Timeout",
                "  Left alone: 1 that wait or run.",
                "  Left out: 2 that ended otherwise; --replay sends those, too.",
            ]
            assert not (lake / "_redrive").exists()
            code, lines, _ = said(*where, "--to", "again")
            assert (code, lines[-1]) == (0, "3 dead letters moved, 0 jobs pushed again.")
            assert payloads(store, "again") == [{"n": 0}, {"n": 1}, {"n": 2}]
            assert store.dead_letters().total() == 0
            code, lines, _ = said(*where, "--to", "again")
            assert lines[-1].endswith("was carried out before, and the lake has not changed since: nothing is sent.")

            # Without the directory of events there are no bodies; without a dead letter there is nothing to move.
            code, lines, complaint = said(*where, "--to", "more", "--replay", "--json")
            assert code == 1
            plan, end, *warnings = [json.loads(line) for line in lines]
            assert (plan["jobs"], plan["kept_out"], plan["promise"]) == (5, 0, "at least once")
            assert (end["moved"], end["pushed"], end["gone"], end["without_body"]) == (0, 0, 3, 2)
            assert [one["text"].partition(" (")[0] for one in warnings] == ["3 jobs were", "2 jobs were"]
            code, lines, complaint = said(*where, "--to", "other", "--replay", "--events", str(events))
            assert (code, lines[-1]) == (1, "0 dead letters moved, 2 jobs pushed again.")
            assert "not among the dead letters any more" in complaint
            assert payloads(store, "other") == [{"n": 3}, {"n": 4}]
    finally:
        node.kill()


def count(events: Path, kind: Kind) -> int:
    return sum(list(Segment(file.path).read().kind).count(kind) for file in list_segments(events))


def test_a_plan_shows_names_and_errors_that_control_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [Chosen("\x1b]0;title\x07", "a\nqueue", "failed", "E\x9b2J: no")]
    _show_plan(EventPrinter(), Plan("plan", Question("true", "memory:"), jobs), "once")
    said = capsys.readouterr().out
    assert "1 failed of a\\nqueue: E\\x9b2J" in said
    assert "such as \\x1b]0;title\\x07 of a\\nqueue" in said
