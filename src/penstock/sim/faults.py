"""The faults of a run as they happen: those to come, under way, and over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.sim.fault_kinds import ALL, KINDS, NOBODY
from penstock.sim.plan import Fault, Plan
from penstock.sim.timeline import MS

if TYPE_CHECKING:
    from penstock.sim.world import World


class Span:
    """A fault as it happens."""

    __slots__ = ("before", "begun_us", "disturbs", "ended_us", "fault", "state")

    def __init__(self, fault: Fault, begun_us: int, before: list[int]) -> None:
        self.before = before  # the counts of what was reached then
        self.fault = fault
        self.begun_us = begun_us
        self.ended_us = 0
        self.state: Any = None
        self.disturbs = KINDS[fault.kind].disturbs


class Faults:
    """All faults of a run: those to come, under way, and over."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self.spans: list[Span] = []
        self.active: list[Span] = []
        for fault in plan:
            world.timeline.at(fault.at_ms * MS, self._begin, fault)

    def _begin(self, fault: Fault) -> None:
        world = self._world
        span = Span(fault, world.timeline.now_us, world.coverage.snapshot())
        self.spans.append(span)
        self.active.append(span)
        world.say(f"fault begins: {fault}")
        span.state = KINDS[fault.kind].begin(world, fault)
        world.timeline.after(fault.length_ms * MS, self._end, span)

    def _end(self, span: Span) -> None:
        if span.ended_us:
            return
        self._world.say(f"fault ends: {span.fault}")
        KINDS[span.fault.kind].end(self._world, span.fault, span.state)
        span.ended_us = self._world.timeline.now_us
        self.active.remove(span)
        self._world.coverage.lasted(span.fault.kind, span.before)

    def heal(self) -> None:
        """End everything that is still under way."""
        for span in list(self.active):
            self._end(span)

    def paused(self) -> list[bytes]:
        """Return the queues that are paused now."""
        return [span.state for span in self.active if span.fault.kind == "pause"]

    def drained(self, index: int, since_us: int) -> bool:
        """Whether a machine was to hand its jobs over at any time since."""
        return any(
            span.fault.kind.startswith("drain")
            and span.state.index == index
            and (not span.ended_us or span.ended_us >= since_us)
            for span in self.spans
        )

    def untouched(self, since_us: int) -> list[int]:
        """Return the machines without a fault since a time; none, if a fault concerned all of them."""
        touched: set[int] = set()
        for span in self.spans:
            if span.ended_us and span.ended_us < since_us:
                continue
            kind = KINDS[span.fault.kind]
            if kind.concerns == NOBODY:
                continue
            if kind.concerns == ALL or not span.fault.who:
                return []
            touched.add(span.fault.who[0] % len(self._world.machines))
        return [machine.index for machine in self._world.machines if machine.index not in touched]

    def between(self, since_us: int, until_us: int, kinds: tuple[str, ...]) -> str:
        """Name a fault that was there between two times and disturbs one of these; empty if there was none."""
        for span in reversed(self.spans):
            if span.begun_us <= until_us and (not span.ended_us or span.ended_us >= since_us):
                if any(kind in kinds for kind in span.disturbs):
                    return span.fault.kind
        return ""
