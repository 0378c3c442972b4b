# Written by scripts/blocking from ../aio/claims.py: change that, then run `make blocking`.
"""Claims of a cluster: what a key holds is recorded in a job, so that it outlives the node that gave the leases.

A key of a queue has a queue of its own, `__claim__:QUEUE:KEY`, with one job that is never fetched. Its body is JSON:

    node    the id of the node that gave the leases
    at      when it was written, by the clock of the writer, in milliseconds; the latest record counts
    jobs    of each job: its id, the number of its lease, and its two counters when it was leased
    ctime   of each job: when it was added, in nanoseconds, or null

To claim again is to lease the same ids again (LEASE), with new numbers: those that are still held, and those that went
back to their queue when their lease was over and were not delivered since, as their counters show. No others come in
their place, and what was left out once is no longer the key's: an ack of the key ends no job that it doesn't hold.

Several processes may use one key at a time: a batch, and what extends its leases. So an extension takes no lease from
others, and writes only if it had to lease jobs again. A process that is killed between the first leases and the record
leaves jobs that come back when their leases are over.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.client.blocking import ClusterClient
from penstock.client.values import Job
from penstock.errors import OutcomeUnknown
from penstock.job import StoredJob
from penstock.queues.stores.disque.blocking.link import DisqueLink
from penstock.queues.stores.disque.blocking.nodes import Nodes
from penstock.queues.stores.disque.jobs import CLAIM_PREFIX, NOT_LEASED, OK, fetched_jobs, leased_jobs
from penstock.queues.stores.disque.terms import Defaults, copies_of

ACK_MS = 10_000  # of a lease that only lasts until the ack
WRITE_ATTEMPTS = 5  # of a record, when the node goes away under it
RECORD_TTL_S = 365 * 24 * 3600  # a key that is not used for a year belongs to a query that was given up
ALIVE = ("wait-repl", "active", "queued")


@dataclass(slots=True)
class _ClaimedJob:
    """A job under a key."""

    id: str
    number: int
    nacks: int
    deliveries: int
    created_ns: int | None = None

    def is_unchanged(self, job: Job) -> bool:
        """Whether the job was not delivered since: its lease may have ended, once, which counts as a delivery."""
        deliveries = job.additional_deliveries or 0
        return job.nacks == self.nacks and deliveries <= self.deliveries + 1


@dataclass(slots=True)
class _ClaimRecord:
    """What a key holds, and the ids of the jobs in which that is recorded."""

    ids: list[str] = field(default_factory=list)
    node: str = ""
    at: int = 0
    jobs: list[_ClaimedJob] = field(default_factory=list)


class DisqueClaims:
    """`claim`, `extend_claim`, `ack_claim` and `nack_claim` of the driver."""

    def __init__(self, link: DisqueLink, nodes: Nodes, defaults: Defaults, batch_max: int) -> None:
        self._link, self._nodes, self._defaults, self._batch_max = link, nodes, defaults, batch_max

    def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        with self._link.client() as client:
            record = self._record(client, queue, key)
            if record is not None:
                jobs = self._lease_again(client, record, record.jobs, lease_ms)
                self._write(client, queue, key, record, [_claimed(job) for job in jobs])
            else:
                jobs = self._lease_new(client, queue, count, lease_ms)
                if jobs:
                    new = _ClaimRecord(node=jobs[0].node or "")
                    self._write(client, queue, key, new, [_claimed(job) for job in jobs])
        until_ms = int(time.monotonic() * 1000) + lease_ms
        return [stored for job in jobs for stored in fetched_jobs([job], job.node or "", until_ms)]

    def _lease_new(self, client: ClusterClient, queue: str, count: int, lease_ms: int) -> list[Job]:
        """Return jobs for a new key: all of one node."""
        jobs: list[Job] = []
        view = self._fullest(client, queue) if count else client
        while len(jobs) < count:
            wanted = min(count - len(jobs), self._batch_max)
            more = self._nodes.fetch(view, queue, wanted, lease_ms, 0)
            jobs += more
            if len(more) < wanted:
                break
            view = client.at(more[0].node)
        return jobs

    def _fullest(self, client: ClusterClient, queue: str) -> ClusterClient:
        """Return the node on which most of a queue waits: an empty one gets jobs of others in small portions only."""
        views = (self._nodes.find(client)).views
        lengths = {node: int(view.call("QLEN", queue)) for node, view in views.items()}
        fullest = max(lengths, key=lengths.__getitem__, default="")
        return client.at(fullest) if lengths.get(fullest) else client

    def _lease_again(
        self,
        client: ClusterClient,
        record: _ClaimRecord,
        wanted: Sequence[_ClaimedJob],
        lease_ms: int,
        number: int | None = None,
    ) -> list[Job]:
        """Return those of these jobs that are still the key's, with new leases; `number` replaces the known numbers."""
        view = client.at(record.node)
        kept: list[Job] = []
        for begin in range(0, len(wanted), self._batch_max):
            entries = wanted[begin : begin + self._batch_max]
            words = [word for entry in entries for word in (entry.id, number or entry.number)]
            others: list[Job] = []
            jobs = leased_jobs(view.call("LEASE", lease_ms, *words), record.node)
            for entry, job in zip(entries, jobs, strict=True):
                if job is not None:
                    job.created_ns = entry.created_ns
                    if not job.has_begun and job.tries:
                        # Its lease was over. Under the same key that is the same try, as if the lease had held.
                        job.tries, job.has_begun = job.tries - 1, True
                    (kept if entry.is_unchanged(job) else others).append(job)
            if others:
                view.release(*others)
        return kept

    def extend(self, queue: str, key: str, lease_ms: int) -> int:
        with self._link.client() as client:
            record = self._record(client, queue, key)
            if record is None:
                return 0
            is_kept = self._leases(client, record, "EXTEND", lease_ms)
            lost = [entry for entry, is_one in zip(record.jobs, is_kept, strict=True) if not is_one]
            jobs = self._lease_again(client, record, lost, lease_ms, NOT_LEASED)
            if jobs:
                again = {job.id: _claimed(job) for job in jobs}
                self._write(client, queue, key, record, [again.get(entry.id, entry) for entry in record.jobs])
            return sum(is_kept) + len(jobs)

    def ack(self, queue: str, key: str) -> int:
        with self._link.client() as client:
            record = self._record(client, queue, key)
            if record is None:
                return 0
            done = sum(self._leases(client, record, "ACKLEASE"))
            if done < len(record.jobs):
                # Their leases are over, but they were not delivered since: they are this key's, and done.
                left = self._lease_again(client, record, record.jobs, ACK_MS)
                outcomes = client.at(record.node).ack_lease(*left)
                done += [outcome.value for outcome in outcomes].count("OK")
            client.ack(*record.ids)
            return done

    def nack(self, queue: str, key: str, delay_ms: int) -> int:
        with self._link.client() as client:
            record = self._record(client, queue, key)
            if record is None:
                return 0
            returned = sum(self._leases(client, record, "NACKLEASE", delay_ms))
            client.ack(*record.ids)
            return returned

    def _leases(self, client: ClusterClient, record: _ClaimRecord, name: str, *times: int) -> list[bool]:
        """Send a command for all leases of a key. Return whether each was held."""
        view = client.at(record.node)
        outcomes: list[bool] = []
        for begin in range(0, len(record.jobs), self._batch_max):
            entries = record.jobs[begin : begin + self._batch_max]
            words = [word for entry in entries for word in (entry.id, entry.number)]
            outcomes += [status == OK for status in view.call(name, *times, *words)]
        return outcomes

    def _record(self, client: ClusterClient, queue: str, key: str) -> _ClaimRecord | None:
        """Return what a key holds; None if it was not claimed."""
        name = f"{CLAIM_PREFIX}{queue}:{key}"
        nodes = self._nodes.find(client)
        found: dict[str, bytes] = {}
        for view in nodes.views.values():
            found.update({job.id: job.body for job in view.peek(name, -self._batch_max)})
        if not found and nodes.missing:
            # It may wait on a node that is gone, and others have copies of it, which they will queue later.
            for view in nodes.views.values():
                found.update([(one.id, one.body or b"") for one in view.jobs(queue=name, states=ALIVE)])
        return _read(found) if found else None

    def _write(
        self, client: ClusterClient, queue: str, key: str, before: _ClaimRecord, entries: Sequence[_ClaimedJob]
    ) -> None:
        """Record what a key holds now, in place of what it held before."""
        rows = [[entry.id, entry.number, entry.nacks, entry.deliveries] for entry in entries]
        at = max(before.at + 1, time.time_ns() // 1_000_000)
        times = [entry.created_ns for entry in entries]
        body = json.dumps({"node": before.node, "at": at, "jobs": rows, "ctime": times}, separators=(",", ":"))
        defaults = self._defaults
        for left in reversed(range(WRITE_ATTEMPTS)):
            try:
                client.add(
                    f"{CLAIM_PREFIX}{queue}:{key}",
                    body,
                    ttl=min(defaults.ttl_s, RECORD_TTL_S),
                    retry=defaults.retry_s,
                    replicate=copies_of(defaults.replicate, self._nodes.size(client)),
                )
                break
            except OutcomeUnknown:  # a record that is there twice says the same
                if not left:
                    raise
        client.ack(*before.ids)


def _claimed(job: Job) -> _ClaimedJob:
    """Return what is recorded of a job that was just leased."""
    assert job.lease is not None
    return _ClaimedJob(job.id, job.lease.token, job.nacks or 0, job.additional_deliveries or 0, job.created_ns)


def _read(bodies: dict[str, bytes]) -> _ClaimRecord:
    """Return the latest of several records."""
    latest = max((json.loads(body) for body in bodies.values()), key=lambda one: int(one["at"]))
    jobs = [_ClaimedJob(str(job_id), *map(int, numbers)) for job_id, *numbers in latest["jobs"]]
    for entry, created_ns in zip(jobs, latest.get("ctime", ()), strict=False):  # earlier versions wrote no times
        entry.created_ns = created_ns
    return _ClaimRecord(list(bodies), str(latest["node"]), int(latest["at"]), jobs)
