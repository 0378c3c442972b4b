"""Links of the cluster bus on real sockets of this machine, with rounds and a clock that the test turns."""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest

from penstock.broker import bus_sockets
from penstock.broker.bus_sockets import BusLinks
from penstock.broker.core.membership import BUS_PORT_OFFSET, CONNECTING, HANDSHAKE, LINKED, NO_LINK, Peer
from penstock.broker.core.node import Node
from penstock.broker.sockets import Listener, SocketLoop
from penstock.wire import bus
from penstock.wire.bus_auth import ANSWER_BYTES, CHALLENGE_BYTES, PROOF_BYTES, Acceptor, Connector
from tests.processes import free_port
from tests.unit.broker.harness import LocalServer

SECRET = b"a secret of the cluster"
THEIR_ID = b"7" * 40
NONCE = bytes(32)
THEIR_ID = b"5e4d" * 10
HOST = "127.0.0.1"
READY_S = 10.0  # for the kernel to carry bytes over loopback


class Bus:
    """A broker with its bus."""

    def __init__(self, secret: bytes = b"") -> None:
        self.server = LocalServer()
        self._later: list[Callable[[], None]] = []
        self.loop = SocketLoop(lambda: None, self._turn, self._later.append, lambda seconds, do: None)
        self.links = BusLinks(self.server.broker, self.loop, secret, None)
        self.server.broker.use_bus(self.links)
        self.listener = socket.create_server((HOST, 0))
        self.loop.listen(Listener(self.listener, self.links.accept, None))
        self.sockets: list[socket.socket] = []
        self._ids = count(1)

    def _turn(self) -> None:
        self.server.turn()
        self.links.flush()

    def settle(self) -> None:
        """Run rounds until nothing is left to do."""
        while self._later or select.select([self.loop.fileno()], [], [], 0.02)[0]:
            later, self._later[:] = self._later[:], []
            for do in later:
                do()
            self.loop.serve_once()

    def cron(self, seconds: float) -> None:
        self.server.now_s += seconds
        self.links.cron()
        self.settle()

    def stranger(self) -> socket.socket:
        """Open a link to the node."""
        self.sockets.append(socket.create_connection(self.listener.getsockname(), READY_S))
        self.settle()
        return self.sockets[-1]

    def peer(self, port: int, flags: int = 0) -> Peer:
        """Make a node known that is said to be on a port."""
        peer_id = b"%040d" % next(self._ids)
        peer = self.node.cluster.peers[peer_id] = Peer(peer_id, HOST, port, flags, 0)
        self.node.cluster.recount()
        return peer

    def connect(self, peer: Peer) -> None:
        peer.link = CONNECTING
        self.links.connect(peer)

    @property
    def node(self) -> Node:
        return self.server.broker.node


@pytest.fixture
def make_bus() -> Iterator[Callable[..., Bus]]:
    buses: list[Bus] = []

    def make(secret: bytes = b"") -> Bus:
        buses.append(Bus(secret))
        return buses[-1]

    yield make
    for made in buses:
        for sock in made.sockets:
            sock.close()
        made.loop.close()


@pytest.fixture
def neighbour() -> Iterator[socket.socket]:
    """Somebody who listens where a node's bus would be."""
    with socket.create_server((HOST, free_port() + BUS_PORT_OFFSET)) as server:
        server.settimeout(READY_S)
        yield server


def port_of(neighbour: socket.socket) -> int:
    return int(neighbour.getsockname()[1]) - BUS_PORT_OFFSET


def ping(sender: bytes = THEIR_ID) -> bytes:
    return bus.encode(bus.PING, sender, 7711, 0, 1, b"")


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side has closed, without waiting for it."""
    sock.settimeout(0.05)
    try:
        return sock.recv(1 << 16) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def kinds(data: bytes) -> list[str]:
    return [bus.TYPE_NAMES[int.from_bytes(message[12:14], "big")] for message in bus.BusReader().feed(data)]


# Links that others open


def test_a_ping_is_answered_on_the_link_it_came_by(make_bus: Callable[..., Bus]) -> None:
    made = make_bus()
    link = made.stranger()
    link.sendall(ping()[:100])
    made.settle()
    link.sendall(ping()[100:] + ping())
    made.settle()
    assert kinds(link.recv(4096)) == ["PONG", "PONG"]


def test_an_answer_waits_for_the_end_of_the_turn(make_bus: Callable[..., Bus], monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_bus()
    link = made.stranger()
    sent: list[int] = []
    monkeypatch.setattr(made.server.shell, "soon", lambda: sent.append(len(made.links.answering)))
    link.sendall(ping())
    made.settle()
    assert sent == [1]


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n", b"DbuZ\0\0\0\x01", b"DbuZ\xff\xff\xff\xff", b"\x16\x03\x01\x02\0\x01\0\x01"],
    ids=["http", "too short", "too long", "tls"],
)
def test_what_is_no_bus_closes_the_link(make_bus: Callable[..., Bus], data: bytes) -> None:
    made = make_bus()
    link = made.stranger()
    link.sendall(data)
    made.settle()
    assert is_closed(link)


def test_an_address_is_complained_about_once_a_minute(
    make_bus: Callable[..., Bus], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_bus()
    monkeypatch.setattr(logging.getLogger("penstock"), "propagate", True)
    for seconds, complaints in ((0, 1), (59, 1), (2, 2)):
        made.cron(seconds)
        for _ in range(3):
            made.stranger().sendall(b"garbage!")
            made.settle()
        assert caplog.text.count("closing the link of 127.0.0.1") == complaints


def test_a_link_that_never_brings_a_message_is_closed(make_bus: Callable[..., Bus]) -> None:
    made = make_bus()
    idle, slow, good = made.stranger(), made.stranger(), made.stranger()
    good.sendall(ping())
    for byte in (b"D", b"b", b"u", b"Z"):
        slow.sendall(byte)
        made.settle()
        made.cron(bus_sockets.FIRST_MESSAGE_SECONDS / 5)
    assert not is_closed(slow)
    made.cron(bus_sockets.FIRST_MESSAGE_SECONDS / 4)
    assert [is_closed(link) for link in (idle, slow)] == [True, True]
    assert kinds(good.recv(4096)) == ["PONG"]
    assert not is_closed(good)


def test_a_message_that_stops_half_way_closes_the_link(make_bus: Callable[..., Bus]) -> None:
    made = make_bus()
    link = made.stranger()
    link.sendall(ping() + ping()[:50])
    made.settle()
    link.recv(4096)
    made.cron(bus_sockets.STALL_SECONDS - 1)
    link.sendall(ping()[50:60])
    made.settle()
    made.cron(bus_sockets.STALL_SECONDS - 1)
    assert not is_closed(link)
    made.cron(2)
    assert is_closed(link)


def test_nobody_we_dont_know_may_send_a_large_message(make_bus: Callable[..., Bus]) -> None:
    made = make_bus()
    known = made.peer(7711)
    large = b"DbuZ" + (600 << 20).to_bytes(4, "big") + bytes(bus_sockets.UNAUTHENTICATED_BYTES_MAX)
    stranger, member = made.stranger(), made.stranger()
    for link, sender in ((stranger, THEIR_ID), (member, known.id)):
        link.sendall(ping(sender))
        made.settle()
        link.recv(4096)
        for at in range(0, len(large), 1 << 17):
            try:
                link.sendall(large[at : at + (1 << 17)])
            except OSError:
                break
            made.settle()
    assert [is_closed(link) for link in (stranger, member)] == [True, False]


def test_a_link_that_doesnt_read_its_answers_is_closed(make_bus: Callable[..., Bus]) -> None:
    made = make_bus()
    link = made.stranger()
    bursts = 0
    with suppress(ConnectionResetError, BrokenPipeError):
        while bursts < 1000:
            link.sendall(ping() * 500)
            made.settle()
            bursts += 1
    assert bursts < 500


def test_when_there_is_no_room_strangers_give_way_and_nodes_stay(make_bus: Callable[..., Bus]) -> None:
    made = make_bus()
    known = made.peer(7711)
    member = made.stranger()
    member.sendall(ping(known.id))
    made.settle()
    member.recv(4096)
    room = bus_sockets.INBOUND_SPARE + 2 * made.node.cluster.size
    strangers = [made.stranger() for _ in range(room + 2)]
    assert [is_closed(link) for link in strangers[:4]] == [True, True, True, False]
    assert not is_closed(member)


def test_a_node_that_loads_answers_pings_and_takes_no_word_about_jobs(make_bus: Callable[..., Bus]) -> None:
    made = make_bus()
    known = made.peer(7711)
    job_id = made.server.client().call("ADDJOB", "q", "body", 0, "REPLICATE", 1)
    deljob = bus.encode(bus.DELJOB, known.id, 7711, 0, 2, bus.reference(job_id))
    link = made.stranger()
    made.server.broker.persistence.loading = True
    link.sendall(deljob + ping(known.id))
    made.settle()
    assert kinds(link.recv(4096)) == ["PONG"]
    assert job_id in made.node.jobs
    made.server.broker.persistence.loading = False
    link.sendall(deljob)
    made.settle()
    assert job_id not in made.node.jobs


def test_a_failure_of_ours_costs_messages_and_not_the_node(
    make_bus: Callable[..., Bus], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_bus()
    monkeypatch.setattr(logging.getLogger("penstock"), "propagate", True)

    def fail() -> None:
        raise RuntimeError("a defect")

    link = made.stranger()
    with monkeypatch.context() as patch:
        patch.setattr(made.server.shell, "soon", fail)
        link.sendall(ping())
        made.settle()
    assert "a defect" in caplog.text
    link.sendall(ping())
    made.settle()
    assert "PONG" in kinds(link.recv(4096))


# Links of ours


def test_a_link_to_a_node_is_reported_once_it_is_there(make_bus: Callable[..., Bus], neighbour: socket.socket) -> None:
    made = make_bus()
    peer = made.peer(port_of(neighbour))
    made.connect(peer)
    assert peer.link == CONNECTING
    theirs, address = neighbour.accept()
    made.settle()
    assert peer.link == LINKED
    assert kinds(theirs.recv(4096)) == ["PING"]
    assert address[0] == HOST
    theirs.close()
    made.settle()
    assert peer.link == NO_LINK


def test_a_link_that_cant_be_opened_is_reported_later(make_bus: Callable[..., Bus]) -> None:
    made = make_bus()
    peer = made.peer(free_port())
    made.connect(peer)
    assert peer.link == CONNECTING
    made.settle()
    assert peer.link == NO_LINK


def test_an_address_nobody_can_connect_to_is_reported_later(make_bus: Callable[..., Bus]) -> None:
    made = make_bus()
    peer = made.peer(7711)
    peer.ip = "255.255.255.255"
    made.connect(peer)
    assert peer.link == CONNECTING
    made.settle()
    assert peer.link == NO_LINK


def test_nothing_is_told_of_a_link_that_the_core_has_closed(
    make_bus: Callable[..., Bus], neighbour: socket.socket
) -> None:
    made = make_bus()
    peer = made.peer(port_of(neighbour))
    made.connect(peer)
    made.links.disconnect(peer)
    made.connect(peer)
    made.settle()
    assert peer.link == LINKED
    made.links.disconnect(peer)
    made.settle()
    assert peer.link == LINKED  # as the core left it
    made.links.send(peer, ping())  # goes nowhere


def test_a_link_comes_from_our_first_address_of_its_family(
    make_bus: Callable[..., Bus], neighbour: socket.socket
) -> None:
    made = make_bus()
    made.links.sources = ["::1", "127.0.0.5", HOST]
    made.connect(made.peer(port_of(neighbour)))
    assert neighbour.accept()[1][0] == "127.0.0.5"


def test_a_peer_that_doesnt_read_loses_its_link(make_bus: Callable[..., Bus], neighbour: socket.socket) -> None:
    made = make_bus()
    peer = made.peer(port_of(neighbour))
    made.connect(peer)
    theirs, _ = neighbour.accept()
    made.settle()
    data, sent = bytes(8 << 20), 0
    while peer.link == LINKED:
        made.links.send(peer, data)
        sent += len(data)
        made.settle()
        assert sent < 4 * bus_sockets.UNSENT_BYTES_MAX
    assert sent > bus_sockets.UNSENT_BYTES_MAX
    theirs.close()


def test_one_message_may_be_larger_than_the_limit(make_bus: Callable[..., Bus], neighbour: socket.socket) -> None:
    made = make_bus()
    peer = made.peer(port_of(neighbour))
    made.connect(peer)
    theirs, _ = neighbour.accept()
    made.settle()
    made.links.send(peer, bytes(bus_sockets.UNSENT_BYTES_MAX + (8 << 20)))
    made.links.send(peer, ping())
    made.settle()
    assert peer.link == LINKED
    theirs.close()


def test_what_is_held_for_links_is_accounted_for(make_bus: Callable[..., Bus], neighbour: socket.socket) -> None:
    made = make_bus()
    before = made.node.memory.used_bytes
    peer = made.peer(port_of(neighbour))
    made.connect(peer)
    theirs, _ = neighbour.accept()
    made.settle()
    made.links.send(peer, bytes(32 << 20))
    made.cron(1)
    assert made.node.memory.used_bytes - before > 16 << 20
    theirs.close()
    made.settle()
    made.cron(1)
    assert made.node.memory.used_bytes == before


def test_strangers_cant_make_us_open_any_number_of_links(
    make_bus: Callable[..., Bus], neighbour: socket.socket
) -> None:
    made = make_bus()
    peers = [made.peer(port_of(neighbour), HANDSHAKE) for _ in range(bus_sockets.HANDSHAKES_MAX + 1)]
    member = made.peer(port_of(neighbour))
    for peer in [*peers, member]:
        made.connect(peer)
    made.settle()
    assert [peer.link for peer in peers[-2:]] == [LINKED, NO_LINK]
    assert member.link == LINKED


# With a secret


def answer_challenge(made: Bus, link: socket.socket, secret: bytes) -> Connector:
    connector = Connector(secret, THEIR_ID, NONCE)
    link.sendall(connector.feed(link.recv(CHALLENGE_BYTES)))
    made.settle()
    return connector


def test_who_knows_the_secret_is_let_in(make_bus: Callable[..., Bus]) -> None:
    made = make_bus(SECRET)
    link = made.stranger()
    connector = answer_challenge(made, link, SECRET)
    connector.feed(link.recv(PROOF_BYTES))
    assert connector.is_done
    link.sendall(ping())
    made.settle()
    assert kinds(link.recv(4096)) == ["PONG"]


def test_who_doesnt_know_the_secret_is_not(make_bus: Callable[..., Bus]) -> None:
    made = make_bus(SECRET)
    link = made.stranger()
    answer_challenge(made, link, SECRET + b"!")
    assert is_closed(link)
    assert made.node.cluster.messages_received == 0


def test_a_challenge_waits_only_so_long(make_bus: Callable[..., Bus]) -> None:
    made = make_bus(SECRET)
    link = made.stranger()
    link.recv(CHALLENGE_BYTES)
    made.cron(bus_sockets.PROOF_SECONDS - 1)
    assert not is_closed(link)
    made.cron(2)
    assert is_closed(link)


def test_our_link_is_open_once_the_other_side_has_shown_its_proof(
    make_bus: Callable[..., Bus], neighbour: socket.socket
) -> None:
    made = make_bus(SECRET)
    peer = made.peer(port_of(neighbour))
    made.connect(peer)
    theirs, _ = neighbour.accept()
    acceptor = Acceptor(SECRET, THEIR_ID, NONCE)
    theirs.sendall(acceptor.begin())
    made.settle()
    proof = acceptor.feed(theirs.recv(ANSWER_BYTES))
    made.links.send(peer, b"too early")
    assert peer.link == CONNECTING
    theirs.sendall(proof)
    made.settle()
    assert peer.link == LINKED
    assert kinds(theirs.recv(4096)) == ["PING"]
    theirs.close()


@pytest.mark.parametrize("reply", [b"DbuZ", b"PnS2" + bytes(73)], ids=["no challenge", "too much"])
def test_we_say_nothing_to_a_node_that_doesnt_challenge_us(
    make_bus: Callable[..., Bus], neighbour: socket.socket, reply: bytes
) -> None:
    made = make_bus(SECRET)
    peer = made.peer(port_of(neighbour))
    made.connect(peer)
    theirs, _ = neighbour.accept()
    theirs.sendall(reply)
    made.settle()
    assert peer.link == NO_LINK
    assert theirs.recv(4096) == b""
    theirs.close()


def test_a_node_that_doesnt_know_the_secret_doesnt_become_a_peer(
    make_bus: Callable[..., Bus], neighbour: socket.socket
) -> None:
    made = make_bus(SECRET)
    peer = made.peer(port_of(neighbour))
    made.connect(peer)
    theirs, _ = neighbour.accept()
    theirs.sendall(Acceptor(b"", THEIR_ID, NONCE).begin())
    made.settle()
    theirs.recv(ANSWER_BYTES)
    theirs.sendall(bytes(PROOF_BYTES))
    made.settle()
    assert peer.link == NO_LINK
    theirs.close()
