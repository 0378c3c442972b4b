"""Which nodes keep a key: a numbered list of members, and three homes for each key among them.

Homes are chosen by rendezvous hashing: each member has a rank for each key, and the highest three are its homes. So a
member that joins or leaves changes the homes of those keys only that it takes or gives up.

A member has an incarnation. A node that has lost what it promised comes back as another member: with the same id, and
a new incarnation in a later configuration.

A configuration also lists the members of the one before it, since a new home asks those for its keys, and those of
them that will never come back.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

HOMES: Final = 3  # of a key: with two of them a key can be taken; five would cost twice as many votes
CACHED_KEYS_MAX: Final = 4096  # whose homes are remembered


class Configuration:
    """One configuration. It never changes."""

    __slots__ = ("_former_homes", "_homes", "former", "gone", "members", "number")

    def __init__(
        self,
        number: int,
        members: dict[bytes, int],
        former: dict[bytes, int] | None = None,
        gone: frozenset[bytes] = frozenset(),
    ) -> None:
        self.number = number
        self.members = members  # node id: incarnation
        self.former = former or {}  # the same of the configuration before
        self.gone = gone  # of those, nodes that will never come back
        self._homes: dict[bytes, tuple[bytes, ...]] = {}
        self._former_homes: dict[bytes, tuple[bytes, ...]] = {}

    def homes(self, key: bytes) -> tuple[bytes, ...]:
        """Return the homes of a key, the first by rank first."""
        return _chosen(self._homes, self.members, key)

    def former_homes(self, key: bytes) -> tuple[bytes, ...]:
        """Return the homes that a key had in the configuration before."""
        return _chosen(self._former_homes, self.former, key)

    def next(self, members: dict[bytes, int], gone: frozenset[bytes]) -> Configuration:
        """Return a configuration that may follow."""
        return Configuration(self.number + 1, members, self.members, gone & self.members.keys())

    def may_become(self, members: dict[bytes, int]) -> bool:
        """Whether each majority of new homes has a home in common with each majority of the former ones."""
        before, after = homes_of(len(self.members)), homes_of(len(members))
        return after > 0 and majority(before) + majority(after) > before


def homes_of(members: int) -> int:
    """Return how many homes a key has among as many members."""
    return min(members, HOMES)


def majority(count: int) -> int:
    """Return how many are more than half."""
    return count // 2 + 1


def _chosen(cache: dict[bytes, tuple[bytes, ...]], members: dict[bytes, int], key: bytes) -> tuple[bytes, ...]:
    homes = cache.get(key)
    if homes is None:
        if len(cache) >= CACHED_KEYS_MAX:
            cache.clear()
        ranked = sorted(members, key=lambda node_id: blake2b(key, digest_size=8, key=node_id[:64]).digest())
        homes = cache[key] = tuple(ranked[:HOMES])
    return homes
