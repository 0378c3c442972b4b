"""Checks inside the nodes, beside what clients see.

copies      before a node confirms a copy, or answers a producer, the job is in its journal, synced as its policy says;
            before it delivers a job of retry 0, that delivery is
contests    of two nodes that have a job queued and tell each other, one gives way
collecting  no node is told to delete an acked job (DELJOB) while it has the job unacked
adding      an add isn't refused for too few nodes while enough of them work
counters    those of a node and of a job never go backwards while a process lives
memory      the accounted memory matches the objects that exist
takeover    what waited on a node that has failed is queued by another one soon
figures     the counts of copies that other nodes have match the copies
whole       in the end every node knows all others, and none is marked as failing
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.core.federation import EXCHANGE_BYTES
from penstock.broker.core.jobs import ACKED, ACTIVE, GIVEN, JOB_BYTES, OUT, OUT_THERE, QUEUED, WAIT_REPL, Job
from penstock.broker.core.membership import FAIL, HANDSHAKE, LEAVING, LINKED, PFAIL
from penstock.broker.core.owners import recounted
from penstock.broker.core.queues import QUEUE_BYTES
from penstock.broker.core.registry import ENTRY_BYTES
from penstock.broker.core.takeover import RANK_MS
from penstock.broker.core.tokens import claims_bytes
from penstock.broker.core.waiters import waits_bytes
from penstock.sim.coverage import job_ids, type_of
from penstock.sim.history import History, JobFacts
from penstock.sim.machine import AOF, OFF
from penstock.sim.timeline import MS, SECOND
from penstock.wire import bus

if TYPE_CHECKING:
    from penstock.sim.machine import Machine
    from penstock.sim.world import World

WATCHED: Final = frozenset((bus.GOTJOB, bus.DELJOB))
REMOVED: Final = b"DELJOB\r\n$40\r\n"
TAKEN_US: Final = (2000 + 2 * RANK_MS) * MS  # three holders, one after the other
PATIENT_MS: Final = 2000  # an add that waits this long has tried all nodes


class NodeChecks:
    """Checks the nodes of a run."""

    def __init__(self, world: World, history: History) -> None:
        self._world = world
        self._history = history
        self._counters: dict[int, tuple[int, ...]] = {}  # of each machine, with its life
        self.confirmed: dict[bytes, set[int]] = {}  # by job: the machines that said that they have a copy
        self._left: dict[tuple[int, int, bytes], int] = {}  # machine, life, job: since when it is left to a failed one
        self._contests: dict[tuple[bytes, bytes, bytes], bool] = {}  # job, who heard, of whom: whether it gave way

    # Messages that promise something.

    def sends(self, machine: Machine, to: Machine, data: bytes) -> None:
        """Look at what a node is about to say to another."""
        kind = type_of(data)
        if kind not in WATCHED:
            return
        for job_id in job_ids(data):
            if kind == bus.GOTJOB:
                self.confirmed.setdefault(job_id, set()).add(machine.index)
                self._check_confirmed(machine, job_id)
            else:
                self._check_collected(machine, to, job_id)

    def hears(self, machine: Machine, messages: list[bytes]) -> None:
        """Look for jobs that are given away for good, or without asking, in messages that the node may not take.

        It takes none of a stranger, none while it loads its journal, and no copies while it leaves or is full. And a
        job of retry 0 may come once only, so it takes none from a message that a later one of the same process has
        overtaken, which happens on two links. Then the job is lost, as if the message were.
        """
        for data in messages:
            if data[13] not in bus.RECORD_TYPES:
                continue
            message = bus.decode(data)
            if message is None:
                continue
            is_handed = message.type == bus.YOURJOBS or bool(message.flags & bus.QUEUE_IT)
            if not is_handed and not message.flags & bus.NOREPLY:
                continue
            peer = machine.node.cluster.peers.get(message.sender)
            key = (message.sender, message.sequence)
            why = ""
            if peer is None or peer.flags & HANDSHAKE:
                why = "one of a stranger"
            elif machine.is_loading:
                why = "one that came while the node loaded"
            elif message.type == bus.REPLJOB and _refuses(machine, message):
                why = "one that the node had no room for"
            elif is_handed and message.sequence >> 32 == peer.handed_over >> 32 and message.sequence < peer.handed_over:
                why = "one that was overtaken" if key not in machine.handed else ""
            if is_handed:
                machine.handed.add(key)
            if why:
                for job_id in job_ids(data):
                    job = self._history.by_id.get(job_id)
                    if job is not None:
                        job.lost_in_message.add(why)

    def _check_confirmed(self, machine: Machine, job_id: bytes) -> None:
        record = machine.node.jobs.get(job_id)
        if record is None or machine.policy == OFF or record.state in (ACKED, WAIT_REPL):
            return
        if not self.is_safe(machine, job_id):
            self._world.fail("P1", f"n{machine.index} confirms a copy that its journal doesn't have: {job_id!r}")

    def is_safe(self, machine: Machine, data: bytes) -> bool:
        """Whether the journal of a node has something, and has it synced where that is its policy."""
        return machine.disk.holds(AOF, data, machine.policy == "always")

    def _check_collected(self, machine: Machine, to: Machine, job_id: bytes) -> None:
        job = self._history.by_id.get(job_id)
        if job is None or not job.acks or not to.knows(machine):
            return
        if to.ended_us > job.acks[0].at_us:
            return  # it may have confirmed the ack before, and got the job again since
        if job.machine == machine.index and not job.told_us:
            return  # an add that failed, though somebody has worked on one of its copies
        record = to.node.jobs.get(job_id)
        if record is not None and record.state not in (ACKED, WAIT_REPL):
            self._world.fail("P3", f"n{machine.index} lets n{to.index} forget a job before it has its ack: {job}")

    def check_delivered_once(self, machine: Machine, job: JobFacts) -> None:
        """A job of retry 0 leaves the node only when that is written down."""
        if machine.policy != OFF and not self.is_safe(machine, REMOVED + job.id):
            self._world.fail("P5", f"n{machine.index} delivers before its journal says so: {job}")

    def contests(self, machine: Machine, other: Machine, before: list[tuple[bytes, int]]) -> None:
        """Look at what a node did that heard of jobs being queued elsewhere which it has queued, too.

        One of the two gives way, always the same one for a job. So of a pair that has met both ways, one did.
        """
        if machine.is_loading or not machine.knows(other):
            return
        for job_id, state in before:
            record = machine.node.jobs.get(job_id)
            if state != QUEUED or record is None or record.state not in (ACTIVE, QUEUED):
                continue
            if record.flags & (OUT | GIVEN):  # somebody got it in the same turn
                continue
            gave_way = record.state == ACTIVE
            theirs = other.node.jobs.get(job_id)
            if not gave_way and (theirs is None or theirs.state != QUEUED):
                continue  # it has left there since
            self._contests[job_id, machine.node_id, other.node_id] = gave_way
            if self._contests.get((job_id, other.node_id, machine.node_id)) == gave_way:
                both = "both" if gave_way else "neither"
                self._world.fail("P3", f"{both} of n{machine.index} and n{other.index} gave way: {job_id!r}")

    # Adds.

    def check_refused(self, job: JobFacts, machine: Machine) -> None:
        """An add is refused for want of nodes only if there were too few."""
        if not job.refused.startswith("NOREPL") or 0 < job.terms.timeout_ms < PATIENT_MS:
            return
        world = self._world
        tail_us = 2 * SECOND + 2 * world.setup.node_timeout_ms * MS
        sound = world.faults.untouched(job.sent_us - tail_us)
        if machine.index not in sound or any(other.has_paused(job.queue) for other in world.machines):
            return
        waited_ms = (world.timeline.now_us - job.sent_us) // MS
        others = (world.machines[index] for index in sound if index != machine.index)
        enough = [
            other.index
            for other in others
            if linked_ms(machine, other) >= waited_ms and linked_ms(other, machine) >= waited_ms
        ]
        if len(enough) + 1 >= job.terms.replicate:
            world.fail("P1", f"refused though n{machine.index} could reach {len(enough)} sound nodes: {job}")

    # From time to time.

    def look(self, machine: Machine) -> None:
        """Look at the counters of a node."""
        node, statistics = machine.node, machine.broker.statistics
        now = (
            machine.life,
            node.cluster.messages_sent,
            node.cluster.messages_received,
            statistics.commands,
            statistics.connections,
            statistics.output_bytes,
        )
        before = self._counters.get(machine.index)
        if before is not None and before[0] == now[0] and any(a > b for a, b in zip(before, now, strict=True)):
            self._world.fail("P6", f"a counter of n{machine.index} went backwards: {before} {now}")
        self._counters[machine.index] = now
        self._check_copies(machine)
        self._check_takeover(machine)

    def _check_takeover(self, machine: Machine) -> None:
        """Of a node that has long failed no copies are left that are known to wait there, where all else is sound."""
        world, node = self._world, machine.node
        left: dict[tuple[int, int, bytes], int] = {}
        for peer in node.cluster.others:
            if not peer.flags & FAIL or not peer.places_known or machine.is_stopped or node.cluster.leaving:
                continue
            sound = world.faults.untouched(world.timeline.now_us - TAKEN_US - world.setup.node_timeout_ms * MS)
            gone = [index for index in range(len(world.machines)) if index not in sound]
            if len(gone) != 1 or world.machines[gone[0]].node_id != peer.id:
                continue
            for job in node.jobs:
                if job.state != ACTIVE or job.holders.owner != peer.id or job.flags & OUT_THERE:
                    continue
                if not job.rules.retry_s or job.rules.delay_s or machine.has_paused(job.queue):
                    continue
                key = (machine.index, machine.life, job.id)
                left[key] = since_us = self._left.get(key, world.timeline.now_us)
                if world.timeline.now_us - since_us > TAKEN_US + world.setup.node_timeout_ms * MS:
                    world.fail("takeover", f"n{machine.index} leaves {job.id!r} to {peer.ip}, which has failed")
        mine = (machine.index, machine.life)
        self._left = {key: since for key, since in self._left.items() if key[:2] != mine} | left

    def check_job_counters(self, machine: Machine, job_id: bytes, before: int, after: int) -> None:
        """Compare the counters of a job with those of a second ago; an ack may stand alone in the place of its job."""
        if after & 7 == ACKED:
            return
        if before >> 19 > after >> 19 or before >> 3 & 0xFFFF > after >> 3 & 0xFFFF:
            counters = " ".join(f"{value >> 3 & 0xFFFF}/{value >> 19}" for value in (before, after))
            self._world.fail("P6", f"nacks/deliveries of {job_id!r} went backwards on n{machine.index}: {counters}")

    # In the end.

    def check_end(self, machine: Machine) -> None:
        """Check what must hold for a node when all is over."""
        self._check_memory(machine)
        self._check_copies(machine)
        others = {other.node_id for other in self._world.machines if other is not machine}
        for peer in machine.node.cluster.others:
            if peer.id not in others:
                self._world.fail("whole", f"n{machine.index} knows a node that does not exist any more: {peer.id!r}")
            elif peer.link != LINKED or peer.flags & (PFAIL | FAIL):
                self._world.fail("whole", f"n{machine.index} has no good link to {peer.ip}: {peer.line(0)}")
        missing = others - machine.node.cluster.ids
        if missing:
            self._world.fail("whole", f"n{machine.index} doesn't know {sorted(missing)}")

    def is_whole(self, machine: Machine) -> bool:
        """Whether a node has good links to all others, and to nobody else."""
        others = {other.node_id for other in self._world.machines if other is not machine}
        peers = machine.node.cluster.others
        return others == {peer.id for peer in peers} and not any(
            peer.link != LINKED or peer.flags & (PFAIL | FAIL) for peer in peers
        )

    def _check_copies(self, machine: Machine) -> None:
        node = machine.node
        counted = {holders: (holders.copies, holders.delayed) for holders in node.copies}
        if counted != recounted(node):
            self._world.fail("figures", f"n{machine.index} counts other copies than it has")

    def _check_memory(self, machine: Machine) -> None:
        node = machine.node
        expected = node.memory.base_bytes + ENTRY_BYTES * len(node.finished)
        expected += sum(JOB_BYTES + len(job.body) for job in node.jobs) + claims_bytes(node) + waits_bytes(node)
        for queue in node.queues.by_name.values():
            expected += QUEUE_BYTES + len(queue.name) + (EXCHANGE_BYTES if queue.exchange is not None else 0)
        if expected != node.memory.used_bytes:
            off = node.memory.used_bytes - expected
            self._world.fail("P7", f"n{machine.index} accounts for {off} bytes more than there are")


def _refuses(machine: Machine, message: bus.BusMessage) -> bool:
    """Whether a node takes no copies now."""
    node = machine.node
    if node.cluster.leaving or node.memory.used_bytes > node.memory.warn_bytes:
        return True
    return any(machine.has_paused(record.queue) for record in bus.records(message))


def linked_ms(machine: Machine, other: Machine) -> int:
    """Return for how long a node has had its link to another one, and nothing against it."""
    peer = machine.node.cluster.peers.get(other.node_id) if machine.is_up else None
    if peer is None or peer.link != LINKED or peer.flags & (PFAIL | FAIL | LEAVING | HANDSHAKE):
        return -1
    return machine.node.now_ms - peer.linked_ms


def packed(record: Job) -> int:
    """Put a job's state and counters into one number, to be compared a second later."""
    return record.state | record.nacks << 3 | record.deliveries << 19
