"""The Lua scripts, each with what it builds on. A call is one round trip, whatever the number of jobs."""

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple


class Script(NamedTuple):
    """A script, and the name under which a server keeps it."""

    name: str
    text: bytes
    sha: bytes


# What each is made of; the last part does the work.
_PARTS = {
    "push": ("queue", "adding", "push"),
    "pop": ("queue", "taking", "pop"),
    "put_back": ("queue", "put_back"),
    "reserve": ("queue", "taking", "reserve"),
    "ack": ("queue", "leases", "ack"),
    "nack": ("queue", "leases", "nack"),
    "extend": ("queue", "leases", "extend"),
    "move": ("queue", "leases", "adding", "move"),
    "hold": ("queue", "leases", "hold"),
    "remove": ("queue", "remove"),
    "purge": ("queue", "looking", "purge"),
    "peek": ("queue", "looking", "peek"),
    "reserved": ("queue", "reserved"),
    "sizes": ("queue", "looking", "sizes"),
    "next": ("queue", "next"),
    "claim": ("queue", "taking", "claims", "claim"),
    "claim_lease": ("queue", "claims", "claim_lease"),
    "claim_end": ("queue", "claims", "claim_end"),
    "list_push": ("list_push",),
    "list_pop": ("list_pop",),
    "list_put_back": ("list_put_back",),
    "list_purge": ("list_purge",),
}


@cache
def script(name: str) -> Script:
    """The script of a name, read when it is first asked for."""
    folder = files("penstock.queues.stores.redis") / "lua"
    text = b"\n".join((folder / f"{part}.lua").read_bytes() for part in _PARTS[name])
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())
