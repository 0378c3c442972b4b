"""Connections to Redis for stores, signals and statistics.

redis-py connects, speaks the protocol, and knows Sentinel and Cluster. A call takes a connection of its pool, sends,
and reads the reply, by hand: so it is known whether a call that failed was sent, and nothing is ever sent twice by
itself, as redis-py's clients do by default. A connection that is found dead before anything is sent is replaced; so
after a server came back, the next call works.

Threads may share a link; each call has a connection of its own, up to a limit. After a fork, the child makes its own.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry
from redis.sentinel import Sentinel

from penstock.errors import CallerError, ConnectionLost, PenstockError
from penstock.queues.options import Address
from penstock.queues.stores.redis.address import RedisPlace, read_address
from penstock.queues.stores.redis.errors import RAISED, explain
from penstock.queues.stores.redis.packing import Word, packed
from penstock.queues.stores.redis.scripts import Script

CONNECTIONS_MAX = 64  # for calls: that many threads may call at the same time, others wait for their turn
REDIRECTS_MAX = 5  # of one call in a Cluster that is being changed
CLOSE_S = 5.0  # that calls of other threads have left when the link is closed

Undo = Callable[[Any], None]


class RedisLink:
    """A way to one Redis. Stores, signals and statistics of the same server share it."""

    def __init__(self, address: Address, extra: Mapping[str, Any]) -> None:
        self.place: RedisPlace = read_address(address, extra)
        self.where = self.place.where
        self._client: Any = None
        self._turns = threading.BoundedSemaphore(CONNECTIONS_MAX)
        # What a function makes is for this link alone, which closes it.
        self._is_mine = self.place.client is None or callable(self.place.client)
        if not self._is_mine:
            self._client = _checked(self.place.client)

    @property
    def is_cluster(self) -> bool:
        """Whether keys of one call must have the same hash tag."""
        return self.place.is_cluster if self._client is None else isinstance(self._client, redis.RedisCluster)

    def open(self) -> None:
        """Connect. Raises with what to do if nobody answers, or if the password is wrong."""
        try:
            if self._client is None:
                self._client = self._new_client()
            self.now_ms()
        except RAISED as problem:
            self.close()
            raise explain(problem, self.where, was_sent=False, again=True) from problem
        except BaseException:
            self.close()
            raise

    def _new_client(self) -> Any:
        return _checked(self.place.client()) if callable(self.place.client) else _made(self.place)

    def close(self) -> None:
        """Wait for calls under way, then let go of the connections; a client that was given stays open."""
        client, self._client = self._client, None
        if client is None:
            return
        deadline = time.monotonic() + CLOSE_S
        taken = 0
        while taken < CONNECTIONS_MAX and self._turns.acquire(timeout=max(0.0, deadline - time.monotonic())):
            taken += 1
        if self._is_mine:
            with suppress(*RAISED):
                client.close()
        # Who waits for a turn is to hear that there are none; and the link may be opened again.
        for _ in range(taken):
            self._turns.release()

    def now_ms(self) -> int:
        """The server's time."""
        seconds, micros = self.call(b"TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def call(self, *words: Word, key: Word | None = None, again: bool = True, undo: Undo | None = None) -> Any:
        """One command's reply. In a Cluster it goes where the key is, or anywhere. `again`: it may be done twice."""
        return self._trip([words], key, again)[0]

    def call_many(
        self, commands: Sequence[Sequence[Word]], *, key: Word | None = None, again: bool = True
    ) -> list[Any]:
        """The replies of several commands, in one round trip; the first error is raised."""
        return self._trip(commands, key, again)

    def run(
        self, script: Script, keys: Sequence[Word], args: Sequence[Word], *, again: bool, undo: Undo | None = None
    ) -> Any:
        """A script's reply. `undo` is what the other form needs: here a call that is interrupted has no reply."""
        rest: list[Word] = [len(keys), *keys, *args]
        try:
            return self._trip([[b"EVALSHA", script.sha, *rest]], keys[0], again)[0]
        except exceptions.NoScriptError:
            # The server was restarted, or never had it: nothing was done.
            return self._trip([[b"EVAL", script.text, *rest]], keys[0], again)[0]

    def _trip(self, commands: Sequence[Sequence[Word]], key: Word | None, again: bool) -> list[Any]:
        message = b"".join([packed(command) for command in commands])
        with self._turn() as client:
            if not self.is_cluster:
                return self._exchange(client, message, len(commands), again)
            return self._exchange_in_cluster(client, message, len(commands), key, again)

    @contextmanager
    def _turn(self) -> Iterator[Any]:
        """The client, as soon as there are not too many who use it."""
        if self._client is None:
            raise _closed(self.where)
        with self._turns:
            client = self._client
            if client is None:
                raise _closed(self.where)
            yield client

    def _exchange(self, source: Any, message: bytes, count: int, again: bool) -> list[Any]:
        """Send and read on a connection of a client."""
        was_sent = False
        try:
            with connection_of(source) as connection:
                was_sent = True
                connection.send_packed_command([message], check_health=False)
                return replies(connection, count)
        except exceptions.NoScriptError:
            raise
        except RAISED as problem:
            if self.is_cluster and isinstance(problem, exceptions.AskError):  # MovedError is one, too
                raise
            raise explain(problem, self.where, was_sent=was_sent, again=again) from problem

    def _exchange_in_cluster(self, client: Any, message: bytes, count: int, key: Word | None, again: bool) -> list[Any]:
        for _ in range(REDIRECTS_MAX):
            try:
                node = client.get_default_node() if key is None else client.get_node_from_key(key)
                return self._exchange(client.get_redis_connection(node), message, count, again)
            except exceptions.MovedError:
                self._learn(client)
            except exceptions.AskError as elsewhere:
                node = client.get_node(host=elsewhere.host, port=elsewhere.port)
                message, count = packed([b"ASKING"]) + message, count + 1
                return self._exchange(client.get_redis_connection(node), message, count, again)[1:]
            except PenstockError:
                # Another node may have taken over: the next call asks who.
                with suppress(PenstockError):
                    self._learn(client)
                raise
            except exceptions.NoScriptError:
                raise
            except RAISED as problem:
                raise explain(problem, self.where, was_sent=False, again=again) from problem
        raise ConnectionLost(f"the Redis Cluster at {self.where} sends calls from node to node: try again")

    def _learn(self, client: Any) -> None:
        """Ask the Cluster which node has which keys."""
        try:
            client.nodes_manager.initialize()
        except RAISED as problem:
            raise explain(problem, self.where, was_sent=False, again=True) from problem

    def scan(self, pattern: bytes) -> list[bytes]:
        """All keys that match, of all nodes."""
        with self._turn() as client:
            sources = [client]
            if self.is_cluster:
                sources = [client.get_redis_connection(node) for node in client.get_primaries()]
        found: set[bytes] = set()
        for source in sources:
            cursor = b"0"
            while True:
                message = packed([b"SCAN", cursor, b"MATCH", pattern, b"COUNT", 1000])
                with self._turn():
                    [[cursor, keys]] = self._exchange(source, message, 1, True)
                found.update(keys)
                if cursor in {b"0", 0}:
                    break
        return sorted(found)

    @contextmanager
    def listening(self) -> Iterator[Any]:
        """A connection for subscriptions, which is closed afterwards."""
        source = self._client
        if source is None:
            raise _closed(self.where)
        if self.is_cluster:
            source = source.get_redis_connection(source.get_random_node())
        try:
            with connection_of(source) as connection:
                try:
                    yield connection
                finally:
                    with suppress(*RAISED):
                        connection.disconnect()
        except RAISED as problem:
            raise explain(problem, self.where, was_sent=False, again=True) from problem


@contextmanager
def connection_of(source: Any) -> Iterator[Any]:
    """A connection that is known to have been alive a moment ago."""
    connection = source.connection_pool.get_connection()
    try:
        yield connection
    finally:
        source.connection_pool.release(connection)


def replies(connection: Any, count: int) -> list[Any]:
    """The replies of so many commands; all are read before an error is raised, lest one be taken for another's."""
    found: list[Any] = []
    problem: exceptions.ResponseError | None = None
    for _ in range(count):
        try:
            found.append(connection.read_response(disable_decoding=True))
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
            "client= takes a redis.Redis, a redis.RedisCluster or a function that returns one, "
            f"got {type(client).__name__}"
        )
    return client


def _untyped(thing: Any) -> Any:
    """Parts of redis-py have no types."""
    return thing


def _made(place: RedisPlace) -> Any:
    never = Retry(NoBackoff(), 0)
    settings = {**place.settings, "retry": never, "socket_timeout": place.call_s}
    if place.sentinels:
        settings_there = {**place.sentinel_settings, "retry": never, "socket_timeout": place.call_s}
        sentinel = _untyped(Sentinel)(place.sentinels, sentinel_kwargs=settings_there, **settings)
        return sentinel.master_for(place.master)
    if place.is_cluster:
        settings.pop("db")
        nodes = [_untyped(ClusterNode)(host, port) for host, port in place.hosts]
        return redis.RedisCluster(startup_nodes=nodes, **settings)
    host, port = place.hosts[0]
    return redis.Redis(host=host, port=port, **settings)
