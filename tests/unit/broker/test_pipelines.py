"""Requests sent together do what they do one by one, also where the broker runs several of them as one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.harness import LocalServer

Request = list[bytes | str | int]

ADDS: list[Request] = [
    ["ADDJOB", "q", "body", 0],
    ["ADDJOB", "q", "other body", 0],
    ["addjob", "q", "body", 0],
    ["ADDJOB", "q2", "body", 0],
    ["ADDJOB", "q", "body", 0, "RETRY", 0],
    ["ADDJOB", "q", "body", 0, "DELAY", 5],
    ["ADDJOB", "q", "body", 0, "MAXLEN", 3],
    ["ADDJOB", "q", "body", 0, "TTL", 0],
    ["ADDJOB", "q", "body", "x"],
    ["ADDJOB", "q", "body"],
    ["ADDJOB", "q", "body", 0, "REPLICATE", 2],
]
GETS: list[Request] = [
    ["GETJOB", "FROM", "q"],
    ["GETJOB", "from", "q"],
    ["GETJOB", "NOHANG", "FROM", "q"],
    ["GETJOB", "NOHANG", "WITHCOUNTERS", "COUNT", 2, "FROM", "q", "q2"],
    ["GETJOB", "FROM"],
]
OTHERS: list[Request] = [
    ["QLEN", "q"],
    ["QPEEK", "q", 2],
    ["QSTAT", "q"],
    ["PAUSE", "q", "in"],
    ["PAUSE", "q", "out"],
    ["PAUSE", "q", "none"],
    ["JSCAN", "QUEUE", "q", "COUNT", -1],
    ["PING"],
    ["BOGUS"],
]
MUTES: list[Request] = [["CLIENT", "REPLY", "SKIP"], ["CLIENT", "REPLY", "OFF"], ["CLIENT", "REPLY", "ON"]]


def runs_of(requests: list[Request]) -> st.SearchStrategy[list[Request]]:
    """Several requests, many of them the same a few times in a row."""
    one_run = st.builds(lambda request, times: [request] * times, st.sampled_from(requests), st.integers(1, 5))
    return st.lists(one_run, max_size=12).map(lambda runs: [request for run in runs for request in run])


def replies(pieces: list[list[Request]]) -> bytes:
    """Send pieces one after another on a fresh broker, and give all that came back; then who waits gets a job."""
    server = LocalServer()
    client = server.client()
    for piece in pieces:
        if not client.closed:
            client.send(*piece)
    server.client().call("PAUSE", "q", "none")
    for _ in range(60):
        server.client().call("ADDJOB", "q", "late", 0)
    received, client._received = client._received, b""
    return received


@settings(max_examples=150, deadline=None)
@given(runs_of(ADDS + GETS + OTHERS))
def test_a_pipeline_gets_the_replies_that_its_requests_get_one_by_one(requests: list[Request]) -> None:
    assert replies([requests]) == replies([[request] for request in requests])


@settings(max_examples=100, deadline=None)
@given(runs_of(ADDS[:3] + GETS[:3] + MUTES))
def test_in_a_pipeline_the_same_replies_are_muted_as_one_by_one(requests: list[Request]) -> None:
    assert replies([requests]) == replies([[request] for request in requests])


@pytest.mark.parametrize("request_", [["ADDJOB", "q", "body", 0], ["GETJOB", "FROM", "q"]])
def test_skip_mutes_one_reply_of_a_run_of_like_requests(request_: Request) -> None:
    server = LocalServer()
    client = server.client()
    for _ in range(3):
        client.call("ADDJOB", "q", "body", 0)
    client.send(["CLIENT", "REPLY", "SKIP"], request_, request_, request_)
    assert len(client.pushed()) == 2


def test_a_long_pipeline_of_adds_keeps_its_order() -> None:
    client = LocalServer().client()
    client.send(*[["ADDJOB", "q", str(number), 0] for number in range(1000)])
    ids = client.pushed()
    assert len(set(ids)) == 1000
    jobs = client.call("GETJOB", "COUNT", 1000, "FROM", "q")
    assert jobs == [[b"q", job_id, b"%d" % number] for number, job_id in enumerate(ids)]


def test_every_request_of_a_run_is_counted() -> None:
    client = LocalServer().client()
    client.send(*[["ADDJOB", "q", str(number), 0] for number in range(1000)])
    client.pushed()
    stats = client.call("INFO", "commandstats")
    assert b"cmdstat_addjob:calls=1000," in stats


def test_clients_that_wait_are_served_in_their_order_from_a_pipeline_of_adds() -> None:
    server = LocalServer()
    waiting = [server.client() for _ in range(3)]
    for client in waiting:
        client.send(["GETJOB", "FROM", "q"])
    server.client().send(*[["ADDJOB", "q", str(number), 0] for number in range(5)])
    assert [client.pushed()[0][0][2] for client in waiting] == [b"0", b"1", b"2"]
