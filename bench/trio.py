"""Three nodes of one cluster, and what a load costs all of them: processor time, messages and bytes on the bus.

A load is over for its client before it is over for the cluster: copies and acknowledgements are still on their way. So
a cost is taken from a cluster at rest to a cluster at rest, when each node holds as many jobs as must be left.

Messages are those that the nodes count (CLUSTER INFO). Bytes are those that the kernel counts for the sockets of the
bus (`ss`), without the headers of TCP and IP. Both include the gossip of that time, six messages of 248 bytes a second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.client import Rate
from bench.servers import BUS_OFFSET, EVERYSEC, HOST, NotRunError, Server, running

NODES = 3
MEET_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 30.0
POLL_S = 0.02
PROBE_QUEUE = "probe"
COMPLAINT_LINES = 20
COUNTED = re.compile(r"\bbytes_(?:received|acked):(\d+)")


@dataclass
class Member(Server):
    """A node of a cluster: what a load on it costs is what all of them spend."""

    members: list[Member] = field(default_factory=list)

    def cpu_s(self) -> float:
        """Processor seconds used so far by all nodes together."""
        return sum(Server.cpu_s(node) for node in self.members)


@dataclass(frozen=True)
class Cost:
    """What a load achieved, with the processor time of all nodes, and what went over the bus for it."""

    rate: Rate
    messages: int
    bus_bytes: int | None  # None: nothing here can count them

    @property
    def cpu_s_for_10k(self) -> float:
        """Processor seconds of all nodes together for 10,000 jobs."""
        return self.rate.server_cpu_s / self.rate.items * 10_000


class Trio:
    """Three nodes that have met."""

    def __init__(self, servers: list[Server]) -> None:
        self.nodes: list[Member] = []
        for server in servers:
            fields = (server.kind, server.port, server.directory, server.process, server.start_s)
            self.nodes.append(Member(*fields, members=self.nodes))

    def meet(self) -> None:
        """Introduce the nodes to each other, and wait until each of them can replicate to the others."""
        for number, node in enumerate(self.nodes):
            for other in self.nodes[number + 1 :]:
                _expect(node, b"+OK", "CLUSTER", "MEET", HOST, str(other.port))
        limit_s = time.perf_counter() + MEET_TIMEOUT_S
        for node in self.nodes:
            while not (reply := _probe(node)).startswith(b"+D-"):
                if time.perf_counter() > limit_s:
                    raise NotRunError(f"the nodes did not find each other: {reply.decode(errors='replace')}")
                time.sleep(POLL_S)
            _expect(node, b":1", "ACKJOB", reply[1:])
        self.settle(0)

    def jobs(self) -> list[int]:
        """How many jobs each node holds."""
        return [int(node.info("registered_jobs") or -1) for node in self.nodes]

    def settle(self, jobs: int) -> None:
        """Wait until each node holds `jobs` jobs."""
        limit_s = time.perf_counter() + SETTLE_TIMEOUT_S
        while (found := self.jobs()) != [jobs] * NODES:
            if time.perf_counter() > limit_s:
                raise NotRunError(f"the nodes hold {found} jobs after {SETTLE_TIMEOUT_S:.0f} s, not {jobs} each")
            time.sleep(POLL_S)

    def messages(self) -> int:
        """Messages that all nodes have sent on the bus so far."""
        total = 0
        for node in self.nodes:
            found = re.search(rb"cluster_stats_messages_sent:(\d+)", node.command("CLUSTER", "INFO"))
            if found is None:
                raise NotRunError("CLUSTER INFO has no cluster_stats_messages_sent")
            total += int(found[1])
        return total

    def bus_bytes(self) -> int | None:
        """Bytes on all links of the bus so far, or None where `ss` can't tell.

        A link has two ends, both on this machine: the one that was called is asked for what came and what went.
        """
        if shutil.which("ss") is None:
            return None
        ports = " or ".join(f"sport = :{node.port + BUS_OFFSET}" for node in self.nodes)
        line = ["ss", "-tinH", "state", "established", f"( {ports} )"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=20, check=False)
        return counted_bytes(done.stdout) if done.returncode == 0 else None

    def cost(self, load: Callable[[], Rate], jobs: int) -> Cost:
        """Run a load, wait until each node holds the jobs, and return what all that took."""
        messages, bus_bytes, cpu_s = self.messages(), self.bus_bytes(), self.nodes[0].cpu_s()
        rate = load()
        self.settle(jobs)
        cpu_s = self.nodes[0].cpu_s() - cpu_s
        messages, after = self.messages() - messages, self.bus_bytes()
        moved = after - bus_bytes if after is not None and bus_bytes is not None else None
        return Cost(dataclasses.replace(rate, server_cpu_s=cpu_s), messages, moved)

    def complaints(self) -> list[str]:
        """What the nodes have logged: at their level that is nothing but warnings and worse."""
        found = []
        for node in self.nodes:
            lines = (node.directory / "bench.log").read_text(errors="replace").splitlines()
            found += [f"node {node.port}: {line}" for line in lines[-COMPLAINT_LINES:] if line.strip()]
        return found


def counted_bytes(text: str) -> int:
    """The sum over all sockets that `ss -ti` lists of what was received and what the other end has taken."""
    return sum(int(number) for number in COUNTED.findall(text))


def _probe(node: Server) -> bytes:
    return node.command("ADDJOB", PROBE_QUEUE, "probe", "1000", "REPLICATE", str(NODES))


def _expect(node: Server, wanted: bytes, *words: str | bytes) -> None:
    reply = node.command(*words)
    if reply != wanted:
        raise NotRunError(f"{words[0]!r} was answered by {reply.decode(errors='replace')}")


@contextlib.contextmanager
def running_trio(program: Path, journal: bool = False, fsync: str = EVERYSEC) -> Iterator[Trio]:
    """A cluster for the length of a block. What its nodes complained about goes to standard error."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(running("penstock", journal, program, fsync)) for _ in range(NODES)]
        trio = Trio(servers)
        try:
            trio.meet()
            yield trio
        finally:
            for complaint in trio.complaints():
                sys.stderr.write(complaint + "\n")
