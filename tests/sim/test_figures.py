"""While nodes are away, each job that a reachable node holds is counted and shown once."""

from __future__ import annotations

import pytest

from penstock.broker.core.jobs import ACKED, QUEUED, WAIT_REPL
from penstock.broker.core.owners import away, is_away, is_scheduled
from penstock.sim.batch import quiet
from penstock.sim.machine import Machine
from penstock.sim.plan import NODES_MAX, Setup
from penstock.sim.producers import Producer
from penstock.sim.run import _form
from penstock.sim.timeline import SECOND
from penstock.sim.world import QUEUES, World

pytestmark = pytest.mark.timeout(300)


def shown_by(machine: Machine, job_id: bytes, missing: set[bytes]) -> str:
    """How a node shows a job: as one that waits, as one that is away, or not at all."""
    record = machine.node.jobs.get(job_id)
    if record is None:
        return ""
    if record.state == QUEUED:
        return "ready"
    return "away" if is_away(machine.node, record, missing) else ""


def look(world: World) -> tuple[int, int]:
    """Check every job; return how many are ready and away."""
    up = [machine for machine in world.machines if machine.is_up]
    missing = {machine.node_id for machine in world.machines if not machine.is_up}
    counts = {"ready": 0, "away": 0}
    for job_id, job in world.promises.history.by_id.items():
        records = [record for machine in up if (record := machine.node.jobs.get(job_id)) is not None]
        if not records or not job.terms.retry_s or any(record.state in (ACKED, WAIT_REPL) for record in records):
            continue
        if any(is_scheduled(machine.node, r) for machine in up if (r := machine.node.jobs.get(job_id)) is not None):
            continue
        shown = [how for machine in up if (how := shown_by(machine, job_id, missing))]
        assert len(shown) == 1, (shown, str(job))
        counts[shown[0]] += 1
    waiting = sum(machine.node.queues.by_name[name].length for machine in up for name in QUEUES if _has(machine, name))
    stood_for = [away(machine.node, name, missing) for machine in up for name in QUEUES]
    once = sum(r.state == QUEUED and not r.rules.retry_s for machine in up for r in machine.node.jobs)
    assert waiting - once == counts["ready"]
    assert sum(due for due, _ in stood_for) <= counts["away"] <= sum(map(sum, stood_for))
    return counts["ready"], counts["away"]


def _fullest(world: World) -> Machine:
    """The machine with the most jobs that others hold, too."""
    up = [machine for machine in world.machines if machine.is_up]
    return max(up, key=lambda machine: sum(r.state == QUEUED and r.rules.replicate > 1 for r in machine.node.jobs))


def _has(machine: Machine, name: bytes) -> bool:
    return name in machine.node.queues.by_name


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_job_is_counted_once_whichever_nodes_are_away(seed: int) -> None:
    quiet()
    world = World(Setup(seed, 4, ("always",) * NODES_MAX, 3000, 200, 0, True, 4, 0), ())
    _form(world)
    for number in range(4):
        Producer(world, f"producer {number}").begin()
    world.timeline.run(60 * SECOND)
    world.is_producing = False
    world.timeline.run(75 * SECOND)
    ready, gone = look(world)
    assert ready > 20
    assert not gone
    for _ in range(2):
        before = look(world)[1]
        _fullest(world).kill()
        assert look(world)[1] > before
    # The others queue the jobs again, one after the other.
    for second in range(76, 110, 2):
        world.timeline.run(second * SECOND + SECOND // 3)
        _, gone = look(world)
    assert not gone
