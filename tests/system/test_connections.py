"""Clients that don't behave, to a real node: they don't read, vanish, stay half open, or come in thousands."""

from __future__ import annotations

import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import StartNode
from tests.processes import NodeProcess, resident_bytes, wait_until
from tests.raw_link import RawLink, encode

pytestmark = pytest.mark.system

MEGABYTE = 1 << 20
CONNECTIONS = 10_000
CYCLES = 5000
OWN_FILES = 500  # descriptors that pytest and the node need beside the connections
RESET = struct.pack("ii", 1, 0)  # linger for 0 s: close with RST


def vanish(link: socket.socket) -> None:
    """Close so that the other end sees a reset."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    link.close()


def clients(node: NodeProcess) -> int:
    return int(node.info()["connected_clients"])


@contextmanager
def links_to(node: NodeProcess, count: int) -> Iterator[list[socket.socket]]:
    """Open many connections, from several addresses: one has not ports enough for all."""
    links: list[socket.socket] = []
    try:
        for number in range(count):
            link = socket.socket()
            links.append(link)
            link.settimeout(60)
            link.bind((f"127.0.0.{1 + number % 4}", 0))
            link.connect((node.host, node.port))
        yield links
    finally:
        for link in links:
            link.close()


# Clients that don't read


@pytest.fixture
def never_reads(node: NodeProcess) -> Iterator[socket.socket]:
    """A connection that nobody reads from; the system keeps little of what comes."""
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect((node.host, node.port))
        link.settimeout(1)
        yield link


def send_until_it_stalls(link: socket.socket, data: bytes, times: int) -> int:
    """Send until the other end takes no more; tell how many bytes it took."""
    sent = 0
    with suppress(TimeoutError, ConnectionError):
        for _ in range(times):
            view = memoryview(data)
            while view:
                taken = link.send(view)
                sent += taken
                view = view[taken:]
    return sent


def test_requests_of_a_client_that_does_not_read_are_not_taken_without_end(
    node: NodeProcess, never_reads: socket.socket
) -> None:
    node.call("PING")
    before = resident_bytes(node)
    sent = send_until_it_stalls(never_reads, b"PING\r\n" * 50_000, times=200)
    assert sent < 40 * MEGABYTE  # what the kernel buffers on both ends, and a little of ours
    assert resident_bytes(node) - before < 60 * MEGABYTE
    assert node.call("PING") == b"PONG"


@pytest.mark.parametrize("request_line", [b"QPEEK q 1\r\n", b"JSCAN REPLY ALL\r\n"])
@pytest.mark.parametrize("first", [b"", b"GETJOB TIMEOUT 1 FROM r\r\n"], ids=["at once", "behind one that blocks"])
def test_large_replies_to_a_client_that_does_not_read_are_not_made_without_end(
    node: NodeProcess, never_reads: socket.socket, request_line: bytes, first: bytes
) -> None:
    node.call("ADDJOB", "q", b"x" * MEGABYTE, 0)
    before = resident_bytes(node)
    never_reads.sendall(first + request_line * 300)
    wait_until(lambda: sum_of(node, "omem") > 0)
    node.call("PING")
    assert resident_bytes(node) - before < 60 * MEGABYTE


def sum_of(node: NodeProcess, field: str) -> int:
    """Add up a number that CLIENT LIST shows for all clients of a node."""
    lines = node.call("CLIENT", "LIST").decode().splitlines()
    return sum(int(line.split(f" {field}=")[1].split(" ")[0]) for line in lines)


def test_a_slow_reader_gets_everything_in_the_end(node: NodeProcess) -> None:
    node.call("ADDJOB", "q", b"x" * MEGABYTE, 0)
    with RawLink(node) as link:
        link.send(encode("QPEEK", "q", 1) * 100 + encode("PING", "end"))
        for _ in range(100):
            assert len(link.reply()) > MEGABYTE
        assert link.reply() == b"$3\r\nend\r\n"


def test_what_a_blocked_client_sends_ahead_is_accounted_and_bounded(node: NodeProcess) -> None:
    node.call("PING")
    used, rss = int(node.info()["used_memory"]), resident_bytes(node)
    with RawLink(node) as link:
        link.socket.settimeout(1)
        link.post("GETJOB", "FROM", "q")
        sent = send_until_it_stalls(link.socket, encode("PING", "x" * 1000) * 1000, times=64)
        assert MEGABYTE < sent < 30 * MEGABYTE
        wait_until(lambda: int(node.info()["used_memory"]) - used > MEGABYTE)
        assert resident_bytes(node) - rss < 40 * MEGABYTE


def test_a_client_that_sent_too_much_ahead_is_read_again_once_that_is_run(node: NodeProcess) -> None:
    count = 2000
    with RawLink(node) as link:
        link.post("CLIENT", "REPLY", "OFF")  # so that no reply wakes the connection up
        link.post("GETJOB", "FROM", "q")
        link.send(encode("ADDJOB", "r", "x" * 1000, 0) * count)
        wait_until(lambda: sum_of(node, "qbuf") > MEGABYTE)
        node.call("ADDJOB", "q", "body", 0)
        assert link.ask("CLIENT", "REPLY", "ON") == b"+OK\r\n"
        assert node.call("QLEN", "r") == count


@pytest.mark.parametrize(
    "limit",
    ["normal 1048576 0 0", "normal 0 65536 1"],
    ids=["hard", "soft"],
)
def test_output_buffer_limits_close_a_client_that_does_not_read(
    node: NodeProcess, never_reads: socket.socket, limit: str
) -> None:
    node.call("CONFIG", "SET", "client-output-buffer-limit", limit)
    node.call("ADDJOB", "q", b"x" * MEGABYTE, 0)
    before = clients(node)
    send_until_it_stalls(never_reads, b"QPEEK q 1\r\n" * 10, times=1)
    wait_until(lambda: clients(node) == before - 1)
    assert "has not read" in node.log.read_text()
    assert node.call("PING") == b"PONG"


def test_without_output_buffer_limits_a_client_that_does_not_read_stays(
    node: NodeProcess, never_reads: socket.socket
) -> None:
    node.call("ADDJOB", "q", b"x" * MEGABYTE, 0)
    send_until_it_stalls(never_reads, b"QPEEK q 1\r\n" * 10, times=1)
    # The buffers are accounted, and looked at, in every round over all clients.
    wait_until(lambda: int(node.info()["used_memory"]) > 2 * MEGABYTE)
    assert clients(node) == 2


def test_a_monitor_that_does_not_read_is_closed(node: NodeProcess, never_reads: socket.socket) -> None:
    never_reads.sendall(b"MONITOR\r\n")
    wait_until(lambda: " flags=O" in node.call("CLIENT", "LIST").decode())
    body = b"x" * 60_000  # of a longer one only the beginning is shown
    for _ in range(1000):
        node.call("PING", body)
    wait_until(lambda: clients(node) == 1)
    assert resident_bytes(node) < 150 * MEGABYTE


# Clients that vanish


def test_half_a_request_and_then_a_reset_leaves_nothing_behind(node: NodeProcess) -> None:
    node.call("PING")
    for data in (b"", b"*", b"*3\r\n$6\r\nADDJOB\r\n$1", b'PING "', b"*2\r\n$4\r\nPING\r\n$536870912\r\nxyz"):
        for _ in range(100):
            link = socket.create_connection((node.host, node.port), 30)
            link.sendall(data)
            vanish(link)
    wait_until(lambda: clients(node) == 1)
    assert "Traceback" not in node.log.read_text()


def test_half_open_connections_keep_nobody_from_working(node: NodeProcess) -> None:
    with links_to(node, 500) as links:
        for link in links:
            link.sendall(b"*4\r\n$6\r\nADDJOB\r\n$1\r\nq\r\n$4\r\nbo")
        node.call("ADDJOB", "other", "body", 0)
        assert len(node.call("GETJOB", "FROM", "other")) == 1
        assert node.call("QLEN", "q") == 0
        for link in links:
            link.sendall(b"dy\r\n$1\r\n0\r\n")
            assert link.recv(100).startswith(b"+D-")
        assert node.call("QLEN", "q") == 500


def test_a_client_that_says_it_sends_no_more_gets_its_replies(node: NodeProcess) -> None:
    with RawLink(node) as link:
        link.send(b"PING\r\n" * 3)
        link.socket.shutdown(socket.SHUT_WR)
        assert link.rest() == b"+PONG\r\n" * 3


@pytest.mark.parametrize("with_reset", [False, True])
def test_a_blocked_client_that_disappears_eats_no_job(node: NodeProcess, with_reset: bool) -> None:
    for _ in range(50):
        link = socket.create_connection((node.host, node.port), 30)
        link.sendall(encode("GETJOB", "FROM", "q", "r"))
        wait_until(lambda: node.info()["blocked_clients"] == "1")
        vanish(link) if with_reset else link.close()
        wait_until(lambda: node.info()["blocked_clients"] == "0")
        node.call("ADDJOB", "q", "body", 0)
        assert node.call("QLEN", "q") == 1
        assert len(node.call("GETJOB", "NOHANG", "FROM", "q")) == 1


@contextmanager
def stopped(node: NodeProcess) -> Iterator[None]:
    """Hold a node's process: all that is sent to it meanwhile, it gets in one round, in the order in which it came."""
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        node.process.send_signal(signal.SIGCONT)


def link_to(node: NodeProcess, *words: bytes | str | int) -> socket.socket:
    """Open a connection, and send a request."""
    link = socket.create_connection((node.host, node.port), 30)
    link.sendall(encode(*words))
    return link


@pytest.mark.parametrize("retry_s", [0, 3600])
@pytest.mark.parametrize("goes_first", [True, False])
@pytest.mark.parametrize("go", [socket.socket.close, vanish])
def test_a_job_for_a_client_that_disappears_in_the_same_round_goes_to_the_next(
    node: NodeProcess, go: Callable[[socket.socket], None], goes_first: bool, retry_s: int
) -> None:
    gone = link_to(node, "GETJOB", "FROM", "q")
    wait_until(lambda: node.info()["blocked_clients"] == "1")
    with link_to(node, "GETJOB", "FROM", "q") as other, RawLink(node) as producer:
        wait_until(lambda: node.info()["blocked_clients"] == "2")
        producer.ask("PING")
        with stopped(node):
            if goes_first:
                go(gone)
            producer.post("ADDJOB", "q", "body", 0, "RETRY", retry_s)
            if not goes_first:
                go(gone)
        assert other.recv(1000).endswith(b"body\r\n")
        assert producer.reply().startswith(b"+D-")


@pytest.mark.parametrize("retry_s", [0, 3600])
def test_a_job_for_a_client_that_is_gone_when_its_reply_is_sent_waits_again(node: NodeProcess, retry_s: int) -> None:
    node.call("ADDJOB", "q", "body", 0, "RETRY", retry_s)
    link = link_to(node, "PING")
    assert link.recv(100)
    with stopped(node):
        link.sendall(encode("GETJOB", "FROM", "q"))
        vanish(link)
    wait_until(lambda: clients(node) == 1)
    assert node.info()["cmdstat_getjob"].startswith("calls=1,")
    assert node.call("QLEN", "q") == 1


def test_an_idle_client_is_closed_and_a_blocked_one_is_not(start_node: StartNode) -> None:
    node = start_node(timeout=1)
    with RawLink(node) as idle, RawLink(node) as blocked:
        idle.ask("PING")
        blocked.post("GETJOB", "FROM", "q")
        assert idle.rest() == b""
        with RawLink(node) as late:
            late.ask("ADDJOB", "q", "body", 0)
        assert blocked.reply().endswith(b"body\r\n")


# Many clients


def test_more_than_maxclients_are_informed(start_node: StartNode) -> None:
    node = start_node(maxclients=6)
    wait_until(lambda: clients(node) == 1)  # the one that asks; the one that waited for the start is gone
    links = [RawLink(node) for _ in range(5)]
    for link in links:
        link.ask("PING")
    with RawLink(node) as refused:
        assert refused.rest() == b"-ERR max number of clients reached\r\n"
    links.pop().close()

    def is_let_in() -> bool:
        with RawLink(node) as link:
            link.send(b"PING\r\n")
            return link.reply() == b"+PONG\r\n"

    wait_until(is_let_in)
    for link in links:
        link.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ten_thousand_connections_are_all_answered(start_node: StartNode) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = CONNECTIONS if hard == resource.RLIM_INFINITY else min(CONNECTIONS, hard - OWN_FILES)
    if count < CONNECTIONS and sys.stderr.isatty():
        sys.stderr.write(f"only {count} connections: the system allows {hard} open files\n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + OWN_FILES), hard))
    try:
        node = start_node(maxclients=count + 10)
        with links_to(node, count) as links:
            for turn in range(2):
                for link in links:
                    link.sendall(b"PING %d\r\n" % turn)
                for link in links:
                    assert link.recv(100) == b"$1\r\n%d\r\n" % turn
            assert clients(node) == count + 1
            assert node.call("ADDJOB", "q", "body", 0)
        wait_until(lambda: clients(node) == 1)
        assert "Traceback" not in node.log.read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# The node runs without the cyclic garbage collector, so what is in a cycle is never freed. This server counts, at
# SIGUSR1, what a collection would find.
COUNTING_SERVER = """
import gc, pathlib, signal, sys
from penstock.broker import server
def count(*_):
    path = pathlib.Path(sys.argv[1])
    path.with_suffix(".new").write_text(str(gc.collect()))
    path.with_suffix(".new").rename(path)
signal.signal(signal.SIGUSR1, count)
sys.exit(server.run(sys.argv[2:]))
"""


class CountingNode(NodeProcess):
    """A node that can tell how many objects are lost in cycles."""

    @property
    def argv(self) -> list[str]:
        return [sys.executable, "-c", COUNTING_SERVER, str(self._count), *super().argv[4:]]

    @property
    def _count(self) -> Path:
        return self.directory / "count"

    def lost_objects(self) -> int:
        """Return how many objects have become unreachable in cycles since the last call."""
        assert self.process is not None
        self._count.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        wait_until(self._count.exists)
        return int(self._count.read_text())


@pytest.fixture
def counting_node(tmp_path: Path) -> Iterator[CountingNode]:
    node = CountingNode(tmp_path)
    node.start()
    node.lost_objects()
    yield node
    node.kill()


LIVES = {
    "ping": b"PING\r\n",
    "quit": b"QUIT\r\n",
    "protocol error": b"*1\r\nfoo\r\n",
    "half a request": b"*2\r\n$4\r\nPING\r\n$10\r\nabc",
    "blocked, with more behind": b"GETJOB FROM q r\r\nPING\r\n",
    "monitor": b"MONITOR\r\nPING\r\n",
    "errors": b"CONFIG SET maxmemory x\r\nADDJOB q b x\r\nCLUSTER MEET a b\r\nDEBUG SLEEP x\r\nFOO\r\nSHOW x\r\n"
    b"LATENCY GRAPH x\r\nJSCAN x\r\nCONFIG REWRITE\r\nACKLEASE a b\r\nCLIENT KILL x\r\nHELLO 9\r\n",
    "claims": b"ADDJOB q b 0\r\nADDJOB q b 0\r\nCLAIM k COUNT 2 FROM q\r\nDEBUG FLUSHALL\r\n",
    "leases": b"ADDJOB q b 0\r\nGETJOB LEASE 1000 FROM q\r\nADDJOB q b 0\r\nCLAIM k FROM q\r\nACKCLAIM k\r\n",
}


@pytest.mark.parametrize("with_reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("data", LIVES.values(), ids=LIVES.keys())
def test_a_client_that_came_and_went_leaves_no_cycle_behind(
    counting_node: CountingNode, data: bytes, with_reset: bool
) -> None:
    for _ in range(200):  # enough for tables to have let go of what they keep for a while
        link = socket.create_connection((counting_node.host, counting_node.port), 30)
        link.sendall(data)
        vanish(link) if with_reset else link.close()
    wait_until(lambda: clients(counting_node) == 1)
    assert counting_node.lost_objects() == 0


@pytest.mark.slow
def test_the_node_does_not_grow_with_connections_that_came_and_went(node: NodeProcess) -> None:
    def cycle(times: int) -> None:
        for number in range(times):
            link = socket.create_connection((node.host, node.port), 30)
            link.sendall(b"PING\r\n" if number % 2 else b"*2\r\n$4\r\nPI")
            if number % 2:
                link.recv(100)
            link.close() if number % 3 else vanish(link)
        wait_until(lambda: clients(node) == 1)

    node.call("PING")
    cycle(CYCLES // 5)  # tables and arenas have found their size
    before = resident_bytes(node)
    cycle(CYCLES)
    # A lost connection alone would be 3.8 KB.
    assert resident_bytes(node) - before < CYCLES * 400
