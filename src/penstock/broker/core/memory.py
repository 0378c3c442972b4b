"""Memory accounting and the levels of memory pressure. `eviction` frees memory under pressure.

Everything that grows with use is accounted, with its real size in this process: jobs, queues, claims, waits and the
buffers of connections. The interpreter is not, so that a limit of a few megabytes means a few megabytes of jobs.

Level 1, above 75 %: new jobs are kept by other nodes, copies are refused, idle queues are dropped after 10 s.
Level 2, above 95 %: before each command, jobs that are not needed any more are evicted (acked ones, and delivered ones
of retry 0); if that isn't enough, commands that need memory are refused. Queues, waits and claims are refused above
100 %.

Buffers have limits of their own, since they grow between commands: one for all clients together, and one for all
connections that have not authenticated. The latter are not accounted: unauthenticated connections can't take memory
from clients.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core.refusals import Refused

MAXMEMORY_DEFAULT: Final = 1 << 30
WARN_PERCENT: Final = 75
FULL_PERCENT: Final = 95
# An empty node: its tables and caches. Small on purpose, see above.
BASE_BYTES: Final = 100_000
# Of maxmemory, for the buffers of clients, unless `maxmemory-clients` says otherwise. Jobs stop at three quarters: both
# together, and a reply that is being made, stay within one and a half.
CLIENTS_SHARE: Final = 4
CLIENTS_BYTES_MIN: Final = 16 << 20  # a node with little memory for jobs still accepts a body of some megabytes
UNAUTHENTICATED_BYTES_DEFAULT: Final = 32 << 20  # some 8,000 idle connections; then older ones are closed
REPLY_SHARE: Final = 2  # one reply takes at most this part of what all buffers may take


class Buffers:
    """What the buffers of many connections take together, and the limit."""

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
        self.clients = Buffers(0)  # of authenticated clients
        self.unauthenticated = Buffers(UNAUTHENTICATED_BYTES_DEFAULT)  # of all others, connections included
        self.connection_bytes = 0  # of authenticated connections, without buffers
        self.reply_bytes = 0  # of replies of this turn that are not sent yet
        self._clients_bytes_max = 0  # as configured
        self.base_bytes = BASE_BYTES
        self.used_bytes = BASE_BYTES
        self.peak_bytes = BASE_BYTES
        self.evict = evict  # policy `acks`; False is `noeviction`
        self._sample_at = 0
        self.limit(max_bytes)

    def limit(self, max_bytes: int) -> None:
        """Set the limit; with 0 nothing is refused, but the pressure is permanent, as in the original."""
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

    def add_base(self, more_bytes: int) -> None:
        """Account for memory that stays when all jobs are removed: buffers of connections."""
        self.used_bytes += more_bytes
        self.base_bytes += more_bytes

    def has_room(self, more_bytes: int) -> bool:
        """Whether this much more stays within maxmemory."""
        return not self.max_bytes or self.used_bytes + more_bytes <= self.max_bytes

    def check_reply(self, size: int) -> None:
        """Refuse to make a reply that is larger than the node holds for a client."""
        most = self.reply_bytes_max
        if size > most:
            raise Refused("ERR", f"the reply must be at most {most} bytes, and would have {size}: ask for fewer jobs")

    def level(self) -> int:
        """Return the level of pressure: 0, 1 or 2."""
        return (self.used_bytes > self.warn_bytes) + (self.used_bytes > self.full_bytes)

    def next_sample(self, step: int) -> int:
        """Return the next position of the walk over jobs or queues."""
        self._sample_at += step
        return self._sample_at
