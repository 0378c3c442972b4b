"""One real node among peers that speak the original's bus, and the questions that tests ask about it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from tests.bus_messages import JobCopy
from tests.bus_peer import BusPeer
from tests.processes import NodeProcess, wait_until
from tests.raw_link import RawLink, Word


class NodeLine(NamedTuple):
    """One line of CLUSTER NODES."""

    id: bytes
    address: str
    flags: frozenset[str]
    ping_sent: int
    pong_received: int
    linked: bool


class BusCluster:
    """The node, its id, and the peers that have joined it. Links to its clients' port are closed at the end."""

    def __init__(self, node: NodeProcess, start_peer: Callable[..., BusPeer]) -> None:
        self.node = node
        self.id: bytes = node.call("CLUSTER", "MYID")
        self.peers: list[BusPeer] = []
        self._start_peer = start_peer
        self._links: list[RawLink] = []
        self._numbers = count(1)

    @property
    def peer(self) -> BusPeer:
        """The only peer, or the first."""
        return self.peers[0]

    def join(self, **options: Any) -> BusPeer:
        """Start a peer that joins, and wait until the node would replicate to it."""
        peer = self._start_peer(**options)
        assert peer.join(self.node.host, self.node.port) == self.id
        self.wait_until_known(peer)
        answered = len(peer.seen("PONG"))
        peer.send("PING")  # as every node does each second: it has a link on which it can confirm copies
        wait_until(lambda: len(peer.seen("PONG")) > answered)
        self.peers.append(peer)
        return peer

    def stranger(self) -> BusPeer:
        """Start a peer that connects and doesn't introduce itself."""
        peer = self._start_peer()
        peer.connect(self.node.host, self.node.port)
        return peer

    def bystander(self) -> BusPeer:
        """Start a peer that does nothing yet."""
        return self._start_peer()

    def link(self) -> RawLink:
        """Open a client connection, for what may block."""
        self._links.append(RawLink(self.node))
        return self._links[-1]

    def close(self) -> None:
        for link in self._links:
            link.close()

    # What the node knows of others

    def lines(self) -> dict[bytes, NodeLine]:
        """Read CLUSTER NODES."""
        found = {}
        for text in self.node.call("CLUSTER", "NODES").decode().splitlines():
            name, address, flags, ping_sent, pong_received, link = text.split(" ")
            assert link in {"connected", "disconnected"}
            found[name.encode()] = NodeLine(
                name.encode(),
                address,
                frozenset(flags.split(",")),
                int(ping_sent),
                int(pong_received),
                link == "connected",
            )
        return found

    def flags(self, peer: BusPeer) -> frozenset[str]:
        """Return the flags that the node has for a peer; none if it doesn't know it."""
        line = self.lines().get(peer.id)
        return line.flags if line else frozenset()

    def info(self) -> dict[str, str]:
        """Read CLUSTER INFO."""
        lines = self.node.call("CLUSTER", "INFO").decode().splitlines()
        return dict(line.removeprefix("cluster_").split(":") for line in lines)

    def reachable(self) -> int:
        return int(self.info()["reachable_nodes"])

    def wait_until_known(self, peer: BusPeer) -> None:
        """Wait until the node has done its part of a handshake, and its housekeeping has counted the new one."""
        wait_until(lambda: (line := self.lines().get(peer.id)) and line.flags == {"noflags"} and line.linked)
        wait_until(lambda: self.reachable() == len([1 for line in self.lines().values() if line.flags == {"noflags"}]))

    # What the node knows of jobs

    def show(self, job_id: bytes) -> dict[str, Any] | None:
        """Read SHOW; None for an unknown job."""
        reply = self.node.call("SHOW", job_id)
        if reply is None:
            return None
        return {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}

    def fact(self, job_id: bytes, name: str) -> Any:
        """Return one field of SHOW for a job that must be known."""
        facts = self.show(job_id)
        assert facts is not None, f"{job_id!r} is unknown"
        return facts[name]

    def state(self, job_id: bytes) -> str:
        """Return the state of a job, or `unknown`."""
        facts = self.show(job_id)
        return facts["state"].decode() if facts else "unknown"

    def wait_until_state(self, job_id: bytes, state: str) -> None:
        wait_until(lambda: self.state(job_id) == state)

    def holders(self, job_id: bytes) -> set[bytes]:
        return set(self.fact(job_id, "nodes-delivered"))

    def fetch(self, queue: bytes, *options: Word) -> list[list[Any]]:
        """Look for jobs without waiting."""
        return self.node.call("GETJOB", "NOHANG", *options, "FROM", queue) or []

    # Jobs on their way

    def replicate(self, peer: BusPeer, **fields: Any) -> JobCopy:
        """Have the node take a copy of a new job of a peer's, and wait for its confirmation."""
        job = peer.new_job(**{"nodes": (peer.id, self.id), "replicate": 2, **fields})
        peer.send("REPLJOB", jobs=(job,))
        peer.wait_for("GOTJOB", job_id=job.id, sender=self.id)
        return job

    def replicate_queued(self, peer: BusPeer, **fields: Any) -> JobCopy:
        """Have the node take a copy of a new job and queue it."""
        job = self.replicate(peer, **fields)
        peer.send("ENQUEUE", job_id=job.id)
        peer.fence()
        assert self.state(job.id) == "queued"
        return job

    def add(self, queue: bytes, *options: Word, body: bytes = b"body") -> bytes:
        """Add a job to the node of which every peer confirms a copy."""
        link = self.link()
        link.post("ADDJOB", queue, body, 0, "REPLICATE", len(self.peers) + 1, *options)
        for peer in self.peers:
            message = peer.wait_for("REPLJOB", where=lambda message: message.jobs[0].queue == queue)
            peer.send("GOTJOB", job_id=message.jobs[0].id)
        reply = link.reply()
        assert reply.startswith(b"+D-"), reply
        return reply[1:-2]

    def add_fetched(self, queue: bytes, *options: Word) -> bytes:
        """Add a job of which every peer has a copy, and take it from its queue."""
        job_id = self.add(queue, *options)
        assert [job[1] for job in self.fetch(queue)] == [job_id]
        return job_id

    def import_job(self, peer: BusPeer, **fields: Any) -> JobCopy:
        """Have a peer give the node a new job that only the peer holds."""
        job = peer.new_job(**fields)
        peer.send("YOURJOBS", jobs=(job,))
        peer.fence()
        return job

    def flush(self, peer: BusPeer) -> None:
        """Wait until the node has handled all that the peer sent, and the peer has all that the node sent it for that.

        The second half needs something that the node sends on the same link after the rest: a pause of a queue that
        nobody uses.
        """
        peer.fence()
        queue = b"flush-%d" % next(self._numbers)
        self.node.call("PAUSE", queue, "in", "BCAST")
        peer.wait_for("PAUSE", queue=queue)
