"""The Lua scripts, and commands as bytes. A call of a script is one round trip, whatever the number of jobs."""

from functools import cache, partial
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

from penstock.client.connection import encode

Argument = bytes | str | int


# A command in RESP. Ids that are not UTF-8 were decoded with escapes, and are sent as they were.
packed = partial(encode, errors="surrogateescape")


class Script(NamedTuple):
    """A script, and the name under which a server keeps it."""

    name: str
    text: bytes
    sha: bytes


# The files that each is made of. Its function, in the last one, has the script's name.
_FILES = {
    "push": ("queue", "push"),
    "move": ("queue", "leases", "push", "move"),
    "pop": ("queue", "ready_jobs"),
    "put_back": ("queue", "ready_jobs"),
    "reserve": ("queue", "ready_jobs"),
    "ack": ("queue", "leases"),
    "nack": ("queue", "leases"),
    "extend": ("queue", "leases"),
    "hold": ("queue", "leases"),
    "claim": ("queue", "ready_jobs", "claims"),
    "renew_claim": ("queue", "claims"),
    "end_claim": ("queue", "claims"),
    "peek": ("queue", "scan"),
    "sizes": ("queue", "scan"),
    "purge": ("queue", "scan"),
    "next_score": ("queue", "scan"),
    "reserved": ("queue", "scan"),
    "remove": ("queue", "scan"),
    "list_push": ("list",),
    "list_pop": ("list",),
    "list_put_back": ("list",),
    "list_purge": ("list",),
}


@cache
def script(name: str) -> Script:
    """Return a script by its name; it is read at the first use."""
    folder = files("penstock.queues.stores.redis") / "lua"
    parts = [(folder / f"{file}.lua").read_bytes() for file in _FILES[name]]
    text = b"\n".join([*parts, f"return {name}()".encode()])
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())
