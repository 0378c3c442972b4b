"""The protocol below the commands, on a real socket: requests in both forms, cut anywhere, and what isn't a request."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import StartNode
from tests.processes import NodeProcess, wait_until
from tests.raw_link import RawLink, encode

pytestmark = pytest.mark.system

OpenLink = Callable[[], RawLink]
PONG = b"+PONG\r\n"
LINE_BYTES_MAX = 64 * 1024


def wait_blocked(node: NodeProcess, queue: bytes) -> None:
    def blocked() -> bool:
        facts = node.call("QSTAT", queue)
        return facts is not None and facts[facts.index(b"blocked") + 1] == 1

    wait_until(blocked)


# Requests in both forms


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"PING\r\n", PONG),
        (b"ping\r\n", PONG),
        (b"PiNg\r\n", PONG),
        (b"PING\n", PONG),
        (b"  PING  \r\n", PONG),
        (b"PING hello\r\n", b"$5\r\nhello\r\n"),
        (b'PING "two words"\r\n', b"$9\r\ntwo words\r\n"),
        (b"PING 'two words'\r\n", b"$9\r\ntwo words\r\n"),
        (b'PING "\\x00\\xff\\r\\n\\t\\"\\\\"\r\n', b'$7\r\n\x00\xff\r\n\t"\\\r\n'),
        (b"PING 'it\\'s'\r\n", b"$4\r\nit's\r\n"),
        (b'PING ""\r\n', PONG),
        (b"QLEN no-such-queue\r\n", b":0\r\n"),
    ],
)
def test_a_request_may_be_a_line_of_words(link: RawLink, line: bytes, reply: bytes) -> None:
    link.send(line)
    assert link.reply() == reply


def test_a_line_that_ends_without_a_carriage_return_takes_nothing_of_the_next(link: RawLink) -> None:
    link.send(b"PING\nPING one\nPING\n")
    assert [link.reply() for _ in range(3)] == [PONG, b"$3\r\none\r\n", PONG]


@pytest.mark.parametrize("nothing", [b"*0\r\n", b"*-1\r\n", b"\r\n", b"\n", b"   \r\n", b'""\r\n'])
def test_an_empty_request_is_passed_over(link: RawLink, nothing: bytes) -> None:
    link.send(nothing * 3 + b"PING\r\n")
    assert link.reply() == PONG


def test_the_two_forms_mix_in_one_connection(link: RawLink) -> None:
    link.send(b"PING\r\n" + encode("PING", "array") + b"PING line\n" + encode("PING"))
    assert [link.reply() for _ in range(4)] == [PONG, b"$5\r\narray\r\n", b"$4\r\nline\r\n", PONG]


def test_replies_of_a_pipeline_come_in_the_order_of_its_requests(link: RawLink) -> None:
    link.send(b"".join(encode("PING", number) for number in range(2000)))
    replies = [link.reply() for _ in range(2000)]
    assert replies == [b"$%d\r\n%d\r\n" % (len(str(number)), number) for number in range(2000)]


def test_an_error_in_a_pipeline_leaves_the_others_alone(link: RawLink, queue: bytes) -> None:
    link.send(encode("QLEN", queue) + encode("BOGUS") + encode("ADDJOB", queue, "b", "x") + encode("PING"))
    replies = [link.reply()[:15] for _ in range(4)]
    assert replies == [b":0\r\n", b"-ERR unknown co", b"-ERR timeout is", PONG]


PIECES = encode("PING", b"a\r\nb") + b"PING 'c d'\r\n" + encode("PING") + b"*0\r\n" + b"PING\n"
PIECES_REPLY = b"$4\r\na\r\nb\r\n$3\r\nc d\r\n" + PONG + PONG


def test_requests_may_be_cut_at_any_byte(open_link: OpenLink) -> None:
    witness = open_link()
    for cut in range(1, len(PIECES)):
        link = open_link()
        link.send(PIECES[:cut])
        assert witness.ask("PING") == PONG  # the node has read the first piece by now
        link.send(PIECES[cut:] + b"QUIT\r\n")
        assert link.rest() == PIECES_REPLY + b"+OK\r\n", f"cut at {cut}"
        link.close()


def test_requests_may_come_byte_by_byte(open_link: OpenLink) -> None:
    witness, link = open_link(), open_link()
    for at in range(len(PIECES)):
        link.send(PIECES[at : at + 1])
        assert witness.ask("PING") == PONG
    link.send(b"QUIT\r\n")
    assert link.rest() == PIECES_REPLY + b"+OK\r\n"


# What isn't a request


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"x" * (LINE_BYTES_MAX + 1), "too big inline request"),
        (b'PING "unbalanced\r\n', "unbalanced quotes in request"),
        (b'PING "a"b\r\n', "unbalanced quotes in request"),
        (b"PING 'a\r\n", "unbalanced quotes in request"),
        (b"*" + b"1" * LINE_BYTES_MAX, "too big mbulk count string"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n$" + b"1" * LINE_BYTES_MAX, "too big bulk count string"),
        (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
        (b"*1\r\n:5\r\n", "expected '$', got ':'"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_request_is_explained_and_ends_the_connection(link: RawLink, data: bytes, reason: str) -> None:
    link.send(data)
    assert link.rest() == f"-ERR Protocol error: {reason}\r\n".encode()


def test_requests_before_what_is_none_are_answered_and_those_behind_it_not(link: RawLink, queue: bytes) -> None:
    link.send(encode("PING") + b"*1\r\nX\r\n" + encode("ADDJOB", queue, "body", 0))
    assert link.rest() == PONG + b"-ERR Protocol error: expected '$', got 'X'\r\n"


def test_what_is_only_announced_costs_no_memory(shared_node: NodeProcess, open_link: OpenLink) -> None:
    before = int(shared_node.info()["used_memory"])
    for _ in range(20):
        open_link().send(b"*1048576\r\n$536870912\r\n")
    assert open_link().ask("PING") == PONG
    assert int(shared_node.info()["used_memory"]) - before < 1_000_000


# The checks before a command, in their order


@pytest.mark.parametrize("words", [["QUIT"], ["quit", "now"], ["QUIT"] * 5])
def test_quit_is_answered_and_ends_the_connection(link: RawLink, words: list[str]) -> None:
    link.send(encode(*words) + encode("PING"))
    assert link.rest() == b"+OK\r\n"


@pytest.mark.parametrize("name", [b"BOGUS", b"bogus", b"select", b"\xff\x00"])
def test_an_unknown_command_is_named_as_it_was_typed(link: RawLink, name: bytes) -> None:
    assert link.ask(name, "x") == b"-ERR unknown command '" + name + b"'\r\n"


def test_line_ends_in_an_error_become_blanks(link: RawLink) -> None:
    assert link.ask(b"a\r\nb") == b"-ERR unknown command 'a  b'\r\n"


@pytest.mark.parametrize(
    "words",
    [
        "AUTH",
        "AUTH a b",
        "ADDJOB",
        "ADDJOB queue body",
        "GETJOB",
        "SHOW",
        "SHOW a b",
        "QLEN",
        "QLEN a b",
        "QPEEK a",
        "QPEEK a 1 2",
        "QSTAT",
        "QSTAT a b",
        "PAUSE queue",
        "WORKING",
        "WORKING a b",
        "LOADJOB",
        "TIME x",
        "MONITOR x",
        "BGREWRITEAOF x",
        "CONFIG",
        "CLUSTER",
        "CLIENT",
        "DEBUG",
        "SLOWLOG",
        "LATENCY",
    ],
)
def test_a_wrong_number_of_arguments_names_the_command_in_small_letters(link: RawLink, words: str) -> None:
    name = words.partition(" ")[0].lower()
    assert link.ask(*words.split()) == f"-ERR wrong number of arguments for '{name}' command\r\n".encode()


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ("BOGUS", b"-ERR unknown command 'BOGUS'\r\n"),
        ("ADDJOB queue", b"-ERR wrong number of arguments for 'addjob' command\r\n"),
        ("ADDJOB queue body x", b"-NOAUTH Authentication required.\r\n"),
        ("PING", b"-NOAUTH Authentication required.\r\n"),
        ("AUTH wrong", b"-ERR invalid password\r\n"),
        ("QUIT", b"+OK\r\n"),
    ],
)
def test_a_password_is_asked_for_after_name_and_arity_and_before_all_else(
    locked_node: NodeProcess, words: str, reply: bytes
) -> None:
    with RawLink(locked_node) as link:
        assert link.ask(*words.split()) == reply


def test_memory_is_checked_after_the_password(locked_node: NodeProcess) -> None:
    with RawLink(locked_node) as link:
        assert link.ask("AUTH", "secret") == b"+OK\r\n"
        refused = link.ask("ADDJOB", "queue", "body", "x")
        assert refused == b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"


@pytest.mark.parametrize("words", ["PING", "QLEN queue", "GETJOB NOHANG FROM queue", "ACKJOB", "DEQUEUE"])
def test_commands_that_need_no_memory_run_without_any(locked_node: NodeProcess, words: str) -> None:
    with RawLink(locked_node) as link:
        link.ask("AUTH", "secret")
        assert not link.ask(*words.split()).startswith(b"-")


@pytest.fixture(scope="module")
def locked_node(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A node with a password and no memory to spare."""
    process = NodeProcess(tmp_path_factory.mktemp("locked"), requirepass="secret", maxmemory=50_000)
    yield process.start()
    process.kill()


# Clients that wait, and too many of them


def test_what_a_waiting_client_sends_is_run_when_it_has_its_job(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    link.send(encode("GETJOB", "FROM", queue) + encode("PING", "one"))
    wait_blocked(shared_node, queue)
    link.send(encode("QLEN", queue) + b"PING two\r\n")
    shared_node.call("ADDJOB", queue, "body", 0)
    assert link.reply().endswith(b"$4\r\nbody\r\n")
    assert [link.reply() for _ in range(3)] == [b"$3\r\none\r\n", b":0\r\n", b"$3\r\ntwo\r\n"]


def test_what_a_waiting_client_sends_is_not_run_before_it_has_its_job(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    other = queue + b"other"
    link.send(encode("GETJOB", "FROM", queue) + encode("ADDJOB", other, "body", 0))
    wait_blocked(shared_node, queue)
    assert shared_node.call("QLEN", other) == 0


def test_a_client_may_wait_again_and_again_in_one_pipeline(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    link.send(encode("GETJOB", "FROM", queue) * 3 + encode("PING"))
    for body in (b"a", b"b", b"c"):
        wait_blocked(shared_node, queue)
        shared_node.call("ADDJOB", queue, body, 0)
        assert link.reply().endswith(b"$1\r\n" + body + b"\r\n")
    assert link.reply() == PONG


def test_what_is_no_request_behind_a_waiting_one_is_answered_in_its_turn(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    link.send(encode("GETJOB", "FROM", queue) + encode("PING") + b"*x\r\n")
    wait_blocked(shared_node, queue)
    shared_node.call("ADDJOB", queue, "body", 0)
    assert link.rest().endswith(b"$4\r\nbody\r\n" + PONG + b"-ERR Protocol error: invalid multibulk length\r\n")


def test_a_client_too_many_is_informed_and_sent_away(start_node: StartNode) -> None:
    node = start_node(maxclients=3)
    wait_until(lambda: int(node.info()["connected_clients"]) == 1)
    with RawLink(node) as one, RawLink(node) as two, RawLink(node) as three:
        assert one.ask("PING") == two.ask("PING") == PONG
        assert three.rest() == b"-ERR max number of clients reached\r\n"


def test_there_is_room_again_when_a_client_has_gone(start_node: StartNode) -> None:
    node = start_node(maxclients=2)
    wait_until(lambda: int(node.info()["connected_clients"]) == 1)
    with RawLink(node) as link:
        assert link.ask("PING") == PONG

    def is_let_in() -> bool:
        with RawLink(node) as link:
            link.send(b"PING\r\nQUIT\r\n")
            return link.rest().startswith(PONG)

    wait_until(is_let_in)
