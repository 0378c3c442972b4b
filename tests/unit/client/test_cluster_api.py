"""Every method: the words it sends, and the value it makes of the reply."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import penstock.client
from penstock.client import Claim, ClusterClient, Job, Lease, LeaseOutcome, blocking
from penstock.errors import CallerError, PartlyAdded, ReplyError
from tests.unit.client.nodes import NO_JOB, Clock, FakeNode, array, bulk, run

Open = Callable[..., Any]
ID = "D-aaaaaaaa-000000000000000000000001-05a1"
OTHER_ID = "D-aaaaaaaa-000000000000000000000002-05a1"
NODE = "a" * 40
SHOWN = bulk(
    "id", ID, "queue", "q", "state", "queued", "repl", 1, "ttl", 2, "ctime", 3, "delay", 4, "retry", 5, "nacks", 6,
    "additional-deliveries", 7, "nodes-delivered",
).replace(b"*21", b"*30") + array(bulk(NODE)[4:]) + b"$15\r\nnodes-confirmed\r\n*0\r\n" + bulk(
    "next-requeue-within", 8, "next-awake-within", 9, "body", "text"
)[4:]  # fmt: skip


def leased(job_id: str = ID, token: int = 17) -> Job:
    return Job("q", job_id, b"body", lease=Lease(token, NODE, 1000.0), node=NODE)


# Method, arguments, words on the wire, reply, value.
Row = tuple[str, tuple[Any, ...], dict[str, Any], str, bytes, Any]
CALLS: list[Row] = [
    ("add", ("q", "b"), {}, "ADDJOB q b 5000", b"+D-x\r\n", "D-x"),
    ("add", ("q", b"b"), {"timeout": None}, "ADDJOB q b 0", b"+D-x\r\n", "D-x"),
    (
        "add",
        (b"q", "b"),
        {"timeout": 0.1, "replicate": 1, "delay": 2, "retry": 3, "ttl": 4, "maxlen": 5, "asynchronous": True},
        "ADDJOB q b 100 REPLICATE 1 DELAY 2 RETRY 3 TTL 4 MAXLEN 5 ASYNC",
        b"+D-x\r\n",
        "D-x",
    ),
    ("add_many", ("q", ["a", "b"]), {}, "ADDJOBS q 5000 BODIES a b", bulk("D-1", "D-2"), ["D-1", "D-2"]),
    (
        "add_many",
        ("q", ["a"]),
        {"retry": 0, "replicate": 1},
        "ADDJOBS q 5000 REPLICATE 1 RETRY 0 BODIES a",
        bulk("D-1"),
        ["D-1"],
    ),
    ("get", ("q",), {"nohang": True}, "GETJOB NOHANG COUNT 1 FROM q", NO_JOB, []),
    ("get", ("q",), {"timeout": 0}, "GETJOB NOHANG COUNT 1 FROM q", NO_JOB, []),
    ("get", (["a", b"b"],), {"timeout": 2.5, "count": 3}, "GETJOB TIMEOUT 2500 COUNT 3 FROM a b", NO_JOB, []),
    (
        "get",
        ("q",),
        {"timeout": 1},
        "GETJOB TIMEOUT 1000 COUNT 1 FROM q",
        array(bulk("q", ID, "body")),
        [Job("q", ID, b"body", node=NODE)],
    ),
    (
        "get",
        ("q",),
        {"nohang": True, "counters": True, "lease": 30},
        "GETJOB NOHANG COUNT 1 WITHCOUNTERS LEASE 30000 FROM q",
        array(bulk("q", ID, "body", "17", "nacks", 1, "additional-deliveries", 2)),
        [Job("q", ID, b"body", 1, 2, Lease(17, NODE, 1030.0), NODE)],
    ),
    (
        "get",
        ("q",),
        {"nohang": True, "counters": True, "created": True},
        "GETJOB NOHANG COUNT 1 WITHCOUNTERS WITHCTIME FROM q",
        array(bulk("q", ID, "body", "nacks", 1, "additional-deliveries", 2, "ctime", 3)),
        [Job("q", ID, b"body", 1, 2, node=NODE, created_ns=3)],
    ),
    (
        "get",
        ("q",),
        {"nohang": True, "created": True},
        "GETJOB NOHANG COUNT 1 WITHCTIME FROM q",
        array(bulk("q", ID, "body", "ctime", 3)),
        [Job("q", ID, b"body", node=NODE, created_ns=3)],
    ),
    (
        "get",
        ("q",),
        {"nohang": True, "counters": True, "lease": 30, "begin": 2},
        "GETJOB NOHANG COUNT 1 WITHCOUNTERS LEASE 30000 BEGIN 2 FROM q",
        array(bulk("q", ID, "body", "17", "nacks", 1, "additional-deliveries", 2, "tries", 4, "begun", 0)),
        [Job("q", ID, b"body", 1, 2, Lease(17, NODE, 1030.0), NODE, tries=4, has_begun=False)],
    ),
    (
        "get",
        ("q",),
        {"nohang": True, "created": True, "lease": 30, "begin": -1},
        "GETJOB NOHANG COUNT 1 WITHCTIME LEASE 30000 BEGIN ALL FROM q",
        array(bulk("q", ID, "body", "17", "nacks", 1, "additional-deliveries", 2, "tries", 4, "begun", 1, "ctime", 3)),
        [Job("q", ID, b"body", 1, 2, Lease(17, NODE, 1030.0), NODE, 3, 4)],
    ),
    ("ack", (ID, OTHER_ID), {}, f"ACKJOB {ID} {OTHER_ID}", b":2\r\n", 2),
    ("ack", (Job("q", ID, b""),), {}, f"ACKJOB {ID}", b":1\r\n", 1),
    ("fast_ack", (ID,), {}, f"FASTACK {ID}", b":1\r\n", 1),
    ("nack", (ID,), {}, f"NACK {ID}", b":1\r\n", 1),
    ("nack", (ID,), {"after": 1.5}, f"NACK AFTER 1500 {ID}", b":1\r\n", 1),
    ("enqueue", (ID,), {}, f"ENQUEUE {ID}", b":1\r\n", 1),
    ("dequeue", (ID,), {}, f"DEQUEUE {ID}", b":1\r\n", 1),
    ("delete", (ID,), {}, f"DELJOB {ID}", b":1\r\n", 1),
    ("working", (ID,), {}, f"WORKING {ID}", b":300\r\n", 300),
    ("ack_lease", (leased(),), {}, f"ACKLEASE {ID} 17", b"*1\r\n+OK\r\n", [LeaseOutcome.OK]),
    (
        "ack_lease",
        (leased(), leased(OTHER_ID, 18)),
        {},
        f"ACKLEASE {ID} 17 {OTHER_ID} 18",
        b"*2\r\n+STALE\r\n+NOJOB\r\n",
        [LeaseOutcome.STALE, LeaseOutcome.NOJOB],
    ),
    ("nack_lease", (leased(),), {}, f"NACKLEASE 0 {ID} 17", b"*1\r\n+OK\r\n", ["OK"]),
    ("nack_lease", (leased(),), {"after": 2}, f"NACKLEASE 2000 {ID} 17", b"*1\r\n+OK\r\n", ["OK"]),
    ("release", (leased(),), {}, f"RELEASE {ID} 17", b"*1\r\n+OK\r\n", ["OK"]),
    ("extend", (leased(),), {"lease": 60}, f"EXTEND 60000 {ID} 17", b"*1\r\n+OK\r\n", ["OK"]),
    (
        "claim",
        ("key", ["a", "b"]),
        {"count": 5, "lease": 9},
        "CLAIM key COUNT 5 LEASE 9000 FROM a b",
        array(bulk("a", ID, "body", 1, 2, 3)),
        Claim("key", NODE, [Job("a", ID, b"body", 1, 2, None, NODE, 3)]),
    ),
    ("claim", (b"key", "q"), {}, "CLAIM key COUNT 1 LEASE 120000 FROM q", b"*0\r\n", Claim(b"key", NODE, [])),
    ("ack_claim", ("key",), {}, "ACKCLAIM key", b":5\r\n", 5),
    ("nack_claim", ("key",), {}, "NACKCLAIM key 0", b":5\r\n", 5),
    ("nack_claim", (b"key",), {"after": 1}, "NACKCLAIM key 1000", b":5\r\n", 5),
    ("extend_claim", ("key",), {"lease": 1}, "EXTENDCLAIM key 1000", b":5\r\n", 5),
    ("show", (ID,), {}, f"SHOW {ID}", b"$-1\r\n", None),
    ("peek", ("q",), {}, "QPEEK q 1", array(bulk("q", ID, "body")), [Job("q", ID, b"body", node=NODE)]),
    ("peek", ("q", -2), {}, "QPEEK q -2", b"*0\r\n", []),
    ("qlen", ("q",), {}, "QLEN q", b":7\r\n", 7),
    ("qstat", ("q",), {}, "QSTAT q", NO_JOB, None),
    ("pause", ("q",), {}, "PAUSE q state", b"+none\r\n", "none"),
    ("pause", ("q", "all"), {"broadcast": True}, "PAUSE q all BCAST", b"+all\r\n", "all"),
    ("info", (), {}, "INFO", b"$8\r\n# A\r\nb:c\r\n", {"b": "c"}),
    ("info", ("jobs",), {}, "INFO jobs", b"$0\r\n\r\n", {}),
    ("call_many", ([("ANY", 1)],), {}, "ANY 1", b":7\r\n", [7]),
    ("call", ("ANY", 1, b"\xc3\xa4"), {}, "ANY 1 ä", b"*2\r\n:1\r\n$-1\r\n", [1, None]),
]


@pytest.mark.parametrize(
    ("method", "args", "options", "words", "reply", "value"),
    CALLS,
    ids=[f"{row[0]}-{at}" for at, row in enumerate(CALLS)],
)
def test_a_method_sends_its_words_and_returns_a_value(
    open_client: Open, method: str, args: tuple[Any, ...], options: dict[str, Any], words: str, reply: bytes, value: Any
) -> None:
    async def scenario() -> None:
        async with open_client(a.address, clock=Clock()) as client:
            assert await getattr(client, method)(*args, **options) == value
        assert a.asked() == [words.split()]

    with FakeNode("a", **{words.partition(" ")[0]: reply}) as a:
        run(scenario())


def test_details_come_as_values(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            details = await client.show(ID)
            assert (details.id, details.queue, details.retry, details.body) == (ID, "q", 5, b"text")
            assert details.nodes_delivered == [NODE]
            queue = await client.qstat("q")
            assert (queue.name, queue.length, queue.pause) == ("q", 5, "in")

    with FakeNode("a", SHOW=SHOWN, QSTAT=bulk("name", "q", "len", 5, "pause", "in")) as a:
        run(scenario())


def test_scans_are_walked_to_their_end(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            assert [name async for name in client.queues(minlen=1, maxlen=9)] == ["x", b"\xff", "z"]
            assert [job_id async for job_id in client.job_ids(queue="q", states=["queued", "active"])] == [ID]
            assert [details.id async for details in client.jobs(queue="q", states=["acked"])] == [ID]
        assert a.asked() == [
            ["QSCAN", "0", "MINLEN", "1", "MAXLEN", "9"],
            ["QSCAN", "17", "MINLEN", "1", "MAXLEN", "9"],
            ["JSCAN", "0", "QUEUE", "q", "STATE", "queued", "STATE", "active"],
            ["JSCAN", "0", "QUEUE", "q", "STATE", "acked", "REPLY", "all"],
        ]

    queues = [array(b"$2\r\n17\r\n", bulk("x", b"\xff")), array(b"$1\r\n0\r\n", bulk("z"))]
    jobs = [array(b"$1\r\n0\r\n", array(b"+%b\r\n" % ID.encode())), array(b"$1\r\n0\r\n", array(SHOWN))]
    with FakeNode("a", QSCAN=queues, JSCAN=jobs) as a:
        run(scenario())


@pytest.mark.parametrize(
    ("method", "args"),
    [("qlen", ("q",)), ("peek", ("q",)), ("get", ("q",)), ("claim", ("k", "q")), ("add_many", ("q", ["b"])),
     ("show", (ID,)), ("call", ("ANY",)), ("hello", ())],
)  # fmt: skip
def test_an_error_reply_is_raised(open_client: Open, method: str, args: tuple[Any, ...]) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            await client.call("PING")
            a.answers = {"HELLO": b"-OOM full\r\n"} | dict.fromkeys(
                ["QLEN", "QPEEK", "GETJOB", "CLAIM", "ADDJOBS", "SHOW", "ANY"], b"-OOM full\r\n"
            )
            with pytest.raises(ReplyError) as caught:
                await getattr(client, method)(*args)
            assert caught.value.code == "OOM"

    with FakeNode("a") as a:
        run(scenario())


@pytest.mark.parametrize("method", ["queues", "jobs", "job_ids"])
def test_an_error_in_a_scan_is_raised(open_client: Open, method: str) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            with pytest.raises(ReplyError, match="cursor"):
                async for _ in getattr(client, method)():
                    pass

    with FakeNode("a", QSCAN=b"-ERR cursor\r\n", JSCAN=b"-ERR cursor\r\n") as a:
        run(scenario())


@pytest.mark.parametrize(
    ("method", "args", "options"),
    [
        ("get", ([],), {}),
        ("get", ("q",), {"timeout": -1}),
        ("get", ("q",), {"lease": "x"}),
        ("add", ("q", {}), {}),
        ("add", ("q", "b"), {"timeout": 0}),
        ("add", ("q", "b"), {"delay": 0.5}),
        ("nack", (ID,), {"after": -1}),
        ("ack_lease", (Job("q", ID, b""),), {}),
        ("extend", (leased(),), {"lease": -1}),
        ("call", (), {}),
        ("call_many", ([("QLEN", "q"), ("SHOW", ID)],), {}),
        ("call_many", ([("GETJOB", "FROM", "q")],), {}),
        ("call_many", ([("QUIT",)],), {}),
    ],
)
def test_the_callers_mistakes_are_reported_before_anything_is_sent(
    open_client: Open, method: str, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            with pytest.raises(CallerError):
                await getattr(client, method)(*args, **options)

    with FakeNode("a") as a:
        run(scenario())
        assert a.requests == []


def test_nothing_to_do_is_done_without_a_node(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            assert await client.ack() == 0
            assert await client.ack_lease() == []
            assert await client.add_many("q", []) == []
            assert await client.call_many([]) == []

    with FakeNode("a") as a:
        run(scenario())
        assert a.requests == []


# Adding many


def test_a_node_that_does_not_know_addjobs_gets_one_add_for_each_body(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            assert await client.add_many("q", ["1", "2"], retry=9) == ["D-1", "D-2"]
            assert await client.add_many("q", ["3"]) == ["D-3"]
        assert [words[0] for words in a.asked()] == ["ADDJOBS", "ADDJOB", "ADDJOB", "ADDJOB"]
        assert a.asked("ADDJOB")[0] == ["ADDJOB", "q", "1", "5000", "RETRY", "9"]

    with FakeNode("a", ADDJOBS=b"-ERR unknown command 'ADDJOBS'\r\n") as a:
        a.answers["ADDJOB"] = lambda request: b"+D-%b\r\n" % request[2]
        run(scenario())


def test_adds_of_which_some_are_refused_say_which(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            with pytest.raises(PartlyAdded, match=r"2 of 3 jobs were added\. MAXLEN") as caught:
                await client.add_many("q", ["1", "2", "3"])
            assert caught.value.ids == ["D-1", None, "D-3"]
            assert isinstance(caught.value.__cause__, ReplyError)

    def answer(request: list[bytes]) -> bytes:
        return b"-MAXLEN full\r\n" if request[2] == b"2" else b"+D-%b\r\n" % request[2]

    with FakeNode("a", ADDJOBS=b"-ERR unknown command 'ADDJOBS'\r\n", ADDJOB=answer) as a:
        run(scenario())


def test_adds_of_which_all_are_refused_raise_what_the_node_said(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            with pytest.raises(ReplyError, match="PAUSED"):
                await client.add_many("q", ["1", "2"])

    with FakeNode("a", ADDJOBS=b"-ERR unknown command 'ADDJOBS'\r\n", ADDJOB=b"-PAUSED later\r\n") as a:
        run(scenario())


def test_more_bodies_than_go_into_one_command_are_added_in_several(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            ids = await client.add_many("q", map(str, range(2500)))
            assert ids == [f"D-{number}" for number in range(2500)]
        assert len(a.asked("ADDJOBS")) == 3

    with FakeNode("a") as a:
        a.answers["ADDJOBS"] = lambda request: bulk(*(b"D-" + body for body in request[4:]))
        run(scenario())


def test_what_was_added_before_a_failure_is_not_forgotten(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            with pytest.raises(PartlyAdded) as caught:
                await client.add_many("q", map(str, range(2500)))
        ids = caught.value.ids
        assert ids[:1000] == ["D-x"] * 1000
        assert ids[1000:] == [None] * 1500

    with FakeNode("a", ADDJOBS=[bulk(*["D-x"] * 1000), b"-PAUSED later\r\n"]) as a:
        run(scenario())


# Both forms, and names


def test_both_forms_have_the_same_methods_with_the_same_arguments() -> None:
    def signatures(kind: type) -> dict[str, list[str]]:
        return {
            name.replace("__a", "__"): [str(parameter) for parameter in inspect.signature(value).parameters.values()]
            for name, value in inspect.getmembers(kind, inspect.isfunction)
        }

    assert signatures(ClusterClient) == signatures(blocking.ClusterClient)


def test_the_public_names_are_these() -> None:
    assert sorted(penstock.client.__all__) == [
        "Claim", "ClusterClient", "Connection", "Hello", "Job", "JobDetails", "Lease", "LeaseOutcome", "Node",
        "QueueDetails",
    ]  # fmt: skip
    assert blocking.__all__ == ["ClusterClient"]
    assert all(hasattr(penstock.client, name) for name in penstock.client.__all__)


@pytest.mark.parametrize("kind", [ClusterClient, blocking.ClusterClient])
def test_every_public_method_is_documented(kind: type) -> None:
    undocumented = [name for name, value in vars(kind).items() if not name.startswith("_") and not value.__doc__]
    assert undocumented == []
