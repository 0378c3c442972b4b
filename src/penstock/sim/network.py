"""The simulated network: links between machines, and what faults do to messages on them.

A link is opened by one machine and carries its messages there, and answers back, in order. As with TCP: a connection
to a host without a process is refused, one to a host that is off or cut off gets no answer; messages on their way to a
process are lost when it dies, and a sender on such a link is told that it is closed, if the network lets that through.

Faults are rules that hold for some time: loss, duplication, reordering and delay of single messages, and pairs of
machines between which nothing passes. A message between such a pair is lost, or, where the rule says so, retried until
it passes or its link is closed, as TCP does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.core.gossip import LinkInfo
from penstock.broker.core.membership import Peer
from penstock.sim.timeline import MS

if TYPE_CHECKING:
    from penstock.sim.machine import Machine
    from penstock.sim.world import World

LATENCY_US = 100
JITTER_US = 400
DUPLICATE_MS_MAX = 4000  # a second one comes up to this much later: what came with the first may be gone by then
RESEND_US = 200 * MS  # what is held back by a partition is tried again after this, and some chance


class Rule(NamedTuple):
    """What happens to messages while a fault lasts."""

    kind: str  # loss, duplicate, reorder, delay
    value: int  # per cent, or milliseconds of a delay
    members: frozenset[int]  # of machines: messages from or to them; empty means all


class SimLink:
    """One connection, from the machine that opened it to another."""

    __slots__ = (
        "back", "back_at", "dst", "dst_life", "forth", "forth_at", "held", "is_open", "peer", "src", "src_life",
    )  # fmt: skip

    def __init__(self, src: Machine, dst: Machine, peer: Peer) -> None:
        self.src = src
        self.dst = dst
        self.peer = peer
        self.src_life = src.life
        self.dst_life = 0
        self.is_open = False
        self.forth_at = self.back_at = 0  # arrival of the last message
        self.held: dict[bool, list[bytes]] = {False: [], True: []}  # forth, back: waits for a cut to end
        self.forth: LinkInfo | None = None  # as the receiver sees it
        self.back: LinkInfo | None = None  # as the opener sees it


class Bus:
    """The links that one process has opened: its BusPort."""

    def __init__(self, network: Network, machine: Machine) -> None:
        self._network = network
        self._machine = machine
        self.links: dict[Peer, SimLink] = {}

    def connect(self, peer: Peer) -> None:
        """Begin to open a link."""
        dst = self._network.find(peer.ip, peer.port)
        if dst is None or dst is self._machine:
            return  # nobody has that address: no answer comes
        link = self.links[peer] = SimLink(self._machine, dst, peer)
        self._network.open(link)

    def disconnect(self, peer: Peer) -> None:
        """Close a link."""
        link = self.links.pop(peer, None)
        if link is not None:
            link.is_open = False
            self._network.unsent(self._machine, peer.id)

    def moves(self, peer: Peer) -> bool:
        """Nothing is so large here that it would."""
        return False

    def send(self, peer: Peer, data: bytes) -> None:
        """Send messages on a link."""
        link = self.links.get(peer)
        if link is not None and link.is_open:
            for message in cut_messages(data):
                self._network.watch(self._machine, link.dst, message)
            self._network.send(link, data, False)
        else:
            self._network.drop(data)  # it is gone, which the node has not heard yet


class Network:
    """All that lies between the machines."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._timeline = world.timeline
        self._random = random
        self.watch: Callable[[Machine, Machine, bytes], None] = _let_pass  # sees each message before it leaves
        self.unsent: Callable[[Machine, bytes], None] = _lose_nothing  # hears of each link that a node closes
        self.rules: list[Rule] = []
        self._cuts: dict[tuple[int, int], list[bool]] = {}  # from, to: of each cut, whether TCP tries again
        self.dropped = 0

    def find(self, ip: str, port: int) -> Machine | None:
        """Find the machine with an address."""
        return self._world.by_ip.get(ip) if port else None

    def cut(self, pairs: list[tuple[int, int]], tries_again: bool) -> None:
        """Let nothing pass from one machine to another."""
        for pair in pairs:
            self._cuts.setdefault(pair, []).append(tries_again)

    def mend(self, pairs: list[tuple[int, int]], tries_again: bool) -> None:
        """End a cut."""
        for pair in pairs:
            self._cuts[pair].remove(tries_again)
            if not self._cuts[pair]:
                del self._cuts[pair]

    def is_cut(self, src: Machine, dst: Machine) -> bool:
        """Whether nothing passes from one machine to another."""
        return bool(self._cuts) and (src.index, dst.index) in self._cuts

    # Opening and losing links.

    def open(self, link: SimLink) -> None:
        """Send the first packet of a connection."""
        self._timeline.after(self._latency(), self._knock, link)

    def _latency(self) -> int:
        return LATENCY_US + int(self._random.random() * JITTER_US)

    def _knock(self, link: SimLink) -> None:
        src, dst = link.src, link.dst
        if not dst.has_power or self.is_cut(src, dst) or self.is_cut(dst, src):
            return
        if not dst.is_up:
            self._timeline.after(self._latency(), self.reset, link)
            return
        link.dst_life = dst.life
        link.forth = LinkInfo(None, src.ip, dst.ip, partial(self._reply, link))
        link.back = LinkInfo(link.peer, dst.ip, src.ip, partial(self.send, link, back=False))
        dst.inbound.append(link)
        self._timeline.after(self._latency(), self._opened, link)

    def _reply(self, link: SimLink, data: bytes) -> None:
        self.send(link, data, True)

    def is_current(self, link: SimLink) -> bool:
        """Whether the machine that opened a link still has it."""
        src = link.src
        return src.is_up and src.life == link.src_life and src.bus.links.get(link.peer) is link

    def _opened(self, link: SimLink) -> None:
        if self.is_current(link):
            link.is_open = True
            link.src.link_opened(link.peer)

    def reset(self, link: SimLink) -> None:
        """Report to the machine that opened a link that it is closed."""
        if self.is_current(link) and not self.is_cut(link.dst, link.src):
            link.is_open = False
            del link.src.bus.links[link.peer]
            link.src.link_lost(link.peer)

    def process_died(self, machine: Machine) -> None:
        """Report to the machines with links to a process that it is gone, if its host still runs."""
        links, machine.inbound = machine.inbound, []
        if machine.has_power:
            for link in links:
                self._timeline.after(self._latency(), self.reset, link)

    # Messages.

    def send(self, link: SimLink, data: bytes, back: bool) -> None:
        """Take messages on a link, towards where it leads or back."""
        at_us = self._timeline.now_us + LATENCY_US + int(self._random.random() * JITTER_US)
        if self.rules or self._cuts:
            self._send_disturbed(link, data, back, at_us)
        elif link.held[back]:
            link.held[back].append(data)
        elif back:
            link.back_at = at_us = max(at_us, link.back_at + 1)
            self._timeline.at(at_us, self._arrive_back, link, data)
        else:
            link.forth_at = at_us = max(at_us, link.forth_at + 1)
            self._timeline.at(at_us, self._arrive, link, data)

    def _send_disturbed(self, link: SimLink, data: bytes, back: bool, at_us: int) -> None:
        src, dst = (link.dst, link.src) if back else (link.src, link.dst)
        arrive = self._arrive_back if back else self._arrive
        cuts = self._cuts.get((src.index, dst.index))
        if link.held[back]:
            link.held[back].append(data)  # TCP keeps the order
            return
        if cuts is not None:
            if all(cuts):
                link.held[back].append(data)
                self._send_later(link, back)
            else:
                self.drop(data)
            return
        chance = self._random.random
        rules = [rule for rule in self.rules if not rule.members or {src.index, dst.index} & rule.members]
        for message in cut_messages(data):
            late_us, copies, keeps_order = at_us, 1, True
            for rule in rules:
                if rule.kind == "delay":
                    late_us += rule.value * MS
                elif chance() * 100 >= rule.value:
                    continue
                elif rule.kind == "loss":
                    copies = 0
                elif rule.kind == "duplicate":
                    copies += 1
                else:
                    late_us += int(chance() * 3000) * MS
                    keeps_order = False
            if not copies:
                self.drop(message)
                continue
            if keeps_order and back:
                link.back_at = late_us = max(late_us, link.back_at + 1)
            elif keeps_order:
                link.forth_at = late_us = max(late_us, link.forth_at + 1)
            self._timeline.at(late_us, arrive, link, message)
            for _ in range(copies - 1):
                self._timeline.at(late_us + int(chance() * DUPLICATE_MS_MAX) * MS, arrive, link, message)

    def _send_later(self, link: SimLink, back: bool) -> None:
        wait_us = RESEND_US + int(self._random.random() * RESEND_US)
        self._timeline.after(wait_us, self._send_again, link, back)

    def _send_again(self, link: SimLink, back: bool) -> None:
        src, dst = (link.dst, link.src) if back else (link.src, link.dst)
        is_current = link.is_open and self.is_current(link)
        if is_current and (src.index, dst.index) in self._cuts:
            self._send_later(link, back)
            return
        held, link.held[back] = link.held[back], []
        for data in held:
            if is_current:
                self.send(link, data, back)
            else:
                self.drop(data)

    def _arrive(self, link: SimLink, data: bytes) -> None:
        dst = link.dst
        if dst.is_up and dst.life == link.dst_life:
            assert link.forth is not None
            dst.receive(link.src, link.forth, data)
            return
        self.drop(data)
        if dst.has_power:
            self._timeline.after(LATENCY_US, self.reset, link)

    def _arrive_back(self, link: SimLink, data: bytes) -> None:
        if link.is_open and self.is_current(link):
            assert link.back is not None
            link.src.receive(link.dst, link.back, data)

    def drop(self, data: bytes) -> None:
        """Lose messages."""
        self.dropped += 1
        for message in cut_messages(data):
            self._world.dropped(message)


def _let_pass(machine: Machine, to: Machine, message: bytes) -> None:
    """Look at nothing."""


def _lose_nothing(machine: Machine, to: bytes) -> None:
    """Look at nothing."""


def cut_messages(data: bytes) -> list[bytes]:
    """Cut what was sent in one piece into messages."""
    length = int.from_bytes(data[4:8], "big")
    if length == len(data):
        return [data]
    messages = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at + 4 : at + 8], "big")
        messages.append(data[at : at + length])
        at += length
    return messages
