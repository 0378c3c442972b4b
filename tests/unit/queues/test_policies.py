"""Dead letters, back-off and ids."""

import time
import uuid
from typing import Any

import pytest

from penstock import DeadLetter, Exponential, Fixed
from penstock.errors import CallerError
from penstock.job import IdMaker, StoredJob, id_time_ms
from penstock.queues.backoff import FACTOR_MAX
from penstock.queues.dead_letter import from_dead_letters, to_dead_letters


@pytest.mark.parametrize("tries", [1, 2, 5])
def test_max_tries_is_a_number_of_deliveries(tries: int) -> None:
    limit = DeadLetter(max_tries=tries)
    assert [limit.is_last(earlier) for earlier in range(tries)] == [False] * (tries - 1) + [True]
    assert not limit.is_over(tries - 1)
    assert limit.is_over(tries)


def test_max_ko_is_two_deliveries_more() -> None:
    assert DeadLetter(max_ko=3).max_tries == 5
    assert DeadLetter(max_ko=0).max_tries == 0


def test_without_a_limit_a_job_is_never_given_up() -> None:
    assert not DeadLetter().is_last(10**9)
    assert not DeadLetter().is_over(10**9)


@pytest.mark.parametrize("options", [{"max_tries": -1}, {"max_ko": -1}, {"max_tries": 1, "max_ko": 1}, {"queue": ""}])
def test_limits_that_can_not_be_are_refused(options: dict[str, int | str]) -> None:
    with pytest.raises(CallerError):
        DeadLetter(**options)  # type: ignore[arg-type] # that is the point


def test_a_dead_letter_says_where_it_came_from_and_why() -> None:
    job = StoredJob("id", b"body", headers={"mine": 1, "x-dl-error": "old"}, tries=4, token="t")
    move = to_dead_letters(job, b"body", "mail", "no such address", 1_700_000_000_123)
    assert move.lease == ("id", "t")
    assert move.job.headers == {
        "mine": 1,
        "x-dl-from-queue": "mail",
        "x-dl-t": "2023-11-14T22:13:20.123Z",
        "x-dl-tries": 4,
        "x-dl-error": "no such address",
    }
    assert (move.job.id, move.job.body, move.job.tries) == ("id", b"body", 0)


def test_the_way_back_takes_off_what_was_written_on_it() -> None:
    dead = StoredJob("id", b"body", headers={"mine": 1, "x-dl-from-queue": "mail", "x-dl-tries": 4})
    assert from_dead_letters(dead, b"body").job.headers == {"mine": 1}


def test_a_fixed_back_off_is_always_the_same() -> None:
    assert [Fixed(3)(tries) for tries in range(3)] == [3, 3, 3]


def test_an_exponential_back_off_grows_up_to_its_bound() -> None:
    policy = Exponential(first=1, factor=3, longest=20, jitter=0)
    assert [policy(tries) for tries in range(5)] == [1, 3, 9, 20, 20]
    assert policy(10**9) == 20


def test_jitter_leaves_a_share_to_chance() -> None:
    policy = Exponential(first=8, jitter=0.25)
    waits = {policy(0) for _ in range(200)}
    assert len(waits) > 100
    assert all(6 <= wait <= 8 for wait in waits)


NO_NUMBERS = [float("nan"), float("inf"), 1e300, "5", None]


@pytest.mark.parametrize(
    "options",
    [
        {"first": -1},
        {"factor": 0.5},
        {"jitter": 2},
        {"longest": -1},
        *({name: value} for name in ("first", "factor", "longest", "jitter") for value in NO_NUMBERS),
    ],
)
def test_exponential_back_offs_that_can_not_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(CallerError):
        Exponential(**options)


@pytest.mark.parametrize("seconds", [-1, *NO_NUMBERS])
def test_fixed_back_offs_that_can_not_be_are_refused(seconds: Any) -> None:
    with pytest.raises(CallerError):
        Fixed(seconds)


def test_no_exponential_back_off_overflows() -> None:
    policy = Exponential(first=1e9, factor=FACTOR_MAX, longest=1e9, jitter=0)
    assert policy(10**9) == 1e9


def test_ids_sort_by_their_making_and_have_its_time() -> None:
    make = IdMaker()
    before_ms = int(time.time() * 1000)
    ids = [make() for _ in range(20_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert {uuid.UUID(one).version for one in ids} == {5}
    times = [id_time_ms(one) or 0 for one in ids]
    # A full counter borrows from the next millisecond.
    assert before_ms <= times[0] <= times[-1] <= int(time.time() * 1000) + 10


@pytest.mark.parametrize(
    ("job_id", "time_ms"),
    [
        ("0199a1b2-c3d4-5001-8abc-0123456789ab", 0x0199A1B2C3D4),
        ("0199a1b2-c3d4-4001-8abc-0123456789ab", None),  # version 4: random, as Keuss makes them
        ("0199a1b2-c3d4-5001-cabc-0123456789ab", None),
        ("507f1f77bcf86cd799439011", 0x507F1F77 * 1000),
        ("507f1f77bcf86cd79943901", None),
        ("D-19bdb006-jcEhRI11YLki2JALiZr1aUm3-ffff", None),
        ("", None),
        ("7", None),
    ],
)
def test_only_ids_that_carry_a_time_have_one(job_id: str, time_ms: int | None) -> None:
    assert id_time_ms(job_id) == time_ms


def test_two_makers_make_different_ids() -> None:
    first, second = IdMaker(), IdMaker()
    assert len({maker() for maker in (first, second) for _ in range(1000)}) == 2000
