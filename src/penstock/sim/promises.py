"""The promises, checked while a run goes on and at its end. Names are those of docs/architecture.md.

P1  an acknowledged add is delivered, unless it ended otherwise or too many of its copies were lost
P2  what is delivered was added, byte for byte
P3  no delivery after an ack that has reached every holder; every duplicate has a cause with a name (`causes.py`)
P4  a stale token does nothing at the node that gave it
P5  a job of retry 0 is delivered once at most
P6  after the faults everything drains, acks are collected, and nothing stays
P8  no delayed job is early by every clock that may have released it

P10, nobody waits in vain, is looked at in `waits.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hiredis

from penstock.broker.core.acks import is_handover
from penstock.broker.core.jobs import ACKED, ACTIVE, DELIVERED, GONE, QUEUED, WAIT_REPL
from penstock.sim.causes import UNEXPLAINED, duplicate_cause, loss_excuse
from penstock.sim.coverage import NONE
from penstock.sim.history import FIRM, WEAK, Ack, Delivery, History, JobFacts
from penstock.sim.machine import AOF, OFF
from penstock.sim.movers import check_moves, has_moved
from penstock.sim.node_checks import NodeChecks, packed
from penstock.sim.timeline import MS, SECOND
from penstock.wire.record import decode_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sim.connection import SimConnection, Words
    from penstock.sim.machine import Machine
    from penstock.sim.world import World

JITTER_US = 550 * MS  # of requeue times, on two nodes, and rounding


class Promises:
    """Notes what clients are told, and complains where that breaks a promise."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.history = History()
        self.node_checks = NodeChecks(world, self.history)
        self.causes: dict[str, int] = {}
        self.excuses: dict[str, int] = {}
        self._tokens: set[tuple[int, int]] = set()
        self._last_tokens: dict[int, tuple[int, int]] = {}  # of each machine: the last token that it gave, and when

    # Producers.

    def added(self, job: JobFacts, connection: SimConnection, reply: Any) -> None:
        """Note the answer to an add."""
        if isinstance(reply, hiredis.ReplyError):
            job.refused = str(reply)
            if job.refused.startswith("ERR"):
                self._world.fail("protocol", f"an add was answered with {reply}: {job}")
            self.node_checks.check_refused(job, connection.machine)
            return
        if not connection.is_open:
            return
        job_id = reply if isinstance(reply, bytes) else str(reply).encode()
        if not self.history.identified(job, job_id):
            self._world.fail("P2", f"{job} has the id {job_id!r}, too")
        job.told_us = self._world.timeline.now_us
        self._check_copies(job, connection.machine)

    def _check_copies(self, job: JobFacts, machine: Machine) -> None:
        """As many nodes as asked for have, or had, a copy; where there is a journal, it is in it."""
        if job.terms.is_async or not job.terms.retry_s:
            return  # nobody waits for copies; or it may be handed over already, and is kept by nobody else
        held = 0
        for other in self._world.machines:
            here = other.is_up and other.node.jobs.get(job.id) is not None
            held += here or other.ended_us >= job.sent_us
            held += here and other.replaced_us >= job.sent_us  # the node that was there before it had one, too
            if not here and self._world.faults.drained(other.index, job.sent_us):  # its operator wanted it so
                held += other is machine or other.index in self.node_checks.confirmed.get(job.id, ())
        if held < job.terms.replicate and not any(d.at_us for d in job.deliveries):
            self._world.fail("P1", f"{held} nodes have a copy when the producer is told: {job}")
        record = machine.node.jobs.get(job.id)
        if machine.policy != OFF and record is not None and record.state != ACKED:
            if not self.node_checks.is_safe(machine, job.id):
                self._world.fail("P1", f"the producer is told before the journal has it: {job}")

    # Consumers.

    def fetched(self, connection: SimConnection, words: Words, reply: Any) -> Iterator[tuple[JobFacts, int, bool]]:
        """Note the jobs of a GETJOB's reply: each that is known, its token (or 0), and whether it was leased."""
        lease_us = int(words[words.index(b"LEASE") + 1]) * MS if b"LEASE" in words else 0
        for queue, job_id, body, *rest in reply or ():
            token = int(rest[0]) if lease_us else 0
            job = self.delivered(connection, queue, job_id, body, token, lease_us, b"")
            if job is not None:
                yield job, token, lease_us > 0

    def delivered(
        self,
        connection: SimConnection,
        queue: bytes,
        job_id: bytes,
        body: bytes,
        token: int,
        lease_us: int,
        claim: bytes,
    ) -> JobFacts | None:
        """Note a delivery."""
        world = self._world
        now_us = world.timeline.now_us
        job = self.history.by_body.get(body)
        if job is None or job.queue != queue or not self.history.identified(job, job_id):
            world.fail("P2", f"a job out of thin air: {job_id!r} in {queue!r}: {body[:40]!r}")
            return None
        machine = connection.machine
        delivery = Delivery(now_us, machine.index, machine.life, token, lease_us, claim, connection.is_open)
        if token:
            self._check_token(machine, token, job)
        is_held = claim and not job.nacked_us
        if is_held and any(d.claim == claim and d.life == machine.life for d in job.deliveries):
            job.not_before_us = (
                now_us + lease_us - machine.turn_us - 5 * MS
            )  # the same jobs again, under the same key, with a new lease
            return job
        if job.deliveries:
            self._check_duplicate(job, delivery)
        elif job.terms.delay_s:
            self._check_delay(job, machine)
        if job.refused and not job.deliveries:
            cause = loss_excuse(world, job, "refused")
            if not cause:
                world.fail("P3", f"an add that was refused is delivered: {job}")
        if not job.terms.retry_s:
            self.node_checks.check_delivered_once(machine, job)
        self._set_not_before(job, delivery)
        job.deliveries.append(delivery)
        return job

    def _check_token(self, machine: Machine, token: int, job: JobFacts) -> None:
        """No token is given twice, and they grow as long as the journal remembers those of before."""
        if (machine.index, token) in self._tokens:
            self._world.fail("P4", f"a token was given twice: {token}, {job}")
        self._tokens.add((machine.index, token))
        last, at_us = self._last_tokens.get(machine.index, (0, 0))
        now_us = self._world.timeline.now_us
        if token < last and machine.lost_data_us < at_us < now_us:  # replies of one turn may be seen in any order
            self._world.fail("P4", f"n{machine.index} gave the token {token} after {last}: {job}")
        self._last_tokens[machine.index] = max(token, last) if at_us == now_us else token, now_us

    def _check_duplicate(self, job: JobFacts, delivery: Delivery) -> None:
        if not job.terms.retry_s:
            self._world.fail("P5", f"delivered again at {delivery.at_us / 1e6:.3f} by n{delivery.machine}: {job}")
            return
        cause = duplicate_cause(self._world, job, delivery)
        self.causes[cause] = self.causes.get(cause, 0) + 1
        if cause.startswith(UNEXPLAINED):
            text = f"{cause}: delivered again at {delivery.at_us / 1e6:.3f} by n{delivery.machine}: {job}"
            self._world.fail("P3", text)

    def _set_not_before(self, job: JobFacts, delivery: Delivery) -> None:
        """Without faults, the next delivery is a retry time from the last queueing away, or a lease from this."""
        now_us, retry_us = delivery.at_us, job.terms.retry_s * SECOND
        was_early = job.not_before_us > now_us
        if not job.deliveries:
            job.not_before_us = job.sent_us + job.terms.delay_s * SECOND + retry_us - JITTER_US
        elif was_early or job.was_late:  # nothing is known of when it was queued
            job.not_before_us = 0
        else:
            job.not_before_us = max(job.not_before_us, job.nacked_us) + retry_us - JITTER_US
        if job.deliveries and was_early:
            job.has_twin = False  # this was the other one
        elif job.was_late:
            job.has_twin = True
        if delivery.lease_us:  # it began with the fetch, up to a turn before the reply
            turn_us = self._world.machines[delivery.machine].turn_us
            job.not_before_us = now_us + delivery.lease_us - turn_us - 5 * MS
        job.nacked_us = 0
        job.was_late = False

    def _check_delay(self, job: JobFacts, machine: Machine) -> None:
        delay_us = job.terms.delay_s * SECOND
        if self._world.timeline.now_us >= job.sent_us + delay_us:
            return  # whatever clocks say that were set back meanwhile
        record = machine.node.jobs.get(job.id)
        for index, (life, monotonic_us) in enumerate(job.clocks):
            other = self._world.machines[index]
            if other.life == life:
                if other.monotonic_us - monotonic_us >= delay_us:
                    return
            elif record is not None and other.wall_us + other.gained_us >= record.ctime // 1000 + delay_us:
                return
        self._world.fail("P8", f"delivered at {self._world.timeline.now_us / 1e6:.3f} by n{machine.index}: {job}")

    def acked(self, connection: SimConnection, job: JobFacts, was_known: bool) -> None:
        """Note the answer to an ack."""
        if not connection.is_open:
            return
        machine = connection.machine
        node = machine.node
        strength = FIRM
        if not was_known:
            record = node.jobs.get(job.id)
            if record is not None and record.state == ACKED:
                strength = WEAK
            elif job.id not in node.finished:
                was_staying = not node.cluster.leaving and machine.operated_us != self._world.timeline.now_us
                if job.terms.retry_s and was_staying and node.cluster.size > 1:
                    self._world.fail("P3", f"n{machine.index} was told of an ack, and doesn't pass it on: {job}")
                return  # a leaving node, or a job that is delivered once: nobody keeps it
        job.acks.append(Ack(self._world.timeline.now_us, machine.index, machine.life, strength))

    def claim_acked(self, connection: SimConnection, jobs: list[JobFacts], count: int) -> None:
        """Note the answer to the ack of a claim: all of its jobs, or it can't be told which."""
        if count == len(jobs):
            for job in jobs:
                self.acked(connection, job, True)

    def nacked(self, machine: Machine, job_id: bytes, after_ms: int) -> None:
        """Note that a job was given back, for now or for later."""
        job = self.history.by_id[job_id]
        now_us = self._world.timeline.now_us
        # A nack after the retry time finds the job queued again, here or elsewhere: it may come twice.
        job.was_late = now_us >= job.not_before_us
        job.nacked_us = now_us
        job.not_before_us = now_us + after_ms * MS - machine.turn_us if after_ms else 0
        if not after_ms:
            self._world.waits.given_back(job)

    def put_off(self, job: JobFacts, by_us: int) -> None:
        """Note that a worker keeps a job for longer."""
        now_us = self._world.timeline.now_us
        if now_us < job.not_before_us:  # later, another node may have queued it already
            job.not_before_us = max(job.not_before_us, now_us + by_us - JITTER_US)

    def used_token(self, connection: SimConnection, job: JobFacts, token: int, status: str) -> None:
        """Note what became of an ack, nack or extension by token."""
        if status != "OK":
            return
        machine = connection.machine
        for later in reversed(job.deliveries):
            if later.machine != machine.index or later.life != machine.life:
                continue
            if later.token != token:
                self._world.fail("P4", f"a stale token {token} was good on n{machine.index}: {job}")
            return

    def unsent(self, machine: Machine, to: bytes | None) -> None:
        """Note jobs that are given away, in messages which now can't be sent: to one node, or to any."""
        for whom, record in machine.node.outbox.unsent():
            job = self.history.by_body.get(decode_record(record)[0].body)  # its producer may not know its id yet
            if job is not None and (to is None or to in whom):
                job.lost_in_message.add("one that was never sent")

    # Processes end and start.

    def process_ends(self, machine: Machine, was_power: bool) -> None:
        """Note which copies a process had, and whether its disk has them: all that was written, or only the synced."""
        copies: dict[bytes, bool] = {}
        if machine.is_loading:
            return  # it has nothing in memory yet: what it had before stands
        machine.acked = set()
        self.unsent(machine, None)
        for job_id in machine.unflushed:  # perhaps handed on in this turn, which will never end
            job = self.history.by_id.get(job_id)
            if job is not None and not job.terms.retry_s:
                job.lost_on.add(machine.index)
        for job_id in self.history.open:
            record = machine.node.jobs.get(job_id)
            if record is None:
                continue
            if record.state == ACKED:
                machine.acked.add(job_id)
                continue
            if record.state == WAIT_REPL and not (is_handover(record) and record.rules.retry_s):
                continue  # not in the journal yet; or gone with a message, which tells what becomes of it
            job = self.history.by_id[job_id]
            if not record.rules.retry_s and record.flags & DELIVERED:
                if not job.deliveries:  # fetched, and perhaps written down, but the reply has not left
                    job.lost_on.add(machine.index)
                continue
            copies[job_id] = machine.policy != OFF and machine.disk.holds(AOF, job_id, was_power)
            if not record.rules.retry_s and job_id in machine.unflushed:
                copies[job_id] = False  # what the disk has of it may be that it was here before, and went
            if machine.policy != OFF and not was_power and not copies[job_id] and job_id not in machine.unflushed:
                if 0 < job.told_us < self._world.timeline.now_us - machine.turn_us:
                    self._world.fail("P1", f"n{machine.index} has it, but its journal hasn't: {job}")
        machine.copies = copies

    def loaded(self, machine: Machine) -> None:
        """Note which copies are gone for good, and look for acks that are."""
        for job_id in machine.acked:
            record = machine.node.jobs.get(job_id)
            if record is not None and record.state != ACKED:
                self._check_forgotten_ack(machine, self.history.by_id[job_id])
        for job_id, was_on_disk in machine.copies.items():
            job = self.history.by_id[job_id]
            record = machine.node.jobs.get(job_id)
            if record is None:
                if was_on_disk and not self._may_have_expired(job):
                    self._world.fail("P1", f"n{machine.index} had it on its disk, and lost it: {job}")
                job.lost_on.add(machine.index)
            elif not record.rules.retry_s and record.flags & DELIVERED:
                job.lost_on.add(machine.index)  # withheld, since it may have been delivered
        machine.copies = {}

    def _check_forgotten_ack(self, machine: Machine, job: JobFacts) -> None:
        """An ack that was answered outlives the process, as far as its journal does."""
        for ack in job.acks:
            if ack.machine == machine.index and ack.strength == FIRM and ack.at_us > machine.lost_data_us:
                self._world.fail("P3", f"n{machine.index} has forgotten in a restart that it is acked: {job}")
                return

    def _may_have_expired(self, job: JobFacts) -> bool:
        return self._world.timeline.now_us + self._world.jumped_us >= job.sent_us + (job.terms.ttl_s - 2) * SECOND

    # From time to time, and in the end.

    def look(self) -> None:
        """Look at the jobs of all nodes: what has changed, and which acks are everywhere by now."""
        now_us = self._world.timeline.now_us
        alive: set[bytes] = set()  # somewhere, and not acked there
        registered: set[bytes] = set()
        jobs = self.history.open
        for machine in self._world.machines:
            if not machine.is_up or machine.is_loading:
                alive.update(machine.copies)
                machine.states = {}
                continue
            self.node_checks.look(machine)
            states: dict[bytes, int] = {}
            find = machine.node.jobs.get
            for job_id in jobs:
                record = find(job_id)
                if record is not None:
                    states[job_id] = packed(record)
                    if record.state != ACKED:
                        alive.add(job_id)
            self._count_changes(machine, states)
            machine.states = states
            registered.update(states)
        for job_id, job in list(jobs.items()):
            if job_id in alive:
                continue
            if job_id not in registered and (job.acks or job.sent_us + job.terms.ttl_s * SECOND < now_us):
                job.ack_everywhere_us = now_us
                del jobs[job_id]

    def _count_changes(self, machine: Machine, after: dict[bytes, int]) -> None:
        before, change = machine.states, self._world.coverage.change
        for job_id, state in after.items():
            old = before.get(job_id, NONE)
            if old == state:
                continue
            if old & 7 != state & 7:
                change(old & 7, state & 7)
            if old != NONE and not self._may_have_expired(self.history.by_id[job_id]):  # else it may be a new record
                self.node_checks.check_job_counters(machine, job_id, old, state)
        for job_id, state in before.items():
            if job_id not in after:
                change(state & 7, GONE)

    def check_drained(self, added_before_us: int) -> None:
        """P6: no job waits or is out any more."""
        for machine in self._world.machines:
            if not machine.is_up:
                self._world.fail("P6", f"n{machine.index} is down after everything healed")
                continue
            for record in machine.node.jobs:
                if record.state not in (ACTIVE, QUEUED):
                    continue
                job = self.history.by_body.get(record.body)
                if job is None:
                    self._world.fail("P2", f"n{machine.index} holds a job out of thin air: {record.id!r}")
                    continue
                if job.sent_us > added_before_us:
                    continue
                if not record.rules.retry_s and (record.flags & DELIVERED or record.state == ACTIVE):
                    continue  # shown until it expires, never delivered
                state = "queued" if record.state == QUEUED else "active"
                self._world.fail("P6", f"still {state} on n{machine.index} when all should have drained: {job}")

    def is_settled(self) -> bool:
        """Whether no node has a job that anything can still happen to, and all of them know of each other."""
        return all(
            machine.is_up
            and not machine.is_loading
            and not machine.node.acked
            and self.node_checks.is_whole(machine)
            and all(record.state == ACTIVE and not record.rules.retry_s for record in machine.node.jobs)
            for machine in self._world.machines
        )

    def check_end(self) -> None:
        """Check what must hold when all is over."""
        for job in self.history.jobs:
            if job.told_us and not job.deliveries and not has_moved(job):
                excuse = loss_excuse(self._world, job, "lost")
                self.excuses[excuse] = self.excuses.get(excuse, 0) + 1
                if not excuse:
                    self._world.fail("P1", f"never delivered: {job}")
        check_moves(self._world)
        for machine in self._world.machines:
            if not machine.is_up:
                continue
            self.node_checks.check_end(machine)
            for record in machine.node.jobs:
                if record.state == ACKED:
                    known = self.history.by_id.get(record.id)
                    name = str(known) if known is not None else repr(record.id)
                    self._world.fail("P6", f"n{machine.index} still has an acked job: {name}")
                elif record.state == WAIT_REPL:
                    self._world.fail("P6", f"n{machine.index} still has a job that waits for copies: {record.id!r}")
