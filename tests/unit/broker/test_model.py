"""A whole node against a tiny model of it, through random histories of commands and passing time.

The model knows for each job what a careful reader of the commands' documentation would: its body, whether it waits or
is out, under which token or claim, and when it is due. What it checks, by the names of docs/architecture.md: P2 (no job
out of thin air, bodies byte for byte), P3 (an acked job is not delivered again), P4 (a stale lease changes nothing), P5
(retry 0 is delivered at most once), P8 (nothing early), lengths of queues, and that memory is given back.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import hiredis
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.broker.core.jobs import JOB_BYTES
from penstock.broker.core.queues import QUEUE_BYTES
from penstock.broker.core.tokens import claims_bytes
from tests.unit.broker.harness import LocalServer

QUEUES = (b"red", b"green")
KEYS = (b"key 1", b"key 2")
JITTER_MS = 250

picks = st.integers(0, 1000)
queues = st.sampled_from(QUEUES)
keys = st.sampled_from(KEYS)
times_ms = st.sampled_from([0, 400, 3000])


@dataclass
class Known:
    """What the model knows about one job."""

    id: bytes
    queue: bytes
    body: bytes
    retry_s: int
    expires_ms: int
    number: int  # the order of creation
    half_ms: int  # until when WORKING is allowed
    state: str = "active"
    due_ms: int | None = None
    delivered: bool = False
    nacks: int = 0
    token: bytes = b""
    claim: bytes = b""

    @property
    def can_queue(self) -> bool:
        return self.state == "active" and (self.retry_s > 0 or not self.delivered)


class NodeModel(RuleBasedStateMachine):
    """The rules are commands; the invariants are looked at after each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.server = LocalServer()
        self.client = self.server.client()
        self.jobs: dict[bytes, Known] = {}  # those that are alive
        self.ended: list[bytes] = []
        self.tokens: list[tuple[bytes, bytes]] = []  # every lease that ever was
        self.claims: dict[bytes, dict[bytes, Known]] = {key: {} for key in KEYS}
        self.added = 0

    # The model

    @property
    def now_ms(self) -> int:
        return self.server.broker.node.now_ms

    def waiting(self, queue: bytes) -> list[Known]:
        return sorted(
            (job for job in self.jobs.values() if job.queue == queue and job.state == "queued"),
            key=lambda job: job.number,
        )

    def pick(self, number: int) -> bytes:
        """Choose a job: mostly one that is alive, sometimes one that has ended."""
        ids = [*self.jobs, *self.ended[-2:]]
        return ids[number % len(ids)]

    def let_go(self, job: Known) -> None:
        job.token = b""
        if job.claim:
            del self.claims[job.claim][job.id]
            job.claim = b""

    def queue_job(self, job: Known) -> None:
        self.let_go(job)
        job.state = "queued"
        self.see_retry(job)

    def end(self, job: Known) -> None:
        self.let_go(job)
        del self.jobs[job.id]
        self.ended.append(job.id)

    def facts(self, job_id: bytes) -> dict[bytes, Any] | None:
        shown = self.client.call("SHOW", job_id)
        return None if shown is None else dict(zip(shown[::2], shown[1::2], strict=True))

    def see_retry(self, job: Known) -> None:
        """Take over from the node when a job is due after its retry time: that is up to chance, within bounds."""
        facts = self.facts(job.id)
        assert facts is not None
        within_ms = facts[b"next-requeue-within"]
        if not job.retry_s:
            assert within_ms is None
            job.due_ms = None
            return
        assert 0 <= within_ms < job.retry_s * 1000 + JITTER_MS
        job.due_ms = self.now_ms + within_ms

    def take(self, job: Known) -> None:
        """Note a delivery, and check that there may be one."""
        assert job.retry_s or not job.delivered, "P5: delivered twice in spite of retry 0"
        job.state, job.delivered = "active", True

    # Adding and fetching

    @rule(
        queue=queues,
        body=st.binary(max_size=20),
        retry_s=st.sampled_from([0, 0, 1, 5, 400]),
        delay_s=st.sampled_from([0, 0, 0, 2]),
        ttl_s=st.sampled_from([3, 1000, 1000]),
    )
    def add(self, queue: bytes, body: bytes, retry_s: int, delay_s: int, ttl_s: int) -> None:
        words = ["ADDJOB", queue, body, 0, "RETRY", retry_s, "DELAY", delay_s, "TTL", ttl_s]
        job_id = self.client.call(*words)
        assert job_id not in self.jobs
        assert job_id not in self.ended
        self.added += 1
        now_ms = self.now_ms
        job = Known(job_id, queue, body, retry_s, now_ms + ttl_s * 1000, self.added, now_ms + ttl_s * 500)
        self.jobs[job_id] = job
        if delay_s:
            job.due_ms = now_ms + delay_s * 1000 + 1
        else:
            self.queue_job(job)

    @rule(queue=queues, bodies=st.lists(st.binary(max_size=5), min_size=1, max_size=4))
    def add_many(self, queue: bytes, bodies: list[bytes]) -> None:
        ids = self.client.call("ADDJOBS", queue, 0, "RETRY", 5, "BODIES", *bodies)
        for job_id, body in zip(ids, bodies, strict=True):
            self.added += 1
            now_ms = self.now_ms
            job = Known(job_id, queue, body, 5, now_ms + 86_400_000, self.added, now_ms + 43_200_000)
            self.jobs[job_id] = job
            self.queue_job(job)

    @rule(queue=queues, count=st.integers(1, 3))
    def get(self, queue: bytes, count: int) -> None:
        expected = self.waiting(queue)[:count]
        reply = self.client.call("GETJOB", "NOHANG", "COUNT", count, "FROM", queue)
        assert (reply or []) == [[queue, job.id, job.body] for job in expected]
        for job in expected:
            self.take(job)

    @rule(queue=queues, count=st.integers(1, 3), lease_ms=st.sampled_from([300, 10_000]))
    def get_with_lease(self, queue: bytes, count: int, lease_ms: int) -> None:
        expected = self.waiting(queue)[:count]
        reply = self.client.call("GETJOB", "NOHANG", "LEASE", lease_ms, "COUNT", count, "FROM", queue) or []
        assert [job[:3] for job in reply] == [[queue, job.id, job.body] for job in expected]
        for job, row in zip(expected, reply, strict=True):
            self.take(job)
            job.token = row[3]
            self.tokens.append((job.id, job.token))
            if job.retry_s:
                job.due_ms = self.now_ms + lease_ms

    # Ending and giving back

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, command=st.sampled_from(["ACKJOB", "FASTACK", "DELJOB"]))
    def finish(self, pick: int, command: str) -> None:
        job = self.jobs.get(job_id := self.pick(pick))
        assert self.client.call(command, job_id) == (job is not None)
        if job is not None:
            self.end(job)

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, command=st.sampled_from(["NACK", "ENQUEUE"]))
    def give_back(self, pick: int, command: str) -> None:
        job = self.jobs.get(job_id := self.pick(pick))
        moves = job is not None and job.can_queue
        assert self.client.call(command, job_id) == moves
        if job is not None and moves:
            job.nacks += command == "NACK"
            self.queue_job(job)
        elif job is not None and command == "NACK":
            self.let_go(job)

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, after_ms=times_ms)
    def give_back_later(self, pick: int, after_ms: int) -> None:
        job = self.jobs.get(job_id := self.pick(pick))
        moves = job is not None and job.can_queue
        assert self.client.call("NACK", "AFTER", after_ms, job_id) == moves
        if job is not None:
            self.nacked(job, after_ms)

    def nacked(self, job: Known, after_ms: int) -> None:
        if not job.can_queue:  # delivered for the only time: nobody's any more
            self.let_go(job)
            return
        job.nacks += 1
        if not after_ms:
            self.queue_job(job)
            return
        self.let_go(job)
        job.due_ms = self.now_ms + after_ms + 1

    @precondition(lambda self: self.jobs)
    @rule(pick=picks)
    def dequeue(self, pick: int) -> None:
        job = self.jobs.get(job_id := self.pick(pick))
        moves = job is not None and job.state == "queued"
        assert self.client.call("DEQUEUE", job_id) == moves
        if job is not None and moves:
            job.state = "active"

    @precondition(lambda self: self.jobs)
    @rule(pick=picks)
    def working(self, pick: int) -> None:
        job = self.jobs.get(job_id := self.pick(pick))
        reply = self.client.call("WORKING", job_id)
        if job is None:
            assert str(reply).startswith("NOJOB")
        elif self.now_ms > job.half_ms:
            assert isinstance(reply, hiredis.ReplyError)
            assert str(reply).startswith("TOOLATE")
        else:
            assert reply == job.retry_s
            if job.retry_s:
                job.state = "active"
                self.see_retry(job)

    # Leases

    def status(self, job_id: bytes, token: bytes) -> bytes:
        job = self.jobs.get(job_id)
        if job is None:
            return b"NOJOB"
        return b"OK" if job.token == token and job.state == "active" else b"STALE"

    @precondition(lambda self: self.tokens)
    @rule(pick=picks)
    def ack_lease(self, pick: int) -> None:
        job_id, token = self.tokens[pick % len(self.tokens)]
        expected = self.status(job_id, token)
        assert self.client.call("ACKLEASE", job_id, token) == [expected]
        if expected == b"OK":
            self.end(self.jobs[job_id])

    @precondition(lambda self: self.tokens)
    @rule(pick=picks, after_ms=times_ms)
    def nack_lease(self, pick: int, after_ms: int) -> None:
        job_id, token = self.tokens[pick % len(self.tokens)]
        expected = self.status(job_id, token)
        assert self.client.call("NACKLEASE", after_ms, job_id, token) == [expected]
        if expected == b"OK":
            self.nacked(self.jobs[job_id], after_ms)

    @precondition(lambda self: self.tokens)
    @rule(pick=picks, lease_ms=st.sampled_from([300, 5000]))
    def extend_lease(self, pick: int, lease_ms: int) -> None:
        job_id, token = self.tokens[pick % len(self.tokens)]
        expected = self.status(job_id, token)
        assert self.client.call("EXTEND", lease_ms, job_id, token) == [expected]
        if expected == b"OK" and self.jobs[job_id].retry_s:
            self.jobs[job_id].due_ms = self.now_ms + lease_ms

    @precondition(lambda self: self.tokens)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        job_id, token = self.tokens[pick % len(self.tokens)]
        expected = self.status(job_id, token)
        assert self.client.call("RELEASE", job_id, token) == [expected]
        if expected == b"OK":
            job = self.jobs[job_id]
            job.delivered = job.delivered and job.retry_s > 0  # as if it had not been fetched
            self.queue_job(job)

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, is_own=st.booleans(), lease_ms=st.sampled_from([300, 5000]))
    def lease_by_id(self, pick: int, is_own: bool, lease_ms: int) -> None:
        job = self.jobs.get(job_id := self.pick(pick))
        token = job.token if job is not None and is_own and job.token else b"1"
        can = job is not None and (job.state == "queued" or self.status(job_id, token) == b"OK")
        (row,) = self.client.call("LEASE", lease_ms, job_id, token)
        assert (row is not None) == can
        if job is None or row is None:
            return
        assert row[:3] == [job.queue, job.id, job.body]
        if job.state == "queued":
            self.take(job)
        job.token = row[3]
        self.tokens.append((job_id, job.token))
        if job.retry_s:
            job.due_ms = self.now_ms + lease_ms

    # Claims

    @rule(key=keys, queue=queues, count=st.integers(0, 3), lease_ms=st.sampled_from([300, 5000]))
    def claim(self, key: bytes, queue: bytes, count: int, lease_ms: int) -> None:
        held = self.claims[key]
        expected = list(held.values()) or self.waiting(queue)[:count]
        reply = self.client.call("CLAIM", key, "COUNT", count, "LEASE", lease_ms, "FROM", queue)
        assert [row[1:3] for row in reply] == [[job.id, job.body] for job in expected]
        for job in expected:
            if job.claim != key:
                self.take(job)
                job.claim = key
                held[job.id] = job
            if job.retry_s:
                job.due_ms = self.now_ms + lease_ms

    @rule(key=keys)
    def ack_claim(self, key: bytes) -> None:
        held = list(self.claims[key].values())
        assert self.client.call("ACKCLAIM", key) == len(held)
        for job in held:
            self.end(job)

    @rule(key=keys, after_ms=times_ms)
    def nack_claim(self, key: bytes, after_ms: int) -> None:
        held = list(self.claims[key].values())
        assert self.client.call("NACKCLAIM", key, after_ms) == sum(job.can_queue for job in held)
        for job in held:
            self.nacked(job, after_ms)

    # Time

    @rule(seconds=st.sampled_from([0.01, 0.3, 0.9, 1.5, 4.0, 310.0]))
    def pass_time(self, seconds: float) -> None:
        self.server.advance(seconds)
        for job in list(self.jobs.values()):
            facts = self.facts(job.id)
            if job.expires_ms <= self.now_ms:
                assert facts is None, "it should have expired"
                self.end(job)
                continue
            assert facts is not None, "P1: lost"
            if job.due_ms is not None and job.due_ms <= self.now_ms:
                assert facts[b"state"] == b"queued", "it should have come back"
                self.queue_job(job)
            assert facts[b"state"].decode() == job.state, "P8: early, or moved without a cause"
            assert facts[b"nacks"] == job.nacks & 0xFFFF

    # What holds after every step

    @invariant()
    def queues_are_as_long_as_the_model_says(self) -> None:
        for queue in QUEUES:
            assert self.client.call("QLEN", queue) == len(self.waiting(queue))

    @invariant()
    def memory_is_that_of_the_jobs_queues_and_claims_there_are(self) -> None:
        node = self.server.broker.node
        queue_bytes = sum(QUEUE_BYTES + len(name) for name in node.queues.by_name)
        job_bytes = sum(JOB_BYTES + len(job.body) for job in self.jobs.values())
        assert node.memory.used_bytes - node.memory.base_bytes == queue_bytes + job_bytes + claims_bytes(node)
        assert node.jobs.count == len(self.jobs)

    @invariant()
    def claims_hold_what_the_model_says(self) -> None:
        held = {key: list(claim.jobs) for key, claim in self.server.broker.node.claims.items()}
        assert held == {key: list(jobs) for key, jobs in self.claims.items() if jobs}

    def teardown(self) -> None:
        """Ack everything: then nothing is left, neither jobs nor memory nor a delivery to come."""
        if self.jobs:
            assert self.client.call("ACKJOB", *self.jobs) == len(self.jobs)
        node = self.server.broker.node
        self.server.advance(301)
        assert self.client.call("GETJOB", "NOHANG", "COUNT", 9, "FROM", *QUEUES) is None
        queue_bytes = sum(QUEUE_BYTES + len(name) for name in QUEUES)
        assert node.memory.used_bytes == node.memory.base_bytes + queue_bytes
        assert (node.jobs.count, node.claims) == (0, {})


HISTORIES = 1000 if os.environ.get("PENSTOCK_LONG") else 60
NodeModel.TestCase.settings = settings(max_examples=HISTORIES, stateful_step_count=40, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestModel(NodeModel.TestCase):  # type: ignore[misc,name-defined]  # made by hypothesis
    """Random histories of commands do what the model says."""
