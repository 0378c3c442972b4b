"""How the Redis stores reach a server: addresses, clients that are given, passwords, TLS, Sentinel, Cluster, and links
that break."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock import DeadLetter
from penstock.errors import (
    AuthenticationError,
    CallerError,
    ConnectionLost,
    LeaseLost,
    OutcomeUnknown,
    StoreError,
    Unsupported,
)
from penstock.queues import blocking
from penstock.queues.stores.redis.blocking import link as redis_link
from tests.certificates import Authority
from tests.processes import free_port, wait_until
from tests.redis_groups import RedisCluster, RedisSentinel
from tests.server_fixtures import StartRedis
from tests.servers import RedisServer
from tests.stores.cutting_proxy import CuttingProxy
from tests.stores.redis_stores import FORMS, connect, new_name, oq_url

pytestmark = pytest.mark.system

PATIENCE = 30.0


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


async def _works(store: Any, name: str) -> None:
    queue = store.queue(name)
    await queue.push("work")
    async with queue.reserving(timeout=PATIENCE) as job:
        assert job.payload == "work"
    assert await queue.total() == 0


def _module(form: str) -> Any:
    if form == "aio":
        from redis import asyncio

        return asyncio
    import redis

    return redis


async def _close(client: Any) -> None:
    if hasattr(client, "aclose"):
        await client.aclose()
    else:
        client.close()


# Clients that are given


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}, {"socket_timeout": 0.2}], ids=str)
async def test_a_client_that_is_given_is_used_and_left_open(
    form: str, redis_server: RedisServer, options: dict[str, Any]
) -> None:
    client = _module(form).Redis(host=redis_server.host, port=redis_server.port, **options)
    async with connect(form, "redis+oq://", client=client) as store:
        name = new_name()
        await _works(store, name)
        assert (await store.queue(name).stats())["ack"] == 1
        waiting = asyncio.create_task(store.queue(name).reserve(timeout=PATIENCE))
        await asyncio.sleep(0.5)  # longer than a client's own time limit for an answer
        await store.queue(name).push("later")
        assert (await waiting).payload == "later"
    answer = client.ping()
    assert await answer if form == "aio" else answer
    await _close(client)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_is_called_for_a_client_which_is_closed_with_the_store(
    form: str, redis_server: RedisServer, is_async: bool
) -> None:
    if is_async and form == "blocking":
        pytest.skip("nothing is awaited in the blocking form")
    made: list[Any] = []

    def make() -> Any:
        made.append(_module(form).Redis(host=redis_server.host, port=redis_server.port, client_name=name))
        return made[-1]

    async def make_later() -> Any:
        return make()

    name = new_name("function")
    store = connect(form, "redis+oq://", client=make_later if is_async else make)
    assert made == []
    async with store:
        assert len(made) == 1  # the store, its signals and its statistics share it
        await _works(store, new_name())
        assert _is_connected(redis_server, name)
    await _until(lambda: not _is_connected(redis_server, name))


async def test_a_function_that_returns_no_client_is_refused(form: str) -> None:
    with pytest.raises(CallerError, match=r"client= takes a redis\..*got str"):
        async with connect(form, "redis+oq://", client=lambda: "no client"):
            pass


def _is_connected(server: RedisServer, name: str) -> bool:
    with server.client() as client:
        return any(one["name"] == name for one in client.client_list())


async def test_a_client_of_the_other_form_is_refused(form: str) -> None:
    other = _module("blocking" if form == "aio" else "aio").Redis()
    with pytest.raises(CallerError, match=r"client= takes a redis\."):
        connect(form, "redis+oq://", client=other)


# Passwords and rights


async def test_a_password_is_wanted_and_given(form: str, start_redis: StartRedis) -> None:
    server = start_redis(wait=False, appendonly="no", requirepass="secret")
    wait_until(lambda: _is_up(server, password="secret"))
    for access, why in (("", "NOAUTH"), (":wrong@", "WRONGPASS"), ("tom:secret@", "WRONGPASS")):
        url = f"redis+oq://{access}{server.host}:{server.port}"
        with pytest.raises(AuthenticationError, match="user:password@host") as refused:
            async with connect(form, url):
                pass
        assert refused.value.code == why
        assert "secret@" not in str(refused.value)
    async with connect(form, f"redis+oq://:secret@{server.host}:{server.port}/3") as store:
        await _works(store, "q")
        assert "secret" not in repr(store)


async def test_missing_rights_are_reported(form: str, start_redis: StartRedis) -> None:
    server = start_redis(appendonly="no")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "tom", "on", ">pw", "~nothing", "+@all")
    async with connect(form, f"redis+oq://tom:pw@{server.host}:{server.port}", stats="memory:") as store:
        with pytest.raises(StoreError, match=r"needs rights to .* keuss:\*"):
            await store.queue("q").push(1)


def _is_up(server: RedisServer, **options: Any) -> bool:
    try:
        with server.client(**options) as client:
            return bool(client.ping())
    except Exception:
        return False


# TLS


@pytest.fixture
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@pytest.fixture
def tls_server(start_redis: StartRedis, authority: Authority) -> Iterator[RedisServer]:
    pair = authority.sign("node")
    port = free_port()
    server = start_redis(
        appendonly="no",
        tls_port=port,
        tls_cert_file=pair.cert,
        tls_key_file=pair.key,
        tls_ca_cert_file=authority.cert,
        tls_auth_clients="no",
    )
    server.tls_port = port
    return server


async def test_rediss_speaks_tls(form: str, tls_server: Any, authority: Authority) -> None:
    url = f"rediss+oq://{tls_server.host}:{tls_server.tls_port}/0"
    for query in (f"ssl_ca_certs={authority.cert}", "ssl_cert_reqs=none"):
        async with connect(form, f"{url}?{query}") as store:
            await _works(store, "q")


async def test_tls_that_fails_says_what_to_give(form: str, tls_server: Any) -> None:
    cases = [
        (f"rediss+oq://{tls_server.host}:{tls_server.tls_port}", "ssl_ca_certs=FILE"),
        (
            f"rediss+oq://{tls_server.host}:{tls_server.port}?ssl_cert_reqs=none&connect_timeout=1&timeout=1",
            "redis in place of rediss",
        ),
        (f"redis+oq://{tls_server.host}:{tls_server.tls_port}", "use rediss in place of redis"),
    ]
    for url, advice in cases:
        with pytest.raises(ConnectionLost, match=advice):
            async with connect(form, url):
                pass


# Servers that are not there, and addresses that can't be


async def test_a_server_that_is_not_there_is_reported(form: str) -> None:
    with pytest.raises(ConnectionLost, match=r"can't reach Redis at redis\+oq://127\.0\.0\.1:1.* Start it"):
        async with connect(form, "redis+oq://127.0.0.1:1"):
            pass


async def test_a_store_that_could_not_be_opened_can_be_when_its_server_is_there(
    form: str, start_redis: StartRedis
) -> None:
    server = start_redis()
    server.kill_hard()
    store = connect(form, oq_url(server))
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            await store.__aenter__()
    server.start()
    async with store:
        await _works(store, new_name())


async def test_a_socket_of_this_machine_can_be_used(form: str, start_redis: StartRedis, tmp_path: Any) -> None:
    start_redis(appendonly="no", unixsocket=tmp_path / "s")
    async with connect(form, f"redis+oq:///0?unix={tmp_path / 's'}") as store:
        await _works(store, "q")


async def test_a_replica_is_reported(form: str, redis_sentinel: RedisSentinel) -> None:
    async with connect(form, oq_url(redis_sentinel.replica), stats="memory:") as store:
        with pytest.raises(StoreError, match="it is a replica"):
            await store.queue("q").push(1)


# Links that break


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[CuttingProxy]:
    with CuttingProxy(redis_server) as proxy:
        yield proxy


async def test_a_push_whose_answer_is_lost_is_not_repeated(form: str, proxy: CuttingProxy) -> None:
    async with connect(form, f"redis+oq://127.0.0.1:{proxy.port}") as store:
        queue = store.queue(new_name())
        await queue.push(0)
        for swallow, total in ((False, 2), (True, 2)):
            proxy.cut_next(b"EVAL", swallow=swallow)
            with pytest.raises(OutcomeUnknown, match="may have been executed"):
                await queue.push(1)
            while await queue.total() != total:  # noqa: ASYNC110 - the server may still be at it
                await asyncio.sleep(0.01)
        await queue.push(2)
        assert await queue.total() == 3


async def test_a_connection_that_the_server_closed_between_calls_is_replaced(
    form: str, redis_server: RedisServer
) -> None:
    name = new_name("idle")
    async with connect(form, f"{oq_url(redis_server)}?client_name={name}") as store:
        queue = store.queue(new_name())
        await queue.push(1)
        with redis_server.client() as client:
            for one in client.client_list():
                if one["name"] == name:
                    client.client_kill_filter(_id=one["id"])
        await _until(lambda: not _is_connected(redis_server, name))
        for _ in range(3):
            await asyncio.sleep(0)  # a turn of the event loop, which reads the end
        await queue.push(2)
        assert await queue.total() == 2


async def test_a_server_that_does_not_reply_is_given_up_after_the_time_limit(
    form: str, start_redis: StartRedis
) -> None:
    server = start_redis(appendonly="no")
    async with connect(form, f"{oq_url(server)}?timeout=0.3", stats="memory:") as store:
        queue = store.queue("q")
        await queue.push(1)
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(OutcomeUnknown, match="may have been executed"):
                await queue.push(2)
            with pytest.raises(ConnectionLost, match=r"can't reach Redis .*: [Tt]imed? ?out"):
                await queue.total()
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert await _total(queue) >= 1


def test_a_forked_child_has_connections_of_its_own(redis_server: RedisServer) -> None:
    with blocking.connect(oq_url(redis_server)) as store:
        queue = store.queue(new_name("forked"))

        def connection() -> int:
            return store._driver._link.call(b"CLIENT", b"ID")

        mine = connection()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                queue.push("child")
                assert connection() != mine
                store.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert connection() == mine  # the child has not closed it
        assert queue.pop(timeout=PATIENCE).payload == "child"


async def test_a_pop_whose_answer_is_lost_is_reported(form: str, proxy: CuttingProxy) -> None:
    async with connect(form, f"redis+oq://127.0.0.1:{proxy.port}") as store:
        queue = store.queue(new_name())
        await queue.push_many([0, 1, 2])
        await queue.pop(timeout=PATIENCE)
        proxy.cut_next(b"EVAL")
        with pytest.raises(OutcomeUnknown):
            await queue.pop(timeout=PATIENCE)
        assert (await queue.pop(timeout=PATIENCE)).payload == 2


async def test_a_reserve_whose_answer_is_lost_goes_on_waiting(form: str, proxy: CuttingProxy) -> None:
    async with connect(form, f"redis+oq://127.0.0.1:{proxy.port}") as store:
        queue = store.queue(new_name())
        await queue.push_many([0, 1, 2])
        await (await queue.reserve(timeout=PATIENCE)).ack()
        proxy.cut_next(b"EVAL")
        job = await queue.reserve(timeout=PATIENCE)
        assert job.payload == 2
        store.shift_clock(200)
        lost = await queue.reserve(timeout=PATIENCE)
        assert (lost.payload, lost.tries) == (1, 1)
        proxy.cut_next(b"EVAL")
        with pytest.raises(ConnectionLost):
            await lost.ack()
        assert await queue.total() == 1


async def test_a_waiting_caller_hears_by_a_new_link_after_the_old_one_broke(form: str, start_redis: StartRedis) -> None:
    server = start_redis()
    async with connect(form, oq_url(server)) as store, connect(form, oq_url(server)) as other:
        queue = store.queue("q")
        waiting = asyncio.create_task(queue.reserve(timeout=PATIENCE))
        await asyncio.sleep(0.3)
        server.kill_hard()
        with pytest.raises(ConnectionLost):
            await other.queue("q").push(0)
        server.start()
        await asyncio.sleep(1.5)
        assert not waiting.done()
        await other.queue("q").push("at last")
        assert (await asyncio.wait_for(waiting, PATIENCE)).payload == "at last"


async def test_a_listener_hears_again_and_learns_that_it_missed_something(start_redis: StartRedis) -> None:
    server = start_redis(appendonly="no")
    heard: list[str] = []
    async with connect("aio", oq_url(server)) as store:
        await store._services.signal.subscribe("channel", heard.append)
        await store._services.signal.send("channel", "one")
        await _until(lambda: heard == ["one"])
        server.restart()
        await _until(lambda: heard == ["one", ""])
        await store._services.signal.send("channel", "two")
        await _until(lambda: heard == ["one", "", "two"])
        await store._services.signal.unsubscribe("channel", heard.append)
        await store._services.signal.send("channel", "three")
        await _until(lambda: _listeners(server, "channel") == 0)
        assert heard == ["one", "", "two"]


def test_a_subscription_hears_again_and_learns_that_it_missed_something(start_redis: StartRedis) -> None:
    server = start_redis(appendonly="no")
    with blocking.connect(oq_url(server)) as store:
        subscription = store._services.signal.subscribe("channel")
        store._services.signal.send("channel", "one")
        assert subscription.wait(PATIENCE) == "one"
        assert subscription.wait(0.01) is None
        server.restart()
        assert subscription.wait(PATIENCE) == ""
        store._services.signal.send("channel", "two")
        assert subscription.wait(PATIENCE) == "two"
        for text in ("1", "p true", "2"):
            store._services.signal.send("channel", text)
        wait_until(lambda: _listeners(server, "channel") == 1)
        assert subscription.wait(PATIENCE) == "p true"
        subscription.close()
        # The next waiter gets the same connection.
        again = store._services.signal.subscribe("channel")
        assert _listeners(server, "channel") == 1
        store._services.signal.send("channel", "three")
        assert again.wait(PATIENCE) == "three"


def _listeners(server: RedisServer, channel: str) -> int:
    with server.client() as client:
        return int(client.pubsub_numsub(channel)[0][1])


async def _total(queue: Any) -> int:
    """The size of a queue whose server has just been let go on."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(ConnectionLost):
                return await queue.total()


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - the server is asked, and it tells nobody
            await asyncio.sleep(0.01)


async def test_signals_and_statistics_may_be_away_while_jobs_go_on(form: str, start_redis: StartRedis) -> None:
    jobs, rest = start_redis(appendonly="no"), start_redis(appendonly="no")
    place = f"redis://{rest.host}:{rest.port}/0"
    async with connect(form, oq_url(jobs), signal=place, stats=place, poll=0.5) as store:
        queue = store.queue("q")
        await queue.push("first")
        await (await queue.reserve(timeout=PATIENCE)).ack()
        rest.kill_hard()
        await queue.push("still")
        job = await queue.reserve(timeout=PATIENCE)
        assert job.payload == "still"
        await job.ack()
        rest.start()
        await queue.push("again")
        await (await queue.reserve(timeout=PATIENCE)).ack()
        assert (await queue.stats())["push"] >= 2
        with rest.client() as client, jobs.client() as other:
            assert client.exists("keuss:stats:T:q") == 1
            assert other.exists("keuss:stats:T:q") == 0


@pytest.mark.slow
async def test_nothing_that_was_answered_is_lost_when_the_server_is_killed(form: str, start_redis: StartRedis) -> None:
    """kill -9 under load, and back, several times: what was pushed is done at least once, what was acked is gone."""
    server = start_redis()
    pushed: set[int] = set()
    acked: list[int] = []
    doubtful: set[int] = set()
    is_over = asyncio.Event()

    async def produce(queue: Any, begin: int) -> None:
        number = begin
        while not is_over.is_set():
            try:
                await queue.push(number)
                pushed.add(number)
            except OutcomeUnknown:
                doubtful.add(number)
            except ConnectionLost:
                await asyncio.sleep(0.05)
                continue
            number += 10
            await asyncio.sleep(0)

    async def consume(queue: Any) -> None:
        while not is_over.is_set() or pushed - set(acked):
            job = None
            try:
                job = await queue.reserve(timeout=1)
                if job is not None:
                    await job.ack()
                    acked.append(job.payload)
            except ConnectionLost:
                if job is not None:
                    doubtful.add(job.payload)
                    acked.append(job.payload)  # it may be gone: nobody can say
            except CallerError:
                doubtful.add(job.payload if job else -1)

    async with connect(form, oq_url(server), lease=2, poll=1) as store:
        queue = store.queue("load")
        tasks = [asyncio.create_task(produce(queue, begin)) for begin in range(3)]
        tasks += [asyncio.create_task(consume(queue)) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0.7)
            server.kill_hard()
            await asyncio.sleep(0.2)
            server.start()
        is_over.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 50)
        assert len(pushed) > 50
        assert pushed <= set(acked)
        assert set(acked) <= pushed | doubtful
        twice = {number for number in acked if acked.count(number) > 1}
        assert twice <= doubtful


# Sentinel


async def test_the_master_is_found_through_sentinel(form: str, redis_sentinel: RedisSentinel) -> None:
    host, port = redis_sentinel.address
    async with connect(form, f"redis+oq:///0?sentinel={host}:{port}&master={redis_sentinel.service}") as store:
        await _works(store, new_name())


async def test_an_unknown_master_is_reported(form: str, redis_sentinel: RedisSentinel) -> None:
    host, port = redis_sentinel.address
    with pytest.raises(ConnectionLost, match="the master 'nobody'"):
        async with connect(form, f"redis+oq:///0?sentinel={host}:{port}&master=nobody"):
            pass


@pytest.mark.slow
async def test_consumers_go_on_with_the_next_master(form: str, start_sentinel: Callable[..., RedisSentinel]) -> None:
    group = start_sentinel()
    host, port = group.address
    url = f"redis+oq:///0?sentinel={host}:{port}&master={group.service}"
    async with connect(form, url, poll=1) as store, connect(form, url) as other:
        queue = store.queue("q")
        await queue.push("before")
        assert (await queue.reserve(timeout=PATIENCE)).payload == "before"
        with group.master.client() as client:
            client.wait(1, 10_000)
        waiting = asyncio.create_task(queue.reserve(timeout=PATIENCE))
        await asyncio.sleep(0.2)
        await asyncio.get_running_loop().run_in_executor(None, group.kill_master)
        await _pushed(other.queue("q"), "after")
        assert (await asyncio.wait_for(waiting, PATIENCE)).payload == "after"
        assert (await queue.sizes()).reserved == 2


async def _pushed(queue: Any, payload: Any) -> None:
    for _ in range(100):
        try:
            await queue.push(payload)
        except ConnectionLost:
            await asyncio.sleep(0.1)
        else:
            return


# Cluster


def _cluster_url(cluster: RedisCluster, scheme: str = "redis+oq") -> str:
    return f"{scheme}://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)


async def test_a_cluster_is_used_by_its_hosts(form: str, redis_cluster: RedisCluster) -> None:
    one = f"redis+oq://127.0.0.1:{redis_cluster.nodes[0].port}?cluster=1"
    for url in (one, _cluster_url(redis_cluster)):
        async with connect(form, url) as store:
            for tag in "abcdef":  # on all nodes
                await _works(store, new_name(f"{{{tag}}}"))


async def test_a_client_of_a_cluster_can_be_given(form: str, redis_cluster: RedisCluster) -> None:
    client = _module(form).RedisCluster(host="127.0.0.1", port=redis_cluster.nodes[0].port)
    async with connect(form, "redis+oq://", client=client) as store:
        for tag in "abc":
            await _works(store, new_name(f"{{{tag}}}"))
    await _close(client)


async def test_a_node_of_a_cluster_says_what_it_is(form: str, redis_cluster: RedisCluster) -> None:
    with redis_cluster.client() as client:
        mine = client.get_node_from_key("{same}").port
    for node in redis_cluster.nodes:
        async with connect(form, oq_url(node), stats="memory:") as store:
            if node.port == mine:
                await store.queue("{same}").push(1)
                continue
            with pytest.raises(StoreError, match=r"add \?cluster=1"):
                await store.queue("{same}").push(1)


async def test_names_need_a_tag_in_a_cluster(form: str, redis_cluster: RedisCluster) -> None:
    for scheme, names in (("redis+oq", ("mail", "{}mail", "mail}{")), ("redis+list", ("{}mail", "mail}{"))):
        async with connect(form, _cluster_url(redis_cluster, scheme)) as store:
            for name in names:
                with pytest.raises(CallerError, match="needs a hash tag"):
                    await store.queue(name).push(1)


async def test_a_list_has_any_plain_name_in_a_cluster(form: str, redis_cluster: RedisCluster) -> None:
    url = _cluster_url(redis_cluster, "redis+list")
    async with connect(form, url) as store, connect(form, url) as other:
        names = [*(new_name(stem) for stem in ("mail", "a", "b", "c", "open{")), new_name("{tag}")]
        waiting = [asyncio.create_task(store.queue(name).pop(timeout=PATIENCE)) for name in names]
        await asyncio.sleep(0.3)
        for name in names:
            await other.queue(name).push(name)
        assert [(await one).payload for one in waiting] == names
        for name in names:
            queue = other.queue(name)
            await queue.push_many([1, 2, 3])
            with redis_cluster.client() as client:
                assert client.llen(f"keuss:q:list:{name}") == 3  # Keuss' key, as it is
            assert (await queue.pop(timeout=PATIENCE)).payload == 1
            assert [job.payload for job in await queue.peek()] == [2, 3]
            assert await queue.purge() == 2


async def test_a_waiting_caller_in_a_cluster_hears_of_jobs(form: str, redis_cluster: RedisCluster) -> None:
    url = _cluster_url(redis_cluster)
    async with connect(form, url) as store, connect(form, url) as other:
        names = [new_name(f"{{{tag}}}") for tag in "abc"]
        waiting = [asyncio.create_task(store.queue(name).pop(timeout=PATIENCE)) for name in names]
        await asyncio.sleep(0.3)
        for name in names:
            await other.queue(name).push(name)
        assert [(await one).payload for one in waiting] == names
        assert set(names) <= set(await other.queues())


@pytest.mark.parametrize("to", ["{a}.dead", "{b}.dead"], ids=["one node", "two nodes"])
async def test_jobs_move_within_a_cluster(form: str, redis_cluster: RedisCluster, to: str) -> None:
    async with connect(form, _cluster_url(redis_cluster), dead_letter=f"3,{to}") as store:
        queue, dead = store.queue(new_name("{a}")), store.dead_letters()
        await queue.push_many(["one", "two"])
        first, second = await queue.reserve_many(2)
        await first.fail("no")
        await second.ack()
        with pytest.raises(CallerError):
            await second.fail("too late")
        assert [job.payload for job in await dead.peek()] == ["one"]
        assert await queue.total() == 0
        assert await dead.redrive() == 1
        assert (await dead.total(), await queue.total()) == (0, 1)
        await queue.purge()


async def test_the_default_dead_letters_work_in_a_cluster(form: str, redis_cluster: RedisCluster) -> None:
    async with connect(form, _cluster_url(redis_cluster), dead_letter="1", namespace=new_name("ns")) as store:
        queue, dead = store.queue(new_name("{a}")), store.dead_letters()
        await queue.push("work")
        await (await queue.reserve(timeout=PATIENCE)).nack(error="broken")
        [job] = [job for job in await dead.peek(1000) if job.headers["x-dl-from-queue"] == queue.name]
        assert (job.payload, job.headers["x-dl-error"], await queue.total()) == ("work", "broken", 0)
        assert "__deadletter__" in await store.queues()
        assert ((await queue.stats())["dead_letter"], (await dead.stats())["push"]) == (1, 1)
        assert await dead.redrive(lambda job: job.headers["x-dl-from-queue"] == queue.name) == 1
        assert await queue.total() == 1
        assert (await queue.pop(timeout=PATIENCE)).payload == "work"


async def test_names_of_dead_letters_are_checked_before_the_first_job(form: str, redis_cluster: RedisCluster) -> None:
    async with connect(form, _cluster_url(redis_cluster)) as store:
        with pytest.raises(CallerError, match=r"the name of the dead-letter queue .* needs a hash tag"):
            store.queue("{a}", dead_letter=DeadLetter(3, "given-up"))


def _before_the_end(store: Any, form: str, monkeypatch: pytest.MonkeyPatch, between: Callable[[], Any]) -> None:
    """Let something happen in a move between two slots: the job is stored there, and not yet ended here."""
    driver = (store if form == "aio" else store.inside)._driver
    push = driver.push

    async def pushed(*args: Any) -> Any:
        ids = await push(*args)
        monkeypatch.setattr(driver, "push", push)
        await between()
        return ids

    def pushed_blocking(*args: Any) -> Any:
        ids = push(*args)
        monkeypatch.setattr(driver, "push", push)
        between()
        return ids

    monkeypatch.setattr(driver, "push", pushed if form == "aio" else pushed_blocking)


async def test_a_job_that_two_give_up_at_once_is_not_lost(
    form: str, redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease of the first is over before its move between two slots is done."""
    url, dead_name = _cluster_url(redis_cluster), new_name("{b}")
    limit = DeadLetter(queue=dead_name)
    async with connect(form, url) as store, connect(form, url) as other:
        queue = store.queue(new_name("{a}"), dead_letter=limit, lease=10)
        there = other.queue(queue.name, dead_letter=limit)
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE)
        other.shift_clock(20)

        async def give_up() -> None:
            await (await there.reserve(timeout=PATIENCE)).fail("second")

        inside = there if form == "aio" else other.inside.queue(queue.name, dead_letter=limit)
        between = give_up if form == "aio" else lambda: inside.reserve(timeout=PATIENCE).fail("second")
        _before_the_end(store, form, monkeypatch, between)
        with pytest.raises(LeaseLost):
            await job.fail("first")
        assert [one.payload for one in await store.queue(dead_name).peek(state=None)] == ["work"]
        assert await queue.total() == 0


async def test_a_job_that_two_redrive_at_once_is_not_lost(
    form: str, redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = _cluster_url(redis_cluster)
    async with connect(form, url) as store, connect(form, url) as other:
        dead_name, home = new_name("{b}"), new_name("{a}")
        dead, there = store.queue(dead_name), other.queue(dead_name)
        await dead.push("work")
        inside = there if form == "aio" else other.inside.queue(dead_name)
        _before_the_end(store, form, monkeypatch, lambda: inside.redrive(to=home))
        assert await dead.redrive(to=home) == 1
        assert (await store.queue(home).total(), await dead.total()) == (1, 0)


async def test_a_moved_slot_is_followed(form: str, start_redis: StartRedis, tmp_path: Any) -> None:
    (tmp_path / "moving").mkdir()
    cluster = RedisCluster(tmp_path / "moving").start()
    try:
        async with connect(form, _cluster_url(cluster), stats="memory:") as store:
            queue = store.queue("{tag}")
            await queue.push(1)
            _move_slot(cluster, "{tag}", ["keuss:q:ordered_queue:index:{tag}", "keuss:q:ordered_queue:hash:{tag}"])
            await queue.push(2)
            assert [job.payload for job in await queue.pop_many(2)] == [1, 2]
    finally:
        cluster.kill_hard()


def _move_slot(cluster: RedisCluster, key: str, keys: list[str]) -> None:
    """Move the slot of a key from its node to another, as redis-cli does it."""
    clients = [node.client() for node in cluster.nodes]
    slot = clients[0].execute_command("CLUSTER", "KEYSLOT", key)
    source = next(n for n, client in enumerate(clients) if client.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot))
    target = (source + 1) % len(clients)
    ids = [client.execute_command("CLUSTER", "MYID").decode() for client in clients]
    clients[target].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    clients[source].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
    place = cluster.nodes[target]
    clients[source].execute_command("MIGRATE", place.host, place.port, "", 0, 5000, "KEYS", *keys)
    for client in clients:
        client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        client.close()


# redis-list


async def test_a_list_is_stored_as_keuss_has_it(form: str, redis_server: RedisServer) -> None:
    url = oq_url(redis_server).replace("+oq", "+list")
    async with connect(form, url) as store:
        queue = store.queue(new_name())
        assert await queue.push({"a": 1, "arr": []}, tries=3, headers={"h": 1}) == "1"
        assert await queue.push_many([b"\x00\xff\x01", "x"]) == ["2", "3"]
        with redis_server.client() as client:
            found = client.lrange(f"keuss:q:list:{queue.name}", 0, -1)
            # When each was pushed is in its headers, as a list has no ids to tell it.
            assert [re.sub(rb'"x-penstock-created":\d{13},?', b"", one) for one in found] == [
                b'{"payload":"x","hdrs":{},"tries":0}',
                b'{"payload":"AP8B","hdrs":{},"type":"buffer","tries":0}',
                b'{"payload":{"a":1,"arr":[]},"hdrs":{"h":1},"tries":3}',
            ]
        jobs = await queue.pop_many(5)
        assert [(job.payload, job.tries) for job in jobs] == [({"a": 1, "arr": []}, 3), (b"\x00\xff\x01", 0), ("x", 0)]


async def test_a_list_refuses_what_it_can_not_do(form: str, redis_server: RedisServer) -> None:
    url = oq_url(redis_server).replace("+oq", "+list")
    async with connect(form, url) as store:
        queue = store.queue(new_name())
        for call in (
            lambda: queue.push(1, delay=5),
            lambda: queue.push(1, unique="k"),
            lambda: queue.reserve(timeout=0),
            lambda: queue.claim("k", 1),
            lambda: queue.remove("1"),
        ):
            with pytest.raises(Unsupported):
                await call()


async def test_a_list_says_none_for_what_it_can_not_know(form: str, redis_server: RedisServer) -> None:
    async with connect(form, oq_url(redis_server).replace("+oq", "+list")) as store:
        queue = store.queue(new_name())
        for total in (0, 1):
            assert (await queue.next_mature(), await queue.reserved()) == (None, None)
            assert await queue.sizes() == (total, total, 0, None)
            await queue.push(1)


async def test_the_first_job_of_a_list_is_always_news(form: str, redis_server: RedisServer) -> None:
    url = oq_url(redis_server).replace("+oq", "+list")
    async with connect(form, url) as store:
        queue = store.queue(new_name())
        with redis_server.client() as client, client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe(f"keuss:signal:T:{queue.name}")
            listener.get_message(timeout=5)
            for _ in range(5):
                await queue.push(1)
                await queue.push(2)  # may be told again, or not
                await queue.pop_many(2)
            count = 0
            while listener.get_message(timeout=0.2) is not None:
                count += 1
            assert count >= 5


async def test_pages_of_a_list_are_read_from_its_old_end(form: str, redis_server: RedisServer) -> None:
    url = oq_url(redis_server).replace("+oq", "+list")
    async with connect(form, url) as store:
        queue = store.queue(new_name())
        await queue.push_many(range(1234))
        assert [job.payload async for job in queue.jobs()] == list(range(1234))
        assert [job.payload for job in await queue.peek(3)] == [0, 1, 2]
        assert await queue.peek(3, state="scheduled") == []
        assert await queue.purge() == 1234


def test_the_reply_of_a_call_that_was_interrupted_is_for_no_other_call(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking.connect(oq_url(redis_server)) as store:
        queue = store.queue(new_name())
        job_id = queue.push("first")

        def interrupted(connection: object, count: int) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(redis_link, "_replies", interrupted)
            with pytest.raises(KeyboardInterrupt):
                queue.push("second")
        assert [job.id for job in queue.peek(1)] == [job_id]
