"""The two ways to load a server: redis-benchmark, and the client of this package.

redis-benchmark is the judge where it can send the command, since nobody doubts it. It sends fixed words
only, so that acknowledgements (fresh ids) and beanstalkd need `bench.client`.
"""

from __future__ import annotations

import csv
import resource
import subprocess
import time

from bench.client import NOTHING, Client, Rate, batches_in, even_plans, grouped_plans
from bench.commands import (
    ACK_MANY,
    ACK_ONE,
    COMMANDS,
    DELETED,
    MANY,
    QUEUE,
    ack_requests,
    delete_requests,
)
from bench.servers import HOST, NotRunError, Server

CONNECTIONS = 50
LOAD_TIMEOUT_S = 300.0


def redis_benchmark_command(server: Server, words: tuple[str, ...], requests: int, depth: int) -> list[str]:
    """The command line of one redis-benchmark run."""
    options = ["-h", HOST, "-p", str(server.port), "-c", str(CONNECTIONS), "-n", str(requests)]
    return ["redis-benchmark", *options, "-P", str(depth), "-q", "--csv", *words]


def redis_benchmark(server: Server, name: str, requests: int, depth: int) -> Rate:
    """The rate that redis-benchmark reports for a command of the table, in items per second."""
    command = COMMANDS[name]
    if command.words is None:
        raise ValueError(f"redis-benchmark cannot send {name}")
    line = redis_benchmark_command(server, command.words, requests, depth)
    server_cpu_s, begin_s, client_cpu_s = server.cpu_s(), time.perf_counter(), _children_cpu_s()
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise NotRunError("redis-benchmark is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise NotRunError(f"redis-benchmark {name} took over {LOAD_TIMEOUT_S:.0f} s") from error
    spent_s = time.perf_counter() - begin_s
    wall_s = requests / _requests_per_s(done, name)
    # The processor times span its start and end too: they are scaled to the part that it measured.
    scale = wall_s / spent_s
    server_cpu_s = (server.cpu_s() - server_cpu_s) * scale
    client_cpu_s = (_children_cpu_s() - client_cpu_s) * scale
    return Rate(requests * command.items, wall_s, server_cpu_s, client_cpu_s)


def _requests_per_s(done: subprocess.CompletedProcess[str], name: str) -> float:
    rows = [row for row in csv.DictReader(done.stdout.splitlines()) if row.get("rps")]
    if done.returncode or not rows:
        complaint = (done.stderr.strip() or "no figures").splitlines()[-1]
        raise NotRunError(f"redis-benchmark {name}: {complaint[:120]}")
    return float(rows[-1]["rps"])


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def repeat(client: Client, name: str, requests: int, depth: int) -> tuple[Rate, list[list[bytes]]]:
    """A command of the table, over and over, by our own client; the replies come along for their ids."""
    command = COMMANDS[name]
    plans = even_plans(command.request, requests, depth, len(client.connections))
    sent = batches_in(plans) * depth
    return client.run(plans, command.reply, depth, sent * command.items)


def acknowledge(client: Client, replies: list[list[bytes]], depth: int, many: int = 1) -> Rate:
    """ACKJOB for what GETJOB answered, one or a hundred ids a command."""
    plans = grouped_plans([ack_requests(own, many) for own in replies], depth)
    reply = ACK_MANY if many == MANY else ACK_ONE
    return client.run(plans, reply, depth, batches_in(plans) * depth * many)[0]


def delete(client: Client, replies: list[list[bytes]], depth: int) -> Rate:
    """beanstalkd's delete, each job by the connection that reserved it."""
    plans = grouped_plans([delete_requests(own) for own in replies], depth)
    return client.run(plans, DELETED, depth, batches_in(plans) * depth)[0]


def add_take_finish(client: Client, requests: int, depth: int, slices: int) -> tuple[Rate, Rate, Rate]:
    """Adds all jobs, then takes and finishes them slice by slice, as workers would; each step is timed.

    A delete of beanstalkd costs more, the more jobs its connection holds reserved, hence the slices;
    Penstock is measured by the same steps.
    """
    beanstalkd = client.server.kind == "beanstalkd"
    add, take = ("put", "reserve") if beanstalkd else ("ADDJOB", "GETJOB")
    added = repeat(client, add, requests, depth)[0]
    taken, finished = NOTHING, NOTHING
    for _ in range(slices):
        rate, replies = repeat(client, take, added.items // slices, depth)
        taken += rate
        finished += delete(client, replies, depth) if beanstalkd else acknowledge(client, replies, depth)
    return added, taken, finished


def preload(server: Server, name: str, requests: int) -> Rate:
    """Fills a queue quickly: pipelines of 32 on a few connections."""
    with Client(server, connections=10) as client:
        return repeat(client, name, requests, 32)[0]


def expect_waiting(server: Server, least: int) -> None:
    """Makes sure that a load of adds was not just a load of errors."""
    asked = ("LLEN", QUEUE) if server.kind == "redis" else ("QLEN", QUEUE)
    answer = server.command(*asked)
    if not answer.startswith(b":") or int(answer[1:]) < least:
        raise NotRunError(f"{asked[0]} says {answer.decode()} after {least} adds")
