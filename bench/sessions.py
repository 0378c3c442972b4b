"""What is done to one fresh server in one round: a session, which yields a rate for each of its commands.

A session is named by the server, whether its journal is on, and its shape: single calls, pipelines of 32,
or a hundred items a command. Every session starts its own server, so that none inherits jobs, memory or
timers. Rates of redis-benchmark carry the name of the command; those of our own client have ` (own)` behind
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.client import Client, Rate
from bench.commands import MANY
from bench.load import acknowledge, add_take_finish, expect_waiting, preload, redis_benchmark, repeat
from bench.servers import PENSTOCK, Server, running

Rates = dict[str, Rate]

SINGLE, PIPELINE, HUNDRED = "single", "pipeline 32", "hundred"
SHAPES = (SINGLE, PIPELINE, HUNDRED)
DEPTH = {SINGLE: 1, PIPELINE: 32, HUNDRED: 1}

# Commands of one load, so that each takes about a second here: (redis-benchmark, own client).
REQUESTS = {
    ("penstock", SINGLE): (60_000, 40_000),
    ("penstock", PIPELINE): (240_000, 96_000),
    ("penstock", HUNDRED): (3_000, 3_000),
    ("redis", SINGLE): (60_000, 60_000),
    ("redis", PIPELINE): (800_000, 800_000),
    ("redis", HUNDRED): (30_000, 30_000),
    ("beanstalkd", SINGLE): (0, 40_000),
    ("beanstalkd", PIPELINE): (0, 96_000),
}

# A take must never find the queue empty, since GETJOB would wait: all connections with full pipelines, twice.
SPARE = 3_200
QUICK_DIVISOR = 10


@dataclass(frozen=True)
class Session:
    """One server, with or without journal, under loads of one shape."""

    kind: str
    shape: str
    journal: bool = False

    @property
    def name(self) -> str:
        """For the progress line and for notes."""
        return f"{self.kind}{' with journal' if self.journal else ''}, {self.shape}"

    def run(self, quick: bool, program: Path = PENSTOCK) -> Rates:
        """Starts the server, loads it, stops it."""
        theirs, own = REQUESTS[self.kind, self.shape]
        divisor = QUICK_DIVISOR if quick else 1
        with running(self.kind, self.journal, program) as server:
            return _LOADS[self.kind, self.shape](server, theirs // divisor, own // divisor, DEPTH[self.shape])


def _penstock(server: Server, theirs: int, own: int, depth: int) -> Rates:
    preload(server, "ADDJOB", SPARE)
    rates = {"ADDJOB": redis_benchmark(server, "ADDJOB", theirs, depth)}
    expect_waiting(server, theirs)
    rates["GETJOB"] = redis_benchmark(server, "GETJOB", theirs, depth)
    with Client(server) as client:
        steps = add_take_finish(client, own, depth, _slices(own))
    return rates | dict(zip(("ADDJOB (own)", "GETJOB (own)", "ACKJOB (own)"), steps, strict=True))


def _penstock_hundred(server: Server, theirs: int, own: int, depth: int) -> Rates:
    preload(server, "ADDJOB", SPARE)
    rates = {"ADDJOBS": redis_benchmark(server, "ADDJOBS", theirs, depth)}
    expect_waiting(server, theirs * MANY)
    rates["GETJOB 100"] = redis_benchmark(server, "GETJOB 100", theirs, depth)
    with Client(server) as client:
        rates["ADDJOBS (own)"] = repeat(client, "ADDJOBS", own, depth)[0]
        rates["GETJOB 100 (own)"], replies = repeat(client, "GETJOB 100", own, depth)
        rates["ACKJOB 100 (own)"] = acknowledge(client, replies, depth, MANY)
    return rates


def _redis(server: Server, theirs: int, own: int, depth: int) -> Rates:
    return _push_pop(server, "LPUSH", "RPOP", (theirs, own, depth))


def _redis_hundred(server: Server, theirs: int, own: int, depth: int) -> Rates:
    return _push_pop(server, "LPUSH 100", "RPOP 100", (theirs, own, depth))


def _push_pop(server: Server, push: str, pop: str, load: tuple[int, int, int]) -> Rates:
    theirs, own, depth = load
    preload(server, push, SPARE)
    rates = {push: redis_benchmark(server, push, theirs, depth)}
    expect_waiting(server, theirs)
    rates[pop] = redis_benchmark(server, pop, theirs, depth)
    with Client(server) as client:
        rates[f"{push} (own)"] = repeat(client, push, own, depth)[0]
        rates[f"{pop} (own)"] = repeat(client, pop, own, depth)[0]
    return rates


def _beanstalkd(server: Server, theirs: int, own: int, depth: int) -> Rates:
    with Client(server) as client:
        steps = add_take_finish(client, own, depth, _slices(own))
    return dict(zip(("put (own)", "reserve (own)", "delete (own)"), steps, strict=True))


def _slices(requests: int) -> int:
    """A number that makes a slice about 3,200 jobs: 64 for each of 50 connections, two pipelines of 32."""
    return max(1, requests // 3_200)


_LOADS: dict[tuple[str, str], Callable[[Server, int, int, int], Rates]] = {
    ("penstock", SINGLE): _penstock,
    ("penstock", PIPELINE): _penstock,
    ("penstock", HUNDRED): _penstock_hundred,
    ("redis", SINGLE): _redis,
    ("redis", PIPELINE): _redis,
    ("redis", HUNDRED): _redis_hundred,
    ("beanstalkd", SINGLE): _beanstalkd,
    ("beanstalkd", PIPELINE): _beanstalkd,
}
