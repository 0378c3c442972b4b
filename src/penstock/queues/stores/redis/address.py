"""Where a Redis is: one server, the master that Sentinel names, a Cluster, or a client that the caller has made.

    redis+oq://user:password@host:6379/0                     one server; `rediss+oq` speaks TLS
    redis+oq:///0?unix=/run/redis.sock                       the same through a socket of this machine
    redis+oq:///0?sentinel=h1:26379,h2:26379&master=jobs     the master of that name
    redis+oq://h1:7000,h2:7000/                              a Cluster; with one host, `?cluster=1` says so
    connect("redis+oq://", client=redis.asyncio.Redis(...))  a client, which stays the caller's to close
    connect("redis+oq://", client=make_client)               a function that is called when the store is opened; the
                                                             store closes the client that it returns

The same for `redis+list`. `redis` and `rediss` are short for `redis+oq` and `rediss+oq`, and the schemes of signals and
statistics.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import BadUrl, CallerError
from penstock.queues.options import Address

PORT = 6379
SENTINEL_PORT = 26379
CALL_S = 30.0  # until a call is given up: a thousand large jobs take a fraction of a second
CONNECT_S = 5.0

Host = tuple[str, int]


@dataclass(slots=True)
class RedisPlace:
    """An address, read."""

    where: str  # for people, without a password
    hosts: list[Host] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)  # of every connection, in redis-py's words
    sentinels: list[Host] = field(default_factory=list)
    sentinel_settings: dict[str, Any] = field(default_factory=dict)
    master: str = ""
    is_cluster: bool = False
    call_s: float = CALL_S
    client: Any = None


def _hosts(text: str, port: int) -> list[Host]:
    hosts = []
    for place in text.split(","):
        host, colon, number = place.strip().rpartition(":")
        if not colon:
            host, number = number, str(port)
        if not host or not number.isdigit():
            raise ValueError("give host:port, and a comma between several")
        hosts.append((host.strip("[]"), int(number)))
    return hosts


def _seconds(text: Any) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise ValueError("give seconds, above 0 and at most 3600")
    return value


_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _flag(text: Any) -> bool:
    if str(text).lower() not in _FLAGS:
        raise ValueError("say true or false")
    return _FLAGS[str(text).lower()]


def _verification(text: Any) -> str:
    if text not in {"none", "optional", "required"}:
        raise ValueError("it is none, optional or required")
    return str(text)


# What may stand in a URL's query or be an argument, and how it is read.
_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "cluster": _flag,
    "sentinel": lambda text: _hosts(text, SENTINEL_PORT),
    "master": str,
    "sentinel_user": str,
    "sentinel_password": str,
    "unix": str,
    "timeout": _seconds,
    "connect_timeout": _seconds,
    "client_name": str,
    "ssl_ca_certs": str,
    "ssl_ca_path": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_password": str,
    "ssl_cert_reqs": _verification,
    "ssl_check_hostname": _flag,
}


def read_address(address: Address, extra: Mapping[str, Any]) -> RedisPlace:
    """Everything that is needed to connect. Arguments go before the URL's query."""
    place = RedisPlace(address.url)
    place.client = extra.get("client")
    options = _options(address, extra)
    place.call_s = options.pop("timeout", CALL_S)
    place.sentinels = options.pop("sentinel", [])
    place.master = options.pop("master", "")
    place.settings = _settings(address, options)
    place.hosts = [(host, port or PORT) for host, port in address.places] or [("localhost", PORT)]
    place.is_cluster = options.get("cluster", len(place.hosts) > 1)
    if place.sentinels:
        _check_sentinel(place, address)
        place.sentinel_settings = {
            key: options[option]
            for key, option in (("username", "sentinel_user"), ("password", "sentinel_password"))
            if option in options
        }
    elif place.master:
        raise BadUrl(f"{address.url}: master={place.master} needs the sentinels that know it: sentinel=host:port")
    if place.is_cluster and place.settings.get("db"):
        raise BadUrl(f"{address.url}: a Redis Cluster has only the database 0")
    return place


def _options(address: Address, extra: Mapping[str, Any]) -> dict[str, Any]:
    given = {**address.rest, **{name: value for name, value in extra.items() if name != "client"}}
    read = {}
    for name, value in given.items():
        if name not in _OPTIONS:
            raise CallerError(f"{address.url} has no option {name!r}; those of Redis are client, {', '.join(_OPTIONS)}")
        try:
            read[name] = _OPTIONS[name](value)
        except (TypeError, ValueError) as problem:
            raise CallerError(f"the option {name}={value!r} of {address.url} is wrong: {problem}") from problem
    return read


def _settings(address: Address, options: Mapping[str, Any]) -> dict[str, Any]:
    """What redis-py's connections are told."""
    database = address.path.strip("/") or "0"
    if not database.isdigit():
        raise BadUrl(f"{address.url}: the path is the number of a database, as in /0, and {database!r} is none")
    settings: dict[str, Any] = {
        "db": int(database),
        "username": address.user or None,
        "password": address.password,
        "socket_connect_timeout": options.get("connect_timeout", CONNECT_S),
        "socket_keepalive": True,
        "protocol": 2,  # replies look the same on every server and in every version of redis-py
    }
    if "client_name" in options:
        settings["client_name"] = options["client_name"]
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    if address.scheme.startswith("rediss"):
        settings["ssl"] = True
        settings.update(tls)
        if tls.get("ssl_cert_reqs") == "none":
            settings.setdefault("ssl_check_hostname", False)
    elif tls:
        raise BadUrl(f"{address.url}: {', '.join(tls)} is for TLS; the scheme is redis{_after(address.scheme)} then")
    if "unix" in options:
        if "ssl" in settings or "cluster" in options or address.netloc:
            raise BadUrl(f"{address.url}: unix= stands in place of a host, without TLS and Cluster")
        settings["unix_socket_path"] = options["unix"]
    return settings


def _after(scheme: str) -> str:
    return "s" + scheme.removeprefix("redis")


def _check_sentinel(place: RedisPlace, address: Address) -> None:
    if not place.master:
        raise BadUrl(f"{address.url}: sentinel= needs the master's name, too: master=NAME")
    if address.places or place.is_cluster:
        raise BadUrl(f"{address.url}: with sentinel= there is no host in the URL, and no cluster=")
    where = ",".join(f"{host}:{port}" for host, port in place.sentinels)
    place.where = f"the master {place.master!r} of the sentinels {where}"
