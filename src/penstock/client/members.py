"""Which nodes there are, and which to try next. No I/O: it is told what HELLO said and what failed.

A candidate is an address: that of a node which HELLO named, or a seed that isn't known to be one of these. They are
tried in the order of `rank`: those without trouble first, then by priority (the lower the better), and by chance where
that is the same. Nodes are remembered, so that a client finds its way back when all the seeds are gone.
"""

import random
from collections.abc import Callable, Collection, Sequence

from penstock.client.addresses import Address
from penstock.client.values import Hello, Node
from penstock.errors import PeerError

# From here on HELLO doubts that a node is alive; 100 is one that has failed or leaves, used only if there is no other.
PRIORITY_DOUBTFUL = 10
# A seed of which nothing is known: worse than nodes that are known to be well, better than one that leaves.
PRIORITY_SEED = 50
# A node that failed or refused is put behind the others for this long.
TROUBLE_SECONDS = 10.0
# Addresses of nodes that HELLO has named at some time; more than any cluster has.
ADDRESSES_MAX = 10_000

Rank = tuple[bool, int]


class Members:
    """Nodes and seeds. `translate` gives the address by which clients reach what HELLO calls so."""

    def __init__(
        self,
        seeds: Sequence[Address],
        chance: random.Random,
        translate: Callable[[str, int], tuple[str, int]] | None = None,
    ) -> None:
        self.chance = chance
        self._seeds = seeds
        self._translate = translate
        self._nodes: dict[str, Node] = {}
        self._reached: dict[str, Address] = {}  # by node: where it has answered us
        self._told: dict[str, Address] = {}  # by node: where others say it is
        self._troubles: dict[Address, tuple[float, PeerError]] = {}  # since when, and what it was

    @property
    def nodes(self) -> list[Node]:
        """All nodes of the last HELLO."""
        return list(self._nodes.values())

    def learn(self, hello: Hello, address: Address) -> None:
        """Take in what a node said that answers at this address."""
        for places in (self._reached, self._told):
            if len(places) > ADDRESSES_MAX:
                places.clear()
        self._nodes = {node.id: node for node in hello.nodes}
        for node in hello.nodes:
            if node.host and node.port:
                host, port = self._translate(node.host, node.port) if self._translate else (node.host, node.port)
                self._told[node.id] = Address(host, port)
        self._reached[hello.node] = address

    def address_of(self, node_id: str, now: float) -> Address | None:
        """Where a node is: where it has answered, or if that has failed, where others say it is."""
        reached, told = self._reached.get(node_id), self._told.get(node_id)
        if reached is None or (told is not None and self.in_trouble(reached, now)):
            return told
        return reached

    def in_trouble(self, address: Address, now: float) -> bool:
        """Whether it failed or refused a short while ago."""
        return self.trouble_since(address, now - TROUBLE_SECONDS) is not None

    def trouble_since(self, address: Address, then: float) -> PeerError | None:
        """How it has failed or refused since then."""
        since, problem = self._troubles.get(address, (then, None))
        return problem if since > then else None

    def avoid(self, address: Address, now: float, problem: PeerError) -> None:
        """Put an address behind the others for a while."""
        if len(self._troubles) > ADDRESSES_MAX:
            self._troubles.clear()
        self._troubles[address] = (now, problem)

    def forgive(self, address: Address) -> None:
        """It has answered."""
        self._troubles.pop(address, None)

    def rank(self, address: Address, now: float) -> Rank:
        """How good a choice an address is; the lowest is best."""
        priorities = [node.priority for node in self.nodes if self.address_of(node.id, now) == address]
        return self.in_trouble(address, now), min(priorities, default=PRIORITY_SEED)

    def next(self, tried: Collection[Address], now: float, favourite: Address | None = None) -> Address | None:
        """The best address that was not tried: the favourite if it is one of the best, else any of them."""
        known = [address for node in self._nodes if (address := self.address_of(node, now)) is not None]
        ranks = {address: self.rank(address, now) for address in [*known, *self._seeds] if address not in tried}
        if not ranks:
            return None
        best = min(ranks.values())
        choice = [address for address, rank in ranks.items() if rank == best]
        return favourite if favourite in choice else self.chance.choice(choice)

    def is_well(self, node_id: str, now: float) -> bool:
        """Whether a node may be moved to."""
        node, address = self._nodes.get(node_id), self.address_of(node_id, now)
        return (
            node is not None
            and address is not None
            and node.priority < PRIORITY_DOUBTFUL
            and not self.in_trouble(address, now)
        )

    def by_prefix(self, prefix: str) -> str | None:
        """The node whose id begins so; None if there is none, or more than one."""
        found = [node for node in self._nodes if node.startswith(prefix)]
        return found[0] if len(found) == 1 else None
