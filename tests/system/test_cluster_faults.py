"""Real clusters under kill -9, SIGSTOP and partitions, with clients at work: what was acknowledged is delivered."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.processes import NodeProcess, meet, wait_until, wait_until_met
from tests.system.cluster_load import Load

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ROUNDS = 50 if os.environ.get("PENSTOCK_LONG") else 5
NODE_TIMEOUT_MS = 3000  # a busy machine must not look like a dead node
PATIENCE_S = 240.0  # for everything to drain, on a machine that is busy with other things

StartNode = Callable[..., NodeProcess]


@pytest.fixture
def start_many(start_node: StartNode) -> Iterator[Callable[..., list[NodeProcess]]]:
    def start(count: int, **directives: object) -> list[NodeProcess]:
        settings = {"cluster_node_timeout": NODE_TIMEOUT_MS, "appendfsync": "everysec", **directives}
        nodes = [start_node(**settings) for _ in range(count)]
        meet(*nodes)
        return nodes

    return start


def finish(load: Load, nodes: list[NodeProcess]) -> None:
    """Let the queue drain, and hold the book against the promises."""
    load.stop_producing()
    try:
        wait_until(load.all_done, PATIENCE_S, every=0.1)
        wait_until(lambda: all(int(node.info()["registered_jobs"]) == 0 for node in nodes), PATIENCE_S, every=0.2)
    finally:
        load.stop()
    book = load.book
    assert len(book.added) > 50, "there was no load to speak of"
    assert not book.wrong, book.wrong[:5]
    lost = [job_id for job_id in book.added if not book.deliveries[job_id]]
    assert not lost, f"{len(lost)} acknowledged jobs were never delivered"
    share = 100 * book.duplicates / max(1, sum(book.deliveries.values()))
    report = (
        f"{len(book.added)} jobs, {share:.2f} % of deliveries were duplicates, {book.after_ack} after an answered ack"
    )
    (nodes[0].directory / "report").write_text(report + "\n")
    print(report)  # noqa: T201 - pytest shows it with -rP: the figures belong into docs/performance.md


@pytest.mark.parametrize(("count", "replicate"), [(3, 3), (7, 3)])
def test_kills_under_load_lose_nothing(
    start_many: Callable[..., list[NodeProcess]], count: int, replicate: int
) -> None:
    nodes = start_many(count)
    load = Load(nodes, replicate)
    chance = random.Random(count)
    try:
        for _ in range(ROUNDS):
            time.sleep(0.5)
            victims = chance.sample(nodes, replicate - 1)  # one copy less than there are
            for victim in victims:
                victim.kill()
            time.sleep(chance.choice([0.1, 2 * NODE_TIMEOUT_MS / 1000]))
            for victim in victims:
                victim.start()
            wait_until_met(*nodes)
    except BaseException:
        load.stop()
        raise
    finish(load, nodes)


def test_without_journals_fewer_kills_than_copies_lose_nothing(start_many: Callable[..., list[NodeProcess]]) -> None:
    nodes = start_many(3, appendonly="no")
    load = Load(nodes, 3)
    try:
        time.sleep(1.0)
        load.stop_producing()
        for victim in nodes[:2]:  # both lose all they had: the third one has a copy of everything
            victim.kill()
        for victim in nodes[:2]:
            victim.start()
        wait_until_met(*nodes)
    except BaseException:
        load.stop()
        raise
    finish(load, nodes)


def test_a_node_that_stands_still_for_longer_than_the_node_timeout(
    start_many: Callable[..., list[NodeProcess]],
) -> None:
    nodes = start_many(3)
    load = Load(nodes, 2)
    try:
        for victim in nodes:
            assert victim.process is not None
            time.sleep(0.5)
            victim.process.send_signal(signal.SIGSTOP)
            time.sleep(2.5 * NODE_TIMEOUT_MS / 1000)
            victim.process.send_signal(signal.SIGCONT)
            wait_until_met(*nodes)
    except BaseException:
        for node in nodes:
            if node.process is not None:
                node.process.send_signal(signal.SIGCONT)
        load.stop()
        raise
    finish(load, nodes)


def test_all_nodes_killed_at_once_come_back_with_everything(start_many: Callable[..., list[NodeProcess]]) -> None:
    nodes = start_many(3, appendfsync="always")
    load = Load(nodes, 3)
    try:
        for _ in range(2):
            time.sleep(1.0)
            for node in nodes:
                node.kill()
            for node in nodes:
                node.start(wait=False)
            for node in nodes:
                node.wait_until_it_answers()
            wait_until_met(*nodes)
    except BaseException:
        load.stop()
        raise
    finish(load, nodes)
