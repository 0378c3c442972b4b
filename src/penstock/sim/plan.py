"""The plan of a run: which faults, when, how long, and to whom. Plain data that can be printed, passed in and shrunk.

    kill@31.2+4.5:2             from 31.2 s on for 4.5 s, machine 2
    loss@50+20=30               30 % of all messages
    halves@80+15:0.3=1          machines 0 and 3 on one side; 1: what is sent meanwhile arrives late

A plan is such words with commas between. What each kind means is the table in `faults.py`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_WORD = re.compile(r"([a-z-]+)@(\d+(?:\.\d+)?)\+(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)*))?(?:=(-?\d+))?")


class PlanError(ValueError):
    """A text that is no plan."""


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
    """Give a plan as text."""
    return ",".join(map(str, plan))


def plan_from_text(text: str) -> Plan:
    """Read a plan."""
    faults = []
    for word in filter(None, text.split(",")):
        found = _WORD.fullmatch(word.strip())
        if found is None:
            raise PlanError(f"{word!r} is no fault: it should look like kill@31.2+4.5:2, see penstock.sim.plan")
        kind, at, length, who, value = found.groups()
        members = tuple(map(int, who.split("."))) if who else ()
        at_ms, length_ms = round(float(at) * 1000), round(float(length) * 1000)
        faults.append(Fault(at_ms, length_ms, kind, members, int(value or 0)))
    return tuple(faults)
