"""An introduction that failed is taken back: `penstock cluster add` leaves a cluster as it was, or says what to do.

A node that lists one which it can't use counts on it for copies, and refuses jobs. So each side is told to forget the
other, until nobody lists anybody of it in two looks in a row: a handshake that was under way may end after the first.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import NamedTuple

from penstock.cli.cluster_access import Access, everybody
from penstock.cli.cluster_drain import command
from penstock.cli.cluster_view import Report, View, ask
from penstock.client.addresses import Address
from penstock.errors import PeerError

POLL_SECONDS = 0.25
FORGET_SECONDS = 15.0  # what is under way by then doesn't end by itself
QUIET_LOOKS = 2

DONE = "The nodes have forgotten each other again: the cluster is as it was before."
LEFT = "The cluster may refuse jobs until these nodes have forgotten each other again. Undo it with:"
SILENT = "Some don't answer. When they do, let them forget, too:"

Pair = tuple[Address, str]  # a node, and the id that it shall forget


class Side(NamedTuple):
    """Nodes of one side, and those of the other side that they shall not know."""

    places: list[Address]
    ids: set[str]
    addresses: set[Address]

    def unwanted(self, report: Report) -> list[str]:
        """Ids under which a node lists the other side, handshakes included."""
        return [
            line.id
            for line in report.lines.values()
            if line.id in self.ids or ("handshake" in line.flags and Address(line.host, line.port) in self.addresses)
        ]


def undo(access: Access, cluster: View, joining: View, met: Address) -> str:
    """Let two sides forget each other, the second of which was met at an address; gives what to say about it."""
    sides = [_side(cluster, joining, met), _side(joining, cluster)]
    deadline = time.monotonic() + FORGET_SECONDS
    quiet = 0
    while True:
        listed: list[Pair] = []
        silent: list[Pair] = []
        for side in sides:
            _forget(access, side, listed, silent)
        quiet = 0 if listed else quiet + 1
        if quiet == QUIET_LOOKS or (listed and time.monotonic() > deadline):
            break
        time.sleep(POLL_SECONDS)
    said = [LEFT, *map(_typed, listed)] if listed else [DONE]
    return "\n".join([*said, SILENT, *map(_typed, silent)] if silent else said)


def _side(here: View, there: View, *addresses: Address) -> Side:
    ours, theirs = ({member.id for member in view.members} for view in (here, there))
    places = [member.place for member in here.members if member.id not in theirs and member.place is not None]
    told = {member.address for member in there.members if member.address is not None}
    return Side(places, theirs - ours, told | set(addresses))


def _forget(access: Access, side: Side, listed: list[Pair], silent: list[Pair]) -> None:
    """Ask nodes whom they list, and tell them to forget; adds what there was to forget, or may be."""
    for place, report in everybody(lambda place: ask(access, place), side.places).items():
        if isinstance(report, PeerError):
            silent += [(place, node_id) for node_id in sorted(side.ids)]
            continue
        for node_id in side.unwanted(report):
            listed.append((place, node_id))
            with suppress(PeerError):  # it is gone already, or the next look finds it again
                access.run(place, "CLUSTER", "FORGET", node_id)


def _typed(pair: Pair) -> str:
    place, node_id = pair
    return f"  {command(place, 'CLUSTER', 'FORGET', node_id)}"
