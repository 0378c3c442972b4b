"""The cluster client on real nodes, in both forms: restarts, TLS, cancellation, and clusters of three."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest

from penstock.client import ClusterClient, LeaseOutcome
from penstock.client.blocking import ClusterClient as BlockingClient
from penstock.errors import AuthenticationError, OutcomeUnknown, ReplyError, Unreachable
from tests.certificates import Authority
from tests.conftest import StartNode
from tests.processes import NodeProcess, free_port, wait_until

pytestmark = pytest.mark.system

# Switch on what needs several nodes once they find each other.
CLUSTER_BUS = True
needs_bus = pytest.mark.skipif(not CLUSTER_BUS, reason="needs the cluster bus")

# Switch on once a node takes back a job that it hands to a client whose end it has read, or reads, in the same round.
HANDED_JOBS_COME_BACK = True
needs_handed_jobs_back = pytest.mark.skipif(
    not HANDED_JOBS_COME_BACK, reason="needs nodes that take back what they handed to a client that hung up"
)

_names = count(1)


@pytest.fixture
def name() -> str:
    """The name of a queue that no other test uses."""
    return f"cluster-client-{next(_names)}"


@pytest.fixture
def client(shared_node: NodeProcess) -> Iterator[BlockingClient]:
    with BlockingClient(address(shared_node)) as blocking:
        yield blocking


def address(*nodes: NodeProcess) -> str:
    return ",".join(f"{node.host}:{node.port}" for node in nodes)


def test_jobs_go_in_and_come_out(client: BlockingClient, name: str) -> None:
    body = bytes(range(256))
    first = client.add(name, body, retry=60)
    rest = client.add_many(name, [f"body {number}" for number in range(2500)])
    assert client.qlen(name) == 2501
    jobs = client.get(name, count=5000, counters=True)
    assert [job.id for job in jobs] == [first, *rest]
    assert (jobs[0].body, jobs[0].queue, jobs[0].nacks, jobs[0].additional_deliveries) == (body, name, 0, 0)
    assert client.ack(*jobs) == 2501
    assert client.get(name, nohang=True) == []


def test_a_job_can_be_read(client: BlockingClient, name: str) -> None:
    job_id = client.add(name, "body", delay=0, retry=60, ttl=600)
    details = client.show(job_id)
    assert details is not None
    assert (details.state, details.queue, details.retry, details.body) == ("queued", name, 60, b"body")
    assert [job.id for job in client.peek(name)] == [job_id]
    queue = client.qstat(name)
    assert queue is not None
    assert (queue.name, queue.length, queue.pause) == (name, 1, "none")
    assert job_id in list(client.job_ids(queue=name, states=["queued"]))
    assert [found.id for found in client.jobs(queue=name)] == [job_id]
    assert name in set(client.queues(minlen=1))
    assert client.info("server")["tcp_port"]
    assert client.show("D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1") is None


def test_a_queue_can_have_any_name(client: BlockingClient) -> None:
    for given in ("käse", b"\xff\x00\r\n", ""):
        client.add(given, "body")
        (job,) = client.get(given)
        assert job.queue == given
        client.ack(job)
    assert b"\xff\x00\r\n" in set(client.queues())


def test_a_lease_lives_and_ends(client: BlockingClient, name: str) -> None:
    client.add(name, "body")
    (job,) = client.get(name, lease=60)
    assert client.extend(job, lease=120) == [LeaseOutcome.OK]
    assert client.nack_lease(job) == [LeaseOutcome.OK]
    assert client.ack_lease(job) == [LeaseOutcome.STALE]
    (again,) = client.get(name, lease=60, counters=True)
    assert (again.id, again.nacks) == (job.id, 1)
    assert client.ack_lease(again) == [LeaseOutcome.OK]
    assert client.ack_lease(again) == [LeaseOutcome.NOJOB]


def test_a_claim_returns_the_same_jobs_again(client: BlockingClient, name: str) -> None:
    client.add_many(name, ["a", "b", "c"])
    claim = client.claim("key-1", name, count=2, lease=60)
    assert [job.body for job in claim.jobs] == [b"a", b"b"]
    assert all(job.created_ns for job in claim.jobs)
    assert client.claim("key-1", name, count=2) == claim
    assert client.extend_claim(claim, lease=60) == 2
    assert client.ack_claim(claim) == 2
    assert client.claim("key-2", name, count=5).jobs[0].body == b"c"
    assert client.nack_claim("key-2") == 1


def test_jobs_are_given_back_taken_out_and_paused(client: BlockingClient, name: str) -> None:
    job_id = client.add(name, "body", retry=60)
    (job,) = client.get(name)
    assert client.working(job) == 60
    assert client.nack(job) == 1
    assert client.dequeue(job_id) == 1
    assert client.enqueue(job_id) == 1
    assert client.pause(name, "in") == "in"
    with pytest.raises(ReplyError, match="PAUSED"):
        client.add(name, "another")
    assert client.pause(name, "none") == client.pause(name) == "none"
    assert client.fast_ack(job_id) == 1
    assert client.delete(job_id) == 0


async def someone_waits(node: NodeProcess, name: str) -> None:
    """Come back when a client waits for a job of this queue."""
    await asyncio.to_thread(wait_until, lambda: (node.call("QSTAT", name) or [0] * 10)[9])


def test_a_fetch_waits_for_a_job(shared_node: NodeProcess, name: str) -> None:
    async def scenario() -> None:
        async with ClusterClient(address(shared_node)) as client:
            wait = asyncio.create_task(client.get(name, timeout=30, lease=60))
            await someone_waits(shared_node, name)
            job_id = await client.add(name, "body")
            (job,) = await wait
            assert job.id == job_id
            assert await client.ack_lease(job) == [LeaseOutcome.OK]
            assert await client.get(name, timeout=0.05) == []

    asyncio.run(scenario())


def storm(node: NodeProcess, client: ClusterClient, name: str, seed: int, lease: float | None = None) -> None:
    """Let workers be cancelled at any moment while jobs come in: each job is with somebody, or in its queue."""
    jobs = 150
    got: list[str] = []
    chance = random.Random(seed)

    async def work() -> None:
        got.extend(job.id for job in await client.get(name, timeout=30, count=3, lease=lease))

    async def scenario() -> None:
        workers: list[asyncio.Task[None]] = []
        for number in range(jobs):
            workers += [asyncio.create_task(work()) for _ in range(2)]
            add = asyncio.create_task(client.add(name, str(number), retry=3600))
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            chance.choice(workers).cancel()
            await add
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await client.close()

    asyncio.run(scenario())
    assert len(got) == len(set(got))
    wait_until(lambda: node.call("QLEN", name) == jobs - len(got), 20.0)


@needs_handed_jobs_back
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lease", [None, 3600.0])
def test_however_workers_are_cancelled_no_job_is_lost(
    shared_node: NodeProcess, name: str, seed: int, lease: float | None
) -> None:
    storm(shared_node, ClusterClient(address(shared_node)), name, seed, lease)


@pytest.mark.parametrize("lease", [None, 3600.0])
def test_a_cancelled_worker_is_not_given_the_next_job(shared_node: NodeProcess, name: str, lease: float | None) -> None:
    async def scenario() -> None:
        async with ClusterClient(address(shared_node)) as client:
            wait = asyncio.create_task(client.get(name, timeout=30, lease=lease))
            await someone_waits(shared_node, name)
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait
            await asyncio.to_thread(wait_until, lambda: shared_node.call("QSTAT", name)[9] == 0)
            await client.add(name, "body")
            assert await client.qlen(name) == 1

    asyncio.run(scenario())


@pytest.fixture
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@pytest.fixture
def tls_node(start_node: StartNode, authority: Authority) -> NodeProcess:
    """A node with a password that speaks TLS, too, at its `tls_port`."""
    pair = authority.sign("node")
    port = free_port()
    node = start_node(tls_port=port, tls_cert_file=pair.cert, tls_key_file=pair.key, requirepass="secret", wait=False)
    node.options = {"password": "secret"}
    node.tls_port = port
    node.wait_until_it_answers()
    return node


def tls_url(node: NodeProcess) -> str:
    return f"disques://:secret@{node.host}:{node.tls_port}"


def test_over_tls_and_with_a_password_it_is_the_same(tls_node: NodeProcess, authority: Authority) -> None:
    async def scenario() -> None:
        async with ClusterClient(tls_url(tls_node), ca=str(authority.cert)) as client:
            wait = asyncio.create_task(client.get("q", timeout=30))
            await someone_waits(tls_node, "q")
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait
            await asyncio.to_thread(wait_until, lambda: tls_node.call("QSTAT", "q")[9] == 0)
            await client.add_many("q", ["1", "2"])
            assert [job.body for job in await client.get("q", timeout=30, count=2)] == [b"1", b"2"]

    asyncio.run(scenario())
    with BlockingClient(tls_url(tls_node), ca=str(authority.cert)) as client:
        client.add("other", "body")
        (job,) = client.get("other", lease=5)
        assert client.ack_lease(job) == [LeaseOutcome.OK]


@needs_handed_jobs_back
@pytest.mark.slow
def test_over_tls_no_job_is_lost_either(tls_node: NodeProcess, authority: Authority) -> None:
    storm(tls_node, ClusterClient(tls_url(tls_node), ca=str(authority.cert)), "q", 1)


def test_a_wrong_password_is_reported_at_once(start_node: StartNode) -> None:
    node = start_node(requirepass="secret", wait=False)
    node.options = {"password": "secret"}
    node.wait_until_it_answers()
    with BlockingClient(address(node), password="wrong") as client, pytest.raises(AuthenticationError):
        client.qlen("q")
    with BlockingClient(address(node)) as client, pytest.raises(AuthenticationError):
        client.qlen("q")


def test_jobs_leases_and_adds_go_on_after_a_node_was_killed_and_started_again(start_node: StartNode) -> None:
    node = start_node(appendfsync="always")
    with BlockingClient(address(node)) as client:
        client.add_many("q", ["held", "waiting"])
        (held,) = client.get("q", lease=600)
        node.kill()
        node.start()
        assert client.ack_lease(held) == [LeaseOutcome.OK]
        client.add("q", "new")
        assert [job.body for job in client.get("q", count=5)] == [b"waiting", b"new"]


def test_a_waiting_fetch_outlives_a_restart_of_its_node(start_node: StartNode) -> None:
    async def scenario() -> None:
        async with ClusterClient(address(node)) as client:
            wait = asyncio.create_task(client.get("q", timeout=60))
            await someone_waits(node, "q")
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)
            await client.add("q", "body")
            (job,) = await wait
            assert job.body == b"body"

    node = start_node()
    asyncio.run(scenario())


def test_a_node_that_leaves_and_is_alone_still_returns_what_it_has(start_node: StartNode) -> None:
    node = start_node()
    with BlockingClient(address(node)) as client:
        client.add("q", "body")
        node.call("CLUSTER", "LEAVING", "yes")
        (job,) = client.get("q", timeout=5)
        assert job.body == b"body"
        assert client.get("q", timeout=0.1) == []


def test_a_node_that_is_down_is_named(start_node: StartNode) -> None:
    node = start_node()
    node.kill()
    with BlockingClient(address(node), timeout=0.2) as client, pytest.raises(Unreachable, match=address(node)):
        client.qlen("q")


def test_one_client_serves_many_tasks(shared_node: NodeProcess, name: str) -> None:
    async def scenario() -> None:
        async with ClusterClient(address(shared_node)) as client:
            done: list[bytes] = []

            async def work() -> None:
                while jobs := await client.get(name, timeout=1, count=10, lease=60):
                    done.extend(job.body for job in jobs)
                    assert set(await client.ack_lease(*jobs)) == {LeaseOutcome.OK}

            workers = [asyncio.create_task(work()) for _ in range(10)]
            await asyncio.gather(*(client.add(name, str(number)) for number in range(1000)))
            await asyncio.gather(*workers)
            assert sorted(done, key=int) == [str(number).encode() for number in range(1000)]

    asyncio.run(scenario())


# Several nodes


@pytest.fixture
def three(start_node: StartNode) -> list[NodeProcess]:
    """Three nodes that know each other."""
    nodes = [start_node(cluster_node_timeout=2000) for _ in range(3)]
    for other in nodes[1:]:
        nodes[0].call("CLUSTER", "MEET", other.host, other.port)
    for node in nodes:
        wait_until(lambda node=node: priorities(node) == [1, 1, 1])
    return nodes


def priorities(node: NodeProcess) -> list[int]:
    return [int(row[3]) for row in node.call("HELLO")[2:]]


def node_id(node: NodeProcess) -> str:
    text: str = node.call("CLUSTER", "MYID").decode()
    return text


@needs_bus
def test_all_nodes_are_learned_from_one(three: list[NodeProcess]) -> None:
    with BlockingClient(address(three[0])) as client:
        hello = client.hello()
        assert {node.id for node in hello.nodes} == {node_id(node) for node in three}
        assert {node.port for node in client.nodes} == {node.port for node in three}


@needs_bus
def test_a_client_goes_on_when_the_node_it_is_on_is_killed(three: list[NodeProcess]) -> None:
    by_id = {node_id(node): node for node in three}
    with BlockingClient(address(three[0])) as client:
        client.add_many("q", ["1", "2", "3"], replicate=3, retry=1)
        assert client.node is not None
        by_id[client.node].kill()
        bodies: set[bytes] = set()
        while len(bodies) < 3:
            for job in client.get("q", timeout=30, count=5):
                bodies.add(job.body)
                client.ack(job)


@needs_bus
def test_a_client_leaves_a_node_that_leaves(three: list[NodeProcess]) -> None:
    by_id = {node_id(node): node for node in three}
    with BlockingClient(address(*three)) as client:
        client.hello()
        assert client.node is not None
        left = client.node
        by_id[left].call("CLUSTER", "LEAVING", "yes")
        assert client.get("q", timeout=0.2) == []
        assert client.node != left


@needs_bus
def test_a_worker_moves_to_the_node_that_makes_its_jobs(three: list[NodeProcess]) -> None:
    producer, worker = three[0], three[1]
    with (
        BlockingClient(address(producer), follow_jobs=None) as adding,
        BlockingClient(address(worker), follow_jobs=30) as working,
    ):
        working.hello()
        assert working.node == node_id(worker)
        moved = False
        for number in range(2000):
            adding.add("q", str(number), replicate=1)
            for job in working.get("q", timeout=10, lease=60):
                assert working.ack_lease(job) == [LeaseOutcome.OK]
            if moved := working.node == node_id(producer):
                break
        assert moved


@needs_bus
def test_a_lease_is_acked_at_its_node_after_the_client_has_moved(three: list[NodeProcess]) -> None:
    by_id = {node_id(node): node for node in three}
    with BlockingClient(address(*three)) as client:
        client.add("q", "body", replicate=2)
        (job,) = client.get("q", timeout=30, lease=60)
        assert job.lease is not None
        by_id[job.lease.node].call("CLUSTER", "LEAVING", "yes")
        client.get("none", timeout=0.2)
        assert client.node != job.lease.node
        assert client.ack_lease(job) == [LeaseOutcome.OK]


@needs_bus
@pytest.mark.slow
def test_while_nodes_are_killed_and_started_every_job_that_was_added_is_done(three: list[NodeProcess]) -> None:
    async def scenario() -> None:
        chance = random.Random(3)
        added: set[str] = set()
        done: set[str] = set()
        stop = asyncio.Event()
        async with ClusterClient(address(*three), timeout=60, answer_timeout=3) as client:

            async def produce() -> None:
                while not stop.is_set():
                    with suppress(OutcomeUnknown, ReplyError):
                        added.add(await client.add("q", "body", replicate=2, retry=2, timeout=2))
                    await asyncio.sleep(0.01)

            async def work() -> None:
                while not stop.is_set() or not added <= done:
                    for job in await client.get("q", timeout=1, count=5, lease=5):
                        await client.ack(job)
                        done.add(job.id)

            tasks = [asyncio.create_task(task()) for task in (produce, work, work)]
            for _ in range(4):
                victim = chance.choice(three)
                await asyncio.to_thread(victim.kill)
                await asyncio.sleep(1)
                await asyncio.to_thread(victim.start)
                await asyncio.sleep(1)
            stop.set()
            async with asyncio.timeout(60):
                await asyncio.gather(*tasks)
            assert added <= done

    asyncio.run(scenario())
