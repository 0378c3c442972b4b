# Written by scripts/blocking from ../aio/values.py: change that, then run `make blocking`.
"""Texts under keys: each is one job with a TTL in a queue of its own, which is only ever peeked at.

    put       HELLO; QPEEK at each node; ADDJOBS; ACKJOB for what was there before
    get       HELLO; QPEEK at each node

A command of a put is sent for all texts in one pipeline. HELLO comes first, since a node that has just joined may have
the newest text of a key. While one is replaced there are two jobs. Then the newest counts: nodes list their own jobs by
age, and jobs on different nodes are compared as `peek` does it, which also finds those whose node can't be reached.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.client.blocking import ClusterClient
from penstock.client.requests import ADD_BYTES_MAX
from penstock.client.values import jobs_of
from penstock.errors import ConnectionLost, ReplyError
from penstock.job import JobState, NewJob
from penstock.queues.blocking.driver import Driver, NewValue
from penstock.queues.stores.disque.blocking.link import DisqueLink
from penstock.queues.stores.disque.blocking.nodes import Nodes, values
from penstock.queues.stores.disque.blocking.scan import Scan
from penstock.queues.stores.disque.jobs import VALUE_PREFIX
from penstock.queues.stores.disque.terms import ADD_MS, Defaults

JOBS_MAX = 100  # of one key: several only while it is being replaced


class _ValueJob(NamedTuple):
    """A job that has the text of a key."""

    id: str
    node: str
    body: bytes


class Values:
    """`put_values`, `value` and `remove_value` of the driver."""

    def __init__(self, driver: Driver, link: DisqueLink, nodes: Nodes, scan: Scan, defaults: Defaults) -> None:
        self._driver, self._link, self._nodes, self._scan, self._defaults = driver, link, nodes, scan, defaults

    def put(self, new: Sequence[NewValue]) -> None:
        jobs: dict[str, NewJob] = {}  # by queue: of several texts for one key the last is kept
        for one in new:
            body = one.text.encode()
            jobs[VALUE_PREFIX + one.key] = NewJob(None, body, ttl_s=max(1.0, one.ttl_ms / 1000), prepared=body)
        with self._link.client() as client:
            before = self._find(client, list(jobs))
            for some in _batches(jobs):
                self._add(client, some)
            with suppress(ConnectionLost):  # the new text is there, and the old one ends with its time
                self._end(client, [job for found in before for job in found])

    def get(self, key: str) -> str | None:
        with self._link.client() as client:
            (found,) = self._find(client, [VALUE_PREFIX + key])
        return found[-1].body.decode() if found else None

    def remove(self, key: str) -> None:
        with self._link.client() as client:
            (found,) = self._find(client, [VALUE_PREFIX + key])
            self._end(client, found)

    def _find(self, client: ClusterClient, queues: Sequence[str]) -> list[list[_ValueJob]]:
        """Return the jobs of each queue, the newest last."""
        found: list[list[_ValueJob]] = [[] for _ in queues]
        unsure: set[int] = set()  # places of queues whose jobs must be looked at more closely
        for node in sorted(node.id for node in (client.hello()).nodes):
            view = client.at(node).without_retry()
            try:
                replies = values(view.call_many([("QPEEK", queue, JOBS_MAX) for queue in queues]))
            except ConnectionLost:
                unsure.update(range(len(queues)))
                continue
            for place, reply in enumerate(replies):
                if not reply:
                    continue
                if found[place]:
                    unsure.add(place)
                found[place] += [_ValueJob(job.id, node, bytes(job.body)) for job in jobs_of(reply, node)]
        for place in unsure:
            page = self._scan.peek(queues[place], JobState.READY, JOBS_MAX, None)
            found[place] = [_ValueJob(job.id, job.node or "", job.body or b"") for job in page.jobs]
        return found

    def _add(self, client: ClusterClient, jobs: dict[str, NewJob]) -> None:
        size = self._nodes.size(client)
        commands = [
            ("ADDJOBS", queue, ADD_MS, *self._defaults.terms(job, None).words(size), "BODIES", job.prepared)
            for queue, job in jobs.items()
        ]
        for queue, reply in zip(jobs, client.call_many(commands), strict=True):
            if isinstance(reply, ReplyError):  # nodes were removed from the cluster, for one
                self._driver.push(queue, [jobs[queue]], None)

    def _end(self, client: ClusterClient, jobs: Sequence[_ValueJob]) -> None:
        by_node: dict[str, list[str]] = {}
        for job in jobs:
            by_node.setdefault(job.node, []).append(job.id)
        for node, ids in by_node.items():
            self._nodes.end(client.at(node), ids)


def _batches(jobs: dict[str, NewJob]) -> Iterator[dict[str, NewJob]]:
    """Yield the jobs in parts that one pipeline may have."""
    batch: dict[str, NewJob] = {}
    size = 0
    for queue, job in jobs.items():
        if batch and size + len(job.body) > ADD_BYTES_MAX:
            yield batch
            batch, size = {}, 0
        batch[queue] = job
        size += len(job.body)
    if batch:
        yield batch
