"""`penstock cluster add`, `remove` and `forget`: which nodes are in the cluster.

A node is in a cluster when all others see it, and out of it when none does. A change at one node spreads by gossip, so
these commands wait until it has, and name every node that can't be asked: it may undo the change later.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from penstock.cli.cluster import table
from penstock.cli.cluster.access import Access, at_each, execute, typed_command
from penstock.cli.cluster.drain import drain
from penstock.cli.cluster.view import (
    FINE,
    NO_LINK,
    SHORT_ID,
    UNKNOWN,
    Member,
    Report,
    View,
    ask,
    opinions,
    report_of,
    view_cluster,
)
from penstock.cli.output import EventPrinter
from penstock.client.addresses import Address, parse_address
from penstock.errors import CallerError, ConnectionLost, OperatorError, PeerError

POLL_SECONDS = 0.25
MEET_AGAIN_SECONDS = 5.0  # on most clusters a lost handshake has timed out by then, and is started again
FORGET_SECONDS = 30.0  # half of the minute for which a node ignores gossip about one that it forgot
CHECKS = 2  # in a row: a refused link exists for a moment, and a handshake that was under way may end after the first
SETTLE_SECONDS = 10.0  # an ADDJOB that came at the last moment finds no node for its copies, and has failed by then
GIVE_UP_SECONDS = 60.0  # four times the default node timeout: a dead node is marked as failed by then
SHORT_ID_MIN = 4  # characters of an id that can stand for it
UNDO_SECONDS = 15.0  # handshakes that are under way have ended by then

UNDONE = "The nodes have forgotten each other again: the cluster is as it was before."
NOT_UNDONE = "The cluster may refuse jobs until these nodes have forgotten each other again. Undo it with:"
UNANSWERED = "Some nodes don't answer. When they do, make them forget, too:"


class MissingLink(NamedTuple):
    """A node that doesn't see another: its name, where to connect to it, and the address of the other."""

    name: str
    place: Address
    unseen: Address


# Add.


def add(access: Access, new: Address, to: Address, force: bool, timeout_s: float, printer: EventPrinter) -> int:
    """Add a node to a cluster, and wait until all nodes see it."""
    newcomer = ask(access, new)
    view = view_cluster(access, to)
    if any(member.id == newcomer.id for member in view.members if member.link != UNKNOWN):
        if view.members[0].id == newcomer.id:
            raise CallerError(f"--to must be a node of the cluster to join, got {to}, which is the same node as {new}.")
        printer.event("known", f"{new} is in this cluster already.", address=str(new), id=newcomer.id)
    else:
        _check_newcomer(new, newcomer, force)
    met = Address(_reachable_ip(new, to), newcomer.me.port)
    for member in view.silent:
        printer.warning(f"{member.name} can't be asked whether it sees the new node: {member.problem}")
    joining = view_cluster(access, new)
    try:
        left = _introduce(access, to, met, newcomer.id, timeout_s)
    except BaseException:
        printer.warning(_undone(access, view, joining, met))
        raise
    if left:
        raise OperatorError(f"{_unseen(new, newcomer, left, timeout_s)}\n{_undone(access, view, joining, met)}")
    count = len(view_cluster(access, to).members)
    sentence = f"{new} is in the cluster now: {table.nodes(count)} see each other."
    printer.event("added", sentence, address=str(new), id=newcomer.id, nodes=count)
    return 0


def _check_newcomer(new: Address, newcomer: Report, force: bool) -> None:
    if newcomer.is_leaving:
        raise OperatorError(
            f"{new} is leaving its cluster: it would get no jobs.\n"
            f"Let it stay first: {typed_command(new, 'CLUSTER', 'LEAVING', 'no')}"
        )
    if newcomer.others and not force:
        names = ", ".join(str(Address(line.host, line.port)) for line in newcomer.others[:3])
        raise OperatorError(
            f"{new} is in a cluster of {len(newcomer.others) + 1} already, with {names}: adding it would join both "
            "into one.\nRemove it there first (penstock cluster remove), or use --force to join them."
        )
    if newcomer.jobs and not force:
        raise OperatorError(
            f"{new} has {table.jobs(newcomer.jobs)}, which would become jobs of the cluster.\n"
            f"Use --force to keep them. To delete them: {typed_command(new, 'CLUSTER', 'RESET')}"
        )


def _reachable_ip(new: Address, to: Address) -> str:
    """Return the IP address of a node, which the other nodes must be able to reach, too."""
    ips = []
    for address in (new, to):
        try:
            ips.append(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise CallerError(f"can't resolve {address.host}: {error.strerror}") from error
    ip = str(ips[0])
    if ipaddress.ip_address(ip).is_loopback and not ipaddress.ip_address(str(ips[1])).is_loopback:
        raise CallerError(
            f"the address of the new node must be reachable from {to}, got {ip}, which means this machine."
        )
    return ip


def _introduce(access: Access, to: Address, new: Address, node_id: str, timeout_s: float) -> list[MissingLink]:
    """Make nodes meet that don't see each other, until all do; returns those that still don't."""
    deadline = time.monotonic() + timeout_s
    met_at = 0.0
    fine = 0
    while True:
        left = unacquainted(view_cluster(access, to), node_id, new)
        fine = 0 if left else fine + 1
        if fine == CHECKS or (left and time.monotonic() > deadline):
            return left
        if left and time.monotonic() - met_at > MEET_AGAIN_SECONDS:
            met_at = time.monotonic()
            # Each gets the command from us: a node that forgot the new one a moment ago ignores gossip about it.
            for pair in left:
                with suppress(PeerError):
                    access.run(pair.place, "CLUSTER", "MEET", pair.unseen.host, pair.unseen.port)
        time.sleep(POLL_SECONDS)


def unacquainted(view: View, node_id: str, new: Address) -> list[MissingLink]:
    """Return the nodes that don't see the new one, and those that the new one doesn't see."""
    found = [
        MissingLink(member.name, member.place, new)
        for opinion, members in opinions(view, node_id).items()
        if opinion != FINE
        for member in members
        if member.place is not None
    ]
    newcomer = next((member for member in view.members if member.id == node_id), None)
    if newcomer is None or newcomer.report is None or newcomer.place is None:
        return found
    seen = {line.id for line in newcomer.report.lines.values() if line.opinion == FINE} | {node_id}
    return found + [
        MissingLink(newcomer.name, newcomer.place, other.address)
        for other in view.answering
        if other.id not in seen and other.address is not None
    ]


def _unseen(new: Address, newcomer: Report, left: Iterable[MissingLink], timeout_s: float) -> str:
    pairs = ", ".join(f"{pair.name} doesn't see {pair.unseen}" for pair in left)
    return (
        f"{new} is not in the cluster after {timeout_s:g} s: {pairs}.\n"
        f"Can the nodes reach each other's bus (port {newcomer.me.port + 10_000} of the new one)? Do they have the "
        "same cluster secret, or certificates? Their logs say why a link is refused."
    )


def _undone(access: Access, view: View, joining: View, met: Address) -> str:
    """Undo an add; returns the sentence about it."""
    if joining.members[0].id in {member.id for member in view.members}:
        return "It was in the cluster before, and still is."
    return undo(access, view, joining, met)


# Undo an add that failed: a node that lists one which it can't use counts on it for copies, and refuses jobs. So each
# side is told to forget the other, until no node lists one of the other side in two checks in a row.


ListedNode = tuple[Address, str]  # a node, and an id that it lists and must forget


class Side(NamedTuple):
    """The nodes of one side, and the ids and addresses of the other side, which they must forget."""

    places: list[Address]
    ids: set[str]
    addresses: set[Address]

    def unwanted(self, report: Report) -> list[str]:
        """Return the ids of the other side that a node lists, handshakes included."""
        return [
            line.id
            for line in report.lines.values()
            if line.id in self.ids or ("handshake" in line.flags and Address(line.host, line.port) in self.addresses)
        ]


def undo(access: Access, cluster: View, joining: View, met: Address) -> str:
    """Make two sides forget each other, the second of which was met at an address; returns sentences about it."""
    sides = [_side(cluster, joining, met), _side(joining, cluster)]
    deadline = time.monotonic() + UNDO_SECONDS
    quiet = 0
    while True:
        listed: list[ListedNode] = []
        silent: list[ListedNode] = []
        for side in sides:
            _forget(access, side, listed, silent)
        quiet = 0 if listed else quiet + 1
        if quiet == CHECKS or (listed and time.monotonic() > deadline):
            break
        time.sleep(POLL_SECONDS)
    said = [NOT_UNDONE, *map(_typed, listed)] if listed else [UNDONE]
    return "\n".join([*said, UNANSWERED, *map(_typed, silent)] if silent else said)


def _side(here: View, there: View, *addresses: Address) -> Side:
    ours, theirs = ({member.id for member in view.members} for view in (here, there))
    places = [member.place for member in here.members if member.id not in theirs and member.place is not None]
    told = {member.address for member in there.members if member.address is not None}
    return Side(places, theirs - ours, told | set(addresses))


def _forget(access: Access, side: Side, listed: list[ListedNode], silent: list[ListedNode]) -> None:
    """Make the nodes of a side forget the other side; adds what they list, and what silent ones may list."""
    for place, report in at_each(lambda place: ask(access, place), side.places).items():
        if isinstance(report, PeerError):
            silent += [(place, node_id) for node_id in sorted(side.ids)]
            continue
        for node_id in side.unwanted(report):
            listed.append((place, node_id))
            with suppress(PeerError):  # it is gone already, or the next check finds it again
                access.run(place, "CLUSTER", "FORGET", node_id)


def _typed(pair: ListedNode) -> str:
    place, node_id = pair
    return f"  {typed_command(place, 'CLUSTER', 'FORGET', node_id)}"


# Remove.


def remove(
    access: Access, address: Address, shutdown: bool, force: bool, timeout_s: float | None, printer: EventPrinter
) -> int:
    """Drain a node, remove it from the cluster, and reset it."""
    view = view_cluster(access, address)
    node_id = view.members[0].id
    if len(view.members) == 1:
        raise OperatorError(f"{address} is not in a cluster.")
    _check_all_answer(view, force, printer)
    code = drain(access, address, printer, timeout_s)
    if code:
        return code
    view = view_cluster(access, address)
    _check_all_answer(view, force, printer)
    _forget_everywhere(access, view, view.members[0], printer)
    _reset(access, address, printer)
    back = [one.name for one in _listing(access, view, node_id)]
    if back:
        raise OperatorError(f"{address} is reset, but {', '.join(back)} list it again: run `penstock cluster forget`.")
    if shutdown:
        _shut_down(access, address)
    ending = " and has stopped" if shutdown else ""
    printer.event("removed", f"{address} is removed from the cluster{ending}.", address=str(address), id=node_id)
    return 0


def _check_all_answer(view: View, force: bool, printer: EventPrinter) -> None:
    for member in view.silent:
        text = f"{member.name} can't be asked ({member.problem}), and would bring the node back when it returns"
        if not force:
            raise OperatorError(
                f"{text}.\nStart it, or if it is gone for good: penstock cluster forget {member.id[:SHORT_ID]} "
                f"--from {view.asked}. Or use --force."
            )
        printer.warning(f"{text}: repeat `penstock cluster forget` then.")


def _others(view: View, node_id: str) -> dict[Address, Member]:
    """Return the nodes that answer, without one, by where to connect to them."""
    return {member.place: member for member in view.answering if member.id != node_id and member.place is not None}


def _forget_everywhere(access: Access, view: View, gone: Member, printer: EventPrinter) -> None:
    """Make all nodes forget one, at the same time, until none of them lists it."""
    places = _others(view, gone.id)
    deadline = time.monotonic() + FORGET_SECONDS
    while True:
        at_each(lambda place: _forget_at(access, place, gone), places)
        listing = _listing(access, view, gone.id)
        if not listing:
            break
        if time.monotonic() > deadline:
            names = ", ".join(member.name for member in listing)
            raise OperatorError(f"{names} still list {gone.name}. No job is lost: run this again.")
        time.sleep(POLL_SECONDS)
    told = [member.name for member in places.values()]
    printer.event(
        "forgotten", f"Forgotten by {', '.join(told) or 'nobody: no other node answers'}.", id=gone.id, by=told
    )


def _forget_at(access: Access, place: Address, gone: Member) -> None:
    try:
        access.run(place, "CLUSTER", "FORGET", gone.id)
    except PeerError as error:
        if "Unknown node" not in str(error):
            raise


def _listing(access: Access, view: View, node_id: str) -> list[Member]:
    """Return the members that still list a node, or can't be asked now."""
    places = _others(view, node_id)
    answers = at_each(lambda place: ask(access, place), places)
    return [
        places[place] for place, answer in answers.items() if isinstance(answer, PeerError) or node_id in answer.lines
    ]


def _reset(access: Access, address: Address, printer: EventPrinter) -> None:
    """Reset a node that all others have forgotten. It must have no jobs."""
    link = access.open(address)
    try:
        deadline = time.monotonic() + SETTLE_SECONDS
        while (held := report_of(link).jobs) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if held:
            raise OperatorError(
                f"{address} has {table.jobs(held)} again, so it is not reset: they were added after it was empty. The "
                "others have forgotten it. Add it again (penstock cluster add), and remove it once more."
            )
        execute(link, "CLUSTER", "RESET")
        execute(link, "CLUSTER", "LEAVING", "no")  # or it would get no jobs in the next cluster that it joins
    finally:
        link.close()
    printer.event("reset", f"{address} is reset, and empty.", address=str(address))


def _shut_down(access: Access, address: Address) -> None:
    link = access.open(address)
    try:
        link.execute("SHUTDOWN")
    except ConnectionLost:  # what SHUTDOWN answers
        return
    finally:
        link.close()
    raise OperatorError(f"{address} is removed from the cluster, but does not stop.")


# Forget.


def forget(access: Access, name: str, at: Address, force: bool, printer: EventPrinter) -> int:
    """Make all nodes of a cluster forget a dead one."""
    view = view_cluster(access, at)
    gone = find(view, name)
    if gone.id == view.members[0].id:
        raise CallerError(f"--from must be another node than the one to forget, got {name} for both")
    if not force:
        _check_dead(access, view, gone, printer)
    _forget_everywhere(access, view, gone, printer)
    for member in view.silent:
        if member.id != gone.id:
            printer.warning(f"{member.name} could not be reached ({member.problem}). Repeat this when it is back.")
    sentence = f"{gone.name} is removed from the cluster. Jobs that only it has come back if it is added again."
    printer.event("removed", sentence, id=gone.id)
    return 0


def find(view: View, name: str) -> Member:
    """Return the node with an address or the beginning of an id. Raises CallerError if none matches, or several."""
    prefix = name.lower() if len(name) >= SHORT_ID_MIN else "-"  # no id begins with it
    found = [one for one in view.members if one.id.startswith(prefix) or one.address == parse_address(name)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{member.id[:SHORT_ID]} ({member.name})" for member in view.members)
    fitting = "several of them" if found else "none of them"
    raise CallerError(
        f"NODE must be the address, or the beginning of the id, of one of {known}, got {name!r}: it fits {fitting}."
    )


def _check_dead(access: Access, view: View, gone: Member, printer: EventPrinter) -> None:
    """Refuse to forget a live node; wait a while until the others have marked it as failed."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    is_told = False
    while True:
        member = next((one for one in view.members if one.id == gone.id), None)
        if member is None:
            return  # all have forgotten it meanwhile
        if member.report is not None:
            raise OperatorError(
                f"{member.name} is alive: if it were forgotten, its jobs would be left behind.\nUse "
                f"penstock cluster remove {member.name}, or --force."
            )
        found = opinions(view, gone.id)
        hopeful = [other.name for other in found.get(FINE, []) + found.get(NO_LINK, [])]
        if not hopeful:
            return
        if time.monotonic() > deadline:
            raise OperatorError(
                f"{member.name} doesn't answer ({member.problem}), but {', '.join(hopeful)} have not marked it as "
                "failed. If it is really gone, use --force."
            )
        if not is_told:
            is_told = True
            printer.event("waiting", f"Waiting until the others have marked {member.name} as failed.", id=member.id)
        time.sleep(POLL_SECONDS)
        view = view_cluster(access, view.asked)
