"""The known nodes, and which to try next. No I/O: it gets replies to HELLO and failures from its caller.

A candidate is an address: that of a node which HELLO named, or a seed that isn't known to be one of these. They are
tried in the order of `rank`: those without a recent failure first, then by priority (the lower the better), and at
random where that is equal. Nodes are remembered, so that a client finds the cluster when all the seeds are gone.
"""

import random
from collections.abc import Callable, Collection, Sequence

from penstock.client.addresses import Address
from penstock.client.values import Hello, Node
from penstock.errors import PeerError

# From here on a node may be dead, by HELLO; 100 is one that has failed or leaves, used only if there is no other.
PRIORITY_DOUBTFUL = 10
# A seed of which nothing is known: worse than nodes that are known to be healthy, better than one that leaves.
PRIORITY_SEED = 50
# A node that failed or refused is tried after the others for this long.
FAILURE_SECONDS = 10.0
# Addresses of nodes that HELLO has named at some time; more than any cluster has.
ADDRESSES_MAX = 10_000

Rank = tuple[bool, int]


class Members:
    """Nodes and seeds. `translate` returns the address by which clients reach the one that HELLO has."""

    def __init__(
        self,
        seeds: Sequence[Address],
        randomness: random.Random,
        translate: Callable[[str, int], tuple[str, int]] | None = None,
    ) -> None:
        self.randomness = randomness
        self._seeds = seeds
        self._translate = translate
        self._nodes: dict[str, Node] = {}
        self._reached: dict[str, Address] = {}  # by node: where it has answered this client
        self._announced: dict[str, Address] = {}  # by node: where other nodes say it is
        self._failures: dict[Address, tuple[float, PeerError]] = {}  # when, and what it was

    @property
    def nodes(self) -> list[Node]:
        """All nodes of the last HELLO."""
        return list(self._nodes.values())

    def learn(self, hello: Hello, address: Address) -> None:
        """Take in the HELLO of the node that answers at this address."""
        for places in (self._reached, self._announced):
            if len(places) > ADDRESSES_MAX:
                places.clear()
        self._nodes = {node.id: node for node in hello.nodes}
        for node in hello.nodes:
            if node.host and node.port:
                host, port = self._translate(node.host, node.port) if self._translate else (node.host, node.port)
                self._announced[node.id] = Address(host, port)
        self._reached[hello.node] = address

    def address_of(self, node_id: str, now: float) -> Address | None:
        """Return the address of a node: where it has answered, or if that has failed, where others say it is."""
        reached, announced = self._reached.get(node_id), self._announced.get(node_id)
        if reached is None or (announced is not None and self.has_failed(reached, now)):
            return announced
        return reached

    def has_failed(self, address: Address, now: float) -> bool:
        """Whether it failed or refused a short while ago."""
        return self.failure_since(address, now - FAILURE_SECONDS) is not None

    def failure_since(self, address: Address, then: float) -> PeerError | None:
        """Return how it has failed or refused since then."""
        since, problem = self._failures.get(address, (then, None))
        return problem if since > then else None

    def record_failure(self, address: Address, now: float, problem: PeerError) -> None:
        """Try an address after the others for a while."""
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.clear()
        self._failures[address] = (now, problem)

    def clear_failure(self, address: Address) -> None:
        """It has answered."""
        self._failures.pop(address, None)

    def rank(self, address: Address, now: float) -> Rank:
        """Return how good a choice an address is; the lowest is best."""
        priorities = [node.priority for node in self.nodes if self.address_of(node.id, now) == address]
        return self.has_failed(address, now), min(priorities, default=PRIORITY_SEED)

    def next(self, tried: Collection[Address], now: float, preferred: Address | None = None) -> Address | None:
        """Return the best address that was not tried: the preferred one if it is among the best, else any of them."""
        known = [address for node in self._nodes if (address := self.address_of(node, now)) is not None]
        ranks = {address: self.rank(address, now) for address in [*known, *self._seeds] if address not in tried}
        if not ranks:
            return None
        best = min(ranks.values())
        choice = [address for address, rank in ranks.items() if rank == best]
        return preferred if preferred in choice else self.randomness.choice(choice)

    def is_healthy(self, node_id: str, now: float) -> bool:
        """Whether a node may be moved to."""
        node, address = self._nodes.get(node_id), self.address_of(node_id, now)
        return (
            node is not None
            and address is not None
            and node.priority < PRIORITY_DOUBTFUL
            and not self.has_failed(address, now)
        )

    def by_prefix(self, prefix: str) -> str | None:
        """Return the node whose id begins with this; None for no node, or more than one."""
        found = [node for node in self._nodes if node.startswith(prefix)]
        return found[0] if len(found) == 1 else None
