# Written by scripts/blocking from ../aio/driver.py: change that, then run `make blocking`.
"""`disque://host:port,host:port`: queues in a cluster of our nodes, or of the original Disque; `disques://` is TLS.

    what                        is
    queue NAME                  the queue of that name, in the cluster: each node has a part of it
    queue __claim__:NAME:KEY    what a claim holds, as one job; see `blocking.disque.claims`
    id of a job                 the node's: a job that goes to another queue is another job
    body                        the job's body; with headers or tries, in the frame of `penstock.codec`
    header x-penstock-tries     the tries that a job was pushed with; taken off when it is read
    RETRY, TTL, REPLICATE       of the push, or the options of the store (see `penstock.queues.stores.disque.terms`)
    DELAY                       of the push, in whole seconds, rounded up
    nacks + additional deliveries   `tries`; see `penstock.queues.stores.disque.jobs`
    lease                       GETJOB LEASE, with a token; on an original the job's retry time, begun anew by WORKING
    pause                       PAUSE out, told to all nodes

Order is that of creation, also of jobs that were delayed or came back. Whoever waits does so on a node, so there are no
signals; statistics are this process's own. What an original can't do: tokens and claims, a nack with a delay (the job
is ready at once), a release (a delivery is counted), the number of reserved jobs.

Nothing here is done in one step with something else. A pop is a fetch and then an ack, before the job is handed out:
whoever dies in between gives it back. A job that moves is added to its new queue first, then acked in the old one; who
dies in between leaves it in both.
"""

import time
from collections.abc import Sequence
from typing import ClassVar

from penstock.client.blocking import ClusterClient
from penstock.client.requests import ADD_BYTES_MAX
from penstock.client.values import text
from penstock.codec import MARK, frame
from penstock.errors import OutcomeUnknown, PenstockError, ReplyError
from penstock.job import Lease, Move, NewJob, StoredJob
from penstock.queues.blocking.finishing import to_the_end
from penstock.queues.stores.disque.blocking.base import ALL, values
from penstock.queues.stores.disque.blocking.claims import NOBODYS
from penstock.queues.stores.disque.blocking.marks import DisqueMarks
from penstock.queues.stores.disque.jobs import NO_NUMBER, retaken, stored_body, taken, token
from penstock.queues.stores.disque.terms import Terms, is_plain

ADD_MS = 5000  # for an add to be on enough nodes
POP_MS = 10_000  # of a lease that only lasts until the ack: long enough for a node that is slow to answer
MOVE_MS = 30_000  # of a job that is on its way to another queue
_NONE = Lease("", None)


class DisqueDriver(DisqueMarks):
    """Jobs of a cluster: in, out, and from one queue to another."""

    takes_bodies: ClassVar[bool] = True

    def prepare(self, job: NewJob) -> None:
        job.prepared = stored_body(job)

    def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        with self._clients.borrow() as client:
            if all(map(is_plain, jobs)):
                return self._add(client, queue, [job.prepared for job in jobs], self._defaults.plain())
            has_points = any(job.mature_ms is not None for job in jobs)
            now_ms = self._time_ms(client) if has_points else None
            groups: dict[Terms, list[int]] = {}
            for at, job in enumerate(jobs):
                groups.setdefault(self._defaults.terms(job, now_ms), []).append(at)
            size = sum([len(job.prepared) for job in jobs])
            if len(groups) > 1 and self._is_ours and size <= ADD_BYTES_MAX:
                return self._add_together(client, queue, jobs, groups)
            ids = [""] * len(jobs)
            for terms, places in groups.items():
                bodies = [jobs[at].prepared for at in places]
                for at, job_id in zip(places, self._add(client, queue, bodies, terms), strict=True):
                    ids[at] = job_id
            return ids

    def push_bodies(self, queue: str, bodies: Sequence[bytes]) -> list[str]:
        framed = [frame(body, {}) if body.startswith(MARK) else body for body in bodies]
        with self._clients.borrow() as client:
            return self._add(client, queue, framed, self._defaults.plain())

    def _add(self, client: ClusterClient, queue: str, bodies: list[bytes], terms: Terms) -> list[str]:
        copies = terms.copies(self._size(client))
        try:
            return self._add_with(client, queue, bodies, terms, copies)
        except ReplyError as problem:
            nodes, told = self._too_few(client, problem, copies)
            fewer = terms.copies(nodes)
            if fewer >= copies or isinstance(told, OutcomeUnknown):
                raise told from problem
        return self._add_with(client, queue, bodies, terms, fewer)  # nodes were removed from the cluster

    @staticmethod
    def _add_with(client: ClusterClient, queue: str, bodies: list[bytes], terms: Terms, copies: int) -> list[str]:
        return client.add_many(
            queue,
            bodies,
            timeout=ADD_MS / 1000,
            replicate=copies,
            delay=terms.delay_s or None,
            retry=terms.retry_s,
            ttl=terms.ttl_s,
        )

    def _add_together(
        self, client: ClusterClient, queue: str, jobs: Sequence[NewJob], groups: dict[Terms, list[int]]
    ) -> list[str]:
        """Jobs with different terms: a command for each terms, all in one go."""
        nodes = self._size(client)
        commands = [
            ("ADDJOBS", queue, ADD_MS, *terms.words(nodes), "BODIES", *[jobs[at].prepared for at in places])
            for terms, places in groups.items()
        ]
        try:
            replies = values(client.call_many(commands))
        except ReplyError as problem:
            _, told = self._too_few(client, problem, max(terms.copies(nodes) for terms in groups))
            raise told from problem
        ids = [""] * len(jobs)
        for places, reply in zip(groups.values(), replies, strict=True):
            for at, job_id in zip(places, reply, strict=True):
                ids[at] = text(job_id)
        return ids

    def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        jobs = self._fetch(queue, count, POP_MS, wait_ms)
        if not jobs:
            return []
        return to_the_end(self._take_out(jobs), lambda popped: self.put_back(queue, popped))

    def _take_out(self, jobs: list[StoredJob]) -> list[StoredJob]:
        """End jobs before they are handed out; one that is somebody else's by now is not."""
        is_mine = self.ack("", [Lease(job.id, job.token) for job in jobs])
        popped = [job for job, is_one in zip(jobs, is_mine, strict=True) if is_one]
        for job in popped:
            job.token = None
        return popped

    def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        """As new jobs, behind the others: what was acked can't be had back."""
        new = [NewJob(None, job.body or b"", job.headers, tries=job.tries) for job in jobs]
        for job in new:
            self.prepare(job)
        self.push(queue, new, None)

    def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        return self._fetch(queue, count, lease_ms, wait_ms, ALL if begin is None else begin)

    def _fetch(self, queue: str, count: int, lease_ms: int, wait_ms: int, begin: int = ALL) -> list[StoredJob]:
        with self._clients.borrow() as client:
            # Whoever waits for jobs asks again, so that a cluster which is away need not be waited for here.
            jobs = self._get(client.without_retry(), queue, count, lease_ms, wait_ms, begin)
        if not jobs:
            return []
        found = taken(jobs, jobs[0].node or "", int(time.monotonic() * 1000) + lease_ms)
        if self._is_ours:
            return found
        # The retry time of an original runs since the job was queued, and may be nearly over.
        leases = [Lease(job.id, job.token) for job in found]
        to_the_end(self.extend(queue, leases, [0] * len(leases)), lambda _: self.release(queue, leases))
        return found

    def move(
        self, queue: str, to: str, moves: Sequence[Move], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        leases = self._hold(queue, [move.lease for move in moves])
        held = [at for at, lease in enumerate(leases) if lease is not None]
        if not held:
            return [False] * len(moves)
        try:
            self.push(to, [moves[at].job for at in held], channel)
        except PenstockError:
            # Those that waited wait again. The others are their workers'.
            self.release(queue, [leases[at] or _NONE for at in held if moves[at].lease.token is None])
            raise
        done = [False] * len(moves)
        for at, is_done in zip(held, self.ack(queue, [leases[at] or _NONE for at in held]), strict=True):
            done[at] = is_done
        return done

    def _hold(self, queue: str, leases: Sequence[Lease]) -> list[Lease | None]:
        """Make sure of jobs, for as long as it takes to add them elsewhere; None for one that can't be had."""
        until_ms = int(time.monotonic() * 1000) + MOVE_MS
        tokens = self.extend(queue, leases, [MOVE_MS] * len(leases))
        free = [lease.id for lease in leases if lease.token is None]
        waiting = self._hold_waiting(queue, free, until_ms) if free else {}
        return [
            Lease(lease.id, one)
            if (one := kept if lease.token is not None else waiting.pop(lease.id, None)) is not None
            else None
            for lease, kept in zip(leases, tokens, strict=True)
        ]

    def _hold_waiting(self, queue: str, ids: Sequence[str], until_ms: int) -> dict[str, str]:
        """Tokens for those of these jobs that nobody has."""
        found: dict[str, str] = {}
        with self._clients.borrow() as client:
            now_ms = self._time_ms(client)
            for node, view in (self._nodes(client)).views.items():
                known = self._known(view, queue, [job_id for job_id in ids if job_id not in found])
                queued = [one.id for one in known if one.state == "queued"]
                if self._is_ours and queued:
                    words = [word for job_id in queued for word in (job_id, NOBODYS)]
                    jobs = retaken(view.call("LEASE", MOVE_MS, *words), node)
                    for job in jobs:
                        if job is not None and job.lease is not None:
                            found[job.id] = token(job.lease.token, node, until_ms)
                else:
                    queued = self._dequeued(view, queued)
                    found.update({job_id: token(NO_NUMBER, node, until_ms) for job_id in queued})
                active = [one for one in known if one.state == "active"]
                for job_id in self._scheduled(view, queue, active, now_ms):
                    found[job_id] = token(NO_NUMBER, node, until_ms)
        return found
