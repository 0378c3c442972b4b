"""Defects planted into unique keys, to see that the simulation finds them: the same table as `planted.py`.

`python -m tests.sim.planted_keys` searches the first seeds for each of them and prints the seeds; `test_keys.py`
that are written down.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.sim.mutants import ROOT, plant, promise_of
from tests.sim.planted import Mutant

SEEDS_MAX = 700  # runs within which a defect must be found

KEYS = "core/keys/"
# Kinds of faults that show a defect, where those that are drawn rarely do.
RESTARTS = "turn,kill,restart_all,one_way,messages,turn"
LOSSES = "rotate,rotate,rotate,messages"
CHANGES = "join,drain,regret,stop,messages,drain"
DEFECTS = (
    Mutant(
        "one home for a key",
        KEYS + "configuration.py",
        "HOMES: Final = 3 ",
        "HOMES: Final = 1 ",
        47,
        "P11",
    ),
    Mutant(
        "a lock with a time-out",
        KEYS + "homes.py",
        "        if len(answers) == len(kept.value.nodes) and PRESENT not in answers.values():\n            keep_ms",
        "        if len(answers) >= 0:\n            keep_ms",
        6,
        "P11",
    ),
    Mutant(
        "keys that a restart forgets",
        KEYS + "members.py",
        "            if self.incarnation:\n                self.is_out = self.has_lost = True\n",
        "            self.is_settled = True\n",
        261,
        "P11",
    ),
    Mutant(
        "a configuration by one half's view",
        KEYS + "members.py",
        "        if len(self._promises) == majority(len(current.members)):\n",
        "        if len(self._promises) == 1:\n",
        389,
        "P11",
    ),
    Mutant(
        "half of the homes is enough",
        KEYS + "configuration.py",
        "    return count // 2 + 1\n",
        "    return max(count // 2, 1)\n",
        1,
        "P11",
    ),
    Mutant(
        "a vote is answered and not written down",
        KEYS + "homes.py",
        "            kept.look_at = self._next_look(message.key, now_ms)\n"
        "            self._write(message.key, kept, now_ms)\n",
        "            kept.look_at = self._next_look(message.key, now_ms)\n",
        7,
        "P11",
    ),
    Mutant(
        "a promise is answered and not written down",
        KEYS + "homes.py",
        "            kept.promised = message.ballot\n            self._write(message.key, kept, now_ms)\n",
        "            kept.promised = message.ballot\n",
        226,
        "P11",
        RESTARTS,
    ),
    Mutant(
        "a promise is not kept",
        KEYS + "homes.py",
        "            return\n        kept = self._record(message.key, now_ms)\n"
        "        if message.ballot > kept.voted:\n",
        "        kept = self._record(message.key, now_ms)\n        if message.ballot != kept.voted:\n",
        1,
        "P11",
    ),
    Mutant(
        "what one home voted for is not carried on",
        KEYS + "proposals.py",
        "        voted = max(promise.voted for promise in proposal.promises.values())\n",
        "        voted = min(promise.voted for promise in proposal.promises.values())\n",
        3,
        "P11",
    ),
    Mutant(
        "a new home votes before it has heard the former ones",
        KEYS + "members.py",
        "        if not former or (self.is_carried and self.my_id in former):\n",
        "        if former is not None:\n",
        125,
        "P11",
    ),
    Mutant(
        "a majority has answered, whatever it has lost",
        KEYS + "members.py",
        "    return words.count(INTACT) >= majority(len(words))\n",
        "    return INTACT in words and words.count(INTACT) + words.count(LOST) >= majority(len(words))\n",
        37,
        "P11",
        LOSSES,
    ),
    Mutant(
        "a new home takes no votes over",
        KEYS + "homes.py",
        "        if record.voted > kept.voted:\n            kept.voted, kept.value = record.voted, record.value\n",
        "        if record.voted < kept.voted:\n            kept.voted, kept.value = record.voted, record.value\n",
        128,
        "P11",
    ),
    Mutant(
        "a forgotten key forgets its promise",
        KEYS + "homes.py",
        "        self.floor = max(self.floor, kept.promised)\n",
        "",
        163,
        "P11",
    ),
    Mutant(
        "a copy that the homes don't know of is delivered",
        KEYS + "proposals.py",
        "        if self._members.my_id in value.nodes:\n            self._copies.confirm",
        "        if value.nodes:\n            self._copies.confirm",
        85,
        "P11",
        "drain,join,rotate,kill,halves,forget",
    ),
    Mutant(
        "a late word takes a job away that has come back",
        KEYS + "copies.py",
        "        if job.generation < generation:\n",
        "        if job.id:\n",
        21,
        "P11",
        CHANGES,
    ),
    Mutant(
        "refused, and a home has voted",
        KEYS + "proposals.py",
        "            proposal.is_at_risk = True\n",
        "            pass\n",
        17,
        "refused",
    ),
    Mutant(
        "a restart forgets the keep time",
        KEYS + "homes.py",
        "        kept.until_ms = now_ms + left_ms\n",
        "        kept.until_ms = now_ms\n",
        1,
        "kept",
        RESTARTS,
    ),
    Mutant(
        "copies that wait are not looked up",
        KEYS + "copies.py",
        "            if job.state == WAITING and job.look_at <= now_ms and job.id not in self.adding:\n",
        "            if job.state > LIVE:\n",
        1,
        "alive",
    ),
    Mutant(
        "homes don't ask whether the job is there",
        KEYS + "homes.py",
        "            if kept.value.state == HELD:\n                self._ask(look, key, kept)\n            elif",
        "            if kept.value.state == HELD:\n                pass\n            elif",
        1,
        "alive",
    ),
    Mutant(
        "free keys are never forgotten",
        KEYS + "proposals.py",
        "                self._port.send(home, KeyCollect(proposal.number, proposal.key, proposal.ballot))\n",
        "                pass\n",
        1,
        "memory",
    ),
)


def run(source: Path, seeds: str, faults: str = "", stop: bool = True) -> list[tuple[int, str]]:
    """Run seeds on sources; return the seeds that fail, and their first violations."""
    command = [sys.executable, "-m", "tests.sim.keyed_cluster", "--json", "--seeds", seeds, "--faults", faults]
    done = subprocess.run(
        command + ["--stop"] * stop,
        cwd=source.parent,
        env=os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PENSTOCK_PURE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"the simulation ended with {done.returncode}: {done.stderr}")
    return [(one["seed"], one["violations"][0]) for one in json.loads(done.stdout)["failures"]]


def search(mutant: Mutant, first: int, last: int) -> tuple[int, str] | None:
    """Run seeds on a planted defect up to the first that breaks its promise first."""
    with tempfile.TemporaryDirectory() as directory:
        source = plant(mutant, Path(directory))
        while first <= last:
            failures = run(source, f"{first}-{last}", mutant.plan)
            if not failures or promise_of(failures[0][1]) == mutant.promise:
                return failures[0] if failures else None
            first = failures[0][0] + 1
    return None


def main(names: list[str]) -> int:
    """Search for the planted defects, or for those named; 1 if one is not found."""
    missed = 0
    for mutant in DEFECTS:
        if names and not any(name in mutant.name for name in names):
            continue
        seed, violation = search(mutant, 1, SEEDS_MAX) or (0, f"not found in {SEEDS_MAX} runs")
        missed += not seed
        sys.stdout.write(f"{mutant.name:60} {seed:4}  {violation[:120]}\n")
        sys.stdout.flush()
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
