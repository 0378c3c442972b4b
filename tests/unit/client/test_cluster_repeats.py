"""What is asked again when a link breaks, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import Connection, blocking
from penstock.errors import ConnectionLost, OutcomeUnknown, PeerError, ReplyError, Unreachable
from tests.processes import wait_until
from tests.unit.client.nodes import NO_JOB, Clock, FakeNode, array, bulk, cluster, job, run

Open = Callable[..., Any]
ID = "D-aaaaaaaa-000000000000000000000000-05a1"

# Method, its arguments, the command, a reply, and what the method gives.
REPEATED: list[tuple[str, tuple[Any, ...], str, bytes, Any]] = [
    ("ack", (ID,), "ACKJOB", b":1\r\n", 1),
    ("fast_ack", (ID,), "FASTACK", b":1\r\n", 1),
    ("nack", (ID,), "NACK", b":1\r\n", 1),
    ("working", (ID,), "WORKING", b":300\r\n", 300),
    ("enqueue", (ID,), "ENQUEUE", b":1\r\n", 1),
    ("dequeue", (ID,), "DEQUEUE", b":1\r\n", 1),
    ("delete", (ID,), "DELJOB", b":1\r\n", 1),
    ("qlen", ("q",), "QLEN", b":7\r\n", 7),
    ("show", (ID,), "SHOW", b"$-1\r\n", None),
    ("pause", ("q", "in"), "PAUSE", b"+in\r\n", "in"),
    ("ack_claim", ("key",), "ACKCLAIM", b":2\r\n", 2),
    ("call", ("PING",), "PING", b"+PONG\r\n", b"PONG"),
]


@pytest.mark.parametrize(("method", "words", "command", "reply", "value"), REPEATED, ids=[row[0] for row in REPEATED])
def test_what_may_be_done_twice_is_asked_again(
    open_client: Open, method: str, words: tuple[Any, ...], command: str, reply: bytes, value: Any
) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            assert await getattr(client, method)(*words) == value
        assert len(a.asked(command)) == 2

    with FakeNode("a", **{command: [None, reply]}) as a:
        run(scenario())


def test_an_add_that_was_sent_is_not_sent_again(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            with pytest.raises(OutcomeUnknown, match=f"ADDJOB was sent.*{a.address}") as caught:
                await client.add("q", "body")
            assert isinstance(caught.value.__cause__, ConnectionLost)
        assert len(a.asked("ADDJOB")) == 1

    with FakeNode("a", ADDJOB=[None, b"+D-a\r\n"]) as a:
        run(scenario())


def test_an_unknown_outcome_is_not_caught_with_what_may_be_repeated() -> None:
    assert not issubclass(OutcomeUnknown, ConnectionLost)
    assert issubclass(OutcomeUnknown, PeerError)


def test_an_add_is_sent_again_if_the_caller_says_so(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, retry_adds=True) as client:
            assert await client.add("q", "body") == "D-a"
            assert await client.add_many("q", ["1", "2"]) == ["D-1", "D-2"]
        assert (len(a.asked("ADDJOB")), len(a.asked("ADDJOBS"))) == (2, 2)

    with FakeNode("a", ADDJOB=[None, b"+D-a\r\n"], ADDJOBS=[None, bulk("D-1", "D-2")]) as a:
        run(scenario())


def test_an_add_goes_out_once_after_the_link_was_cut_while_nothing_was_under_way(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            assert await client.add("q", "1") == "D-a"
            a.hang_up()
            wait_until(lambda: a.ended == a.connections)
            assert await client.add("q", "2") == "D-a"
        assert len(a.asked("ADDJOB")) == 2

    with FakeNode("a", ADDJOB=b"+D-a\r\n") as a:
        run(scenario())


def test_an_add_that_could_not_be_sent_goes_to_another_node(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            await client.qlen("q")
            a.down()
            wait_until(lambda: a.ended == a.connections)
            assert await client.add("q", "1") == "D-b"

    with FakeNode("a", QLEN=b":1\r\n") as a, FakeNode("b", ADDJOB=b"+D-b\r\n") as b:
        cluster(a, b)
        run(scenario())


def test_an_add_of_which_only_a_part_could_be_sent_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Connection.send_bytes
    parts: list[bytes] = []

    def send_a_part(self: Connection, data: bytes) -> None:
        if b"ADDJOB" in data and not parts:
            parts.append(data)
            self.close()
            raise ConnectionLost("in the middle of it")
        send(self, data)

    monkeypatch.setattr(Connection, "send_bytes", send_a_part)
    with FakeNode("a", ADDJOB=b"+D-a\r\n") as a, blocking.ClusterClient(a.address) as client:
        assert client.add("q", "body") == "D-a"
        assert len(a.asked("ADDJOB")) == len(parts) == 1


def test_a_fetch_whose_reply_is_lost_is_made_again_elsewhere(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            await client.hello()
            (fetched,) = await client.get("q", timeout=10)
            assert fetched.node == b.id

    def die(_: object) -> None:
        a.down()

    with FakeNode("a", GETJOB=die) as a, FakeNode("b") as b:
        b.answers["GETJOB"] = lambda _: job(b)
        cluster(a, b)
        run(scenario())


def test_a_fetch_that_is_made_again_waits_only_for_the_time_that_is_left(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, clock=clock) as client:
            assert await client.get("q", timeout=10) == []
        assert [words[1:3] for words in a.asked("GETJOB")] == [["TIMEOUT", "10000"], ["TIMEOUT", "6000"]]

    def cut(_: object) -> None:
        clock.now += 4

    clock = Clock()
    with FakeNode("a", GETJOB=[cut, NO_JOB]) as a:
        run(scenario())


def test_a_node_that_says_nothing_is_given_up_for_another(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, answer_timeout=0.1) as client:
            await client.hello()
            assert await client.qlen("q") == 7
            assert client.node == b.id

    with FakeNode("a", QLEN=b"") as a, FakeNode("b", QLEN=b":7\r\n") as b:
        cluster(a, b)
        run(scenario())


def test_an_add_that_is_not_answered_has_an_unknown_outcome(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, answer_timeout=0.1) as client:
            with pytest.raises(OutcomeUnknown, match="No answer"):
                await client.add("q", "body", timeout=0.05)

    with FakeNode("a", ADDJOB=b"") as a:
        run(scenario())


@pytest.mark.parametrize("words", [("SHUTDOWN",), ("DEBUG", "RESTART"), ("NEWCOMER", "x")])
def test_what_nobody_knows_to_be_harmless_is_not_sent_again(open_client: Open, words: tuple[str, ...]) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            with pytest.raises(OutcomeUnknown):
                await client.call(*words)
        assert len(a.asked(words[0])) == 1

    with FakeNode("a", **{words[0]: None}) as a:
        run(scenario())


def test_an_error_reply_is_raised_and_nothing_is_asked_again(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            with pytest.raises(ReplyError, match="MAXLEN") as caught:
                await client.add("q", "body", maxlen=1)
            assert caught.value.code == "MAXLEN"
        assert len(a.asked("ADDJOB")) == 1

    with FakeNode("a", ADDJOB=b"-MAXLEN Queue is already longer\r\n") as a:
        run(scenario())


def test_a_link_that_breaks_again_and_again_ends_in_an_error_in_time(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, timeout=0.6) as client:
            # On a busy machine the last attempt may not even be accepted in time.
            with pytest.raises(Unreachable, match=r"within 0\.6 s\. (Lost the connection|Could not connect)"):
                await client.qlen("q")
        assert len(a.asked("QLEN")) > 2

    with FakeNode("a", QLEN=None) as a:
        run(scenario())


def test_a_reply_that_is_none_is_not_taken_for_one(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, timeout=0.6) as client:
            with pytest.raises(Unreachable, match="does not answer like a Penstock node"):
                await client.qlen("q")

    with FakeNode("a", QLEN=b"what?\r\n") as a:
        run(scenario())


def test_a_scan_goes_on_at_its_node_even_if_that_refuses_for_a_while(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            assert [name async for name in client.queues()] == ["x", "y"]
        assert b.asked("QSCAN") == []

    pages = [array(b"$1\r\n5\r\n", bulk("x")), b"-LOADING reading\r\n", array(b"$1\r\n0\r\n", bulk("y"))]
    with FakeNode("a", QSCAN=pages) as a, FakeNode("b", QSCAN=array(b"$1\r\n0\r\n", bulk("z"))) as b:
        cluster(a, b)
        a.priorities = {b.id: 5}
        run(scenario())


def test_a_scan_goes_on_at_its_node_after_a_loss(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(f"{a.address},{b.address}") as client:
            names = [name async for name in client.queues()]
            assert names == ["x", "y"]

    pages = [array(b"$1\r\n5\r\n", bulk("x")), None, array(b"$1\r\n0\r\n", bulk("y"))]
    with FakeNode("a", QSCAN=list(pages)) as a, FakeNode("b", QSCAN=list(pages)) as b:
        cluster(a, b)
        run(scenario())
        asked = [node.asked("QSCAN") for node in (a, b)]
        assert sorted(map(len, asked)) == [0, 3]
        assert max(asked, key=len) == [["QSCAN", "0"], ["QSCAN", "5"], ["QSCAN", "5"]]
