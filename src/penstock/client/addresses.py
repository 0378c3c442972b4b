"""Addresses of nodes, and the forms in which the first ones (the seeds) can be given.

"10.0.0.1:7711,10.0.0.2"                       a text; the default port is 7711
["10.0.0.1:7711", ("10.0.0.2", 7712)]          a list of texts and pairs
"disque://:secret@10.0.0.1,10.0.0.2:7712"      a URL, with the password that all nodes share
"disques://[::1]:7712"                         over TLS; an IPv6 address with a port stands in brackets
"""

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote

from penstock.client.connection import DEFAULT_PORT
from penstock.errors import CallerError

SCHEMES = {"disque": False, "disques": True}  # whether it is TLS
PORT_MAX = 65_535
# A cluster has far fewer nodes, and one that answers is enough: a longer list is a file given by mistake.
SEEDS_MAX = 1000


class Address(NamedTuple):
    """A host, by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Seeds(NamedTuple):
    """The addresses of seeds, and from a URL the password and whether it is TLS."""

    addresses: tuple[Address, ...]
    password: str | None = None
    tls: bool = False


def parse_seeds(seeds: str | Iterable[str | tuple[str, int]]) -> Seeds:
    """Return seeds that are in any of the forms above. Raises CallerError for others."""
    password, tls = None, False
    if isinstance(seeds, str):
        scheme, separator, rest = seeds.partition("://")
        if separator:
            if scheme not in SCHEMES:
                raise CallerError(f"the URL of nodes must begin with disque:// or disques://, got {scheme}://")
            tls = SCHEMES[scheme]
            password, rest = _password(rest.rstrip("/"))
        seeds = (rest if separator else seeds).split(",")
    addresses = dict.fromkeys(
        parse_address(seed) if isinstance(seed, str) else _checked(seed) for seed in seeds if seed
    )
    if not addresses:
        raise CallerError("the address of at least one node must be given, as host:port")
    if len(addresses) > SEEDS_MAX:
        raise CallerError(f"there must be at most {SEEDS_MAX} addresses of nodes, got {len(addresses)}")
    return Seeds(tuple(addresses), password, tls)


def _password(rest: str) -> tuple[str | None, str]:
    """Return the password of what follows `://`, and the rest."""
    secret, separator, hosts = rest.rpartition("@")
    if not separator:
        return None, rest
    # A user name is accepted, since other clients write one; nodes know only the password.
    return unquote(secret.partition(":")[2]) or None, hosts


def parse_address(text: str) -> Address:
    """Return the address in `host`, `host:port` or `[ipv6]:port`."""
    text = text.strip()
    if text.startswith("["):
        host, closing, port = text[1:].partition("]")
        if not closing or (port and not port.startswith(":")):
            raise CallerError(f"an IPv6 address must be given as [address]:port, got {text!r}")
        port = port[1:]
    elif text.count(":") > 1:
        host, port = text, ""  # IPv6 without a port
    else:
        host, _, port = text.partition(":")
    try:
        number = int(port) if port else DEFAULT_PORT
    except ValueError:
        raise CallerError(f"the port of an address must be a number, got {text!r}") from None
    return _checked((host, number))


def _checked(pair: tuple[str, int]) -> Address:
    host, port = pair
    if not host or not 0 < port <= PORT_MAX:
        raise CallerError(f"an address must have a host, and a port from 1 to {PORT_MAX}, got {host}:{port}")
    return Address(host, port)
