"""A cluster as its nodes tell it: each is asked about itself and the others, and the answers are laid side by side.

`look` asks one node who there is, then everybody at once, then those that only others know. What follows from the
answers (who disagrees with whom) is worked out from data alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.cli.cluster.access import Access, checked, everybody, fetch, one_line, stranger
from penstock.client.addresses import Address
from penstock.client.connection import Connection
from penstock.errors import AuthenticationError, PeerError, ReplyError

SHORT_ID = 8  # characters of an id that people see: two nodes that share them are one in four thousand million
NODES_MAX = 1000  # asked at most: a list that is longer is no cluster of ours
# An original node doesn't tell how many of its jobs are acked: they are counted by walking over all of them, which
# costs it some 10 ms for this many.
COUNTED_JOBS_MAX = 20_000
SCAN_COUNT = 1000

FINE, UNKNOWN, NOT_GIVEN_UP = "ok", "unknown", "not given up"
# What a node may think of another, the worst first: flags of CLUSTER NODES.
ILLS = ("noaddr", "fail", "fail?")
NO_LINK = "no link"


class Line(NamedTuple):
    """One line of CLUSTER NODES: what a node knows of another, or of itself."""

    id: str
    host: str
    port: int
    flags: frozenset[str]
    is_linked: bool

    @property
    def opinion(self) -> str:
        """What it thinks of that node's health."""
        ill = next((flag for flag in ILLS if flag in self.flags), "")
        return ill or (FINE if self.is_linked else NO_LINK)


@dataclass(frozen=True)
class Report:
    """What one node has said."""

    id: str
    lines: dict[str, Line]  # by id, itself among them
    info: dict[str, str]  # of INFO
    cluster: dict[str, str]  # of CLUSTER INFO, without the prefix
    memory_limit: int | None = None
    acked: int | None = None  # None: not counted

    @property
    def others(self) -> list[Line]:
        """The nodes it takes for members, without itself."""
        return [line for line in self.lines.values() if line.id != self.id and "handshake" not in line.flags]

    @property
    def me(self) -> Line:
        """Its line about itself."""
        return self.lines[self.id]

    @property
    def jobs(self) -> int:
        """How many jobs it holds, copies and acked ones included."""
        return int(self.info.get("registered_jobs", 0))

    @property
    def clients(self) -> int:
        """How many clients it has, without the one that asked."""
        return max(0, int(self.info.get("connected_clients", 0)) - 1)

    @property
    def is_draining(self) -> bool:
        """Whether it hands its jobs over."""
        return self.cluster.get("draining") == "yes"

    @property
    def is_leaving(self) -> bool:
        """Whether it is about to leave."""
        return "leaving" in self.me.flags


@dataclass(frozen=True)
class Member:
    """One node of the cluster: as the asked node sees it, and what it says itself (or why it doesn't)."""

    id: str
    address: Address | None  # as the nodes tell it
    place: Address | None  # where we find it
    flags: frozenset[str]  # as the asked node has them; none if that doesn't know it
    link: str  # seen from the asked node: itself, up, down or unknown
    report: Report | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        """How to call it in a sentence."""
        return str(self.address) if self.address else self.id[:SHORT_ID]


@dataclass(frozen=True)
class View:
    """All nodes that could be heard of, the asked one first."""

    asked: Address
    members: list[Member]
    notes: list[str] = field(default_factory=list)  # what is under way, and no reason to worry

    @property
    def answering(self) -> list[Member]:
        """Those that could be asked."""
        return [member for member in self.members if member.report is not None]

    @property
    def silent(self) -> list[Member]:
        """Those that couldn't."""
        return [member for member in self.members if member.report is None]


def parse_nodes(text: str) -> dict[str, Line]:
    """Read CLUSTER NODES. Raises ValueError if it isn't that."""
    lines = {}
    for row in text.splitlines():
        if not row:
            continue
        node_id, address, flags, _ping, _pong, link = row.split(" ")
        host, _, port = address.rpartition(":")
        lines[node_id] = Line(node_id, host, int(port), frozenset(flags.split(",")) - {"noflags"}, link == "connected")
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
    """Ask over a link that is open."""
    nodes, cluster, info, limit = fetch(
        link, [("CLUSTER", "NODES"), ("CLUSTER", "INFO"), ("INFO",), ("CONFIG", "GET", "maxmemory")]
    )
    if isinstance(nodes, ReplyError) and not isinstance(nodes, AuthenticationError) and nodes.code == "ERR":
        raise stranger(link, nodes)
    texts = [checked(link, reply) for reply in (nodes, cluster, info)]
    try:
        lines, about_cluster, about_node = _parsed(texts)
    except ValueError:
        raise stranger(link, texts[0]) from None
    report = Report(
        next(line.id for line in lines.values() if "myself" in line.flags),
        lines,
        about_node,
        about_cluster,
        # CONFIG may be taken away from us, the rest is there all the same.
        int(limit[1]) if isinstance(limit, list) and len(limit) == 2 else None,
    )
    if about_cluster.get("acked_jobs", "").isdecimal():
        return replace(report, acked=int(about_cluster["acked_jobs"]))
    if not count_acked or report.jobs > COUNTED_JOBS_MAX:
        return report
    acked = scan(link, "acked", COUNTED_JOBS_MAX)
    return replace(report, acked=None if acked is None else len(acked))


def _parsed(texts: list[object]) -> tuple[dict[str, Line], dict[str, str], dict[str, str]]:
    nodes, cluster, info = (text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text) for text in texts)
    lines = parse_nodes(nodes)
    if not any("myself" in line.flags for line in lines.values()):
        raise ValueError("it doesn't know itself")
    about_cluster = {key.removeprefix("cluster_"): value for key, value in parse_info(cluster).items()}
    return lines, about_cluster, parse_info(info)


def scan(link: Connection, state: str, most: int) -> list[bytes] | None:
    """Give the ids of the jobs in a state, up to about so many; None if the node doesn't tell."""
    cursor, found = b"0", []
    while True:
        reply = fetch(link, [("JSCAN", cursor, "COUNT", SCAN_COUNT, "STATE", state)])[0]
        if isinstance(reply, ReplyError):
            return None
        cursor, ids = reply
        found += ids
        if cursor == b"0" or len(found) >= most:
            return found


# All of them.


def view_cluster(access: Access, address: Address, count_acked: bool = False) -> View:
    """Ask a node, and everybody it knows. Raises PeerError if the first one can't be asked."""
    first = ask(access, address, count_acked)
    # The nodes tell the port of clients without TLS, if they have one. Where we were told that of TLS, the others' is
    # taken to be as far from it as this one's.
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


def _ask_members(access: Access, first: Report, lines: Iterable[Line], shift: int, count_acked: bool) -> list[Member]:
    places = {line.id: _told(line, shift) for line in lines}
    answers = everybody(lambda place: ask(access, place, count_acked), [place for place in places.values() if place])
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


def _told(line: Line, shift: int) -> Address | None:
    """Where a node is, as others know it."""
    return Address(line.host, line.port + shift) if line.host and line.port else None


def _place(member: Member) -> tuple[str, int, str]:
    return (member.address.host, member.address.port, member.id) if member.address else ("", 0, member.id)


def _handshakes(members: Iterable[Member]) -> list[str]:
    return [
        f"{member.name} is getting to know {Address(line.host, line.port)}."
        for member in members
        if member.report is not None
        for line in member.report.lines.values()
        if "handshake" in line.flags
    ]


# What follows from what they say.


def opinions(view: View, node_id: str) -> dict[str, list[Member]]:
    """What the others think of a node, and who thinks so."""
    found: dict[str, list[Member]] = {}
    for other in view.answering:
        if other.id != node_id and other.report is not None:
            line = other.report.lines.get(node_id)
            found.setdefault(UNKNOWN if line is None else line.opinion, []).append(other)
    return found


def disagreements(view: View) -> list[str]:
    """Sentences about nodes that see each other differently, or otherwise than we do."""
    warnings = []
    for member in view.members:
        found = opinions(view, member.id)
        if member.report is None:
            # Links to a node that is gone are opened and refused all the time: that nodes differ in this means nothing.
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
    """All that is wrong, in sentences."""
    silent = [f"{member.name} can't be asked: {member.problem}" for member in view.silent]
    return silent + disagreements(view)
