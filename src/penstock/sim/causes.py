"""Why a job may come twice, or never: a name for each, or none, which is a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.sim.history import FIRM, Delivery, JobFacts
from penstock.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from penstock.sim.world import World

UNEXPLAINED = "unexplained"
UNDER_WAY_US = 100 * MS  # an ack may be on its way to the other holders for this time
TELL_US = 300 * MS  # what was delivered is told to the other holders after 100 ms, in a turn of its own
TAIL_US = 2 * SECOND  # after a fault, beside two node timeouts: links are opened again, and what was put off comes


def duplicate_cause(world: World, job: JobFacts, delivery: Delivery) -> str:
    """Name what made a job come again."""
    if job.acks:
        return _after_ack(world, job, delivery)
    now_us = delivery.at_us
    if job.nacked_us and now_us >= job.not_before_us:
        return "nack"
    if now_us >= job.not_before_us:
        return "lease over" if job.deliveries[-1].lease_us else "not acked within its retry time"
    if job.has_twin or job.was_late:
        return "queued twice, since a nack came after its retry time"
    fault = world.faults.between(job.sent_us - _tail_us(world, job), now_us, ("network", "crash", "clock"))
    if fault and _was_known_to_be_out(world, job):
        return f"{UNEXPLAINED} delivery of a job that was out with a client of a node that failed"
    return f"fault: {fault}" if fault else f"{UNEXPLAINED} duplicate"


def _was_known_to_be_out(world: World, job: JobFacts) -> bool:
    """Whether nothing else has happened since the add than that the node that delivered the job died, a while later."""
    last = job.deliveries[-1]
    if len(job.deliveries) > 1 or world.machines[last.machine].is_up:
        return False
    since_us = job.sent_us - TAIL_US - 2 * world.setup.node_timeout_ms * MS
    told_us = last.at_us + TELL_US + world.setup.turn_us
    for span in world.faults.spans:
        if span.ended_us and span.ended_us < since_us:
            continue
        if span.fault.kind != "kill" or span.fault.who[0] % len(world.machines) != last.machine:
            return False
        if span.begun_us < told_us:
            return False
    return True


def _tail_us(world: World, job: JobFacts) -> int:
    return TAIL_US + 2 * world.setup.node_timeout_ms * MS + job.terms.retry_s * SECOND


def _after_ack(world: World, job: JobFacts, delivery: Delivery) -> str:
    first = job.acks[0]
    if delivery.at_us + world.jumped_us >= job.sent_us + (job.terms.ttl_s - 1) * SECOND:
        return "at the end of its time to live, when its ack is forgotten"
    if job.refused:
        return "after its ack, of an add that was refused"
    if job.ack_everywhere_us:
        for kind in ("data", "forgotten", "memory"):
            fault = world.faults.between(job.sent_us, delivery.at_us, (kind,))
            if fault:
                return f"after its ack was everywhere: {fault}"
        return f"{UNEXPLAINED} delivery after its ack was everywhere"
    machine = world.machines[delivery.machine]
    for ack in job.acks:
        if delivery.at_us == ack.at_us:
            continue  # both were answered at the end of one turn: it may have been given out before the ack was read
        if ack.strength == FIRM and ack.machine == delivery.machine and ack.at_us > machine.lost_data_us:
            if not world.faults.between(job.sent_us, delivery.at_us, ("forgotten", "memory")):
                return f"{UNEXPLAINED} delivery by the node that was told of the ack"
    if world.faults.between(0, delivery.at_us, ("forgotten",)):
        if not any(machine.knows(world.machines[ack.machine]) for ack in job.acks):
            return "acked on a node that was forgotten"
    if delivery.at_us - first.at_us < UNDER_WAY_US + world.setup.turn_us:
        return "ack under way"
    kinds = ("network", "crash", "clock", "forgotten")
    fault = world.faults.between(job.sent_us - _tail_us(world, job), delivery.at_us, kinds)
    return f"ack held up: {fault}" if fault else f"{UNEXPLAINED} delivery after an ack"


def loss_excuse(world: World, job: JobFacts, what: str) -> str:
    """Name what may have kept a job from being delivered, or made a refused one come; empty if there is nothing."""
    now_us = world.timeline.now_us
    if what == "refused":
        return world.faults.between(job.sent_us - _tail_us(world, job), now_us, ("network", "crash"))
    terms = job.terms
    if now_us + world.jumped_us >= job.sent_us + (terms.ttl_s - 2) * SECOND:
        return "expired"
    copies = 1 if terms.is_async else terms.replicate
    if len(job.lost_on) >= copies:
        return "its copies were lost"
    if not terms.retry_s or terms.is_async:
        if job.lost_in_message:
            return f"without a second try, lost in {min(job.lost_in_message)}"
    return ""
