"""Why a drain doesn't move: sentences from the states of the jobs that are left."""

from __future__ import annotations

from penstock.cli.cluster.drain import RemainingJobs, reasons
from tests.unit.cli.cluster_data import line, node_id, report


def test_a_leased_job_waits_for_its_worker_or_the_end_of_the_lease() -> None:
    held = [RemainingJobs("active", 2, True, wait_ms=17_500)]
    assert reasons(held, report(1, line(2), registered_jobs="2")) == [
        "2 jobs leased by workers: until they are done, or for 17s at most."
    ]


def test_a_job_that_is_handed_over_waits_for_whom_it_was_sent_to() -> None:
    held = [RemainingJobs("wait-repl", 1, True, frozenset({node_id(2)}))]
    assert reasons(held, report(1, line(2), line(3), registered_jobs="1")) == [
        "1 job sent, and not yet confirmed by 10.0.0.1:7712."
    ]


def test_an_acked_job_waits_for_a_dead_node_and_what_to_do_is_reported() -> None:
    held = [RemainingJobs("acked", 3, True, frozenset({node_id(2)}))]
    assert reasons(held, report(1, line(2, "fail"), line(3), registered_jobs="3")) == [
        (
            "3 jobs acked, and kept until 10.0.0.1:7712 (fail) has confirmed it. If it is gone for good: "
            "penstock cluster forget 22222222 --from 10.0.0.1:7711"
        )
    ]


def test_an_acked_job_waits_for_a_living_node_and_there_is_nothing_to_do() -> None:
    held = [RemainingJobs("acked", 1, True, frozenset({node_id(2)}))]
    assert reasons(held, report(1, line(2), registered_jobs="1")) == [
        "1 job acked, and kept until 10.0.0.1:7712 has confirmed it."
    ]


def test_without_a_node_that_takes_jobs_that_is_the_reason() -> None:
    held = [RemainingJobs("queued", 1000, False), RemainingJobs("active", 1, True)]
    for other in (line(2, "fail"), line(2, "leaving"), line(2, is_linked=False)):
        said = reasons(held, report(1, other, registered_jobs="1001"))
        assert said[0].startswith("No other node that takes jobs can be reached")
        assert said[1:] == ["more than 1000 jobs queued.", "1 job active."]


def test_acks_of_jobs_that_were_never_here_are_found_by_what_is_missing() -> None:
    held = [RemainingJobs("queued", 1, True)]
    assert reasons(held, report(1, line(2), registered_jobs="3")) == [
        "1 job queued: they will be sent again.",
        "2 acks for jobs that it never had, kept until the other nodes have confirmed them.",
    ]
