"""Memory: what is accounted, and the levels of pressure. What is given up under it is in `eviction`.

Accounted is what grows with use: jobs, queues, claims, waits and the buffers of connections, each at what it really
takes in this process. The interpreter itself isn't, so that a limit of a few megabytes means a few megabytes of jobs.

Level 1, above 75 %: new jobs are kept by other nodes, copies are refused, idle queues go after 10 s.
Level 2, above 95 %: before each command, jobs that nobody needs any more are evicted (acked ones, and delivered ones of
retry 0); if that isn't enough, commands that need memory are refused. Queues, waits and claims are refused above 100 %.

Buffers have limits of their own, since they grow between commands: one for all clients together, and one for all
connections that have not authenticated. The latter are not a part of what is accounted: whoever is outside can't take
memory from those who are inside.
"""

from __future__ import annotations

from typing import Final

MAXMEMORY_DEFAULT: Final = 1 << 30
WARN_PERCENT: Final = 75
FULL_PERCENT: Final = 95
# An empty node: its tables and caches. Small on purpose, see above.
BASE_BYTES: Final = 100_000
# Of maxmemory, for the buffers of clients, unless `maxmemory-clients` says otherwise. Jobs stop at three quarters: both
# together, and a reply that is being made, stay within one and a half.
CLIENTS_SHARE: Final = 4
CLIENTS_BYTES_MIN: Final = 16 << 20  # a node with little memory for jobs still takes a body of some megabytes
UNAUTHENTICATED_BYTES_DEFAULT: Final = 32 << 20  # some 8,000 idle connections; those that come later push others out
REPLY_SHARE: Final = 2  # of what all buffers may take, one reply takes at most this part


class Buffers:
    """What connections of one kind hold together, and the limit."""

    __slots__ = ("bytes", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        self.max_bytes = max_bytes


class Memory:
    """What is used, and the limits."""

    __slots__ = (
        "_clients_bytes_max",
        "_sample_at",
        "base_bytes",
        "clients",
        "connection_bytes",
        "evict",
        "full_bytes",
        "max_bytes",
        "peak_bytes",
        "reply_bytes",
        "reply_bytes_max",
        "unauthenticated",
        "used_bytes",
        "warn_bytes",
    )

    def __init__(self, max_bytes: int = MAXMEMORY_DEFAULT, evict: bool = True) -> None:
        self.clients = Buffers(0)  # of clients that are let in
        self.unauthenticated = Buffers(UNAUTHENTICATED_BYTES_DEFAULT)  # of all others, with their connections
        self.connection_bytes = 0  # of the connections of clients that are let in, buffers aside
        self.reply_bytes = 0  # of replies that were made in this turn and not sent yet
        self._clients_bytes_max = 0  # as configured
        self.base_bytes = BASE_BYTES
        self.used_bytes = BASE_BYTES
        self.peak_bytes = BASE_BYTES
        self.evict = evict  # policy `acks`; False is `noeviction`
        self._sample_at = 0
        self.limit(max_bytes)

    def limit(self, max_bytes: int) -> None:
        """Set the limit; 0 means no refusals, but permanent pressure, as operators know it."""
        self.max_bytes = max_bytes
        self.warn_bytes = max_bytes // 100 * WARN_PERCENT
        self.full_bytes = max_bytes // 100 * FULL_PERCENT
        self.limit_clients(self._clients_bytes_max)

    def limit_clients(self, max_bytes: int) -> None:
        """Set the limit of all buffers of clients; 0 means a part of maxmemory."""
        self._clients_bytes_max = max_bytes
        share = (self.max_bytes or MAXMEMORY_DEFAULT) // CLIENTS_SHARE
        self.clients.max_bytes = max_bytes or max(share, CLIENTS_BYTES_MIN)
        self.reply_bytes_max = self.clients.max_bytes // REPLY_SHARE

    def has_room(self, more_bytes: int) -> bool:
        """Whether this much more stays within maxmemory."""
        return not self.max_bytes or self.used_bytes + more_bytes <= self.max_bytes

    def level(self) -> int:
        """Give the level of pressure: 0, 1 or 2."""
        return (self.used_bytes > self.warn_bytes) + (self.used_bytes > self.full_bytes)

    def next_sample(self, step: int) -> int:
        """Walk round the tables, a step at a time."""
        self._sample_at += step
        return self._sample_at
