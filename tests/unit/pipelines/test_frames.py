"""Functions that take many jobs at once: what they are called with, and what becomes of each job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("pandas", reason="pandas is not installed: pip install 'penstock[connect]'")
pytest.importorskip("pyarrow", reason="Arrow is not installed: pip install 'penstock[spark]'")

from penstock import Fail, Store
from penstock.errors import CallerError
from penstock.pipelines import DROP, Later, Move, Pipeline
from penstock.pipelines.frames import CALLS_MAX, FORMS, RowError, results_of
from penstock.queues.dead_letter import ERROR
from tests.unit.worker.virtual_time import memory_store, virtual

BOTH = pytest.mark.parametrize("form", FORMS)


def call(form: str, function: Any, payloads: Sequence[Any]) -> list[object]:
    return results_of(function, FORMS[form], [f"id{n}" for n in range(len(payloads))], payloads)


@BOTH
def test_payloads_come_as_columns_and_go_back_as_they_were(form: str) -> None:
    payloads = [{"n": 1, "text": "a", "is": True, "list": [1], "sub": {"x": 1.5}}, {"n": 2, "only": 2**60 + 1}]
    assert call(form, lambda frame: frame, payloads) == payloads


@BOTH
def test_whole_numbers_stay_whole_where_some_are_missing(form: str) -> None:
    (one, two) = call(form, lambda frame: frame, [{"n": 1, "is": False}, {"n": None}])
    assert (one, two) == ({"n": 1, "is": False}, {"n": None})
    assert type(one["n"]) is int  # type: ignore[index] # it was compared


@BOTH
def test_payloads_that_are_no_objects_come_in_a_call_of_their_own(form: str) -> None:
    calls: list[list[str]] = []

    def function(frame: Any) -> Any:
        calls.append([str(name) for name in (frame.columns if form == "pandas" else frame.column_names)])
        return frame

    assert call(form, function, [1, {"n": 1}, 2]) == [1, {"n": 1}, 2]
    extra = [] if form == "pandas" else ["_id"]
    assert sorted(calls) == sorted([["n", *extra], ["payload", *extra]])


def test_columns_say_what_becomes_of_a_job() -> None:
    def function(frame: Any) -> Any:
        frame["_to"] = ["b", None, None, None, None]
        frame["_delay"] = [2.0, None, None, None, None]
        frame["_drop"] = [None, True, False, None, None]
        frame["_later"] = [None, None, 5.0, None, None]
        frame["_error"] = [None, None, None, "again", None]
        frame["_fail"] = [None, None, None, None, "never"]
        return frame

    move, drop, later, error, fail = call("pandas", function, [{"n": n} for n in range(5)])
    assert (move, drop, later) == (Move("b", {"n": 0}, delay=2.0), DROP, Later(5.0))
    assert isinstance(error, RowError)
    assert isinstance(fail, Fail)
    assert (str(error), str(fail)) == ("again", "never")


@BOTH
def test_rows_in_another_order_belong_to_their_jobs(form: str) -> None:
    def function(frame: Any) -> Any:
        return frame.sort_values("n") if form == "pandas" else frame.sort_by("n")

    assert call(form, function, [{"n": 3}, {"n": 1}, {"n": 2}]) == [{"n": 3}, {"n": 1}, {"n": 2}]


@BOTH
def test_a_list_has_the_result_of_each_job(form: str) -> None:
    problem = ValueError("no")
    assert call(form, lambda frame: [1, DROP, problem], [{}, {}, {}]) == [1, DROP, problem]
    assert call(form, lambda frame: None, [{}, {}]) == [None, None]


@BOTH
def test_a_row_that_is_missing_is_an_error_of_all_jobs_of_the_call(form: str) -> None:
    calls = 0

    def function(frame: Any) -> Any:
        nonlocal calls
        calls += 1
        return frame[:1]

    results = call(form, function, [{"n": n} for n in range(4)])
    assert {str(result) for result in results} == {"the function must return a row for each of its 4 jobs, got 1 rows"}
    assert calls == 1, "with fewer jobs it would seem to be right"


@pytest.mark.parametrize("returned", ["text", 5, {"a": 1}])
def test_what_is_no_frame_is_refused(returned: Any) -> None:
    (result,) = call("pandas", lambda frame: returned, [{}])
    assert isinstance(result, CallerError)


@BOTH
def test_a_job_that_makes_a_call_fail_is_found_and_fails_alone(form: str) -> None:
    def function(frame: Any) -> Any:
        numbers = frame["n"].tolist() if form == "pandas" else frame["n"].to_pylist()
        if {3, 700} & set(numbers):
            raise ValueError("bad")
        return frame

    results = call(form, function, [{"n": n} for n in range(1000)])
    assert [n for n, result in enumerate(results) if isinstance(result, ValueError)] == [3, 700]
    assert sum(isinstance(result, dict) for result in results) == 998


def test_a_function_that_always_fails_is_not_called_for_each_job() -> None:
    calls = 0

    def function(frame: Any) -> Any:
        nonlocal calls
        calls += 1
        raise ValueError("down")

    results = call("pandas", function, [{"n": n} for n in range(1000)])
    assert {str(result) for result in results} == {"down"}
    assert calls <= CALLS_MAX


def test_fields_of_several_types_are_told_apart_by_arrow() -> None:
    results = call("arrow", lambda frame: frame, [{"n": 1}, {"n": "one"}, {"n": 2}])
    assert results == [{"n": 1}, {"n": "one"}, {"n": 2}]


async def _payloads(store: Store, queue: str) -> list[Any]:
    return [job.payload async for job in store.queue(queue).jobs()]


@virtual
async def test_jobs_go_through_a_link_in_frames() -> None:
    async with memory_store() as store:
        pipeline = Pipeline(store)
        sizes: list[int] = []

        @pipeline.link("a", to=["even", "odd"], takes="pandas", batch=40, max_tries=2, backoff=1)
        def choose(frame: Any) -> Any:
            sizes.append(len(frame))
            if (frame["n"] == 7).any():
                raise ValueError("seven")
            frame["_to"] = frame["n"] % 2
            return frame

        await store.queue("a").push_many({"n": n} for n in range(100))
        summaries = await pipeline.run(until_empty=True)
        assert sorted(row["n"] for row in await _payloads(store, "even")) == list(range(0, 100, 2))
        assert sorted(row["n"] for row in await _payloads(store, "odd")) == [n for n in range(1, 100, 2) if n != 7]
        assert max(sizes) == 40
        (dead,) = await store.dead_letters().peek(state=None)
        assert (dead.payload, dead.headers[ERROR]) == ({"n": 7}, "ValueError: seven")
        assert (summaries["choose"].done, summaries["choose"].retried, summaries["choose"].failed) == (99, 1, 1)
