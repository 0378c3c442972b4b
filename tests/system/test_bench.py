"""The benchmark of the cluster on real nodes, in sizes that show nothing but that it runs and counts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from bench.cluster_sessions import LATENCY, Sizes, load_redis, load_trio, time_trio
from bench.servers import PENSTOCK, running
from bench.sessions import HUNDRED, PIPELINE, SINGLE
from bench.trio import Trio, running_trio
from tests.processes import need_program

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    need_program("redis-benchmark")
    with running_trio(PENSTOCK) as cluster:
        yield cluster


# First, since every command must find a hundred: others leave a node behind that is still owed some jobs.
def test_jobs_are_added_and_taken_by_the_hundred(trio):
    figures = load_trio(trio, HUNDRED, Sizes(50, 50), adds_only=False)
    assert 0 < figures["add messages"] < 1
    assert trio.jobs() == [0, 0, 0]


@pytest.mark.parametrize(("shape", "sizes"), [(SINGLE, Sizes(200, 100)), (PIPELINE, Sizes(640, 320))])
def test_jobs_are_added_and_taken_here_and_elsewhere(trio, shape, sizes):
    figures = load_trio(trio, shape, sizes, adds_only=False)
    assert {name.split()[0] for name in figures} == {"add", "here", "elsewhere", "flow"}
    assert all(figures[f"{what} rate"] > 0 for what in ("add", "here", "elsewhere"))
    assert trio.jobs() == [0, 0, 0]


def test_an_add_by_itself_is_two_copies_and_two_confirmations():
    with running_trio(PENSTOCK) as trio:
        figures = time_trio(trio, Sizes(50, 0, 5), adds_only=False)
    assert 4 <= figures["one add messages"] < 8  # with the gossip of that time
    if shutil.which("ss"):
        assert 4 * 144 < figures["one add bytes"] < 2000
    assert all(0 < figures[f"{what} p50"] <= figures[f"{what} max"] for what in ("handoff 3", "first 1", "late"))


@pytest.mark.parametrize("shape", [SINGLE, PIPELINE, HUNDRED, LATENCY])
def test_redis_is_loaded_in_the_same_shapes(shape):
    need_program("redis-server")
    need_program("redis-benchmark")
    with running("redis") as server:
        figures = load_redis(server, shape, Sizes(3200, 1600) if shape != HUNDRED else Sizes(100, 50))
    assert figures
    assert all(value >= 0 for value in figures.values())
