"""Malformed, random and very large input to a real node: it answers or closes, and everybody else notices nothing.

Each fuzzing test ends with the same three questions: does the node still answer, did a client that was connected all
the time lose anything, and is there a traceback in the log?
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker.commands.table import COMMANDS
from penstock.broker.directives import DIRECTIVES
from penstock.wire.requests import ARGUMENT_BYTES, ARGUMENTS_MAX, BULK_BYTES_MAX
from tests.conftest import StartNode
from tests.processes import NodeProcess, resident_bytes, settled_bytes, wait_until
from tests.raw_link import RawLink, encode

pytestmark = pytest.mark.system

LONG = bool(os.environ.get("PENSTOCK_LONG"))
PATIENCE_S = 20.0
ANNOUNCERS = 200
PIPELINED = 100_000
END = b"end-of-the-example"  # the message of a PING behind random input: its echo shows that all of it was run

FUZZ = settings(
    max_examples=3000 if LONG else 300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Witness:
    """A well-behaved client that is connected all the time, and the node's log."""

    def __init__(self, node: NodeProcess) -> None:
        self._node = node
        self._link = RawLink(node)
        self._turn = 0

    def check(self) -> None:
        """Add, fetch and finish a job as if nothing else were going on."""
        self._turn += 1
        queue, body = b"witness-%d" % os.getpid(), b"%d" % self._turn
        job_id = self._link.ask("ADDJOB", queue, body, 0)[1:-2]
        assert self._link.ask("GETJOB", "FROM", queue).endswith(b"$%d\r\n%b\r\n" % (len(body), body))
        assert self._link.ask("ACKJOB", job_id) == b":1\r\n"

    def check_log(self) -> None:
        log = self._node.log.read_text()
        assert "Traceback" not in log
        assert "failed" not in log

    def close(self) -> None:
        self._link.close()


@pytest.fixture(scope="module")
def witness(shared_node: NodeProcess) -> Iterator[Witness]:
    """One client for all tests of this module."""
    one = Witness(shared_node)
    yield one
    one.check()
    one.check_log()
    one.close()


def drain(link: socket.socket) -> bytes:
    """Read to the end, which may be a reset: the node need not read what it has no use for."""
    received = bytearray()
    with suppress(ConnectionError):
        while data := link.recv(65536):
            received += data
    return bytes(received)


def send_and_drain(node: NodeProcess, data: bytes) -> bytes:
    """Send bytes on a new connection, say that no more come, and read all the replies."""
    with socket.create_connection((node.host, node.port), PATIENCE_S) as link:
        with suppress(ConnectionError):
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
        return drain(link)


# Bytes

FRAGMENTS = st.sampled_from(
    rb"""
    * $ \r\n \n \r *1\r\n *2\r\n *-1\r\n $4\r\nPING\r\n $-1\r\n $0\r\n\r\n PING GETJOB\x20FROM\x20q\r\n " \\x \0 ~3\r\n
    >2\r\n |1\r\n %1\r\n +OK\r\n :1 *1048576\r\n *1048577\r\n $536870912\r\n $536870913\r\n $\x204\r\n
    *99999999999999999999\r\n""".split()
).map(lambda written: written.decode("unicode_escape").encode("latin-1"))
STREAMS = st.one_of(st.binary(max_size=300), st.lists(FRAGMENTS | st.binary(max_size=8), max_size=30).map(b"".join))


@FUZZ
@given(streams=st.lists(STREAMS, min_size=1, max_size=8))
def test_random_bytes_on_several_connections_harm_nobody(
    shared_node: NodeProcess, witness: Witness, streams: list[bytes]
) -> None:
    links = [socket.create_connection((shared_node.host, shared_node.port), PATIENCE_S) for _ in streams]
    try:
        for link, data in zip(links, streams, strict=True):
            # A word that stops or blocks the node on purpose is most unlikely among random bytes.
            with suppress(ConnectionError):
                link.sendall(data)
        witness.check()
    finally:
        for link in links:
            link.close()
    witness.check()
    witness.check_log()


# Commands

NUMBERS = [0, 1, -1, 2, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30]
OPTIONS = b"""FROM COUNT TIMEOUT NOHANG WITHCOUNTERS LEASE REPLICATE DELAY RETRY TTL MAXLEN ASYNC BODIES BUSYLOOP MINLEN
IMPORTRATE QUEUE STATE REPLY ALL ID COMPACT queued acked in out all none state bcast AFTER AUTH SETNAME INFO
DOCS""".split()
# Left out is what is there to stop a node, to stall it, to throw clients out or to change what the others rely on.
SUBCOMMANDS = {
    "client": ["LIST", "GETNAME", "SETNAME", "SETINFO", "ID", "REPLY", "ON", "SKIP", "OFF", "lib-name"],
    "cluster": ["NODES", "INFO", "MYID", "SAVECONFIG", "FORGET", "LEAVING", "MEET", "::1", "127.0.0.1"],
    "config": ["GET", "SET", "RESETSTAT", "REWRITE", "*", "[", "\\"],
    "debug": ["ERROR", "STRUCTSIZE", "SEGFAULT", "OOM", "ASSERT", "LOADAOF", "nothing"],
    "latency": ["LATEST", "HISTORY", "GRAPH", "DOCTOR", "RESET", "command", "fast-command"],
    "slowlog": ["GET", "LEN", "RESET"],
}
UNTOUCHED = {
    "requirepass",
    "maxclients",
    "timeout",
    "maxmemory",
    "dir",
    "hz",
    "appendonly",
    "loglevel",
    "protected-mode",
}
UNTOUCHED.add("client-output-buffer-limit")
IDS = st.sampled_from(
    [b"D-8ff1663c-e/3qajFcXLIlJT4ycmEenmf3-05a0", b"D-", b"D" * 40, b"D-8ff1663c-e/3qajFcXLIlJT4ycmEenmf3-05a1" * 2]
)
WORDS = st.one_of(
    st.sampled_from(NUMBERS).map(lambda number: b"%d" % number),
    st.sampled_from(OPTIONS),
    st.sampled_from(
        [b"q", b"r", b"", b"\0", b"5\0x", b"-0", b"+7", b"007", b" 5", b"\xff\xfe", b"\r\n", b"x" * 70_000]
    ),
    IDS,
    st.binary(max_size=20),
)


QUEUES = st.just(b"q") | st.sampled_from([b"r", b""])
NUMERALS = st.sampled_from(NUMBERS).map(lambda number: b"%d" % number)
# The first arguments of commands that look at them before anything else: mostly right, so that what follows is reached.
BEGINNINGS: dict[str, list[st.SearchStrategy[bytes]]] = {
    "addjob": [QUEUES, st.binary(max_size=20), st.just(b"0")],
    "addjobs": [QUEUES, st.just(b"0"), st.just(b"BODIES")],
    "getjob": [st.just(b"NOHANG")],
    "qpeek": [QUEUES, NUMERALS],
    "qstat": [QUEUES],
    "pause": [st.just(b"paused"), st.sampled_from([b"in", b"out", b"all", b"none", b"state"])],
    "claim": [st.just(b"key"), st.just(b"COUNT"), NUMERALS, st.just(b"FROM"), QUEUES],
    "nackclaim": [st.just(b"key"), NUMERALS],
    "extendclaim": [st.just(b"key"), NUMERALS],
    "extend": [NUMERALS, IDS, NUMERALS],
    "begin": [IDS, NUMERALS],
    "nacklease": [NUMERALS, IDS, NUMERALS],
    "nack": [st.just(b"AFTER"), NUMERALS, IDS],
    "qscan": [NUMERALS, st.just(b"COUNT"), NUMERALS],
    "jscan": [NUMERALS, st.just(b"COUNT"), NUMERALS, st.just(b"REPLY"), st.sampled_from([b"all", b"compact"])],
}


def words_of(name: str) -> st.SearchStrategy[bytes]:
    """Return what to try as arguments of a command."""
    if name == "debug":  # its words stop or crash; so no word that isn't known to be harmless
        return st.sampled_from(SUBCOMMANDS[name]).map(str.encode)
    own = [word.encode() for word in SUBCOMMANDS.get(name, [])]
    if name == "config":
        own += [directive.encode() for directive in DIRECTIVES if directive not in UNTOUCHED]
    return st.one_of(st.sampled_from(own), WORDS) if own else WORDS


def requests_of(name: str) -> st.SearchStrategy[list[bytes]]:
    """Return requests with this command; SHUTDOWN only with arguments that it refuses."""
    first = [name.encode()] if name != "shutdown" else [b"shutdown", b"x"]
    anything = st.lists(words_of(name), max_size=8).map(lambda words: first + words)
    if name not in BEGINNINGS:
        return anything
    begun = st.tuples(st.tuples(*BEGINNINGS[name]), st.just([]) | st.lists(WORDS, max_size=4))
    return anything | begun.map(lambda words: [*first, *words[0], *words[1]])


REQUESTS = st.sampled_from(sorted(COMMANDS) + 3 * sorted(BEGINNINGS)).flatmap(requests_of)


@FUZZ
@given(requests=st.lists(REQUESTS, min_size=1, max_size=20))
def test_random_commands_are_answered_or_refused(
    shared_node: NodeProcess, witness: Witness, requests: list[list[bytes]]
) -> None:
    # Blocking commands wait for what never comes, and monitors see lines at any time: so nothing is said of the
    # replies but that there are some, or that the connection is open.
    shared_node.call("ADDJOB", "q", "stock", 0, "TTL", 10)
    replies = send_and_drain(shared_node, b"".join(encode(*words) for words in requests))
    assert b"internal error" not in replies
    witness.check()
    witness.check_log()


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"shutdown", "monitor", "getjob"}))
def test_every_command_survives_every_number_of_arguments(
    shared_node: NodeProcess, witness: Witness, name: str
) -> None:
    harmless = b"nothing"
    with RawLink(shared_node) as link:
        for count in (*range(12), 1000):
            # CLIENT REPLY OFF and the like need their words: with others every request has one reply.
            assert b"internal error" not in link.ask(name, *[harmless] * count)
        assert link.ask("PING", END) == b"$%d\r\n%b\r\n" % (len(END), END)
    witness.check_log()


# Amounts


def test_a_hundred_thousand_pipelined_commands_are_answered_in_order(node: NodeProcess) -> None:
    with RawLink(node) as link:
        commands = [encode("PING", number) for number in range(PIPELINED)]
        expected = b"".join(b"$%d\r\n%d\r\n" % (len(str(number)), number) for number in range(PIPELINED))
        link.send(b"".join(commands))
        assert link.read(len(expected)) == expected


def test_commands_behind_one_that_blocks_are_run_after_it(node: NodeProcess) -> None:
    count = 20_000
    with RawLink(node) as link:
        link.send(encode("GETJOB", "FROM", "q") + b"".join(encode("PING", number) for number in range(count)))
        wait_until(lambda: node.info()["blocked_clients"] == "1")
        node.call("ADDJOB", "q", "body", 0)
        assert link.reply().endswith(b"$4\r\nbody\r\n")
        assert [link.reply() for _ in range(count)] == [
            b"$%d\r\n%d\r\n" % (len(str(number)), number) for number in range(count)
        ]


def test_a_million_arguments_are_one_command(node: NodeProcess) -> None:
    with RawLink(node) as link:
        link.send(b"*%d\r\n$4\r\nPING\r\n" % ARGUMENTS_MAX + b"$1\r\nx\r\n" * (ARGUMENTS_MAX - 1))
        assert link.reply() == b"-ERR wrong number of arguments for 'ping' command\r\n"
        assert link.ask("PING") == b"+PONG\r\n"
        link.send(b"*%d\r\n" % (ARGUMENTS_MAX + 1))
        assert link.rest() == b"-ERR Protocol error: invalid multibulk length\r\n"


@pytest.mark.parametrize("megabytes", [1, 64])
def test_a_large_body_comes_back_byte_for_byte(node: NodeProcess, megabytes: int) -> None:
    body = b"".join(hashlib.shake_128(b"%d" % number).digest(1 << 20) for number in range(megabytes))
    node.call("ADDJOB", "q", body, 0)
    ((_, _, fetched),) = node.call("GETJOB", "FROM", "q")
    assert hashlib.sha256(fetched).digest() == hashlib.sha256(body).digest()


def test_512_megabytes_may_be_announced_and_one_more_byte_may_not(node: NodeProcess) -> None:
    with RawLink(node) as fits, RawLink(node) as too_large:
        fits.send(b"*2\r\n$4\r\nPING\r\n$%d\r\n" % BULK_BYTES_MAX)
        too_large.send(b"*2\r\n$4\r\nPING\r\n$%d\r\n" % (BULK_BYTES_MAX + 1))
        assert too_large.rest() == b"-ERR Protocol error: invalid bulk length\r\n"
        fits.send(b"x" * 1000)
        lines = node.call("CLIENT", "LIST").decode().splitlines()
        assert any("qbuf=10" in line for line in lines), lines  # it is there, and what it has sent is being kept


@pytest.mark.parametrize(
    "announcement", [b"*2\r\n$4\r\nPING\r\n$536870912\r\n", b"*1048576\r\n", b"*3\r\n$6\r\nADDJOB\r\n$536870912\r\nxyz"]
)
def test_what_is_announced_and_not_sent_costs_nothing(node: NodeProcess, announcement: bytes) -> None:
    links = [RawLink(node) for _ in range(ANNOUNCERS)]
    try:
        wait_until(lambda: int(node.info()["connected_clients"]) == ANNOUNCERS + 1)
        used, rss = settled_bytes(node), resident_bytes(node)
        for link in links:
            link.send(announcement)
        wait_until(lambda: int(node.info()["used_memory"]) > used)
        assert settled_bytes(node) - used <= ANNOUNCERS * (len(announcement) + 2 * ARGUMENT_BYTES)
        assert resident_bytes(node) - rss < ANNOUNCERS * 10_000
        assert node.call("ADDJOB", "q", "body", 0)
    finally:
        for link in links:
            link.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_request_larger_than_a_gigabyte_is_cut_off(start_node: StartNode) -> None:
    node = start_node(maxmemory_clients="2gb")
    megabyte = b"x" * (1 << 20)
    bulk = b"$%d\r\n" % BULK_BYTES_MAX
    with RawLink(node) as link:
        link.send(b"*100\r\n" + bulk)
        for number in range(1, 1024):
            link.send(megabyte if number % 512 else megabyte + b"\r\n" + bulk)
        with pytest.raises(ConnectionError):
            link.send(megabyte + b"\r\n" + bulk + megabyte * 100)
    assert node.call("PING") == b"PONG"
    assert "at most 1073741824 bytes" in node.log.read_text()


def test_a_number_with_a_tail_behind_a_nul_is_not_kept(node: NodeProcess) -> None:
    node.call("ADDJOB", "q", "body", 0)
    before = resident_bytes(node)
    for number in range(16):
        node.call("ADDJOB", "q", "body", b"%d\0" % number + b"x" * (4 << 20))
    assert resident_bytes(node) - before < 32 << 20
