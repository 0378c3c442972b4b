"""What changes as jobs pile up: `python -m bench.growth`.

Memory a job, the rates with a thousand and with a million waiting jobs, the time to load a journal, and the
latency of PING at rest, under load and during a rewrite. Each part is a function that returns its lines; a
part that cannot run says why in its place.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.client import NOTHING, Client, Rate, batches_in, even_plans
from bench.commands import BODY, COMMANDS
from bench.latency import QUANTILES, idle_pings, loaded_pings, quantile, rewrite_pings, settle
from bench.load import acknowledge, preload, repeat
from bench.report import NO_BAR, Bar, Line, Progress, Report, command_used, machine, options
from bench.servers import NotRunError, Server, encode, running, start, stop_on_sigterm

FEW = 1_000
DEPTH = 32
CYCLE_CONNECTIONS = 10
CYCLE_REQUESTS = 1_600
CYCLES_A_ROUND = 15
TIMERS = 100_000
TIMER_DELAY_S = 4
TIMER_QUEUE = "timers"
LOAD_TIMEOUT_S = 600.0
# Equal cost is the claim; the allowance is for noise, and for caches that a million jobs do not fit.
SAME = Bar(ratio_min=0.85)


@dataclass(frozen=True)
class Setting:
    """What the options chose."""

    program: Path
    jobs: int
    rounds: int
    ping_s: float
    timers: int


def memory(setting: Setting) -> list[Line]:
    """Growth of the process for each job beyond its body, beside what INFO accounts for."""
    add = {"penstock": "ADDJOB", "redis": "LPUSH", "beanstalkd": "put"}
    grown: dict[str, float] = {}
    used: dict[str, float] = {}
    for kind, command in add.items():
        with running(kind, program=setting.program) as server:
            preload(server, command, FEW)
            rss_bytes, used_bytes = server.rss_bytes(), _used_memory(server)
            jobs = preload(server, command, setting.jobs).items
            grown[kind] = (server.rss_bytes() - rss_bytes) / jobs - len(BODY)
            used[kind] = (_used_memory(server) - used_bytes) / jobs - len(BODY)
    ours = [grown["penstock"]]
    return [
        Line("memory a job / redis-server", "bytes", ours, [grown["redis"]], Bar(ours_max=500)),
        Line("memory a job / beanstalkd", "bytes", ours, [grown["beanstalkd"]]),
        Line("used_memory a job / redis-server", "bytes", [used["penstock"]], [used["redis"]]),
    ]


def _used_memory(server: Server) -> int:
    if server.kind == "beanstalkd":
        return 0
    return int(server.info("used_memory") or 0)


def start_up(setting: Setting) -> list[Line]:
    """From the start of the process to the first PONG."""
    line = Line("start to first PONG / redis-server", "s", bar=Bar(ours_max=1.0))
    for _ in range(setting.rounds):
        for kind, samples in (("penstock", line.ours), ("redis", line.peer)):
            with running(kind, program=setting.program) as server:
                samples.append(server.start_s)
    return [line]


def flatness(setting: Setting) -> list[Line]:
    """The same small load by turns on a server with a million waiting jobs and on one with a thousand."""
    names = ("ADDJOB", "GETJOB", "ACKJOB")
    lines = [Line(f"{name} at {setting.jobs:,} / at {FEW:,} waiting", bar=SAME) for name in names]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(running("penstock", program=setting.program)) for _ in range(2)]
        clients = [stack.enter_context(Client(server, CYCLE_CONNECTIONS)) for server in servers]
        preload(servers[0], "ADDJOB", setting.jobs)
        preload(servers[1], "ADDJOB", FEW)
        for _ in range(setting.rounds):
            many, few = _cycles(clients)
            for line, ours, peer in zip(lines, many, few, strict=True):
                line.ours.append(ours.items_per_s)
                line.peer.append(peer.items_per_s)
        lines.append(_timers(setting, clients))
    return lines


def _cycles(clients: list[Client]) -> list[list[Rate]]:
    """Short loads of adds, gets and acks that leave as many jobs waiting as before; each client's rates."""
    sums = [[NOTHING] * 3 for _ in clients]
    for cycle in range(CYCLES_A_ROUND):
        order = list(enumerate(clients))
        for index, client in order if cycle % 2 else reversed(order):
            added, _ = repeat(client, "ADDJOB", CYCLE_REQUESTS, DEPTH)
            taken, replies = repeat(client, "GETJOB", CYCLE_REQUESTS, DEPTH)
            acked = acknowledge(client, replies, DEPTH)
            sums[index] = [total + new for total, new in zip(sums[index], (added, taken, acked), strict=True)]
    return sums


def _timers(setting: Setting, clients: list[Client]) -> Line:
    """Delayed jobs that become due together: how many of them a processor second of the server queues."""
    line = Line(f"timers a processor second at {setting.jobs:,} / at {FEW:,} waiting", bar=SAME)
    for client, samples in zip(clients, (line.ours, line.peer), strict=True):
        server = client.server
        request = encode("ADDJOB", TIMER_QUEUE, BODY, "0", "DELAY", str(TIMER_DELAY_S))
        plans = even_plans(request, setting.timers, DEPTH, len(client.connections))
        delayed = batches_in(plans) * DEPTH
        client.run(plans, COMMANDS["ADDJOB"].reply, DEPTH, delayed)
        if server.command("QLEN", TIMER_QUEUE) != b":0":
            line.note = "not run: the adds took longer than the delay"
            return line
        cpu_s = server.cpu_s()
        _await_length(server, TIMER_QUEUE, delayed)
        samples.append(delayed / max(server.cpu_s() - cpu_s, 0.01))
    return line


def _await_length(server: Server, queue: str, length: int) -> None:
    limit_s = time.perf_counter() + 60
    while server.command("QLEN", queue) != b":%d" % length:
        if time.perf_counter() > limit_s:
            raise NotRunError(f"delayed jobs were not queued: QLEN {queue} stays below {length}")
        time.sleep(0.1)


def journal_load(setting: Setting) -> list[Line]:
    """A journal of a million jobs: the rate of their adds, and of reading them back at the next start."""
    with tempfile.TemporaryDirectory(prefix="bench-journal-") as name:
        server = start("penstock", True, Path(name), setting.program)
        try:
            added = preload(server, "ADDJOB", setting.jobs)
            with contextlib.suppress(NotRunError, OSError):
                server.command("SHUTDOWN")
            server.wait()
            server = start("penstock", True, Path(name), setting.program, LOAD_TIMEOUT_S)
            loaded = int(server.info("registered_jobs") or 0)
        finally:
            server.stop()
    line = Line("journal load / adds, with start", ours=[added.items / server.start_s], bar=Bar(ratio_min=1.0))
    line.peer = [added.items_per_s]
    if loaded < added.items:
        line.note = f"MISSED: {loaded:,} of {added.items:,} jobs came back"
    return [line]


def ping(setting: Setting) -> list[Line]:
    """PING at a million jobs, and at a million list items of redis-server; journals on."""
    found: dict[str, dict[str, list[float]]] = {}
    for kind, add in (("penstock", "ADDJOB"), ("redis", "LPUSH")):
        with running(kind, journal=True, program=setting.program) as server:
            preload(server, add, setting.jobs)
            settle(server)
            found[kind] = {
                "idle": idle_pings(server, setting.ping_s),
                "during a rewrite": rewrite_pings(server, setting.ping_s),
                "under load": loaded_pings(server, add, setting.ping_s),
            }
    lines = []
    for state, latencies in found["penstock"].items():
        for name, share in QUANTILES.items():
            judged = name == "p99.9" and state != "under load"
            bar = Bar(ours_max=50.0, ratio_max=5.0) if judged else NO_BAR
            ours, peer = quantile(latencies, share), quantile(found["redis"][state], share)
            lines.append(Line(f"PING {name} {state} / redis-server", "ms", [ours], [peer], bar))
    return lines


PARTS: dict[str, Callable[[Setting], list[Line]]] = {
    "start": start_up,
    "memory": memory,
    "flatness": flatness,
    "journal load": journal_load,
    "ping": ping,
}


def lines_of(parts: list[str], setting: Setting) -> Iterator[Line]:
    """The lines of all parts, with one that gives the reason for a part that failed."""
    progress = Progress(len(parts))
    for name in parts:
        progress.step(name)
        try:
            yield from PARTS[name](setting)
        except (NotRunError, OSError) as error:
            yield Line(name, note=f"not run: {error}")
    progress.end()


def main() -> None:
    """Runs the chosen parts and shows their lines."""
    parser = options(f"How the broker fares as jobs pile up. Parts: {', '.join(PARTS)}.")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="how many jobs pile up")
    chosen = parser.parse_args()
    stop_on_sigterm()
    jobs = min(chosen.jobs, 100_000) if chosen.quick else chosen.jobs
    timers = TIMERS // 10 if chosen.quick else TIMERS
    setting = Setting(chosen.penstock, jobs, chosen.rounds, 2.0 if chosen.quick else 10.0, timers)
    parts = [name for name in PARTS if re.search(chosen.only, name, re.IGNORECASE)]
    facts = machine(chosen.penstock)
    lines = list(lines_of(parts, setting))
    report = Report(f"Growth to {jobs:,} jobs", command_used("bench.growth"), facts, lines)
    report.show()
    report.write(chosen.markdown, chosen.json)


if __name__ == "__main__":
    main()
