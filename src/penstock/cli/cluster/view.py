"""A cluster as its nodes report it: each is asked about itself and the others, and the answers are compared.

`view_cluster` asks one node for the list of nodes, then all of them, then those that only others know. What follows
from the answers, such as disagreements, is computed from data alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.cli.cluster.access import Access, at_each, checked, fetch, not_a_node, one_line
from penstock.client.addresses import Address
from penstock.client.connection import Connection
from penstock.errors import AuthenticationError, PeerError, ReplyError

SHORT_ID = 8  # characters of an id that are shown: the chance that two nodes share them is one in four billion
NODES_MAX = 1000  # nodes to ask: our clusters are smaller
# An original node doesn't report how many of its jobs are acked: they are counted by a scan of all its jobs, which
# costs it some 10 ms for this many.
COUNTED_JOBS_MAX = 20_000
SCAN_COUNT = 1000

FINE, UNKNOWN, NOT_GIVEN_UP = "ok", "unknown", "not given up"
# Flags of CLUSTER NODES that say what a node thinks of another, the worst first.
ILLS = ("noaddr", "fail", "fail?")
NO_LINK = "no link"


class NodeLine(NamedTuple):
    """One line of CLUSTER NODES: what a node knows about another, or about itself."""

    id: str
    host: str
    port: int
    flags: frozenset[str]
    is_linked: bool

    @property
    def opinion(self) -> str:
        """Return the state of the other node as this one sees it."""
        ill = next((flag for flag in ILLS if flag in self.flags), "")
        return ill or (FINE if self.is_linked else NO_LINK)


@dataclass(frozen=True)
class Report:
    """The answers of one node."""

    id: str
    lines: dict[str, NodeLine]  # by id, itself among them
    info: dict[str, str]  # of INFO
    cluster: dict[str, str]  # of CLUSTER INFO, without the prefix
    memory_limit: int | None = None
    acked: int | None = None  # None: not counted

    @property
    def others(self) -> list[NodeLine]:
        """Return the nodes that it lists as members, without itself."""
        return [line for line in self.lines.values() if line.id != self.id and "handshake" not in line.flags]

    @property
    def me(self) -> NodeLine:
        """Return its line about itself."""
        return self.lines[self.id]

    @property
    def jobs(self) -> int:
        """Return its number of jobs, copies and acked ones included."""
        return int(self.info.get("registered_jobs", 0))

    @property
    def clients(self) -> int:
        """Return its number of clients, without this one."""
        return max(0, int(self.info.get("connected_clients", 0)) - 1)

    @property
    def is_draining(self) -> bool:
        """Whether it is draining."""
        return self.cluster.get("draining") == "yes"

    @property
    def is_leaving(self) -> bool:
        """Whether it is leaving the cluster."""
        return "leaving" in self.me.flags


@dataclass(frozen=True)
class Member:
    """One node of the cluster: as the first node sees it, and its own report, or why it is missing."""

    id: str
    address: Address | None  # as the nodes report it
    place: Address | None  # where this program connects to it
    flags: frozenset[str]  # as the first node has them; empty if it doesn't list it
    link: str  # from the first node: itself, up, down or unknown
    report: Report | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        """Return its name in sentences."""
        return str(self.address) if self.address else self.id[:SHORT_ID]


@dataclass(frozen=True)
class View:
    """All nodes that are known, the first one that was asked at the beginning."""

    asked: Address
    members: list[Member]
    notes: list[str] = field(default_factory=list)  # what is in progress, and not a problem

    @property
    def answering(self) -> list[Member]:
        """Return the members that answered."""
        return [member for member in self.members if member.report is not None]

    @property
    def silent(self) -> list[Member]:
        """Return the members that didn't answer."""
        return [member for member in self.members if member.report is None]


def parse_nodes(text: str) -> dict[str, NodeLine]:
    """Read CLUSTER NODES. Raises ValueError if it isn't that."""
    lines = {}
    for row in text.splitlines():
        if not row:
            continue
        node_id, address, flags, _ping, _pong, link = row.split(" ")
        host, _, port = address.rpartition(":")
        lines[node_id] = NodeLine(
            node_id, host, int(port), frozenset(flags.split(",")) - {"noflags"}, link == "connected"
        )
    return lines


def parse_info(text: str) -> dict[str, str]:
    """Read `key:value` lines."""
    return dict(row.split(":", 1) for row in text.splitlines() if ":" in row and not row.startswith("#"))


def ask(access: Access, address: Address, count_acked: bool = False) -> Report:
    """Ask one node about itself and the others. Raises PeerError that says why it can't be asked."""
    link = access.open(address)
    try:
        return report_of(link, count_acked)
    except PeerError as error:
        if access.tls is None and "Lost the connection" in str(error):
            raise PeerError(f"{error}\nIf it speaks TLS there, add --tls.") from error
        raise
    finally:
        link.close()


def report_of(link: Connection, count_acked: bool = False) -> Report:
    """Ask a node over an open link."""
    nodes, cluster, info, limit = fetch(
        link, [("CLUSTER", "NODES"), ("CLUSTER", "INFO"), ("INFO",), ("CONFIG", "GET", "maxmemory")]
    )
    if isinstance(nodes, ReplyError) and not isinstance(nodes, AuthenticationError) and nodes.code == "ERR":
        raise not_a_node(link, nodes)
    texts = [checked(link, reply) for reply in (nodes, cluster, info)]
    try:
        lines, about_cluster, about_node = _parsed(texts)
    except ValueError:
        raise not_a_node(link, texts[0]) from None
    report = Report(
        next(line.id for line in lines.values() if "myself" in line.flags),
        lines,
        about_node,
        about_cluster,
        # CONFIG may be renamed or disabled on the node; the rest works without it.
        int(limit[1]) if isinstance(limit, list) and len(limit) == 2 else None,
    )
    if about_cluster.get("acked_jobs", "").isdecimal():
        return replace(report, acked=int(about_cluster["acked_jobs"]))
    if not count_acked or report.jobs > COUNTED_JOBS_MAX:
        return report
    acked = scan(link, "acked", COUNTED_JOBS_MAX)
    return replace(report, acked=None if acked is None else len(acked))


def _parsed(texts: list[object]) -> tuple[dict[str, NodeLine], dict[str, str], dict[str, str]]:
    nodes, cluster, info = (text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text) for text in texts)
    lines = parse_nodes(nodes)
    if not any("myself" in line.flags for line in lines.values()):
        raise ValueError("no line has the flag myself")
    about_cluster = {key.removeprefix("cluster_"): value for key, value in parse_info(cluster).items()}
    return lines, about_cluster, parse_info(info)


def scan(link: Connection, state: str, most: int) -> list[bytes] | None:
    """Return the ids of about `most` jobs in a state; None if the node can't list them."""
    cursor, found = b"0", []
    while True:
        reply = fetch(link, [("JSCAN", cursor, "COUNT", SCAN_COUNT, "STATE", state)])[0]
        if isinstance(reply, ReplyError):
            return None
        cursor, ids = reply
        found += ids
        if cursor == b"0" or len(found) >= most:
            return found


# All nodes.


def view_cluster(access: Access, address: Address, count_acked: bool = False) -> View:
    """Ask a node, and all nodes that it knows. Raises PeerError if the first one can't be asked."""
    first = ask(access, address, count_acked)
    # The nodes report their port without TLS, if they have one. If the given port is that of TLS, the others' TLS ports
    # are assumed to be at the same distance.
    shift = address.port - first.me.port if access.tls is not None else 0
    me = Member(first.id, _told(first.me, 0) or address, address, first.me.flags - {"myself"}, "itself", first)
    members = {first.id: me}
    unasked = {line.id: line for line in first.others}
    while unasked and len(members) < NODES_MAX:
        asked = _ask_members(access, first, unasked.values(), shift, count_acked)
        members.update({member.id: member for member in asked})
        heard = {line.id: line for member in asked if member.report for line in member.report.others}
        unasked = {node_id: line for node_id, line in heard.items() if node_id not in members}
    others = sorted((member for member in members.values() if member is not me), key=_place)
    return View(address, [me, *others], _handshakes(members.values()))


def _ask_members(
    access: Access, first: Report, lines: Iterable[NodeLine], shift: int, count_acked: bool
) -> list[Member]:
    places = {line.id: _told(line, shift) for line in lines}
    answers = at_each(lambda place: ask(access, place, count_acked), [place for place in places.values() if place])
    members = []
    for line in lines:
        place = places[line.id]
        seen = first.lines.get(line.id)
        link = UNKNOWN if seen is None else "up" if seen.is_linked else "down"
        flags = seen.flags if seen is not None else frozenset[str]()
        answer = answers[place] if place is not None else PeerError("no node knows its address")
        if isinstance(answer, Report) and answer.id != line.id:
            answer = PeerError(f"another node answers there: {answer.id[:SHORT_ID]}")
        shown = _told(line, 0)
        if isinstance(answer, PeerError):
            members.append(Member(line.id, shown, place, flags, link, None, one_line(answer)))
        else:
            members.append(Member(line.id, shown, place, flags, link, answer))
    return members


def _told(line: NodeLine, shift: int) -> Address | None:
    """Return the address of a node, as others know it."""
    return Address(line.host, line.port + shift) if line.host and line.port else None


def _place(member: Member) -> tuple[str, int, str]:
    return (member.address.host, member.address.port, member.id) if member.address else ("", 0, member.id)


def _handshakes(members: Iterable[Member]) -> list[str]:
    return [
        f"{member.name} is in a handshake with {Address(line.host, line.port)}."
        for member in members
        if member.report is not None
        for line in member.report.lines.values()
        if "handshake" in line.flags
    ]


# What follows from the answers.


def opinions(view: View, node_id: str) -> dict[str, list[Member]]:
    """Return the states of a node as the others see it, each with the members that see it so."""
    found: dict[str, list[Member]] = {}
    for other in view.answering:
        if other.id != node_id and other.report is not None:
            line = other.report.lines.get(node_id)
            found.setdefault(UNKNOWN if line is None else line.opinion, []).append(other)
    return found


def disagreements(view: View) -> list[str]:
    """Return sentences about nodes that disagree about a node, or that this program sees differently."""
    warnings = []
    for member in view.members:
        found = opinions(view, member.id)
        if member.report is None:
            # Links to a node that is gone are opened and refused all the time: that nodes differ in this doesn't count.
            hopeful = found.pop(FINE, []) + found.pop(NO_LINK, [])
            found |= {NOT_GIVEN_UP: hopeful} if hopeful else {}
        if len(found) > 1:
            said = "; ".join(f"{_names(who)}: {opinion}" for opinion, who in sorted(found.items()))
            warnings.append(f"The nodes disagree about {member.name}: {said}.")
        elif found and FINE not in found and member.report is not None:
            warnings.append(f"{member.name} answers, but the others see it as: {next(iter(found))}.")
    return warnings


def _names(members: Iterable[Member]) -> str:
    return ", ".join(member.name for member in members)


def problems(view: View) -> list[str]:
    """Return everything that is wrong, as sentences."""
    silent = [f"{member.name} can't be asked: {member.problem}" for member in view.silent]
    return silent + disagreements(view)
