"""MOVEJOBS: a job goes to another queue in one step. With copies, the stories in tests/transcripts/move.txt."""

from __future__ import annotations

import hiredis
import pytest

from tests.unit.broker.harness import LocalClient, LocalServer


@pytest.fixture
def server() -> LocalServer:
    return LocalServer()


@pytest.fixture
def client(server: LocalServer) -> LocalClient:
    return server.client()


def add(client: LocalClient, body: str = "body", *options: str | int) -> bytes:
    job_id: bytes = client.call("ADDJOB", "q", body, 0, *options)
    return job_id


def lease(client: LocalClient, ms: int = 60_000) -> tuple[bytes, bytes]:
    ((_, job_id, _, token),) = client.call("GETJOB", "NOHANG", "LEASE", ms, "FROM", "q")
    return job_id, token


def bodies(client: LocalClient, queue: str) -> list[bytes]:
    return [body for _, _, body in client.call("QPEEK", queue, 10)]


def test_a_leased_job_moves_as_it_is_or_with_another_body(client: LocalClient) -> None:
    add(client, "one")
    add(client, "two")
    (moved,) = client.call("MOVEJOBS", "to", 0, "JOBS", *lease(client))
    (changed,) = client.call("MOVEJOBS", "to", 0, "BODIES", *lease(client), "2")
    assert [job_id for _, job_id, _ in client.call("QPEEK", "to", 10)] == [moved, changed]
    assert bodies(client, "to") == [b"one", b"2"]
    assert client.call("JSCAN", 0, "QUEUE", "q") == [b"0", []]


def test_the_new_job_has_the_options_of_the_move_and_begins_anew(client: LocalClient) -> None:
    add(client, "one", "RETRY", 7)
    client.call("NACKLEASE", 0, *lease(client))
    job_id, token = lease(client)
    (moved,) = client.call("MOVEJOBS", "to", 0, "DELAY", 5, "RETRY", 9, "TTL", 90, "JOBS", job_id, token)
    shown = client.flat_map("SHOW", moved)
    assert (shown[b"queue"], shown[b"state"], shown[b"retry"], shown[b"delay"]) == (b"to", b"active", 9, 5)
    assert (shown[b"nacks"], shown[b"additional-deliveries"], shown[b"tries"], shown[b"ttl"]) == (0, 0, 0, 90)
    assert client.call("SHOW", job_id) is None


def test_only_the_lease_moves_a_job(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client)
    held = lease(client, 1000)
    server.advance(2)
    assert client.call("MOVEJOBS", "to", 0, "JOBS", *held) == [b"STALE"]
    again = lease(client)
    unknown = job_id[:11] + b"x" * 24 + job_id[35:]
    answers = client.call("MOVEJOBS", "to", 0, "JOBS", *held, job_id, 0, unknown, 5, *again, *again)
    assert answers[:3] == [b"STALE", b"STALE", b"NOJOB"]
    assert answers[3][:2] == b"D-"
    assert answers[4] == b"STALE"
    assert client.call("MOVEJOBS", "to", 0, "JOBS", *again) == [b"NOJOB"]
    assert client.call("QLEN", "to") == 1


def test_a_job_that_nobody_has_moves_by_its_id(server: LocalServer, client: LocalClient) -> None:
    waiting, delayed = add(client, "waits"), add(client, "later", "DELAY", 50)
    answers = client.call("MOVEJOBS", "to", 0, "JOBS", waiting, 0, delayed, 0)
    assert [answer[:2] for answer in answers] == [b"D-", b"D-"]
    given_back = add(client, "back")
    client.call("NACKLEASE", 5000, *lease(client))
    assert client.call("MOVEJOBS", "to", 0, "JOBS", given_back, 0)[0][:2] == b"D-"
    server.advance(60)
    assert client.call("QLEN", "q") == 0
    assert sorted(bodies(client, "to")) == [b"back", b"later", b"waits"]


def test_any_moves_a_job_whoever_has_it(client: LocalClient) -> None:
    job_id = add(client)
    held = lease(client)
    assert client.call("MOVEJOBS", "to", 0, "JOBS", job_id, "ANY")[0][:2] == b"D-"
    assert client.call("ACKLEASE", *held) == [b"NOJOB"]


def test_a_move_that_is_refused_changes_nothing(client: LocalClient) -> None:
    add(client)
    job_id, token = lease(client)
    client.call("PAUSE", "closed", "in")
    client.call("ADDJOB", "full", "x", 0)
    refusals = {
        ("closed", 0): "PAUSED",
        ("full", 0, "MAXLEN", 1): "MAXLEN",
        ("to", 0, "REPLICATE", 2): "NOREPL",
        ("to", 0, "REPLICATE", 2, "RETRY", 0): "ERR",
    }
    for words, code in refusals.items():
        reply = client.call("MOVEJOBS", *words, "JOBS", job_id, token)
        assert isinstance(reply, hiredis.ReplyError)
        assert str(reply).startswith(code)
    assert client.call("EXTEND", 1000, job_id, token) == [b"OK"]
    assert client.call("QLEN", "to") == client.call("QLEN", "closed") == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["to", 0, "JOBS", "ID"], "wrong number"),
        (["to", 0, "JOBS", "ID", "x"], "ERR each id must be followed by the token of its lease, 0 or ANY"),
        (["to", 0, "JOBS", "ID", -1], "ERR each id must be followed by the token of its lease, 0 or ANY"),
        (["to", 0, "JOBS", "ID", ""], "ERR each id must be followed by the token of its lease, 0 or ANY"),
        (["to", 0, "JOBS", "ID", 1, "ID"], "ERR each id must be followed by the token of its lease, 0 or ANY"),
        (["to", 0, "BODIES", "ID", 1], "ERR each id must be followed by a token and a body"),
        (["to", 0, "JOBS", "D-short", 1], "BADID"),
        (["to", -1, "JOBS", "ID", 1], "ERR timeout is negative"),
        (["to", 0, "REPLICATE", 0, "JOBS", "ID", 1], "ERR REPLICATE must be"),
        (["to", 0, "ASYNC", "JOBS", "ID", 0], "ERR MOVEJOBS waits for the copies"),
        (["to", 0, "ID", 1, "JOBS"], "ERR syntax error"),
        (["to", 0, "RETRY", 5, "ID", 1], "ERR syntax error"),
    ],
)
def test_a_wrong_command_is_refused_in_words(client: LocalClient, words: list[str | int], text: str) -> None:
    job_id = add(client)
    reply = client.call("MOVEJOBS", *[job_id if word == "ID" else word for word in words])
    assert isinstance(reply, hiredis.ReplyError)
    assert text in str(reply)
    assert client.call("QLEN", "q") == 1


def test_a_client_that_waits_gets_the_new_job(server: LocalServer, client: LocalClient) -> None:
    worker = server.client()
    worker.send(["GETJOB", "TIMEOUT", 10_000, "FROM", "to"])
    add(client, "one")
    (moved,) = client.call("MOVEJOBS", "to", 0, "JOBS", *lease(client))
    assert worker.pushed() == [[[b"to", moved, b"one"]]]
