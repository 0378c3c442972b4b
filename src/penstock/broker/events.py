"""The events of a node: what happens to its jobs, as records for the data pipeline (docs/reference/events.md).

The core calls this port where something happens (core.node.EventsPort); the broker hands the records to the disk's
thread at the end of a turn, after the replies. Once a minute the length of each queue is noted.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from penstock.broker.clients import Client
from penstock.broker.config import Config
from penstock.broker.core.jobs import Job, attempt_of, is_out
from penstock.broker.core.node import Node
from penstock.events import EventWriter, Kind

log = logging.getLogger("penstock")

SAMPLE_MS: Final = 60_000
SAMPLED_AT_ONCE_MAX: Final = 1000  # queues a cron: about a millisecond
US_PER_MS: Final = 1000
US_PER_S: Final = 1_000_000
NS_PER_US: Final = 1000
ADDED: Final = int(Kind.ADDED)
RESERVED: Final = int(Kind.RESERVED)
ACKED: Final = int(Kind.ACKED)


class NodeEvents:
    """Records the events of one node."""

    def __init__(self, node: Node, writer: EventWriter, bodies_max: int = 0) -> None:
        self.writer = writer
        self._node = node
        self._bodies_max = bodies_max
        self._sampled_ms = node.now_ms
        self._to_sample: list[bytes] = []

    # The port (core.node.EventsPort)

    def added(self, jobs: list[Job]) -> None:
        """Jobs are accepted. They differ in id, creation time and body only."""
        node = self._node
        delay_us = jobs[0].rules.delay_s * US_PER_S
        rows = [
            (0, created := job.ctime // NS_PER_US, created + delay_us if delay_us else 0, len(job.body), job.id)
            for job in jobs
        ]
        at = (node.now_ms + node.wall_offset_ms) * US_PER_MS
        seq = self.writer.record_many(ADDED, jobs[0].queue, node.cluster.my_id, None, at, rows)
        if self._bodies_max:
            for number, job in enumerate(jobs, seq):
                if len(job.body) <= self._bodies_max:
                    self.writer.keep_body(number, job.body)

    def reserved(self, jobs: list[Job]) -> None:
        """Jobs of one queue are delivered to a client."""
        node = self._node
        offset_ms = node.wall_offset_ms
        rows = [
            (
                attempt_of(job),
                job.ctime // NS_PER_US,
                (job.requeue_at + offset_ms) * US_PER_MS if job.requeue_at else 0,
                len(job.body),
                job.id,
            )
            for job in jobs
        ]
        at = (node.now_ms + offset_ms) * US_PER_MS
        self.writer.record_many(RESERVED, jobs[0].queue, node.cluster.my_id, self._worker(), at, rows)

    def acked(self, job: Job) -> None:
        """A client has finished a job."""
        node = self._node
        at = (node.now_ms + node.wall_offset_ms) * US_PER_MS
        row = (attempt_of(job), job.ctime // NS_PER_US, 0, len(job.body), job.id)
        self.writer.record_many(ACKED, job.queue, node.cluster.my_id, self._worker(), at, [row])

    def acked_unknown(self, job_id: bytes) -> None:
        """A client has finished a job that this node doesn't know."""
        node = self._node
        self.writer.record(
            Kind.ACKED, job_id, at=node.wall_ms * US_PER_MS, node=node.cluster.my_id, worker=self._worker()
        )

    def queued(self, job: Job) -> None:
        """A delay is over, or a client put an active job into its queue."""
        self._record(Kind.QUEUED, job, _deliveries_of(job))

    def begun(self, job: Job) -> None:
        """Work on a job that was delivered ahead begins."""
        self._record(Kind.BEGUN, job, attempt_of(job), job.requeue_at)

    def extended(self, job: Job) -> None:
        """A lease has a later end."""
        self._record(Kind.EXTENDED, job, attempt_of(job), job.requeue_at)

    def nacked(self, job: Job, attempt: int, after_ms: int) -> None:
        """A client has returned a job."""
        self._record(Kind.NACKED, job, attempt, self._node.now_ms + after_ms if after_ms else 0)

    def requeued(self, job: Job, attempt: int) -> None:
        """A job's retry time or lease is over, or its reply never left the node."""
        self._record(Kind.REQUEUED, job, attempt)

    def expired(self, job: Job) -> None:
        """A job's time to live is over."""
        self._record(Kind.EXPIRED, job, _deliveries_of(job))

    def removed(self, job: Job) -> None:
        """A command has deleted a job."""
        self._record(Kind.REMOVED, job, _deliveries_of(job))

    def _record(self, kind: Kind, job: Job, attempt: int, until_ms: int = 0) -> None:
        node = self._node
        self.writer.record(
            kind,
            job.id,
            job.queue,
            at=node.wall_ms * US_PER_MS,
            created=job.ctime // NS_PER_US,
            until=(until_ms + node.wall_offset_ms) * US_PER_MS if until_ms else 0,
            attempt=attempt,
            node=node.cluster.my_id,
            worker=self._worker(),
            size=len(job.body),
        )

    def _worker(self) -> bytes | str | None:
        """Return the name of the client whose command runs, or its address; None: time or another node did it."""
        client = self._node.client
        if isinstance(client, Client):
            return client.name or client.address
        return None

    # The broker

    def flush(self) -> None:
        """Hand the records of a turn to the disk's thread; the cron takes what is left."""
        self.writer.flush(is_patient=True)

    def cron(self) -> None:
        """Ten times a second: note the lengths of queues when a minute is over."""
        node = self._node
        if node.now_ms - self._sampled_ms >= SAMPLE_MS:
            self._sampled_ms = node.now_ms
            self._to_sample = list(node.queues.by_name)
        if self._to_sample:
            names, self._to_sample = self._to_sample[:SAMPLED_AT_ONCE_MAX], self._to_sample[SAMPLED_AT_ONCE_MAX:]
            for name in names:
                queue = node.queues.by_name.get(name)
                if queue is not None:
                    self.writer.record(
                        Kind.SAMPLE, None, name, at=node.wall_ms * US_PER_MS, node=node.cluster.my_id, size=queue.length
                    )
        self.writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()


def _deliveries_of(job: Job) -> int:
    """Return how many deliveries of a job there were, with the one that it is out with."""
    return attempt_of(job) - (not is_out(job))


def open_events(config: Config, node: Node) -> NodeEvents | None:
    """Begin to record events, if the configuration says so."""
    if not config.events_dir:
        return None
    writer = EventWriter(
        Path(config.events_dir).absolute(),
        f"node-{node.cluster.my_id.decode()}",
        bytes_max=config.events_max_bytes,
        on_problem=lambda text: log.warning("%s", text),
    )
    return NodeEvents(node, writer, config.events_bodies)
