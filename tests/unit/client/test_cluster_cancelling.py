"""A caller that goes away loses no job silently: asyncio's cancellation, and interrupts in the blocking form."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock.client import blocking
from penstock.client.aio.connection import PipelinedConnection
from penstock.errors import CallerError
from tests.processes import wait_until
from tests.unit.client.nodes import NO_JOB, FakeNode, job, run
from tests.unit.client.tiny_broker import TinyBroker

Open = Callable[..., Any]


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def until(what: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, what, 10.0)


async def waiting_get(client: Any, node: FakeNode, **options: Any) -> asyncio.Task[Any]:
    """Begin a fetch, and come back when the node has it."""
    before = len(node.asked("GETJOB"))
    task = asyncio.create_task(client.get("q", **options))
    await asyncio.to_thread(node.wait_for, "GETJOB", before + 1)
    return task


def test_a_fetch_that_is_cancelled_before_it_is_sent_is_not_sent(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            await client.qlen("q")
            task = asyncio.create_task(client.get("q", nohang=True))
            await asyncio.sleep(0)  # it has begun, and its request waits for the end of the turn
            await cancelled(task)
            await client.qlen("q")
        assert a.asked("GETJOB") == []

    with FakeNode("a", QLEN=b":1\r\n") as a:
        run(scenario())


def test_a_cancelled_wait_closes_its_connection_so_that_the_node_knows(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            task = await waiting_get(client, a, timeout=60)
            ended = a.ended
            await cancelled(task)
            await until(lambda: a.ended == ended + 1)
            assert await client.qlen("q") == 1  # the others go on
        assert a.asked("NACK", "NACKLEASE") == []

    with FakeNode("a", GETJOB=b"", QLEN=b":1\r\n") as a:
        run(scenario())


@pytest.mark.parametrize("lease", [None, 30])
def test_a_job_that_was_on_its_way_when_the_wait_was_cancelled_goes_back(open_async: Open, lease: int | None) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            task = await waiting_get(client, a, timeout=60, lease=lease)
            await cancelled(task)
            await until(lambda: a.asked("NACK", "NACKLEASE"))
        (words,) = a.asked("NACK", "NACKLEASE")
        assert words == (["NACK", job_id] if lease is None else ["NACKLEASE", "0", job_id, "17"])

    with FakeNode("a", GETJOB=b"", NACK=b":1\r\n", NACKLEASE=b"*1\r\n+OK\r\n") as a:
        # The node sees that we hang up only after it has sent the job.
        a.farewell = job(a, token=None if lease is None else 17)
        job_id = a.farewell.split(b"\r\n")[5].decode()
        run(scenario())


def test_a_job_that_has_arrived_goes_back_if_its_caller_is_cancelled_before_it_sees_it(
    open_async: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[asyncio.Task[Any]] = []
    take = PipelinedConnection._take

    def take_and_cancel(self: PipelinedConnection, reply: Any) -> None:
        take(self, reply)
        for task in tasks:
            task.cancel()

    monkeypatch.setattr(PipelinedConnection, "_take", take_and_cancel)

    async def scenario() -> None:
        async with open_async(a.address) as client:
            await client.qlen("q")
            tasks.append(asyncio.create_task(client.get("q", timeout=60)))
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            tasks.clear()
            await until(lambda: a.asked("NACK"))
            before = a.connections
            assert await client.get("q", timeout=5) == []
            assert a.connections == before  # its connection had nothing under way, and is used again
        assert len(a.asked("NACK")) == 1

    with FakeNode("a", NACK=b":1\r\n", QLEN=b":1\r\n") as a:
        a.answers["GETJOB"] = [lambda _: job(a), NO_JOB]
        run(scenario())


def test_a_fetch_on_the_shared_connection_returns_what_comes_for_nobody(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            await client.qlen("q")
            before = a.connections
            task = await waiting_get(client, a, nohang=True)
            await cancelled(task)
            a.send(job(a))
            await until(lambda: a.asked("NACK"))
            assert await client.qlen("q") == 1
            assert (a.connections, a.ended) == (before, 0)

    with FakeNode("a", GETJOB=b"", NACK=b":1\r\n", QLEN=b":1\r\n") as a:
        run(scenario())


def test_replies_keep_their_order_when_one_caller_is_gone(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            await client.hello()
            task = asyncio.create_task(client.qlen("slow"))
            await asyncio.to_thread(a.wait_for, "QLEN")
            await cancelled(task)
            other = asyncio.create_task(client.qlen("fast"))
            await asyncio.to_thread(a.wait_for, "QLEN", 2)
            a.send(b":1\r\n")
            a.send(b":2\r\n")
            assert await other == 2

    with FakeNode("a", QLEN=b"") as a:
        run(scenario())


def test_a_time_limit_around_a_fetch_is_a_cancellation_like_any_other(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.get("q"), 0.1)
            await until(lambda: a.asked("NACK"))

    with FakeNode("a", GETJOB=b"", NACK=b":1\r\n") as a:
        a.farewell = job(a)
        run(scenario())


def test_what_is_delivered_at_most_once_and_lost_so_is_logged(
    open_async: Open, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            await cancelled(await waiting_get(client, a, timeout=60))
            await until(lambda: a.asked("NACK"))

    with FakeNode("a", GETJOB=b"", NACK=b":0\r\n") as a, caplog.at_level(logging.WARNING, "penstock.client"):
        a.farewell = job(a, retry=0)
        run(scenario())
    assert "delivered at most once: D-aaaaaaaa-" in caplog.text


def test_what_could_not_be_given_back_is_logged(open_async: Open, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            await cancelled(await waiting_get(client, a, timeout=60))
            await until(lambda: a.asked("NACK"))

    with FakeNode("a", GETJOB=b"", NACK=b"-OOM full\r\n") as a, caplog.at_level(logging.WARNING, "penstock.client"):
        a.farewell = job(a)
        run(scenario())
    assert "back after their retry time (OOM full): D-aaaaaaaa-" in caplog.text


def test_a_program_that_ends_right_after_a_cancellation_still_returns_the_job(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            task = await waiting_get(client, a, timeout=60)
            await cancelled(task)

    with FakeNode("a", GETJOB=b"", NACK=b":1\r\n") as a:
        a.farewell = job(a)
        run(scenario())
        assert len(a.asked("NACK")) == 1


def test_closing_the_client_ends_those_who_wait(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            task = await waiting_get(client, a, timeout=60)
        with pytest.raises(CallerError, match="closed"):
            await task
        await until(lambda: a.ended == a.connections == 2)

    with FakeNode("a", GETJOB=b"") as a:
        run(scenario())


def test_a_job_that_comes_while_the_client_is_closed_is_its_callers(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            task = await waiting_get(client, a, timeout=60)
        (fetched,) = await task
        assert fetched.body == b"body"

    with FakeNode("a", GETJOB=b"") as a:
        a.farewell = job(a)
        run(scenario())


def test_a_node_that_does_not_close_what_was_hung_up_is_not_waited_for_forever(
    open_async: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.aio.pool.HANG_UP_SECONDS", 0.1)
    release = threading.Event()

    def stuck(_: object) -> bytes:
        release.wait(10)
        return b""

    async def scenario() -> None:
        async with open_async(a.address) as client:
            task = await waiting_get(client, a, timeout=60)
            await cancelled(task)
            await asyncio.sleep(0.2)
            pool = client._router.current.pool
            assert not pool.busy
        release.set()

    with FakeNode("a", GETJOB=stuck) as a:
        run(scenario())


@pytest.mark.parametrize("options", [{"timeout": 30}, {"timeout": 30, "lease": 60}, {"nohang": True}])
def test_however_callers_are_cancelled_every_job_is_theirs_or_in_its_queue(
    open_async: Open, options: dict[str, Any]
) -> None:
    async def scenario(seed: int) -> int:
        chance = random.Random(seed)
        got: list[str] = []
        async with TinyBroker() as broker, open_async(broker.address) as client:

            async def work() -> None:
                got.extend(job.id for job in await client.get("q", **options))

            workers: list[asyncio.Task[None]] = []
            for _ in range(60):
                workers += [asyncio.create_task(work()) for _ in range(2)]
                add = asyncio.create_task(client.add("q", "body"))
                for _ in range(chance.randrange(16)):
                    await asyncio.sleep(0)
                # Those that came first are served first.
                chance.choice([worker for worker in workers if not worker.done()][:3] or workers).cancel()
                await add
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await client.close()
            everywhere = [*got, *broker.queue]
            assert (len(everywhere), len(set(everywhere))) == (60, 60)
            return broker.given_back

    assert sum(run(scenario(seed)) for seed in range(5)) > 0  # else nothing was tried


# The blocking form


class Interrupted(Exception):
    """What the handler of a signal raises."""


Interrupt = Callable[..., None]


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    """Interrupt this thread once a node has been asked for a job, or something else."""

    def handler(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)

    def when_asked(node: FakeNode, name: str) -> None:
        node.wait_for(name)
        os.kill(os.getpid(), signal.SIGUSR1)

    yield lambda node, name="GETJOB": threading.Thread(target=when_asked, args=(node, name), daemon=True).start()
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_wait_closes_its_connection(interrupt: Interrupt) -> None:
    with FakeNode("a", GETJOB=b"", QLEN=b":7\r\n") as a, blocking.ClusterClient(a.address) as client:
        interrupt(a)
        with pytest.raises(Interrupted):
            client.get("q", timeout=60)
        wait_until(lambda: a.ended == 1)
        assert a.asked("NACK") == []
        assert client.qlen("q") == 7


@pytest.mark.parametrize("lease", [None, 30])
def test_a_job_that_was_on_its_way_to_an_interrupted_caller_goes_back(interrupt: Interrupt, lease: int | None) -> None:
    with FakeNode("a", GETJOB=b"", NACK=b":1\r\n", QLEN=b":7\r\n") as a, blocking.ClusterClient(a.address) as client:
        a.farewell = job(a, token=None if lease is None else 17)
        interrupt(a)
        with pytest.raises(Interrupted):
            client.get("q", timeout=60, lease=lease)
        a.farewell = b""
        ((command, *_),) = a.asked("NACK", "NACKLEASE")
        assert command == ("NACK" if lease is None else "NACKLEASE")
        assert client.qlen("q") == 7


def test_jobs_of_an_interrupted_caller_that_cannot_come_back_are_logged(
    interrupt: Interrupt, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeNode("a", GETJOB=b"", NACK=b"-OOM full\r\n") as a, blocking.ClusterClient(a.address) as client:
        a.farewell = job(a, retry=0)
        interrupt(a)
        with suppress(Interrupted):
            client.get("q", timeout=60)
    assert "delivered at most once: D-aaaaaaaa-" in caplog.text
    assert "(OOM full): D-aaaaaaaa-" in caplog.text


@pytest.mark.parametrize("words", [("GETJOB", "FROM", "q"), ("SHOW", "D-x")])
def test_an_interrupted_call_leaves_no_reply_for_the_next(interrupt: Interrupt, words: tuple[str, ...]) -> None:
    silent: dict[str, Any] = {words[0]: b""}
    with FakeNode("a", QLEN=[b":1\r\n", b":2\r\n"], **silent) as a, blocking.ClusterClient(a.address) as client:
        interrupt(a, words[0])
        with pytest.raises(Interrupted):
            client.call(*words)
        wait_until(lambda: a.ended == 1)
        assert (client.qlen("q"), client.qlen("q")) == (1, 2)
