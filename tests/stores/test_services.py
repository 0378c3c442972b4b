"""Signals and statistics that one queue of a store has of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.errors import BadUrl, CallerError, ConnectionLost
from tests.processes import free_port, wait_until
from tests.servers import RedisServer
from tests.stores.harness import PATIENCE
from tests.stores.redis_stores import FORMS, NAMESPACE, connect, new_name

pytestmark = pytest.mark.system


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _url(server: RedisServer) -> str:
    return f"redis://{server.host}:{server.port}/0"


async def test_a_queue_has_statistics_of_its_own(form: str, redis_server: RedisServer) -> None:
    async with connect(form, f"memory:{new_name()}") as store:
        counted, plain = store.queue(new_name("counted"), stats=_url(redis_server)), store.queue(new_name("plain"))
        for queue in (counted, plain):
            await queue.push_many([1, 2])
            await (await queue.reserve(timeout=PATIENCE)).ack()
        seen = [await queue.stats() for queue in (counted, plain)]
        with redis_server.client() as client:
            fields = client.hgetall(f"keuss:stats:{NAMESPACE}:{counted.name}")
            assert (fields[b"counter_put"], fields[b"counter_commit"]) == (b"2", b"1")
            assert not client.exists(f"keuss:stats:{NAMESPACE}:{plain.name}")
        assert seen[0] == seen[1]
        assert {counted.name, plain.name} <= set(await store.queues())
        assert (await store.topology())[counted.name]["counters"] == (await store.topology())[plain.name]["counters"]


async def test_a_pause_is_shared_by_the_statistics_of_a_queue(form: str, redis_server: RedisServer) -> None:
    name, url = new_name(), _url(redis_server)
    async with connect(form, f"memory:{new_name()}") as store, connect(form, f"memory:{new_name()}") as other:
        await store.queue(name, stats=url).pause()
        there = other.queue(name, stats=url)
        await there.push(1)
        assert await there.pop(timeout=0) is None
        assert await other.paused(name)
        assert not await other.queue(new_name()).paused()


async def test_a_queue_has_signals_of_its_own(form: str, redis_server: RedisServer, tmp_path: Any) -> None:
    name, url = new_name(), _url(redis_server)
    there = f"sqlite:///{tmp_path}/jobs.db"
    async with connect(form, there) as store, connect(form, there) as other:
        queue = store.queue(name, signal=url)
        waiting = asyncio.create_task(queue.pop(timeout=PATIENCE))
        with redis_server.client() as client:
            channel = f"keuss:signal:{NAMESPACE}:{name}"
            await asyncio.to_thread(wait_until, lambda: client.pubsub_numsub(channel)[0][1] == 1)
        await other.queue(name, signal=url).push("work")
        assert (await waiting).payload == "work"


async def test_a_job_that_moves_is_signalled_where_its_new_queue_listens(form: str, redis_server: RedisServer) -> None:
    name = new_name("dead")
    async with connect(form, f"memory:{new_name()}", dead_letter=f"1,{name}") as store:
        dead = store.queue(name, signal=_url(redis_server), stats=_url(redis_server))
        with redis_server.client() as client, client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe(f"keuss:signal:{NAMESPACE}:{name}")
            listener.get_message(timeout=PATIENCE)
            queue = store.queue(new_name())
            await queue.push(1)
            await (await queue.reserve(timeout=PATIENCE)).nack()
            assert listener.get_message(timeout=PATIENCE) is not None
        assert [job.payload for job in await dead.peek()] == [1]


async def test_services_that_cannot_be_reached_are_reported_before_anything_is_stored(form: str) -> None:
    async with connect(form, f"memory:{new_name()}") as store:
        queue = store.queue(new_name(), stats=f"redis://127.0.0.1:{free_port()}/0")
        with pytest.raises(ConnectionLost):
            await queue.push(1)
        assert await queue.total() == 0


async def test_services_that_are_away_do_not_keep_a_job_from_the_dead_letters(form: str) -> None:
    name = new_name("dead")
    async with connect(form, f"memory:{new_name()}", dead_letter=f"1,{name}") as store:
        dead = store.queue(name, signal=f"redis://127.0.0.1:{free_port()}/0")
        queue = store.queue(new_name())
        await queue.push(1)
        await (await queue.reserve(timeout=PATIENCE)).nack()
        assert (await queue.total(), await dead.total()) == (0, 1)


async def test_services_are_given_when_a_queue_is_first_made(form: str, redis_server: RedisServer) -> None:
    async with connect(form, f"memory:{new_name()}") as store:
        name = new_name()
        queue = store.queue(name)
        with pytest.raises(CallerError, match="first made"):
            store.queue(name, stats=_url(redis_server))
        await queue.push(1)
        with pytest.raises(BadUrl, match="no signal nowhere"):
            store.queue(new_name(), signal="nowhere://")
        own = store.queue(new_name(), stats=_url(redis_server))
        assert store.queue(own.name, stats=_url(redis_server)).name == own.name
