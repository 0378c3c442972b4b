"""Looking at queues, pausing them and walking over them, on a real node: QLEN, QPEEK, QSTAT, PAUSE, QSCAN, JSCAN."""

from __future__ import annotations

import pytest

from tests.processes import NodeProcess
from tests.raw_link import RawLink

pytestmark = pytest.mark.system

SYNTAX = "ERR syntax error"
NUMBER = "ERR value is not an integer or out of range"
CURSOR = "ERR invalid cursor or option name"


def add(node: NodeProcess, queue: bytes, body: str = "body", *options: str | int) -> bytes:
    job_id: bytes = node.call("ADDJOB", queue, body, 0, *options)
    return job_id


def peek(node: NodeProcess, queue: bytes, count: int) -> list[bytes]:
    return [job[2] for job in node.call("QPEEK", queue, count)]


def stat(node: NodeProcess, queue: bytes) -> dict[bytes, object]:
    reply = node.call("QSTAT", queue)
    return dict(zip(reply[::2], reply[1::2], strict=True))


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def scan(node: NodeProcess, command: str, *options: bytes | str | int) -> list[bytes]:
    """Follow the cursor to the end, and give all that was found."""
    found: list[bytes] = []
    cursor = b"0"
    while True:
        cursor, items = node.call(command, cursor, *options)
        found += items
        if cursor == b"0":
            return found


# QLEN and QPEEK


def test_the_length_of_a_queue_is_an_integer(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    add(shared_node, queue)
    assert link.ask("QLEN", queue) == b":1\r\n"


def test_a_queue_that_is_not_there_has_length_0(link: RawLink, queue: bytes) -> None:
    assert link.ask("QLEN", queue) == b":0\r\n"


def test_looking_at_a_queue_does_not_make_it(link: RawLink, queue: bytes) -> None:
    link.ask("QLEN", queue)
    link.ask("QPEEK", queue, 1)
    assert link.ask("QSTAT", queue) == b"*-1\r\n"


def test_a_peeked_job_is_queue_id_and_body(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    job_id = add(shared_node, queue)
    assert link.ask("QPEEK", queue, 1) == b"*1\r\n*3\r\n" + bulk(queue) + bulk(job_id) + bulk(b"body")


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, b"a"),
        (3, b"abc"),
        (100, b"abcde"),
        (-1, b"e"),
        (-2, b"ed"),
        (-100, b"edcba"),
        (2**63 - 1, b"abcde"),
        (-(2**63), b"edcba"),
    ],
)
def test_peeking_returns_the_oldest_first_or_the_newest_first(
    shared_node: NodeProcess, queue: bytes, count: int, expected: bytes
) -> None:
    for body in "abcde":
        add(shared_node, queue, body)
    assert b"".join(peek(shared_node, queue, count)) == expected


@pytest.mark.parametrize("count", [0, 5, -5])
def test_peeking_into_an_empty_queue_returns_an_empty_array(link: RawLink, queue: bytes, count: int) -> None:
    assert link.ask("QPEEK", queue, count) == b"*0\r\n"


def test_peeking_at_no_job_returns_an_empty_array(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    add(shared_node, queue)
    assert link.ask("QPEEK", queue, 0) == b"*0\r\n"


@pytest.mark.parametrize("count", ["x", "1.5", " 1", "9223372036854775808"])
def test_peeking_needs_a_number(link: RawLink, queue: bytes, count: str) -> None:
    assert link.ask("QPEEK", queue, count) == f"-{NUMBER}\r\n".encode()


def test_peeking_takes_no_job_and_minds_no_pause(shared_node: NodeProcess, queue: bytes) -> None:
    add(shared_node, queue)
    shared_node.call("PAUSE", queue, "all")
    assert peek(shared_node, queue, 1) == [b"body"]
    assert shared_node.call("QLEN", queue) == 1


def test_peeking_shows_a_job_that_came_back_in_its_old_place(shared_node: NodeProcess, queue: bytes) -> None:
    ids = [add(shared_node, queue, body) for body in "abc"]
    shared_node.call("GETJOB", "FROM", queue)
    shared_node.call("DEQUEUE", ids[1])
    shared_node.call("NACK", *ids[:2])
    assert peek(shared_node, queue, 5) == [b"a", b"b", b"c"]
    assert peek(shared_node, queue, -5) == [b"c", b"b", b"a"]


# QSTAT


def test_the_facts_of_a_queue_come_as_names_and_values(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    add(shared_node, queue)
    reply = link.ask("QSTAT", queue)
    head = b"*22\r\n$4\r\nname\r\n" + bulk(queue) + b"$3\r\nlen\r\n:1\r\n$3\r\nage\r\n:"
    middle = b"$7\r\nblocked\r\n:0\r\n$11\r\nimport-from\r\n*0\r\n$11\r\nimport-rate\r\n:0\r\n"
    tail = b"$7\r\njobs-in\r\n:1\r\n$8\r\njobs-out\r\n:0\r\n$5\r\npause\r\n$4\r\nnone\r\n$7\r\nexpired\r\n:0\r\n"
    assert reply.startswith(head)
    assert reply.endswith(middle + tail)
    assert b"\r\n$4\r\nidle\r\n:" in reply


def test_a_queue_that_is_not_there_has_no_facts(link: RawLink, queue: bytes) -> None:
    assert link.ask("QSTAT", queue) == b"*-1\r\n"


def test_every_queueing_counts_as_in_and_only_a_fetch_as_out(shared_node: NodeProcess, queue: bytes) -> None:
    first, second, third = (add(shared_node, queue) for _ in range(3))
    shared_node.call("GETJOB", "FROM", queue)
    shared_node.call("NACK", first)
    shared_node.call("DEQUEUE", second)
    shared_node.call("ENQUEUE", second)
    shared_node.call("ACKJOB", first)
    shared_node.call("DELJOB", third)
    facts = stat(shared_node, queue)
    assert (facts[b"jobs-in"], facts[b"jobs-out"], facts[b"len"]) == (5, 1, 1)


@pytest.mark.parametrize("state", [b"in", b"out", b"all"])
def test_the_facts_of_a_queue_have_its_pause(shared_node: NodeProcess, queue: bytes, state: bytes) -> None:
    shared_node.call("PAUSE", queue, state)
    assert stat(shared_node, queue)[b"pause"] == state


# PAUSE


@pytest.mark.parametrize(
    ("commands", "state"),
    [
        (["in"], "in"),
        (["OUT"], "out"),
        (["all"], "all"),
        (["in out"], "all"),
        (["out in"], "all"),
        (["none"], "none"),
        (["state"], "none"),
        (["in none"], "none"),
        (["none in"], "in"),
        (["all none out"], "out"),
        (["in", "out"], "out"),
        (["all", "in"], "in"),
        (["all", "none"], "none"),
        (["in", "state"], "in"),
        (["in", "state bcast"], "in"),
        (["in", "bcast"], "in"),
        (["in bcast"], "in"),
        (["in", "out state"], "out"),
    ],
)
def test_pausing_replaces_the_state_and_answers_it_as_a_simple_string(
    link: RawLink, queue: bytes, commands: list[str], state: str
) -> None:
    replies = [link.ask("PAUSE", queue, *words.split()) for words in commands]
    assert replies[-1] == f"+{state}\r\n".encode()
    assert link.ask("PAUSE", queue, "state") == replies[-1]


@pytest.mark.parametrize("words", ["bogus", "in bogus", "bogus in", "in out,"])
def test_an_unknown_word_pauses_nothing(link: RawLink, queue: bytes, words: str) -> None:
    assert link.ask("PAUSE", queue, *words.split()) == f"-{SYNTAX}\r\n".encode()
    assert link.ask("PAUSE", queue, "state") == b"+none\r\n"


def test_pausing_needs_a_word(link: RawLink, queue: bytes) -> None:
    assert link.ask("PAUSE", queue) == b"-ERR wrong number of arguments for 'pause' command\r\n"


@pytest.mark.parametrize(("words", "made"), [("in", True), ("none", False), ("state", False), ("in none", False)])
def test_only_a_pause_that_holds_makes_a_queue(shared_node: NodeProcess, queue: bytes, words: str, made: bool) -> None:
    shared_node.call("PAUSE", queue, *words.split())
    assert (shared_node.call("QSTAT", queue) is not None) == made


def test_jobs_that_wait_are_fetched_from_a_queue_paused_for_input(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue)
    shared_node.call("PAUSE", queue, "in")
    assert shared_node.call("GETJOB", "NOHANG", "FROM", queue) == [[queue, job_id, b"body"]]


# QSCAN


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("x", CURSOR),
        ("COUNT", CURSOR),
        ("MINLEN", CURSOR),
        ("0 0", SYNTAX),
        ("0 BOGUS", SYNTAX),
        ("COUNT x", NUMBER),
        ("MINLEN x", NUMBER),
        ("MAXLEN x", NUMBER),
        ("IMPORTRATE x", NUMBER),
    ],
)
@pytest.mark.parametrize("command", ["QSCAN", "JSCAN"])
def test_a_wrong_scan_is_refused_in_the_words_that_clients_know(
    link: RawLink, command: str, words: str, problem: str
) -> None:
    if command == "JSCAN":  # the same faults with its own options
        words = words.replace("MINLEN", "QUEUE").replace("MAXLEN", "COUNT").replace("IMPORTRATE", "COUNT")
        words = words.replace("QUEUE x", "COUNT x")
    assert link.ask(command, *words.split()) == f"-{problem}\r\n".encode()


def test_a_scan_of_queues_returns_a_cursor_and_names_as_bulks(node: NodeProcess) -> None:
    node.call("ADDJOB", "queue", "body", 0)
    with RawLink(node) as link:
        assert link.ask("QSCAN") == b"*2\r\n$1\r\n0\r\n*1\r\n$5\r\nqueue\r\n"


def test_a_scan_of_a_node_without_queues_and_jobs_is_empty(node: NodeProcess) -> None:
    with RawLink(node) as link:
        assert [link.ask("QSCAN"), link.ask("JSCAN")] == [b"*2\r\n$1\r\n0\r\n*0\r\n"] * 2


@pytest.mark.parametrize("options", ["", "COUNT 1", "COUNT 7", "COUNT 0", "COUNT -1", "BUSYLOOP", "busyloop count 1"])
def test_following_the_cursor_finds_every_queue(shared_node: NodeProcess, queue: bytes, options: str) -> None:
    names = {queue + b"-%d" % number for number in range(150)}
    for name in names:
        shared_node.call("PAUSE", name, "in")
    assert names <= set(scan(shared_node, "QSCAN", *options.split()))


def test_a_scan_returns_about_as_many_queues_as_it_is_asked_for(shared_node: NodeProcess, queue: bytes) -> None:
    for number in range(20):
        shared_node.call("PAUSE", queue + b"-%d" % number, "in")
    cursor, names = shared_node.call("QSCAN", "COUNT", 5)
    assert cursor != b"0"
    assert len(names) == 5


@pytest.mark.parametrize("options", ["BUSYLOOP", "COUNT -1"])
def test_one_call_can_give_all_queues(shared_node: NodeProcess, queue: bytes, options: str) -> None:
    for number in range(150):
        shared_node.call("PAUSE", queue + b"-%d" % number, "in")
    cursor, names = shared_node.call("QSCAN", *options.split())
    assert cursor == b"0"
    assert len(names) >= 150


@pytest.mark.parametrize("command", ["QSCAN", "JSCAN"])
def test_a_negative_cursor_is_the_largest_one(shared_node: NodeProcess, command: str) -> None:
    assert len(shared_node.call(command, -1)) == 2


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ("MINLEN 0", {0, 1, 2, 3}),
        ("MINLEN 2", {2, 3}),
        ("MAXLEN 1", {0, 1}),
        ("MINLEN 1 MAXLEN 2", {1, 2}),
        ("IMPORTRATE 0", {0, 1, 2, 3}),
        ("IMPORTRATE 1", set()),
    ],
)
def test_a_scan_can_ask_for_queues_by_length(
    shared_node: NodeProcess, queue: bytes, options: str, lengths: set[int]
) -> None:
    for length in range(4):
        shared_node.call("GETJOB", "NOHANG", "FROM", queue + b"-%d" % length)
        for _ in range(length):
            add(shared_node, queue + b"-%d" % length)
    found = scan(shared_node, "QSCAN", "BUSYLOOP", *options.split())
    assert {int(name[-1:]) for name in found if name.startswith(queue + b"-")} == lengths


# JSCAN


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("STATE bogus", "ERR Invalid job state name"),
        ("REPLY bogus", "ERR Invalid REPLY type, try ID or ALL"),
    ],
)
def test_a_scan_of_jobs_knows_states_and_replies(link: RawLink, words: str, problem: str) -> None:
    assert link.ask("JSCAN", *words.split()) == f"-{problem}\r\n".encode()


@pytest.mark.parametrize("reply", [[], ["REPLY", "id"]])
def test_a_scan_of_jobs_returns_ids_as_simple_strings(
    shared_node: NodeProcess, link: RawLink, queue: bytes, reply: list[str]
) -> None:
    job_id = add(shared_node, queue)
    expected = b"*2\r\n$1\r\n0\r\n*1\r\n+" + job_id + b"\r\n"
    assert link.ask("JSCAN", "QUEUE", queue, "BUSYLOOP", *reply) == expected


def test_a_scan_of_jobs_can_give_all_that_show_does(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue, "body", "RETRY", 0)
    ((facts,),) = shared_node.call("JSCAN", "QUEUE", queue, "BUSYLOOP", "REPLY", "all")[1:]
    shown = shared_node.call("SHOW", job_id)
    at = shown.index(b"next-awake-within") + 1  # goes on while we look
    ttl = shown.index(b"ttl") + 1
    assert len(facts) == 32
    assert [fact for n, fact in enumerate(facts) if n not in (at, ttl)] == [
        fact for n, fact in enumerate(shown) if n not in (at, ttl)
    ]


@pytest.mark.parametrize("options", ["", "COUNT 1", "COUNT 30", "COUNT 0", "COUNT -1", "BUSYLOOP"])
def test_following_the_cursor_finds_every_job(shared_node: NodeProcess, queue: bytes, options: str) -> None:
    with shared_node.connect() as connection:
        ids = set(connection.pipeline([("ADDJOB", queue, "body", 0)] * 300))
    assert set(scan(shared_node, "JSCAN", "QUEUE", queue, *options.split())) == ids


@pytest.mark.parametrize(
    ("options", "bodies"),
    [
        ("", {b"waits", b"delayed", b"fetched"}),
        ("STATE queued", {b"waits"}),
        ("STATE ACTIVE", {b"delayed", b"fetched"}),
        ("STATE active STATE queued", {b"waits", b"delayed", b"fetched"}),
        ("STATE acked", set()),
        ("STATE wait-repl", set()),
    ],
)
def test_a_scan_can_ask_for_jobs_by_state(
    shared_node: NodeProcess, queue: bytes, options: str, bodies: set[bytes]
) -> None:
    add(shared_node, queue, "fetched")
    shared_node.call("GETJOB", "FROM", queue)
    add(shared_node, queue, "waits")
    add(shared_node, queue, "delayed", "DELAY", 100)
    words = ("JSCAN", "QUEUE", queue, "BUSYLOOP", "REPLY", "all", *options.split())
    found = [dict(zip(facts[::2], facts[1::2], strict=True)) for facts in shared_node.call(*words)[1]]
    assert {facts[b"body"] for facts in found} == bodies


@pytest.mark.parametrize("count", [1, 2, 50])
def test_a_scan_of_jobs_returns_no_more_than_it_is_asked_for(
    shared_node: NodeProcess, queue: bytes, count: int
) -> None:
    with shared_node.connect() as connection:
        ids = set(connection.pipeline([("ADDJOB", queue, "body", 0)] * 256))
    met: list[bytes] = []
    cursor = b"0"
    while True:
        cursor, found = shared_node.call("JSCAN", cursor, "COUNT", count, "QUEUE", queue)
        assert len(found) <= count
        met += found
        if cursor == b"0":
            break
    assert sorted(met) == sorted(ids)


@pytest.mark.parametrize("reply", ["all", "compact"])
def test_a_scan_of_large_jobs_is_cut_by_its_size(shared_node: NodeProcess, queue: bytes, reply: str) -> None:
    body = b"x" * 100_000
    with shared_node.connect() as connection:
        ids = set(connection.pipeline([("ADDJOB", queue, body, 0)] * 30))
    rows: list[list[bytes]] = []
    cursor = b"0"
    while True:
        cursor, found = shared_node.call("JSCAN", cursor, "QUEUE", queue, "REPLY", reply)
        assert len(found) <= 10  # a megabyte
        rows += found
        if cursor == b"0":
            break
    assert sorted(row[1] if reply == "all" else row[0] for row in rows) == sorted(ids)
    assert all(body in row for row in rows)


def test_jobs_that_come_and_go_hide_no_other_from_a_scan(shared_node: NodeProcess, queue: bytes) -> None:
    with shared_node.connect() as connection:
        ids = connection.pipeline([("ADDJOB", queue, "body", 0)] * 256)
    staying, going = set(ids[::2]), ids[1::2]
    met: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, found = shared_node.call("JSCAN", cursor, "COUNT", 3, "QUEUE", queue)
        met.update(found)
        if cursor == b"0":
            break
        for _ in range(3):
            if going:
                shared_node.call("ACKJOB", going.pop())
    assert staying <= met
