"""A stage for stories of the protocol: brokers on one clock, with every message between them written down in words.

A story is a text of blocks. A block is what is done, one line each, then `----` and what came of it:

    nodes A B C            three nodes that know each other; `original=C` makes C's mark of our abilities invisible
    strangers A B C        three nodes that don't
    A ADDJOB q hello 0     a command of a client of A; each node has one client, `A2` is a second one of A
    wait 0.5               time passes, in seconds
    suspend 3600           time passes, and all nodes stand still: as much as is wanted, at once
    cut A B                A and B no longer reach each other; `heal` ends all cuts
    slow A B 0.05          what A sends to B arrives after 0.05 s; `heal` ends that, too
    deafen A2              replies to it no longer leave the node, as to a client whose link is broken
    close A2               the node hears that it is gone
    stop A / go A          A stands still: what is sent to it comes when it goes on
    freeze A / thaw A      A's process stands still, as with SIGSTOP: its clock, too, for itself
    rewrite A              A rewrites its journal
    shut A / open A        others can't open links to A; `open` lets them
    crash A / start A      A's process is gone, memory and all; it comes back with its disk
    gossip                 from here on PINGs and PONGs are shown, too, and what HAVEJOB says of a new link

Ids of nodes are shown as their letters, those of jobs as J1, J2 and so on. `QUEUED J1=2/1` tells its nacks and
deliveries.
"""

from __future__ import annotations

import re
from heapq import heappop, heappush
from typing import Any

import hiredis

from penstock.broker.core.gossip import LinkInfo
from penstock.broker.core.membership import LINKED, Peer, cluster_from_text
from penstock.broker.persistence import Persistence
from penstock.wire import bus
from tests.unit.broker.harness import CRON_S, LocalClient, LocalServer

LATENCY_S = 0.001
GOSSIP = ("PING", "PONG", "MEET")
FLAG_WORDS = ((1, "noreply"), (2, "+nack"), (4, "+delivery"), (256, "queue-it"), (512, "returned"))


class Port:
    """The bus of one node."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name

    def connect(self, peer: Peer) -> None:
        self.stage.after(LATENCY_S, self._opened, peer)

    def _opened(self, peer: Peer) -> None:
        server = self.stage.servers.get(self.name)
        if self.name in self.stage.frozen:
            self.stage.after(LATENCY_S, self._opened, peer)
            return
        if server is None or peer.link == 0:
            return
        if self.stage.can_reach(self.name, _name(peer.ip)) and _name(peer.ip) not in self.stage.shut:
            server.broker.link_opened(peer)
        else:
            server.broker.link_lost(peer)

    def disconnect(self, peer: Peer) -> None:
        """Nothing is kept of a link."""

    def moves(self, peer: Peer) -> bool:
        """Nothing is so large here that it would."""
        return False

    def send(self, peer: Peer, data: bytes) -> None:
        for message in bus.BusReader().feed(data):
            self.stage.show_message(self.name, _name(peer.ip), message)
            latency_s = self.stage.latencies_s.get((self.name, _name(peer.ip)), LATENCY_S)
            self.stage.after(latency_s, self.stage.deliver, self.name, peer, message)


class Stage:
    """All nodes, their clients, and what happened since the last look."""

    def __init__(self) -> None:
        self.servers: dict[str, LocalServer] = {}
        self.disks: dict[str, Any] = {}
        self.conf: dict[str, str] = {}
        self.directives: dict[str, object] = {}
        self.clients: dict[str, LocalClient] = {}
        self.cuts: set[frozenset[str]] = set()
        self.latencies_s: dict[tuple[str, str], float] = {}  # of slow links: from, to
        self.stopped: set[str] = set()
        self.shut: set[str] = set()
        self.frozen: set[str] = set()
        self.originals: set[str] = set()
        self.jobs: dict[bytes, str] = {}
        self.lines: list[str] = []
        self.done: set[str] = set()  # verbs
        self.now_s = 1000.0
        self.shows_gossip = False
        self._events: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self._sequence = 0

    # The network.

    def after(self, seconds: float, do: Any, *args: Any) -> None:
        self._sequence += 1
        heappush(self._events, (self.now_s + seconds, self._sequence, do, args))

    def can_reach(self, name: str, other: str) -> bool:
        return other in self.servers and frozenset((name, other)) not in self.cuts

    def deliver(self, sender: str, peer: Peer, data: bytes) -> None:
        receiver = _name(peer.ip)
        if not self.can_reach(sender, receiver):
            return
        if receiver in self.stopped | self.frozen:
            self.after(LATENCY_S, self.deliver, sender, peer, data)
            return
        if sender in self.originals:
            data = data[:102] + bytes(34) + data[136:]

        def reply(answer: bytes) -> None:
            self.show_message(receiver, sender, answer)
            self.after(LATENCY_S, self._answered, receiver, sender, peer, answer)

        self.servers[receiver].broker.receive(LinkInfo(None, _ip(sender), _ip(receiver), reply), [data])

    def _answered(self, sender: str, receiver: str, peer: Peer, data: bytes) -> None:
        if not self.can_reach(sender, receiver):
            return
        if sender in self.originals:
            data = data[:102] + bytes(34) + data[136:]
        if receiver in self.frozen:
            self.after(LATENCY_S, self._answered, sender, receiver, peer, data)
        elif peer.link == LINKED:
            self.servers[receiver].broker.receive(LinkInfo(peer, _ip(sender), _ip(receiver), lambda _: None), [data])

    # Words.

    def show_message(self, sender: str, receiver: str, data: bytes) -> None:
        message = bus.decode(data)
        assert message is not None, data
        name = bus.TYPE_NAMES[message.type]
        if (name in GOSSIP or message.flags & _about_link(message)) and not self.shows_gossip:
            return
        self.lines.append(f"{sender} -> {receiver}  {' '.join([name, *self._words(message)])}")

    def _words(self, message: bus.BusMessage) -> list[str]:
        flags = [word for bit, word in FLAG_WORDS if message.flags & bit and message.type not in bus.NAME_TYPES]
        if message.type in (bus.MANY, bus.QUEUED) and "returned" in flags:
            flags[flags.index("returned")] = "taken"
        if message.type not in bus.NAME_TYPES and (tries := bus.tries_of(message.flags)) > 0:
            flags.append(f"tries {tries}")
        if message.type in bus.GOSSIP_TYPES:
            return [f"{_letter(e.id)}:{e.flags}" for e in bus.decode_gossip(message)]
        if message.type == bus.FAIL:
            return [_letter(message.payload)]
        if message.type in bus.RECORD_TYPES:
            return [f"{self._job(r.id)}(held by {_letters(r.nodes)})" for r in bus.records(message)] + flags
        if message.type in bus.NAME_TYPES:
            value, queue = bus.name_of(message)
            waiting = message.flags >> bus.WAITERS_SHIFT
            is_poll = not waiting and message.flags >> bus.WAIT_SHIFT
            return [queue.decode(), str(value)] + ([f"waiting={waiting}"] if waiting else ["once"] * bool(is_poll))
        if message.flags & _about_link(message):
            words = {bus.ASKS: "asks", bus.FROM_HERE: "from-here", bus.ALL_TOLD: "all-told"}
            return [word for flag, word in words.items() if message.flags & flag]
        kind, nodes, refs = bus.references(message)
        words = [bus.TYPE_NAMES[kind]] if message.type == bus.MANY else []
        words += [self._job(job_id) + _value(value) for job_id, value in refs]
        return words + ([f"held by {_letters(nodes)}"] if nodes else []) + flags

    def _job(self, job_id: bytes) -> str:
        return self.jobs.setdefault(job_id, f"J{len(self.jobs) + 1}")

    def _plain(self, value: Any) -> str:
        if isinstance(value, hiredis.ReplyError):
            return f"-{value}"
        if isinstance(value, list):
            return "[" + ", ".join(self._plain(item) for item in value) + "]"
        if isinstance(value, bytes):
            text = re.sub(rb"D-.{8}-.{24}-....", lambda match: self._job(match[0]).encode(), value, flags=re.DOTALL)
            text = re.sub(rb"([a-z])\1{39}", lambda match: match[1].upper(), text)
            text = re.sub(rb"\b1700\d{9,15}\b|\b\d{19}\b", b"(time)", text)
            return text.decode("latin-1").replace("\r", "").rstrip("\n")
        return "nil" if value is None else str(value)

    # What a story does.

    def do(self, line: str) -> None:
        verb, *words = line.split()
        self.done.add(verb)
        action = getattr(self, f"_do_{verb}", None)
        if action is not None:
            action(*words)
        else:
            self._command(verb, words)
        self._run_until(self.now_s)

    def _do_nodes(self, *words: str) -> None:
        for word in words:
            key, _, value = word.partition("=")
            if key == "original":
                self.originals.add(value)
            elif value:
                self.directives[key.replace("-", "_")] = int(value) if value.isdigit() else value == "yes"
        names = [word for word in words if "=" not in word]
        text = "".join(f"{_id(name).decode()} {_ip(name)}:7711 noflags 0 0 disconnected\n" for name in names)
        for name in names:
            self.conf[name] = text.replace(f"{_ip(name)}:7711 noflags", f"{_ip(name)}:7711 myself")
            self._do_start(name)
        self._wait(2.0)
        self.lines.clear()

    def _do_strangers(self, *names: str) -> None:
        for name in names:
            self.conf[name] = f"{_id(name).decode()} {_ip(name)}:7711 myself 0 0 connected\n"
            self._do_start(name)

    def _do_start(self, name: str) -> None:
        directives: dict[str, Any] = {"cluster_node_timeout": 3000, **self.directives, "appendonly": False}
        server = LocalServer(_id(name), **directives)
        server.now_s = self.now_s
        if name in self.disks:
            server.disk = server.broker.disk = self.disks[name]
            server.broker.persistence = Persistence(server.broker)
        self.disks[name] = server.disk
        self.servers[name] = server
        broker = server.broker
        broker.set_clock()
        broker.node.take_cluster(cluster_from_text(self.conf[name], int(self.now_s * 1000)))
        broker.use_bus(Port(self, name))
        if self.directives.get("appendonly"):
            broker.config.appendonly = True
            for _ in broker.persistence.begin_load(0):
                pass
            broker.persistence.end_load()
            broker.persistence.open()
        broker.refresh_checks()

    def _do_crash(self, name: str) -> None:
        broker = self.servers.pop(name).broker
        self.conf[name] = broker.node.cluster.text(False)
        for client in [client for client in self.clients if client[0] == name]:
            del self.clients[client]
        for other, server in self.servers.items():
            for peer in server.broker.node.cluster.peers.values():
                if peer.ip == _ip(name) and peer.link and other != name:
                    server.broker.link_lost(peer)

    def _do_cut(self, *names: str) -> None:
        self.cuts.add(frozenset(names))

    def _do_slow(self, sender: str, receiver: str, seconds: str) -> None:
        self.latencies_s[sender, receiver] = float(seconds)

    def _do_heal(self) -> None:
        self.cuts.clear()
        self.latencies_s.clear()

    def _do_stop(self, name: str) -> None:
        self.stopped.add(name)

    def _do_go(self, name: str) -> None:
        self.stopped.remove(name)

    def _do_freeze(self, name: str) -> None:
        self.frozen.add(name)

    def _do_thaw(self, name: str) -> None:
        self.frozen.remove(name)
        self.servers[name].now_s = self.now_s

    def _do_shut(self, name: str) -> None:
        self.shut.add(name)

    def _do_open(self, name: str) -> None:
        self.shut.remove(name)

    def _do_rewrite(self, name: str) -> None:
        broker = self.servers[name].broker
        broker.persistence.begin_rewrite()
        self.servers[name].finish_rewrite()

    def _do_gossip(self) -> None:
        self.shows_gossip = True

    def _do_deafen(self, name: str) -> None:
        self.clients[name].takes = False

    def _do_close(self, name: str) -> None:
        client = self.clients.pop(name)
        self.servers[name[0]].broker.disconnect(client.client)

    def _do_wait(self, seconds: str) -> None:
        self._wait(float(seconds))

    def _do_suspend(self, seconds: str) -> None:
        self._set_clock(self.now_s + float(seconds))

    def _wait(self, seconds: float) -> None:
        until = round(self.now_s + seconds, 6)
        while self.now_s < until - 1e-9:
            step = min(until, (int(self.now_s / CRON_S + 1e-6) + 1) * CRON_S)
            self._run_until(step)
            for server in self._running():
                server.broker.cron()
            self._run_until(step)

    def _run_until(self, until: float) -> None:
        """Let messages, timers and turns happen up to a time."""
        self._settle()
        while True:
            due = [self._events[0][0]] if self._events else []
            for server in self._running():
                next_ms = server.broker.node.timers.next_ms()
                if next_ms is not None:
                    due.append(max(self.now_s, next_ms / 1000))
            if not due or min(due) > until + 1e-9:
                break
            self._set_clock(max(self.now_s, min(due)))
            while self._events and self._events[0][0] <= self.now_s + 1e-9:
                _, _, do, args = heappop(self._events)
                do(*args)
            for server in self._running():
                next_ms = server.broker.node.timers.next_ms()
                if next_ms is not None and next_ms <= int(self.now_s * 1000):
                    server.broker.tick()
            self._settle()
            if min(due) <= self.now_s and not self._events:
                self._set_clock(self.now_s + 0.0005)
        self._set_clock(max(self.now_s, until))

    def _set_clock(self, now_s: float) -> None:
        self.now_s = now_s
        for server in self._running():
            server.now_s = now_s

    def _running(self) -> list[LocalServer]:
        return [server for name, server in self.servers.items() if name not in self.frozen]

    def _settle(self) -> None:
        for name, server in self.servers.items():
            if name in self.frozen:
                continue
            server.turn()
            for seat_name, client in self.clients.items():
                if seat_name[0] == name:
                    self.lines += [f"{seat_name}> {self._plain(reply)}" for reply in client.pushed()]

    def _command(self, seat_name: str, words: list[str]) -> None:
        client = self.clients.get(seat_name)
        if client is None:
            client = self.clients[seat_name] = self.servers[seat_name[0]].client()
        ids = {name: job_id for job_id, name in self.jobs.items()}
        args = [ids.get(word, word) if word[:1] == "J" else word for word in words]
        args = [_id(word[1:]) if isinstance(word, str) and word.startswith("@") else word for word in args]
        args = [_ip(word[3:]) if isinstance(word, str) and word.startswith("ip:") else word for word in args]
        client.send(list(args))

    def told(self) -> list[str]:
        """Return what happened since the last look."""
        lines, self.lines = self.lines, []
        return lines


def _about_link(message: bus.BusMessage) -> int:
    """Return the flags with which a message tells of a link, and of no job."""
    return bus.ASKS | bus.FROM_HERE | bus.ALL_TOLD if message.type == bus.HAVEJOB else 0


def _value(value: int) -> str:
    if value == bus.NOT_HERE:
        return "=not-here"
    if value & bus.HAS_COUNTERS:
        return f"={value >> bus.NACKS_SHIFT & bus.NACKS_MASK}/{value & bus.DELIVERIES_MASK}"
    return f"={value}" if value else ""


def _id(name: str) -> bytes:
    return name.lower().encode() * 40


def _ip(name: str) -> str:
    return f"10.0.0.{ord(name) - 64}"


def _name(ip: str) -> str:
    return chr(int(ip.rpartition(".")[2]) + 64)


def _letter(node_id: bytes) -> str:
    return node_id[:1].decode().upper()


def _letters(nodes: Any) -> str:
    return "".join(sorted(_letter(node) for node in nodes))
