"""Fixtures for servers of others: one of each kind shared by a whole run, and as many of one's own as a test wants.

Shared servers are never killed and hold what all tests put there: use queue names of your own. Servers that `start_*`
starts belong to one test, which may kill and restart them; they are ended with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.processes import NodeProcess, ServerProcess, meet
from tests.redis_groups import RedisCluster, RedisSentinel
from tests.servers import MongoServer, PostgresServer, PostgresTemplate, RedisServer

StartRedis = Callable[..., RedisServer]
StartPostgres = Callable[..., PostgresServer]
StartMongo = Callable[..., MongoServer]

_numbers = count(1)


def store_url(request: pytest.FixtureRequest, folder: Path, sqlite: str = "poll=0.05") -> str:
    """The URL of a store of the kind that the fixture's parameter names.

    Waiting workers look often, where the store has nothing that wakes them.
    """
    kind: str = request.param
    if kind == "sqlite":
        return f"sqlite:///{folder}/jobs.db?{sqlite}"
    if kind == "fsq":
        return f"fsq:{folder}/root?poll=0.2&sync=0"
    if kind == "redis+oq":
        redis: RedisServer = request.getfixturevalue("redis_server")
        return f"redis+oq://{redis.host}:{redis.port}/0?poll=0.5"
    if kind == "postgresql":
        return f"{request.getfixturevalue('postgres_database')}?poll=0.5"
    if kind.startswith("mongodb"):
        mongo: MongoServer = request.getfixturevalue("mongo_server")
        return f"{mongo.url(kind, kind.replace('+', '_'))}?poll=0.5"
    node: NodeProcess = request.getfixturevalue("shared_node")
    return f"disque://{node.host}:{node.port}"


# MongoDB holds the jobs of a transaction whose client was killed: for a minute, unless it is told otherwise.
SHORT_TRANSACTIONS = "transactionLifetimeLimitSeconds=1"


def killable_store(request: pytest.FixtureRequest, kind: str) -> tuple[ServerProcess, str]:
    """A server of the test's own, which has on its disk what it has answered, and the URL of a store on it."""
    server: Any
    if kind == "redis+oq":
        server = request.getfixturevalue("start_redis")()
        return server, f"redis+oq://{server.host}:{server.port}/0?poll=0.5"
    if kind == "postgresql":
        server = request.getfixturevalue("start_postgres")(synchronous_commit="on")
        return server, f"{server.url()}?poll=0.5"
    if kind == "disque":
        server = request.getfixturevalue("start_node")(appendonly="yes", appendfsync="always")
        return server, f"disque://{server.host}:{server.port}"
    server = request.getfixturevalue("start_mongo")(setParameter=SHORT_TRANSACTIONS)
    return server, f"{server.url(kind)}?poll=0.5&serverSelectionTimeoutMS=1000"


def _folders(parent: Path, name: str) -> Iterator[Path]:
    """New folders, one after the other."""
    for number in count():
        folder = parent / f"{name}{number}"
        folder.mkdir()
        yield folder


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One redis-server without a journal for all tests."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), appendonly="no").start()
    yield server
    server.kill_hard()


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[StartRedis]:
    """Start redis-servers with given directives; unless told otherwise each answered write is on the disk."""
    servers: list[RedisServer] = []
    folders = _folders(tmp_path, "redis")

    def start(wait: bool = True, **directives: object) -> RedisServer:
        durable = {"appendonly": "yes", "appendfsync": "always"}
        servers.append(RedisServer(next(folders), **{**durable, **directives}))
        return servers[-1].start(wait)

    yield start
    for server in servers:
        server.kill_hard()


@pytest.fixture(scope="session")
def redis_sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisSentinel]:
    """A master, a replica and a sentinel for all tests."""
    group = RedisSentinel(tmp_path_factory.mktemp("sentinel"))
    try:
        yield group.start()
    finally:
        group.kill_hard()


@pytest.fixture
def start_sentinel(tmp_path: Path) -> Iterator[Callable[..., RedisSentinel]]:
    """Start masters with a replica and a sentinel of their own, to be killed."""
    groups: list[RedisSentinel] = []
    folders = _folders(tmp_path, "sentinel")

    def start(**directives: object) -> RedisSentinel:
        groups.append(RedisSentinel(next(folders), **directives))
        return groups[-1].start()

    yield start
    for group in groups:
        group.kill_hard()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """A Redis Cluster of three masters for all tests."""
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster.start()
    finally:
        cluster.kill_hard()


@pytest.fixture(scope="session")
def postgres_template() -> Iterator[PostgresTemplate]:
    """The data directory that every PostgreSQL of this run begins with."""
    template = PostgresTemplate()
    yield template
    template.remove()


@pytest.fixture(scope="session")
def postgres_server(postgres_template: PostgresTemplate) -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests."""
    server = postgres_template.new_server()
    try:
        yield server.start()
    finally:
        server.kill_hard()


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> str:
    """The URL of an empty database on the shared PostgreSQL."""
    return postgres_server.create_database(f"test{next(_numbers)}")


@pytest.fixture
def start_postgres(postgres_template: PostgresTemplate) -> Iterator[StartPostgres]:
    """Start PostgreSQLs with given settings."""
    servers: list[PostgresServer] = []

    def start(wait: bool = True, **settings: object) -> PostgresServer:
        servers.append(postgres_template.new_server(**settings))
        return servers[-1].start(wait)

    yield start
    for server in servers:
        server.kill_hard()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """Three nodes of ours that know each other, for all tests of a module that leave them alive."""
    started = [NodeProcess(tmp_path_factory.mktemp("node"), appendonly="no").start() for _ in range(3)]
    meet(*started)
    yield started
    for node in started:
        node.kill()


@pytest.fixture
def database(postgres_server: PostgresServer, postgres_database: str) -> Iterator[Any]:
    """A connection to the test's database, which is empty; each statement is a transaction."""
    with postgres_server.connect(postgres_database.rpartition("/")[2]) as connection:
        yield connection


@pytest.fixture(scope="session")
def mongo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    """One mongod, a replica set of one member, for all tests."""
    server = MongoServer(tmp_path_factory.mktemp("mongo"))
    try:
        yield server.start()
    finally:
        server.kill_hard()


@pytest.fixture(scope="session")
def mongo_standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    """One mongod that isn't a replica set, for all tests."""
    server = MongoServer(tmp_path_factory.mktemp("mongo"), replica_set=None)
    try:
        yield server.start()
    finally:
        server.kill_hard()


@pytest.fixture
def mongo_database(mongo_server: MongoServer) -> str:
    """The URL of an empty database on the shared mongod."""
    return mongo_server.url(database=f"test{os.getpid()}x{next(_numbers)}")


@pytest.fixture
def start_mongo(tmp_path: Path) -> Iterator[StartMongo]:
    """Start mongods with given options: each a replica set of its own, unless `replica_set` is None."""
    servers: list[MongoServer] = []
    folders = _folders(tmp_path, "mongo")

    def start(wait: bool = True, **options: Any) -> MongoServer:
        servers.append(MongoServer(next(folders), **options))
        return servers[-1].start(wait)

    yield start
    for server in servers:
        server.kill_hard()
