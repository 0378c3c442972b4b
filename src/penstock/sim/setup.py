"""What a run is like, drawn from its seed: how many nodes, which journal, how patient they are, and when it heals."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

FIRST_FAULT_MS = 15_000
HEAL_MS = 280_000
END_MS = 600_000
WAVE_MS = 30_000  # how long producers are at work again after everything has drained
POLICIES = (("always", 35), ("everysec", 25), ("no", 15), ("off", 15), ("mixed", 10))
NODES = ((3, 42), (4, 22), (5, 22), (6, 7), (7, 7))
TIMEOUTS_MS = (3000, 5000, 8000, 12_000)
NODES_MAX = 7
RETRY_S_MAX = 10
DRAIN_EXTRA_MS = 30_000


class Setup(NamedTuple):
    """The fixed conditions of a run."""

    seed: int
    nodes: int
    policies: tuple[str, ...]  # of the first nodes, and for those that come later
    node_timeout_ms: int
    cron_ms: int
    turn_us: int
    is_formed: bool  # the nodes know each other from the start
    producers: int
    consumers: int

    @property
    def drain_ms(self) -> int:
        """How long queues may take to drain after the faults end (P6)."""
        return RETRY_S_MAX * 1000 + 2 * self.node_timeout_ms + DRAIN_EXTRA_MS


def weighted(random: Random, table: tuple[tuple[object, int], ...]) -> object:
    """Choose from a table of values and weights."""
    at = int(random.random() * sum(weight for _, weight in table))
    for value, weight in table:
        at -= weight
        if at < 0:
            return value
    raise AssertionError


def draw_setup(seed: int) -> Setup:
    """Draw a setup."""
    random = Random(f"{seed} setup")
    nodes = int(str(weighted(random, NODES)))
    policy = str(weighted(random, POLICIES))
    policies = [policy] * NODES_MAX
    if policy == "mixed":
        policies = [("always", "everysec", "no", "off")[int(random.random() * 4)] for _ in range(NODES_MAX)]
    return Setup(
        seed,
        nodes,
        tuple(policies),
        TIMEOUTS_MS[int(random.random() * 4)],
        cron_ms=200,
        turn_us=(0, 0, 300, 2000)[int(random.random() * 4)],
        is_formed=random.random() < 0.7,
        producers=2 + int(random.random() * 3),
        consumers=4 + int(random.random() * 3),
    )
