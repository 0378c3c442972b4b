"""`penstock worker` as real processes on real stores: killed in every state, stopped, replaced.

P9: deaths of workers count as tries. P1: nothing is lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from penstock import blocking
from penstock.job import JobState
from penstock.queues.dead_letter import ERROR
from penstock.worker.supervisor import EXIT_REPLACE, Supervisor
from tests.processes import wait_until
from tests.server_fixtures import store_url
from tests.servers import RedisServer
from tests.worker_process import WorkerProcess

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

KINDS = ("sqlite", "redis+oq", "postgresql", "disque")
LEASE_S = "1.5"  # as short as a busy machine allows
_numbers = count(1)


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Callable[[str], WorkerProcess]]:
    """Make workers for a queue that no other test uses; all are ended with the test."""
    workers: list[WorkerProcess] = []
    queue = f"work-{os.getpid()}-{next(_numbers)}"
    (tmp_path / "worker").mkdir()

    def make(url: str) -> WorkerProcess:
        workers.append(WorkerProcess(tmp_path / "worker", url, queue))
        return workers[-1]

    yield make
    for worker in workers:
        # One that sees to others lets them end when it goes.
        if worker.process is not None:
            worker.process.terminate()
            worker.process.terminate()
        worker.kill()


def push(worker: WorkerProcess, *payloads: object) -> None:
    with blocking.connect(worker.url) as store:
        store.queue(worker.queue).push_many(payloads)


def left(worker: WorkerProcess, queue: str | None = None) -> list[tuple[object, int, JobState]]:
    """Payloads, tries and states of what is in a queue."""
    with blocking.connect(worker.url) as store:
        jobs = store.queue(queue or worker.queue).peek(100, state=None)
        return sorted((job.payload, job.tries, job.state) for job in jobs)


def dead(worker: WorkerProcess) -> list[tuple[object, str]]:
    """Payloads and errors of the dead letters."""
    with blocking.connect(worker.url) as store:
        jobs = store.queue(worker.dead_letters).peek(100)
        return sorted(((job.payload, job.headers[ERROR]) for job in jobs), key=str)


def total(worker: WorkerProcess) -> int:
    with blocking.connect(worker.url) as store:
        return store.queue(worker.queue).total()


def test_until_empty_runs_all_and_ends(url: str, work: Callable[[str], WorkerProcess]) -> None:
    worker = work(url)
    push(worker, *range(200))
    assert worker.start("quick", "--until-empty").end() == 0
    assert sorted(int(note.payload) for note in worker.notes("done")) == list(range(200))
    assert [event["done"] for event in worker.events("stop")] == [200]
    assert total(worker) == 0


def test_a_job_wakes_a_worker_that_waits(url: str, work: Callable[[str], WorkerProcess]) -> None:
    worker = work(url).start("quick")
    wait_until(lambda: worker.events("start"))
    push(worker, "a")
    worker.wait_for("done", 1)
    push(worker, "b")
    worker.wait_for("done", 2)
    assert worker.stop() == 0


def test_kill_9_of_a_worker_brings_back_what_ran_and_what_waited_there(
    url: str, work: Callable[[str], WorkerProcess]
) -> None:
    worker = work(url)
    push(worker, "runs", "waits")
    worker.start("hold", "--lease", LEASE_S, "--concurrency", "1", "--prefetch", "1")
    (began,) = worker.wait_for("began", 1)
    wait_until(lambda: [state for *_, state in left(worker)] == [JobState.RESERVED] * 2)
    worker.kill()
    other = work(url).start("quick")
    done = other.wait_for("done", 2)
    assert other.stop() == 0
    assert sorted((note.payload, note.tries) for note in done) == [("runs", 1), ("waits", 0)]
    assert began.pid not in {note.pid for note in done}
    assert total(other) == 0


def test_kill_9_before_the_ack_runs_the_job_again(url: str, work: Callable[[str], WorkerProcess]) -> None:
    worker = work(url)
    push(worker, "a")
    worker.start("die_before_ack", "--lease", LEASE_S)
    assert worker.end() == -signal.SIGKILL
    other = work(url).start("quick")
    done = other.wait_for("done", 2)
    assert [note.tries for note in done] == [0, 1]
    assert other.stop() == 0


def test_kill_9_after_the_ack_runs_nothing_again(url: str, work: Callable[[str], WorkerProcess]) -> None:
    worker = work(url)
    push(worker, "a")
    worker.start("die_after_ack", "--lease", LEASE_S)
    assert worker.end() == -signal.SIGKILL
    wait_until(lambda: total(worker) == 0)
    assert len(worker.notes("done")) == 1


def test_leases_are_kept_in_a_long_run(url: str, work: Callable[[str], WorkerProcess]) -> None:
    worker = work(url)
    push(worker, "long")
    worker.start("hold_plain", "--lease", LEASE_S)
    worker.wait_for("began", 1)
    # Another worker would be given it the moment its lease ends.
    with blocking.connect(url) as store:
        assert store.queue(worker.queue).reserve(2.5 * float(LEASE_S)) is None
    worker.let_go()
    worker.wait_for("done", 1)
    assert worker.stop() == 0
    assert (len(worker.notes("began")), total(worker)) == (1, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_ends_what_it_runs_and_returns_the_rest(
    url: str, number: signal.Signals, work: Callable[[str], WorkerProcess]
) -> None:
    worker = work(url)
    push(worker, "runs", "waits")
    worker.start("hold", "--concurrency", "1", "--prefetch", "1")
    worker.wait_for("began", 1)
    wait_until(lambda: [state for *_, state in left(worker)] == [JobState.RESERVED] * 2)
    worker.signal(number)
    # What waits is free again while the other still runs.
    wait_until(lambda: ("waits", 0, JobState.READY) in left(worker))
    worker.let_go()
    assert worker.end() == 0
    assert [note.payload for note in worker.notes("done")] == ["runs"]
    assert left(worker) == [("waits", 0, JobState.READY)]


@pytest.mark.parametrize("function", ["hold", "hold_plain"])
def test_what_does_not_end_in_time_goes_back_at_once(
    url: str, function: str, work: Callable[[str], WorkerProcess]
) -> None:
    worker = work(url)
    push(worker, "long")
    worker.start(function, "--shutdown-timeout", "0.1", "--backoff", "1000")
    worker.wait_for("began", 1)
    assert worker.stop() == 0
    assert left(worker) == [("long", 1, JobState.READY)]
    assert [event["returned"] for event in worker.events("stop")] == [1]


def test_a_process_ends_though_its_handler_will_not(tmp_path: Path, work: Callable[[str], WorkerProcess]) -> None:
    worker = work(f"sqlite:///{tmp_path}/jobs.db")
    push(worker, "long")
    worker.start("hold_on", "--shutdown-timeout", "0.1")
    worker.wait_for("began", 1)
    assert worker.stop() == 0
    assert left(worker) == [("long", 1, JobState.READY)]
    assert [event["returned"] for event in worker.events("stop")] == [1]


def test_a_second_signal_ends_the_worker_at_once(url: str, work: Callable[[str], WorkerProcess]) -> None:
    worker = work(url)
    push(worker, "long")
    worker.start("hold", "--shutdown-timeout", "1000")
    worker.wait_for("began", 1)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.events("stopping"))
    assert worker.stop() == 0
    assert left(worker) == [("long", 1, JobState.READY)]


def test_a_poison_job_ends_in_the_dead_letters(url: str, work: Callable[[str], WorkerProcess]) -> None:
    worker = work(url)
    push(worker, "x")
    assert worker.start("fail", "--until-empty", "--max-tries", "3", "--backoff", "0").end() == 0
    assert [note.tries for note in worker.notes("began")] == [0, 1, 2]
    assert dead(worker) == [("x", "ValueError: no such address: x")]
    assert total(worker) == 0


def test_a_job_that_kills_its_worker_ends_in_the_dead_letters(url: str, work: Callable[[str], WorkerProcess]) -> None:
    worker = work(url)
    push(worker, "bad", "good")
    options = ["--processes", "1", "--concurrency", "1", "--max-tries", "2", "--lease", LEASE_S]
    worker.start("die_if_bad", *options)
    wait_until(lambda: total(worker) == 0, 60)
    assert worker.stop() == 0
    assert [(note.payload, note.tries) for note in worker.notes("began") if note.payload == "bad"] == [
        ("bad", 0), ("bad", 1)
    ]  # fmt: skip
    assert [payload for payload, _ in dead(worker)] == ["bad"]
    assert [note.payload for note in worker.notes("done")] == ["good"]
    assert len(worker.events("child")) == 2


def test_jobs_that_come_back_from_a_job_that_kills_its_worker_are_all_done(
    url: str, work: Callable[[str], WorkerProcess]
) -> None:
    worker = work(url)
    push(worker, *range(150), "bad", *range(150, 300))
    worker.start("die_if_bad", "--processes", "2", "--max-tries", "3", "--lease", LEASE_S)
    wait_until(lambda: total(worker) == 0, 120)
    assert worker.stop() == 0
    assert [payload for payload, _ in dead(worker)] == ["bad"]
    assert {note.payload for note in worker.notes("done")} == set(map(str, range(300)))
    assert 3 <= len([note for note in worker.notes("began") if note.payload == "bad"]) <= 4


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    return f"redis+oq://{redis_server.host}:{redis_server.port}/0?poll=0.5"


def test_several_processes_share_the_work_and_one_that_dies_is_replaced(
    redis_url: str, work: Callable[[str], WorkerProcess]
) -> None:
    worker = work(redis_url)
    push(worker, *range(4))
    worker.start("hold", "--processes", "2", "--concurrency", "2", "--lease", LEASE_S)
    pids = {note.pid for note in worker.wait_for("began", 4)}
    assert len(pids) == 2
    victim = min(pids)
    os.kill(victim, signal.SIGKILL)
    again = worker.wait_for("began", 6)[4:]
    assert {note.tries for note in again} == {1}
    assert {note.pid for note in again}.isdisjoint(pids)
    worker.let_go()
    worker.wait_for("done", 4)
    assert worker.stop() == 0
    assert [event["worker"] for event in worker.events("child")][:1] in ([1], [2])
    (end,) = worker.events("stop")
    assert end["done"] == 4
    assert total(worker) == 0


def test_a_password_is_not_in_the_words_of_the_processes(
    redis_server: RedisServer, work: Callable[[str], WorkerProcess]
) -> None:
    # The server has no password for this user, and takes any.
    url = f"redis+oq://default:SECRET@{redis_server.host}:{redis_server.port}/0?poll=0.5"
    worker = work(url)
    push(worker, *range(2))
    worker.start("hold", "--processes", "2", "--concurrency", "1")
    pids = {note.pid for note in worker.wait_for("began", 2)}
    assert len(pids) == 2
    for pid in pids:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"penstock" in words
        assert b"SECRET" not in words
    worker.let_go()
    worker.wait_for("done", 2)
    assert worker.stop() == 0
    assert "SECRET" not in worker.log.read_text()


def test_processes_stop_together_and_give_back_what_they_had(
    redis_url: str, work: Callable[[str], WorkerProcess]
) -> None:
    worker = work(redis_url)
    push(worker, *range(4))
    worker.start("hold", "--processes", "2", "--concurrency", "2", "--shutdown-timeout", "0.1")
    worker.wait_for("began", 4)
    assert worker.stop() == 0
    assert left(worker) == [(number, 1, JobState.READY) for number in range(4)]
    assert worker.events("stop")[-1]["returned"] == 4


def heard(worker: WorkerProcess, signals: int) -> bool:
    """Whether a supervisor has said so often that it stops."""
    return len([event for event in worker.events("stopping") if "worker" not in event]) >= signals


@pytest.mark.parametrize("function", ["hold", "hold_plain", "hold_on"])
def test_after_many_signals_nothing_stays_reserved(
    redis_url: str, function: str, work: Callable[[str], WorkerProcess]
) -> None:
    worker = work(redis_url)
    push(worker, *range(12))
    worker.start(function, "--processes", "2", "--concurrency", "2", "--prefetch", "4", "--lease", "1000")
    worker.wait_for("began", 4)
    wait_until(lambda: [state for *_, state in left(worker)] == [JobState.RESERVED] * 12)
    for seen in range(1, 4):
        worker.signal(signal.SIGTERM)
        wait_until(partial(heard, worker, seen))  # signals that follow one another closely may arrive as one
    for _ in range(27):
        worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    begun = {int(note.payload) for note in worker.notes("began")}
    assert left(worker) == [(number, int(number in begun), JobState.READY) for number in range(12)]


def test_ctrl_c_at_a_terminal_reaches_the_processes_once(redis_url: str, work: Callable[[str], WorkerProcess]) -> None:
    worker = work(redis_url)
    push(worker, *range(2))
    worker.start("hold", "--processes", "2", "--concurrency", "1")
    worker.wait_for("began", 2)
    assert worker.process is not None
    os.killpg(worker.process.pid, signal.SIGINT)
    wait_until(lambda: worker.events("stopping"))
    worker.let_go()
    assert worker.end() == 0
    assert len(worker.notes("done")) == 2
    assert total(worker) == 0


def test_processes_end_when_the_one_that_sees_to_them_is_killed(
    redis_url: str, work: Callable[[str], WorkerProcess]
) -> None:
    worker = work(redis_url)
    push(worker, *range(2))
    worker.start("hold", "--processes", "2", "--concurrency", "1", "--shutdown-timeout", "0.1")
    pids = {note.pid for note in worker.wait_for("began", 2)}
    worker.kill()
    wait_until(lambda: not any(_is_alive(pid) for pid in pids))
    assert left(worker) == [(0, 1, JobState.READY), (1, 1, JobState.READY)]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("function", ["hang_if_bad", "hang_on_if_bad"])
def test_a_process_whose_function_hangs_is_replaced(
    redis_url: str, function: str, work: Callable[[str], WorkerProcess]
) -> None:
    worker = work(redis_url)
    push(worker, "bad")
    options = ["--processes", "1", "--concurrency", "1", "--time-limit", "0.3", "--max-tries", "1", "--until-empty"]
    worker.start(function, *options)
    wait_until(lambda: dead(worker))
    push(worker, "good")
    wait_until(lambda: total(worker) == 0)
    assert worker.end() == 0
    ((payload, error),) = dead(worker)
    assert (payload, error.partition(",")[0]) == ("bad", "it took longer than its time limit of 0.3 s")
    assert [event["code"] for event in worker.events("child")] == [EXIT_REPLACE]
    assert len({note.pid for note in worker.notes("began")}) == 2


def test_a_first_process_that_is_killed_before_it_began_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    supervisor = Supervisor([command] * 2, shutdown_timeout=1, until_empty=True)
    assert asyncio.run(supervisor.run()) == 128 + signal.SIGKILL
    assert caplog.messages == ["Process 1 was killed by signal 9 before it began."]


def test_a_stop_while_the_first_process_starts_is_no_failure() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]

    async def stop_at_once() -> int:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        return await Supervisor([command], shutdown_timeout=1, until_empty=False).run()

    assert asyncio.run(stop_at_once()) == 0


def test_several_processes_until_empty(redis_url: str, work: Callable[[str], WorkerProcess]) -> None:
    worker = work(redis_url)
    push(worker, *range(500))
    assert worker.start("quick", "--processes", "3", "--until-empty").end() == 0
    assert sorted(int(note.payload) for note in worker.notes("done")) == list(range(500))
    assert worker.events("stop")[-1]["done"] == 500


def test_a_worker_goes_on_after_its_server_was_killed_and_came_back(
    start_redis: Callable[..., RedisServer], work: Callable[[str], WorkerProcess]
) -> None:
    server = start_redis()
    worker = work(f"redis+oq://{server.host}:{server.port}/0?poll=0.2")
    push(worker, "before")
    worker.start("hold")
    worker.wait_for("began", 1)
    server.kill_hard()
    worker.let_go()  # its end can't be told now
    worker.wait_for("done", 1)
    wait_until(lambda: worker.events("trouble"))
    server.start()
    wait_until(lambda: total(worker) == 0)
    push(worker, "after")
    done = worker.wait_for("done", 2)
    assert [(note.payload, note.tries) for note in done] == [("before", 0), ("after", 0)]
    assert worker.stop() == 0
