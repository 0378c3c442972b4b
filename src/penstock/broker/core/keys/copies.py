"""Jobs with keys on one node: they wait until the vote about their key is known.

state     what it means                                 leads to
WAITING   sent for an add whose vote may be under way   LIVE when its key is known to be its own; else it is deleted
LIVE      the job has its key, and may be delivered     ended, or handed over to another member

A copy that hears nothing for a node timeout has its key looked up, with a ballot above that of the add, so that the add
can't succeed behind it. A job that has ended is remembered, so that a late copy is refused.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.broker.core.keys.messages import (
    ENDED,
    GONE,
    NO_BALLOT,
    PRESENT,
    Ballot,
    CopyAnswer,
    CopyAsked,
    CopyKept,
    CopySent,
    HandOver,
    KeyMessage,
)

WAITING: Final = 0
LIVE: Final = 1
NODE_TIMEOUT_MS: Final = 5000
RESOLVE_JITTER_MS: Final = 2000  # so that the holders of a job don't look its key up at the same time
ENDED_MAX: Final = 10_000  # jobs whose end is remembered
HAND_OVER_MS: Final = 1000  # a job that wasn't taken over is offered again
COPY_BYTES: Final = 300  # of memory a copy takes beside its key and body, at most (P7)


class CopiesPort(Protocol):
    """How copies reach the world."""

    def send(self, node_id: bytes, message: KeyMessage) -> None:
        """Send a message at the end of the turn."""

    def append_copy(self, job: KeyedJob) -> None:
        """Write a job, or its new state."""

    def append_copy_gone(self, job_id: bytes, has_ended: bool) -> None:
        """Write that a job is no longer here."""

    def live(self, job: KeyedJob) -> None:
        """A job may be delivered from now on."""

    def chance(self, choices: int) -> int:
        """Return a random number below `choices`."""


class Resolving(Protocol):
    """What a copy begins."""

    def resolve(self, key: bytes, job_id: bytes) -> None:
        """Find out whether a job has its key."""


class KeyedJob:
    """A job with a key, on one node."""

    __slots__ = ("ballot", "body", "generation", "id", "keep_ms", "key", "look_at", "offered", "state")

    def __init__(
        self, key: bytes, job_id: bytes, body: bytes, keep_ms: int, ballot: Ballot, state: int, generation: int = 0
    ) -> None:
        self.key = key
        self.id = job_id
        self.body = body
        self.keep_ms = keep_ms
        self.ballot = ballot  # of the last proposal that counts on this copy
        self.state = state
        self.generation = generation  # of the key, when this node took the job over; 0: it has it from its add
        self.look_at = 0
        self.offered = 0  # how often it was offered to others, by a node that leaves


class Copies:
    """The jobs with keys of one node."""

    def __init__(self, port: CopiesPort) -> None:
        self.jobs: dict[bytes, KeyedJob] = {}
        self.ended: dict[bytes, None] = {}
        self.adding: set[bytes] = set()  # jobs of adds and hand-overs under way here: their proposer sees to them
        self.used_bytes = 0
        self._port = port

    def restore(self, job: KeyedJob, now_ms: int) -> None:
        """Take a job from the journal; the last word on it counts."""
        self.remove(job.id)
        self._put(job, now_ms)

    def restore_gone(self, job_id: bytes, has_ended: bool) -> None:
        """Take the end of a job from the journal."""
        self.remove(job_id)
        if has_ended:
            self._remember(job_id)

    def _put(self, job: KeyedJob, now_ms: int) -> None:
        job.look_at = now_ms + NODE_TIMEOUT_MS + self._port.chance(RESOLVE_JITTER_MS)
        self.jobs[job.id] = job
        self.used_bytes += COPY_BYTES + len(job.key) + len(job.body)

    def remove(self, job_id: bytes) -> None:
        """Forget a job, without a word to the journal."""
        job = self.jobs.pop(job_id, None)
        if job is not None:
            self.used_bytes -= COPY_BYTES + len(job.key) + len(job.body)

    def _remember(self, job_id: bytes) -> None:
        self.ended[job_id] = None
        if len(self.ended) > ENDED_MAX:
            del self.ended[next(iter(self.ended))]

    def keep(self, message: CopySent, now_ms: int) -> bool:
        """Keep a copy for the ballot of its add; False if the job is over."""
        if message.job_id in self.ended:
            return False
        job = self.jobs.get(message.job_id)
        if job is None:
            job = KeyedJob(message.key, message.job_id, message.body, message.keep_ms, message.ballot, WAITING)
            self._put(job, now_ms)
        elif message.ballot <= job.ballot:
            return True
        job.ballot = message.ballot
        self._port.append_copy(job)
        return True

    def on_sent(self, src: bytes, message: CopySent, now_ms: int) -> None:
        """A copy comes."""
        is_kept = self.keep(message, now_ms)
        self._port.send(src, CopyKept(message.job_id, message.ballot, not is_kept))

    def confirm(self, job_id: bytes) -> None:
        """A job has its key."""
        job = self.jobs.get(job_id)
        if job is not None and job.state == WAITING:
            job.state = LIVE
            self._port.append_copy(job)
            self._port.live(job)

    def refuse(self, job_id: bytes, before: Ballot | None = None) -> None:
        """A job doesn't get its key, in any proposal before this ballot: delete its copy."""
        job = self.jobs.get(job_id)
        if job is not None and job.state == WAITING and (before is None or job.ballot < before):
            self.remove(job_id)
            self._port.append_copy_gone(job_id, False)

    def end(self, job_id: bytes) -> None:
        """A job is done."""
        if job_id not in self.ended:
            self.remove(job_id)
            self._remember(job_id)
            self._port.append_copy_gone(job_id, True)

    def on_asked(self, src: bytes, message: CopyAsked) -> None:
        """A home asks whether this node has a job."""
        state = PRESENT if message.job_id in self.jobs else ENDED if message.job_id in self.ended else GONE
        self._port.send(src, CopyAnswer(message.key, message.job_id, state))

    def tick(self, resolving: Resolving, now_ms: int) -> None:
        """Look up the keys of jobs that wait for long."""
        for job in list(self.jobs.values()):
            if job.state == WAITING and job.look_at <= now_ms and job.id not in self.adding:
                job.look_at = now_ms + NODE_TIMEOUT_MS + self._port.chance(RESOLVE_JITTER_MS)
                resolving.resolve(job.key, job.id)

    # Of a node that leaves.

    def hand_over(self, members: list[bytes], now_ms: int) -> None:
        """Offer all jobs to members that stay, each to the next one after some time."""
        for job in self.jobs.values():
            if job.offered and job.look_at > now_ms:
                continue
            if job.state == LIVE and members:
                job.look_at = now_ms + HAND_OVER_MS
                node_id = members[(self._port.chance(len(members)) + job.offered) % len(members)]
                job.offered += 1
                self._port.send(node_id, HandOver(job.key, job.id, job.body, job.keep_ms))

    def take_over(self, message: HandOver, now_ms: int) -> bool:
        """Keep a job for a node that leaves, until the key's homes know. False if the job has ended."""
        if message.job_id in self.ended:
            return False
        job = self.jobs.get(message.job_id)
        if job is None:
            job = KeyedJob(message.key, message.job_id, message.body, message.keep_ms, NO_BALLOT, WAITING)
            self._put(job, now_ms)
            self._port.append_copy(job)
        return True

    def hold(self, job_id: bytes, generation: int) -> None:
        """The key's homes know that this node has a job in place of another."""
        job = self.jobs.get(job_id)
        if job is not None:
            job.generation = generation
            self._port.append_copy(job)
            self.confirm(job_id)

    def handed_over(self, job_id: bytes, generation: int) -> None:
        """Another member has the job, and the key's homes know; unless it has come back since."""
        job = self.jobs.get(job_id)
        if job is None or job.state != LIVE or job_id in self.adding:
            return  # it is coming back just now
        if job.generation < generation:
            self.remove(job_id)
            self._port.append_copy_gone(job_id, False)
