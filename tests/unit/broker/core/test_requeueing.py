"""What several nodes say about a job comes in any order."""

from __future__ import annotations

from penstock.broker.core.jobs import WAIT_REPL
from penstock.broker.core.requeueing import heard_queued, heard_working
from tests.transcripts.stage import Stage


def test_a_job_that_waits_for_copies_is_put_off_by_the_longest_time_that_anybody_told() -> None:
    stage = Stage()
    stage.do("nodes A B C")
    stage.do("stop B")
    stage.do("stop C")
    stage.do("A ADDJOB q body 60000 REPLICATE 3 RETRY 1")
    node = stage.desks["A"].broker.node
    (job,) = node.jobs
    assert job.state == WAIT_REPL
    heard_working(node, node.cluster.peers[b"b" * 40], 0, None, [(job.id, 8000)])
    heard_queued(node, node.cluster.peers[b"c" * 40], 0, None, [(job.id, 0)])
    assert job.requeue_at >= node.now_ms + 8000
