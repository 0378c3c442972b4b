"""The work of the demo's workers: `penstock worker URL orders shop:ship` finds it here.

A handler as anybody would write it: it does the work, and puts what came of it into the next queue. The byte that it
leaves in a file for each run is the demo's own way to count.
"""

from __future__ import annotations

import asyncio
import os
from functools import cache
from pathlib import Path

from penstock import Job, Queue, Store

RUNS_VARIABLE = "PENSTOCK_DEMO_RUNS"  # the folder in which each process notes its runs
WORK_S = 0.005


async def ship(job: Job) -> None:
    """Ship an order."""
    await asyncio.sleep(WORK_S)  # the work
    await _shipped(job.queue.store).push({"order": job.payload["order"], "job": job.id})
    os.write(_runs(), b".")


@cache
def _shipped(store: Store) -> Queue:
    return store.queue("shipped")


@cache
def _runs() -> int:
    path = Path(os.environ[RUNS_VARIABLE]) / str(os.getpid())
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def runs_in(folder: Path) -> int:
    """How many runs all processes have noted."""
    return sum(path.stat().st_size for path in folder.iterdir())
