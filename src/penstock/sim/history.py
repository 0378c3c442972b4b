"""What clients asked for and were told: the outside of a run, job by job.

Every body is different, so a delivery is traced to its add whatever ids do. A job's record also collects what may
excuse a duplicate or a loss: nacks, leases and WORKING of its workers, copies that went with a node's data, messages
that carried it and were lost. The checks themselves are in `promises.py`.
"""

from __future__ import annotations

from typing import NamedTuple

FIRM, WEAK = "firm", "weak"  # of acks: the node knew the job; it keeps the ack of a job that it doesn't know


class AddOptions(NamedTuple):
    """What a producer asked for."""

    replicate: int
    retry_s: int
    delay_s: int
    ttl_s: int
    is_async: bool
    timeout_ms: int


class Delivery(NamedTuple):
    """One delivery, at the moment its reply left the node."""

    at_us: int
    machine: int
    life: int
    token: int  # of its lease, or 0
    lease_us: int
    claim: bytes
    was_heard: bool  # False: the client had hung up before


class Ack(NamedTuple):
    """An ack that was answered."""

    at_us: int
    machine: int
    life: int
    strength: str


class JobFacts:
    """One job as the outside knows it."""

    __slots__ = (
        "ack_everywhere_us",
        "acks",
        "body",
        "clocks",
        "deliveries",
        "has_twin",
        "id",
        "lost_in_message",
        "lost_on",
        "machine",
        "moves",
        "nacked_us",
        "not_before_us",
        "number",
        "queue",
        "refused",
        "sent_us",
        "terms",
        "told_us",
        "was_late",
    )

    def __init__(self, number: int, queue: bytes, body: bytes, terms: AddOptions, machine: int, sent_us: int) -> None:
        self.number = number
        self.queue = queue
        self.body = body
        self.terms = terms
        self.machine = machine  # where it was added
        self.sent_us = sent_us
        self.clocks: list[tuple[int, int]] = []  # of all machines at the add: life, monotonic; if it is delayed
        self.id = b""
        self.told_us = 0  # when its producer heard of it; 0 = never
        self.refused = ""
        self.deliveries: list[Delivery] = []
        self.acks: list[Ack] = []
        self.ack_everywhere_us = 0  # when no node had the job any more, since all holders had confirmed its ack
        self.moves: list[tuple[int, JobFacts]] = []  # when somebody asked to move it, and to what
        self.nacked_us = 0
        self.was_late = False  # the last nack came after its retry time
        self.has_twin = False  # so it was queued twice, by its retry and by the nack, and only one of them has come
        self.not_before_us = 0  # without faults it isn't delivered again before this
        self.lost_on: set[int] = set()  # machines that lost their copy, as they may
        self.lost_in_message: set[str] = set()  # types of messages that carried it and were lost

    def __str__(self) -> str:
        terms = self.terms
        words = [f"job {self.number} {self.id.decode() or 'without id'}"]
        words.append(f"replicate {terms.replicate} retry {terms.retry_s}")
        if terms.delay_s:
            words.append(f"delay {terms.delay_s}")
        if terms.is_async:
            words.append("async")
        words.append(f"ttl {terms.ttl_s}, sent to n{self.machine} at {self.sent_us / 1e6:.3f}")
        words.append(f"told {self.told_us / 1e6:.3f}" if self.told_us else self.refused or "never told")
        words += [
            f"delivered {d.at_us / 1e6:.3f} n{d.machine}" + (f" lease {d.lease_us / 1e6:g}" if d.lease_us else "")
            for d in self.deliveries
        ]
        words += [f"acked {a.at_us / 1e6:.3f} n{a.machine} {a.strength}" for a in self.acks]
        if self.lost_on:
            words.append(f"lost on {sorted(self.lost_on)}")
        if self.lost_in_message:
            words.append(f"lost in {sorted(self.lost_in_message)}")
        return ", ".join(words)


class History:
    """All jobs of a run."""

    def __init__(self) -> None:
        self.jobs: list[JobFacts] = []
        self.by_body: dict[bytes, JobFacts] = {}
        self.by_id: dict[bytes, JobFacts] = {}
        self.open: dict[bytes, JobFacts] = {}  # by id: some node may still hold it

    def sent(self, queue: bytes, body: bytes, terms: AddOptions, machine: int, now_us: int) -> JobFacts:
        """Note that a producer asked for a job."""
        job = JobFacts(len(self.jobs), queue, body, terms, machine, now_us)
        self.jobs.append(job)
        self.by_body[body] = job
        return job

    def identified(self, job: JobFacts, job_id: bytes) -> bool:
        """Note a job's id; False if it had another one, or another job has it."""
        if not job.id and job_id not in self.by_id:
            job.id = job_id
            self.by_id[job_id] = self.open[job_id] = job
        return job.id == job_id
