"""What can be set about a cluster client, with the reasons for the defaults."""

import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.errors import CallerError


@dataclass(slots=True, kw_only=True)
class LinkSettings:
    """How a connection is made; `waits_max` is about the async form, which has several to a node."""

    password: str | bytes | None = None
    tls: ssl.SSLContext | None = None
    connect_timeout: float = 5.0
    waits_max: int = 16
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True, kw_only=True)
class Settings:
    """How a node is chosen, and for how long things are tried. Times are in seconds."""

    links: LinkSettings
    # Beyond what a node is asked to wait for a job or for copies: long enough for a node to be started again.
    timeout: float = 30.0
    # A node that says nothing for so long is given up. Shorter than the above, so that another one gets a chance.
    answer_timeout: float = 10.0
    # Rounds over all nodes: the first pause is short, since most failures are one node's.
    pause_first: float = 0.05
    pause_max: float = 2.0
    # An endless GETJOB is asked anew so often. In between the client looks at its nodes, and may move.
    wait_round: float = 30.0
    hello_every: float = 30.0
    sticky: bool = True
    retry_adds: bool = False
    follow_jobs: int | None = 1000
    follow_seconds: float = 10.0
    translate: Callable[[str, int], tuple[str, int]] | None = None
    chance: random.Random = field(default_factory=random.Random)

    @property
    def clock(self) -> Callable[[], float]:
        """What tells the time; tests have their own."""
        return self.links.clock

    def __post_init__(self) -> None:
        positive = {
            "timeout": self.timeout,
            "connect_timeout": self.links.connect_timeout,
            "waits_max": self.links.waits_max,
            "hello_every": self.hello_every,
            "follow_jobs": self.follow_jobs,
            "follow_seconds": self.follow_seconds,
        }
        for name, value in positive.items():
            if value is not None and value <= 0:
                raise CallerError(f"{name} must be above 0, and {value!r} isn't.")
