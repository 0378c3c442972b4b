"""What a run is like, drawn from its seed: the setup and the plan of its faults.

The setup says how many nodes there are, how each writes its journal, the node timeout, and how many clients there are.

The plan says which faults happen, when, for how long, and to which machines. It is plain data that can be printed,
passed in and shrunk:

    kill@31.2+4.5:2             from 31.2 s on for 4.5 s, machine 2
    loss@50+20=30               30 % of all messages
    halves@80+15:0.3=1          machines 0 and 3 on one side; 1: what is sent meanwhile arrives late

A plan is a list of such faults, separated by commas. What each kind of fault does is in `fault_kinds.py`.
"""

from __future__ import annotations

import re
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
_WORD = re.compile(r"([a-z-]+)@(\d+(?:\.\d+)?)\+(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)*))?(?:=(-?\d+))?")


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
    retry_s: int = 0  # of all jobs; 0: drawn for each

    @property
    def drain_ms(self) -> int:
        """How long queues may take to drain after the faults end (P6)."""
        return max(RETRY_S_MAX, self.retry_s) * 1000 + 2 * self.node_timeout_ms + DRAIN_EXTRA_MS


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


class PlanError(ValueError):
    """A text that is not a valid plan."""


class Fault(NamedTuple):
    """One fault."""

    at_ms: int
    length_ms: int
    kind: str
    who: tuple[int, ...] = ()
    value: int = 0

    def __str__(self) -> str:
        who = ":" + ".".join(map(str, self.who)) if self.who else ""
        value = f"={self.value}" if self.value else ""
        return f"{self.kind}@{self.at_ms / 1000:g}+{self.length_ms / 1000:g}{who}{value}"


Plan = tuple[Fault, ...]


def plan_text(plan: Plan) -> str:
    """Return a plan as text."""
    return ",".join(map(str, plan))


def plan_from_text(text: str) -> Plan:
    """Read a plan."""
    faults = []
    for word in filter(None, text.split(",")):
        found = _WORD.fullmatch(word.strip())
        if found is None:
            raise PlanError(f"a fault must look like kill@31.2+4.5:2 (see penstock.sim.plan), got {word!r}")
        kind, at, length, who, value = found.groups()
        members = tuple(map(int, who.split("."))) if who else ()
        at_ms, length_ms = round(float(at) * 1000), round(float(length) * 1000)
        faults.append(Fault(at_ms, length_ms, kind, members, int(value or 0)))
    return tuple(faults)
