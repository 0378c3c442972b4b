"""The Lua scripts, and commands as bytes. A call of a script is one round trip, whatever the number of jobs."""

from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple

import hiredis

Argument = bytes | str | int


def packed(words: Sequence[Argument]) -> bytes:
    """Return a command in RESP."""
    pack: Any = hiredis.pack_command
    try:
        command: bytes = pack(tuple(words))
    except UnicodeEncodeError:
        # Ids that are not UTF-8 were decoded with escapes, and are sent as they were.
        command = pack(tuple(w.encode("utf-8", "surrogateescape") if isinstance(w, str) else w for w in words))
    return command


class Script(NamedTuple):
    """A script, and the name under which a server keeps it."""

    name: str
    text: bytes
    sha: bytes


# The files that each is made of; the last one does the work.
_PARTS = {
    "push": ("queue", "new_job", "push"),
    "pop": ("queue", "ready_jobs", "pop"),
    "put_back": ("queue", "put_back"),
    "reserve": ("queue", "ready_jobs", "reserve"),
    "ack": ("queue", "leases", "ack"),
    "nack": ("queue", "leases", "nack"),
    "extend": ("queue", "leases", "extend"),
    "move": ("queue", "leases", "new_job", "move"),
    "hold": ("queue", "leases", "hold"),
    "remove": ("queue", "remove"),
    "purge": ("queue", "scan", "purge"),
    "peek": ("queue", "scan", "peek"),
    "reserved": ("queue", "reserved"),
    "sizes": ("queue", "scan", "sizes"),
    "next": ("queue", "next"),
    "claim": ("queue", "ready_jobs", "claims", "claim"),
    "claim_lease": ("queue", "claims", "claim_lease"),
    "claim_end": ("queue", "claims", "claim_end"),
    "list_push": ("list_push",),
    "list_pop": ("list_pop",),
    "list_put_back": ("list_put_back",),
    "list_purge": ("list_purge",),
}


@cache
def script(name: str) -> Script:
    """Return a script by its name; it is read at the first use."""
    folder = files("penstock.queues.stores.redis") / "lua"
    text = b"\n".join((folder / f"{part}.lua").read_bytes() for part in _PARTS[name])
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())
