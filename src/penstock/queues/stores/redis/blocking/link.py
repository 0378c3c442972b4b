"""Connections to Redis for stores, signals and statistics.

redis-py connects, speaks the protocol, and knows Sentinel and Cluster. A call takes a connection, sends, and reads the
reply by itself: so it is known whether a call that failed was sent, and no call is ever sent twice, as redis-py's
clients do by default. A connection that is found dead before anything is sent is replaced, so that the first call after
a restart of the server works.

    call, call_many, run    one command, several, a script: the way in
    _exchange               one message out, its replies in; errors become those of `penstock.errors`
    _exchange_in_cluster    the same, at the node that has the key

Threads may share a link: each call has a connection of its own, up to CONNECTIONS_MAX; further calls wait for one.
After a fork, the child makes its own connections.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry
from redis.sentinel import Sentinel

from penstock.errors import CallerError, ConnectionLost, OutcomeUnknown, PenstockError
from penstock.queues.options import StoreURL
from penstock.queues.stores.redis.address import RedisSettings, redis_settings
from penstock.queues.stores.redis.errors import REDIS_ERRORS, explain
from penstock.queues.stores.redis.scripts import Argument, Script, packed

CONNECTIONS_MAX = 64  # for calls: that many threads may call at the same time
REDIRECTS_MAX = 5  # of one call in a Cluster that is being changed
FRESH_S = 0.001  # a connection that was in use until then is taken to be open: to look takes time in each call
CLOSE_S = 5.0  # for calls of other threads when the link is closed


class RedisLink:
    """The connections to one Redis. A store, its signals and its statistics share them."""

    def __init__(self, address: StoreURL, extra: Mapping[str, Any]) -> None:
        self._settings = redis_settings(address, extra)
        self.where = self._settings.where
        self.is_cluster = self._settings.is_cluster  # whether the keys of one call must have the same hash tag
        self._client: Any = None
        self._pool: Any = None  # of the client, unless it is a Cluster
        # Whoever takes one may use a connection: a semaphore, but without Python code in each call.
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(CONNECTIONS_MAX):
            self._permits.put(None)
        given = self._settings.client
        if given is not None and not callable(given):
            self._use(given)

    def _use(self, client: Any) -> None:
        if not isinstance(client, redis.Redis | redis.RedisCluster):
            raise CallerError(
                "client= takes a redis.Redis, a redis.RedisCluster or a function that returns one, "
                f"got {type(client).__name__}"
            )
        self._client = client
        self.is_cluster = isinstance(client, redis.RedisCluster)
        if isinstance(client, redis.Redis):
            self._pool = client.connection_pool

    def open(self) -> None:
        """Connect. The error says what to do if the server can't be reached or the password is wrong."""
        try:
            if self._client is None:
                self._make_client()
            self.now_ms()
        except REDIS_ERRORS as problem:
            self.close()
            raise explain(problem, self.where, was_sent=False, idempotent=True) from problem
        except BaseException:
            self.close()
            raise

    def _make_client(self) -> None:
        if callable(self._settings.client):
            self._use(self._settings.client())
            return
        self._use(self._settings.client or _new_client(self._settings))
        if self._settings.has_one_server:
            self._pool = _KeptConnections(self._pool)

    def close(self) -> None:
        """Wait for calls under way, then close the connections. A client that was given stays open."""
        client, self._client = self._client, None
        if client is None:
            return
        deadline = time.monotonic() + CLOSE_S
        taken = 0
        with suppress(Empty):
            while taken < CONNECTIONS_MAX:
                self._permits.get(timeout=max(0.0, deadline - time.monotonic()))
                taken += 1
        if client is not self._settings.client:
            with suppress(*REDIS_ERRORS):
                client.close()
        # Calls that wait for a connection get an error now; and the link may be opened again.
        for _ in range(taken):
            self._permits.put(None)

    def now_ms(self) -> int:
        """Return the server's time."""
        seconds, micros = self.call(b"TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def call(self, *words: Argument, key: Argument | None = None, idempotent: bool = True) -> Any:
        """Return the reply to one command. In a Cluster it goes to the node of the key; without a key, to any node.

        `idempotent`: to do it twice is harmless, so that a lost reply is a `ConnectionLost`, not an `OutcomeUnknown`.
        """
        return self._exchange(packed(words), 1, key, idempotent)[0]

    def call_many(
        self, commands: Sequence[Sequence[Argument]], *, key: Argument | None = None, idempotent: bool = True
    ) -> list[Any]:
        """Return the replies to several commands, in one round trip; the first error is raised."""
        return self._exchange(b"".join(map(packed, commands)), len(commands), key, idempotent)

    def run(self, script: Script, keys: Sequence[bytes], args: Sequence[Argument], *, idempotent: bool) -> Any:
        """Return a script's reply."""
        message = packed((b"EVALSHA", script.sha, len(keys), *keys, *args))
        try:
            return self._exchange(message, 1, keys[0], idempotent)[0]
        except exceptions.NoScriptError:
            # The server was restarted, or never had it: nothing was done.
            message = packed((b"EVAL", script.text, len(keys), *keys, *args))
            return self._exchange(message, 1, keys[0], idempotent)[0]

    def _exchange(
        self, message: bytes, count: int, key: Argument | None, idempotent: bool, pool: Any = None
    ) -> list[Any]:
        """Send a message of `count` commands on one connection, and return their replies."""
        if self._client is None:
            raise _closed(self.where)
        if self.is_cluster and pool is None:
            return self._exchange_in_cluster(message, count, key, idempotent)
        pool = self._pool if pool is None else pool
        was_sent = False
        self._permits.get()
        try:
            if self._client is None:
                raise _closed(self.where)
            connection = pool.get_connection()
            try:
                was_sent = True
                connection.send_packed_command([message], check_health=False)
                return _replies(connection, count)
            except exceptions.ResponseError:
                raise  # all replies were read
            except BaseException:
                connection.disconnect()  # its replies may still come: no other call must get them
                raise
            finally:
                pool.release(connection)
        except exceptions.NoScriptError:
            raise
        except REDIS_ERRORS as problem:
            if self.is_cluster and isinstance(problem, exceptions.AskError):  # MovedError is one, too
                raise
            raise explain(problem, self.where, was_sent=was_sent, idempotent=idempotent) from problem
        finally:
            self._permits.put(None)

    def _exchange_in_cluster(self, message: bytes, count: int, key: Argument | None, idempotent: bool) -> list[Any]:
        client = self._client
        asked: exceptions.AskError | None = None  # where these keys are just now, for one call
        for _ in range(REDIRECTS_MAX):
            try:
                if asked is not None:
                    node = client.get_node(host=asked.host, port=asked.port)
                    asking = packed([b"ASKING"]) + message
                    return self._exchange(asking, count + 1, key, idempotent, _pool_of(client, node))[1:]
                node = client.get_default_node() if key is None else client.get_node_from_key(key)
                return self._exchange(message, count, key, idempotent, _pool_of(client, node))
            except exceptions.MovedError:
                asked = None
                self._learn_nodes(client)
            except exceptions.AskError as redirect:
                asked = redirect
            except (ConnectionLost, OutcomeUnknown):
                # Another node may have taken over: the next call goes to that one.
                with suppress(PenstockError):
                    self._learn_nodes(client)
                raise
            except exceptions.NoScriptError:
                raise
            except REDIS_ERRORS as problem:
                raise explain(problem, self.where, was_sent=False, idempotent=idempotent) from problem
        raise ConnectionLost(f"the Redis Cluster at {self.where} redirected a call {REDIRECTS_MAX} times: try again")

    def _learn_nodes(self, client: Any) -> None:
        """Ask the Cluster which node has which keys."""
        try:
            client.nodes_manager.initialize()
        except REDIS_ERRORS as problem:
            raise explain(problem, self.where, was_sent=False, idempotent=True) from problem

    def scan(self, pattern: bytes) -> list[bytes]:
        """Return all keys that match, of all nodes, sorted."""
        client = self._client
        if client is None:
            raise _closed(self.where)
        pools = [self._pool]
        if self.is_cluster:
            pools = [_pool_of(client, node) for node in client.get_primaries()]
        found: set[bytes] = set()
        for pool in pools:
            cursor = b"0"
            while True:
                message = packed([b"SCAN", cursor, b"MATCH", pattern, b"COUNT", 1000])
                [[cursor, keys]] = self._exchange(message, 1, None, True, pool)
                found.update(keys)
                if cursor in {b"0", 0}:
                    break
        return sorted(found)

    @contextmanager
    def listening(self) -> Iterator[Any]:
        """A connection for subscriptions, which is closed afterwards."""
        client = self._client
        if client is None:
            raise _closed(self.where)
        pool = _pool_of(client, client.get_random_node()) if self.is_cluster else client.connection_pool
        try:
            connection = pool.get_connection()
            try:
                yield connection
            finally:
                with suppress(*REDIS_ERRORS):
                    connection.disconnect()
                pool.release(connection)
        except REDIS_ERRORS as problem:
            raise explain(problem, self.where, was_sent=False, idempotent=True) from problem


class _KeptConnections:
    """Connections that are kept for the next call: redis-py's pool takes more time than the call itself."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._idle: list[tuple[Any, float]] = []  # and when each was used last
        self._pid = os.getpid()

    def get_connection(self) -> Any:
        """Return a connection that is open and has nothing to read: no end of the server's, as far as is known."""
        if self._pid != os.getpid():
            # A forked child must not use the connections of its parent.
            self._idle, self._pid = [], os.getpid()
        try:
            connection, used_at = self._idle.pop()
        except IndexError:
            return self._pool.get_connection()
        try:
            connection.connect()
            if time.monotonic() < used_at + FRESH_S:
                return connection
            with suppress(*REDIS_ERRORS):
                if not connection.can_read():
                    return connection
            connection.disconnect()
            connection.connect()
        except BaseException:
            self._idle.append((connection, 0.0))
            raise
        return connection

    def release(self, connection: Any) -> None:
        self._idle.append((connection, time.monotonic()))


def _pool_of(client: Any, node: ClusterNode) -> Any:
    """Return the connections of a Cluster's node."""
    return client.get_redis_connection(node).connection_pool


def _replies(connection: Any, count: int) -> list[Any]:
    """Read the replies to `count` commands, all of them before an error is raised: the next call must not get one."""
    replies: list[Any] = []
    refusal: exceptions.ResponseError | None = None
    for _ in range(count):
        try:
            replies.append(connection.read_response(disable_decoding=True))
        except exceptions.ResponseError as problem:
            replies.append(None)
            refusal = refusal or problem
    if refusal is not None:
        raise refusal
    return replies


def _closed(where: str) -> CallerError:
    return CallerError(f"the connection to {where} is closed: open the store again")


def _new_client(settings: RedisSettings) -> Any:
    never = Retry(NoBackoff(), 0)
    options = {**settings.connection_options, "retry": never, "socket_timeout": settings.call_s}
    if settings.sentinels:
        sentinel_options = {**settings.sentinel_options, "retry": never, "socket_timeout": settings.call_s}
        sentinel: Any = Sentinel  # parts of redis-py have no types
        return sentinel(settings.sentinels, sentinel_kwargs=sentinel_options, **options).master_for(settings.master)
    if settings.is_cluster:
        options.pop("db")
        node: Any = ClusterNode
        nodes = [node(host, port) for host, port in settings.hosts]
        return redis.RedisCluster(startup_nodes=nodes, **options)
    host, port = settings.hosts[0]
    return redis.Redis(host=host, port=port, **options)
