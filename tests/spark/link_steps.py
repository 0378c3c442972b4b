"""Functions of links, of each kind, for both engines."""

from __future__ import annotations

import os
import signal
from typing import Any

from penstock import Fail, Retry
from penstock.blocking import Job
from penstock.pipelines import DROP, Later, Move

# What becomes of a job by its number; others go on.
OUTCOMES: dict[int, Any] = {1: DROP, 2: None, 3: {"n": 3, "is": "new"}, 4: Move(headers={"h": 1}), 5: Move(payload=[5])}


def plain(payload: dict[str, Any]) -> Any:
    n = payload["n"]
    if n == 6:
        raise ValueError("always")
    if n == 7:
        raise Fail("never")
    if n == 8:
        return {1, 2}  # no JSON
    if n == 9:
        return Move(to="elsewhere")
    return OUTCOMES.get(n, {**payload, "plain": True})


async def flaky(job: Any) -> Any:
    if job.payload["n"] % 5 == 0 and job.tries == 0:
        raise Retry("not now", delay=0)
    return {**job.payload, "tries": job.tries}


def later(job: Job) -> Any:
    return Later(0) if job.tries < 2 else {"n": job.payload["n"], "came": job.tries}


def choose(job: Job) -> Any:
    return Move(to=job.payload["n"] % 2, headers={"chosen": "yes"}, payload={"n": -job.payload["n"]})


def sink(job: Job) -> Any:
    return {"ignored": job.id}


def frame(rows: Any) -> Any:
    if (rows["n"] == 6).any():
        raise ValueError("six")
    rows["double"] = 2 * rows["n"]
    rows.loc[rows["n"] == 1, "_drop"] = True
    rows.loc[rows["n"] == 2, "_fail"] = "two"
    return rows.sort_values("n", ascending=False)


def table(rows: Any) -> Any:
    import pyarrow.compute as pc

    return rows.append_column("half", pc.divide(pc.cast(rows["n"], "float64"), 2.0))


def deadly(payload: dict[str, Any]) -> dict[str, Any]:
    if payload["n"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return payload
