"""The record of a job."""

from __future__ import annotations

from penstock.broker.core import jobs
from penstock.broker.journal import AHEAD_STORED


def test_each_flag_of_a_job_is_a_bit_of_its_own() -> None:
    names = ("BCAST_QUEUED", "BCAST_WILLQUEUE", "DELIVERED", "LISTED", "OUT", "GIVEN", "AHEAD", "RETURNING", "IMPORTED")
    flags = [getattr(jobs, name) for name in (*names, "ACK_NOTED")]
    assert sum(flags) == (1 << len(flags)) - 1


def test_the_flags_of_a_stored_state_fit_into_their_byte() -> None:
    assert not jobs.STORED_FLAGS & AHEAD_STORED
    assert jobs.STORED_FLAGS | AHEAD_STORED < 256
