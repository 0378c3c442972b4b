"""One run: a seed, its faults, and what became of it."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import NamedTuple

from penstock.broker.core.node import EventsPort
from penstock.sim.connection import Actor
from penstock.sim.consumers import SimConsumer
from penstock.sim.fault_kinds import draw_plan
from penstock.sim.machine import PORT, ProcessEnds
from penstock.sim.movers import SimMover
from penstock.sim.plan import END_MS, HEAL_MS, WAVE_MS, Plan, draw_setup
from penstock.sim.producers import Producer
from penstock.sim.timeline import MS, SECOND
from penstock.sim.world import Enough, Violation, World

SETTLE_US = 4 * SECOND  # between two looks at whether anything can still happen


class Result(NamedTuple):
    """What became of a run."""

    seed: int
    plan: Plan
    violations: list[Violation]
    digest: str
    events: int
    jobs: int
    deliveries: int
    causes: dict[str, int]
    excuses: dict[str, int]
    reached: dict[str, int]
    trace: list[str]


def simulate(
    seed: int,
    plan: Plan | None = None,
    trace: bool = False,
    is_brief: bool = False,
    events: EventsPort | None = None,
    movers: int = 0,
    retry_s: int = 0,
) -> Result:
    """Run a seed, with the faults drawn from it or with those given; a brief run ends at its first violation.

    `events` is told what happens to jobs on all nodes. `movers` clients move jobs from queue to queue.
    With `retry_s` all jobs have this retry time.
    """
    setup = draw_setup(seed)._replace(retry_s=retry_s)
    plan = draw_plan(setup) if plan is None else plan
    was_on = gc.isenabled()
    gc.disable()  # a run makes many long-lived objects; what it leaves behind is collected at its end
    try:
        world = World(setup, plan, trace, is_brief, events)
        try:
            with suppress(Enough):
                _play(world, movers)
        except ProcessEnds as end:  # would end the process that runs many of these, which would wait for it forever
            raise AssertionError(f"seed {seed}: a process ended where nobody expects it") from end
        history = world.promises.history
        return Result(
            seed,
            plan,
            world.violations,
            world.digest.hexdigest(),
            world.digest.events,
            len(history.jobs),
            sum(len(job.deliveries) for job in history.jobs),
            world.promises.causes,
            world.promises.excuses,
            world.coverage.reached(),
            world.trace or [],
        )
    finally:
        if was_on:
            gc.enable()
            gc.collect()


def _play(world: World, movers: int) -> None:
    setup, timeline = world.setup, world.timeline
    _form(world)
    actors: list[Actor] = [Producer(world, f"producer {number}") for number in range(setup.producers)]
    actors += [SimConsumer(world, f"consumer {number}") for number in range(setup.consumers)]
    actors += [SimMover(world, f"mover {number}") for number in range(movers)]
    for actor in actors:
        timeline.at(2 * SECOND, actor.begin)
    timeline.at(SECOND, world.look)
    timeline.at(SECOND, world.waits.look)
    timeline.run(HEAL_MS * MS)
    world.is_producing = False
    world.is_calm = True
    world.say("everything heals")
    world.faults.heal()
    for machine in world.machines:
        if not machine.is_up:
            machine.start()
    timeline.after(SECOND, world.mend_cluster)
    timeline.after(setup.node_timeout_ms * MS, world.mend_cluster)
    _run_until_settled(world, (HEAL_MS + setup.drain_ms) * MS)
    world.promises.check_drained(HEAL_MS * MS)
    wave_us = timeline.now_us
    world.is_producing = True
    world.is_calm = False
    timeline.run(wave_us + WAVE_MS * MS)
    world.is_producing = False
    world.is_calm = True
    _run_until_settled(world, wave_us + (WAVE_MS + setup.drain_ms) * MS)
    world.promises.check_drained(timeline.now_us)
    world.is_over = True
    _run_until_settled(world, END_MS * MS)
    world.promises.check_end()


def _run_until_settled(world: World, until_us: int) -> None:
    """Let time pass up to then, or until nothing can happen any more.

    Two looks in a row must find that: a job may be on its way, and on no node.
    """
    timeline, settled = world.timeline, 0
    while timeline.now_us < until_us and settled < 2:
        timeline.run(min(timeline.now_us + SETTLE_US, until_us))
        settled = settled + 1 if world.promises.is_settled() else 0


def _form(world: World) -> None:
    """Start the first machines, and make them a cluster."""
    machines = world.machines
    if world.setup.is_formed:
        lines = [f"{m.node_id.decode()} {m.ip}:{PORT} {{}} 0 0 connected\n" for m in machines]
        for machine in machines:
            flags = ("myself" if other is machine else "noflags" for other in machines)
            machine.nodes_conf = "".join(line.format(flag) for line, flag in zip(lines, flags, strict=True))
    for machine in machines:
        machine.start()
    if not world.setup.is_formed:
        world.timeline.run(100 * MS)
        for machine in machines[1:]:
            machines[0].command("CLUSTER", "MEET", machine.ip, PORT)
