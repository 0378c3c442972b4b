"""A job after its add, on a real node: ACKJOB, FASTACK, DELJOB, ENQUEUE, NACK, DEQUEUE, WORKING, SHOW."""

from __future__ import annotations

import pytest

from tests.processes import NodeProcess
from tests.raw_link import RawLink

pytestmark = pytest.mark.system

MANY = ["ACKJOB", "FASTACK", "DELJOB", "ENQUEUE", "NACK", "DEQUEUE"]
ENDINGS = ["ACKJOB", "FASTACK", "DELJOB"]
RETURNS = ["ENQUEUE", "NACK"]
UNKNOWN = b"D-01234567-abcdefghijklmnopqrstuvwx-05a1"
BAD_ID = b"-BADID Invalid Job ID format.\r\n"


def add(node: NodeProcess, queue: bytes, *options: str | int) -> bytes:
    job_id: bytes = node.call("ADDJOB", queue, "body", 0, *options)
    return job_id


def fetched(node: NodeProcess, queue: bytes, *options: str | int) -> bytes:
    """Add a job and take it."""
    job_id = add(node, queue, *options)
    assert node.call("GETJOB", "NOHANG", "FROM", queue)[0][1] == job_id
    return job_id


def show(node: NodeProcess, job_id: bytes) -> dict[bytes, object]:
    reply = node.call("SHOW", job_id)
    return dict(zip(reply[::2], reply[1::2], strict=True))


@pytest.mark.parametrize("command", MANY)
def test_a_command_without_ids_does_nothing_and_counts_nothing(link: RawLink, command: str) -> None:
    assert link.ask(command) == b":0\r\n"


@pytest.mark.parametrize("command", [*MANY, "WORKING", "SHOW"])
@pytest.mark.parametrize(
    "job_id",
    [
        b"",
        b"x",
        UNKNOWN[:-1],
        UNKNOWN + b"1",
        b"d" + UNKNOWN[1:],
        b"E" + UNKNOWN[1:],
        b"D_" + UNKNOWN[2:],
        UNKNOWN[:10] + b"_" + UNKNOWN[11:],
        UNKNOWN[:35] + b"_" + UNKNOWN[36:],
    ],
)
def test_what_cannot_be_an_id_is_refused(link: RawLink, command: str, job_id: bytes) -> None:
    assert link.ask(command, job_id) == BAD_ID


@pytest.mark.parametrize("command", MANY)
def test_a_malformed_id_anywhere_keeps_a_command_from_doing_anything(
    shared_node: NodeProcess, link: RawLink, queue: bytes, command: str
) -> None:
    job_id = add(shared_node, queue) if command == "DEQUEUE" else fetched(shared_node, queue)
    before = show(shared_node, job_id)[b"state"]
    assert link.ask(command, job_id, "bad") == BAD_ID
    assert show(shared_node, job_id)[b"state"] == before


@pytest.mark.parametrize("command", MANY)
@pytest.mark.parametrize("job_id", [UNKNOWN, b"D-" + b"\0" * 8 + b"-" + b"\xff" * 24 + b"-zzzz"])
def test_an_unknown_job_is_not_counted(link: RawLink, command: str, job_id: bytes) -> None:
    assert link.ask(command, job_id) == b":0\r\n"


@pytest.mark.parametrize("command", ENDINGS)
def test_an_ended_job_is_known_no_more(shared_node: NodeProcess, link: RawLink, queue: bytes, command: str) -> None:
    job_id = fetched(shared_node, queue)
    assert link.ask(command, job_id) == b":1\r\n"
    assert link.ask("SHOW", job_id) == b"$-1\r\n"


@pytest.mark.parametrize("command", ENDINGS)
def test_a_job_can_be_ended_while_it_waits_in_its_queue(
    shared_node: NodeProcess, link: RawLink, queue: bytes, command: str
) -> None:
    first, second = add(shared_node, queue), add(shared_node, queue)
    assert link.ask(command, first) == b":1\r\n"
    assert shared_node.call("QLEN", queue) == 1
    assert [job[1] for job in shared_node.call("GETJOB", "COUNT", 5, "FROM", queue)] == [second]


@pytest.mark.parametrize("command", ENDINGS)
def test_a_job_can_be_ended_during_its_delay(
    shared_node: NodeProcess, link: RawLink, queue: bytes, command: str
) -> None:
    assert link.ask(command, add(shared_node, queue, "DELAY", 100)) == b":1\r\n"


@pytest.mark.parametrize("command", ENDINGS)
def test_an_id_given_twice_is_counted_once(shared_node: NodeProcess, link: RawLink, queue: bytes, command: str) -> None:
    job_id = fetched(shared_node, queue)
    assert link.ask(command, job_id, UNKNOWN, job_id) == b":1\r\n"
    assert link.ask(command, job_id) == b":0\r\n"


@pytest.mark.parametrize("command", ENDINGS)
def test_many_jobs_are_ended_at_once(shared_node: NodeProcess, link: RawLink, queue: bytes, command: str) -> None:
    ids = [add(shared_node, queue) for _ in range(20)]
    assert link.ask(command, *ids) == b":20\r\n"
    assert shared_node.call("QLEN", queue) == 0


# ENQUEUE and NACK


@pytest.mark.parametrize("command", RETURNS)
def test_a_returned_job_is_queued_again(shared_node: NodeProcess, link: RawLink, queue: bytes, command: str) -> None:
    job_id = fetched(shared_node, queue)
    assert link.ask(command, job_id) == b":1\r\n"
    assert shared_node.call("GETJOB", "NOHANG", "FROM", queue) == [[queue, job_id, b"body"]]


@pytest.mark.parametrize("command", RETURNS)
def test_a_queued_job_cannot_be_returned(shared_node: NodeProcess, link: RawLink, queue: bytes, command: str) -> None:
    job_id = add(shared_node, queue)
    assert link.ask(command, job_id) == b":0\r\n"
    assert shared_node.call("QLEN", queue) == 1


@pytest.mark.parametrize("command", RETURNS)
def test_returning_does_not_mind_a_pause(shared_node: NodeProcess, link: RawLink, queue: bytes, command: str) -> None:
    job_id = fetched(shared_node, queue)
    shared_node.call("PAUSE", queue, "all")
    assert link.ask(command, job_id) == b":1\r\n"
    assert shared_node.call("QLEN", queue) == 1


@pytest.mark.parametrize("command", RETURNS)
def test_a_job_with_retry_0_that_was_delivered_is_never_returned(
    shared_node: NodeProcess, link: RawLink, queue: bytes, command: str
) -> None:
    job_id = fetched(shared_node, queue, "RETRY", 0)
    assert link.ask(command, job_id) == b":0\r\n"
    assert shared_node.call("GETJOB", "NOHANG", "FROM", queue) is None


@pytest.mark.parametrize("command", RETURNS)
def test_a_job_with_retry_0_can_be_released_before_its_delay_is_over(
    shared_node: NodeProcess, link: RawLink, queue: bytes, command: str
) -> None:
    job_id = add(shared_node, queue, "RETRY", 0, "DELAY", 100)
    assert link.ask(command, job_id) == b":1\r\n"
    assert shared_node.call("GETJOB", "NOHANG", "FROM", queue) == [[queue, job_id, b"body"]]


def test_an_id_given_twice_is_returned_once(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    job_id = fetched(shared_node, queue)
    assert link.ask("NACK", job_id, job_id) == b":1\r\n"
    assert show(shared_node, job_id)[b"nacks"] == 1


def test_enqueue_counts_a_delivery_and_nack_a_nack(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = fetched(shared_node, queue)
    shared_node.call("ENQUEUE", job_id)
    shared_node.call("GETJOB", "FROM", queue)
    shared_node.call("NACK", job_id)
    facts = show(shared_node, job_id)
    assert (facts[b"nacks"], facts[b"additional-deliveries"]) == (1, 1)


def test_a_nack_counts_even_before_the_first_queueing(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue, "DELAY", 100)
    shared_node.call("NACK", job_id)
    facts = show(shared_node, job_id)
    assert (facts[b"nacks"], facts[b"additional-deliveries"]) == (1, 0)


def test_the_first_queueing_is_no_additional_delivery_even_after_a_nack(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue, "DELAY", 100)
    shared_node.call("NACK", job_id)
    shared_node.call("GETJOB", "FROM", queue)
    shared_node.call("ENQUEUE", job_id)
    assert show(shared_node, job_id)[b"additional-deliveries"] == 0
    shared_node.call("GETJOB", "FROM", queue)
    shared_node.call("ENQUEUE", job_id)
    assert show(shared_node, job_id)[b"additional-deliveries"] == 1


# DEQUEUE and WORKING


def test_a_dequeued_job_is_active_and_waits_no_more(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    job_id = add(shared_node, queue)
    assert link.ask("DEQUEUE", job_id) == b":1\r\n"
    assert show(shared_node, job_id)[b"state"] == b"active"
    assert shared_node.call("GETJOB", "NOHANG", "FROM", queue) is None


def test_only_a_queued_job_can_be_dequeued(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    assert link.ask("DEQUEUE", fetched(shared_node, queue)) == b":0\r\n"


def test_a_dequeued_job_keeps_its_requeue_time(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue, "RETRY", 1000)
    before = show(shared_node, job_id)[b"next-requeue-within"]
    shared_node.call("DEQUEUE", job_id)
    after = show(shared_node, job_id)[b"next-requeue-within"]
    assert isinstance(before, int)
    assert isinstance(after, int)
    assert 0 <= before - after < 30_000


def test_a_dequeued_job_goes_back_to_its_place(shared_node: NodeProcess, queue: bytes) -> None:
    first, second, third = (add(shared_node, queue) for _ in range(3))
    shared_node.call("DEQUEUE", second)
    shared_node.call("ENQUEUE", second)
    ids = [job[1] for job in shared_node.call("GETJOB", "COUNT", 5, "FROM", queue)]
    assert ids == [first, second, third]


def test_a_dequeued_job_with_retry_0_is_not_lost(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    job_id = add(shared_node, queue, "RETRY", 0)
    shared_node.call("DEQUEUE", job_id)
    assert link.ask("ENQUEUE", job_id) == b":1\r\n"
    assert shared_node.call("GETJOB", "NOHANG", "FROM", queue) == [[queue, job_id, b"body"]]


def test_working_answers_the_retry_time_in_seconds(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    assert link.ask("WORKING", fetched(shared_node, queue, "RETRY", 17)) == b":17\r\n"


def test_working_on_an_unknown_job_is_an_error(link: RawLink) -> None:
    assert link.ask("WORKING", UNKNOWN) == b"-NOJOB Job not known in the context of this node.\r\n"


def test_working_takes_one_id(link: RawLink) -> None:
    assert link.ask("WORKING", UNKNOWN, UNKNOWN) == b"-ERR wrong number of arguments for 'working' command\r\n"


def test_working_takes_a_queued_job_out_of_its_queue(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue)
    shared_node.call("WORKING", job_id)
    assert show(shared_node, job_id)[b"state"] == b"active"
    assert shared_node.call("QLEN", queue) == 0


def test_working_leaves_a_queued_job_with_retry_0_in_its_queue(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    job_id = add(shared_node, queue, "RETRY", 0)
    assert link.ask("WORKING", job_id) == b":0\r\n"
    assert shared_node.call("GETJOB", "NOHANG", "FROM", queue) == [[queue, job_id, b"body"]]


# SHOW


def test_show_of_an_unknown_job_is_a_null_bulk(link: RawLink) -> None:
    assert link.ask("SHOW", UNKNOWN) == b"$-1\r\n"


def test_show_takes_one_id(link: RawLink) -> None:
    assert link.ask("SHOW") == b"-ERR wrong number of arguments for 'show' command\r\n"


def test_show_has_the_fields_that_tools_know_in_their_order_and_tries_behind_them(
    shared_node: NodeProcess, queue: bytes
) -> None:
    names = shared_node.call("SHOW", add(shared_node, queue))[::2]
    assert b" ".join(names) == (
        b"id queue state repl ttl ctime delay retry nacks additional-deliveries nodes-delivered nodes-confirmed "
        b"next-requeue-within next-awake-within body tries"
    )


def test_show_returns_numbers_as_integers_and_nodes_as_arrays(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    job_id = add(shared_node, queue, "RETRY", 0, "TTL", 100)
    node_id = shared_node.call("CLUSTER", "MYID")
    facts = show(shared_node, job_id)
    wake_ms, ttl_s = facts[b"next-awake-within"], facts[b"ttl"]
    reply = link.ask("SHOW", job_id)
    head = b"*32\r\n$2\r\nid\r\n$40\r\n%b\r\n$5\r\nqueue\r\n$%d\r\n%b\r\n" % (job_id, len(queue), queue)
    numbers = b"$5\r\nstate\r\n$6\r\nqueued\r\n$4\r\nrepl\r\n:1\r\n$3\r\nttl\r\n:%d\r\n$5\r\nctime\r\n:" % ttl_s
    nodes = b"$15\r\nnodes-delivered\r\n*1\r\n$40\r\n%b\r\n$15\r\nnodes-confirmed\r\n*0\r\n" % node_id
    times = b"$19\r\nnext-requeue-within\r\n$-1\r\n$17\r\nnext-awake-within\r\n:"
    assert reply.startswith(head + numbers)
    assert nodes + times in reply
    assert reply.endswith(b"$4\r\nbody\r\n$4\r\nbody\r\n$5\r\ntries\r\n:0\r\n")
    assert isinstance(wake_ms, int)


@pytest.mark.parametrize(
    ("options", "least_ms", "most_ms"), [("RETRY 100", 60_000, 100_250), ("RETRY 100 DELAY 500", 460_000, 500_001)]
)
def test_show_says_when_a_job_is_queued_next(
    shared_node: NodeProcess, queue: bytes, options: str, least_ms: int, most_ms: int
) -> None:
    within_ms = show(shared_node, add(shared_node, queue, *options.split()))[b"next-requeue-within"]
    assert isinstance(within_ms, int)
    assert least_ms <= within_ms <= most_ms


def test_show_has_a_null_where_a_job_is_never_queued_again(shared_node: NodeProcess, queue: bytes) -> None:
    assert show(shared_node, fetched(shared_node, queue, "RETRY", 0))[b"next-requeue-within"] is None


def test_show_returns_the_creation_time_in_nanoseconds(shared_node: NodeProcess, queue: bytes) -> None:
    seconds, _ = shared_node.call("TIME")
    ctime = show(shared_node, add(shared_node, queue))[b"ctime"]
    assert isinstance(ctime, int)
    assert abs(ctime / 1e9 - int(seconds)) < 30
