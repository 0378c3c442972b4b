"""Who makes most of the jobs that were fetched."""

from penstock.client.producers import JOBS_MIN, Producers


def ids(letter: str, count: int) -> list[str]:
    return [f"D-{letter * 8}-{number:024d}-05a1" for number in range(count)]


def test_the_maker_of_most_jobs_is_known_when_a_window_is_full() -> None:
    producers = Producers(100, 10.0)
    assert producers.count(ids("a", 60), 0.0) is None
    assert producers.count(ids("b", 40), 0.0) == "a" * 8


def test_without_a_majority_there_is_no_such_maker() -> None:
    producers = Producers(100, 10.0)
    assert producers.count(ids("a", 50) + ids("b", 30) + ids("c", 20), 0.0) is None


def test_a_window_ends_by_time_too() -> None:
    producers = Producers(1000, 10.0)
    assert producers.count(ids("a", JOBS_MIN), 5.0) is None
    assert producers.count(ids("a", 1), 14.9) is None
    assert producers.count(ids("a", 1), 15.0) == "a" * 8


def test_a_few_jobs_are_not_enough_whatever_the_time() -> None:
    producers = Producers(1000, 10.0)
    assert producers.count(ids("a", JOBS_MIN - 1), 0.0) is None
    assert producers.count([], 1000.0) is None


def test_every_window_begins_empty() -> None:
    producers = Producers(10, 10.0)
    assert producers.count(ids("a", 10), 0.0) == "a" * 8
    assert producers.count(ids("b", 10), 0.0) == "b" * 8
