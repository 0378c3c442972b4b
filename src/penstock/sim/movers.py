"""Workers that move jobs to another queue in one step (MOVEJOBS), and what must hold of that.

A run has none unless it is asked for (`--movers`), so that the histories of seeds stay as they are. A mover goes by a
lease, by the job's id alone, or by the id of a job that waits; sometimes it dies before the answer, and sometimes its
lease is over.

A move that was answered with an id is an ack of the old job and an add of the new one, and both promises hold. One that
was answered with STALE or an error is neither; like a refused add, it may leave a new job all the same after a fault.
Of a move whose answer nobody heard, one of the two jobs must be left: that is P1, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import hiredis

from penstock.sim.causes import loss_excuse
from penstock.sim.connection import Actor, Script, SimConnection, Words
from penstock.sim.history import AddOptions, JobFacts
from penstock.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from penstock.sim.world import World

WAYS = (("lease", 60), ("id alone", 15), ("waiting", 25))
LEASES_MS = (500, 2000, 8000)
RETRIES_S = ((1, 20), (2, 25), (5, 30), (10, 25))
DELAYS_S = ((0, 85), (2, 15))
TIMEOUTS_MS = ((0, 10), (500, 20), (2000, 35), (5000, 35))
PATIENCE_US = ((200 * MS, 15), (3 * SECOND, 15), (20 * SECOND, 70))
WAIT_MS: Final = 2000
LOOKED_AT: Final = 3


class SimMover(Actor):
    """One mover."""

    def script(self) -> Script:
        """Work on one node for a while, then on another."""
        yield self.between(0, SECOND)
        while not self.world.is_over:
            yield self.between(100 * MS, 2 * SECOND)
            if self.world.is_calm:
                continue
            machines = self.world.machines
            connection = self.connect(machines[self.pick(len(machines))])
            if connection is None:
                continue
            for _ in range(1 + self.pick(4)):
                yield from self._move_some(connection)
                if not connection.is_open:
                    break
            connection.close_ours()

    def _move_some(self, connection: SimConnection) -> Script:
        queues = self.world.queues
        way = self.choose(WAYS)
        source, target = queues[self.pick(len(queues))], queues[self.pick(len(queues))]
        self.found: list[tuple[JobFacts, bytes]] = []  # with what stands for a token
        lease_ms = 0
        if way == "waiting":
            yield self.ask(connection, [[b"QPEEK", source, b"%d" % LOOKED_AT]], self.note_seen)
        else:
            words = [b"GETJOB", b"TIMEOUT", b"%d" % WAIT_MS, b"COUNT", b"%d" % LOOKED_AT]
            if way == "lease":
                lease_ms = LEASES_MS[self.pick(len(LEASES_MS))]
                words += [b"LEASE", b"%d" % lease_ms]
            yield self.ask(connection, [[*words, b"FROM", source]], self.note_fetched)
        if not self.found or not connection.is_open:
            return
        yield self.between(MS, 200 * MS)
        if lease_ms and self.pick(12) == 0:
            yield lease_ms * MS
        yield from self.move(connection, target, self._terms(), self.choose(PATIENCE_US))

    def move(self, connection: SimConnection, target: bytes, terms: AddOptions, patience_us: int) -> Script:
        """Move the jobs that were found."""
        found = self.found
        moved = [self._successor(connection, old, target, terms) for old, _ in found]
        words = [b"MOVEJOBS", target, b"%d" % terms.timeout_ms, b"REPLICATE", b"%d" % terms.replicate]
        words += [b"RETRY", b"%d" % terms.retry_s]
        if terms.delay_s:
            words += [b"DELAY", b"%d" % terms.delay_s]
        words.append(b"BODIES")
        for (old, token), new in zip(found, moved, strict=True):
            words += [old.id, token, new.body]

        def note(connection: SimConnection, words: Words, reply: Any) -> None:
            self._note_moved(connection, found, moved, reply)

        yield self.ask(connection, [words], note, patience_us)

    def _terms(self) -> AddOptions:
        replicate = 1 + self.pick(min(3, self.world.setup.nodes))
        return AddOptions(
            replicate, self.choose(RETRIES_S), self.choose(DELAYS_S), 86_400, False, self.choose(TIMEOUTS_MS)
        )

    def _successor(self, connection: SimConnection, old: JobFacts, target: bytes, terms: AddOptions) -> JobFacts:
        world = self.world
        history = world.promises.history
        body = b"%d:" % len(history.jobs) + self.random.randbytes(20)
        new = history.sent(target, body, terms, connection.machine.index, world.timeline.now_us)
        if terms.delay_s:
            new.clocks = [(other.life, other.monotonic_us) for other in world.machines]
        old.moves.append((world.timeline.now_us, new))
        return new

    # Replies.

    def note_seen(self, connection: SimConnection, words: Words, reply: Any) -> None:
        """Take jobs that were looked at."""
        if isinstance(reply, hiredis.ReplyError):
            return
        history = self.world.promises.history
        for _, job_id, body in reply or ():
            job = history.by_body.get(body)
            if job is not None and history.identified(job, job_id):
                self.found.append((job, b"0"))

    def note_fetched(self, connection: SimConnection, words: Words, reply: Any) -> None:
        """Take jobs that were fetched."""
        if isinstance(reply, hiredis.ReplyError):
            return
        for job, token, is_leased in self.world.promises.fetched(connection, words, reply):
            self.found.append((job, b"%d" % token if is_leased else b"ANY"))

    def _note_moved(
        self, connection: SimConnection, found: list[tuple[JobFacts, bytes]], moved: list[JobFacts], reply: Any
    ) -> None:
        promises = self.world.promises
        if isinstance(reply, hiredis.ReplyError):
            for new in moved:
                promises.added(new, connection, reply)
            return
        for (old, token), new, answer in zip(found, moved, reply, strict=True):
            word = answer if isinstance(answer, bytes) else str(answer).encode()
            if word in (b"STALE", b"NOJOB"):
                new.refused = word.decode()
                continue
            if token.isdigit() and token != b"0":
                promises.used_token(connection, old, int(token), "OK")
            promises.added(new, connection, answer)
            promises.acked(connection, old, True)


def has_moved(job: JobFacts) -> bool:
    """Whether another job has taken the place of this one, as far as clients know."""
    return any(new.told_us or new.deliveries for _, new in job.moves)


def check_moves(world: World) -> None:
    """P1: of each move whose answer nobody heard, one of the two jobs is left, or was done."""
    for old in world.promises.history.jobs:
        unheard = [(at_us, new) for at_us, new in old.moves if not new.told_us and not new.refused]
        if not unheard or old.acks or has_moved(old):
            continue
        at_us, new = unheard[-1]
        if not old.deliveries and not old.told_us:
            continue  # nobody knows that it was added
        if any(delivery.at_us > at_us for delivery in old.deliveries):
            continue
        if old.deliveries and not old.terms.retry_s:
            continue  # delivered for the only time: its worker is gone
        excuse = loss_excuse(world, old, "lost") or loss_excuse(world, new, "lost")
        if not excuse:
            world.fail("P1", f"moved into nothing: {old}; to {new}")
