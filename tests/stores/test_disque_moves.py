"""Moves on nodes of ours: one command where all of them know it, two steps where one is of an earlier version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Capability
from penstock.queues import aio
from tests.processes import NodeProcess
from tests.stores.harness import PATIENCE

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node of an earlier version: it doesn't know MOVEJOBS."""
    directory = tmp_path_factory.mktemp("earlier")
    (directory / "earlier.conf").write_text('rename-command movejobs ""\n')

    class Earlier(NodeProcess):
        @property
        def argv(self) -> list[str]:
            python, script, server, *words = super().argv
            return [python, script, server, *words[:1], str(directory / "earlier.conf"), *words[1:]]

    node = Earlier(directory, appendonly="no").start()
    yield node
    node.kill()


def url_of(node: NodeProcess) -> str:
    return f"disque://{node.host}:{node.port}"


async def _moves(store: Any) -> None:
    """Move a reserved job, send one to the dead letters, and redrive it."""
    here, there = store.queue("here"), store.queue("there")
    await here.push_many(["one", "two"])
    await (await here.reserve(timeout=PATIENCE)).move(there.name, payload="moved")
    await (await here.reserve(timeout=PATIENCE)).fail("broken")
    assert await store.dead_letters().redrive() == 1
    assert [job.payload async for job in there.jobs()] == ["moved"]
    assert [job.payload async for job in here.jobs()] == ["two"]
    assert await store.dead_letters().total() == 0
    for queue in (here, there):
        await queue.purge()


async def test_a_move_is_one_command(shared_node: NodeProcess) -> None:
    async with aio.connect(url_of(shared_node)) as store:
        assert Capability.ATOMIC_MOVE in store.capabilities
        shared_node.call("CONFIG", "RESETSTAT")
        await _moves(store)
        calls = shared_node.call("INFO", "all").decode()
        # A move, a dead letter and a redrive.
        assert "cmdstat_movejobs:calls=3," in calls
        assert "cmdstat_acklease" not in calls


async def test_a_node_of_an_earlier_version_moves_in_two_steps_and_the_store_says_so(earlier: NodeProcess) -> None:
    async with aio.connect(url_of(earlier)) as store:
        assert Capability.ATOMIC_MOVE not in store.capabilities
        assert not store.queue("here").moves_atomically("there")
        await _moves(store)


async def test_a_node_that_turns_out_to_be_of_an_earlier_version_does_so_too(earlier: NodeProcess) -> None:
    async with aio.connect(url_of(earlier)) as store:
        await store.queue("here").size()
        driver = store._driver
        driver._nodes.know_moves = True  # as if it had joined since
        vars(driver).pop("capabilities")
        assert store.queue("here").moves_atomically("there")
        await _moves(store)
        assert not store.queue("here").moves_atomically("there")
