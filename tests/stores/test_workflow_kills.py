"""Workers that are killed within chains and groups: none of these hangs, and what follows a group is pushed once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Capability
from tests.stores.harness import Place
from tests.stores.workflow_process import Shop, expected

IS_LONG = os.environ.get("PENSTOCK_LONG") == "1"
GROUPS = 1000 if IS_LONG else 40
IN_SHORT = {"sqlite", "redis+oq"}
OWN_CLOCK = {"memory", "disque"}  # one has no other processes, the other's clock is its server's
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 1500.0 if IS_LONG else 120.0  # all members run before what follows them

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800 if IS_LONG else 240)]


@contextmanager
def process(role: str, place: Place, log: Path, options: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.stores.workflow_process", role, place.url, json.dumps(options), str(log)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    errors = log.with_suffix(".errors")
    with errors.open("ab") as file:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, env=environment, cwd=ROOT
        )
    try:
        yield child
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait()


def _jobs_of_callbacks(log: Path) -> dict[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for line in log.read_text().splitlines():
        _, which, job_id = line.split(" ", 2)
        found[int(which)].add(job_id)
    return found


def _options(place: Place) -> dict[str, Any]:
    return {**place.kind.options, "namespace": place.namespace, "poll": 0.05}


def _skip_unless_chosen(place: Place) -> None:
    if place.name == "memory" or Capability.RESERVE not in place.connect_aio().capabilities:
        pytest.skip("no workers in other processes")
    if not IS_LONG and place.name not in IN_SHORT:
        pytest.skip("runs in make test-long")


async def test_no_group_hangs_or_goes_on_twice_while_workers_are_killed(aio_place: Place, tmp_path: Path) -> None:
    _skip_unless_chosen(aio_place)
    options, log = _options(aio_place), tmp_path / "log"
    shop = Shop(aio_place.url, options, str(log))
    async with shop.app:
        handles = [await shop.work(number).push() for number in range(GROUPS)]
        with process("kills", aio_place, log, options):
            assert {await handle.result(timeout=PATIENCE_S) for handle in handles} == {expected()}
        jobs = _jobs_of_callbacks(log)
        assert len(jobs) == 2 * GROUPS
        if Capability.UNIQUE in shop.app.client.store.capabilities:
            assert [which for which, ids in jobs.items() if len(ids) != 1] == []


async def test_a_worker_may_die_at_any_step_of_a_workflow(aio_place: Place, tmp_path: Path) -> None:
    """At each call to the store that it makes, before it and after it."""
    _skip_unless_chosen(aio_place)
    if aio_place.name in OWN_CLOCK or Capability.UNIQUE not in aio_place.connect_aio().capabilities:
        pytest.skip("needs a clock that can be shifted, and unique keys")
    options, log = _options(aio_place), tmp_path / "log"
    shop = Shop(aio_place.url, options, str(log))
    async with shop.app:
        with process("steps", aio_place, log, options) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            for at in range(0, 10_000, 1 if aio_place.name == "sqlite" else 3):
                handle = await shop.work(at, size=1).push()
                child.stdin.write(f"{at}\n")
                child.stdin.flush()
                answer = await asyncio.to_thread(child.stdout.readline)
                assert await handle.result(timeout=0) == expected(size=1), at
                if answer == "lived\n":
                    break
        assert at > 30
        assert [which for which, ids in _jobs_of_callbacks(log).items() if len(ids) != 1] == []
        assert len(_jobs_of_callbacks(log)) == 2 * (at // (1 if aio_place.name == "sqlite" else 3) + 1)
