"""Claims of a cluster: what a key holds is written down in a job, so that it outlives the node that gave the leases.

A key of a queue has a queue of its own, `__claim__:QUEUE:KEY`, with one job that nobody ever fetches. Its body is JSON:

    node    the id of the node that gave the leases
    at      when it was written, by the clock of whoever wrote it, in milliseconds; the latest one counts
    jobs    of each job: its id, the number of its lease, and its two counters when it was leased
    ctime   of each job: when it was added, in nanoseconds, or null

To claim again is to lease the same ids again (LEASE), with new numbers: those that are still held, and those that went
back to their queue when their lease was over and that nobody has had since, as their counters tell. No others come in
their place, and what was left out once is no longer the key's: who acks it ends no job that it wasn't given.

Several may use one key at a time: a batch, and what makes its leases longer. So who makes them longer takes no lease
from anybody, and writes only if it had to take jobs up again. Who is killed between the first leases and the record
leaves jobs that come back when their leases are over.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.client.aio import ClusterClient
from penstock.client.values import Job
from penstock.errors import OutcomeUnknown
from penstock.job import StoredJob
from penstock.queues.stores.disque.aio.looking import CLAIM_PREFIX
from penstock.queues.stores.disque.aio.settling import OK, DisqueSettling
from penstock.queues.stores.disque.jobs import retaken, taken
from penstock.queues.stores.disque.terms import copies_of

ACK_MS = 10_000  # of a lease that only lasts until the ack
NOBODYS = 1  # a number that no lease has: with it, LEASE gives only jobs that wait
WRITE_TRIES = 5  # of a record, when the node goes away under it
RECORD_TTL_S = 365 * 24 * 3600  # what nobody asks for in a year, nobody misses: keys of queries that were given up


@dataclass(slots=True)
class _Entry:
    """A job under a key."""

    id: str
    number: int
    nacks: int
    deliveries: int
    created_ns: int | None = None

    def is_still(self, job: Job) -> bool:
        """Whether nobody has had the job since: its lease may have ended, once, which counts as a delivery."""
        deliveries = job.additional_deliveries or 0
        return job.nacks == self.nacks and deliveries <= self.deliveries + 1


@dataclass(slots=True)
class _Record:
    """What is known of a key: the ids of the jobs that say so, and what they say."""

    ids: list[str] = field(default_factory=list)
    node: str = ""
    at: int = 0
    jobs: list[_Entry] = field(default_factory=list)


class DisqueClaims(DisqueSettling):
    """`claim` and its kin."""

    async def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        async with self._clients.borrow() as client:
            record = await self._record(client, queue, key)
            if record is not None:
                jobs = await self._again(client, record, record.jobs, lease_ms)
                await self._write(client, queue, key, record, [_entry(job) for job in jobs])
            else:
                jobs = await self._first(client, queue, count, lease_ms)
                if jobs:
                    await self._write(
                        client, queue, key, _Record(node=jobs[0].node or ""), [_entry(job) for job in jobs]
                    )
            return self._taken(jobs, lease_ms)

    @staticmethod
    def _taken(jobs: Sequence[Job], lease_ms: int) -> list[StoredJob]:
        until_ms = int(time.monotonic() * 1000) + lease_ms
        return [stored for job in jobs for stored in taken([job], job.node or "", until_ms)]

    async def _first(self, client: ClusterClient, queue: str, count: int, lease_ms: int) -> list[Job]:
        """Jobs for a new key: all of one node."""
        jobs: list[Job] = []
        view = await self._fullest(client, queue) if count else client
        while len(jobs) < count:
            wanted = min(count - len(jobs), self.batch_max)
            more = await self._get(view, queue, wanted, lease_ms, 0)
            jobs += more
            if len(more) < wanted:
                break
            view = client.at(more[0].node)
        return jobs

    async def _fullest(self, client: ClusterClient, queue: str) -> ClusterClient:
        """The node on which most of a queue waits: what others have comes to an empty one in small portions only."""
        views = (await self._nodes(client)).views
        lengths = {node: int(await view.call("QLEN", queue)) for node, view in views.items()}
        fullest = max(lengths, key=lengths.__getitem__, default="")
        return client.at(fullest) if lengths.get(fullest) else client

    async def _again(
        self, client: ClusterClient, record: _Record, wanted: Sequence[_Entry], lease_ms: int, number: int | None = None
    ) -> list[Job]:
        """Those of these jobs that are still the key's own, with leases made anew; `number` in place of those known."""
        view = client.at(record.node)
        kept: list[Job] = []
        for begin in range(0, len(wanted), self.batch_max):
            entries = wanted[begin : begin + self.batch_max]
            words = [word for entry in entries for word in (entry.id, number or entry.number)]
            others: list[Job] = []
            jobs = retaken(await view.call("LEASE", lease_ms, *words), record.node)
            for entry, job in zip(entries, jobs, strict=True):
                if job is not None:
                    job.created_ns = entry.created_ns
                    (kept if entry.is_still(job) else others).append(job)
            if others:
                await view.release(*others)
        return kept

    async def extend_claim(self, queue: str, key: str, lease_ms: int) -> int:
        async with self._clients.borrow() as client:
            record = await self._record(client, queue, key)
            if record is None:
                return 0
            is_kept = await self._told(client, record, "EXTEND", lease_ms)
            lost = [entry for entry, is_one in zip(record.jobs, is_kept, strict=True) if not is_one]
            jobs = await self._again(client, record, lost, lease_ms, NOBODYS)
            if jobs:
                anew = {job.id: _entry(job) for job in jobs}
                await self._write(client, queue, key, record, [anew.get(entry.id, entry) for entry in record.jobs])
            return sum(is_kept) + len(jobs)

    async def ack_claim(self, queue: str, key: str) -> int:
        async with self._clients.borrow() as client:
            record = await self._record(client, queue, key)
            if record is None:
                return 0
            done = sum(await self._told(client, record, "ACKLEASE"))
            if done < len(record.jobs):
                # Leases that are over, of jobs that nobody has taken since: they are this key's, and done.
                left = await self._again(client, record, record.jobs, ACK_MS)
                view = client.at(record.node)
                done += [outcome.value for outcome in await view.ack_lease(*left)].count("OK")
            await self._forget(client, record)
            return done

    async def nack_claim(self, queue: str, key: str, delay_ms: int) -> int:
        async with self._clients.borrow() as client:
            record = await self._record(client, queue, key)
            if record is None:
                return 0
            given = sum(await self._told(client, record, "NACKLEASE", delay_ms))
            await self._forget(client, record)
            return given

    async def _told(self, client: ClusterClient, record: _Record, name: str, *times: int) -> list[bool]:
        """A command for all leases of a key; whether each was held."""
        view = client.at(record.node)
        outcomes: list[bool] = []
        for begin in range(0, len(record.jobs), self.batch_max):
            entries = record.jobs[begin : begin + self.batch_max]
            words = [word for entry in entries for word in (entry.id, entry.number)]
            outcomes += [status == OK for status in await view.call(name, *times, *words)]
        return outcomes

    # What is written down.

    async def _record(self, client: ClusterClient, queue: str, key: str) -> _Record | None:
        """What is known of a key; None if nobody has claimed under it."""
        name = f"{CLAIM_PREFIX}{queue}:{key}"
        nodes = await self._nodes(client)
        found: dict[str, bytes] = {}
        for view in nodes.views.values():
            found.update({job.id: job.body for job in await view.peek(name, -self.batch_max)})
        if not found and nodes.missing:
            # It may wait on a node that is gone, and others have copies of it, which they will queue some time.
            for view in nodes.views.values():
                found.update([(one.id, one.body or b"") async for one in view.jobs(queue=name, states=ALIVE)])
        return _read(found) if found else None

    async def _write(
        self, client: ClusterClient, queue: str, key: str, before: _Record, entries: Sequence[_Entry]
    ) -> None:
        """Put down what a key holds now, in place of what it held before."""
        rows = [[entry.id, entry.number, entry.nacks, entry.deliveries] for entry in entries]
        at = max(before.at + 1, time.time_ns() // 1_000_000)
        times = [entry.created_ns for entry in entries]
        body = json.dumps({"node": before.node, "at": at, "jobs": rows, "ctime": times}, separators=(",", ":"))
        terms = self._defaults
        for left in reversed(range(WRITE_TRIES)):
            try:
                await client.add(
                    f"{CLAIM_PREFIX}{queue}:{key}",
                    body,
                    ttl=min(terms.ttl_s, RECORD_TTL_S),
                    retry=terms.retry_s,
                    replicate=copies_of(terms.replicate, await self._size(client)),
                )
                break
            except OutcomeUnknown:  # a record that is there twice says the same
                if not left:
                    raise
        await self._forget(client, before)

    @staticmethod
    async def _forget(client: ClusterClient, record: _Record) -> None:
        await client.ack(*record.ids)


ALIVE = ("wait-repl", "active", "queued")


def _entry(job: Job) -> _Entry:
    """What is put down of a job that was just leased."""
    assert job.lease is not None
    return _Entry(job.id, job.lease.token, job.nacks or 0, job.additional_deliveries or 0, job.created_ns)


def _read(bodies: dict[str, bytes]) -> _Record:
    """The latest of several records."""
    latest = max((json.loads(body) for body in bodies.values()), key=lambda one: int(one["at"]))
    jobs = [_Entry(str(job_id), *map(int, numbers)) for job_id, *numbers in latest["jobs"]]
    for entry, created_ns in zip(jobs, latest.get("ctime", ()), strict=False):  # earlier versions wrote no times
        entry.created_ns = created_ns
    return _Record(list(bodies), str(latest["node"]), int(latest["at"]), jobs)
