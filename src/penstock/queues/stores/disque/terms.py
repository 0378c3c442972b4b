"""The options of the store, and how those of a push become options of ADDJOB.

    option      default     what it is
    ttl         no expiry   how long a job lives that was pushed without one, in seconds
    retry       `lease`     after how many seconds a job that is not acknowledged comes back, where a push has no retry
    replicate   2           on how many nodes a job is; 1 where there is only one node
    timeout     10          for how many seconds a call tries to find a node that answers
    ca, cert, key           files for TLS: the authority to trust, a certificate to show, and its key
    tls                     a context of your own, in place of these (as an argument only)
    translate               a function from a node's host and port to those that work here (as an argument only)

Times of ADDJOB are whole seconds. They are rounded up, so that nothing is early and nothing ends before its time.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.errors import CallerError
from penstock.job import NewJob

# The node's limit, 68 years. A job of Disque lives for a day by default; those of all other stores stay until they are
# done, so here a job that was pushed without a ttl gets the longest one.
TTL_S_MAX = 2**31 - 1
# With two copies, adds go on if one node of three is dead. A node's own default is 3, which would need all three.
COPIES = 2
COPIES_MAX = 2**16 - 1  # the node's limit
RETRY_S_MAX = 2**32 - 1  # the node's limit
TIMEOUT_S = 10.0  # long enough for a node to be restarted

ADD_MS = 5000  # for an add to be on enough nodes

OWN_OPTIONS = frozenset({"ttl", "retry", "replicate", "timeout", "ca", "cert", "key", "tls", "translate"})


class Terms(NamedTuple):
    """Options of ADDJOB. Jobs with equal terms go into one command."""

    delay_s: int
    retry_s: int
    ttl_s: int
    replicate: int | None

    def copies(self, nodes: int) -> int:
        """Return the number of copies, in a cluster of this size."""
        return copies_of(self.replicate, nodes)

    def words(self, nodes: int) -> list[str | int]:
        """Return the options as they are sent to a cluster of this size."""
        words: list[str | int] = ["RETRY", self.retry_s, "TTL", self.ttl_s, "REPLICATE", self.copies(nodes)]
        if self.delay_s:
            words += ["DELAY", self.delay_s]
        return words


def copies_of(replicate: int | None, nodes: int) -> int:
    """Return the number of copies that was asked for, or the default in a cluster of this size."""
    return replicate or max(1, min(COPIES, nodes))


def is_plain(job: NewJob) -> bool:
    """Whether a push has no options of its own for ADDJOB: most have none."""
    return job.delay_ms <= 0 and job.mature_ms is None and job.ttl_s is job.retry_s is job.replicate is None


class Defaults(NamedTuple):
    """The options of a job whose push has none, from those of the store."""

    ttl_s: int
    retry_s: int
    replicate: int | None

    def plain(self) -> Terms:
        """Return the terms of a job whose push has no options."""
        return self.terms(NewJob(None, b""), None)

    def terms(self, job: NewJob, now_ms: int | None) -> Terms:
        """Return the terms of a job; the node's time is only needed for one that has a point in time."""
        delay_ms = job.delay_ms if job.mature_ms is None or now_ms is None else job.mature_ms - now_ms
        delay_s = max(0, -(-delay_ms // 1000))
        retry_s = self.retry_s if job.retry_s is None else math.ceil(job.retry_s)
        replicate = self.replicate if job.replicate is None else job.replicate
        if not retry_s and job.replicate is None:
            replicate = 1  # delivered at most once: there must be no copy
        ttl_s = self.ttl_s + (delay_s if delay_s >= self.ttl_s else 0)  # the store's ttl must not refuse a long delay
        if job.ttl_s is not None:
            ttl_s = max(1, math.ceil(job.ttl_s))
        return Terms(delay_s, min(retry_s, RETRY_S_MAX), min(ttl_s, TTL_S_MAX), replicate)


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 < seconds <= TTL_S_MAX:
        raise ValueError(value)
    return seconds


def _copies(value: Any) -> int:
    copies = int(value)
    if not 0 < copies <= COPIES_MAX:
        raise ValueError(value)
    return copies


_SECONDS = f"above 0 and at most {TTL_S_MAX} seconds"
# Option -> how it is read, and what it must be.
_READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "ttl": (_seconds, _SECONDS),
    "retry": (_seconds, _SECONDS),
    "replicate": (_copies, f"a number of nodes from 1 to {COPIES_MAX}"),
    "timeout": (_seconds, _SECONDS),
}


def read_options(rest: Mapping[str, str], extra: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Return the store's own options, from its URL and its arguments, which go first."""
    options: dict[str, Any] = {**rest, **extra}
    for name, (read, rule) in _READERS.items():
        if name in options:
            try:
                options[name] = read(options[name])
            except (TypeError, ValueError):
                raise CallerError(f"the option {name} of {url} must be {rule}, got {options[name]!r}") from None
    return options


def defaults(options: Mapping[str, Any], lease_s: float) -> Defaults:
    """Return the defaults for jobs from the store's options."""
    return Defaults(
        math.ceil(options.get("ttl", TTL_S_MAX)),
        math.ceil(options.get("retry", lease_s)),
        options.get("replicate"),
    )
