"""The settings of a cluster client, with the reasons for the defaults."""

import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.errors import CallerError


@dataclass(slots=True, kw_only=True)
class ConnectionSettings:
    """How connections are made; `waits_max` is for the async form, which has several to a node."""

    password: str | bytes | None = None
    tls: ssl.SSLContext | None = None
    name: str | None = None  # CLIENT SETNAME of each connection
    connect_timeout: float = 5.0
    waits_max: int = 16
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True, kw_only=True)
class ClientSettings:
    """How a node is chosen, and how long a call may take. Times are in seconds."""

    connections: ConnectionSettings
    # Beyond what a node is asked to wait for a job or for copies: long enough for a node to be started again.
    timeout: float = 30.0
    # A node that is silent for this long is given up. Shorter than `timeout`, so that another one can be tried.
    answer_timeout: float = 10.0
    # Rounds over all nodes: the first pause is short, since most failures are one node's.
    pause_first: float = 0.05
    pause_max: float = 2.0
    # An endless GETJOB is sent again after this time. In between the client reads HELLO, and may move.
    wait_round: float = 30.0
    hello_every: float = 30.0
    sticky: bool = True
    retry_adds: bool = False
    follow_jobs: int | None = 1000
    follow_seconds: float = 10.0
    translate: Callable[[str, int], tuple[str, int]] | None = None
    randomness: random.Random = field(default_factory=random.Random)

    @property
    def clock(self) -> Callable[[], float]:
        """The clock; tests have their own."""
        return self.connections.clock

    def __post_init__(self) -> None:
        positive = {
            "timeout": self.timeout,
            "connect_timeout": self.connections.connect_timeout,
            "waits_max": self.connections.waits_max,
            "hello_every": self.hello_every,
            "follow_jobs": self.follow_jobs,
            "follow_seconds": self.follow_seconds,
        }
        for name, value in positive.items():
            if value is not None and value <= 0:
                raise CallerError(f"{name} must be above 0, got {value!r}")
