"""Each planted defect (`planted.py`) is found again: it breaks the promise that the table names.

The same run without the defect holds, and the same seed is the same history, so it was the planted code that ran.

The seed that is written down is run first, up to the first broken promise. Any change of the core or of the simulator
makes other histories of all seeds, so a few neighbours are tried before this gives up; only then `make sim-mutants` has
to find a new seed. Until then 0 stands in the table, and only a long run searches.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.mutants import SEEDS_MAX, holds_unplanted, search
from tests.sim.planted import MUTANTS, Mutant

LONG = os.environ.get("PENSTOCK_LONG") == "1"
NEIGHBOURS = 10

pytestmark = pytest.mark.timeout(3600 if LONG else 300)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_breaks_a_promise(mutant: Mutant) -> None:
    if not mutant.seed and not LONG:
        pytest.skip("no seed is written down for it: make test-long searches for one")
    first, tries = (mutant.seed, 1 + NEIGHBOURS) if mutant.seed else (1, SEEDS_MAX)
    found = search(mutant, range(first, first + tries))
    assert found is not None, f"{mutant.promise} holds with it"
    assert holds_unplanted(found[0])


def test_an_exception_of_the_planted_code_is_no_discovery() -> None:
    broken = MUTANTS[0]._replace(new="    if no_such_name:\n        return replicate(")
    assert search(broken, [broken.seed]) is None


def test_there_are_defects_enough_and_each_is_another_one() -> None:
    assert len(MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len({(m.file, m.old, m.new) for m in MUTANTS}) == len(MUTANTS)
