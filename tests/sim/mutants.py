"""Defects planted in the core, to see that the simulator finds them.

Each is a text that stands once in a file of the broker, and what to put in its place, with a seed whose run then fails.
`python -m tests.sim.mutants` (`make sim-mutants`) searches the first seeds for each anew and prints the table;
`test_mutants.py` replays the seeds written down here.

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
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BROKER = "penstock/broker"
SEEDS_MAX = 500  # a defect must be found within so many runs


class Mutant(NamedTuple):
    """One planted defect."""

    name: str
    file: str  # below the broker's folder
    old: str
    new: str
    seed: int  # a run that finds it
    promise: str  # what that run sees broken


MUTANTS = (
    Mutant(
        "reply before replication",
        "core/adding.py",
        "    if not terms.asynchronous:\n        return replicate(",
        "    if terms.retry_s == 999:\n        return replicate(",
        1,
        "P1",
    ),
    Mutant(
        "one copy too few",
        "core/replication.py",
        "if len(holders.confirmed) == addition.replicate:",
        "if len(holders.confirmed) == max(2, addition.replicate - 1):",
        1,
        "P1",
    ),
    Mutant(
        "ack lost on restart",
        "core/acks.py",
        "            node.journal.changed(job)\n",
        "            pass\n",
        1,
        "P3",
    ),
    Mutant(
        "collected before all have confirmed",
        "core/acks.py",
        "    missing = _unconfirmed(node, holders)\n    if not missing:\n",
        "    missing = _unconfirmed(node, holders)\n    if holders.delivered or not missing:\n",
        1,
        "P3",
    ),
    Mutant(
        "retry timer dead",
        "core/delivery.py",
        "        elif enqueue(node, job):\n            return\n",
        "        elif not job.flags & DELIVERED and enqueue(node, job):\n            return\n",
        1,
        "P6",
    ),
    Mutant(
        "no fsync",
        "journal.py",
        "if self._unsynced and (self._policy == ALWAYS or self._marking):",
        "if self._unsynced and self._marking:",
        1,
        "P1",
    ),
    Mutant(
        "delivery of retry 0 not written down",
        "journal.py",
        "            else:\n                self.removed(job.id)\n",
        "            else:\n                self._states.append(_state_command(job, wall_offset_ms))\n",
        1,
        "P5",
    ),
    Mutant(
        "power loss taken for a mere crash",
        "recovery.py",
        "last_start[1] == self.disk.boot_id()",
        "last_start[1][:5] == self.disk.boot_id()[:5]",
        1,
        "P5",
    ),
    Mutant(
        "nobody gives way",
        "core/requeueing.py",
        "            return (theirs[at] ^ key) > (mine[at] ^ key)\n",
        "            return False\n",
        1,
        "P3",
    ),
    Mutant(
        "both give way",
        "core/requeueing.py",
        "            return (theirs[at] ^ key) > (mine[at] ^ key)\n",
        "            return True\n",
        1,
        "P6",
    ),
    Mutant(
        "WILLQUEUE never sent",
        "core/delivery.py",
        "            tell_holders(node, bus.WILLQUEUE, job.id, job.holders.delivered)\n",
        "            pass\n",
        1,
        "P3",
    ),
    Mutant(
        "QUEUED never sent after a retry",
        "core/delivery.py",
        "        tell_holders(node, bus.QUEUED, job.id, job.holders.delivered, bus.INCR_DELIVERIES)\n",
        "",
        1,
        "P3",
    ),
    Mutant(
        "WORKING ignored",
        "core/requeueing.py",
        "            _put_off(node, job, left_ms + GRACE_MS if left_ms else job.rules.retry_ms, True)\n",
        "            pass\n",
        1,
        "P3",
    ),
    Mutant(
        "messages before the journal",
        "broker.py",
        "        safe = self.persistence.flush()\n        if not safe:\n",
        "        self.node.outbox.flush()\n        safe = self.persistence.flush()\n        if not safe:\n",
        1,
        "P1",
    ),
    Mutant(
        "copies not written down",
        "core/replication.py",
        "    if fresh and node.journal is not None:\n        for group in alike(fresh):\n",
        "    if fresh and node.journal is None:\n        for group in alike(fresh):\n",
        1,
        "P1",
    ),
    Mutant(
        "finished ids not remembered",
        "core/finished.py",
        "        return job_id in self._young or job_id in self._old\n",
        "        return False\n",
        1,
        "P3",
    ),
    Mutant(
        "acks of unknown jobs dropped",
        "core/acks.py",
        "    if node.cluster.size == 1 or node.cluster.leaving or not is_retried or job_id in node.finished:\n",
        "    if ttl_s >= 0 or is_retried:\n",
        1,
        "P3",
    ),
    Mutant(
        "acks wait for forgotten nodes",
        "core/acks.py",
        "    return ((holders.delivered or node.cluster.ids) & node.cluster.ids) - holders.confirmed\n",
        "    return (holders.delivered or node.cluster.ids) - holders.confirmed\n",
        1,
        "P6",
    ),
    Mutant(
        "SETACK confirmed but not taken",
        "core/acks.py",
        "            _finish(node, job, is_ours=not count)\n",
        "            node.outbox.tell(bus.GOTACK, peer.alone, job_id, 1)\n            continue\n",
        1,
        "P3",
    ),
    Mutant(
        "acks of imported jobs stay here",
        "core/acks.py",
        "    if job.holders is node.alone:\n",
        "    if job.holders is node.alone or job.rules.replicate == 1:\n",
        1,
        "P3",
    ),
    Mutant(
        "SETACK not repeated",
        "core/acks.py",
        "    node.timers.set(job, min(node.after_retry(wait_ms), job.expires_at))\n\n\ndef _collected",
        "    node.timers.set(job, job.expires_at)\n\n\ndef _collected",
        1,
        "P6",
    ),
    Mutant(
        "no extra node after 50 ms",
        "core/replication.py",
        "    more = node.choose(1, addition.delivered)\n",
        "    more: list[bytes] = []\n",
        1,
        "P1",
    ),
    Mutant(
        "failed add not deleted",
        "core/replication.py",
        "    node.outbox.tell(bus.DELJOB, job.holders.delivered, job.id)\n    node.finished.add(job.id)\n",
        "",
        1,
        "P3",
    ),
    Mutant(
        "external job of retry 0 not queued",
        "core/replication.py",
        "bus.QUEUE_IT if _is_once(addition) else 0)\n    _set_timer",
        "0)\n    _set_timer",
        1,
        "P1",
    ),
    Mutant(
        "QUEUE_IT taken twice",
        "core/replication.py",
        "    if message.flags & bus.QUEUE_IT and not peer.hands_over(message.sequence):\n",
        "    if message.flags & bus.QUEUE_IT and not peer.hands_over(0):\n",
        1,
        "P5",
    ),
    Mutant(
        "NEEDJOBS ignored",
        "core/federation.py",
        "    count, name = bus.name_of(message)\n    waiters",
        "    count, name = bus.name_of(message)\n    return\n    waiters",
        1,
        "P6",
    ),
    Mutant(
        "YOURJOBS of a finished job queued",
        "core/federation.py",
        "        if (job is None and copy.id in node.finished) or (job is not None and job.state == ACKED):\n",
        "        if job is not None and job.state == ACKED:\n",
        1,
        "P3",
    ),
    Mutant(
        "hand-over of retry 0 taken twice",
        "core/federation.py",
        "    is_new = peer.hands_over(message.sequence)\n",
        "    is_new = True\n",
        1,
        "P5",
    ),
    Mutant(
        "given away, and told of afterwards",
        "core/outbox.py",
        "    bus.REPLJOB,\n    bus.ENQUEUE,\n",
        "    bus.REPLJOB,\n    bus.YOURJOBS,\n    bus.ENQUEUE,\n",
        1,
        "P6",
    ),
    Mutant(
        "holders not merged",
        "core/replication.py",
        "    more = (nodes & node.cluster.ids) - job.holders.delivered\n    if not more:\n",
        "    more = (nodes & node.cluster.ids) - job.holders.delivered\n    if nodes or not more:\n",
        1,
        "P3",
    ),
    Mutant(
        "delay early",
        "core/delivery.py",
        "        return ACTIVE, 0, node.now_ms + rules.delay_s * 1000 + 1\n",
        "        return ACTIVE, 0, node.now_ms + rules.delay_s * 1000 - 100\n",
        1,
        "P8",
    ),
    Mutant(
        "a copy forgets its delay in a restart",
        "core/restoring.py",
        "                job.requeue_at = max(job.requeue_at, self._release_at(job))\n",
        "                pass\n",
        1,
        "P8",
    ),
    Mutant(
        "restored job queued without asking",
        "core/restoring.py",
        "            if len(job.holders.delivered) > 1:\n                job.flags |= BCAST_WILLQUEUE\n"
        "                self._unannounced.append(job)\n                return\n            elif",
        "            if",
        1,
        "P3",
    ),
    Mutant(
        "lease token not checked",
        "core/tokens.py",
        "job.token == token != 0 and",
        "job.token != 0 and",
        1,
        "P4",
    ),
    Mutant(
        "a link that is lost is not opened again",
        "core/gossip.py",
        '    """Our link to a node is gone, or could not be opened."""\n    peer.link = NO_LINK\n',
        '    """Our link to a node is gone, or could not be opened."""\n    peer.linked_ms = 1 << 60\n',
        1,
        "whole",
    ),
    Mutant(
        "memory of finished copies stays accounted",
        "core/removal.py",
        "    node.memory.used_bytes -= JOB_BYTES + len(job.body)\n",
        "    node.memory.used_bytes -= JOB_BYTES\n",
        1,
        "P7",
    ),
)


def plant(mutant: Mutant | None, directory: Path) -> Path:
    """Copy the sources and plant a defect; gives the folder to import from."""
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
    """Run seeds on a planted defect, in order, up to the first that fails; gives that seed and what broke."""
    with tempfile.TemporaryDirectory() as directory:
        source = plant(mutant, Path(directory))
        command = [sys.executable, "-m", "penstock.sim", "--stop", "--json", "--jobs", "1", "--seeds"]
        done = subprocess.run(
            [*command, ",".join(map(str, seeds))],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": str(source), "PENSTOCK_PURE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.name}: {done.stderr}")
    failures = json.loads(done.stdout)["failures"]
    if not failures:
        return None
    return failures[0]["seed"], failures[0]["violations"][0]


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
