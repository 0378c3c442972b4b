"""A node dies: what waited there waits on another one a moment later, once and uncounted; what was out stays out."""

from __future__ import annotations

import pytest

from penstock.broker.core.jobs import QUEUED
from penstock.sim.batch import quiet
from penstock.sim.history import AddOptions, JobFacts
from penstock.sim.machine import Machine
from penstock.sim.plan import NODES_MAX, Setup
from penstock.sim.producers import Producer
from penstock.sim.run import _form
from penstock.sim.timeline import MS, SECOND
from penstock.sim.world import QUEUES, World

pytestmark = pytest.mark.timeout(300)

TIMEOUT_MS = 3000
MARKED_US = (2 * TIMEOUT_MS + 2000) * MS  # by then a majority has marked a node as failed
QUEUED_US = 6 * SECOND  # and others have queued its jobs


class PatientProducer(Producer):
    """A producer of jobs with copies, which come again after five minutes."""

    def _terms(self) -> AddOptions:
        return AddOptions(2 + self.pick(2), 300, 0, 86_400, False, 5000)


def start(seed: int, nodes: int) -> World:
    """Start a cluster whose nodes have some jobs waiting, and some out with clients."""
    quiet()
    world = World(Setup(seed, nodes, ("always",) * NODES_MAX, TIMEOUT_MS, 200, 0, True, 4, 0), ())
    _form(world)
    for number in range(4):
        PatientProducer(world, f"producer {number}").begin()
    world.timeline.run(60 * SECOND)
    world.is_producing = False
    world.timeline.run(65 * SECOND)
    for machine in world.machines:
        machine.command("GETJOB", "NOHANG", "COUNT", 8, "FROM", *QUEUES)
    world.timeline.run(66 * SECOND)
    return world


def queued_on(world: World, job_id: bytes) -> list[Machine]:
    up = [machine for machine in world.machines if machine.is_up]
    return [m for m in up if (record := m.node.jobs.get(job_id)) is not None and record.state == QUEUED]


def jobs(world: World) -> dict[bytes, JobFacts]:
    return {job_id: job for job_id, job in world.promises.history.by_id.items() if job.told_us}


@pytest.mark.parametrize(("seed", "nodes"), [(1, 3), (2, 4), (3, 5)])
def test_what_waited_on_a_node_that_died_is_queued_once_and_nothing_else(seed: int, nodes: int) -> None:
    world = start(seed, nodes)
    before = {job_id: queued_on(world, job_id) for job_id in jobs(world)}
    assert all(len(machines) <= 1 for machines in before.values())
    dead = world.machines[seed % nodes]
    waited = [job_id for job_id, machines in before.items() if machines == [dead]]
    out = [job_id for job_id, machines in before.items() if not machines]
    assert len(waited) > 3
    assert len(out) > 5 * nodes
    dead.kill()
    world.timeline.run(world.timeline.now_us + MARKED_US + QUEUED_US)
    for job_id in waited:
        (machine,) = queued_on(world, job_id)
        record = machine.node.jobs.get(job_id)
        assert record is not None
        assert (record.nacks, record.deliveries, record.tries) == (0, 0, 0)
    assert not [job_id for job_id in out if queued_on(world, job_id)]

    # It comes back, and has nothing in its queue that another one has.
    dead.start()
    world.timeline.run(world.timeline.now_us + MARKED_US)
    assert all(len(queued_on(world, job_id)) == 1 for job_id in waited)
    assert not [job_id for job_id in out if queued_on(world, job_id)]

    # The others start again, too, so that all have forgotten what they heard. Then it dies for the second time.
    for machine in world.machines:
        if machine is not dead:
            machine.kill()
            machine.start()
            world.timeline.run(world.timeline.now_us + MARKED_US)
    dead.kill()
    world.timeline.run(world.timeline.now_us + MARKED_US + QUEUED_US)
    assert not [job_id for job_id in out if queued_on(world, job_id)]
    assert not world.violations


@pytest.mark.parametrize(("seed", "nodes"), [(1, 3), (2, 5)])
def test_a_node_that_stood_still_has_nothing_in_its_queue_that_was_taken_over(seed: int, nodes: int) -> None:
    world = start(seed, nodes)
    still = world.machines[seed % nodes]
    waited = [job_id for job_id in jobs(world) if queued_on(world, job_id) == [still]]
    assert len(waited) > 3
    still.stop_running()
    world.timeline.run(world.timeline.now_us + MARKED_US + QUEUED_US)
    still.run_on()
    world.timeline.run(world.timeline.now_us + SECOND)
    assert all(len(queued_on(world, job_id)) == 1 for job_id in waited)
    assert not world.violations
