"""Each planted defect (`planted.py`) is found again: it breaks the promise that the table names.

The same run without the defect holds, and the same seed is the same history, so it was the planted code that ran.

The seed that is written down is run first, up to the first broken promise. Any change of the core or of the simulator
makes other histories of all seeds, so a few neighbours are tried before this gives up; only then `make sim-mutants` has
to find a new seed.
"""

from __future__ import annotations

import pytest

from tests.sim.mutants import holds_unplanted, search
from tests.sim.planted import MUTANTS, Mutant

NEIGHBOURS = 10

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_breaks_a_promise(mutant: Mutant) -> None:
    found = search(mutant, range(mutant.seed, mutant.seed + 1 + NEIGHBOURS))
    assert found is not None, f"{mutant.promise} holds with it"
    assert holds_unplanted(found[0], mutant.plan, mutant.movers, mutant.retry_s)


def test_an_exception_of_the_planted_code_is_no_discovery() -> None:
    broken = MUTANTS[0]._replace(new="    if no_such_name:\n        return replicate(")
    assert search(broken, [broken.seed]) is None


def test_there_are_defects_enough_and_each_is_another_one() -> None:
    assert len(MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len({(m.file, m.old, m.new) for m in MUTANTS}) == len(MUTANTS)
