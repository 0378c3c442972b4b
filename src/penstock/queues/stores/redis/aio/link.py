"""Connections to Redis for stores, signals and statistics.

redis-py connects, speaks the protocol, and knows Sentinel and Cluster. A call takes a connection of its pool, sends,
and reads the reply, by hand: so it is known whether a call that failed was sent, and nothing is ever sent twice by
itself, as redis-py's clients do by default. A connection that is found dead before anything is sent is replaced; so
after a server came back, the next call works.

Calls that are made at the same time use several connections, up to a limit; those that wait for their turn wait here.
Who cancels a call that takes jobs waits for its end, so that they can be given back; any other is cut off, and its
connection with it.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis import asyncio as redis
from redis import exceptions
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from penstock.errors import CallerError, ConnectionLost, PenstockError
from penstock.queues.aio.runtime import to_the_end
from penstock.queues.options import Address
from penstock.queues.stores.redis.address import RedisPlace, read_address
from penstock.queues.stores.redis.errors import RAISED, explain
from penstock.queues.stores.redis.packing import Word, packed
from penstock.queues.stores.redis.scripts import Script

CONNECTIONS_MAX = 16  # for calls: more than a server's one thread can use, whatever the number of tasks
REDIRECTS_MAX = 5  # of one call in a Cluster that is being changed
CLOSE_S = 5.0  # that calls under way have left when the link is closed

Undo = Callable[[Any], Awaitable[None]]


class RedisLink:
    """A way to one Redis. Stores, signals and statistics of the same server share it."""

    def __init__(self, address: Address, extra: Mapping[str, Any]) -> None:
        self.place: RedisPlace = read_address(address, extra)
        self.where = self.place.where
        self._client: Any = None
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX)
        # What a function makes is for this link alone, which closes it.
        self._is_mine = self.place.client is None or callable(self.place.client)
        if not self._is_mine:
            self._client = _checked(self.place.client)

    @property
    def is_cluster(self) -> bool:
        """Whether keys of one call must have the same hash tag."""
        return self.place.is_cluster if self._client is None else isinstance(self._client, redis.RedisCluster)

    async def open(self) -> None:
        """Connect. Raises with what to do if nobody answers, or if the password is wrong."""
        if self._client is None:
            self._client = await self._new_client()
        try:
            if self.is_cluster:
                await self._client.initialize()
            await self.now_ms()
        except RAISED as problem:
            await self.close()
            raise explain(problem, self.where, was_sent=False, again=True) from problem
        except BaseException:
            await self.close()
            raise

    async def _new_client(self) -> Any:
        if not callable(self.place.client):
            return _made(self.place)
        client = self.place.client()
        return _checked(await client if inspect.isawaitable(client) else client)

    async def close(self) -> None:
        """Wait for calls under way, then let go of the connections; a client that was given stays open."""
        client, self._client = self._client, None
        if client is None:
            return
        taken = 0
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    while taken < CONNECTIONS_MAX:
                        await self._turns.acquire()
                        taken += 1
            if self._is_mine:
                with suppress(*RAISED, RuntimeError):
                    await client.aclose()
        finally:
            # Who waits for a turn is to hear that there are none; and the link may be opened again.
            for _ in range(taken):
                self._turns.release()

    async def now_ms(self) -> int:
        """The server's time."""
        seconds, micros = await self.call(b"TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def call(self, *words: Word, key: Word | None = None, again: bool = True, undo: Undo | None = None) -> Any:
        """One command's reply. In a Cluster it goes where the key is, or anywhere. `again`: it may be done twice."""
        work = self._one(words, key, again)
        return await (work if undo is None else to_the_end(work, undo))

    async def _one(self, words: Sequence[Word], key: Word | None, again: bool) -> Any:
        return (await self._trip([words], key, again))[0]

    async def call_many(
        self, commands: Sequence[Sequence[Word]], *, key: Word | None = None, again: bool = True
    ) -> list[Any]:
        """The replies of several commands, in one round trip; the first error is raised."""
        return await self._trip(commands, key, again)

    async def run(
        self, script: Script, keys: Sequence[Word], args: Sequence[Word], *, again: bool, undo: Undo | None = None
    ) -> Any:
        """A script's reply. If the caller is cancelled, `undo` is called with the reply that nobody gets."""
        work = self._run(script, keys, args, again)
        return await (work if undo is None else to_the_end(work, undo))

    async def _run(self, script: Script, keys: Sequence[Word], args: Sequence[Word], again: bool) -> Any:
        rest: list[Word] = [len(keys), *keys, *args]
        try:
            return (await self._trip([[b"EVALSHA", script.sha, *rest]], keys[0], again))[0]
        except exceptions.NoScriptError:
            # The server was restarted, or never had it: nothing was done.
            return (await self._trip([[b"EVAL", script.text, *rest]], keys[0], again))[0]

    async def _trip(self, commands: Sequence[Sequence[Word]], key: Word | None, again: bool) -> list[Any]:
        message = b"".join([packed(command) for command in commands])
        async with self._turn() as client:
            if not self.is_cluster:
                return await self._exchange(client, message, len(commands), again)
            return await self._exchange_in_cluster(client, message, len(commands), key, again)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[Any]:
        """The client, as soon as there are not too many who use it."""
        if self._client is None:
            raise _closed(self.where)
        async with self._turns:
            if self._client is None:
                raise _closed(self.where)
            yield self._client

    async def _exchange(self, source: Any, message: bytes, count: int, again: bool) -> list[Any]:
        """Send and read on a connection of a client, or of a Cluster's node."""
        was_sent = False
        try:
            async with asyncio.timeout(self.place.call_s), connection_of(source) as connection:
                was_sent = True
                await connection.send_packed_command([message], check_health=False)
                return await replies(connection, count)
        except exceptions.NoScriptError:
            raise
        except RAISED as problem:
            if self.is_cluster and isinstance(problem, exceptions.AskError):  # MovedError is one, too
                raise
            raise explain(problem, self.where, was_sent=was_sent, again=again) from problem

    async def _exchange_in_cluster(
        self, client: Any, message: bytes, count: int, key: Word | None, again: bool
    ) -> list[Any]:
        node = None
        for _ in range(REDIRECTS_MAX):
            try:
                if node is None:
                    await client.initialize()
                    node = client.get_default_node() if key is None else client.get_node_from_key(key)
                return await self._exchange(node, message, count, again)
            except exceptions.MovedError:
                node = None
                await self._learn(client)
            except exceptions.AskError as elsewhere:
                node = client.get_node(host=elsewhere.host, port=elsewhere.port)
                message, count = packed([b"ASKING"]) + message, count + 1
                return (await self._exchange(node, message, count, again))[1:]
            except PenstockError:
                # Another node may have taken over: the next call asks who.
                with suppress(PenstockError):
                    await self._learn(client)
                raise
            except exceptions.NoScriptError:
                raise
            except RAISED as problem:
                raise explain(problem, self.where, was_sent=False, again=again) from problem
        raise ConnectionLost(f"the Redis Cluster at {self.where} sends calls from node to node: try again")

    async def _learn(self, client: Any) -> None:
        """Ask the Cluster which node has which keys."""
        try:
            await client.nodes_manager.initialize()
        except RAISED as problem:
            raise explain(problem, self.where, was_sent=False, again=True) from problem

    async def scan(self, pattern: bytes) -> list[bytes]:
        """All keys that match, of all nodes."""
        async with self._turn() as client:
            if self.is_cluster:
                await client.initialize()
        found: set[bytes] = set()
        for source in client.get_primaries() if self.is_cluster else [client]:
            cursor = b"0"
            while True:
                message = packed([b"SCAN", cursor, b"MATCH", pattern, b"COUNT", 1000])
                async with self._turn():
                    [[cursor, keys]] = await self._exchange(source, message, 1, True)
                found.update(keys)
                if cursor in {b"0", 0}:
                    break
        return sorted(found)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Any]:
        """A connection for subscriptions, which is closed afterwards."""
        if self._client is None:
            raise _closed(self.where)
        source = self._client.get_random_node() if self.is_cluster else self._client
        try:
            async with connection_of(source) as connection:
                try:
                    yield connection
                finally:
                    with suppress(*RAISED):
                        await connection.disconnect(nowait=True)
        except RAISED as problem:
            raise explain(problem, self.where, was_sent=False, again=True) from problem


@asynccontextmanager
async def connection_of(source: Any) -> AsyncIterator[Any]:
    """A connection that is known to have been alive a moment ago."""
    connection: Any
    if not isinstance(source, ClusterNode):
        connection = await source.connection_pool.get_connection()
        try:
            yield connection
        finally:
            await source.connection_pool.release(connection)
        return
    connection = source.acquire_connection()
    try:
        # Before redis-py 8 it has another name.
        is_stale = getattr(connection, "can_read", None) or connection.can_read_destructive
        if connection.is_connected and await is_stale():
            await connection.disconnect(nowait=True)
        await connection.connect()
        yield connection
    finally:
        # Before redis-py 7 nodes had no method for it.
        getattr(source, "release", source._free.append)(connection)


async def replies(connection: Any, count: int) -> list[Any]:
    """The replies of so many commands; all are read before an error is raised, lest one be taken for another's."""
    found: list[Any] = []
    problem: exceptions.ResponseError | None = None
    for _ in range(count):
        try:
            found.append(await connection.read_response(disable_decoding=True))
        except exceptions.ResponseError as refusal:
            found.append(None)
            problem = problem or refusal
    if problem is not None:
        raise problem
    return found


def _closed(where: str) -> CallerError:
    return CallerError(f"the link to {where} was closed; connect anew")


def _checked(client: Any) -> Any:
    if not isinstance(client, redis.Redis | redis.RedisCluster):
        raise CallerError(
            "client= takes a redis.asyncio.Redis, a redis.asyncio.RedisCluster or a function that returns one, "
            f"got {type(client).__name__}"
        )
    return client


def _untyped(thing: Any) -> Any:
    """Parts of redis-py have no types."""
    return thing


def _made(place: RedisPlace) -> Any:
    never = Retry(NoBackoff(), 0)
    settings = {**place.settings, "retry": never, "socket_timeout": None}
    if place.sentinels:
        settings_there = {**place.sentinel_settings, "retry": never, "socket_timeout": place.call_s}
        sentinel: Any = _untyped(Sentinel)(place.sentinels, sentinel_kwargs=settings_there, **settings)
        return sentinel.master_for(place.master)
    if place.is_cluster:
        settings.pop("db")
        nodes = [ClusterNode(host, port) for host, port in place.hosts]
        return redis.RedisCluster(startup_nodes=nodes, **settings)
    host, port = place.hosts[0]
    return redis.Redis(host=host, port=port, **settings)
