"""Replies as values."""

import pytest

from penstock.client import values
from penstock.client.values import Hello, Job, JobDetails, Lease, Node, QueueDetails
from penstock.errors import BadReply

ID = b"D-aaaaaaaa-000000000000000000000001-05a1"
NODE = "a" * 40


def test_a_job_of_a_plain_fetch() -> None:
    assert values.jobs_of([[b"q", ID, b"body"]], NODE) == [Job("q", ID.decode(), b"body", node=NODE)]


def test_a_job_with_lease_and_counters() -> None:
    row = [b"q", ID, b"body", b"17", b"nacks", 2, b"additional-deliveries", 3]
    (job,) = values.jobs_of([row], NODE, 99.0)
    assert job == Job("q", ID.decode(), b"body", 2, 3, Lease(17, NODE, 99.0), NODE)


def test_no_jobs() -> None:
    assert values.jobs_of(None, NODE) == values.jobs_of([], NODE) == []


def test_a_claimed_job_knows_when_it_was_made() -> None:
    (job,) = values.claimed_jobs([[b"q", ID, b"body", 1, 2, 3]], NODE)
    assert job == Job("q", ID.decode(), b"body", 1, 2, None, NODE, 3)


def test_a_queue_whose_name_is_no_utf8_comes_back_as_bytes() -> None:
    assert values.queue_name("käse".encode()) == "käse"
    assert values.queue_name(b"\xff") == b"\xff"


def test_hello() -> None:
    row = [b"a" * 40, b"10.0.0.1", b"7711", b"1"]
    assert values.hello_of([1, b"a" * 40, row]) == Hello(NODE, (Node(NODE, "10.0.0.1", 7711, 1),))


@pytest.mark.parametrize(
    "reply", [None, 5, b"OK", [], [2, b"a"], [b"server", b"redis", b"version"], [1, b"a", [b"id", b"ip"]], [1, b"a", 7]]
)
def test_the_hello_of_something_else_is_refused(reply: object) -> None:
    with pytest.raises(BadReply, match="not that of a Disque or Penstock node"):
        values.hello_of(reply)


def shown(**changes: object) -> list[object]:
    fields: dict[str, object] = {
        "id": ID, "queue": b"q", "state": b"queued", "repl": 2, "ttl": 5, "ctime": 6, "delay": 7, "retry": 8,
        "nacks": 9, "additional-deliveries": 10, "nodes-delivered": [b"a"], "nodes-confirmed": [],
        "next-requeue-within": 11, "next-awake-within": None, "body": b"\xff",
    } | changes  # fmt: skip
    return [item for name, value in fields.items() for item in (name.encode(), value)]


def test_details_of_a_job() -> None:
    expected = JobDetails(ID.decode(), "q", "queued", 2, 5, 6, 7, 8, 9, 10, ["a"], [], 11, None, b"\xff")
    assert values.job_details(shown()) == expected
    assert values.job_details(shown(newcomer=1)) == expected


def test_details_of_a_job_of_which_only_the_ack_is_known() -> None:
    details = values.job_details(shown(queue=None, body=None, state=b"acked"))
    assert (details.queue, details.body, details.state) == (None, None, "acked")


def test_details_of_a_queue() -> None:
    names = ["name", "len", "age", "idle", "blocked", "import-from", "import-rate", "jobs-in", "jobs-out", "pause"]
    given = [b"\xff", 1, 2, 3, 4, [b"a"], 5, 6, 7, b"none"]
    reply = [item for name, value in zip(names, given, strict=True) for item in (name.encode(), value)]
    assert values.queue_details(reply) == QueueDetails(b"\xff", 1, 2, 3, 4, ["a"], 5, 6, 7, "none", None)
    expected = QueueDetails(b"\xff", 1, 2, 3, 4, ["a"], 5, 6, 7, "none", 8)
    assert values.queue_details([*reply, b"expired", 8]) == expected


def test_info_by_name() -> None:
    assert values.info_of(b"# Server\r\nos:Linux: a\r\n\r\n# Jobs\r\nregistered_jobs:5\r\n") == {
        "os": "Linux: a",
        "registered_jobs": "5",
    }
