"""Benchmarks measure what they say they do: their tables, their counting, and gossip on a virtual clock."""

from __future__ import annotations

import dataclasses
import math

import pytest

from bench import cluster, gossip, queues
from bench.cluster_sessions import ALWAYS_DIVISOR, SIZES, TRIO, ClusterSession
from bench.gossip_world import KILLED, World
from bench.report import Line, Report
from bench.rounds import Rounds
from bench.servers import ALWAYS, PENSTOCK, NotRunError
from bench.sessions import PIPELINE, QUICK_DIVISOR, SINGLE
from bench.table import Table
from bench.trio import counted_bytes

SS = """
0 0 127.0.0.1:30465 127.0.0.1:51234
\t bbr wscale:10,10 rto:204 bytes_sent:208 bytes_acked:200 bytes_received:100 segs_out:7 pacing_rate 1bps
0 0 127.0.0.1:30465 127.0.0.1:51236
\t bbr wscale:10,10 rto:204 bytes_received:11 segs_out:7
"""


def test_a_table_is_aligned_with_numbers_to_the_right():
    table = Table("title", ("", "rate", "word"), [("one", "10", "a"), ("three", "2", "b")], {2})
    assert table.plain(["end"]) == "title\n\n       rate  word\none      10  a\nthree     2  b\n\nend\n"


def test_a_pipe_in_a_cell_does_not_end_it_in_markdown():
    assert Table("title", ("", "x"), [("a|b", "1")]).markdown() == ["|  | x |", "|---|---|", "| a\\|b | 1 |"]


def _told(session: queues.AnySession) -> queues.Figures:
    """What a session would have answered: names of peers give their rates."""
    rates = {"huey (1 thread)": 3_000.0, "arq (eager)": 600.0}
    return {"end_to_end_per_s": rates.get(session.name, 12_000.0), "latency_p50_ms": rates.get(session.name, 1.0)}


@pytest.mark.parametrize(
    ("figure", "best"), [("end_to_end_per_s", 3_000.0), ("latency_p50_ms", 600.0)], ids=["rate", "wait"]
)
def test_of_several_peers_the_best_is_held_against_ours(figure, best):
    row = next(row for row in queues.ROWS if row.figure == figure and len(row.others) > 1)
    rounds: Rounds[queues.Figures] = Rounds(True, PENSTOCK)
    rounds.results = {
        session: [_told(session)] for session in row.sessions if session.name in {"huey (1 thread)", "arq (eager)"}
    }
    rounds.results[row.ours] = [_told(row.ours)]
    rounds.failures = {session: "not here" for session in row.sessions if session not in rounds.results}
    assert queues.line_of(row, rounds).peer == [best]


def test_a_duration_becomes_a_rate_and_a_rate_stays_one():
    told = {"jobs": 100, "run_s": 4.0, "push_per_s": 7.0, "latency_p50_ms": 2.0, "peer": "huey"}
    assert queues.rates_of(told) == {"jobs": 100, "run_per_s": 25.0, "push_per_s": 7.0, "latency_p50_ms": 2.0}


@pytest.mark.parametrize(("reference", "is_shown"), [("42k/s", True), ("", False)])
def test_what_others_measured_has_a_column_only_where_there_is_some(reference, is_shown):
    report = Report("title", "command", {}, [Line("row", ours=[1000.0], reference=reference)])
    assert ("measured elsewhere" in report.markdown()) == is_shown


def test_bytes_of_the_bus_are_what_came_and_what_the_other_end_took():
    assert counted_bytes(SS) == 311


def test_every_figure_of_the_original_stands_beside_a_row():
    assert set(cluster.REFERENCES) <= {row.name for row in cluster.ROWS}


@pytest.mark.parametrize("module", [cluster, queues])
def test_no_two_rows_have_the_same_name(module):
    assert len({row.name for row in module.ROWS}) == len(module.ROWS)


def test_pipelines_come_out_even_however_small_the_run():
    sizes = SIZES[TRIO, PIPELINE].divided(QUICK_DIVISOR * ALWAYS_DIVISOR)
    assert (sizes.adds % 32, sizes.gets % 32) == (0, 0)


def test_a_row_whose_session_failed_says_why(monkeypatch):
    def fail(*_):
        raise NotRunError("no redis here")

    monkeypatch.setattr(ClusterSession, "run", fail)
    rows = [row for row in cluster.ROWS if row.ours == ClusterSession(TRIO, SINGLE, ALWAYS)]
    rounds = Rounds(True, PENSTOCK)
    rounds.run(cluster.sessions_of(rows), rounds=2)
    assert all("no redis here" in cluster.line_of(row, rounds).verdict() for row in rows)


@pytest.fixture(scope="module")
def outcome() -> gossip.Outcome:
    return gossip.simulate(gossip.Setup(5, 1000), seed=1)


def test_a_simulated_cluster_finds_and_loses_nodes(outcome):
    assert all(math.isfinite(value) for value in dataclasses.astuple(outcome))


def test_a_killed_node_is_suspected_after_the_node_timeout(outcome):
    assert 1.0 < outcome.killed_suspected_s < 2.0
    assert outcome.killed_suspected_s <= outcome.killed_failed_s


def test_gossip_is_counted_in_whole_messages(outcome):
    header, entry = 144, 104
    assert outcome.messages_per_s > 2  # one ping and one pong a second at the least
    assert outcome.bytes_per_s == pytest.approx(outcome.messages_per_s * (header + 3 * entry))


def test_the_same_seed_makes_the_same_times(outcome):
    again = gossip.simulate(gossip.Setup(5, 1000), seed=1)
    assert dataclasses.replace(again, cpu_ms_per_s=outcome.cpu_ms_per_s) == outcome


def test_what_never_happens_is_reported_as_such():
    world = World(seed=1, node_timeout_ms=1000)
    world.add_cluster(2)
    world.end(world.machines[1], KILLED)
    waited_ms = world.run_until(lambda: world.machines[0].condemns(world.machines[1]), ms_max=5000)
    assert waited_ms == math.inf  # one of two is not most of them
    row = gossip.cells(gossip.Setup(2, 1000), [gossip.Outcome(*[waited_ms] * len(dataclasses.fields(gossip.Outcome)))])
    assert set(row[1:]) == {"never"}
