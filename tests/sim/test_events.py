"""Events of a whole cluster under faults: each fact is recorded once, never by copies, and changes nothing."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.broker.core.jobs import Job, attempt_of
from penstock.sim.batch import quiet
from penstock.sim.run import simulate

pytestmark = pytest.mark.timeout(300)


class Recorded:
    """The port of all nodes (core.node.EventsPort): counts."""

    def __init__(self) -> None:
        self.by_job: dict[bytes, Counter[str]] = {}

    def _note(self, kind: str, *ids: bytes) -> None:
        for job_id in ids:
            self.by_job.setdefault(job_id, Counter())[kind] += 1

    def added(self, jobs: list[Job]) -> None:
        assert len({(job.queue, job.rules) for job in jobs}) == 1
        self._note("added", *(job.id for job in jobs))

    def queued(self, job: Job) -> None:
        self._note("queued", job.id)

    def reserved(self, jobs: list[Job]) -> None:
        assert len({job.queue for job in jobs}) == 1
        assert min(attempt_of(job) for job in jobs) >= 1
        self._note("reserved", *(job.id for job in jobs))

    def begun(self, job: Job) -> None:
        self._note("begun", job.id)

    def extended(self, job: Job) -> None:
        self._note("extended", job.id)

    def acked(self, job: Job) -> None:
        self._note("acked", job.id)

    def acked_unknown(self, job_id: bytes) -> None:
        self._note("acked", job_id)

    def nacked(self, job: Job, attempt: int, after_ms: int) -> None:
        self._note("nacked", job.id)

    def requeued(self, job: Job, attempt: int) -> None:
        self._note("requeued", job.id)

    def expired(self, job: Job) -> None:
        self._note("expired", job.id)

    def removed(self, job: Job) -> None:
        self._note("removed", job.id)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet()


def test_each_fact_is_recorded_once_and_recording_changes_nothing() -> None:
    recorded = Recorded()
    result = simulate(1, events=recorded)
    assert not result.violations
    assert max(kinds["added"] for kinds in recorded.by_job.values()) == 1
    assert sum(kinds["added"] for kinds in recorded.by_job.values()) >= result.jobs // 2
    # A delivery that left a node was recorded there; some never reached their client.
    assert sum(kinds["reserved"] for kinds in recorded.by_job.values()) >= result.deliveries
    assert simulate(1).digest == result.digest
