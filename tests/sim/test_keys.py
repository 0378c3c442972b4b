"""Unique keys in simulation: promise P11 through all faults, the defects that must be found, and single stories.

`keyed_cluster.py` is the simulated cluster, `planted_keys.py` the table of defects.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from penstock.broker.core.keys.configuration import Configuration
from penstock.broker.core.keys.messages import HELD, KeyAccept, KeyValue
from penstock.broker.core.keys.proposals import ADDED, DUPLICATE, REFUSED, UNSURE
from penstock.sim.timeline import MS, SECOND
from tests.sim.keyed_cluster import ALWAYS, EVERYSEC, FAULT_NAMES, KeyedCluster, Request, play
from tests.sim.mutants import plant, promise_of
from tests.sim.planted import Mutant
from tests.sim.planted_keys import DEFECTS, ROOT, run

pytestmark = pytest.mark.timeout(600)

IS_LONG = os.environ.get("PENSTOCK_LONG") == "1"
SEEDS = 6000 if IS_LONG else 160
CHUNK = 20
NEIGHBOURS = 5  # of a written seed: any change of the protocol makes other histories


# Through all faults. Drawn kinds rarely meet in numbers; these sets of them have found most.

THEMES = {
    "changes": "join,drain,regret,stop,messages,drain",
    "restarts": "turn,kill,restart_all,one_way,messages,turn",
    "losses": "rotate,rotate,rotate,messages",
    "changes and losses": "drain,join,rotate,kill,halves,forget",
}
THEME_SEEDS = 500 if IS_LONG else 20


@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_keys_keep_their_promises(first: int) -> None:
    for seed in range(first, first + CHUNK):
        assert not play(seed).violations, f"seed {seed}"


@pytest.mark.parametrize("theme", THEMES)
def test_keys_keep_their_promises_through_many_faults_of_few_kinds(theme: str) -> None:
    for seed in range(1, THEME_SEEDS + 1):
        assert not play(seed, faults=THEMES[theme]).violations, f"seed {seed}"


def test_the_runs_have_what_they_are_for() -> None:
    results = [play(seed) for seed in range(1, 41)]
    assert {fault for result in results for fault in result.faults} == set(FAULT_NAMES)
    assert {result.policy for result in results} == {"always", "everysec", "careless"}
    outcomes = [{name for result in results for name in result.outcomes}]
    assert outcomes == [{ADDED, DUPLICATE, REFUSED, UNSURE}]
    assert sum(result.changes for result in results) > len(results)


def test_a_seed_is_the_same_history_in_every_process() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.sim.keyed_cluster", "--seeds", "3-5", "--json"],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "src"},
            capture_output=True,
            text=True,
            check=False,
        )
        digests.add(json.loads(done.stdout)["digest"])
    assert len(digests) == 1


# Planted defects.


@pytest.mark.parametrize("mutant", DEFECTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_found(mutant: Mutant) -> None:
    last = mutant.seed + NEIGHBOURS
    with tempfile.TemporaryDirectory() as directory:
        failures = run(plant(mutant, Path(directory)), f"{mutant.seed}-{last}", mutant.plan, stop=False)
    found = [seed for seed, violation in failures if promise_of(violation) == mutant.promise]
    assert found, f"{mutant.promise} holds with it"
    assert not play(found[0], faults=mutant.plan).violations


# Stories.


def quiet(nodes: int) -> KeyedCluster:
    """A cluster without faults, producers and workers."""
    cluster = KeyedCluster(1, nodes=nodes, policy=ALWAYS)
    cluster.is_calm = True
    cluster.has_workers = False
    cluster.timeline.run(2 * SECOND)
    cluster.sent.clear()
    return cluster


def add(cluster: KeyedCluster, key: bytes, node: int, keep_ms: int = 0, timeout_ms: int = 2000) -> Request:
    """Begin an add."""
    cluster.by_key.setdefault(key, [])
    request = Request(-1, key, keep_ms, 1)  # with one copy
    cluster.add(request, cluster.machines[node], timeout_ms)
    return request


def pass_time(cluster: KeyedCluster, ms: int) -> None:
    cluster.timeline.run(cluster.timeline.now_us + ms * MS)


def a_key(cluster: KeyedCluster, *homes: int) -> bytes:
    """Return a key with these homes."""
    current = Configuration(1, {machine.id: 1 for machine in cluster.machines})
    wanted = {cluster.machines[home].id for home in homes}
    return next(key for key in map(b"%d".__mod__, range(10_000)) if set(current.homes(key)) == wanted)


def test_of_two_adds_at_once_one_is_told_of_the_other() -> None:
    cluster = quiet(3)
    first, second = add(cluster, b"k", 0), add(cluster, b"k", 1)
    pass_time(cluster, 3000)
    assert {first.outcome, second.outcome} == {ADDED, DUPLICATE}
    assert first.owner == second.owner
    assert not cluster.violations


@pytest.mark.parametrize(("node", "homes"), [(0, 2), (3, 3)], ids=["on a home", "elsewhere"])
def test_a_keyed_add_takes_two_rounds_of_messages(node: int, homes: int) -> None:
    cluster = quiet(4)
    key = a_key(cluster, 0, 1, 2)
    request = add(cluster, key, node)
    pass_time(cluster, 50)
    assert request.outcome == ADDED
    votes = ("KeyPrepare", "KeyPromise", "KeyAccept", "KeyAccepted")
    assert {name: cluster.sent.get(name, 0) for name in votes} == dict.fromkeys(votes, homes)


def test_a_duplicate_takes_one_round() -> None:
    cluster = quiet(3)
    add(cluster, b"k", 0)
    pass_time(cluster, 50)
    cluster.sent.clear()
    request = add(cluster, b"k", 1)
    pass_time(cluster, 50)
    assert request.outcome == DUPLICATE
    assert cluster.sent.get("KeyAccept", 0) == 0


def test_without_a_majority_of_the_homes_nothing_is_added() -> None:
    cluster = quiet(3)
    for machine in cluster.machines[1:]:
        machine.kill()
    request = add(cluster, b"k", 0)
    pass_time(cluster, 3000)
    assert request.outcome == REFUSED
    for machine in cluster.machines[1:]:
        machine.start()
    pass_time(cluster, 2000)
    again = add(cluster, b"k", 1)
    pass_time(cluster, 2000)
    assert again.outcome == ADDED
    assert not cluster.violations


def test_a_node_without_a_configuration_refuses() -> None:
    cluster = quiet(3)
    machine = cluster.machines[2]
    machine.wipe(True)
    for other in cluster.machines[:2]:
        other.kill()
    machine.start()
    request = add(cluster, b"k", 2)
    pass_time(cluster, 100)
    assert request.outcome == REFUSED


def test_in_two_halves_neither_can_forget_the_other() -> None:
    cluster = quiet(6)
    halves = {0, 1, 2}, {3, 4, 5}
    cluster._cut([pair for a in halves[0] for b in halves[1] for pair in ((a, b), (b, a))], 1000 * SECOND)
    for machine in cluster.machines:
        assert machine.node is not None
        for other in next(half for half in halves if machine.index not in half):
            machine.turn(machine.node.forget, b"node-%d" % other)
    pass_time(cluster, 20_000)
    assert {machine.node.members.number for machine in cluster.machines if machine.node is not None} == {1}
    here, there = a_key(cluster, 0, 1, 3), a_key(cluster, 0, 4, 5)
    outcomes = [add(cluster, key, node) for key in (here, there) for node in (1, 4)]
    pass_time(cluster, 4000)
    assert [request.outcome for request in outcomes] == [ADDED, REFUSED, REFUSED, ADDED]


def test_a_look_up_votes_so_that_what_one_home_has_can_not_come_back() -> None:
    cluster = quiet(4)
    key = a_key(cluster, 0, 1, 2)
    cluster.drops = lambda src, dst, message: type(message) is KeyAccept and src == 3 and dst != 0
    add(cluster, key, 3)
    pass_time(cluster, 100)
    job_id = next(iter(cluster.jobs))
    cluster.machines[3].kill()  # the first home alone has voted
    cluster.drops = lambda src, dst, message: 0 in (src, dst)
    cluster.machines[3].start()
    pass_time(cluster, 15_000)  # the job is looked up where nobody knows of it
    assert not any(machine.has(job_id) for machine in cluster.machines)
    cluster.drops = lambda src, dst, message: 2 in (src, dst)
    request = add(cluster, key, 1)
    pass_time(cluster, 3000)
    assert request.outcome == ADDED
    assert request.owner != job_id
    assert not cluster.violations


def test_a_home_has_no_vote_for_a_former_configuration() -> None:
    cluster = quiet(4)
    key = a_key(cluster, 0, 1, 2)
    leaving, home = cluster.machines[3], cluster.machines[0]
    assert leaving.node is not None
    assert home.node is not None
    leaving.turn(leaving.node.leave)
    pass_time(cluster, 5000)
    assert leaving.node.has_left
    assert home.node.members.number == 2
    value = KeyValue(HELD, 9, b"job", 0, 0, (home.id,))
    for number, count in ((1, 0), (2, 1)):
        home.turn(home.node.receive, leaving.id, KeyAccept(number, key, (9, 9), value), home.now_ms())
        assert len(home.node.homes.records) == count


def test_a_key_is_kept_and_then_free() -> None:
    cluster = quiet(3)
    first = add(cluster, b"k", 0, keep_ms=10_000)
    pass_time(cluster, 50)
    cluster.end_everything()
    pass_time(cluster, 8000)
    early = add(cluster, b"k", 1)
    pass_time(cluster, 4000)
    late = add(cluster, b"k", 2)
    pass_time(cluster, 100)
    assert (early.outcome, early.owner) == (DUPLICATE, first.owner)
    assert late.outcome == ADDED


def test_nothing_is_remembered_of_a_key_that_is_free() -> None:
    cluster = quiet(3)
    add(cluster, b"k", 0)
    pass_time(cluster, 50)
    cluster.end_everything()
    pass_time(cluster, 200)
    assert [machine.node.used_bytes for machine in cluster.machines if machine.node is not None] == [0, 0, 0]


def test_a_node_alone_keeps_its_keys_when_its_power_fails() -> None:
    cluster = KeyedCluster(1, nodes=1, policy=EVERYSEC)
    cluster.is_calm, cluster.has_workers = True, False
    first = add(cluster, b"k", 0)
    pass_time(cluster, 1000)
    machine = cluster.machines[0]
    machine.sync()
    machine.cut_power()
    machine.start()
    pass_time(cluster, 5000)
    assert machine.node is not None
    assert machine.node.members.number == 2
    again = add(cluster, b"k", 0)
    pass_time(cluster, 1000)
    assert (again.outcome, again.owner) == (DUPLICATE, first.owner)


def test_a_home_that_lost_its_disk_does_not_vote_until_it_has_the_keys() -> None:
    cluster = quiet(3)
    first = add(cluster, b"k", 0)
    pass_time(cluster, 50)
    lost = cluster.machines[1]
    lost.wipe(False)
    cluster.machines[0].kill()
    lost.start()
    pass_time(cluster, 5000)
    assert lost.node is not None
    assert not lost.node.members.may_vote(b"k")
    cluster.machines[0].start()
    pass_time(cluster, 5000)
    assert lost.node.members.may_vote(b"k")
    assert lost.node.homes.records[b"k"].value.job_id == first.owner
