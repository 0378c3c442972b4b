"""Which node a cluster client is on: seeds, HELLO, refusals, and what it says when no node is left."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from penstock.errors import AuthenticationError, CallerError, Unreachable
from tests.processes import free_port, wait_until
from tests.unit.client.nodes import NO_JOB, Clock, FakeNode, bulk, cluster, job, run

Open = Callable[..., Any]
LEAVING = b"-LEAVING This node is leaving the cluster, please connect to a different one\r\n"
SEVEN = b":7\r\n"


def seeds(*nodes: FakeNode) -> str:
    return ",".join(node.address for node in nodes)


def test_seeds_are_tried_in_the_order_of_the_randomness_given(open_client: Open) -> None:
    async def first(seed: int) -> str:
        async with open_client(seeds(a, b), randomness=random.Random(seed)) as client:
            await client.qlen("q")
            return str(client.node)

    with FakeNode("a", QLEN=SEVEN) as a, FakeNode("b", QLEN=SEVEN) as b:
        found = [run(first(seed)) for seed in range(12)]
        assert found == [run(first(seed)) for seed in range(12)]
        assert set(found) == {a.id, b.id}


def test_a_seed_that_is_down_is_passed_over(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(f"127.0.0.1:{free_port()},{a.address},127.0.0.1:{free_port()}") as client:
            assert await client.qlen("q") == 7

    with FakeNode("a", QLEN=SEVEN) as a:
        run(scenario())


def test_nodes_that_only_hello_names_are_found_when_the_seed_is_gone(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            await client.qlen("q")
            assert {node.id for node in client.nodes} == {a.id, b.id}
            a.down()
            assert await client.qlen("q") == 7
            assert client.node == b.id
            b.priorities = {a.id: 100}
            assert len(b.asked("QLEN")) == 1

    with FakeNode("a", QLEN=SEVEN) as a, FakeNode("b", QLEN=SEVEN) as b:
        cluster(a, b)
        run(scenario())


def test_the_node_of_the_lowest_priority_is_chosen(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            await client.qlen("q")
            assert client.node == c.id

    with FakeNode("a", QLEN=SEVEN) as a, FakeNode("b", QLEN=SEVEN) as b, FakeNode("c", QLEN=SEVEN) as c:
        a.priority, b.priority = 100, 5
        cluster(a, b, c)
        run(scenario())


def test_a_node_that_leaves_is_good_enough_if_there_is_no_other(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            assert await client.qlen("q") == 7
            assert client.node == a.id

    with FakeNode("a", QLEN=SEVEN) as a, FakeNode("b") as b:
        a.priority = 100
        cluster(a, b)
        b.down()
        run(scenario())


def test_a_node_that_says_it_leaves_is_left_and_the_job_fetched_elsewhere(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, sticky=True) as client:
            await client.qlen("q")
            assert client.node == a.id
            (fetched,) = await client.get("q", timeout=5)
            assert fetched.node == b.id
            assert client.node == b.id

    with FakeNode("a", GETJOB=LEAVING) as a, FakeNode("b") as b:
        cluster(a, b)
        b.answers["GETJOB"] = lambda _: job(b)
        run(scenario())


@pytest.mark.parametrize("refusal", [b"-LOADING reading\r\n", b"-MISCONF disk full\r\n"])
def test_a_node_that_refuses_an_add_is_left_for_another(open_client: Open, refusal: bytes) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            await client.qlen("q")
            assert await client.add("q", "body") == "D-b"
        assert len(a.asked("ADDJOB")) == 1

    with FakeNode("a", ADDJOB=refusal) as a, FakeNode("b", ADDJOB=b"+D-b\r\n") as b:
        cluster(a, b)
        run(scenario())


def test_a_node_alone_that_is_loading_is_asked_until_it_has_loaded(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            assert await client.add("q", "body") == "D-a"

    with FakeNode("a", ADDJOB=[b"-LOADING reading\r\n", b"-LOADING reading\r\n", b"+D-a\r\n"]) as a:
        run(scenario())
        assert len(a.asked("ADDJOB")) == 3


def test_a_node_that_refuses_hello_while_it_loads_is_tried_again(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            assert await client.qlen("q") == 7

    with FakeNode("a", QLEN=SEVEN) as a:
        a.answers["HELLO"] = [b"-LOADING reading\r\n", b"-LOADING reading\r\n", lambda _: a._hello()]
        run(scenario())


def test_when_nobody_answers_the_error_lists_what_every_node_said(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(f"127.0.0.1:{port},{a.address},{b.address}", timeout=1.5) as client:
            with pytest.raises(Unreachable) as caught:
                await client.qlen("q")
        error = caught.value
        assert error.said[f"127.0.0.1:{port}"].endswith("Connection refused")
        assert error.said[a.address] == "LOADING reading"
        assert "does not answer like a Penstock node" in error.said[b.address]
        assert str(error).startswith("No node executed QLEN within 1.5 s. ")
        assert all(words in str(error) for words in error.said.values())

    port = free_port()
    with FakeNode("a", HELLO=b"-LOADING reading\r\n") as a, FakeNode("b", HELLO=b"HTTP/1.1 400\r\n") as b:
        run(scenario())


def test_a_host_that_does_not_take_connections_is_given_up_in_time(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(f"127.0.0.1:{port}", timeout=0.5, connect_timeout=0.1) as client:
            with pytest.raises(Unreachable, match="no answer"):
                await client.qlen("q")

    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as waiting:
        port = listener.getsockname()[1]
        for _ in range(4):  # nobody takes them, and there is no room for more
            link = waiting.enter_context(socket.socket())
            link.setblocking(False)
            link.connect_ex(("127.0.0.1", port))
        run(scenario())


def test_a_server_that_is_not_a_node_is_recognized_by_its_hello(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, timeout=0.6) as client:
            with pytest.raises(Unreachable, match="not that of a Disque or Penstock node"):
                await client.qlen("q")

    with FakeNode("a", HELLO=bulk("server", "redis", "version", "7")) as a:
        run(scenario())


def test_a_password_is_shown_before_anything_else(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(f"disque://:secret@{a.address}") as client:
            await client.qlen("q")

    with FakeNode("a", QLEN=SEVEN) as a:
        run(scenario())
        assert a.requests[:2] == [[b"AUTH", b"secret"], [b"HELLO"]]


def test_a_wrong_password_is_an_error_at_once(open_client: Open) -> None:
    async def scenario() -> None:
        clock = Clock()  # no time passes, so it isn't a timeout that ends this
        async with open_client(seeds(a, b), password="wrong", clock=clock) as client:
            with pytest.raises(AuthenticationError, match="invalid password"):
                await client.qlen("q")

    refused = b"-ERR invalid password\r\n"
    with FakeNode("a", AUTH=refused) as a, FakeNode("b", AUTH=refused) as b:
        run(scenario())


def test_a_missing_password_is_an_error_at_once(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, clock=Clock()) as client:
            with pytest.raises(AuthenticationError, match="Authentication required"):
                await client.qlen("q")

    with FakeNode("a", HELLO=b"-NOAUTH Authentication required.\r\n") as a:
        run(scenario())


def test_hello_is_read_again_after_a_while_and_a_node_that_leaves_is_left(open_client: Open) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with open_client(a.address, hello_every=30, clock=clock) as client:
            await client.qlen("q")
            hellos = len(a.asked("HELLO"))
            a.priority = 100
            clock.now += 29.9
            await client.qlen("q")
            assert (client.node, len(a.asked("HELLO"))) == (a.id, hellos)
            clock.now += 0.1
            await client.qlen("q")
            assert client.node == b.id

    with FakeNode("a", QLEN=SEVEN) as a, FakeNode("b", QLEN=SEVEN) as b:
        cluster(a, b)
        run(scenario())


def test_if_the_better_node_cannot_be_reached_the_client_stays(open_client: Open) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with open_client(a.address, clock=clock) as client:
            await client.qlen("q")
            a.priority = 100
            b.down()
            clock.now += 31
            assert await client.qlen("q") == 7
            assert client.node == a.id

    with FakeNode("a", QLEN=SEVEN) as a, FakeNode("b") as b:
        cluster(a, b)
        run(scenario())


@pytest.mark.parametrize("sticky", [True, False])
def test_after_a_loss_a_sticky_client_comes_back_to_its_node(open_client: Open, sticky: bool) -> None:
    async def scenario(seed: int) -> bool:
        async with open_client(seeds(a, b), sticky=sticky, randomness=random.Random(seed)) as client:
            await client.qlen("q")
            before = client.node
            a.hang_up()
            b.hang_up()
            await client.qlen("q")
            return bool(client.node == before)

    with FakeNode("a", QLEN=SEVEN) as a, FakeNode("b", QLEN=SEVEN) as b:
        cluster(a, b)
        came_back = [run(scenario(seed)) for seed in range(12)]
        assert all(came_back) is sticky


@pytest.mark.parametrize("trouble", [b"-MISCONF disk full\r\n", b""], ids=["refuses", "is silent"])
def test_a_node_in_trouble_is_not_come_back_to_for_a_while(open_client: Open, trouble: bytes) -> None:
    async def scenario(seed: int) -> str:
        chance = random.Random(seed)
        async with open_client(a.address, sticky=False, answer_timeout=0.2, randomness=chance) as client:
            await client.hello()
            await client.qlen("q")
            b.hang_up()
            await client.call("PING")
            return str(client.node)

    with FakeNode("a", QLEN=trouble) as a, FakeNode("b", QLEN=SEVEN) as b:
        cluster(a, b)
        assert {run(scenario(seed)) for seed in range(8)} == {b.id}


def test_two_names_of_one_node_make_one_connection(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(f"127.0.0.1:{a.port},localhost:{a.port}") as client:
            assert await client.qlen("q") == 7
            await client.qlen("q")
            wait_until(lambda: a.ended == a.connections - 1)

    with FakeNode("a", QLEN=SEVEN) as a:
        a.priority = 100  # so that any other address is worth a try
        run(scenario())


def test_addresses_that_hello_returns_are_translated(open_client: Open) -> None:
    async def scenario() -> None:
        asked = []

        def translate(host: str, port: int) -> tuple[str, int]:
            asked.append((host, port))
            return host, b.port

        async with open_client(a.address, translate=translate) as client:
            await client.qlen("q")
            a.down()
            assert await client.qlen("q") == 7
        assert ("127.0.0.1", 9) in asked

    with FakeNode("a", QLEN=SEVEN) as a, FakeNode("b", QLEN=SEVEN) as b:
        b.told_port = 9
        cluster(a, b)
        run(scenario())


def test_the_nodes_of_the_cluster_can_be_asked_for(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            assert client.node is None
            hello = await client.hello()
            assert hello.node == client.node == a.id
            assert [node.id for node in hello.nodes] == [a.id, b.id]
            a.peers = []
            await client.hello()
            assert [node.id for node in client.nodes] == [a.id]

    with FakeNode("a") as a, FakeNode("b") as b:
        cluster(a, b)
        run(scenario())


def test_a_closed_client_refuses_to_be_used(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            await client.qlen("q")
        with pytest.raises(CallerError, match="closed"):
            await client.qlen("q")

    with FakeNode("a", QLEN=SEVEN) as a:
        run(scenario())


def test_no_connection_is_made_before_it_is_needed(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address):
            pass

    with FakeNode("a") as a:
        run(scenario())
        assert a.connections == 0


def test_a_get_that_waits_forever_is_asked_in_rounds(open_client: Open) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with open_client(a.address, clock=clock) as client:
            (fetched,) = await client.get("q")
            assert fetched.body == b"body"
        assert [words[1:3] for words in a.asked("GETJOB")] == [["TIMEOUT", "30000"]] * 3

    with FakeNode("a") as a:
        a.answers["GETJOB"] = [NO_JOB, NO_JOB, lambda _: job(a)]
        run(scenario())
