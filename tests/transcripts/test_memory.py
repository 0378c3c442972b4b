"""After a story nothing is left behind: no cycles, since a node runs without a garbage collector, and no bytes."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from penstock.broker.core.federation import EXCHANGE_BYTES, Exchange
from penstock.broker.core.jobs import JOB_BYTES, Confirming, Holders, Job
from penstock.broker.core.queues import QUEUE_BYTES, Queue
from penstock.broker.core.registry import ENTRY_BYTES
from penstock.broker.core.replication import Addition
from penstock.broker.core.tokens import claims_bytes
from penstock.broker.core.waiters import Waiter, waits_bytes
from tests.transcripts.stage import Stage

STORIES = sorted(Path(__file__).parent.glob("*.txt"))
KINDS = (Job, Holders, Confirming, Addition, Waiter, Exchange, Queue)


def play(stage: Stage, story: Path) -> None:
    for block in story.read_text().split("\n\n"):
        for action in block.split("\n----")[0].split("\n"):
            if action and not action.startswith("#"):
                stage.do(action)


@pytest.mark.parametrize("story", STORIES, ids=[path.stem for path in STORIES])
def test_nothing_that_a_node_lets_go_of_is_in_a_cycle(story: Path) -> None:
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        stage = Stage()
        play(stage, story)
        alive = stage.servers  # a stage that ends is full of cycles of its own: only what nodes drop counts
        gc.collect()
        lost = [thing for thing in gc.garbage if isinstance(thing, KINDS)]
        assert alive
        assert not [thing for thing in lost if not _of_a_crashed_node(stage, thing)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _of_a_crashed_node(stage: Stage, thing: object) -> bool:
    """A process that is gone takes everything with it; here its things are found as garbage."""
    return "crash" in stage.done


@pytest.mark.parametrize("story", STORIES, ids=[path.stem for path in STORIES])
def test_memory_is_accounted_for_to_the_byte(story: Path) -> None:
    stage = Stage()
    play(stage, story)
    for server in stage.servers.values():
        node = server.broker.node
        queues = node.queues.by_name.values()
        jobs = sum(JOB_BYTES + len(job.body) for job in node.jobs)
        names = sum(QUEUE_BYTES + len(queue.name) for queue in queues)
        exchanges = sum(EXCHANGE_BYTES for queue in queues if queue.exchange is not None)
        finished = ENTRY_BYTES * len(node.finished)
        held = claims_bytes(node) + waits_bytes(node)
        assert node.memory.used_bytes == node.memory.base_bytes + jobs + names + exchanges + finished + held
