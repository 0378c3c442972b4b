"""Leases, claims and jobs go back to the node that gave them, wherever the client is by then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.client import Job, Lease, LeaseOutcome
from penstock.errors import CallerError, Unreachable
from tests.processes import wait_until
from tests.unit.client.nodes import Clock, FakeNode, array, bulk, cluster, job, job_id, run

Open = Callable[..., Any]
OK = b"*1\r\n+OK\r\n"
LEAVING = b"-LEAVING go\r\n"


def lease_of(node: FakeNode, token: int = 17) -> Job:
    return Job("q", job_id(node), b"", lease=Lease(token, node.id, 1030.0), node=node.id)


async def fetch_and_move(client: Any, a: FakeNode, **options: Any) -> Any:
    """Take a job from a, then have the client go to b."""
    await client.hello()
    (fetched,) = await client.get("q", nohang=True, **options)
    assert fetched.node == a.id
    a.answers["QLEN"] = b"-MISCONF go away\r\n"
    await client.qlen("q")
    assert client.node != a.id
    return fetched


@pytest.mark.parametrize(
    ("method", "options", "command"),
    [("ack_lease", {}, "ACKLEASE"), ("nack_lease", {}, "NACKLEASE"), ("extend", {"lease": 5}, "EXTEND")],
)
def test_a_lease_is_ended_where_it_was_given(
    open_client: Open, method: str, options: dict[str, Any], command: str
) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            fetched = await fetch_and_move(client, a, lease=30)
            before = a.connections
            assert await getattr(client, method)(fetched, **options) == [LeaseOutcome.OK]
            assert a.connections == before  # the connection was kept
            assert client.node == b.id
        assert a.asked(command)[0][-2:] == [fetched.id, "17"]
        assert b.asked(command) == []

    with FakeNode("a", **{command: OK}) as a, FakeNode("b", QLEN=b":1\r\n") as b:
        a.answers["GETJOB"] = lambda _: job(a, token=17)
        cluster(a, b)
        run(scenario())


def test_connections_to_a_node_are_closed_once_its_leases_are_over(open_client: Open) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with open_client(a.address, clock=clock, hello_every=20) as client:
            await fetch_and_move(client, a, lease=30)
            clock.now += 25
            await client.qlen("q")
            assert a.ended == 0
            clock.now += 25
            await client.qlen("q")
            wait_until(lambda: a.ended == a.connections)
            assert client.node == b.id

    with FakeNode("a") as a, FakeNode("b", QLEN=b":1\r\n") as b:
        a.answers["GETJOB"] = lambda _: job(a, token=17)
        cluster(a, b)
        run(scenario())


def test_an_extended_lease_keeps_its_connections(open_client: Open) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with open_client(a.address, clock=clock, hello_every=20) as client:
            fetched = await fetch_and_move(client, a, lease=30)
            await client.extend(fetched, lease=600)
            assert fetched.lease.deadline == clock.now + 600
            clock.now += 500
            await client.qlen("q")
            assert a.ended == 0

    with FakeNode("a", EXTEND=OK) as a, FakeNode("b", QLEN=b":1\r\n") as b:
        a.answers["GETJOB"] = lambda _: job(a, token=17)
        cluster(a, b)
        run(scenario())


def test_a_lease_that_could_not_be_extended_has_its_old_deadline(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            held = lease_of(a)
            assert await client.extend(held, lease=600) == [LeaseOutcome.STALE]
            assert held.lease is not None
            assert held.lease.deadline == 1030.0

    with FakeNode("a", EXTEND=b"*1\r\n+STALE\r\n") as a:
        run(scenario())


def test_leases_of_several_nodes_are_ended_at_each_and_reported_in_order(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            outcomes = await client.ack_lease(lease_of(b), lease_of(a), lease_of(b))
        assert outcomes == [LeaseOutcome.OK, LeaseOutcome.STALE, LeaseOutcome.NOJOB]
        assert (len(a.asked("ACKLEASE")), len(b.asked("ACKLEASE"))) == (1, 1)

    with FakeNode("a", ACKLEASE=b"*1\r\n+STALE\r\n") as a, FakeNode("b", ACKLEASE=b"*2\r\n+OK\r\n+NOJOB\r\n") as b:
        cluster(a, b)
        run(scenario())


def test_the_leases_of_other_nodes_are_ended_before_a_failure_is_reported(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, timeout=0.6) as client:
            await client.hello()
            b.down()
            with pytest.raises(Unreachable, match=b.address):
                await client.ack_lease(lease_of(b), lease_of(a))
        assert len(a.asked("ACKLEASE")) == 1

    with FakeNode("a", ACKLEASE=OK) as a, FakeNode("b") as b:
        cluster(a, b)
        run(scenario())


def test_a_node_that_comes_back_in_time_still_gets_its_ack(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            await client.hello()
            assert await client.ack_lease(lease_of(b)) == [LeaseOutcome.OK]
            assert client.node == a.id
        assert len(b.asked("ACKLEASE")) == 2

    with FakeNode("a") as a, FakeNode("b", ACKLEASE=[b"-LOADING reading\r\n", OK]) as b:
        cluster(a, b)
        run(scenario())


def test_a_node_that_goes_on_refusing_is_asked_with_pauses(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, timeout=0.6) as client:
            with pytest.raises(Unreachable, match="LOADING"):
                await client.ack_lease(lease_of(a))
        assert 1 < len(a.asked("ACKLEASE")) < 10

    with FakeNode("a", ACKLEASE=b"-LOADING reading\r\n") as a:
        run(scenario())


def test_the_lease_of_a_node_that_nobody_knows_is_an_error_at_once(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, clock=Clock()) as client:
            stranger = Job("q", job_id(a), b"", lease=Lease(1, "z" * 40, 0.0))
            with pytest.raises(Unreachable, match=f"^The node {'z' * 40} is not known in this cluster.$"):
                await client.ack_lease(stranger)

    with FakeNode("a") as a:
        run(scenario())


@pytest.mark.parametrize("method", ["ack_lease", "nack_lease", "release", "extend"])
def test_what_has_no_lease_is_refused_with_what_to_give(open_client: Open, method: str) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            call = partial(getattr(client, method), **({"lease": 5} if method == "extend" else {}))
            for job in (job_id(a), Job("q", job_id(a), b"")):
                with pytest.raises(CallerError, match="a Job that was fetched with a lease is needed"):
                    await call(job)

    with FakeNode("a") as a:
        run(scenario())


def test_another_node_at_the_address_of_one_that_is_gone_gets_no_token(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, timeout=0.6) as client:
            await client.hello()
            held = lease_of(b)
            b.id = "c" * 40
            with pytest.raises(Unreachable, match=f"is the node {'c' * 40}, not {'b' * 40}"):
                await client.ack_lease(held)
        assert b.asked("ACKLEASE") == []

    with FakeNode("a") as a, FakeNode("b", ACKLEASE=OK) as b:
        cluster(a, b)
        run(scenario())


@pytest.mark.parametrize("method", ["ack", "nack", "working", "enqueue", "fast_ack"])
def test_a_job_without_a_lease_goes_to_the_node_that_gave_it_too(open_client: Open, method: str) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            fetched = await fetch_and_move(client, a)
            assert await getattr(client, method)(fetched) == 1
            assert await getattr(client, method)(fetched.id) == 2  # an id alone doesn't say where it is from

    names = ["ACKJOB", "NACK", "WORKING", "ENQUEUE", "FASTACK"]
    with FakeNode("a", **dict.fromkeys(names, b":1\r\n")) as a, FakeNode("b", **dict.fromkeys(names, b":2\r\n")) as b:
        a.answers["GETJOB"] = lambda _: job(a)
        b.answers["QLEN"] = b":1\r\n"
        cluster(a, b)
        run(scenario())


def test_a_job_of_a_node_that_is_gone_is_acked_at_another(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            fetched = await fetch_and_move(client, a)
            a.down()
            wait_until(lambda: a.ended == a.connections)
            await client.qlen("q")
            assert await client.ack(fetched) == 2

    with FakeNode("a") as a, FakeNode("b", ACKJOB=b":2\r\n", QLEN=b":1\r\n") as b:
        a.answers["GETJOB"] = lambda _: job(a)
        cluster(a, b)
        run(scenario())


# Claims


def claimed(node: FakeNode) -> bytes:
    return array(bulk("q", job_id(node), "body", 0, 0, 1))


def test_a_claim_is_asked_for_and_ended_at_the_node_that_holds_it(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            await client.hello()
            claim = await client.claim("key", "q", count=5)
            assert claim.node == a.id
            a.answers["QLEN"] = LEAVING
            await client.qlen("q")
            assert client.node == b.id
            assert (await client.claim("key", "q")).node == a.id
            assert await client.extend_claim("key", lease=5) == 1
            assert await client.ack_claim(claim) == 1
        assert [words[0] for words in b.asked()] == ["QLEN"]

    with FakeNode("a", EXTENDCLAIM=b":1\r\n", ACKCLAIM=b":1\r\n") as a, FakeNode("b", QLEN=b":1\r\n") as b:
        a.answers["CLAIM"] = lambda _: claimed(a)
        cluster(a, b)
        run(scenario())


def test_another_client_must_be_given_the_node_that_holds_a_claim(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            assert (await client.claim("key", "q", node=b.id)).node == b.id
            assert await client.nack_claim("key", node=b.id) == 1
        assert a.asked() == []

    with FakeNode("a") as a, FakeNode("b", NACKCLAIM=b":1\r\n") as b:
        b.answers["CLAIM"] = lambda _: claimed(b)
        cluster(a, b)
        run(scenario())


def test_a_claim_that_is_over_may_be_made_again_anywhere(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            await client.hello()
            await client.claim("key", "q")
            await client.ack_claim("key")
            a.answers["CLAIM"] = LEAVING
            assert (await client.claim("key", "q")).node == b.id

    with FakeNode("a", ACKCLAIM=b":1\r\n") as a, FakeNode("b") as b:
        a.answers["CLAIM"] = lambda _: claimed(a)
        b.answers["CLAIM"] = lambda _: claimed(b)
        cluster(a, b)
        run(scenario())


def test_a_claim_is_not_moved_to_another_node_behind_the_callers_back(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, timeout=0.6) as client:
            await client.hello()
            await client.claim("key", "q")
            a.down()
            with pytest.raises(Unreachable):
                await client.claim("key", "q")
        assert b.asked("CLAIM") == []

    with FakeNode("a") as a, FakeNode("b") as b:
        a.answers["CLAIM"] = lambda _: claimed(a)
        cluster(a, b)
        run(scenario())
