"""The cluster simulator itself: the same seed is the same history everywhere, and a failure shrinks to what causes it.

The many seeds are a part of their own (`scripts/test`, `make sim`), on the compiled modules where there are any.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from penstock.sim.batch import quiet
from penstock.sim.fault_kinds import KINDS
from penstock.sim.plan import plan_from_text, plan_text
from penstock.sim.run import simulate
from penstock.sim.shrink import shrink

pytestmark = pytest.mark.timeout(300)

SEEDS = (1, 2, 3)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet()


def replay(seed: int, **environment: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.sim", "--replay", str(seed), "--json"],
        env=os.environ | {"PYTHONPATH": "src"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    facts: dict[str, object] = json.loads(done.stdout)
    return facts


def test_a_seed_is_the_same_history_in_every_process() -> None:
    first = replay(SEEDS[0], PYTHONHASHSEED="1")
    second = replay(SEEDS[0], PYTHONHASHSEED="2")
    assert first == second
    assert first["hash"] != replay(SEEDS[1], PYTHONHASHSEED="1")["hash"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_has_faults_enough_and_all_of_them_are_known(seed: int) -> None:
    result = simulate(seed)
    assert len(result.plan) >= 10
    assert {fault.kind for fault in result.plan} <= set(KINDS)
    assert plan_from_text(plan_text(result.plan)) == result.plan
    assert not result.violations
    assert result.deliveries > 100


def test_a_failure_is_shrunk_to_the_faults_that_cause_it() -> None:
    plan = simulate(SEEDS[0]).plan
    culprits = (plan[1], plan[-2])
    assert shrink(plan, lambda faults: set(culprits) <= set(faults)) == culprits
    assert shrink(plan, lambda faults: True) == ()
