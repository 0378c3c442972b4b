"""Producers: they add jobs of all kinds, one by one, in pipelines and in batches, on any node."""

from __future__ import annotations

from typing import Any

import hiredis

from penstock.sim.connection import Actor, Script, SimConnection, Words
from penstock.sim.history import AddOptions, JobFacts
from penstock.sim.machine import Machine
from penstock.sim.timeline import MS, SECOND

SHAPES = (("one", 6), ("pipeline", 2), ("batch", 2))
RETRIES_S = ((0, 15), (1, 15), (2, 20), (5, 25), (10, 25))
DELAYS_S = ((0, 75), (1, 9), (3, 9), (8, 7))
TTLS_S = ((86_400, 90), (60, 5), (20, 5))
TIMEOUTS_MS = ((0, 10), (500, 15), (2000, 35), (5000, 40))
PAUSES_US = (500 * MS, 9 * SECOND)
PATIENCE_US = ((3 * SECOND, 10), (20 * SECOND, 90))


class Producer(Actor):
    """One producer."""

    def script(self) -> Script:
        """Add jobs now and then, and change the node sometimes."""
        connection: SimConnection | None = None
        while True:
            yield self.between(*PAUSES_US)
            if self.world.is_over:
                return
            if not self.world.is_producing:
                continue
            if connection is not None and (not connection.is_open or self.pick(4) == 0):
                connection.close_ours()
                connection = None
            if connection is None:
                machines = self.world.machines
                connection = self.connect(machines[self.pick(len(machines))])
                if connection is None:
                    continue
            jobs, requests = self._requests(connection.machine)
            waiting = iter(jobs)

            def note(connection: SimConnection, words: Words, reply: Any, waiting: Any = waiting) -> None:
                self._note(connection, words, reply, waiting)

            yield self.ask(connection, requests, note, self.choose(PATIENCE_US))

    def _note(self, connection: SimConnection, words: Words, reply: Any, waiting: Any) -> None:
        added = self.world.promises.added
        if words[0] == b"ADDJOB":
            added(next(waiting), connection, reply)
            return
        bodies = words[words.index(b"BODIES") + 1 :]
        replies = [reply] * len(bodies) if isinstance(reply, hiredis.ReplyError) else reply
        for one in replies:
            added(next(waiting), connection, one)

    def _requests(self, machine: Machine) -> tuple[list[JobFacts], list[Words]]:
        shape = self.choose(SHAPES)
        terms = self._terms()
        queue = self.world.queues[self.pick(len(self.world.queues))]
        timeout = b"%d" % terms.timeout_ms
        if shape == "one":
            jobs = [self._job(machine, queue, terms)]
            return jobs, [[b"ADDJOB", queue, jobs[0].body, timeout, *_options(terms)]]
        if shape == "batch":
            jobs = [self._job(machine, queue, terms) for _ in range(2 + self.pick(3))]
            return jobs, [[b"ADDJOBS", queue, timeout, *_options(terms), b"BODIES", *(job.body for job in jobs)]]
        jobs, requests = [], []
        for _ in range(2 + self.pick(4)):
            if self.pick(3) == 0:
                terms = self._terms()
            jobs.append(self._job(machine, queue, terms))
            requests.append([b"ADDJOB", queue, jobs[-1].body, b"%d" % terms.timeout_ms, *_options(terms)])
        return jobs, requests

    def _terms(self) -> AddOptions:
        retry_s = self.world.setup.retry_s or self.choose(RETRIES_S)
        replicate = 1 if not retry_s else 1 + self.pick(min(3, self.world.setup.nodes))
        ttl_s = self.choose(TTLS_S)
        return AddOptions(
            replicate, retry_s, self.choose(DELAYS_S), ttl_s, self.pick(100) < 15, self.choose(TIMEOUTS_MS)
        )

    def _job(self, machine: Machine, queue: bytes, terms: AddOptions) -> JobFacts:
        history = self.world.promises.history
        size = 2000 if self.pick(40) == 0 else self.pick(60)
        body = b"%d:" % len(history.jobs) + self.random.randbytes(size)
        job = history.sent(queue, body, terms, machine.index, self.world.timeline.now_us)
        if terms.delay_s:
            job.clocks = [(other.life, other.monotonic_us) for other in self.world.machines]
        return job


def _options(terms: AddOptions) -> Words:
    options = [b"REPLICATE", b"%d" % terms.replicate, b"RETRY", b"%d" % terms.retry_s]
    if terms.delay_s:
        options += [b"DELAY", b"%d" % terms.delay_s]
    if terms.ttl_s != 86_400:
        options += [b"TTL", b"%d" % terms.ttl_s]
    if terms.is_async:
        options.append(b"ASYNC")
    return options
