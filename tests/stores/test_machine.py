"""Any interleaving of producers, workers, crashes, pauses and time: a store against a small model of it.

Each worker has a connection of its own. A crash is a connection that goes away, with whatever it held. Hypothesis
chooses what happens and finds a short history for what fails; in `make test` it always chooses the same.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from penstock import Capability, DeadLetter
from penstock.errors import LeaseLost
from tests.stores.harness import BLOCKING, NEVER, PATIENCE, Differs, Place
from tests.stores.model import Known, Model, Span, Where

IS_LONG = bool(os.environ.get("PENSTOCK_LONG"))
# Histories, and steps of each.
EXAMPLES = {"shifted": (300, 80) if IS_LONG else (60, 50), "real time": (20, 40) if IS_LONG else (2, 20)}
WORKERS = 3
MAX_TRIES = 2
LONG_S = 100_000.0  # a lease that no history outlives
KEYS = ("a", "b")
# Hypothesis takes each rule about as often: what is rarer in life, and ends a history's jobs or stops them, shares one.
OPERATIONS = ("crash", "crash", "redrive", "redrive", "remove", "pause_or_resume", "purge")

NEEDED = {
    Capability.CLAIM,
    Capability.DELAY,
    Capability.EXTEND,
    Capability.PEEK,
    Capability.REMOVE,
    Capability.RESERVE,
    Capability.TOKEN,
}

Result = TypeVar("Result")
picks = st.integers(0, 10_000)
workers = st.integers(0, WORKERS - 1)
counts = st.integers(1, 3)
units = st.sampled_from([0, 1])
leases = st.sampled_from([1, 1, 3])
claim_keys = st.sampled_from(KEYS)


class Bench:
    """The connections, which outlive a history: to open them costs more than most histories."""

    def __init__(self, place: Place, runner: asyncio.Runner) -> None:
        self.place = place
        self.run = runner.run
        self.stores = [self.open() for _ in range(WORKERS)]

    def open(self) -> Any:
        store = self.place.connect()
        self.run(store.open())
        return store

    def reopen(self, worker: int) -> None:
        self.run(self.stores[worker].close())
        self.stores[worker] = self.open()

    def close(self) -> None:
        for store in self.stores:
            self.run(store.close())


class StoreMachine(RuleBasedStateMachine):
    """The rules are calls of the API; the model says what each may give."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.place = bench.place
        self.unit = bench.place.unit
        self.limit = DeadLetter(MAX_TRIES, bench.place.new_name("dead"))
        self.name = bench.place.new_name()
        self.model = Model(MAX_TRIES, bench.place.differs(Differs.OWN_IDS))
        self.pushed = 0
        self.queues = [self._queue(worker) for worker in range(WORKERS)]

    def _queue(self, worker: int) -> Any:
        return self.bench.stores[worker].queue(self.name, dead_letter=self.limit, lease=LONG_S, poll=NEVER)

    def do(self, call: Awaitable[Result]) -> tuple[Result, Span]:
        """What a call gave, and when."""
        before = self.place.now()
        result = self.bench.run(call)
        return result, Span(before, self.place.now())

    def payloads(self, queue: Any) -> set[int]:
        async def look() -> set[int]:
            return {job.payload async for job in queue.jobs()}

        return self.bench.run(look())

    # Producers

    @rule(worker=workers, count=counts, delay=units)
    def push(self, worker: int, count: int, delay: int) -> None:
        payloads = range(self.pushed, self.pushed + count)
        self.pushed += count
        ids, when = self.do(self.queues[worker].push_many(payloads, delay=delay * self.unit))
        for payload, job_id in zip(payloads, ids, strict=True):
            self.model.added(payload, job_id, when.later(delay * self.unit))

    @precondition(lambda self: Capability.UNIQUE in self.bench.stores[0].capabilities)
    @rule(worker=workers, key=st.sampled_from(["x", "y"]), delay=units)
    def push_unique(self, worker: int, key: str, delay: int) -> None:
        payload, self.pushed = self.pushed, self.pushed + 1
        keep_for = 0 if key == "x" else self.unit
        before = self.place.now()
        call = self.queues[worker].push(payload, unique=key, unique_for=keep_for, delay=delay * self.unit)
        job_id, when = self.do(call)
        (holder, is_sure), (_, is_sure_still) = self.model.holders(key, before), self.model.holders(key, when.late)
        is_new = job_id != holder
        if is_sure and is_sure_still:
            assert is_new == (holder is None), f"{key} is held by {holder}"
        if is_new:
            known = self.model.added(payload, job_id, when.later(delay * self.unit))
            self.model.keys[key] = known, keep_for

    # Workers

    @rule(worker=workers, count=counts, lease=leases, is_pop=st.sampled_from([False, False, True]))
    def take(self, worker: int, count: int, lease: int, is_pop: bool) -> None:
        queue = self.queues[worker]
        timeout = PATIENCE if self.model.must_come(self.place.now()) else 0
        lease_s = None if is_pop else lease * self.unit
        call = queue.pop_many(count, timeout) if is_pop else queue.reserve_many(count, timeout, lease=lease_s)
        jobs, when = self.do(call)
        assert len(jobs) <= count
        assert not (jobs and self.model.is_paused)
        for job in jobs:
            self.model.delivered(job, lease_s, when)
        if not is_pop:
            self.see_the_dead()
        if len(jobs) < count and not self.model.is_paused:
            self.model.none_is_ready(when.early)

    @rule(worker=workers, lease=leases)
    def reserve(self, worker: int, lease: int) -> None:
        self.take(worker, 2, lease, False)

    def see_the_dead(self) -> None:
        """Take over from the store which jobs were given up, and check that they may have been."""
        dead = self.payloads(self.bench.stores[0].queue(self.limit.queue))
        for payload in dead:
            known = self.model.jobs[payload]
            if known.where is not Where.DEAD:
                assert self.model.is_spent(known), f"given up too early: {known}"
                assert not known.is_held(self.place.now())
                self.model.end(known, Span(self.place.now(), self.place.now()), Where.DEAD)
        assert dead == {known.payload for known in self.model.dead()}

    @precondition(lambda self: self.model.deliveries)
    @rule(worker=workers, pick=picks)
    def ack(self, worker: int, pick: int) -> None:
        self.end(worker, pick, "ack", 0)

    @precondition(lambda self: self.model.deliveries)
    @rule(worker=workers, pick=picks)
    def nack(self, worker: int, pick: int) -> None:
        self.end(worker, pick, "nack", 0)

    @precondition(lambda self: self.model.deliveries)
    @rule(worker=workers, pick=picks, verb=st.sampled_from(["extend", "extend", "fail", "nack"]), units=units)
    def end(self, worker: int, pick: int, verb: str, units: int) -> None:
        # Mostly a late one, as those are likelier to hold still. Through any connection: that of the job may be gone.
        queue = self.queues[worker]
        known, job = self.model.deliveries[-1 - pick % min(len(self.model.deliveries), 8)]
        is_current = known.job is job
        is_held = is_current and known.is_held(self.place.now() + (self.unit / 2 if self.place.coarse_seconds else 0))
        is_last = self.model.max_tries <= job.tries + 1
        calls = {
            "ack": lambda: queue.ack(job),
            "nack": lambda: queue.nack(job, delay=units * self.unit),
            "extend": lambda: queue.extend(job, (1 + units) * self.unit),
            "fail": lambda: queue.fail(job, "no"),
        }
        try:
            _, when = self.do(calls[verb]())
        except LeaseLost:
            assert not is_held, f"a lease that holds was refused: {known}"
            return
        assert is_current or known.perhaps is job, f"P4: a stale lease was taken: {known}, {verb}"
        if verb == "ack":
            self.model.end(known, when)
        elif verb == "fail" or (verb == "nack" and is_last):
            self.model.end(known, when, Where.DEAD)
        elif verb == "nack":
            self.model.give_back(known, when.later(units * self.unit))
        else:
            known.due = when.later((1 + units) * self.unit)
            known.is_claim_sure = known.claim is None

    # Claims

    @rule(worker=workers, key=claim_keys, count=counts, lease=leases)
    def claim(self, worker: int, key: str, count: int, lease: int) -> None:
        under = self.under(key)
        jobs, when = self.do(self.queues[worker].claim(key, count, lease=lease * self.unit))
        if key in self.model.claims:
            got = {self.model.jobs[job.payload] for job in jobs}
            assert {known for known in under if known.is_claim_sure} <= got <= set(under)
            for job in jobs:
                self.model.delivered_again(job, lease * self.unit, when)
            self.model.claims[key] = list(got)
            return
        assert not (jobs and self.model.is_paused)
        claimed = [self.model.delivered(job, lease * self.unit, when, key) for job in jobs]
        self.see_the_dead()
        if len(jobs) < count and not self.model.is_paused and not self.model.dead():
            self.model.none_is_ready(when.early)
        # Jobs that were given up on the way may have left the key with nothing under it.
        if claimed:
            self.model.claims[key] = claimed
        else:
            self.bench.run(self.queues[worker].ack_claim(key))

    def under(self, key: str) -> list[Known]:
        return [known for known in self.model.claims.get(key, ()) if known.claim == key and known.where is Where.OUT]

    @precondition(lambda self: self.model.claims)
    @rule(worker=workers, key=claim_keys, verb=st.sampled_from(["ack", "nack", "extend"]), units=units)
    def end_claim(self, worker: int, key: str, verb: str, units: int) -> None:
        under = self.under(key)
        queue = self.queues[worker]
        calls = {
            "ack": lambda: queue.ack_claim(key),
            "nack": lambda: queue.nack_claim(key, delay=units * self.unit),
            "extend": lambda: queue.extend_claim(key, (1 + units) * self.unit),
        }
        sure = [known for known in under if known.is_claim_sure and known.is_held(self.place.now())]
        count, when = self.do(calls[verb]())
        assert len(sure) <= count <= len(under)
        if verb != "extend":
            self.model.claims.pop(key, None)
        if verb == "ack":
            left = self.payloads(queue)
            gone = [known for known in under if known.payload not in left]
            assert len(gone) == count
            for known in gone:
                self.model.end(known, when)
            return
        for known in under if count == len(under) else sure:
            if verb == "nack":
                self.model.give_back(known, when.later(units * self.unit))
            else:
                known.due = when.later((1 + units) * self.unit)
                known.job, known.perhaps = None, known.job or known.perhaps
        if count < len(under):
            for known in set(under) - set(sure):
                known.due = Span(min(known.due.early, when.early), when.later((1 + units) * self.unit).late)
                known.is_claim_sure = False

    # Operators and accidents

    @rule(worker=workers, pick=picks, what=st.sampled_from(OPERATIONS))
    def operate(self, worker: int, pick: int, what: str) -> None:
        if what in {"remove", "redrive"} and not (self.model.jobs if what == "remove" else self.model.dead()):
            return
        getattr(self, what)(worker, pick)

    def crash(self, worker: int, _: int) -> None:
        self.bench.reopen(worker)
        self.queues[worker] = self._queue(worker)

    def pause_or_resume(self, worker: int, _: int) -> None:
        self.model.is_paused = not self.model.is_paused
        queue = self.queues[worker]
        self.bench.run(queue.pause() if self.model.is_paused else queue.resume())
        self.bench.run(self.all_heard())
        assert self.bench.run(queue.paused()) == self.model.is_paused

    async def all_heard(self) -> None:
        """A signal takes its time; a consumer that doesn't listen reads for itself."""
        async with asyncio.timeout(PATIENCE):
            for queue in self.queues:
                while queue._pause._known not in {None, self.model.is_paused}:
                    if not queue._listener.is_listening:
                        await queue.paused()
                    await asyncio.sleep(0.001)

    def remove(self, worker: int, pick: int) -> None:
        known = list(self.model.jobs.values())[pick % len(self.model.jobs)]
        (is_removed,), when = self.do(self.queues[worker].remove(known.id))
        if not known.is_here or known.is_held(when.late):
            assert not is_removed
        if known.where is Where.WAITING:
            assert is_removed
        if is_removed:
            self.model.end(known, when)

    def purge(self, worker: int, _: int) -> None:
        count, when = self.do(self.queues[worker].purge())
        left = self.payloads(self.queues[worker])
        gone = [known for known in self.model.here() if known.payload not in left]
        assert len(gone) == count
        assert not any(known.is_held(when.late) for known in gone)
        assert all(known.payload not in left for known in self.model.here() if known.where is Where.WAITING)
        for known in gone:
            self.model.end(known, when)

    def redrive(self, worker: int, pick: int) -> None:
        limit = None if pick % 2 else 1
        dead = self.bench.stores[worker].queue(self.limit.queue)
        count, when = self.do(dead.redrive(limit=limit))
        assert count == len(self.model.dead()) if limit is None else count == 1
        left = self.payloads(dead)
        back = [known for known in self.model.dead() if known.payload not in left]
        assert len(back) == count
        for known in back:
            self.model.redriven(known, when)
        if self.model.has_own_ids:
            self.bench.run(self.see_ids(back))

    async def see_ids(self, back: list[Known]) -> None:
        ids = {job.payload: job.id async for job in self.queues[0].jobs()}
        for known in back:
            known.id = ids[known.payload]

    @rule(tenths=st.sampled_from([5, 11, 11, 35]))
    def time_passes(self, tenths: int) -> None:
        self.bench.run(self.place.advance(tenths / 10 * self.unit))

    # What holds at all times, and at the end

    @invariant()
    def sizes_agree(self) -> None:
        sizes, when = self.do(self.queues[0].sizes())
        self.model.check_sizes(sizes, *when)

    def teardown(self) -> None:
        """When all leases and delays are over, what was not ended comes once more, and then the queue is empty."""
        if sys.exc_info()[0] is not None:
            return  # the history has failed: what comes after it means nothing
        if self.model.is_paused:
            self.pause_or_resume(0, 0)
        self.bench.run(self.place.advance(4 * self.unit))
        while self.model.must_come(self.place.now()):
            jobs, when = self.do(self.queues[0].reserve_many(100, PATIENCE, lease=LONG_S))
            assert jobs, "what is ready doesn't come"
            for job in jobs:
                self.model.delivered(job, LONG_S, when)
            assert all(self.bench.run(self.queues[0].ack_many(jobs)))
            for job in jobs:
                self.model.end(self.model.jobs[job.payload], when)
        assert self.bench.run(self.queues[0].reserve_many(100)) == []
        self.see_the_dead()
        assert self.bench.run(self.queues[0].total()) == 0
        assert not self.model.here()


@pytest.mark.slow
@pytest.mark.timeout(3600 if IS_LONG else 600)
def test_any_history_keeps_the_promises(place: Place) -> None:
    with asyncio.Runner() as runner:
        if missing := NEEDED - runner.run(place.capabilities()):
            pytest.skip(f"{place.name} lacks {', '.join(sorted(missing))}")
        bench = Bench(place, runner)
        examples, steps = EXAMPLES["shifted" if place.can_shift else "real time"]
        chosen = settings(
            max_examples=max(2, round(examples * place.kind.histories / (3 if place.form == BLOCKING else 1))),
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        try:
            run_state_machine_as_test(lambda: StoreMachine(bench), settings=chosen)
        finally:
            bench.close()
