"""A connected client, as the broker sees it: who it is, what it is owed, and what it waits for."""

from __future__ import annotations

from typing import Final, Protocol

from penstock.broker.core.jobs import Job
from penstock.broker.core.waiting import Addition, Waiter
from penstock.wire.replies import NULL3, NULL_ARRAY, NULL_BULK
from penstock.wire.requests import ARGUMENT_BYTES, REQUEST_BYTES

REPLY_ON: Final = 0
REPLY_OFF: Final = 1
REPLY_SKIP: Final = 2
REPLY_SKIP_NEXT: Final = 3


class Sink(Protocol):
    """The way back to a client: a socket, or a list in a test."""

    def write(self, data: bytes) -> bool:
        """Send bytes; False if the client is gone and surely none of them left this process."""

    def close(self, now: bool) -> None:
        """Close once everything is sent, or at once."""

    def caught_up(self) -> None:
        """Read on, if reading was stopped while requests that were sent ahead had to wait: they are run."""

    def account(self) -> None:
        """Count again what this client holds in memory: its backlog has changed."""

    def buffered_bytes(self) -> int:
        """Tell how much the peer has not taken yet."""

    def unread_bytes(self) -> int:
        """Tell how much has arrived of what could not be run yet."""

    def describe(self) -> str:
        """Give what CLIENT LIST shows of the socket: `fd=8`."""


class Client:
    """One client. Replies collect in `out`; the broker sends them once what they tell is safe."""

    __slots__ = (
        "active_ms",
        "address",
        "authenticated",
        "backlog",
        "backlog_bytes",
        "closing",
        "created_ms",
        "dirty",
        "handed",
        "id",
        "is_monitor",
        "is_unix",
        "last_command",
        "library",
        "name",
        "null",
        "null_array",
        "out",
        "over_soft_since_ms",
        "protocol",
        "reply_mode",
        "sink",
        "waiter",
    )

    def __init__(self, client_id: int, address: str, sink: Sink, now_ms: int, is_unix: bool = False) -> None:
        self.id = client_id
        self.address = address
        self.is_unix = is_unix
        self.sink = sink
        self.created_ms = now_ms
        self.active_ms = now_ms
        self.name = b""
        self.library: dict[bytes, bytes] = {}  # what CLIENT SETINFO told
        self.authenticated = False
        self.is_monitor = False
        self.reply_mode = REPLY_ON
        self.last_command = "NULL"
        self.out: list[bytes] = []
        self.handed: list[Job] | None = None  # the jobs in `out`
        self.dirty = False  # stands in the broker's list of clients with replies to send
        self.closing = False  # nothing more is read; closes when its replies are sent
        self.waiter: Waiter | Addition | None = None  # what it waits for
        self.backlog: list[list[bytes]] = []  # requests that wait until it is served, or input is resumed
        self.backlog_bytes = 0  # what they take in memory
        self.over_soft_since_ms = 0  # since when its output is above the soft limit
        self.speak(2)

    def hand(self, jobs: list[Job]) -> None:
        """Note which jobs its next reply gives it: if it goes before that is sent, they are queued again."""
        if self.handed is None:
            self.handed = jobs
        else:
            self.handed += jobs

    def speak(self, protocol: int) -> None:
        """Choose between RESP2 and RESP3."""
        self.protocol = protocol
        self.null = NULL3 if protocol == 3 else NULL_BULK
        self.null_array = NULL3 if protocol == 3 else NULL_ARRAY


def requests_bytes(requests: list[list[bytes]]) -> int:
    """Return what parsed requests take in memory."""
    size = 0
    for request in requests:
        size += REQUEST_BYTES + ARGUMENT_BYTES * len(request)
        for argument in request:
            size += len(argument)
    return size
