"""The rules that a job is added with: the options of the store, and how those of a push become options of ADDJOB.

    option      default     what it is
    ttl         no expiry   how long a job lives that was pushed without one, in seconds
    retry       `lease`     after how long a job comes back that nobody answers for, where a push doesn't say it
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

# The node's, 68 years. A job of Disque lives for a day unless it is told otherwise; those of all other stores stay
# until they are done, so here a job that was pushed without a ttl gets the longest one that there is.
TTL_S_MAX = 2**31 - 1
# So that one dead node of three stops nobody. A node's own default is 3, which one dead node of three can't give.
COPIES = 2
RETRY_S_MAX = 2**32 - 1  # the node's
TIMEOUT_S = 10.0  # long enough for a node to be started again

OWN_OPTIONS = frozenset({"ttl", "retry", "replicate", "timeout", "ca", "cert", "key", "tls", "translate"})


class Terms(NamedTuple):
    """Options of ADDJOB. Jobs with equal terms go into one command."""

    delay_s: int
    retry_s: int
    ttl_s: int
    replicate: int | None

    def copies(self, nodes: int) -> int:
        """Return on how many nodes the job is to be, in a cluster of this size."""
        return copies_of(self.replicate, nodes)

    def words(self, nodes: int) -> list[str | int]:
        """As they are sent to a cluster of this size."""
        words: list[str | int] = ["RETRY", self.retry_s, "TTL", self.ttl_s, "REPLICATE", self.copies(nodes)]
        if self.delay_s:
            words += ["DELAY", self.delay_s]
        return words


def copies_of(replicate: int | None, nodes: int) -> int:
    """Return the number of copies that was asked for, or the default in a cluster of this size."""
    return replicate or max(1, min(COPIES, nodes))


def is_plain(job: NewJob) -> bool:
    """Whether a push says nothing of a job's terms: most don't."""
    return job.delay_ms <= 0 and job.mature_ms is None and job.ttl_s is job.retry_s is job.replicate is None


class Defaults(NamedTuple):
    """What is said of a job whose push says nothing."""

    ttl_s: int
    retry_s: int
    replicate: int | None

    def plain(self) -> Terms:
        """The terms of a job whose push says nothing."""
        return self.terms(NewJob(None, b""), None)

    def terms(self, job: NewJob, now_ms: int | None) -> Terms:
        """The terms of a job; the node's time is only needed for one that has a point in time."""
        delay_ms = job.delay_ms if job.mature_ms is None or now_ms is None else job.mature_ms - now_ms
        delay_s = max(0, -(-delay_ms // 1000))
        retry_s = self.retry_s if job.retry_s is None else math.ceil(job.retry_s)
        replicate = self.replicate if job.replicate is None else job.replicate
        if not retry_s and job.replicate is None:
            replicate = 1  # delivered at most once: nobody may hold a copy
        ttl_s = self.ttl_s + (delay_s if delay_s >= self.ttl_s else 0)  # a store's ttl must not refuse a long delay
        if job.ttl_s is not None:
            ttl_s = max(1, math.ceil(job.ttl_s))
        return Terms(delay_s, min(retry_s, RETRY_S_MAX), min(ttl_s, TTL_S_MAX), replicate)


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 < seconds <= TTL_S_MAX:
        raise ValueError(f"give seconds, above 0 and at most {TTL_S_MAX}")
    return seconds


def _copies(value: Any) -> int:
    copies = int(value)
    if not 0 < copies < 2**16:
        raise ValueError("give a number of nodes, 1 to 65535")
    return copies


_READERS: dict[str, Callable[[Any], Any]] = {
    "ttl": _seconds,
    "retry": _seconds,
    "replicate": _copies,
    "timeout": _seconds,
}


def read_options(rest: Mapping[str, str], extra: Mapping[str, Any], url: str) -> dict[str, Any]:
    """The store's own options, from its URL and its arguments, which go first."""
    options: dict[str, Any] = {}
    for name, value in {**rest, **extra}.items():
        try:
            options[name] = _READERS[name](value) if name in _READERS else value
        except (TypeError, ValueError) as problem:
            raise CallerError(f"the option {name}={value!r} of {url} is wrong: {problem}") from problem
    return options


def defaults(options: Mapping[str, Any], lease_s: float) -> Defaults:
    """What the store's options say of jobs."""
    return Defaults(
        math.ceil(options.get("ttl", TTL_S_MAX)),
        math.ceil(options.get("retry", lease_s)),
        options.get("replicate"),
    )
