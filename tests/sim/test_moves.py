"""A job that is moved is in one of the two queues, or in both, but never in neither: whoever dies, and whenever.

The seeds with movers (`--movers`) meet everything that can happen to a cluster; here one move is cut at each message
that it takes, and at each operation on the disk.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.sim.batch import quiet
from penstock.sim.connection import Script, SimConnection, Words
from penstock.sim.consumers import SimConsumer
from penstock.sim.disk import Keep
from penstock.sim.history import AddOptions, JobFacts
from penstock.sim.machine import Machine, ProcessEnds
from penstock.sim.movers import SimMover
from penstock.sim.plan import NODES_MAX, Setup
from penstock.sim.run import _form, _run_until_settled, simulate
from penstock.sim.timeline import SECOND
from penstock.sim.world import QUEUES, World

pytestmark = pytest.mark.timeout(300)

FROM, TO = QUEUES[:2]
TERMS = AddOptions(2, 2, 0, 86_400, False, 2000)
SETUP = Setup(7, 3, ("always",) * NODES_MAX, 3000, 200, 0, True, 0, 0)
MESSAGES = 14  # more than a move takes: up to the DELJOB of the old job
OPERATIONS = 8
WAYS = ("lease", "id alone", "waiting")


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet()


class OneMove(SimMover):
    """Adds one job on the first node, and moves it."""

    way = "lease"
    is_moving = False

    def script(self) -> Script:
        world = self.world
        connection = self.connect(world.machines[0])
        assert connection is not None
        job = world.promises.history.sent(FROM, b"0:old", TERMS, 0, world.timeline.now_us)

        def note(connection: SimConnection, words: Words, reply: Any) -> None:
            world.promises.added(job, connection, reply)

        self.found: list[tuple[JobFacts, bytes]] = []
        yield self.ask(connection, [[b"ADDJOB", FROM, job.body, b"2000", b"REPLICATE", b"2", b"RETRY", b"2"]], note)
        if self.way == "waiting":
            yield self.ask(connection, [[b"QPEEK", FROM, b"1"]], self.note_seen)
        else:
            lease = [b"LEASE", b"1500"] if self.way == "lease" else []
            yield self.ask(connection, [[b"GETJOB", *lease, b"FROM", FROM]], self.note_fetched)
        assert self.found
        self.is_moving = True
        yield from self.move(connection, TO, TERMS, 5 * SECOND)


def play(
    way: str, *, message: int = -1, victim: str = "sender", operation: int = -1, keep: Keep | None = None
) -> World:
    """Move one job; a node dies before the message or operation of that number, and comes back after two seconds."""
    world = World(SETUP, ())
    _form(world)
    world.timeline.run(3 * SECOND)
    mover = OneMove(world, "mover")
    mover.way = way
    count = 0
    usual = world.network.watch

    def watch(machine: Machine, other: Machine, data: bytes) -> None:
        nonlocal count
        if mover.is_moving and data[13] >= 4:  # about jobs
            count += 1
            if count - 1 == message:
                if victim == "sender":
                    raise ProcessEnds
                world.timeline.after(0, other.kill)
        usual(machine, other, data)

    world.network.watch = watch
    mover.begin()
    while not mover.is_moving:
        world.timeline.run(world.timeline.now_us + 100)
    undisturbed = world.machines[0].disk.before
    if operation >= 0:
        world.machines[0].kill_at_operation(operation, keep)
    world.timeline.run(world.timeline.now_us + 2 * SECOND)
    mover.is_moving = False
    world.is_calm, world.is_producing = True, False
    for machine in world.machines:
        machine.disk.before = undisturbed
        if not machine.is_up:
            machine.start()
    SimConsumer(world, "consumer").begin()
    _run_until_settled(world, world.timeline.now_us + 60 * SECOND)
    world.promises.check_drained(world.timeline.now_us)
    world.promises.check_end()
    if message < 0 and operation < 0:
        assert 4 <= count < MESSAGES
    return world


@pytest.mark.parametrize("way", WAYS)
def test_a_move_without_faults_leaves_the_new_job_alone(way: str) -> None:
    world = play(way)
    old, new = world.promises.history.jobs
    assert not world.violations
    assert len(old.deliveries) == (way != "waiting")
    assert len(new.deliveries) == 1


@pytest.mark.parametrize("victim", ["sender", "receiver"])
@pytest.mark.parametrize("way", WAYS)
def test_a_node_that_dies_between_any_two_messages_leaves_one_of_the_jobs_or_both(way: str, victim: str) -> None:
    left = set()
    for message in range(MESSAGES):
        world = play(way, message=message, victim=victim)
        assert not world.violations, (message, *map(str, world.violations))
        old, new = world.promises.history.jobs
        stayed = len(old.deliveries) > (way != "waiting")
        assert stayed or new.deliveries, f"neither, at message {message}"
        left.add((stayed, bool(new.deliveries)))
    assert (False, True) in left


@pytest.mark.parametrize("keep", [None, "none", "torn"])
@pytest.mark.parametrize("way", WAYS)
def test_a_node_that_dies_at_any_operation_on_its_disk_leaves_one_of_the_jobs_or_both(
    way: str, keep: Keep | None
) -> None:
    for operation in range(OPERATIONS):
        world = play(way, operation=operation, keep=keep)
        assert not world.violations, (operation, *map(str, world.violations))
        old, new = world.promises.history.jobs
        assert len(old.deliveries) > (way != "waiting") or new.deliveries, f"neither, at operation {operation}"


def test_seeds_hold_with_workers_that_move_jobs() -> None:
    for seed in (1, 2):
        result = simulate(seed, movers=3)
        assert not result.violations
        assert result.jobs > simulate(seed).jobs
