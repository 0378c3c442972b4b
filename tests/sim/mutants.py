"""Defects planted in the core, to see that the simulator finds them.

Each (`planted.py`) is a text that stands once in a file of the broker, and what to put in its place, with the promise
that is broken then and a seed whose run sees it. `python -m tests.sim.mutants` (`make sim-mutants`) searches the first
seeds for each of them and prints the table; `test_mutants.py` replays the seeds that are written down.

A defect is planted into a copy of the sources, which runs as plain Python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from tests.sim.planted import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
BROKER = "penstock/broker"
SEEDS_MAX = 500  # runs within which a defect must be found


def plant(mutant: Mutant | None, directory: Path) -> Path:
    """Copy the sources and plant a defect; return the folder to import from."""
    source = directory / "src"
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "penstock", source / "penstock", ignore=ignored)
    if mutant is not None:
        path = source / BROKER / mutant.file
        text = path.read_text("utf-8")
        found = text.count(mutant.old)
        assert found == 1, f"{mutant.name}: its text stands {found} times in {mutant.file}; bring it up to date"
        path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    return source


def search(mutant: Mutant, seeds: Sequence[int]) -> tuple[int, str] | None:
    """Run seeds on a planted defect, in order, up to the first that breaks its promise first; return that seed, and
    how.

    Runs that first see something else are passed over: an exception of the planted code itself isn't a discovery.
    """
    with tempfile.TemporaryDirectory() as directory:
        source = plant(mutant, Path(directory))
        left = list(seeds)
        while left:
            failure = _first_failure(source, left, mutant.plan, mutant.movers, mutant.retry_s)
            if failure is None:
                return None
            seed, violation = failure
            if promise_of(violation) == mutant.promise:
                return failure
            left = left[left.index(seed) + 1 :]
    return None


def promise_of(violation: str) -> str:
    """Read which promise a violation is of: `12.345 P3: ...`."""
    return violation.split()[1].rstrip(":")


@cache
def holds_unplanted(seed: int, plan: str, movers: int = 0, retry_s: int = 0) -> bool:
    """Whether a run without a defect holds: a run that fails with one has run the planted code then."""
    with tempfile.TemporaryDirectory() as directory:
        return _first_failure(plant(None, Path(directory)), [seed], plan, movers, retry_s) is None


def _first_failure(source: Path, seeds: Sequence[int], plan: str, movers: int, retry_s: int) -> tuple[int, str] | None:
    command = [sys.executable, "-m", "penstock.sim", "--stop", "--json", "--jobs", "1"]
    if plan:
        command += ["--plan", plan]
    if movers:
        command += ["--movers", str(movers)]
    if retry_s:
        command += ["--retry", str(retry_s)]
    done = subprocess.run(
        [*command, "--seeds", ",".join(f"{seed}-{seed}" for seed in seeds)],
        cwd=source.parent,
        env=os.environ | {"PYTHONPATH": str(source), "PENSTOCK_PURE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the simulator ended with {done.returncode}: {done.stderr}")
    failures = json.loads(done.stdout)["failures"]
    return (failures[0]["seed"], failures[0]["violations"][0]) if failures else None


def main(names: list[str]) -> int:
    """Search for the planted defects, or for those named; gives 1 if one is not found."""
    wanted = [mutant for mutant in MUTANTS if not names or any(name in mutant.name for name in names)]
    missed = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = pool.map(lambda mutant: search(mutant, range(1, SEEDS_MAX + 1)), wanted)
        for mutant, result in zip(wanted, found, strict=True):
            missed += result is None
            seed, violation = result or (0, f"not found in {SEEDS_MAX} runs")
            sys.stdout.write(f"{mutant.name:42} {seed:4}  {' '.join(violation.split())[:100]}\n")
            sys.stdout.flush()
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
