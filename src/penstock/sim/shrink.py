"""Shrinking: from a plan that breaks a promise to the fewest of its faults that still do (delta debugging)."""

from __future__ import annotations

from collections.abc import Callable

from penstock.sim.plan import Plan
from penstock.sim.run import simulate

Breaks = Callable[[Plan], bool]


def shrink(plan: Plan, breaks: Breaks) -> Plan:
    """Leave out faults, in ever smaller parts, as long as what is left still breaks."""
    if breaks(()):
        return ()
    parts = 2
    while len(plan) > 1:
        size = -(-len(plan) // parts)
        for at in range(0, len(plan), size):
            rest = plan[:at] + plan[at + size :]
            if breaks(rest):
                plan = rest
                parts = max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(plan), 2 * parts)
    return plan


def shrink_seed(seed: int, plan: Plan, promise: str, movers: int = 0, retry_s: int = 0) -> Plan:
    """Find the fewest faults with which a seed still breaks the same promise."""

    def breaks(candidate: Plan) -> bool:
        result = simulate(seed, candidate, movers=movers, retry_s=retry_s)
        return any(violation.promise == promise for violation in result.violations)

    return shrink(plan, breaks)
