"""What a job is after the journal was read back, where commands moved it about before."""

from __future__ import annotations

import pytest

from tests.unit.broker.harness import LocalClient, LocalServer


@pytest.fixture
def client() -> LocalClient:
    return LocalServer(appendonly=True).client()


def state_after_reload(client: LocalClient, job_id: bytes) -> bytes | None:
    assert client.call("DEBUG", "LOADAOF") == b"OK"
    shown = client.call("SHOW", job_id)
    return None if shown is None else shown[5]


@pytest.mark.parametrize("retry_s", [0, 100])
def test_a_job_that_was_taken_out_of_its_queue_and_put_back_waits_there(client: LocalClient, retry_s: int) -> None:
    job_id = client.call("ADDJOB", "q", "body", 0, "RETRY", retry_s)
    client.call("DEQUEUE", job_id)
    client.call("ENQUEUE", job_id)
    assert state_after_reload(client, job_id) == b"queued"
    assert client.call("GETJOB", "NOHANG", "FROM", "q") == [[b"q", job_id, b"body"]]


@pytest.mark.parametrize("retry_s", [0, 100])
@pytest.mark.parametrize("command", ["ENQUEUE", "NACK"])
def test_a_job_that_was_released_before_its_delay_was_over_waits_in_its_queue(
    client: LocalClient, command: str, retry_s: int
) -> None:
    job_id = client.call("ADDJOB", "q", "body", 0, "DELAY", 1000, "RETRY", retry_s)
    client.call(command, job_id)
    assert state_after_reload(client, job_id) == b"queued"


@pytest.mark.parametrize("name", [b"100%", b"%b%s%(x)d", b"", b"\0\r\n"])
def test_a_queue_of_any_name_comes_back(client: LocalClient, name: bytes) -> None:
    job_id = client.call("ADDJOB", name, b"50%", 0)
    assert state_after_reload(client, job_id) == b"queued"
    assert client.call("GETJOB", "NOHANG", "FROM", name) == [[name, job_id, b"50%"]]


@pytest.mark.parametrize("is_rewritten", [True, False])
def test_a_delivered_job_with_retry_0_is_shown_but_does_not_come_back(is_rewritten: bool) -> None:
    server = LocalServer(appendonly=True)
    client = server.client()
    client.call("ADDJOB", "other", "body", 0)
    job_id = client.call("ADDJOB", "q", "body", 0, "RETRY", 0)
    client.call("GETJOB", "FROM", "q")
    assert client.call("SHOW", job_id)[5] == b"active"
    if is_rewritten:
        server.broker.persistence.begin_rewrite()
        server.finish_rewrite()
    assert state_after_reload(client, job_id) is None
    assert client.call("ENQUEUE", job_id) == 0
    assert client.call("GETJOB", "NOHANG", "FROM", "q") is None


def test_a_job_that_would_live_longer_than_the_record_can_tell_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.broker.harness.WALL_OFFSET_S", 2_300_000_000.0)  # the year 2042
    client = LocalServer(appendonly=True).client()
    job_id = client.call("ADDJOB", "q", "body", 0, "TTL", 2**31 - 1)
    assert state_after_reload(client, job_id) == b"queued"
