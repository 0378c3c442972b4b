"""One key in several processes: a driver that was taken for dead, a lease keeper that runs while a batch ends."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.client.blocking import ClusterClient
from penstock.errors import LeaseLost, OutcomeUnknown
from penstock.queues import blocking
from penstock.queues.stores.fsq.mover import Mover
from tests.servers import PostgresServer, RedisServer
from tests.stores.shifting_node import ShiftingNode

pytestmark = pytest.mark.system

ROUNDS = 20

_names = (f"race-{number}" for number in count())


def ids(jobs: list[blocking.Job]) -> list[str]:
    return [job.id for job in jobs]


def test_nothing_is_added_to_a_claim_that_somebody_has_asked_for_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, name = f"redis+oq://{redis_server.host}:{redis_server.port}/0", next(_names)
    with blocking.connect(url) as slow, blocking.connect(url) as fast:
        queue, again = slow.queue(name, lease=1000), fast.queue(name, lease=1000)
        queue.push_many(range(10))
        run = slow._driver._link.run
        seen: list[list[str]] = []

        def run_and_be_overtaken(script: Any, *args: Any, **named: Any) -> Any:
            answer = run(script, *args, **named)
            if script.name == "claim" and not seen:
                seen.append(ids(again.claim("key", 0)))
            return answer

        monkeypatch.setattr(slow._driver, "batch_max", 2)
        monkeypatch.setattr(slow._driver._link, "run", run_and_be_overtaken)
        assert [ids(queue.claim("key", 10))] == seen
        assert again.ack_claim("key") == len(seen[0]) == 2
        assert queue.size() == 8


def test_two_processes_that_begin_a_claim_at_the_same_moment_get_the_same_jobs(postgres_server: PostgresServer) -> None:
    name = next(_names)
    with blocking.connect(postgres_server.url()) as one, blocking.connect(postgres_server.url()) as two:
        one.queue(name).push_many(range(4 * ROUNDS))
        begin = threading.Barrier(2)
        found: list[tuple[int, list[str]]] = []

        def claim_all(queue: blocking.Queue) -> None:
            for number in range(ROUNDS):
                begin.wait()
                found.append((number, ids(queue.claim(f"key{number}", 2, lease=1000))))

        threads = [threading.Thread(target=claim_all, args=[store.queue(name)]) for store in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        by_round = [[jobs for number, jobs in found if number == wanted] for wanted in range(ROUNDS)]
        assert all(len(both) == 2 and both[0] == both[1] and len(both[0]) == 2 for both in by_round)
        assert one.queue(name).reserved() == 2 * ROUNDS


class Node:
    """A key of a node with one job, in two hands."""

    def __init__(self, node: ShiftingNode, batch: blocking.Store, keeper: blocking.Store) -> None:
        name = next(_names)
        self.batch, self.keeper = batch.queue(name, lease=1000), keeper.queue(name, lease=1000)
        self.batch.push("work")
        assert len(self.batch.claim("key", 1)) == 1


def between(store: blocking.Store, monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    """Let something happen right after a store has read what a key holds."""
    read = store._driver._claims._record

    def record(*args: Any) -> Any:
        found = read(*args)
        what()
        return found

    monkeypatch.setattr(store._driver._claims, "_record", record)


def test_leases_that_are_made_longer_during_an_ack_bring_no_key_back(
    disque_node: ShiftingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"disque://{disque_node.host}:{disque_node.port}"
    with blocking.connect(url) as batch, blocking.connect(url) as keeper:
        hands = Node(disque_node, batch, keeper)
        between(keeper, monkeypatch, lambda: hands.batch.ack_claim("key"))
        assert hands.keeper.extend_claim("key") == 0
        hands.batch.push("more")
        assert [job.payload for job in hands.batch.claim("key", 1)] == ["more"]


def test_leases_that_are_made_longer_while_a_key_is_claimed_again_take_nothing_from_it(
    disque_node: ShiftingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"disque://{disque_node.host}:{disque_node.port}"
    with blocking.connect(url) as batch, blocking.connect(url) as keeper:
        hands = Node(disque_node, batch, keeper)
        between(keeper, monkeypatch, lambda: hands.batch.claim("key", 0))
        hands.keeper.extend_claim("key")
        assert hands.batch.ack_claim("key") == 1
        assert hands.batch.total() == 0


def test_leases_that_were_over_are_made_again_when_they_should_be_longer(disque_node: ShiftingNode) -> None:
    url = f"disque://{disque_node.host}:{disque_node.port}"
    with blocking.connect(url) as batch, blocking.connect(url) as keeper:
        hands = Node(disque_node, batch, keeper)
        disque_node.shift(2000)
        assert hands.keeper.extend_claim("key") == 1
        assert hands.batch.reserve(timeout=0) is None
        assert hands.batch.ack_claim("key") == 1


def test_a_claim_whose_record_may_have_been_written_is_written_again(
    disque_node: ShiftingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ClusterClient.add
    adds: list[str] = []

    def add_unheard(client: ClusterClient, *args: Any, **named: Any) -> str:
        adds.append(add(client, *args, **named))
        if len(adds) == 1:
            raise OutcomeUnknown("the link broke")
        return adds[-1]

    url = f"disque://{disque_node.host}:{disque_node.port}"
    with blocking.connect(url) as store:
        queue = store.queue(next(_names), lease=1000)
        queue.push_many(["work", "more"])
        monkeypatch.setattr(ClusterClient, "add", add_unheard)
        assert len(queue.claim("key", 1)) == 1
        assert len(adds) == 2
        assert queue.ack_claim("key") == 1
        assert [job.payload for job in queue.claim("key", 1)] == ["more"]


@pytest.mark.parametrize("is_removed", [True, False], ids=["directory-removed", "directory-there"])
@pytest.mark.parametrize("moment", ["_begin", "_rewrite", "_finish"])
def test_leases_that_are_made_longer_while_a_job_fails_leave_no_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, is_removed: bool
) -> None:
    url = f"fsq:{tmp_path}/root?sync=0"
    with blocking.connect(url) as worker, blocking.connect(url) as keeper:
        queue = worker.queue("mail", lease=1000)
        queue.push_many(range(3))
        failed = queue.claim("key", 3)[0]
        if not is_removed:
            (lease,) = (tmp_path / "root/mail/.penstock/claim").glob("*/*.*")
            (lease / "not an item").touch()
        step, extended = getattr(Mover, moment), []

        def be_overtaken(self: Mover, *args: Any) -> Any:
            if not extended:
                extended.append(keeper.queue("mail", lease=1000).extend_claim("key"))
            return step(self, *args)

        monkeypatch.setattr(Mover, moment, be_overtaken)
        with pytest.raises(LeaseLost):
            failed.fail("never")
        assert extended == [3]
        assert worker.dead_letters().total() == 0
        (failed,) = (job for job in queue.claim("key", 3) if job.id == failed.id)
        failed.fail("never")
        assert [job.payload for job in worker.dead_letters().jobs()] == [0]
        assert queue.nack_claim("key") == queue.size() == 2
