"""The kinds of faults: a table of what each does when it begins and when it ends, and how one is drawn from a seed.

What `who` and `value` mean depends on the kind, see the functions. A fault whose machine is not in a state for it
(already down, for example) does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.sim.disk import Keep, SimDisk
from penstock.sim.machine import EVEN, OFF, Machine
from penstock.sim.network import Rule
from penstock.sim.plan import FIRST_FAULT_MS, HEAL_MS, NODES_MAX, Fault, Plan, Setup, weighted
from penstock.sim.timeline import MS

if TYPE_CHECKING:
    from penstock.sim.world import World

ALL, NOBODY = "all", "nobody"
KEEPS: Final[tuple[Keep, ...]] = ("none", "some", "torn", "zeros", "all")
LOW_MEMORY_BYTES: Final = 120_000  # an empty node accounts for 100,000
HIGH_MEMORY_BYTES: Final = 1 << 30
FAULTS_LEAST: Final = 10
FAULTS_MOST: Final = 16
HOUR_MS: Final = 3_600_000


class FaultKind(NamedTuple):
    """One kind of fault."""

    begin: Callable[[World, Fault], Any]
    end: Callable[[World, Fault, Any], None]
    draw: Callable[[Random, Setup], tuple[tuple[int, ...], int]]
    weight: int
    disturbs: tuple[str, ...]  # what it may explain: see `causes.py`
    least_ms: int = 1000
    most_ms: int = 20_000
    concerns: str = "one"  # which machines can't work meanwhile: the first of `who`, all, or none


def _machine(world: World, fault: Fault) -> Machine:
    return world.machines[fault.who[0] % len(world.machines)]


# Messages.


def _begin_rule(world: World, fault: Fault) -> Rule:
    members = frozenset(index % len(world.machines) for index in fault.who)
    rule = Rule(fault.kind, fault.value, members)
    world.network.rules.append(rule)
    return rule


def _end_rule(world: World, fault: Fault, rule: Rule) -> None:
    world.network.rules.remove(rule)


Pairs = list[tuple[int, int]]


def _cut(world: World, fault: Fault, pairs: Pairs) -> Pairs:
    world.network.cut(pairs, bool(fault.value))
    return pairs


def _mend(world: World, fault: Fault, pairs: Pairs) -> None:
    world.network.mend(pairs, bool(fault.value))


def _across(here: set[int], there: set[int]) -> Pairs:
    return [pair for a in sorted(here) for b in sorted(there) for pair in ((a, b), (b, a))]


def _sides(world: World, fault: Fault) -> tuple[set[int], set[int]]:
    here = {index % len(world.machines) for index in fault.who}
    return here, set(range(NODES_MAX)) - here


def _begin_halves(world: World, fault: Fault) -> Pairs:
    """`who` is cut off from everybody else."""
    return _cut(world, fault, _across(*_sides(world, fault)))


def _begin_bridge(world: World, fault: Fault) -> Pairs:
    """The first of `who` can be reached by all; the others of it are cut off from the rest."""
    here, there = _sides(world, fault)
    bridge = fault.who[0] % len(world.machines)
    return _cut(world, fault, _across(here - {bridge}, there - {bridge}))


def _begin_one_way(world: World, fault: Fault) -> Pairs:
    """What `who` sends to the rest doesn't arrive."""
    here, there = _sides(world, fault)
    return _cut(world, fault, [(a, b) for a in sorted(here) for b in sorted(there)])


# Processes and machines.


def _begin_kill(world: World, fault: Fault) -> Machine | None:
    machine = _machine(world, fault)
    if not machine.is_up:
        return None
    machine.kill()
    return machine


def _start(world: World, fault: Fault, machine: Machine | None) -> None:
    if machine is not None and not machine.is_up:
        machine.disk.before = _nothing
        machine.start()


def _nothing(kind: str, name: str) -> None:
    """Let an operation on a disk pass."""


def _begin_power(world: World, fault: Fault) -> Machine | None:
    """`value` says what is left of unsynced bytes."""
    machine = _machine(world, fault)
    if not machine.is_up:
        return None
    machine.cut_power(KEEPS[fault.value % len(KEEPS)])
    return machine


def _begin_write_crash(world: World, fault: Fault) -> Machine | None:
    """The process dies at one of its next operations on the disk; an odd `value` takes the power, too."""
    machine = _machine(world, fault)
    if not machine.is_up or machine.policy == OFF:
        return None
    keep = KEEPS[fault.value // 2 % len(KEEPS)] if fault.value % 2 else None
    machine.kill_at_operation(fault.value // 10, keep)
    return machine


def _end_write_crash(world: World, fault: Fault, machine: Machine | None) -> None:
    if machine is not None:
        machine.disk.before = _nothing
        _start(world, fault, machine)


def _begin_wipe(world: World, fault: Fault) -> Machine | None:
    """All jobs are lost; the node keeps its id."""
    machine = _begin_kill(world, fault)
    if machine is not None:
        machine.disk = SimDisk()
        machine.lost_data_us = world.timeline.now_us
        machine.copies = dict.fromkeys(machine.copies, False)
    return machine


def _begin_restart(world: World, fault: Fault) -> Machine | None:
    machine = _machine(world, fault)
    if not machine.is_up or machine.is_stopped or machine.is_loading:
        return None
    machine.shut_down()
    return machine


def _begin_restart_all(world: World, fault: Fault) -> list[Machine]:
    """All processes end; an odd `value` takes the power, too."""
    machines = [machine for machine in world.machines if machine.is_up]
    for machine in machines:
        if fault.value % 2:
            machine.cut_power(KEEPS[fault.value // 2 % len(KEEPS)])
        else:
            machine.kill()
    return machines


def _start_all(world: World, fault: Fault, machines: list[Machine]) -> None:
    for machine in machines:
        _start(world, fault, machine)


def _begin_stop(world: World, fault: Fault) -> Machine | None:
    machine = _machine(world, fault)
    if not machine.is_up or machine.is_stopped:
        return None
    machine.stop_running()
    return machine


def _end_stop(world: World, fault: Fault, machine: Machine | None) -> None:
    if machine is not None:
        machine.run_on()


def _begin_slow(world: World, fault: Fault) -> Machine:
    """Its turns last `value` milliseconds."""
    machine = _machine(world, fault)
    machine.turn_us = fault.value * MS
    return machine


def _end_slow(world: World, fault: Fault, machine: Machine) -> None:
    machine.turn_us = world.setup.turn_us


# Clocks.


def _begin_jump(world: World, fault: Fault) -> None:
    """The wall clock jumps by `value` milliseconds, and stays so."""
    _machine(world, fault).wall_offset_us += fault.value * MS
    world.jumped_us += abs(fault.value) * MS


def _end_nothing(world: World, fault: Fault, state: object) -> None:
    """Leave it so."""


def _begin_drift(world: World, fault: Fault) -> Machine:
    """The monotonic clock runs at `value` per mille."""
    machine = _machine(world, fault)
    machine.set_rate(fault.value)
    return machine


def _end_drift(world: World, fault: Fault, machine: Machine) -> None:
    machine.set_rate(EVEN)


# Operators.


def _begin_meet(world: World, fault: Fault) -> None:
    """A new node joins."""
    if len(world.machines) < NODES_MAX:
        machine = world.add_machine()
        machine.start()
        world.introduce(machine)


def _begin_forget(world: World, fault: Fault) -> Machine | None:
    """A node dies, and all others forget it; later it comes back, and is introduced again."""
    machine = _begin_kill(world, fault)
    if machine is not None:
        world.timeline.after(MS * fault.length_ms // 3, _forget, world, machine, machine.life)
    return machine


def _forget(world: World, machine: Machine, life: int) -> None:
    if not machine.is_up and machine.life == life:
        for other in world.machines:
            other.command("CLUSTER", "FORGET", machine.node_id)


def _end_forget(world: World, fault: Fault, machine: Machine | None) -> None:
    _start(world, fault, machine)
    if machine is not None and machine.is_up:
        world.introduce(machine)


def _begin_replace(world: World, fault: Fault) -> Machine | None:
    """A machine loses everything, also its id; a new node takes its place, and the old one is forgotten."""
    machine = _begin_wipe(world, fault)
    if machine is not None:
        machine.nodes_conf = ""
        machine.replaced_us = world.timeline.now_us
        machine.node_id = Random(f"{machine.node_id!r} {fault}").randbytes(20).hex().encode()
    return machine


def _end_replace(world: World, fault: Fault, machine: Machine | None) -> None:
    _start(world, fault, machine)
    if machine is not None and machine.is_up:
        world.introduce(machine)
        world.forget_ghosts()


def _begin_leaving(world: World, fault: Fault) -> Machine:
    machine = _machine(world, fault)
    machine.command("CLUSTER", "LEAVING", "yes")
    return machine


def _begin_drain(world: World, fault: Fault) -> Machine:
    """A node hands all of its jobs over, but the operator thinks better of it."""
    machine = _machine(world, fault)
    machine.command("CLUSTER", "DRAIN")
    return machine


def _begin_drain_restart(world: World, fault: Fault) -> Machine:
    """The same; in the middle of it the process is killed, and goes on with the drain when it is back."""
    machine = _begin_drain(world, fault)
    world.timeline.after(MS * fault.length_ms // 2, _restart, world, fault, machine, machine.life)
    return machine


def _restart(world: World, fault: Fault, machine: Machine, life: int) -> None:
    if machine.is_up and machine.life == life:
        machine.kill()
        _start(world, fault, machine)


def _end_leaving(world: World, fault: Fault, machine: Machine) -> None:
    machine.insist("CLUSTER", "LEAVING", "no")


def _begin_memory(world: World, fault: Fault) -> Machine:
    machine = _machine(world, fault)
    machine.command("CONFIG", "SET", "maxmemory", LOW_MEMORY_BYTES + fault.value)
    return machine


def _end_memory(world: World, fault: Fault, machine: Machine) -> None:
    machine.insist("CONFIG", "SET", "maxmemory", HIGH_MEMORY_BYTES)


PAUSES: Final = ("in", "out", "all")


def _begin_pause(world: World, fault: Fault) -> bytes:
    queue = world.queues[fault.value % len(world.queues)]
    _machine(world, fault).command("PAUSE", queue, PAUSES[fault.value // 8 % 3], "bcast")
    return queue


def _end_pause(world: World, fault: Fault, queue: bytes) -> None:
    for machine in world.machines:
        machine.insist("PAUSE", queue, "none")


def _begin_rewrite(world: World, fault: Fault) -> None:
    _machine(world, fault).command("BGREWRITEAOF")


# Drawing.


def _draw_percent(random: Random, setup: Setup) -> tuple[tuple[int, ...], int]:
    who = (int(random.random() * setup.nodes),) if random.random() < 0.5 else ()
    return who, (5, 20, 50, 90)[int(random.random() * 4)]


def _draw_delay(random: Random, setup: Setup) -> tuple[tuple[int, ...], int]:
    who = (int(random.random() * setup.nodes),) if random.random() < 0.5 else ()
    return who, (5, 60, 400, 2500)[int(random.random() * 4)]


def _draw_side(random: Random, setup: Setup) -> tuple[tuple[int, ...], int]:
    order = sorted(range(setup.nodes), key=lambda _: random.random())
    return tuple(sorted(order[: setup.nodes // 2])), int(random.random() * 2)


def _draw_bridge(random: Random, setup: Setup) -> tuple[tuple[int, ...], int]:
    order = sorted(range(setup.nodes), key=lambda _: random.random())
    return tuple(order[: 1 + setup.nodes // 2]), int(random.random() * 2)


def _draw_one(random: Random, setup: Setup) -> tuple[tuple[int, ...], int]:
    return (int(random.random() * setup.nodes),), int(random.random() * 2)


def _draw_number(most: int) -> Callable[[Random, Setup], tuple[tuple[int, ...], int]]:
    def draw(random: Random, setup: Setup) -> tuple[tuple[int, ...], int]:
        return (int(random.random() * setup.nodes),), int(random.random() * most)

    return draw


def _draw_slow(random: Random, setup: Setup) -> tuple[tuple[int, ...], int]:
    return (int(random.random() * setup.nodes),), (20, 100, 400)[int(random.random() * 3)]


def _draw_jump(random: Random, setup: Setup) -> tuple[tuple[int, ...], int]:
    value = (-HOUR_MS, -20_000, -3000, 3000, 20_000, HOUR_MS)[int(random.random() * 6)]
    return (int(random.random() * setup.nodes),), value


def _draw_drift(random: Random, setup: Setup) -> tuple[tuple[int, ...], int]:
    return (int(random.random() * setup.nodes),), (800, 950, 1050, 1250)[int(random.random() * 4)]


NET, CRASH = ("network",), ("crash",)
LOSES: Final = ("crash", "data")
KINDS: Final[dict[str, FaultKind]] = {
    "loss": FaultKind(_begin_rule, _end_rule, _draw_percent, 10, NET),
    "duplicate": FaultKind(_begin_rule, _end_rule, _draw_percent, 8, NET),
    "reorder": FaultKind(_begin_rule, _end_rule, _draw_percent, 8, NET),
    "delay": FaultKind(_begin_rule, _end_rule, _draw_delay, 8, NET),
    "halves": FaultKind(_begin_halves, _mend, _draw_side, 8, NET, concerns=ALL),
    "alone": FaultKind(_begin_halves, _mend, _draw_one, 8, NET),
    "bridge": FaultKind(_begin_bridge, _mend, _draw_bridge, 8, NET, concerns=ALL),
    "one-way": FaultKind(_begin_one_way, _mend, _draw_one, 8, NET),
    "kill": FaultKind(_begin_kill, _start, _draw_one, 10, LOSES, 100, 15_000),
    "power": FaultKind(_begin_power, _start, _draw_number(5), 10, LOSES, 100, 15_000),
    "write-crash": FaultKind(_begin_write_crash, _end_write_crash, _draw_number(60), 8, LOSES, 1000, 15_000),
    "wipe": FaultKind(_begin_wipe, _start, _draw_one, 5, LOSES, 100, 15_000),
    "replace": FaultKind(_begin_replace, _end_replace, _draw_one, 3, ("crash", "data", "forgotten"), 100, 15_000),
    "restart": FaultKind(_begin_restart, _start, _draw_one, 6, LOSES, 100, 5000),
    "restart-all": FaultKind(_begin_restart_all, _start_all, _draw_number(10), 4, LOSES, 100, 5000, ALL),
    "stop": FaultKind(_begin_stop, _end_stop, _draw_one, 8, NET, 1000, 25_000),
    "slow": FaultKind(_begin_slow, _end_slow, _draw_slow, 6, NET),
    "jump": FaultKind(_begin_jump, _end_nothing, _draw_jump, 6, (), concerns=NOBODY),
    "drift": FaultKind(_begin_drift, _end_drift, _draw_drift, 6, ("clock",)),
    "meet": FaultKind(_begin_meet, _end_nothing, _draw_one, 4, (), concerns=NOBODY),
    "forget": FaultKind(_begin_forget, _end_forget, _draw_one, 4, ("crash", "data", "forgotten"), 3000, 30_000),
    "leaving": FaultKind(_begin_leaving, _end_leaving, _draw_one, 7, ()),
    "drain": FaultKind(_begin_drain, _end_leaving, _draw_one, 4, ()),
    "drain-restart": FaultKind(_begin_drain_restart, _end_leaving, _draw_one, 4, LOSES),
    "memory": FaultKind(_begin_memory, _end_memory, _draw_number(40_000), 7, ("memory",)),
    "pause": FaultKind(_begin_pause, _end_pause, _draw_number(24), 4, (), concerns=ALL),
    "rewrite": FaultKind(_begin_rewrite, _end_nothing, _draw_one, 4, (), concerns=NOBODY),
}


def draw_plan(setup: Setup) -> Plan:
    """Draw the faults of a run."""
    random = Random(f"{setup.seed} plan")
    table = tuple((name, KINDS[name].weight) for name in sorted(KINDS))
    faults = []
    for _ in range(FAULTS_LEAST + int(random.random() * (FAULTS_MOST - FAULTS_LEAST + 1))):
        name = str(weighted(random, table))
        kind = KINDS[name]
        who, value = kind.draw(random, setup)
        length_ms = kind.least_ms + int(random.random() ** 2 * (kind.most_ms - kind.least_ms))
        at_ms = FIRST_FAULT_MS + int(random.random() * (HEAL_MS - 20_000 - FIRST_FAULT_MS))
        faults.append(Fault(at_ms // 100 * 100, max(100, length_ms // 100 * 100), name, who, value))
    return tuple(sorted(faults))
