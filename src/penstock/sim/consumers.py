"""Consumers: they fetch jobs in every way, and ack, nack, put off, forget or lose them.

    ways     plain, leased, without waiting, with counters, claimed; waiting in slices, as the library does; calling
             again and again without waiting
    fates    acked at once or slowly, here, on another node, or after a reconnection there; given back now or later,
             here or on another node; put off and then acked; left behind by a worker that dies; acked with a token that
             may be stale by then

Once the world is calm, everybody acks what it gets, and all of them work on a few nodes: jobs have to come to them.
"""

from __future__ import annotations

from typing import Any

import hiredis

from penstock.sim.connection import Actor, Script, SimConnection, Words
from penstock.sim.history import JobFacts
from penstock.sim.timeline import MS, SECOND

WAYS = (("plain", 25), ("lease", 25), ("nohang", 10), ("counters", 10), ("claim", 10), ("slices", 10), ("poll", 10))
FATES = (
    ("ack", 35), ("ack elsewhere", 10), ("reconnect", 5), ("slow ack", 10), ("nack", 7), ("nack elsewhere", 8),
    ("nack after", 5), ("working", 6), ("die", 6), ("stale", 8),
)  # fmt: skip
LEASES_MS = (500, 2000, 8000)
WAITS_MS = (700, 4000, 12_000)
SLICES_MS = (1000, 5000)  # of the library in its two forms
SLICES_MAX = 6
POLLS_MS = (100, 400, 1000, 1900)
POLLS_MAX = 8


class SimConsumer(Actor):
    """One consumer."""

    def script(self) -> Script:
        """Work on one node for a while, then on another."""
        self._lease_ms = 0
        self._fetched: list[tuple[JobFacts, int]] = []  # with the tokens of their leases
        yield self.between(0, SECOND)
        while True:
            world = self.world
            if world.is_over:
                return
            machines = world.machines
            index = self.pick(2) if world.is_calm else self.pick(len(machines))
            connection = self.connect(machines[index])
            if connection is None:
                yield 500 * MS
                continue
            for _ in range(1 + self.pick(8)):
                way = self.choose(WAYS)
                if way == "claim":
                    yield from self._claim(connection)
                elif way == "slices":
                    yield from self._wait_in_slices(connection)
                elif way == "poll":
                    yield from self._poll(connection)
                else:
                    yield from self._fetch(connection, way)
                if not connection.is_open:
                    break
            connection.close_ours()

    # Fetching.

    def _queues(self) -> list[bytes]:
        queues = self.world.queues
        if self.world.is_calm or self.pick(3):
            return list(queues)
        return [queues[self.pick(len(queues))]]

    def _fetch(self, connection: SimConnection, way: str) -> Script:
        words = [b"GETJOB"]
        wait_ms = 0
        self._lease_ms = 0
        if way == "nohang":
            words += [b"NOHANG", b"COUNT", b"%d" % (1 + self.pick(3))]
        else:
            wait_ms = WAITS_MS[self.pick(3)]
            words += [b"TIMEOUT", b"%d" % wait_ms]
        if way == "lease":
            self._lease_ms = LEASES_MS[self.pick(3)]
            words += [b"LEASE", b"%d" % self._lease_ms]
        if way == "counters":
            words.append(b"WITHCOUNTERS")
        self._fetched = []
        patience_us = (wait_ms + 10_000) * MS
        if not self.world.is_calm and self.pick(12) == 0:
            patience_us = self.between(MS, max(2, wait_ms) * MS)  # it goes away while it waits
        yield self.ask(connection, [[*words, b"FROM", *self._queues()]], self._note_fetched, patience_us)
        fetched = self._fetched
        if not fetched:
            yield self.between(200 * MS, 1500 * MS)
        for job, token in fetched:
            if connection.is_open:
                yield from self._finish(connection, job, token)

    def _wait_in_slices(self, connection: SimConnection) -> Script:
        wait_ms = SLICES_MS[self.pick(len(SLICES_MS))]
        words = [b"GETJOB", b"TIMEOUT", b"%d" % wait_ms, b"FROM", *self._queues()]
        self._fetched = []
        self._lease_ms = 0
        for _ in range(1 + self.pick(SLICES_MAX)):
            yield self.ask(connection, [words], self._note_fetched, (wait_ms + 10_000) * MS)
            if self._fetched or not connection.is_open:
                break
        for job, token in self._fetched:
            if connection.is_open:
                yield from self._finish(connection, job, token)

    def _poll(self, connection: SimConnection) -> Script:
        pause_us = POLLS_MS[self.pick(len(POLLS_MS))] * MS
        words = [b"GETJOB", b"NOHANG", b"FROM", *self._queues()]
        self._lease_ms = 0
        for _ in range(2 + self.pick(POLLS_MAX)):
            self._fetched = []
            yield self.ask(connection, [words], self._note_polled)
            fetched = self._fetched
            if not connection.is_open:
                return
            for job, token in fetched:
                yield from self._finish(connection, job, token)
            yield pause_us

    def _note_polled(self, connection: SimConnection, words: Words, reply: Any) -> None:
        self._note_fetched(connection, words, reply)
        names = words[words.index(b"FROM") + 1 :]
        self.world.waits.polled(connection, names, not reply or isinstance(reply, hiredis.ReplyError))

    def _note_fetched(self, connection: SimConnection, words: Words, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            self._note_refusal(words, reply)
            return
        for job, token, _ in self.world.promises.fetched(connection, words, reply):
            self._fetched.append((job, token))

    def _note_refusal(self, words: Words, reply: Any) -> None:
        if not str(reply).startswith(("LEAVING", "LOADING", "NOJOB", "TOOLATE", "OOM")):
            self.world.fail("protocol", f"{words[0]!r} was answered with {reply}")

    # What becomes of a job.

    def _finish(self, connection: SimConnection, job: JobFacts, token: int) -> Script:
        fate = "ack" if self.world.is_calm else self.choose(FATES)
        retry_us = job.terms.retry_s * SECOND
        yield self.between(MS, 20 * MS) if self.world.is_calm else self.between(5 * MS, 300 * MS)
        if fate == "die":
            connection.close_ours()
            yield self.between(SECOND, 5 * SECOND)
            return
        if fate == "slow ack":
            yield self.between(retry_us // 2, retry_us * 3 // 2 + SECOND)
        elif fate == "stale" and token:
            yield self._lease_ms * MS * 3 // 2
        elif fate == "working":
            yield from self._put_off(connection, job, token)
        if fate in ("nack", "nack after"):
            yield from self._give_back(connection, job, token, fate)
            return
        if fate in ("ack elsewhere", "nack elsewhere", "reconnect"):
            if fate == "reconnect":
                connection.close_ours()
            machines = self.world.machines
            other = self.connect(machines[self.pick(len(machines))])
            if other is not None:
                if fate == "nack elsewhere":
                    yield self.ask(other, [[b"NACK", job.id]], self._note_nack)
                else:
                    yield self.ask(other, [[b"ACKJOB", job.id]], self._note_ack)
                other.close_ours()
                return
        if not connection.is_open:
            return
        if token:
            yield self.ask(connection, [[b"ACKLEASE", job.id, b"%d" % token]], self._note_ack_lease)
        else:
            yield self.ask(connection, [[b"ACKJOB", job.id]], self._note_ack)

    def _note_ack(self, connection: SimConnection, words: Words, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            self._note_refusal(words, reply)
        else:
            self.world.promises.acked(connection, self.world.promises.history.by_id[words[1]], bool(reply))

    def _note_token(self, connection: SimConnection, words: Words, reply: Any, job: JobFacts, token: bytes) -> bool:
        """Note the reply to a command with the token of a lease; return whether the node did what it asked for."""
        if isinstance(reply, hiredis.ReplyError):
            self._note_refusal(words, reply)
            return False
        status = str(reply[0], "ascii") if isinstance(reply[0], bytes) else str(reply[0])
        self.world.promises.used_token(connection, job, int(token), status)
        return status == "OK"

    def _note_ack_lease(self, connection: SimConnection, words: Words, reply: Any) -> None:
        job = self.world.promises.history.by_id[words[1]]
        if self._note_token(connection, words, reply, job, words[2]):
            self.world.promises.acked(connection, job, True)

    def _give_back(self, connection: SimConnection, job: JobFacts, token: int, fate: str) -> Script:
        after = b"%d" % (500 + self.pick(4000)) if fate == "nack after" else b"0"
        if token:
            yield self.ask(connection, [[b"NACKLEASE", after, job.id, b"%d" % token]], self._note_nack_lease)
        elif after != b"0":
            yield self.ask(connection, [[b"NACK", b"AFTER", after, job.id]], self._note_nack)
        else:
            yield self.ask(connection, [[b"NACK", job.id]], self._note_nack)

    def _note_nack(self, connection: SimConnection, words: Words, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            self._note_refusal(words, reply)
        elif reply:
            after_ms = int(words[2]) if words[1] == b"AFTER" else 0
            self.world.promises.nacked(connection.machine, words[-1], after_ms)

    def _note_nack_lease(self, connection: SimConnection, words: Words, reply: Any) -> None:
        job = self.world.promises.history.by_id[words[2]]
        if self._note_token(connection, words, reply, job, words[3]):
            self.world.promises.nacked(connection.machine, job.id, int(words[1]))

    def _put_off(self, connection: SimConnection, job: JobFacts, token: int) -> Script:
        if token:
            lease = b"%d" % self._lease_ms
            yield self.ask(connection, [[b"EXTEND", lease, job.id, b"%d" % token]], self._note_extend)
            yield self._lease_ms * MS // 2
        else:
            yield self.ask(connection, [[b"WORKING", job.id]], self._note_working)
            yield job.terms.retry_s * SECOND // 2

    def _note_extend(self, connection: SimConnection, words: Words, reply: Any) -> None:
        job = self.world.promises.history.by_id[words[2]]
        if self._note_token(connection, words, reply, job, words[3]):
            self.world.promises.put_off(job, int(words[1]) * MS)

    def _note_working(self, connection: SimConnection, words: Words, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            self._note_refusal(words, reply)
        else:
            job = self.world.promises.history.by_id[words[1]]
            self.world.promises.put_off(job, job.terms.retry_s * SECOND)

    # Claims.

    def _claim(self, connection: SimConnection) -> Script:
        key = f"{self.name} {self.pick(3)}".encode()
        lease = b"%d" % LEASES_MS[self.pick(3)]
        words = [b"CLAIM", key, b"COUNT", b"%d" % (1 + self.pick(3)), b"LEASE", lease, b"FROM", *self._queues()]
        self._fetched = []
        yield self.ask(connection, [words], self._note_claimed)
        fetched = self._fetched
        yield self.between(5 * MS, 300 * MS)
        if not fetched or not connection.is_open:
            return
        fate = 0 if self.world.is_calm else self.pick(10)
        if fate < 7:
            yield self.ask(connection, [[b"ACKCLAIM", key]], self._note_ack_claim)
        elif fate < 8:
            yield self.ask(connection, [[b"NACKCLAIM", key]], self._note_nack_claim)

    def _note_claimed(self, connection: SimConnection, words: Words, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            self._note_refusal(words, reply)
            return
        lease_us = int(words[words.index(b"LEASE") + 1]) * MS
        for queue, job_id, body, *_ in reply:
            job = self.world.promises.delivered(connection, queue, job_id, body, 0, lease_us, words[1])
            if job is not None:
                self._fetched.append((job, 0))

    def _note_ack_claim(self, connection: SimConnection, words: Words, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            self._note_refusal(words, reply)
        else:
            self.world.promises.claim_acked(connection, [job for job, _ in self._fetched], int(reply))

    def _note_nack_claim(self, connection: SimConnection, words: Words, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            self._note_refusal(words, reply)
        elif reply:  # those of retry 0 stay; of the others, the ones that are still its own go back
            for job, _ in self._fetched:
                self.world.promises.nacked(connection.machine, job.id, 0)
