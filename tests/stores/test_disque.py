"""What only the store of our broker has to say: bytes in the node, counters, terms, and errors of one node."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Capability, DeadLetter, JobState, Push
from penstock.errors import (
    AuthenticationError,
    BadUrl,
    CallerError,
    LeaseLost,
    OutcomeUnknown,
    StoreError,
    Unreachable,
)
from penstock.queues import aio, blocking
from penstock.queues.stores.disque.aio import scan
from penstock.queues.stores.disque.errors import store_error
from penstock.queues.stores.disque.terms import TTL_S_MAX
from tests.certificates import Authority
from tests.conftest import StartNode
from tests.processes import NodeProcess, free_port
from tests.stores.cutting_proxy import CuttingProxy
from tests.stores.harness import PATIENCE
from tests.stores.shifting_node import ShiftingNode
from tests.unit.client.nodes import FakeNode

pytestmark = pytest.mark.system

_names = (f"disque-{number}" for number in range(1_000_000))


def url_of(node: NodeProcess, **options: object) -> str:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"disque://{node.host}:{node.port}" + (f"?{query}" if query else "")


@asynccontextmanager
async def opened(node: NodeProcess, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A store on a node, and a queue of it that no other test uses."""
    async with aio.connect(url_of(node), **options) as store:
        yield store, store.queue(next(_names), lease=1000)


def shown(node: NodeProcess, job_id: str) -> dict[str, Any]:
    """What SHOW says of a job."""
    reply = node.call("SHOW", job_id)
    return {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


# What is in the node


async def test_a_body_without_headers_is_in_the_node_as_it_is(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        await queue.push_many([{"to": "tom"}, b"\x00\xff", "text"])
        bodies = [row[2] for row in disque_node.call("GETJOB", "COUNT", 3, "FROM", queue.name)]
        assert bodies == [b'{"to":"tom"}', b"\x00\xff", b'"text"']


async def test_a_node_that_can_not_say_when_a_job_was_added_is_asked_for_the_rest(disque_node: ShiftingNode) -> None:
    # An older node of ours refuses a word of GETJOB that it doesn't know.
    with CuttingProxy(disque_node, replace=(b"WITHCTIME", b"UNKNOWN99")) as proxy:
        where = {"translate": lambda host, port: (host, proxy.port)}
        async with aio.connect(f"disque://{disque_node.host}:{proxy.port}", **where) as store:
            queue = store.queue(next(_names), lease=1000)
            await queue.push_many([1, 2])
            first, second = await queue.reserve(), await queue.reserve()
            assert [(job.payload, job.tries, job.created) for job in (first, second)] == [(1, 0, None), (2, 0, None)]
            await first.ack()


async def test_terms_of_the_store_may_be_timedeltas(disque_node: ShiftingNode) -> None:
    async with opened(disque_node, ttl=timedelta(days=2), retry=timedelta(minutes=5)) as (_, queue):
        job = shown(disque_node, await queue.push("work"))
        assert (job["retry"], 0 < job["ttl"] <= 2 * 24 * 3600) == (300, True)


async def test_headers_stand_in_front_of_the_body(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        await queue.push(b"body", headers={"a": 1, "b": "ü"})
        ((_, _, body),) = disque_node.call("GETJOB", "FROM", queue.name)
        assert body == b'\xffPNSK\x01\x00\x00\x00\x10{"a":1,"b":"\xc3\xbc"}body'


async def test_tries_at_the_push_are_a_header_that_nobody_sees(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        await queue.push(b"body", headers={"a": 1}, tries=3)
        ((_, _, body),) = disque_node.call("QPEEK", queue.name, 1)
        assert body == b'\xffPNSK\x01\x00\x00\x00\x1c{"a":1,"x-penstock-tries":3}body'
        job = await queue.reserve(timeout=PATIENCE)
        assert (job.headers, job.tries) == ({"a": 1}, 3)
        await job.nack()
        assert (await queue.pop(timeout=PATIENCE)).tries == 4


async def test_what_other_clients_add_is_read(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        disque_node.call("ADDJOB", queue.name, b'{"to": "tom"}', 0)
        disque_node.call("ADDJOB", queue.name, b'\xffPNSK\x01\x00\x00\x00\x07{"a":1}body', 0)
        disque_node.call("ADDJOB", queue.name, b"\xffPNSK\x01\x00\x00\x00\x63no frame", 0)
        first, second, third = [await queue.pop(timeout=PATIENCE) for _ in range(3)]
        assert (first.payload, first.headers) == ({"to": "tom"}, {})
        assert (second.payload, second.headers) == ("body", {"a": 1})
        assert third.payload == b"\xffPNSK\x01\x00\x00\x00\x63no frame"


async def test_a_push_says_how_a_job_is_kept(disque_node: ShiftingNode) -> None:
    async with opened(disque_node, lease=90) as (_, queue):
        plain = shown(disque_node, await queue.push(1))
        assert (plain["retry"], plain["ttl"], plain["delay"]) == (90, TTL_S_MAX, 0)
        told = shown(disque_node, await queue.push(1, retry=4.5, ttl=99.5, replicate=1, delay=1.2))
        assert (told["retry"], told["ttl"], told["delay"], told["repl"]) == (5, 100, 2, 1)
        late = shown(disque_node, await queue.push(1, delay=400 * 24 * 3600))
        assert late["ttl"] > late["delay"]


async def test_the_store_says_how_jobs_are_kept_whose_push_does_not(disque_node: ShiftingNode) -> None:
    async with aio.connect(url_of(disque_node, ttl=500, retry=7, replicate=1)) as store:
        queue = store.queue(next(_names))
        for job_id in [await queue.push(1), *await queue.push_many([1, Push(2, delay=5)])]:
            details = shown(disque_node, job_id)
            assert (details["retry"], details["ttl"], details["repl"]) == (7, 500, 1)


async def test_a_job_without_a_retry_is_delivered_once(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        await queue.push("once", retry=0)
        await queue.reserve(timeout=PATIENCE, lease=10)
        disque_node.shift(3600)
        assert await queue.reserve(timeout=0) is None


async def test_pushes_with_terms_of_their_own_keep_the_order_of_their_ids(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        pushes = [Push(number, retry=1 + number % 3) for number in range(30)]
        ids = await queue.push_many(pushes)
        assert [json.loads(shown(disque_node, job_id)["body"]) for job_id in ids] == list(range(30))
        assert [shown(disque_node, job_id)["retry"] for job_id in ids] == [1, 2, 3] * 10


async def test_bodies_that_fill_many_commands(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        bodies = [bytes([number % 256]) * 50_000 for number in range(100)]
        ids = await queue.push_many(bodies)
        assert len(set(ids)) == 100
        jobs: list[Any] = []
        while len(jobs) < 100:
            jobs += await queue.reserve_many(100, PATIENCE)
        assert [job.body for job in jobs] == bodies
        assert all(await queue.ack_many(jobs))
        large = random.Random(1).randbytes(16 << 20)
        await queue.push(large, headers={"large": True})
        assert (await queue.pop(timeout=PATIENCE)).body == large


# Tries


async def test_both_counters_of_a_node_are_tries(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        await queue.push("work", delay=10)
        disque_node.shift(11)
        seen = []
        for end in ("nack", "death", "late nack", "release", None):
            job = await queue.reserve(timeout=PATIENCE, lease=100)
            seen.append((job.stored.nacks, job.stored.additional_deliveries, job.tries))
            if end == "nack":
                await job.nack()
            elif end == "late nack":
                await job.nack(delay=50)
                disque_node.shift(51)
            elif end == "release":
                await queue.release_many([job])
            else:
                disque_node.shift(101)
        assert seen == [(0, 0, 0), (1, 0, 1), (1, 1, 2), (2, 1, 3), (2, 1, 3)]


async def test_waiting_in_the_queue_for_long_is_no_try(disque_node: ShiftingNode) -> None:
    async with opened(disque_node, retry=5) as (_, queue):
        await queue.push("work")
        disque_node.shift(1000)
        assert (await queue.reserve(timeout=PATIENCE)).tries == 0


async def test_a_cancelled_reserve_is_no_try_so_that_a_limit_of_one_still_means_one(disque_node: ShiftingNode) -> None:
    """Jobs come while callers wait on the node, and are on their way to them when those go."""
    chance = random.Random(4)
    rounds = 150
    async with opened(disque_node) as (store, plain), aio.connect(url_of(disque_node)) as other:
        limit = DeadLetter(1, next(_names))
        queue = store.queue(plain.name, dead_letter=limit, lease=1000)
        there = other.queue(plain.name)
        done: Counter[int] = Counter()
        for number in range(rounds):
            tasks = [asyncio.create_task(queue.reserve(timeout=PATIENCE)) for _ in range(3)]
            await asyncio.sleep(0.003)
            push = asyncio.create_task(there.push(number))
            await asyncio.sleep(chance.random() * 0.002)
            for task in tasks:
                task.cancel()
            await push
            for job in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(job, BaseException):
                    done[job.payload] += 1
                    await job.ack()
        while sum(done.values()) < rounds:
            job = await queue.reserve(timeout=PATIENCE)
            done[job.payload] += 1
            await job.ack()
        assert done == Counter(range(rounds))
        assert await store.queue(limit.queue).total() == 0


# Leases


async def test_a_token_names_its_node(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE)
        number, node, _ = job.token.split("@")
        assert node == disque_node.call("CLUSTER", "MYID").decode()
        assert disque_node.call("ACKLEASE", job.id, number) == [b"OK"]
        with pytest.raises(LeaseLost):
            await job.ack()


async def test_nacks_of_one_batch_may_have_delays_of_their_own(disque_node: ShiftingNode) -> None:
    async with aio.connect(url_of(disque_node)) as store:
        queue = store.queue(next(_names), lease=1000, backoff=lambda tries: next(delays))
        delays = iter([30, 10, 20, 10])
        await queue.push_many(range(4))
        jobs = [await queue.reserve(timeout=PATIENCE) for _ in range(4)]
        assert await queue.nack_many(jobs) == [True] * 4
        found = []
        for _ in range(3):
            disque_node.shift(10.1)
            found.append([job.payload for job in await queue.pop_many(4)])
        assert found == [[1, 3], [2], [0]]


async def test_each_job_of_a_batch_has_its_own_outcome(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (store, queue):
        await queue.push_many(range(4))
        leases = [(await queue.reserve(timeout=PATIENCE)).as_lease for _ in range(4)]
        assert await store._driver.ack(queue.name, [leases[2]]) == [True]
        kept = await store._driver.extend(queue.name, leases, [50_000, 70_000, 50_000, 70_000])
        assert [token is not None for token in kept] == [True, True, False, True]
        assert await store._driver.nack(queue.name, leases, [30, 10, 20, 10], None) == [True, True, False, True]


async def test_a_popped_job_is_ended_before_it_is_handed_out(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        job_id = await queue.push("work")
        assert (await queue.pop(timeout=PATIENCE)).id == job_id
        assert disque_node.call("SHOW", job_id) is None


async def test_a_job_that_waits_can_not_be_acked(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        await queue.push("work")
        (looked_at,) = await queue.peek()
        with pytest.raises(LeaseLost):
            await looked_at.ack()
        assert await queue.size() == 1


# Looking


async def test_a_walk_in_pages_meets_every_job_once_while_jobs_go(
    disque_node: ShiftingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "ORDERED_MAX", 200)
    async with opened(disque_node) as (store, queue):
        await queue.push_many(range(600))
        await queue.push_many([Push(number, delay=100) for number in range(600, 700)])
        held = [await queue.reserve(timeout=PATIENCE) for _ in range(20)]
        met: list[int] = []
        states: Counter[str] = Counter()
        cursor = None
        while True:
            page = await store._driver.peek(queue.name, None, 50, cursor)
            for stored in page.jobs:
                met.append(json.loads(stored.body))
                states[stored.state] += 1
                if len(met) % 7 == 0 and stored.state is JobState.READY:
                    assert await queue.remove(stored.id) == [True]
            cursor = page.cursor
            if cursor is None:
                break
        assert sorted(met) == list(range(700))
        assert met[:200] == list(range(20, 220))
        assert states == {"ready": 580, "scheduled": 100, "reserved": 20}
        assert all(await queue.ack_many(held))


async def test_a_job_is_removed_only_from_its_own_queue(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (store, queue):
        job_id = await queue.push("work")
        assert await store.queue(next(_names)).remove(job_id) == [False]
        assert await queue.remove("no id", job_id, job_id) == [False, True, False]


async def test_a_job_that_was_given_back_for_later_is_scheduled_and_can_be_removed(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        ids = [await queue.push(number) for number in range(2)]
        await (await queue.reserve(timeout=PATIENCE)).nack(delay=100)
        held = await queue.reserve(timeout=PATIENCE)
        assert tuple(await queue.sizes()) == (2, 0, 1, 1)
        assert await queue.remove(*ids) == [True, False]
        await held.ack()


async def test_a_pause_leaves_what_somebody_else_has_stopped(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        disque_node.call("PAUSE", queue.name, "in")
        await queue.pause()
        assert await queue.paused()
        assert disque_node.call("PAUSE", queue.name, "state") == b"all"
        await queue.resume()
        assert disque_node.call("PAUSE", queue.name, "state") == b"in"
        with pytest.raises(StoreError, match="PAUSED"):
            await queue.push(1)


async def test_what_a_claim_holds_is_written_down_for_a_year(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        await queue.push(1)
        await queue.claim("key", 1)
        (record,) = disque_node.call("QPEEK", f"__claim__:{queue.name}:key", 1)
        assert shown(disque_node, record[1])["ttl"] == 365 * 24 * 3600


async def test_what_a_claim_holds_is_hidden_and_goes_with_it(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (store, queue):
        await queue.push_many(range(3))
        await queue.claim("key", 2)
        await queue.claim("key", 2)
        record = f"__claim__:{queue.name}:key"
        assert not [name for name in await store.queues() if name.startswith("__claim__:")]
        assert disque_node.call("QLEN", record) == 1
        assert await queue.ack_claim("key") == 2
        assert disque_node.call("QLEN", record) == 0


# Threads


def test_threads_share_a_store_and_a_wait_holds_up_nobody(disque_node: ShiftingNode) -> None:
    with blocking.connect(url_of(disque_node)) as store:
        queue = store.queue(next(_names), lease=1000)
        done: Counter[int] = Counter()

        def work() -> None:
            while (job := queue.reserve(timeout=PATIENCE)) is not None and job.payload is not None:
                done[job.payload] += 1
                job.ack()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for number in range(100):
            queue.push(number)
        queue.push_many([None] * 8)
        for thread in threads:
            thread.join()
        assert done == Counter(range(100))


# Addresses, options, and servers that refuse


@pytest.mark.parametrize("connect", [aio.connect, blocking.connect])
@pytest.mark.parametrize(
    ("url", "options", "error", "says"),
    [
        ("disque://host:port", {}, BadUrl, "must have a port"),
        ("disque://", {}, BadUrl, "address of at least one node"),
        ("disque://host:99999", {}, BadUrl, "99999|0-65535"),
        ("disque://host/0", {}, BadUrl, "must have no path, got /0"),
        ("disque://host?colour=red", {}, CallerError, "no option 'colour'"),
        (
            "disque://host?ttl=soon",
            {},
            CallerError,
            "ttl of .* must be above 0 and at most .* seconds, got 'soon'",
        ),
        (
            "disque://host",
            {"replicate": 0},
            CallerError,
            "replicate of .* must be a number of nodes from 1 .*, got 0",
        ),
        ("disques://host?ca=/nowhere", {}, BadUrl, "TLS files /nowhere"),
    ],
)
def test_a_url_or_an_option_that_can_not_be_is_refused(
    connect: Any, url: str, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        connect(url, **options)


async def test_a_server_that_is_not_there_is_reported_at_once() -> None:
    port = free_port()
    reason = f"Can't reach any node of disque://127.0.0.1:{port}. Is `penstock server` running?"
    with pytest.raises(Unreachable, match=re.escape(reason)):
        await aio.connect(f"disque://127.0.0.1:{port}").open()
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port}: Connection refused"):
        blocking.connect(f"disque://127.0.0.1:{port}").open()


async def test_a_server_of_another_kind_is_reported(redis_server: Any) -> None:
    with pytest.raises(Unreachable, match="HELLO is not that of a Disque or Penstock node"):
        await aio.connect(f"disque://127.0.0.1:{redis_server.port}").open()


async def test_the_password_is_in_the_url(start_node: StartNode) -> None:
    node = start_node(appendonly="no", requirepass="secret")
    async with aio.connect(f"disque://anybody:secret@127.0.0.1:{node.port}") as store:
        assert "secret" not in store.url
        await store.queue("q").push(1)
    for access in ("", "user:wrong@"):
        with pytest.raises(AuthenticationError):
            await aio.connect(f"disque://{access}127.0.0.1:{node.port}").open()


async def test_tls(start_node: StartNode, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    pair = authority.sign("node")
    port = free_port()
    start_node(appendonly="no", tls_port=port, tls_cert_file=pair.cert, tls_key_file=pair.key)
    url = f"disques://127.0.0.1:{port}?ca={authority.cert}"
    async with aio.connect(url) as store:
        await store.queue("q").push("secret")
    with blocking.connect(url) as store:
        job = store.queue("q").pop(timeout=PATIENCE)
        assert job is not None
        assert job.payload == "secret"


async def test_a_refusal_says_what_to_do(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        with pytest.raises(StoreError, match=r"NOREPL Not enough.*3 copies.*1 of 1 nodes.*replicate=1"):
            await queue.push(1, replicate=3)
        with pytest.raises(StoreError, match="DELAY is greater than TTL"):
            await queue.push(1, delay=10, ttl=5)
        with pytest.raises(StoreError, match="number of milliseconds between"):
            await queue.reserve(timeout=PATIENCE, lease=20 * 24 * 3600)


async def test_an_add_that_found_too_few_nodes_in_time_may_have_been_done() -> None:
    with FakeNode("a", COMMAND=b"*4\r\n*0\r\n*0\r\n*0\r\n*0\r\n", PING=b"+PONG\r\n") as node:
        node.answers["ADDJOBS"] = b"-NOREPL Timeout reached before replicating to the requested number of nodes\r\n"
        async with aio.connect(f"disque://{node.address}") as store:
            with pytest.raises(OutcomeUnknown, match="NOREPL Timeout"):
                await store.queue("q").push(1)
    assert store_error(ValueError("no reply"), "url") is None


async def test_consumers_go_on_when_the_node_was_away(start_node: StartNode) -> None:
    kept_node = start_node(appendfsync="always")
    async with aio.connect(url_of(kept_node)) as store, aio.connect(url_of(kept_node)) as other:
        queue, there = store.queue("mail", lease=1000), other.queue("mail")
        await there.push_many(["held", "kept"])
        held = await queue.reserve(timeout=PATIENCE)
        waiting = [asyncio.create_task(queue.reserve(timeout=PATIENCE)) for _ in range(2)]
        kept = await next(asyncio.as_completed(waiting))
        kept_node.kill()
        with pytest.raises(Unreachable):
            await store.queue("mail").reserve(timeout=0)
        acks = asyncio.create_task(queue.ack_many([held, kept]))
        kept_node.start()
        assert await acks == [True, True]
        await there.push("new")
        jobs = await asyncio.gather(*waiting)
        assert sorted(job.payload for job in jobs) == ["kept", "new"]


async def test_a_store_knows_what_its_nodes_can_do(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (store, _):
        known = {Capability.TOKEN, Capability.CLAIM, Capability.EXTEND, Capability.SHARED_PAUSE, Capability.ATOMIC_MOVE}
        assert known <= store.capabilities
        assert not {Capability.UNIQUE, Capability.HISTORY} & store.capabilities


async def test_jobs_that_expire_are_counted(disque_node: ShiftingNode) -> None:
    async with opened(disque_node) as (_, queue):
        await queue.push_many([Push(1, ttl=50), Push(2, ttl=50), Push(3)])
        assert (await queue.stats())["expired"] == 0
        disque_node.shift(60)
        assert await queue.size() == 1
        assert (await queue.stats())["expired"] == 2
    with blocking.connect(url_of(disque_node)) as store:
        assert store.queue(queue.name).stats()["expired"] == 2
    words = [sys.executable, "-m", "penstock", "stats", url_of(disque_node), queue.name, "--json"]
    printed = subprocess.run(words, check=True, capture_output=True)  # noqa: ASYNC221 - nothing else is under way
    assert json.loads(printed.stdout) == {"queue": queue.name, "expired": 2, "paused": False, "type": "disque"}
