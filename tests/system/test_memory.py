"""Memory of a real node: what it says it uses is what its process takes, and its limit holds."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.broker.core.queues import QUEUE_BYTES
from penstock.client import Connection
from penstock.errors import ReplyError
from tests.bus_peer import BusPeer
from tests.certificates import Authority
from tests.conftest import StartNode
from tests.processes import NodeProcess, free_port, resident_bytes, settled_bytes, wait_until
from tests.raw_link import RawLink, encode

pytestmark = pytest.mark.system

BODY_BYTES = 12
BATCH = 2000  # commands sent in one go
JOB_BYTES_MAX = 500  # what a job may take beside its body


def used_bytes(node: NodeProcess) -> int:
    return int(node.info()["used_memory"])


def add(connection: Connection, count: int, body: bytes, queue: str = "q") -> list[bytes]:
    """Add jobs in a pipeline of encoded commands; return their ids."""
    command = encode("ADDJOB", queue, body, 0)
    ids: list[bytes] = []
    while len(ids) < count:
        batch = min(BATCH, count - len(ids))
        connection.send_bytes(command * batch)
        ids += [connection.receive() for _ in range(batch)]
    assert not any(isinstance(job_id, ReplyError) for job_id in ids)
    return ids


def finish(connection: Connection, ids: list[bytes]) -> None:
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        assert connection.execute("ACKJOB", *batch) == len(batch)


def settled(node: NodeProcess) -> int:
    """Return what is used by a node that has one client and one empty queue, once that is accounted for."""
    with node.connect() as connection:
        finish(connection, add(connection, 1, b"x"))
    wait_until(lambda: node.info()["connected_clients"] == "1")
    return settled_bytes(node)


def test_an_idle_node_uses_well_under_a_megabyte(node: NodeProcess) -> None:
    assert settled(node) < 200_000


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("journal", ["no", "yes"])
def test_a_million_jobs_take_what_the_node_says_and_give_it_back(start_node: StartNode, journal: str) -> None:
    count = 1_000_000
    node = start_node(maxmemory="4gb", appendonly=journal)
    idle, rss = settled(node), resident_bytes(node)
    with node.connect() as connection:
        ids = add(connection, count, b"x" * BODY_BYTES)
        wait_until(lambda: node.info().get("aof_buffer_length", "0") == "0")
        accounted, taken = used_bytes(node) - idle, resident_bytes(node) - rss
        assert 0.75 < accounted / taken < 1.25
        assert taken / count - BODY_BYTES <= JOB_BYTES_MAX
        finish(connection, ids)
    assert node.info()["registered_jobs"] == "0"
    wait_until(lambda: used_bytes(node) == idle)


@pytest.mark.parametrize(("size", "count"), [(100, 100_000), (1000, 50_000), (10_000, 10_000)])
def test_larger_bodies_take_what_the_node_says(start_node: StartNode, size: int, count: int) -> None:
    node = start_node(maxmemory="4gb")
    idle, rss = settled(node), resident_bytes(node)
    with node.connect() as connection:
        add(connection, count, b"x" * size)
    accounted, taken = used_bytes(node) - idle, resident_bytes(node) - rss
    assert 0.75 < accounted / taken < 1.25


@pytest.mark.slow
def test_jobs_added_one_by_one_take_what_the_node_says(start_node: StartNode) -> None:
    """They share less than those of a pipeline."""
    count = 50_000
    node = start_node(maxmemory="4gb")
    idle, rss = settled(node), resident_bytes(node)
    for _ in range(count):
        node.call("ADDJOB", "q", b"x" * BODY_BYTES, 0)
    accounted, taken = used_bytes(node) - idle, resident_bytes(node) - rss
    assert 0.75 < accounted / taken < 1.25
    assert taken / count - BODY_BYTES <= JOB_BYTES_MAX


def test_queues_take_what_the_node_says(start_node: StartNode) -> None:
    count = 100_000
    node = start_node(maxmemory="4gb")
    idle, rss = settled(node), resident_bytes(node)
    with node.connect() as connection:
        for start in range(0, count, BATCH):
            names = range(start, start + BATCH)
            connection.send_bytes(b"".join(encode("GETJOB", "NOHANG", "FROM", f"queue-{name}") for name in names))
            for _ in names:
                connection.receive()
    accounted, taken = used_bytes(node) - idle, resident_bytes(node) - rss
    assert 0.75 < accounted / taken < 1.25


def test_connections_take_what_the_node_says(node: NodeProcess) -> None:
    count = 500
    idle, rss = settled(node), resident_bytes(node)
    connections = [node.connect() for _ in range(count)]
    for connection in connections:
        connection.execute("PING")
    wait_until(lambda: used_bytes(node) - idle > count * 1000)
    taken = resident_bytes(node) - rss
    assert (used_bytes(node) - idle) / taken > 0.5
    for connection in connections:
        connection.close()
    wait_until(lambda: used_bytes(node) == idle)


def test_a_limit_of_a_few_megabytes_is_that_of_the_jobs(start_node: StartNode) -> None:
    limit = 3 << 20
    node = start_node(maxmemory="3mb")
    with node.connect() as connection:
        replies = connection.pipeline([("ADDJOB", "q", b"x" * 1000, 0)] * 3000)
    added = sum(not isinstance(reply, ReplyError) for reply in replies)
    assert "I'm out of memory" in str(replies[added])
    # A pipeline of adds is checked at its beginning and after every hundred of them.
    assert limit * 0.75 < used_bytes(node) < limit * 0.81
    assert added > 1000
    for _, job_id, _ in node.call("GETJOB", "COUNT", 100, "FROM", "q"):
        node.call("ACKJOB", job_id)
    assert node.call("ADDJOB", "q", b"x", 0)


def test_a_full_node_evicts_what_is_done_with_and_goes_on(start_node: StartNode) -> None:
    node = start_node(maxmemory="8mb")
    for _ in range(1000):
        node.call("ADDJOB", "q", b"x" * 4000, 0, "RETRY", 0)
    assert len(node.call("GETJOB", "COUNT", 1000, "FROM", "q")) == 1000
    before = used_bytes(node)
    node.call("CONFIG", "SET", "maxmemory", 4 << 20)
    assert node.call("NACK") == 0  # which would be refused if the node were full still
    assert used_bytes(node) <= (4 << 20) * 0.95 < before
    assert 0 < int(node.info()["registered_jobs"]) < 1000


def test_a_thousand_empty_queues_vanish_when_memory_is_short(node: NodeProcess) -> None:
    for number in range(1000):
        node.call("GETJOB", "NOHANG", "FROM", f"queue-{number}")
    assert node.info()["registered_queues"] == "1000"
    node.call("CONFIG", "SET", "maxmemory", 1)
    wait_until(lambda: node.info()["registered_queues"] == "0")


# What clients can make a node hold: each of these took many times maxmemory where nothing counted it.

MEGABYTE = 1 << 20
MAXMEMORY = 32 * MEGABYTE
TAKEN_MAX = MAXMEMORY * 3 // 2 + 100 * MEGABYTE
ROUNDS_WITHOUT_PROGRESS = 30  # of the node, each seen by a PING of another client


def peak_bytes(node: NodeProcess) -> int:
    """Return the most memory that a node's process has taken so far."""
    assert node.process is not None
    lines = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@contextmanager
def attackers(node: NodeProcess, count: int) -> Iterator[list[socket.socket]]:
    """Open connections that take little of what is sent to them."""
    links: list[socket.socket] = []
    try:
        for _ in range(count):
            link = socket.socket()
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.settimeout(60)
            link.connect((node.host, node.port))
            link.setblocking(False)
            links.append(link)
        yield links
    finally:
        for link in links:
            link.close()


def push(node: NodeProcess, links: list[socket.socket], streams: Iterable[bytes]) -> None:
    """Send a stream to each, as far as the node takes it: until all is sent, or it reads no more."""
    left = {link: memoryview(data) for link, data in zip(links, streams, strict=True)}
    idle = 0
    while left and idle < ROUNDS_WITHOUT_PROGRESS:
        idle += 1
        for link, view in list(left.items()):
            try:
                sent = link.send(view[:MEGABYTE])
            except BlockingIOError:
                continue
            except OSError:  # closed by the node
                del left[link]
                continue
            idle = 0
            left[link] = view[sent:]
            if sent == len(view):
                del left[link]
        node.call("PING")


def last_words(link: socket.socket) -> bytes:
    """Read what a node has sent to a connection that it closed, as far as it arrived."""
    link.setblocking(True)
    link.settimeout(30)
    received = b""
    with suppress(ConnectionError):
        while data := link.recv(65536):
            received += data
    return received


def is_serving(node: NodeProcess) -> bool:
    """Whether a client that behaves can add, fetch and finish a job."""
    job_id = node.call("ADDJOB", "behaves", "body", 0)
    ((_, fetched, _),) = node.call("GETJOB", "FROM", "behaves")
    return job_id == fetched and node.call("ACKJOB", job_id) == 1


def fill(node: NodeProcess, size: int) -> None:
    """Put jobs into a queue, of `size` bytes together."""
    with node.connect() as connection:
        add(connection, size // 10_000, b"x" * 10_000, "large")


@pytest.mark.parametrize(
    "request_words",
    [
        ("QPEEK", "large", 100_000),
        ("JSCAN", "BUSYLOOP", "REPLY", "all"),
        ("JSCAN", "BUSYLOOP", "REPLY", "compact"),
    ],
    ids=["QPEEK", "JSCAN all", "JSCAN compact"],
)
def test_large_replies_that_nobody_reads_stay_within_the_limit(
    start_node: StartNode, request_words: tuple[str | int, ...]
) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    fill(node, 20 * MEGABYTE)
    with attackers(node, 30) as links:
        push(node, links, [encode(*request_words)] * len(links))
        assert node.call("PING") == b"PONG"
        assert peak_bytes(node) < TAKEN_MAX


def test_replies_that_fit_alone_and_not_together_stay_within_the_limit(start_node: StartNode) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    fill(node, 10 * MEGABYTE)
    with attackers(node, 60) as links:
        push(node, links, [encode("QPEEK", "large", 700)] * len(links))
        wait_until(lambda: "maxmemory-clients" in node.log.read_text())
        assert is_serving(node)
        assert peak_bytes(node) < TAKEN_MAX


def test_clients_that_wait_on_many_queues_stay_within_the_limit(start_node: StartNode) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    queues = 10_000
    with attackers(node, 20) as links:
        streams = [
            encode("GETJOB", "FROM", *(f"queue-{number}-{at}" for at in range(queues))) for number in range(len(links))
        ]
        push(node, links, streams)
        assert node.call("PING") == b"PONG"
        assert peak_bytes(node) < TAKEN_MAX
        refused = [link for link in links if last_words_now(link)]
        assert refused
        assert b"used memory must be at most 33554432 bytes" in last_words_now(refused[0])


def last_words_now(link: socket.socket) -> bytes:
    """Look at what has arrived on a connection, and leave it there."""
    try:
        return link.recv(65536, socket.MSG_PEEK)
    except BlockingIOError:
        return b""


def test_clients_that_wait_on_the_same_queues_take_what_the_node_says(start_node: StartNode) -> None:
    node = start_node(maxmemory="4gb", appendonly="no")
    names = [f"queue-{at}" for at in range(20_000)]
    node.call("GETJOB", "NOHANG", "FROM", *names)
    used, rss = settled_bytes(node), resident_bytes(node)
    with attackers(node, 40) as links:
        push(node, links, [encode("GETJOB", "FROM", *names)] * len(links))
        wait_until(lambda: node.info()["blocked_clients"] == str(len(links)))
        accounted, taken = settled_bytes(node) - used, resident_bytes(node) - rss
        assert 0.75 < accounted / taken < 1.6
    wait_until(lambda: node.info()["connected_clients"] == "1")
    assert settled_bytes(node) <= used


def test_unfinished_requests_of_short_arguments_stay_within_the_limit(start_node: StartNode) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    rss = resident_bytes(node)
    with attackers(node, 20) as links:
        push(node, links, [b"*1000000\r\n$7\r\nADDJOBS\r\n" + b"$3\r\nabc\r\n" * 300_000] * len(links))
        assert is_serving(node)
        # Five times as much if only their bytes are counted, and not the objects that they become.
        assert peak_bytes(node) - rss < 3 * 16 * MEGABYTE
    assert "maxmemory-clients" in node.log.read_text()


def test_unfinished_bodies_stay_within_the_limit_and_the_largest_sender_is_reported(start_node: StartNode) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    stream = encode("ADDJOB", "q")[: -len(b"$1\r\nq\r\n")] + b"$1\r\nq\r\n$%d\r\n" % (100 * MEGABYTE)
    with attackers(node, 20) as links:
        push(node, links[:1], [b"*4" + stream[2:] + b"x" * 40 * MEGABYTE])
        said = last_words(links[0])
        assert b"-OOM the buffers of all clients together must be at most 16777216 bytes" in said
        push(node, links[1:], [b"*4" + stream[2:] + b"x" * 30 * MEGABYTE] * (len(links) - 1))
        assert is_serving(node)
        assert peak_bytes(node) < TAKEN_MAX
    wait_until(lambda: used_bytes(node) < MEGABYTE)


def test_requests_sent_ahead_of_one_that_blocks_count_by_what_they_take(start_node: StartNode) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    with attackers(node, 12) as links:
        push(node, links, [b"GETJOB FROM q\n" + b"ab\n" * 250_000] * len(links))
        assert is_serving(node)
        assert peak_bytes(node) < TAKEN_MAX


def test_jobs_that_are_to_move_count_while_their_copies_are_awaited(start_node: StartNode) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    with BusPeer() as silent, attackers(node, 24) as links:  # the peer takes copies and confirms none
        silent.join(node.host, node.port)
        wait_until(lambda: b"cluster_reachable_nodes:1" in node.call("CLUSTER", "INFO"))
        ids = node.call("ADDJOBS", "q", 0, "REPLICATE", 1, "BODIES", *["body"] * len(links))
        gone = [b"%b%024d%b" % (ids[0][:11], at, ids[0][35:]) for at in range(60_000)]
        words = [word for one in gone for word in (one, b"ANY")]
        request = ("MOVEJOBS", "to", 0, "REPLICATE", 2, "JOBS")
        for link, job_id in zip(links, ids, strict=True):  # one by one, as unfinished requests count, too
            push(node, [link], [encode(*request, job_id, "ANY", *words)])
        assert node.call("PING") == b"PONG"
        assert peak_bytes(node) < TAKEN_MAX
    wait_until(lambda: used_bytes(node) < MEGABYTE)


@pytest.mark.parametrize("words", [("GETJOB", "NOHANG", "FROM"), ("PAUSE",)], ids=["GETJOB", "PAUSE"])
def test_a_flood_of_queue_names_stays_within_the_limit(start_node: StartNode, words: tuple[str, ...]) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    count = 120_000
    refused = 0
    with node.connect() as connection:
        for start in range(0, count, BATCH):
            names = (f"queue-{number}" for number in range(start, start + BATCH))
            tail = ("in",) if words == ("PAUSE",) else ()
            connection.send_bytes(b"".join(encode(*words, name, *tail) for name in names))
            replies = [connection.receive() for _ in range(BATCH)]
            refused += sum(isinstance(reply, ReplyError) for reply in replies)
    assert refused if words == ("PAUSE",) else not refused  # a client that doesn't wait needs no queue to be made
    assert int(node.info()["registered_queues"]) < MAXMEMORY // QUEUE_BYTES
    assert peak_bytes(node) < TAKEN_MAX
    assert used_bytes(node) <= MAXMEMORY + MEGABYTE  # with the buffers of these clients


def test_claims_take_what_the_node_says_and_give_it_back(start_node: StartNode) -> None:
    count = 30_000
    node = start_node(maxmemory="4gb", appendonly="no")
    with node.connect() as connection:
        add(connection, count, b"x")
        idle, rss = settled_bytes(node), resident_bytes(node)
        keys = [b"%0512d" % number for number in range(count)]
        for start in range(0, count, BATCH):
            batch = keys[start : start + BATCH]
            connection.send_bytes(b"".join(encode("CLAIM", key, "FROM", "q") for key in batch))
            assert all(len(connection.receive()) == 1 for _ in batch)
        accounted, taken = settled_bytes(node) - idle, resident_bytes(node) - rss
        assert 0.75 < accounted / taken < 1.25
        for key in keys:
            connection.send_bytes(encode("ACKCLAIM", key))
        assert {connection.receive() for _ in keys} == {1}
        assert settled_bytes(node) < idle - count * JOB_BYTES_MAX // 2


def test_claims_with_long_keys_are_refused_when_memory_is_full(start_node: StartNode) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    with node.connect() as connection:
        add(connection, 50_000, b"x")
        connection.send_bytes(b"".join(encode("CLAIM", b"%0512d" % number, "FROM", "q") for number in range(40_000)))
        replies = [connection.receive() for _ in range(40_000)]
    assert used_bytes(node) <= MAXMEMORY + MEGABYTE  # with the buffers of these clients
    assert "used memory must be at most 33554432 bytes" in str(replies[-1])
    assert node.call("QLEN", "q") == 50_000 - sum(not isinstance(reply, ReplyError) for reply in replies)


def test_a_fetch_returns_fewer_jobs_than_asked_for_rather_than_a_reply_beyond_the_limit(start_node: StartNode) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    fill(node, 20 * MEGABYTE)
    with pytest.raises(ReplyError, match="the reply must be at most 8388608 bytes"):
        node.call("QPEEK", "large", 100_000)
    before = node.call("QLEN", "large")
    jobs = node.call("GETJOB", "COUNT", 100_000, "FROM", "large")
    assert 0 < sum(len(body) for _, _, body in jobs) <= 8 * MEGABYTE + 10_000
    claimed = node.call("CLAIM", "key", "COUNT", 100_000, "FROM", "large")
    assert 0 < sum(len(row[2]) for row in claimed) <= 8 * MEGABYTE + 10_000
    assert node.call("QLEN", "large") == before - len(jobs) - len(claimed)
    assert peak_bytes(node) < TAKEN_MAX


@pytest.mark.parametrize(
    "request_words",
    [
        ("GETJOB", "COUNT", 400, "FROM"),
        ("GETJOB", "COUNT", 400, "FROM", "another"),
        ("CLAIM", "key", "COUNT", 400, "FROM"),
    ],
    ids=["GETJOB", "GETJOB from two", "CLAIM"],
)
def test_the_names_of_queues_count_in_replies_with_jobs(
    start_node: StartNode, request_words: tuple[str | int, ...]
) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    name = b"n" * MEGABYTE
    for _ in range(400):
        node.call("ADDJOB", name, b"x", 0)
    jobs = node.call(*request_words, name)
    assert 1 < len(jobs) <= 9
    assert node.call("QLEN", name) == 400 - len(jobs)
    assert peak_bytes(node) < TAKEN_MAX


def test_the_reply_to_a_lease_of_many_jobs_is_limited(start_node: StartNode) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    name, body = b"n" * MEGABYTE, b"x" * MEGABYTE
    ids = [node.call("ADDJOB", name, b"x", 0) for _ in range(100)]
    with pytest.raises(ReplyError, match="the reply must be at most 8388608 bytes"):
        node.call("LEASE", 1000, *(word for job_id in ids for word in (job_id, 1)))
    assert node.call("QLEN", name) == 100
    job_id = node.call("ADDJOB", "q", body, 0)
    ((_, _, _, token),) = node.call("GETJOB", "LEASE", 100_000, "FROM", "q")
    # Each token holds the lease that the one before it made.
    words = [word for number in range(200) for word in (job_id, int(token) + number)]
    with pytest.raises(ReplyError, match="the reply must be at most 8388608 bytes"):
        node.call("LEASE", 1000, *words)
    assert node.call("EXTEND", 1000, job_id, token) == [b"OK"]
    assert peak_bytes(node) < TAKEN_MAX


def test_the_reply_with_the_names_of_all_queues_is_limited(start_node: StartNode) -> None:
    node = start_node(maxmemory=MAXMEMORY, appendonly="no")
    for number in range(20):
        node.call("PAUSE", b"%02d" % number + b"n" * MEGABYTE, "in")
    with pytest.raises(ReplyError, match="the reply must be at most 8388608 bytes"):
        node.call("QSCAN", "BUSYLOOP")
    assert len(node.call("QSCAN", "COUNT", 100)[1]) == 1  # the walk in steps goes on


# Before AUTH: what strangers hold together is bounded, and takes nothing from those who are let in.

PASSWORD = "secret"
UNAUTHENTICATED_MAX = 4 * MEGABYTE


@pytest.fixture
def guarded_node(start_node: StartNode) -> NodeProcess:
    """A node with a password, whose `call` shows it."""
    node = start_node(
        wait=False,
        maxmemory=MAXMEMORY,
        maxmemory_unauthenticated=UNAUTHENTICATED_MAX,
        requirepass=PASSWORD,
        appendonly="no",
    )
    node.options = {"password": PASSWORD}
    node.wait_until_it_answers()
    return node


def closed(links: list[socket.socket]) -> list[socket.socket]:
    """Return the connections that the node has closed."""
    return [link for link in links if _is_closed(link)]


def _is_closed(link: socket.socket) -> bool:
    try:
        while link.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize(
    "data",
    [
        b"*3\r\n$4\r\nAUTH\r\n" + b"$16384\r\n%b\r\n$16384\r\n" % (b"x" * 16_384) + b"x" * 16_000,
        b"*1000000\r\n$4\r\nAUTH\r\n" + b"$2\r\nab\r\n" * 7_500,
        b"x" * 60_000,
        b"AUTH wrong\r\n" * 5_000,
        b"",
    ],
    ids=["bodies", "two-byte arguments", "a line", "replies", "nothing"],
)
def test_strangers_take_no_memory_from_those_who_are_let_in(guarded_node: NodeProcess, data: bytes) -> None:
    used, rss = settled_bytes(guarded_node), resident_bytes(guarded_node)
    with attackers(guarded_node, 1500) as links:
        push(guarded_node, links, [data] * len(links))
        assert is_serving(guarded_node)
        assert used_bytes(guarded_node) - used < 100_000
        assert int(guarded_node.info()["mem_clients_unauthenticated"]) <= UNAUTHENTICATED_MAX
        assert peak_bytes(guarded_node) - rss < 40 * MEGABYTE
    wait_until(lambda: guarded_node.info()["mem_clients_unauthenticated"] == "0")


def test_a_stranger_learns_what_a_request_may_have_before_auth(guarded_node: NodeProcess) -> None:
    def said(data: bytes) -> bytes:
        with RawLink(guarded_node) as link:
            link.send(data)
            return link.rest()

    text = b"-ERR Protocol error: multibulk length must be at most 16 before AUTH, got 17\r\n"
    assert said(b"*17\r\n$4\r\nAUTH\r\n") == text
    text = b"-ERR Protocol error: bulk length must be at most 16384 before AUTH, got 16385\r\n"
    assert said(b"*2\r\n$4\r\nAUTH\r\n$16385\r\nx") == text
    assert said(b"x" * 70_000) == b"-ERR Protocol error: too big inline request\r\n"
    text = b"-ERR a client must authenticate with one of its first 100 requests\r\n"
    assert said(b"PING\r\n" * 101) == b"-NOAUTH Authentication required.\r\n" * 100 + text


def test_a_request_of_any_size_may_follow_auth_in_one_write(guarded_node: NodeProcess) -> None:
    body = b"x" * 300_000
    with RawLink(guarded_node) as link:
        link.send(
            encode("AUTH", PASSWORD) + encode("ADDJOB", "q", body, 0) + encode("ADDJOBS", "q", 0, "BODIES", *"ab" * 50)
        )
        assert link.reply() == b"+OK\r\n"
        assert link.reply().startswith(b"+D-")
        assert link.reply().startswith(b"*100\r\n")
    with RawLink(guarded_node) as link:
        link.send(encode("HELLO", 2, "AUTH", "default", PASSWORD) + encode("QLEN", "q"))
        assert b"penstock" in link.reply()
        assert link.reply() == b":101\r\n"


def test_idle_strangers_keep_nobody_out(start_node: StartNode) -> None:
    node = start_node(wait=False, maxclients=50, requirepass=PASSWORD, appendonly="no")
    node.options = {"password": PASSWORD}
    node.wait_until_it_answers()
    assert node.call("PING") == b"PONG"
    with attackers(node, 120) as links:
        for _ in range(20):
            with node.connect() as connection:
                assert connection.execute("PING") == b"PONG"
        assert node.call("PING") == b"PONG"  # one that was let in stays
        assert len(closed(links)) >= 70


def test_connections_that_are_let_in_are_not_closed_for_others(start_node: StartNode) -> None:
    node = start_node(wait=False, maxclients=10, requirepass=PASSWORD, appendonly="no")
    node.options = {"password": PASSWORD}
    node.wait_until_it_answers()
    wait_until(lambda: node.info()["connected_clients"] == "1")
    inside = [node.connect() for _ in range(9)]
    assert [connection.execute("PING") for connection in inside] == [b"PONG"] * 9
    with RawLink(node) as refused:
        assert refused.rest() == b"-ERR max number of clients reached\r\n"
    assert [connection.execute("PING") for connection in inside] == [b"PONG"] * 9
    for connection in inside:
        connection.close()


def test_a_client_that_does_not_authenticate_is_closed_in_time(start_node: StartNode) -> None:
    node = start_node(wait=False, authentication_timeout=1, requirepass=PASSWORD, appendonly="no")
    node.options = {"password": PASSWORD}
    node.wait_until_it_answers()
    with node.connect() as inside, RawLink(node) as outside:
        assert inside.execute("PING") == b"PONG"
        assert outside.rest() == b"-ERR a client must authenticate within 1 seconds\r\n"
        assert inside.execute("PING") == b"PONG"
        with RawLink(node) as late:
            node.call("CONFIG", "SET", "authentication-timeout", 0)
            assert late.ask("AUTH", PASSWORD) == b"+OK\r\n"
    with RawLink(node) as outside:
        node.call("CONFIG", "SET", "authentication-timeout", 1)
        node.call("CONFIG", "SET", "requirepass", "")  # then nobody has to
        wait_until(lambda: node.info()["mem_clients_unauthenticated"] == "0")
        assert outside.ask("PING") == b"+PONG\r\n"


def test_tls_handshakes_under_way_are_bounded_and_keep_nobody_out(start_node: StartNode, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    pair = authority.sign("node")
    node = start_node(
        maxclients=50,
        maxmemory_unauthenticated=UNAUTHENTICATED_MAX,
        appendonly="no",
        tls_port=free_port(),
        tls_cert_file=pair.cert,
        tls_key_file=pair.key,
    )
    tls_port = int(str(node.directives["tls_port"]))
    plain_port, node.port = node.port, tls_port
    with attackers(node, 200) as links:
        node.port = plain_port
        wait_until(lambda: len(closed(links)) >= 150, 8)  # a handshake has 10 s
        assert node.call("PING") == b"PONG"
        with Connection(node.host, tls_port, tls=True, ca=str(authority.cert), timeout=30) as connection:
            assert connection.execute("PING") == b"PONG"
        assert int(node.info()["mem_clients_unauthenticated"]) <= UNAUTHENTICATED_MAX
