"""GETJOB on a real node: what it refuses, what it answers, the order of jobs, and clients that wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.processes import NodeProcess, wait_until
from tests.raw_link import RawLink

pytestmark = pytest.mark.system

OpenLink = Callable[[], RawLink]

NULL_ARRAY = b"*-1\r\n"
SYNTAX = "ERR syntax error"
COUNT = "ERR COUNT must be a number greater than zero"
BAD_TIMEOUT = "ERR timeout is not an integer or out of range"
NEGATIVE_TIMEOUT = "ERR timeout is negative"


def add(node: NodeProcess, queue: bytes, body: bytes | str, *options: str | int) -> bytes:
    job_id: bytes = node.call("ADDJOB", queue, body, 0, *options)
    return job_id


def bodies(node: NodeProcess, *words: bytes | str | int) -> list[bytes]:
    return [job[2] for job in node.call("GETJOB", "NOHANG", *words) or []]


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def wait_blocked(node: NodeProcess, queue: bytes, clients: int) -> None:
    """Wait until `clients` clients are blocked at a queue."""

    def blocked() -> bool:
        facts = node.call("QSTAT", queue)
        return facts is not None and facts[facts.index(b"blocked") + 1] == clients

    wait_until(blocked)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("BOGUS FROM q", SYNTAX),
        ("NOHANG", SYNTAX),
        ("FROM", SYNTAX),
        ("NOHANG FROM", SYNTAX),
        ("COUNT", SYNTAX),
        ("COUNT 1", SYNTAX),
        ("TIMEOUT", SYNTAX),
        ("q FROM q", SYNTAX),
        ("COUNT 0 FROM q", COUNT),
        ("COUNT -1 FROM q", COUNT),
        ("COUNT x FROM q", COUNT),
        ("TIMEOUT x FROM q", BAD_TIMEOUT),
        ("TIMEOUT -1 FROM q", NEGATIVE_TIMEOUT),
        ("COUNT 0 BOGUS", COUNT),
        ("BOGUS COUNT 0", SYNTAX),
        ("TIMEOUT x COUNT 0 FROM", BAD_TIMEOUT),
    ],
)
def test_a_wrong_fetch_is_refused_at_its_first_fault(link: RawLink, words: str, problem: str) -> None:
    assert link.ask("GETJOB", *words.split()) == f"-{problem}\r\n".encode()


def test_a_job_comes_as_queue_id_and_body(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    job_id = add(shared_node, queue, b"body")
    assert link.ask("GETJOB", "FROM", queue) == b"*1\r\n*3\r\n" + bulk(queue) + bulk(job_id) + bulk(b"body")


def test_with_options_a_job_comes_in_the_same_form(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    job_id = add(shared_node, queue, b"body")
    reply = link.ask("getjob", "nohang", "count", 5, "from", queue)
    assert reply == b"*1\r\n*3\r\n" + bulk(queue) + bulk(job_id) + bulk(b"body")


def test_with_counters_a_job_has_them_as_names_and_integers(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    job_id = add(shared_node, queue, b"body")
    reply = link.ask("GETJOB", "WITHCOUNTERS", "FROM", queue)
    counters = b"$5\r\nnacks\r\n:0\r\n$21\r\nadditional-deliveries\r\n:0\r\n"
    assert reply == b"*1\r\n*7\r\n" + bulk(queue) + bulk(job_id) + bulk(b"body") + counters


def test_nohang_without_a_job_is_a_null_array(link: RawLink, queue: bytes) -> None:
    assert link.ask("GETJOB", "NOHANG", "FROM", queue) == NULL_ARRAY


def test_a_fetch_makes_the_queue_it_asks_for(shared_node: NodeProcess, queue: bytes) -> None:
    shared_node.call("GETJOB", "NOHANG", "FROM", queue)
    assert shared_node.call("QSTAT", queue)[:4] == [b"name", queue, b"len", 0]


def test_everything_behind_from_is_the_name_of_a_queue(shared_node: NodeProcess) -> None:
    for name in (b"NOHANG", b"FROM", b"COUNT"):
        add(shared_node, name, name)
    assert bodies(shared_node, "COUNT", 3, "FROM", "FROM", "COUNT", "NOHANG") == [b"FROM", b"COUNT", b"NOHANG"]


def test_options_may_be_repeated_and_the_last_counts(shared_node: NodeProcess, queue: bytes) -> None:
    for body in "abc":
        add(shared_node, queue, body)
    assert bodies(shared_node, "COUNT", 1, "COUNT", 2, "FROM", queue) == [b"a", b"b"]


def test_jobs_of_one_queue_come_in_the_order_of_their_creation(shared_node: NodeProcess, queue: bytes) -> None:
    for number in range(50):
        add(shared_node, queue, str(number))
    assert bodies(shared_node, "COUNT", 100, "FROM", queue) == [b"%d" % number for number in range(50)]


def test_several_queues_give_one_job_each_in_turn(shared_node: NodeProcess, queue: bytes) -> None:
    x, y, z = (queue + letter for letter in (b"x", b"y", b"z"))
    for body in ("x0", "x1", "x2"):
        add(shared_node, x, body)
    for body in ("y0", "y1"):
        add(shared_node, y, body)
    for body in ("z0", "z1"):
        add(shared_node, z, body)
    assert bodies(shared_node, "COUNT", 7, "FROM", x, y, z, x) == [b"x0", b"y0", b"z0", b"x1", b"x2", b"y1", b"z1"]


def test_count_limits_what_several_queues_give(shared_node: NodeProcess, queue: bytes) -> None:
    x, y = queue + b"x", queue + b"y"
    for number in range(3):
        add(shared_node, x, f"x{number}")
        add(shared_node, y, f"y{number}")
    assert bodies(shared_node, "COUNT", 3, "FROM", y, x) == [b"y0", b"x0", b"y1"]


def test_a_job_that_comes_back_goes_before_younger_ones(shared_node: NodeProcess, queue: bytes) -> None:
    first = add(shared_node, queue, "first")
    for body in ("second", "third"):
        add(shared_node, queue, body)
    assert bodies(shared_node, "COUNT", 2, "FROM", queue) == [b"first", b"second"]
    shared_node.call("NACK", first)
    assert bodies(shared_node, "COUNT", 2, "FROM", queue) == [b"first", b"third"]


def test_a_fetched_job_is_active_and_no_longer_in_its_queue(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue, "body")
    bodies(shared_node, "FROM", queue)
    assert shared_node.call("SHOW", job_id)[5] == b"active"
    assert shared_node.call("QLEN", queue) == 0


@pytest.mark.parametrize("is_waiting", [False, True])
def test_with_ctime_a_job_has_the_time_of_its_add(
    shared_node: NodeProcess, link: RawLink, queue: bytes, is_waiting: bool
) -> None:
    if not is_waiting:
        add(shared_node, queue, "body")
    link.post("GETJOB", "WITHCOUNTERS", "WITHCTIME", "FROM", queue)
    if is_waiting:
        wait_blocked(shared_node, queue, 1)
        add(shared_node, queue, "body")
    reply = link.reply()
    shown = shared_node.call("SHOW", reply.split(b"\r\n")[5])
    ctime = b"$5\r\nctime\r\n:%d\r\n" % shown[shown.index(b"ctime") + 1]
    assert reply.startswith(b"*1\r\n*9\r\n")
    assert reply.endswith(b"$5\r\nnacks\r\n:0\r\n$21\r\nadditional-deliveries\r\n:0\r\n" + ctime)


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_job_has_its_token_counters_tries_and_ctime_in_this_order(
    shared_node: NodeProcess, link: RawLink, queue: bytes, is_waiting: bool
) -> None:
    if not is_waiting:
        add(shared_node, queue, "body")
    link.post("GETJOB", "WITHCTIME", "LEASE", 5000, "BEGIN", 0, "FROM", queue)
    if is_waiting:
        wait_blocked(shared_node, queue, 1)
        add(shared_node, queue, "body")
    words = link.reply().split(b"\r\n")
    assert words[1] == b"*14"
    assert words[9].isdigit()  # the token
    names = (b"nacks", b"additional-deliveries", b"tries", b"begun", b"ctime")
    assert [word for word in words[10:] if word in names] == list(names)
    assert words[words.index(b"begun") + 1] == b":0"


def test_counters_distinguish_nacks_and_other_returns(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue, "body")
    for command in ("NACK", "ENQUEUE", "NACK"):
        shared_node.call("GETJOB", "FROM", queue)
        shared_node.call(command, job_id)
    (job,) = shared_node.call("GETJOB", "WITHCOUNTERS", "FROM", queue)
    assert job[3:] == [b"nacks", 2, b"additional-deliveries", 1]


def test_a_queue_paused_for_output_returns_nothing(shared_node: NodeProcess, queue: bytes) -> None:
    add(shared_node, queue, "body")
    shared_node.call("PAUSE", queue, "out")
    assert bodies(shared_node, "FROM", queue) == []


def test_a_paused_queue_does_not_hold_back_the_others(shared_node: NodeProcess, queue: bytes) -> None:
    other = queue + b"other"
    for name in (queue, other):
        add(shared_node, name, name)
    shared_node.call("PAUSE", queue, "out")
    assert bodies(shared_node, "COUNT", 2, "FROM", queue, other) == [other]


# Clients that wait


def test_a_waiting_client_gets_a_job_the_moment_it_is_added(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    link.post("GETJOB", "FROM", queue)
    wait_blocked(shared_node, queue, 1)
    job_id = add(shared_node, queue, b"body")
    assert link.reply() == b"*1\r\n*3\r\n" + bulk(queue) + bulk(job_id) + bulk(b"body")


def test_a_client_that_waited_gets_one_job_whatever_count_it_gave(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    link.post("GETJOB", "COUNT", 10, "FROM", queue)
    wait_blocked(shared_node, queue, 1)
    with shared_node.connect() as connection:
        connection.pipeline([("ADDJOB", queue, "body", 0)] * 5)
    assert link.reply().startswith(b"*1\r\n*3\r\n")
    assert shared_node.call("QLEN", queue) == 4


def test_a_client_that_waited_gets_the_counters_it_asked_for(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    link.post("GETJOB", "WITHCOUNTERS", "FROM", queue)
    wait_blocked(shared_node, queue, 1)
    add(shared_node, queue, "body")
    assert link.reply().endswith(b"$5\r\nnacks\r\n:0\r\n$21\r\nadditional-deliveries\r\n:0\r\n")


def test_clients_are_served_in_the_order_in_which_they_came(
    shared_node: NodeProcess, open_link: OpenLink, queue: bytes
) -> None:
    links = [open_link() for _ in range(4)]
    for number, link in enumerate(links, 1):
        link.post("GETJOB", "FROM", queue)
        wait_blocked(shared_node, queue, number)
    for number in range(4):
        add(shared_node, queue, str(number))
    assert [link.reply()[-3:-2] for link in links] == [b"0", b"1", b"2", b"3"]


def test_a_client_waits_in_all_queues_that_it_named_and_leaves_them_all(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    x, y = queue + b"x", queue + b"y"
    link.post("GETJOB", "FROM", x, y)
    for name in (x, y):
        wait_blocked(shared_node, name, 1)
    add(shared_node, y, "body")
    assert bulk(y) in link.reply()
    wait_blocked(shared_node, x, 0)


def test_a_queue_named_twice_counts_a_client_once(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    link.post("GETJOB", "FROM", queue, queue)
    wait_blocked(shared_node, queue, 1)
    add(shared_node, queue, "one")
    add(shared_node, queue, "two")
    assert link.reply().endswith(b"one\r\n")
    assert shared_node.call("QLEN", queue) == 1


def test_a_client_that_goes_away_leaves_its_place_and_no_job_with_it(
    shared_node: NodeProcess, open_link: OpenLink, queue: bytes
) -> None:
    gone = open_link()
    gone.post("GETJOB", "FROM", queue)
    wait_blocked(shared_node, queue, 1)
    gone.close()
    wait_blocked(shared_node, queue, 0)
    add(shared_node, queue, "body")
    assert shared_node.call("QLEN", queue) == 1


@pytest.mark.parametrize("command", ["NACK", "ENQUEUE"])
def test_a_job_that_is_given_back_goes_to_a_waiting_client(
    shared_node: NodeProcess, link: RawLink, queue: bytes, command: str
) -> None:
    job_id = add(shared_node, queue, "body")
    bodies(shared_node, "FROM", queue)
    link.post("GETJOB", "FROM", queue)
    wait_blocked(shared_node, queue, 1)
    shared_node.call(command, job_id)
    assert job_id in link.reply()


def test_a_client_that_waits_at_a_paused_queue_is_served_when_the_pause_ends(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    job_id = add(shared_node, queue, "body")
    shared_node.call("PAUSE", queue, "out")
    link.post("GETJOB", "FROM", queue)
    wait_blocked(shared_node, queue, 1)
    shared_node.call("PAUSE", queue, "in")
    assert job_id in link.reply()


def test_a_job_added_to_a_queue_paused_for_output_waits_with_its_clients(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    shared_node.call("PAUSE", queue, "out")
    link.post("GETJOB", "FROM", queue)
    wait_blocked(shared_node, queue, 1)
    add(shared_node, queue, "body")
    assert shared_node.call("QLEN", queue) == 1


def test_the_longest_possible_timeout_is_a_wait_like_any_other(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    link.post("GETJOB", "TIMEOUT", 2**63 - 1, "FROM", queue)
    wait_blocked(shared_node, queue, 1)
    job_id = add(shared_node, queue, "body")
    assert job_id in link.reply()


def test_flushall_sends_waiting_clients_away_with_nothing(node: NodeProcess) -> None:
    with RawLink(node) as link:
        link.post("GETJOB", "FROM", "queue")
        wait_blocked(node, b"queue", 1)
        node.call("DEBUG", "FLUSHALL")
        assert link.reply() == NULL_ARRAY


def test_a_leaving_node_sends_waiting_clients_to_another_one(node: NodeProcess) -> None:
    with RawLink(node) as link:
        link.post("GETJOB", "FROM", "queue")
        wait_blocked(node, b"queue", 1)
        node.call("CLUSTER", "LEAVING", "yes")
        leaving = b"-LEAVING This node is leaving the cluster, please connect to a different one\r\n"
        assert link.reply() == leaving
        assert link.ask("GETJOB", "FROM", "queue") == leaving
        assert link.ask("GETJOB", "NOHANG", "FROM", "queue") == NULL_ARRAY
