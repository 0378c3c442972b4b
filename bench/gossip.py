"""What gossip costs, and how fast it tells, in clusters of 10, 30 and 100 nodes: `python -m bench.gossip`.

All nodes are simulated in this process on a virtual clock (`bench.gossip_world`), so that times are those of the
protocol: no machine is slow, no message is lost, and a busy machine changes nothing but the column of processor time.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from bench.gossip_world import KILLED, SILENT, Machine, World
from bench.report import Progress, command_used, document, machine, options
from bench.table import Table

SIZES = (10, 30, 100)
QUICK_SIZES = (5, 10)
NODE_TIMEOUTS_MS = (15_000, 3_000)
STEADY_TIMEOUTS = 2  # node timeouts that are counted: in each, every node pings every other one twice
QUICK_ROUNDS_MAX = 1
NEVER = "never"
PHASE_TIMEOUTS_MAX = 20  # node timeouts; what takes longer doesn't happen


@dataclass(frozen=True)
class Setup:
    """One row: a cluster of a size, with a node timeout."""

    nodes: int
    node_timeout_ms: int

    @property
    def name(self) -> str:
        """The row's name."""
        return f"{self.nodes} nodes, node timeout {self.node_timeout_ms / 1000:g} s"


@dataclass(frozen=True)
class Outcome:
    """One simulation. Rates are a node's, of what it sends; times are in seconds, and inf for what never happened."""

    messages_per_s: float
    bytes_per_s: float
    cpu_ms_per_s: float
    known_s: float
    killed_suspected_s: float
    killed_failed_s: float
    silent_suspected_s: float
    silent_failed_s: float
    back_s: float


HEADS = {
    "messages_per_s": "messages/s a node sends",
    "bytes_per_s": "bytes/s a node sends",
    "cpu_ms_per_s": "cpu ms/s a node, with the simulator",
    "known_s": "new node known everywhere after MEET",
    "killed_suspected_s": "killed: `fail?` everywhere",
    "killed_failed_s": "killed: `fail` everywhere",
    "silent_suspected_s": "silent: `fail?` everywhere",
    "silent_failed_s": "silent: `fail` everywhere",
    "back_s": "back: well everywhere",
}


def simulate(setup: Setup, seed: int) -> Outcome:
    """A life of a cluster: the last node joins, time passes, one falls silent and comes back, another is killed."""
    world = World(seed, setup.node_timeout_ms)
    world.add_cluster(setup.nodes - 1)
    limit_ms = PHASE_TIMEOUTS_MAX * setup.node_timeout_ms
    world.run_until(lambda: _all_linked(world), limit_ms)
    world.run(setup.node_timeout_ms)

    new = world.add_machine(phase_ms=1.0)
    world.meet(new, world.machines[0])
    known_ms = world.run_until(lambda: _is_known(world, new), limit_ms)
    world.run(setup.node_timeout_ms)

    rates = _steady(world, STEADY_TIMEOUTS * setup.node_timeout_ms)
    silent_ms = _detect(world, world.machines[1], SILENT, limit_ms)
    world.revive(world.machines[1])
    back_ms = world.run_until(lambda: _all_linked(world), limit_ms)
    world.run(setup.node_timeout_ms)
    killed_ms = _detect(world, world.machines[2], KILLED, limit_ms)
    times = (known_ms, *killed_ms, *silent_ms, back_ms)
    return Outcome(*rates, *(ms / 1000 for ms in times))


def _steady(world: World, duration_ms: int) -> tuple[float, float, float]:
    """What a node sends in a second while nothing happens, and the milliseconds of processor time for it."""
    messages, sent, begin_s = world.messages_sent(), world.bytes_sent(), time.process_time()
    world.run(duration_ms)
    spent_ms = (time.process_time() - begin_s) * 1000
    share = len(world.machines) * duration_ms / 1000
    return (world.messages_sent() - messages) / share, (world.bytes_sent() - sent) / share, spent_ms / share


def _detect(world: World, victim: Machine, state: str, limit_ms: float) -> tuple[float, float]:
    """How long it takes until all others suspect a machine that ends, and until all of them take it for failed."""
    world.end(victim, state)
    others = list(world.up())
    suspected_ms = world.run_until(lambda: all(other.suspects(victim) for other in others), limit_ms)
    return suspected_ms, suspected_ms + world.run_until(lambda: all(o.condemns(victim) for o in others), limit_ms)


def _is_known(world: World, new: Machine) -> bool:
    others = [other for other in world.machines if other is not new]
    return all(other.knows(new) and new.knows(other) for other in others)


def _all_linked(world: World) -> bool:
    up = list(world.up())
    return all(one.is_linked_to(other) for one in up for other in up if one is not other)


def cells(setup: Setup, outcomes: Sequence[Outcome]) -> list[str]:
    """A row of the table: medians, with the least and the greatest where there are several."""
    row = [setup.name]
    for one in fields(Outcome):
        samples = [getattr(outcome, one.name) for outcome in outcomes]
        unit = " s" if one.name.endswith("_s") and "_per_" not in one.name else ""
        middle = _number(statistics.median(samples))
        middle += unit if middle != NEVER else ""
        spread = f" ({_number(min(samples))}..{_number(max(samples))})" if len(samples) > 1 else ""
        row.append(middle + spread)
    return row


def _number(value: float) -> str:
    if math.isinf(value):
        return NEVER
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def main() -> None:
    """Simulates the chosen rows and shows them."""
    parser = options("Cost and speed of gossip, simulated.")
    parser.set_defaults(rounds=3)
    chosen = parser.parse_args()
    sizes = QUICK_SIZES if chosen.quick else SIZES
    setups = [Setup(nodes, timeout_ms) for timeout_ms in NODE_TIMEOUTS_MS for nodes in sizes]
    setups = [setup for setup in setups if re.search(chosen.only, setup.name, re.IGNORECASE)]
    rounds = min(chosen.rounds, QUICK_ROUNDS_MAX) if chosen.quick else chosen.rounds
    facts = {name: value for name, value in machine(chosen.penstock).items() if name not in ("redis", "beanstalkd")}
    progress = Progress(len(setups) * rounds)
    outcomes: dict[Setup, list[Outcome]] = {setup: [] for setup in setups}
    for seed in range(rounds):
        for setup in setups:
            progress.step(f"{setup.name}, seed {seed}")
            outcomes[setup].append(simulate(setup, seed))
    progress.end()
    heads = ["", *(HEADS[one.name] for one in fields(Outcome))]
    rows = [cells(setup, outcomes[setup]) for setup in setups]
    table = Table(f"Gossip, simulated, median of {rounds} seeds{', quick' if chosen.quick else ''}", heads, rows)
    footer = [f"{name}: {value}" for name, value in facts.items()]
    table.show(footer)
    if chosen.markdown:
        chosen.markdown.write_text(document(table, command_used("bench.gossip"), footer))
    if chosen.json:
        found = [{"name": setup.name, "samples": [asdict(one) for one in outcomes[setup]]} for setup in setups]
        chosen.json.write_text(json.dumps({"machine": facts, "rows": found}, indent=1))


if __name__ == "__main__":
    main()
