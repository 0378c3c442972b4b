"""Many nodes in one process, on a clock of their own: nothing but membership, gossip and the outbox.

Each machine has the real `core.node.Node` with a bus port that hands whole messages to the machine at that address
after a fixed time. Time is a heap of what happens next, in milliseconds. There are no jobs, clients or journals, and
nothing is lost, so that what is counted and timed is gossip alone.

A machine ends in one of two ways. Killed, its host still answers: links break at once, and new ones are refused.
Silent, nothing comes back at all: links seem to live, and new ones never open.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from random import Random

from penstock.broker.core import gossip, inputs
from penstock.broker.core.gossip import LinkInfo
from penstock.broker.core.jobs import Job
from penstock.broker.core.membership import FAIL, HANDSHAKE, LINKED, PFAIL, Peer
from penstock.broker.core.node import Node
from penstock.broker.core.refusals import Refused
from penstock.broker.core.replication import Addition
from penstock.broker.core.waiters import Waiter
from penstock.wire import bus

LATENCY_MS = 0.5
CRON_MS = 100.0
CLIENT_PORT = 7711
START_MS = 1_000_000.0  # 0 means never to a node

UP, SILENT, KILLED = "up", "silent", "killed"


class NoClients:
    """The port of a node to clients, where there are none."""

    def answer(self, waiter: Waiter, outcome: Job | Refused | None) -> None:
        """Do nothing."""

    def added(self, addition: Addition) -> None:
        """Do nothing."""


class Link:
    """A connection from one machine to another: as the one who is called sees it, and as the caller does."""

    __slots__ = ("back", "caller", "forth", "is_open", "peer", "target")

    def __init__(self, world: World, caller: Machine, target: Machine, peer: Peer) -> None:
        self.caller = caller
        self.target = target
        self.peer = peer
        self.is_open = True
        self.forth = LinkInfo(None, caller.ip, target.ip, lambda data: world.reply(self, data))
        self.back = LinkInfo(peer, target.ip, caller.ip, lambda data: None)


class Machine:
    """One node with the links that it has opened, which are its bus port."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.ip = f"10.0.{number // 250}.{number % 250 + 1}"
        self.state = UP
        self.links: dict[Peer, Link] = {}
        self.bytes_sent = 0
        self.node = Node(b"%040x" % (number + 1), world.random.randbytes, NoClients())
        self.node.outbox.port = self
        self.node.cluster.myself.port = CLIENT_PORT

    # The port of the core.

    def connect(self, peer: Peer) -> None:
        """Begin to open a link."""
        self.world.connect(self, peer)

    def disconnect(self, peer: Peer) -> None:
        """Close a link."""
        link = self.links.pop(peer, None)
        if link is not None:
            link.is_open = False

    def moves(self, peer: Peer) -> bool:
        """Nothing is so large here that it would."""
        return False

    def send(self, peer: Peer, data: bytes) -> None:
        """Send messages on a link."""
        link = self.links.get(peer)
        if link is not None:
            self.bytes_sent += len(data)
            self.world.after(LATENCY_MS, self.world.deliver, link, data)

    # What happens to it.

    def turn(self) -> Node:
        """Begin something: the node's clock is right."""
        self.node.now_ms = int(self.world.now_ms)
        return self.node

    def knows(self, other: Machine) -> Peer | None:
        """How it sees another machine: None while it doesn't, or while they still shake hands."""
        peer = self.node.cluster.peers.get(other.node.cluster.my_id)
        return peer if peer is not None and not peer.flags & HANDSHAKE else None

    def suspects(self, other: Machine) -> bool:
        """Whether it takes another for failed, by its own account or by that of most."""
        peer = self.knows(other)
        return peer is not None and bool(peer.flags & (PFAIL | FAIL))

    def condemns(self, other: Machine) -> bool:
        """Whether it takes another for failed because most do."""
        peer = self.knows(other)
        return peer is not None and bool(peer.flags & FAIL)

    def is_linked_to(self, other: Machine) -> bool:
        """Whether it knows another, has a link to it, and finds no fault with it."""
        peer = self.knows(other)
        return peer is not None and peer.link == LINKED and not peer.flags & (PFAIL | FAIL)


class World:
    """All machines, what lies between them, and the time."""

    def __init__(self, seed: int, node_timeout_ms: int) -> None:
        self.random = Random(seed)
        self.node_timeout_ms = node_timeout_ms
        self.now_ms = START_MS
        self.machines: list[Machine] = []
        self.by_ip: dict[str, Machine] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._numbers = count()
        self._reader = bus.BusReader()  # for all: messages always come whole

    # Time.

    def after(self, ms: float, call: Callable[..., None], *arguments: object) -> None:
        """Let something happen later."""
        heapq.heappush(self._events, (self.now_ms + ms, next(self._numbers), call, arguments))

    def run(self, ms: float) -> None:
        """Let time pass."""
        end_ms = self.now_ms + ms
        events = self._events
        while events and events[0][0] <= end_ms:
            self.now_ms, _, call, arguments = heapq.heappop(events)
            call(*arguments)
        self.now_ms = end_ms

    def run_until(self, is_done: Callable[[], bool], ms_max: float) -> float:
        """Let time pass until something is so, to the next tenth of a second; return how long that took, or inf."""
        begin_ms = self.now_ms
        while not is_done():
            if self.now_ms - begin_ms >= ms_max:
                return float("inf")
            self.run(CRON_MS)
        return self.now_ms - begin_ms

    # Machines.

    def add_machine(self, phase_ms: float) -> Machine:
        """Start a node that knows nobody; `phase_ms` from now is its first cron."""
        machine = Machine(self, len(self.machines))
        self.machines.append(machine)
        self.by_ip[machine.ip] = machine
        self.after(phase_ms, self._cron, machine)
        return machine

    def add_cluster(self, size: int) -> None:
        """Start nodes that know each other from before, at different times, so that they don't ping in step."""
        spread_ms = self.node_timeout_ms / 2
        for _ in range(size):
            self.add_machine(self.random.random() * spread_ms)
        for machine in self.machines:
            cluster = machine.node.cluster
            for other in self.machines:
                if other is not machine:
                    other_id = other.node.cluster.my_id
                    cluster.peers[other_id] = Peer(other_id, other.ip, CLIENT_PORT, 0, int(self.now_ms))
            cluster.recount()

    def up(self) -> Iterator[Machine]:
        """The machines that are well."""
        return (machine for machine in self.machines if machine.state == UP)

    def messages_sent(self) -> int:
        """Messages of all nodes so far."""
        return sum(machine.node.cluster.messages_sent for machine in self.machines)

    def bytes_sent(self) -> int:
        """Bytes of all nodes so far."""
        return sum(machine.bytes_sent for machine in self.machines)

    def meet(self, machine: Machine, other: Machine) -> None:
        """Have an operator introduce a node to another."""
        node = machine.turn()
        node.cluster.meet(other.ip, CLIENT_PORT, self.random.randbytes(20).hex().encode(), node.now_ms)

    def end(self, machine: Machine, state: str) -> None:
        """Let a machine be killed, or fall silent."""
        machine.state = state
        if state == KILLED:
            for caller in self.machines:
                for link in list(caller.links.values()):
                    if link.target is machine:
                        self.after(LATENCY_MS, self._lost, link)

    def revive(self, machine: Machine) -> None:
        """Let a silent machine go on, as if it had stood still."""
        machine.state = UP

    def _cron(self, machine: Machine) -> None:
        if machine.state != KILLED:
            self.after(CRON_MS, self._cron, machine)
        if machine.state == UP:
            gossip.cron(machine.turn(), self.node_timeout_ms)
            machine.node.outbox.flush()

    # The network.

    def connect(self, caller: Machine, peer: Peer) -> None:
        """Call the machine at an address: it takes the call, refuses it, or isn't heard of."""
        target = self.by_ip.get(peer.ip)
        if target is None or target.state == SILENT:
            return
        link = caller.links[peer] = Link(self, caller, target, peer)
        self.after(2 * LATENCY_MS, self._opened if target.state == UP else self._lost, link)

    def _opened(self, link: Link) -> None:
        if link.is_open and link.caller.state == UP:
            gossip.link_opened(link.caller.turn(), link.peer)
            link.caller.node.outbox.flush()

    def _lost(self, link: Link) -> None:
        if link.is_open and link.caller.state == UP:
            link.is_open = False
            del link.caller.links[link.peer]
            gossip.link_lost(link.caller.turn(), link.peer)

    def deliver(self, link: Link, data: bytes) -> None:
        """Bring messages to the machine that was called."""
        if link.is_open and link.target.state == UP:
            self._receive(link.target, link.forth, data)

    def reply(self, link: Link, data: bytes) -> None:
        """Send an answer back."""
        link.target.bytes_sent += len(data)
        self.after(LATENCY_MS, self._deliver_back, link, data)

    def _deliver_back(self, link: Link, data: bytes) -> None:
        if link.is_open and link.caller.state == UP:
            self._receive(link.caller, link.back, data)

    def _receive(self, machine: Machine, link: LinkInfo, data: bytes) -> None:
        node = machine.turn()
        for message in self._reader.feed(data):
            inputs.receive(node, link, message)
        node.outbox.flush()
