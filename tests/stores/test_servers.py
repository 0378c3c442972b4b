"""The servers that stores are tested on keep what they promised through kill -9, and come back where they were."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processes import need_module, wait_until
from tests.redis_groups import RedisCluster, RedisSentinel
from tests.server_fixtures import StartPostgres, StartRedis
from tests.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.system


def test_redis_with_a_journal_keeps_what_it_answered_through_kill_9(start_redis: StartRedis) -> None:
    server = start_redis()
    with server.client() as client:
        client.set("key", "kept")
        server.kill_hard()
        server.restart()
        assert client.get("key") == b"kept"


def test_redis_takes_directives(start_redis: StartRedis) -> None:
    server = start_redis(appendonly="no", maxmemory_policy="allkeys-lru")
    with server.client(decode_responses=True) as client:
        settings = client.config_get("append*", "maxmemory-policy")
    assert (settings["appendonly"], settings["maxmemory-policy"]) == ("no", "allkeys-lru")


def test_a_server_that_does_not_start_shows_its_log(start_redis: StartRedis) -> None:
    with pytest.raises(AssertionError, match="appendonly"):
        start_redis(appendonly="perhaps")


def test_the_shared_redis_answers(redis_server: RedisServer) -> None:
    with need_module("redis").from_url(redis_server.url) as client:
        assert client.ping()


def test_postgres_keeps_what_it_answered_through_kill_9(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    with server.connect() as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
    server.kill_hard()
    server.restart()
    with server.connect() as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]


def test_a_killed_postgres_ends_its_sessions_and_starts_again(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    psycopg = need_module("psycopg")
    with server.connect() as connection:
        pid = connection.info.backend_pid
        server.kill_hard()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    server.start()
    with server.connect() as connection:
        assert connection.execute("SELECT %s <> pg_backend_pid()", [pid]).fetchone() == (True,)


def test_postgres_syncs_and_listens_on_a_socket_too(postgres_server: PostgresServer) -> None:
    with need_module("psycopg").connect(postgres_server.socket_url()) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("on",)


def test_each_database_is_a_new_one(postgres_database: str) -> None:
    with need_module("psycopg").connect(postgres_database) as connection:
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert connection.execute(tables).fetchone() == (0,)


@pytest.mark.slow
def test_a_sentinel_makes_the_replica_master(start_sentinel: Any) -> None:
    group: RedisSentinel = start_sentinel()
    with group.client() as client:
        client.set("key", "copied")
        assert client.wait(1, 5000) == 1
        group.kill_master()
        redis = need_module("redis")

        def value() -> bytes | None:
            try:
                return client.get("key")
            except redis.exceptions.ConnectionError:
                return None

        assert wait_until(value) == b"copied"
        client.set("key", "written after")


@pytest.mark.slow
def test_a_cluster_has_keys_on_all_its_nodes(redis_cluster: RedisCluster) -> None:
    with redis_cluster.client() as client:
        for number in range(100):
            client.set(f"key{number}", number)
    for node in redis_cluster.nodes:
        with node.client() as client:
            assert client.dbsize() > 0
