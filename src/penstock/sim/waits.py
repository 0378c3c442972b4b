"""P10, nobody waits in vain: a job that is queued where nobody waits reaches a client that waits on another node.

Looked at twice a second are the heads of all queues, since jobs leave a queue from there. A head that has not changed
for two seconds, while all that time a client waited on a node that can be reached, breaks the promise. So does a job
that two calls of a client in a row, less than two seconds apart, don't bring: the first brings it to the node that it
asks, and the second gets it. A job that was given back is in a queue again, and one that came to a node where nobody
fetches it leaves after two seconds.

Nodes count that have not been disturbed lately, and that are linked to each other. A message may have been lost with a
fault: what it said is said again after `REPEAT_MS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.core.federation import LOOKED_AT_MAX, POLL_AGAIN_MS, POLL_MS_MAX, REPEAT_MS, Guests
from penstock.broker.core.jobs import ACTIVE, IMPORTED, QUEUED, Job
from penstock.broker.core.queues import PAUSED_OUT, Queue
from penstock.sim.node_checks import linked_ms
from penstock.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from penstock.sim.connection import SimConnection
    from penstock.sim.history import JobFacts
    from penstock.sim.machine import Machine
    from penstock.sim.world import World

LOOK_US: Final = SECOND // 2
WAIT_US_MAX: Final = 2 * SECOND + LOOK_US
LINKED_MS_MIN: Final = 3000  # what was said on an older link has arrived

Key = tuple[int, int, bytes]  # machine, life, queue


class Poll:
    """What a client that doesn't wait has left behind: jobs elsewhere that its next call must find, or others have."""

    def __init__(self, at_us: int, jobs_in: int, left: list[tuple[Machine, Job]]) -> None:
        self.at_us = at_us
        self.jobs_in = jobs_in
        self.left = left


class Waits:
    """Looks for clients that wait in vain."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._heads: dict[Key, tuple[bytes, int]] = {}  # the first job of a queue, and since when somebody waits for it
        self._polls: dict[SimConnection, Poll] = {}
        self._given_back: dict[bytes, tuple[JobFacts, int]] = {}  # and when
        self._guests: dict[tuple[int, bytes], tuple[Guests | None, int]] = {}  # machine and job: since when it is there

    def _sound(self) -> list[Machine]:
        """Return the machines that can be expected to keep the promise."""
        world = self._world
        tail_us = (REPEAT_MS + 2 * world.setup.node_timeout_ms) * MS + 2 * SECOND
        since_us = world.timeline.now_us - tail_us
        return [
            machine
            for machine in (world.machines[index] for index in world.faults.untouched(since_us))
            if machine.is_up
            and not machine.is_stopped
            and not machine.is_loading
            and not machine.node.cluster.leaving
            and machine.started_us < world.timeline.now_us - LINKED_MS_MIN * MS
        ]

    def look(self) -> None:
        """Look at all nodes."""
        machines = self._sound()
        self._look_at_heads(machines)
        if len(machines) == len(self._world.machines):
            self._look_for_given_back()
            self._look_for_guests(machines)
        else:
            self._given_back.clear()
            self._guests.clear()
        self._world.timeline.after(LOOK_US, self.look)

    def _look_at_heads(self, machines: list[Machine]) -> None:
        world = self._world
        heads: dict[Key, tuple[bytes, int]] = {}
        for name in world.queues:
            waiting = [machine for machine in machines if _open_queue(machine, name, waited_for=True) is not None]
            if not waiting:
                continue
            for machine in machines:
                queue = _open_queue(machine, name)
                if queue is None or not queue.length:
                    continue
                head = next(queue.oldest(1))
                near = next((other for other in waiting if _are_linked(machine, other)), None)
                if near is None:
                    continue
                key = (machine.index, machine.life, name)
                before, since_us = self._heads.get(key, (b"", 0))
                heads[key] = (head.id, since_us if before == head.id else world.timeline.now_us)
                if world.timeline.now_us - heads[key][1] >= WAIT_US_MAX:
                    text = f"n{machine.index} has had {head.id!r} queued since {since_us / 1e6:.3f}"
                    world.fail("P10", f"{text}, and a client waits on n{near.index}")
        self._heads = heads

    def given_back(self, job: JobFacts) -> None:
        """Note that a client was told that its job is in a queue again; one of RETRY 0 is not."""
        if job.terms.retry_s:
            self._given_back[job.id] = job, self._world.timeline.now_us

    def _look_for_given_back(self) -> None:
        world = self._world
        for job_id, (job, at_us) in list(self._given_back.items()):
            if world.timeline.now_us - at_us < WAIT_US_MAX:
                continue
            del self._given_back[job_id]
            is_over = job.acks or job.deliveries[-1].at_us >= at_us or job.nacked_us != at_us
            is_expired = world.timeline.now_us + world.jumped_us >= job.sent_us + (job.terms.ttl_s - 2) * SECOND
            if is_over or is_expired or job.was_late or job.has_twin:
                continue
            records = [machine.node.jobs.get(job_id) for machine in world.machines]
            if not any(record is not None and record.state != ACTIVE for record in records):
                world.fail("P10", f"given back at {at_us / 1e6:.3f}, and in no queue: {job}")

    def _look_for_guests(self, machines: list[Machine]) -> None:
        """Look for jobs that came from another node and neither were fetched nor left. One may leave and come again."""
        world = self._world
        guests: dict[tuple[int, bytes], tuple[Guests | None, int]] = {}
        for machine in machines:
            for name in world.queues:
                queue = machine.node.queues.by_name.get(name)
                if queue is None or not queue.length:
                    continue
                came = queue.exchange.guests if queue.exchange is not None else []
                for job in queue.oldest(LOOKED_AT_MAX):
                    if not job.flags & IMPORTED:
                        continue
                    key = (machine.index, job.id)
                    now = next((group for group in came if job in group.jobs), None)
                    before, since_us = self._guests.get(key, (None, world.timeline.now_us))
                    if now is not before:
                        since_us = world.timeline.now_us
                    guests[key] = now, since_us
                    if world.timeline.now_us - since_us >= WAIT_US_MAX:
                        world.fail("P10", f"{job.id!r} came to n{machine.index}, is not fetched and does not leave")
        self._guests = guests

    def polled(self, connection: SimConnection, names: list[bytes], is_empty: bool) -> None:
        """Note the answer to a client that asks for jobs of these queues and doesn't wait."""
        world, here = self._world, connection.machine
        before = self._polls.pop(connection, None)
        if not is_empty or not connection.is_open:
            return
        now_us, machines = world.timeline.now_us, self._sound()
        queues = [_open_queue(here, name) for name in names]
        jobs_in = sum(queue.jobs_in for queue in queues if queue is not None)
        if here not in machines:
            return
        if before is not None and before.jobs_in == jobs_in and now_us - before.at_us < POLL_AGAIN_MS * MS:
            self._polls[connection] = before  # other nodes hear of calls this close together once
            return
        left = [
            (machine, job)
            for machine in machines
            if machine is not here and _are_linked(machine, here)
            for name in names
            if (job := _first_to_move(machine, name)) is not None
        ]
        self._polls[connection] = Poll(now_us, jobs_in, left)
        if before is None or before.jobs_in != jobs_in or now_us - before.at_us >= POLL_MS_MAX * MS:
            return
        for machine, job in before.left:
            if job.state == QUEUED and (machine, job) in left:
                text = f"n{machine.index} has {job.id!r} queued since {before.at_us / 1e6:.3f} at least"
                world.fail("P10", f"{text}, and the second call on n{here.index} doesn't get it")


def _open_queue(machine: Machine, name: bytes, waited_for: bool = False) -> Queue | None:
    queue = machine.node.queues.by_name.get(name)
    if queue is None or queue.pause & PAUSED_OUT or (waited_for and not queue.waiters):
        return None
    return queue


def _are_linked(machine: Machine, other: Machine) -> bool:
    """Whether two nodes can say everything to each other; a node is always linked to itself."""
    if machine is other:
        return True
    return min(linked_ms(machine, other), linked_ms(other, machine)) >= LINKED_MS_MIN


def _first_to_move(machine: Machine, name: bytes) -> Job | None:
    """Return the job that a call on another node brings there, unless a client here is about to fetch it."""
    queue = _open_queue(machine, name)
    if queue is None or not queue.length:
        return None
    exchange, now_ms = queue.exchange, machine.node.now_ms
    if exchange is not None and exchange.polled_ms and now_ms - exchange.polled_ms < 2 * POLL_MS_MAX:
        return None
    for job in queue.oldest(LOOKED_AT_MAX):
        if job.rules.retry_s:
            return None if job.flags & IMPORTED else job
    return None
