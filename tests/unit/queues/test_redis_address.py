"""Addresses of Redis: what a URL and arguments say, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import blocking
from penstock.errors import BadUrl, CallerError
from penstock.queues.options import parse
from penstock.queues.stores.redis.address import CALL_S, RedisSettings, redis_settings
from penstock.queues.stores.redis.keys import claim_key, pattern_of, tag_of


def read(url: str, **extra: Any) -> RedisSettings:
    address, _, others = parse(url, extra)
    return redis_settings(address, others)


def test_a_server_with_everything() -> None:
    settings = read("redis+oq://tom:p%40ss@host:7000/3?timeout=5&connect_timeout=2&client_name=me")
    assert settings.hosts == [("host", 7000)]
    assert (settings.is_cluster, settings.sentinels, settings.call_s) == (False, [], 5)
    wanted = {"db": 3, "username": "tom", "password": "p@ss", "socket_connect_timeout": 2, "client_name": "me"}
    assert wanted.items() <= settings.connection_options.items()
    assert "p@ss" not in settings.where


def test_what_is_left_out_is_what_redis_has() -> None:
    settings = read("redis://")
    assert (settings.hosts, settings.call_s) == ([("localhost", 6379)], CALL_S)
    assert {"db": 0, "username": None, "password": None}.items() <= settings.connection_options.items()
    assert "ssl" not in settings.connection_options


def test_options_may_be_arguments_which_go_first() -> None:
    settings = read("redis+oq://host?timeout=5&cluster=0", timeout=7)
    assert (settings.call_s, settings.is_cluster) == (7, False)


def test_tls() -> None:
    settings = read("rediss+list://host?ssl_ca_certs=/ca.pem&ssl_certfile=/c.pem&ssl_keyfile=/k.pem")
    wanted = {"ssl": True, "ssl_ca_certs": "/ca.pem", "ssl_certfile": "/c.pem", "ssl_keyfile": "/k.pem"}
    assert wanted.items() <= settings.connection_options.items()
    assert read("rediss://host?ssl_cert_reqs=none").connection_options["ssl_check_hostname"] is False


@pytest.mark.parametrize("url", ["redis+oq://a:1,b", "redis+oq://a:1?cluster=1", "redis+oq://u:p@a:1,[::1]:7/"])
def test_a_cluster(url: str) -> None:
    settings = read(url)
    assert settings.is_cluster
    assert settings.hosts[0] == ("a", 1)


def test_several_hosts_have_their_ports() -> None:
    assert read("redis+oq://u:p@a:1,b,[::1]:7").hosts == [("a", 1), ("b", 6379), ("::1", 7)]


def test_sentinels() -> None:
    settings = read("redis+oq://tom:pw@/2?sentinel=h1:1,h2&master=jobs&sentinel_password=other")
    assert (settings.sentinels, settings.master) == ([("h1", 1), ("h2", 26379)], "jobs")
    assert settings.sentinel_options == {"password": "other"}
    assert {"db": 2, "username": "tom", "password": "pw"}.items() <= settings.connection_options.items()
    assert settings.where == "the master 'jobs' of the sentinels h1:1,h2:26379"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+oq://host/jobs", "the path must be the number of a database"),
        ("redis+oq://a,b/1", "only the database 0"),
        ("redis+oq:///?sentinel=h:1", "needs the name of the master"),
        ("redis+oq:///?master=x", "needs the sentinels"),
        ("redis+oq://host?sentinel=h:1&master=x", "no host in the URL"),
        ("redis+oq://host?ssl_ca_certs=x", "the scheme must be rediss"),
        ("redis+oq://host?unix=/s", "in place of a host"),
        ("redis+oq://host:port", "must have a port"),
        ("redis+oq://a:1,b:x", "must have a port"),
    ],
)
def test_addresses_that_are_none(url: str, why: str) -> None:
    with pytest.raises(BadUrl, match=why):
        read(url)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("colour=red", "no option 'colour'"),
        ("timeout=soon", "timeout must be .* got 'soon'"),
        ("timeout=0", "above 0"),
        ("cluster=perhaps", "true or false"),
        ("sentinel=h:1:2:x", "host:port"),
        ("ssl_cert_reqs=maybe", "none, optional or required"),
    ],
)
def test_options_that_are_none(option: str, why: str) -> None:
    with pytest.raises(CallerError, match=why):
        read(f"rediss+oq://host?{option}")


@pytest.mark.parametrize(
    ("queue", "tag"),
    [("{mail}", b"mail"), ("a{mail}.dead", b"mail"), ("mail", None), ("{}x{y}", None), ("{{x}}", b"{x"), ("{x", None)],
)
def test_the_tag_of_a_queue_is_what_redis_hashes(queue: str, tag: bytes | None) -> None:
    assert tag_of(queue) == tag


def test_keys_of_claims_are_apart() -> None:
    assert claim_key("a:b", "c") != claim_key("a", "b:c")


def test_a_pattern_finds_only_its_prefix() -> None:
    assert pattern_of(b"a[b]*?\\:") == rb"a\[b\]\*\?\\:*"


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_redis_url_without_a_kind_of_queue_is_an_ordered_one(scheme: str) -> None:
    store = blocking.connect(f"{scheme}://127.0.0.1:1/0")
    assert store.queue("q").type == "redis:oq"
