"""What several nodes say about a job comes in any order."""

from __future__ import annotations

from penstock.broker.core.jobs import WAIT_REPL
from penstock.broker.core.requeueing import on_queued, on_working
from tests.transcripts.stage import Stage


def test_a_job_that_waits_for_copies_is_put_off_by_the_longest_time_that_anybody_told() -> None:
    stage = Stage()
    stage.do("nodes A B C")
    stage.do("stop B")
    stage.do("stop C")
    stage.do("A ADDJOB q body 60000 REPLICATE 3 RETRY 1")
    node = stage.servers["A"].broker.node
    (job,) = node.jobs
    assert job.state == WAIT_REPL
    on_working(node, node.cluster.peers[b"b" * 40], 0, None, [(job.id, 8000)])
    on_queued(node, node.cluster.peers[b"c" * 40], 0, None, [(job.id, 0)])
    assert job.requeue_at >= node.now_ms + 8000


def claimed(stage: Stage) -> str:
    """Lease the job under a key on A, if it can be had, and give the reply."""
    stage.do("A CLAIM key COUNT 1 LEASE 2000 FROM q")
    return stage.told()[-1]


def nearly_over() -> Stage:
    """Two nodes that hold a job, and a claim of it on A that ends in 0.4 s."""
    stage = Stage()
    stage.do("nodes A B")
    stage.do("A ADDJOB q body 0 REPLICATE 2 RETRY 60")
    stage.do("wait 0.01")
    assert "body" in claimed(stage)
    stage.do("wait 1.6")
    return stage


def queued_by_b(stage: Stage) -> None:
    """Let A hear that B has queued its job."""
    node = stage.servers["A"].broker.node
    (job,) = node.jobs
    on_queued(node, node.cluster.peers[b"b" * 40], 0, None, [(job.id, 0)])


def test_a_lease_that_is_over_ends_when_another_node_has_queued_the_job() -> None:
    stage = nearly_over()
    queued_by_b(stage)
    assert claimed(stage) == "A> []"


def test_a_lease_that_runs_stays_whoever_has_queued_the_job() -> None:
    stage = nearly_over()
    assert "body" in claimed(stage)  # begun again
    queued_by_b(stage)
    assert "body" in claimed(stage)
