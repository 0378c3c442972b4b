"""Where a Redis is: one server, the master that Sentinel names, a Cluster, or a client that the caller has made.

    redis+oq://user:password@host:6379/0                     one server; `rediss+oq` speaks TLS
    redis+oq:///0?unix=/run/redis.sock                       the same through a Unix socket
    redis+oq:///0?sentinel=h1:26379,h2:26379&master=jobs     the master of that name
    redis+oq://h1:7000,h2:7000/                              a Cluster; with one host, add `?cluster=1`
    connect("redis+oq://", client=redis.asyncio.Redis(...))  a client, which the caller closes
    connect("redis+oq://", client=make_client)               a function that is called when the store is opened; the
                                                             store closes the client that it returns

The same for `redis+list`. `redis` and `rediss` are short for `redis+oq` and `rediss+oq`, and the schemes of signals and
statistics.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.errors import BadUrl, CallerError
from penstock.queues.options import StoreURL

PORT = 6379
SENTINEL_PORT = 26379
CALL_S = 30.0  # time limit of a call: a thousand large jobs take a fraction of a second
CONNECT_S = 5.0

Host = tuple[str, int]


@dataclass(slots=True)
class RedisSettings:
    """What an address and the arguments of `connect` say."""

    where: str  # for messages, without a password
    hosts: list[Host] = field(default_factory=list)
    connection_options: dict[str, Any] = field(default_factory=dict)  # of every connection, in redis-py's words
    sentinels: list[Host] = field(default_factory=list)
    sentinel_options: dict[str, Any] = field(default_factory=dict)
    master: str = ""
    is_cluster: bool = False
    call_s: float = CALL_S
    client: Any = None

    @property
    def has_one_server(self) -> bool:
        """Whether all connections go to the same server, and are made by this store."""
        return self.client is None and not self.sentinels and not self.is_cluster


def _hosts(text: str, port: int) -> list[Host]:
    hosts = []
    for place in text.split(","):
        host, colon, number = place.strip().rpartition(":")
        if not colon:
            host, number = number, str(port)
        if not host or not number.isdigit():
            raise ValueError(place)
        hosts.append((host.strip("[]"), int(number)))
    return hosts


def _seconds(text: Any) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise ValueError(text)
    return value


_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _flag(text: Any) -> bool:
    if str(text).lower() not in _FLAGS:
        raise ValueError(text)
    return _FLAGS[str(text).lower()]


def _verification(text: Any) -> str:
    if text not in {"none", "optional", "required"}:
        raise ValueError(text)
    return str(text)


class _Option(NamedTuple):
    read: Callable[[Any], Any]  # raises TypeError or ValueError
    must_be: str = "text"


# What may stand in a URL's query or be an argument.
_OPTIONS = {
    "cluster": _Option(_flag, "true or false"),
    "sentinel": _Option(lambda text: _hosts(text, SENTINEL_PORT), "host:port, with a comma between several"),
    "master": _Option(str),
    "sentinel_user": _Option(str),
    "sentinel_password": _Option(str),
    "unix": _Option(str),
    "timeout": _Option(_seconds, "above 0 and at most 3600 seconds"),
    "connect_timeout": _Option(_seconds, "above 0 and at most 3600 seconds"),
    "client_name": _Option(str),
    "ssl_ca_certs": _Option(str),
    "ssl_ca_path": _Option(str),
    "ssl_certfile": _Option(str),
    "ssl_keyfile": _Option(str),
    "ssl_password": _Option(str),
    "ssl_cert_reqs": _Option(_verification, "none, optional or required"),
    "ssl_check_hostname": _Option(_flag, "true or false"),
}


def redis_settings(address: StoreURL, extra: Mapping[str, Any]) -> RedisSettings:
    """Return what is needed to connect. Arguments override the URL's query."""
    settings = RedisSettings(address.url)
    settings.client = extra.get("client")
    options = _options(address, extra)
    settings.call_s = options.pop("timeout", CALL_S)
    settings.sentinels = options.pop("sentinel", [])
    settings.master = options.pop("master", "")
    settings.connection_options = _connection_options(address, options)
    settings.hosts = [(host, port or PORT) for host, port in address.places] or [("localhost", PORT)]
    settings.is_cluster = options.get("cluster", len(settings.hosts) > 1)
    if settings.sentinels:
        _check_sentinel(settings, address)
        settings.sentinel_options = {
            key: options[option]
            for key, option in (("username", "sentinel_user"), ("password", "sentinel_password"))
            if option in options
        }
    elif settings.master:
        raise BadUrl(f"{address.url}: master={settings.master} needs the sentinels that know it: sentinel=host:port")
    if settings.is_cluster and settings.connection_options.get("db"):
        raise BadUrl(f"{address.url}: a Redis Cluster has only the database 0")
    return settings


def _options(address: StoreURL, extra: Mapping[str, Any]) -> dict[str, Any]:
    given = {**address.rest, **{name: value for name, value in extra.items() if name != "client"}}
    options = {}
    for name, value in given.items():
        if name not in _OPTIONS:
            raise CallerError(f"{address.url} has no option {name!r}; those of Redis are client, {', '.join(_OPTIONS)}")
        try:
            options[name] = _OPTIONS[name].read(value)
        except (TypeError, ValueError) as problem:
            raise CallerError(f"{name} must be {_OPTIONS[name].must_be}, got {value!r} ({address.url})") from problem
    return options


def _connection_options(address: StoreURL, options: Mapping[str, Any]) -> dict[str, Any]:
    database = address.path.strip("/") or "0"
    if not database.isdigit():
        raise BadUrl(f"{address.url}: the path must be the number of a database, as in /0, got /{database}")
    found: dict[str, Any] = {
        "db": int(database),
        "username": address.user or None,
        "password": address.password,
        "socket_connect_timeout": options.get("connect_timeout", CONNECT_S),
        "socket_keepalive": True,
        "protocol": 2,  # replies look the same on every server and in every version of redis-py
    }
    if "client_name" in options:
        found["client_name"] = options["client_name"]
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    if address.scheme.startswith("rediss"):
        found["ssl"] = True
        found.update(tls)
        if tls.get("ssl_cert_reqs") == "none":
            found.setdefault("ssl_check_hostname", False)
    elif tls:
        scheme = address.scheme.replace("redis", "rediss", 1)
        raise BadUrl(f"{address.url}: {', '.join(tls)} needs TLS: the scheme must be {scheme}")
    if "unix" in options:
        if "ssl" in found or "cluster" in options or address.netloc:
            raise BadUrl(f"{address.url}: unix= stands in place of a host, without TLS and Cluster")
        found["unix_socket_path"] = options["unix"]
    return found


def _check_sentinel(settings: RedisSettings, address: StoreURL) -> None:
    if not settings.master:
        raise BadUrl(f"{address.url}: sentinel= needs the name of the master, too: master=NAME")
    if address.places or settings.is_cluster:
        raise BadUrl(f"{address.url}: with sentinel= there must be no host in the URL, and no cluster=")
    sentinels = ",".join(f"{host}:{port}" for host, port in settings.sentinels)
    settings.where = f"the master {settings.master!r} of the sentinels {sentinels}"
