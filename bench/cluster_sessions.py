"""What is done to one fresh cluster, or to the redis-server beside it, in one round: a session, which yields figures.

A session is named by what is loaded, the shape of the load and the journal, which is the same on all nodes. A figure
is named by what was done and what was measured, such as `add rate`:

    add         ADDJOB REPLICATE 3 (ADDJOBS of 100), or LPUSH, by redis-benchmark on the first node
    here        get and ack on the first node, where the jobs were added, by our workers; RPOP by our client
    elsewhere   get and ack on the second node, which has to fetch the jobs from the first
    flow        get and ack on the second node, while the jobs are added on the first
    one add     adds on one connection, one after another
    handoff     add on the first node to a consumer that waits on the second, with 1 or 3 copies
    first       the same, each on a queue that never had a job
    late        GETJOB on the second node for a job that has been waiting on the first

    rate, cpu   jobs a second; processor seconds of all nodes for 10,000 jobs, until the cluster is at rest again
    messages    on the bus, a job; `bytes` likewise
    servers     how busy the servers were all together, in cores; `client` likewise
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.client import Client, Rate
from bench.commands import COMMANDS, MANY
from bench.handoff import one_by_one, to_late_consumer, to_waiting_consumer
from bench.latency import quantile
from bench.load import CONNECTIONS, acknowledge, redis_benchmark, repeat
from bench.servers import ALWAYS, EVERYSEC, PENSTOCK, NotRunError, Server, running
from bench.sessions import DEPTH, HUNDRED, PIPELINE, QUICK_DIVISOR, SINGLE
from bench.trio import Cost, Trio, running_trio
from bench.workers import Workers

Figures = dict[str, float]

OFF = "off"
JOURNALS = (OFF, EVERYSEC, ALWAYS)
LATENCY = "latency"
TRIO, REDIS = "three nodes", "redis"
QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}
ALWAYS_DIVISOR = 4  # every turn waits for the disk


@dataclass(frozen=True)
class Sizes:
    """How much of everything: commands of adds and of gets here (elsewhere takes the rest), single jobs to be timed."""

    adds: int
    gets: int
    samples: int = 0

    def divided(self, divisor: int) -> Sizes:
        """The same shape, smaller; a pipeline of 32 still comes out even."""
        return Sizes(self.adds // divisor, self.gets // divisor, self.samples // divisor)


SIZES = {
    (TRIO, SINGLE): Sizes(20_000, 10_000),
    (TRIO, PIPELINE): Sizes(64_000, 32_000),
    (TRIO, HUNDRED): Sizes(1_000, 500),
    (TRIO, LATENCY): Sizes(4_000, 0, 300),
    (REDIS, SINGLE): Sizes(60_000, 60_000),
    (REDIS, PIPELINE): Sizes(480_000, 480_000),
    (REDIS, HUNDRED): Sizes(20_000, 20_000),
    (REDIS, LATENCY): Sizes(4_000, 0),
}


@dataclass(frozen=True)
class ClusterSession:
    """Three nodes or a redis-server, with a journal or without, under a load of one shape."""

    kind: str
    shape: str
    journal: str = OFF

    @property
    def name(self) -> str:
        """For the progress line and for notes."""
        return f"{self.kind}, journal {self.journal}, {self.shape}"

    def sizes(self, quick: bool) -> Sizes:
        """How much is asked of it."""
        divisor = (QUICK_DIVISOR if quick else 1) * (ALWAYS_DIVISOR if self.journal == ALWAYS else 1)
        return SIZES[self.kind, self.shape].divided(divisor)

    def run(self, quick: bool, program: Path = PENSTOCK) -> Figures:
        """Starts the servers, loads them, stops them."""
        sizes, is_on = self.sizes(quick), self.journal != OFF
        fsync = self.journal if is_on else EVERYSEC
        if self.kind == REDIS:
            with running("redis", is_on, program, fsync) as server:
                return load_redis(server, self.shape, sizes)
        with running_trio(program, is_on, fsync) as trio:
            if self.shape == LATENCY:
                return time_trio(trio, sizes, adds_only=is_on)
            return load_trio(trio, self.shape, sizes, adds_only=is_on)


# Three nodes.


def load_trio(trio: Trio, shape: str, sizes: Sizes, adds_only: bool) -> Figures:
    """Adds by redis-benchmark; then, unless it is about adds only, gets and acks here and elsewhere."""
    first, second, depth = trio.nodes[0], trio.nodes[1], DEPTH[shape]
    add = "ADDJOBS x3" if shape == HUNDRED else "ADDJOB x3"
    held = sizes.adds * COMMANDS[add].items
    added = trio.cost(lambda: redis_benchmark(first, add, sizes.adds, depth), held)
    figures = _figures("add", added)
    if adds_only:
        return figures
    if shape == HUNDRED:
        taken = trio.cost(lambda: _take_hundreds(first, sizes.gets), held - _hundreds(sizes.gets))
        return figures | _figures("here", taken)
    # Elsewhere all that is left is taken: a node that fetches jobs fetches more than it needs at once, and the cost of
    # those would otherwise be counted for others.
    left = held - sizes.gets
    for what, node, jobs, after in (("here", first, sizes.gets, left), ("elsewhere", second, left, 0)):
        with Workers(node) as workers:
            figures |= _figures(what, trio.cost(partial(workers.work, jobs, depth), after))
    return figures | _figures("flow", trio.cost(partial(_flow, first, second, sizes.gets, depth), 0))


def _flow(first: Server, second: Server, jobs: int, depth: int) -> Rate:
    """Jobs are added on one node and taken on another at the same time; the rate is that of the consumers."""
    with Workers(second) as workers, ThreadPoolExecutor(1) as pool:
        added = pool.submit(redis_benchmark, first, "ADDJOB x3", jobs, depth)
        taken = workers.work(jobs, depth)
        added.result()
    return taken


def _take_hundreds(server: Server, requests: int) -> Rate:
    with Client(server) as client:
        taken, replies = repeat(client, "GETJOB 100", requests, 1)
        acked = acknowledge(client, replies, 1, MANY)
    if acked.items != taken.items:
        raise NotRunError(f"{taken.items} jobs came, and {acked.items} of them could be acknowledged")
    return dataclasses.replace(taken + acked, items=taken.items)


def _hundreds(requests: int) -> int:
    """Return the number of jobs in this number of commands, spread evenly over the connections."""
    return max(1, requests // CONNECTIONS) * CONNECTIONS * MANY


def _figures(what: str, cost: Cost) -> Figures:
    rate = cost.rate
    figures = {
        f"{what} rate": rate.items_per_s,
        f"{what} cpu": cost.cpu_s_for_10k,
        f"{what} messages": cost.messages / rate.items,
        f"{what} servers": rate.server_share,
        f"{what} client": rate.client_share,
    }
    if cost.bus_bytes is not None:
        figures[f"{what} bytes"] = cost.bus_bytes / rate.items
    return figures


def time_trio(trio: Trio, sizes: Sizes, adds_only: bool) -> Figures:
    """The time of single jobs."""
    first, second = trio.nodes[:2]
    times: list[float] = []
    cost = trio.cost(lambda: _one_add(first, "ADDJOB x3", sizes.adds, times), sizes.adds)
    figures = _figures("one add", cost) | _quantiles("one add", times)
    if adds_only:
        return figures
    few = max(3, sizes.samples // 3)
    for replicate in (1, 3):
        handed = to_waiting_consumer(first, second, sizes.samples, replicate, fresh=False)
        handed_first = to_waiting_consumer(first, second, few, replicate, fresh=True)
        figures |= _quantiles(f"handoff {replicate}", handed) | _quantiles(f"first {replicate}", handed_first)
    return figures | _quantiles("late", to_late_consumer(first, second, few, 1))


def _one_add(server: Server, command: str, samples: int, times: list[float]) -> Rate:
    times += one_by_one(server, COMMANDS[command].request, samples)
    return Rate(samples, sum(times) / 1000, 0.0, 0.0)


def _quantiles(what: str, times: list[float]) -> Figures:
    return {f"{what} {name}": quantile(times, share) for name, share in QUANTILES.items()}


# redis-server.


def load_redis(server: Server, shape: str, sizes: Sizes) -> Figures:
    """The same bodies pushed and popped."""
    if shape == LATENCY:
        times: list[float] = []
        _one_add(server, "LPUSH 64 B", sizes.adds, times)
        return _quantiles("one add", times)
    push, pop = ("LPUSH 100 64 B", "RPOP 100 64 B") if shape == HUNDRED else ("LPUSH 64 B", "RPOP 64 B")
    depth = DEPTH[shape]
    figures = _redis_figures("add", server, lambda: redis_benchmark(server, push, sizes.adds, depth))
    with Client(server) as client:
        return figures | _redis_figures("here", server, lambda: repeat(client, pop, sizes.gets, depth)[0])


def _redis_figures(what: str, server: Server, load: Callable[[], Rate]) -> Figures:
    cpu_s = server.cpu_s()
    rate = load()
    return _figures(what, Cost(dataclasses.replace(rate, server_cpu_s=server.cpu_s() - cpu_s), 0, None))
