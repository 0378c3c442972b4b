"""Job ids: their form, what their last field tells, and that no two are alike."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.core.ids import BLOCK_IDS, IdSource, id_suffix, is_job_id, ttl_from_id

NODE_ID = b"8ff1663c" + b"0" * 32


def entropy() -> Callable[[int], bytes]:
    """Bytes that look random and never repeat."""
    blocks = iter(range(10**9))
    return lambda count: hashlib.shake_128(b"%d" % next(blocks)).digest(count)


@given(st.lists(st.integers(1, 3000), max_size=8))
def test_ids_have_their_form_and_never_repeat_however_many_are_asked_for(counts: list[int]) -> None:
    source = IdSource(NODE_ID, entropy())
    ids = [job_id for count in counts for job_id in source.new(b"-05a1", count)]
    assert len(ids) == len(set(ids)) == sum(counts)
    assert all(re.fullmatch(rb"D-8ff1663c-[A-Za-z0-9+/]{24}-05a1", job_id) for job_id in ids)


@pytest.mark.parametrize("count", [BLOCK_IDS - 1, BLOCK_IDS, BLOCK_IDS + 1, 3 * BLOCK_IDS])
def test_ids_do_not_repeat_across_the_blocks_they_are_cut_from(count: int) -> None:
    source = IdSource(NODE_ID, entropy())
    ids = [*source.new(b"-05a1", 1), *source.new(b"-05a1", count), *source.new(b"-05a1", 5)]
    assert len(set(ids)) == count + 6


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**32 - 1))
def test_the_last_field_tells_minutes_to_live_and_whether_a_job_is_retried(ttl_s: int, retry_s: int) -> None:
    told_s, is_retried = ttl_from_id(b"D-8ff1663c-" + b"x" * 24 + id_suffix(ttl_s, retry_s))
    assert is_retried == (retry_s > 0)
    assert abs(told_s - min(ttl_s, 0xFFFF * 60)) <= 119


@pytest.mark.parametrize(
    ("digits", "seconds", "is_retried"),
    [
        (b"05a1", 1441 * 60, True),
        (b"05A1", 1441 * 60, True),
        (b"05a0", 1440 * 60, False),
        (b"zz01", 60, True),
        (b"ffff", 65535 * 60, True),
    ],
)
def test_the_last_field_is_read_in_any_case_and_what_is_no_digit_counts_as_0(
    digits: bytes, seconds: int, is_retried: bool
) -> None:
    assert ttl_from_id(b"D-8ff1663c-" + b"x" * 24 + b"-" + digits) == (seconds, is_retried)


@given(st.binary(min_size=40, max_size=40))
def test_only_the_dashes_and_the_length_make_an_id(text: bytes) -> None:
    formed = b"D-" + text[2:10] + b"-" + text[11:35] + b"-" + text[36:]
    assert is_job_id(formed)
    assert not is_job_id(formed[:-1])
    assert not is_job_id(formed + b"x")
    for at in (0, 1, 10, 35):
        assert not is_job_id(formed[:at] + b"_" + formed[at + 1 :])
