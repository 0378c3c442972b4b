"""A simulated cluster for unique keys: the state machines of `penstock.broker.core.keys`, one virtual clock, one seed.

Producers add jobs with few keys on any node, and add again what wasn't answered. Workers end the jobs. Meanwhile
messages are lost, doubled, held up and overtaken, the network is cut, processes die, also within a turn, machines lose
their power or their disk, clocks run apart, and nodes join, are drained and are forgotten. Then the faults end.

What is checked:

P11      at most one job with a key is accepted at a time. A job is accepted when it is answered as added or as the one
         that has the key, or may be delivered; until a worker ends it, or no node has it any more
refused  a job whose add was refused is never accepted
kept     a key isn't taken before its keep time is over
lost     an accepted job is there until a worker ends it, if no node that had it has lost what it wrote
alive    2 node timeouts + 30 s after the faults, each key has its job or is free, and adds succeed on every node
memory   when all jobs have ended, no node keeps anything of their keys

There are three sorts of runs. `always` never loses what was written, but by a lost disk. `everysec` loses the last
second when the power fails. In both, one node at a time loses something, so that a majority of the homes keep theirs.
`careless` is without that care, and without the checks of P11 and kept: but everything must go on after it.

    python -m tests.sim.keyed_cluster --seeds 1-1000
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any, Final, NamedTuple

from penstock.broker.core.keys.copies import LIVE, NODE_TIMEOUT_MS, WAITING, KeyedJob
from penstock.broker.core.keys.inputs import KeyNode
from penstock.broker.core.keys.members import SavedMembers
from penstock.broker.core.keys.messages import (
    NO_BALLOT,
    Ballot,
    CopySent,
    KeyMessage,
    KeyRecord,
)
from penstock.broker.core.keys.proposals import ADDED, DUPLICATE, REFUSED
from penstock.sim.timeline import MS, SECOND, Timeline

ALWAYS: Final = "always"
EVERYSEC: Final = "everysec"
CARELESS: Final = "careless"

FAULTS_FROM: Final = 2 * SECOND
HEAL: Final = 32 * SECOND
BOUND: Final = (2 * NODE_TIMEOUT_MS + 30_000) * MS  # after the faults
NODES_MAX: Final = 7
TICK_US: Final = 200 * MS
SLACK: Final = 0.8  # of a keep time: clocks run apart by up to 10 %, and each of two may
PROBE_MS: Final = 8000  # an add after the faults has this long


class Violation(NamedTuple):
    """A check that failed."""

    at_us: int
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.at_us / 1e6:9.3f} {self.check}: {self.text}"


class Request:
    """What a producer wants: one job with this key. It may take several adds."""

    def __init__(self, producer: int, key: bytes, keep_ms: int, tries: int) -> None:
        self.producer = producer
        self.key = key
        self.keep_ms = keep_ms
        self.tries = tries
        self.waits_for = b""
        self.outcome = ""
        self.owner = b""  # the job that has the key


class KnownJob:
    """What became of one job."""

    def __init__(self, job_id: bytes, key: bytes, keep_ms: int) -> None:
        self.id = job_id
        self.key = key
        self.keep_ms = keep_ms
        self.accepted_us = -1
        self.ended_us = -1
        self.is_lost = False
        self.was_hit = False  # a node that had it has lost what it wrote
        self.is_refused = False
        self.has_worker = False


def _drops_nothing(src: int, dst: int, message: KeyMessage) -> bool:
    return False


class KeyMachine:
    """One node with its disk and clock; also the port of its state machine."""

    def __init__(self, cluster: KeyedCluster, index: int) -> None:
        self.cluster = cluster
        self.index = index
        self.id = b"node-%d" % index
        self.random = Random(f"{cluster.seed} node {index}")
        self.node: KeyNode | None = None
        self.life = 0
        self.is_stopped = False
        self.is_gone = False  # for good
        self.cuts_turn = 0  # the next turn with something to write ends the process: 1 before that, 2 after
        self.rate = 1.0
        self.born_us = 0
        self.saved: SavedMembers | None = None
        self.log: list[tuple[int, tuple[Any, ...]]] = []
        self.synced = 0
        self.lacks_end = False
        self.lacks_members = False  # it doesn't know which member it is, if any
        self.is_leaving = False
        self._turn_log: list[tuple[Any, ...]] = []
        self._turn_saved: SavedMembers | None = None
        self._sends: list[tuple[bytes, KeyMessage]] = []
        self._answers: list[tuple[object, str, bytes]] = []
        self._lives: list[KeyedJob] = []
        self._held_up: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    # The port.

    def send(self, node_id: bytes, message: KeyMessage) -> None:
        self._sends.append((node_id, message))

    def save(self, saved: SavedMembers) -> None:
        self._turn_saved = saved

    def append_record(self, record: KeyRecord, left_ms: int) -> None:
        self._turn_log.append(("record", record, left_ms))

    def append_forgotten(self, key: bytes, floor: Ballot) -> None:
        self._turn_log.append(("forgotten", key, floor))

    def append_copy(self, job: KeyedJob) -> None:
        self._turn_log.append(("copy", job.key, job.id, job.body, job.keep_ms, job.ballot, job.state, job.generation))

    def append_copy_gone(self, job_id: bytes, has_ended: bool) -> None:
        self._turn_log.append(("gone", job_id, has_ended))

    def live(self, job: KeyedJob) -> None:
        self._lives.append(job)

    def answer(self, waiter: object, outcome: str, job_id: bytes) -> None:
        self._answers.append((waiter, outcome, job_id))

    def chance(self, choices: int) -> int:
        return int(self.random.random() * choices)

    # Turns.

    @property
    def is_up(self) -> bool:
        return self.node is not None

    def now_ms(self) -> int:
        return 1000 + int((self.cluster.timeline.now_us - self.born_us) * self.rate) // MS

    def turn(self, act: Callable[..., None], *args: Any) -> None:
        """Let something happen to the node, then write, send and answer, in that order."""
        if self.node is None:
            return
        if self.is_stopped:
            self._held_up.append((act, args))
            return
        act(*args)
        self._flush()

    def _flush(self) -> None:
        cluster = self.cluster
        writes = bool(self._turn_log or self._turn_saved)
        if writes and self.cuts_turn == 1:
            self.kill()
            return
        if self._turn_saved is not None:
            self.saved, self._turn_saved = self._turn_saved, None
            cluster.decided(self.saved)
            if self.node is not None and self.node.members.is_member:
                self.lacks_members = False
        if self._turn_log:
            self.log += [(cluster.timeline.now_us, entry) for entry in self._turn_log]
            self._turn_log = []
            if cluster.policy == ALWAYS:
                self.synced = len(self.log)
        if writes and self.cuts_turn == 2:
            self.kill()
            return
        sends, self._sends = self._sends, []
        answers, self._answers = self._answers, []
        lives, self._lives = self._lives, []
        for job in lives:
            cluster.accepted(job.id, f"live on {self.index}")
        for node_id, message in sends:
            cluster.send(self, node_id, message)
        for waiter, outcome, job_id in answers:
            cluster.answered(self, waiter, outcome, job_id)

    def tick(self, life: int) -> None:
        if life != self.life or self.node is None:
            return
        if not self.is_stopped:
            self.turn(self._tick)
        self.cluster.timeline.after(TICK_US, self.tick, life)

    def _tick(self) -> None:
        assert self.node is not None
        self.node.tick(self.now_ms())

    def sync(self) -> None:
        self.synced = len(self.log)

    # Lives.

    def start(self) -> None:
        """Start a process on what the disk has."""
        cluster = self.cluster
        if self.is_up or self.is_gone:
            return
        self.life += 1
        self.born_us = cluster.timeline.now_us - self.chance(1_000_000)
        self.cuts_turn = 0
        self.is_stopped = False
        self._held_up = []
        self.node = node = KeyNode(self.id, self, (self.index << 20) + self.life)
        now_ms = self.now_ms()
        if self.saved is not None:
            node.restore(self.saved, self.lacks_end)
        self.lacks_end = False
        for at_us, entry in self.log:
            self._restore(node, at_us, entry, now_ms)
        node.meet([machine.id for machine in cluster.machines])
        if self.is_leaving:
            node.leave()
        for machine in cluster.machines:
            if machine.is_gone:
                node.forget(machine.id)
        for job in node.copies.jobs.values():
            if job.state == LIVE:
                self._lives.append(job)
        self._flush()
        cluster.timeline.after(self.chance(TICK_US), self.tick, self.life)

    def _restore(self, node: KeyNode, at_us: int, entry: tuple[Any, ...], now_ms: int) -> None:
        if entry[0] == "record":
            left_ms = max(0, entry[2] - (self.cluster.timeline.now_us - at_us) // MS)
            node.homes.restore(entry[1], left_ms, now_ms)
        elif entry[0] == "forgotten":
            node.homes.restore_forgotten(entry[1], entry[2])
        elif entry[0] == "copy":
            node.copies.restore(KeyedJob(*entry[1:]), now_ms)
        else:
            node.copies.restore_gone(entry[1], entry[2])

    def kill(self) -> None:
        """The process ends; what it has written stays."""
        if self.node is None:
            return
        self.node = None
        self._turn_log, self._turn_saved, self._sends, self._answers, self._lives = [], None, [], [], []
        self._held_up = []
        self.cluster.died(self)

    def cut_power(self) -> None:
        """The machine is off: what was not synced is lost, or a part of it."""
        self.kill()
        if self.cluster.policy != ALWAYS:
            self._hit()
            kept = self.random.randint(self.synced, len(self.log))
            self.log = self.log[:kept]
            self.lacks_end = True
        self.synced = len(self.log)

    def wipe(self, with_members: bool) -> None:
        """The journal is gone, perhaps with all else."""
        self.kill()
        self._hit()
        self.log, self.synced = [], 0
        self.lacks_end = True
        if with_members:
            self.saved = None
            self.lacks_end = False
            self.lacks_members = True

    def _hit(self) -> None:
        """Note the jobs that may be lost with this machine's journal."""
        for _, entry in self.log:
            if entry[0] == "copy":
                self.cluster.jobs[entry[2]].was_hit = True

    def give_up(self) -> None:
        """The machine is gone for good."""
        self.kill()
        self._hit()
        self.is_gone = True

    def stop(self) -> None:
        self.is_stopped = True

    def go_on(self) -> None:
        self.is_stopped = False
        held_up, self._held_up = self._held_up, []
        for act, args in held_up:
            self.turn(act, *args)

    def has(self, job_id: bytes) -> bool:
        """Whether the job is here, in memory or on disk."""
        if self.is_gone:
            return False
        if self.node is not None:
            return job_id in self.node.copies.jobs
        has = False
        for _, entry in self.log:
            if entry[0] == "copy" and entry[2] == job_id:
                has = True
            elif entry[0] == "gone" and entry[1] == job_id:
                has = False
        return has


class KeyedCluster:
    """One run."""

    def __init__(self, seed: int, trace: bool = False, nodes: int = 0, policy: str = "", faults: str = "") -> None:
        self.seed = seed
        self.timeline = Timeline()
        self.random = random = Random(f"{seed} faults")
        self.net = Random(f"{seed} network")
        self.policy = policy or (ALWAYS, ALWAYS, EVERYSEC, EVERYSEC, CARELESS)[seed % 5]
        self.trace: list[str] | None = [] if trace else None
        self.violations: list[Violation] = []
        self.digest = blake2b(digest_size=16)
        self.messages = 0
        self.sent: dict[str, int] = {}  # messages to other nodes, by type
        self.outcomes: dict[str, int] = {}
        self.faults: list[str] = []
        self.machines = [KeyMachine(self, index) for index in range(nodes or random.choice((3, 3, 3, 4, 5)))]
        self.keys = [b"key-%d" % number for number in range(random.choice((1, 2, 4)))]
        self.jobs: dict[bytes, KnownJob] = {}
        self.by_key: dict[bytes, list[KnownJob]] = {key: [] for key in self.keys}
        self.loss = self.doubles = self.late = 0.0
        self.late_us = 0
        self.cuts: dict[tuple[int, int], int] = {}
        self.drops: Callable[[int, int, KeyMessage], bool] = _drops_nothing
        self.lost_data = False
        self.configurations: dict[int, dict[bytes, int]] = {}
        self.is_calm = False
        self.is_producing = True
        self.has_workers = True
        self.slow_workers = random.random() < 0.3
        # A run with some of the faults, and many of each, finds what one with a few of all doesn't.
        kinds = [name for name in dict.fromkeys(FAULT_NAMES) if random.random() < 0.5]
        self.fault_names = [name for name in FAULT_NAMES if name in kinds] or list(FAULT_NAMES)
        self.fault_names = faults.split(",") if faults else self.fault_names
        names = [machine.id for machine in self.machines]
        for machine in self.machines:
            machine.start()
            assert machine.node is not None
            machine.turn(machine.node.found, names)

    # What happens.

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.timeline.now_us / 1e6:9.4f} {text}")

    def fail(self, check: str, text: str) -> None:
        self.say(f"VIOLATION {check}: {text}")
        if len(self.violations) < 10:
            self.violations.append(Violation(self.timeline.now_us, check, text))

    def up(self) -> list[KeyMachine]:
        return [machine for machine in self.machines if machine.is_up and not machine.is_stopped]

    def find(self, node_id: bytes) -> KeyMachine | None:
        index = int(node_id[5:])
        return self.machines[index] if index < len(self.machines) else None

    def decided(self, saved: SavedMembers) -> None:
        """A node is in a configuration: all others with that number have the same."""
        current = saved.current
        if current is not None and self.configurations.setdefault(current.number, current.members) != current.members:
            self.fail("P11", f"there are two configurations with number {current.number}")

    # The network.

    def send(self, src: KeyMachine, node_id: bytes, message: KeyMessage) -> None:
        dst = self.find(node_id)
        if dst is None:
            return
        self.messages += 1
        if dst is src:
            self.timeline.after(1, self._arrive, src.id, dst, dst.life, message)
            return
        name = type(message).__name__
        self.sent[name] = self.sent.get(name, 0) + 1
        if (src.index, dst.index) in self.cuts or self.drops(src.index, dst.index, message):
            return
        chance = self.net.random
        if self.loss and chance() < self.loss:
            return
        copies = 2 if self.doubles and chance() < self.doubles else 1
        for number in range(copies):
            wait_us = 100 + int(chance() * 400)
            if self.late and chance() < self.late:
                wait_us += int(chance() * self.late_us)
            if number:
                wait_us += int(chance() * 4 * SECOND)
            # A late message may meet the next process of its receiver: connections protect from less than one hopes.
            self.timeline.after(wait_us, self._arrive, src.id, dst, dst.life if not number else -1, message)

    def _arrive(self, src: bytes, dst: KeyMachine, life: int, message: KeyMessage) -> None:
        if dst.node is None or (life >= 0 and life != dst.life):
            return
        if self.trace is not None:
            self.say(f"{src.decode()} -> {dst.index} {message}")
        dst.turn(self._receive, dst, src, message)

    def _receive(self, dst: KeyMachine, src: bytes, message: KeyMessage) -> None:
        assert dst.node is not None
        dst.node.receive(src, message, dst.now_ms())

    # Producers.

    def produce(self, producer: int) -> None:
        """Begin another request."""
        if self.is_producing:
            random = self.random
            request = Request(producer, random.choice(self.keys), random.choice((0, 0, 1000, 4000)), 6)
            self.add(request)

    def _rest(self, request: Request) -> None:
        self.timeline.after(int(self.random.random() ** 2 * 2 * SECOND), self.produce, request.producer)

    def add(self, request: Request, machine: KeyMachine | None = None, timeout_ms: int = 2000) -> None:
        """Add a job on a node: another job each time, as a client does that adds again."""
        up = [one for one in self.machines if one.is_up]
        if not up and machine is None:
            self.timeline.after(500 * MS, self.add, request)
            return
        machine = machine or self.random.choice(up)
        job = KnownJob(b"job-%d" % len(self.jobs), request.key, request.keep_ms)
        self.jobs[job.id] = job
        self.by_key[request.key].append(job)
        request.waits_for = job.id
        replicate = self.random.choice((1, 2, 2, 3)) if request.producer >= 0 else 1
        sent = CopySent(job.key, job.id, b"body", job.keep_ms, NO_BALLOT)
        self.say(f"add {job.id!r} of {job.key!r} on {machine.index}, {replicate} copies")
        machine.turn(self._add, machine, sent, replicate, (request, job.id), timeout_ms)
        self.timeline.after((timeout_ms + 1500) * MS, self._not_answered, request, job.id)

    def _add(self, machine: KeyMachine, job: CopySent, replicate: int, waiter: object, timeout_ms: int) -> None:
        assert machine.node is not None
        machine.node.add(job, replicate, waiter, timeout_ms, machine.now_ms())

    def _not_answered(self, request: Request, job_id: bytes) -> None:
        if request.waits_for == job_id:
            self._again(request)

    def _again(self, request: Request) -> None:
        request.waits_for = b""
        request.tries -= 1
        if request.tries > 0 and request.producer >= 0:
            self.add(request)
        elif request.producer >= 0:
            self._rest(request)

    def answered(self, machine: KeyMachine, waiter: Any, outcome: str, job_id: bytes) -> None:
        request, own_id = waiter
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.say(f"{machine.index} answers {own_id!r}: {outcome} {job_id!r}")
        self.digest.update(f"{self.timeline.now_us} {own_id!r} {outcome} {job_id!r}".encode())
        if outcome in (ADDED, DUPLICATE):
            self.accepted(job_id, f"{outcome} by {machine.index}")
        if outcome == DUPLICATE:
            self._check_duplicate(self.jobs[own_id], self.jobs[job_id])
        elif outcome == REFUSED:
            self.jobs[own_id].is_refused = True
            self._check_refused(self.jobs[own_id])
        if request.waits_for != own_id or (not self.is_calm and self.random.random() < 0.1):
            return  # the answer is lost
        request.outcome, request.owner = outcome, job_id
        request.waits_for = b""
        if outcome in (ADDED, DUPLICATE):
            if request.producer >= 0:
                self._rest(request)
        else:
            self.timeline.after(200 * MS, self._again, request)

    def died(self, machine: KeyMachine) -> None:
        self.say(f"{machine.index} ends")

    # Jobs.

    def accepted(self, job_id: bytes, how: str) -> None:
        """A job is accepted: no other with its key may be."""
        job = self.jobs[job_id]
        if self.has_workers and not job.has_worker:
            job.has_worker = True
            wait_us = int(self.random.random() ** 2 * (20 if self.slow_workers else 4) * SECOND)
            self.timeline.after(wait_us, self._work, job)
        if job.accepted_us >= 0:
            return
        now_us = self.timeline.now_us
        job.accepted_us = now_us
        self.say(f"accepted {job_id!r}: {how}")
        self._check_refused(job)
        if self.policy == CARELESS:
            return
        for other in self.by_key[job.key]:
            if other is job or other.accepted_us < 0:
                continue
            if other.ended_us < 0 and other.was_hit and not self._is_anywhere(other):
                other.ended_us, other.is_lost = now_us, True
            if other.ended_us < 0 and job.ended_us < 0:
                self.fail("P11", f"{job.id!r} is accepted ({how}), and {other.id!r} is there")
            elif other.ended_us >= 0 and not other.is_lost and not self.lost_data:
                if 0 <= now_us - other.ended_us < other.keep_ms * MS * SLACK and job.ended_us < 0:
                    self.fail("kept", f"{job.id!r} is accepted too early after {other.id!r}")

    def _check_refused(self, job: KnownJob) -> None:
        if job.is_refused and job.accepted_us >= 0:
            self.fail("refused", f"{job.id!r} was refused, and is accepted")

    def _check_duplicate(self, job: KnownJob, other: KnownJob) -> None:
        if job.key != other.key:
            self.fail("P11", f"{other.id!r} has another key than {job.id!r}")

    def _is_anywhere(self, job: KnownJob) -> bool:
        return any(machine.has(job.id) for machine in self.machines)

    def _work(self, job: KnownJob) -> None:
        """A worker gets the job wherever it may be delivered, and ends it; again where the end hasn't come."""
        holders = [machine for machine in self.up() if self._is_live(machine, job)]
        if holders:
            machine = self.random.choice(holders)
            self.say(f"{job.id!r} is done on {machine.index}")
            if job.ended_us < 0:
                job.ended_us = self.timeline.now_us
            machine.turn(self._end, machine, job.id)
        if self.timeline.now_us < HEAL + BOUND // 2:
            self.timeline.after((SECOND if job.ended_us < 0 else 4 * SECOND), self._work, job)

    @staticmethod
    def _is_live(machine: KeyMachine, job: KnownJob) -> bool:
        copy = machine.node.copies.jobs.get(job.id) if machine.node is not None else None
        return copy is not None and copy.state == LIVE

    def _end(self, machine: KeyMachine, job_id: bytes) -> None:
        assert machine.node is not None
        machine.node.end(job_id, machine.now_ms())

    def end_everything(self) -> None:
        """Workers end whatever can be delivered."""
        for machine in self.up():
            assert machine.node is not None
            for copy in list(machine.node.copies.jobs.values()):
                if copy.state == LIVE:
                    job = self.jobs[copy.id]
                    job.ended_us = job.ended_us if job.ended_us >= 0 else self.timeline.now_us
                    machine.turn(self._end, machine, copy.id)

    # Faults.

    def is_settled(self, but: KeyMachine | None = None) -> bool:
        """Whether all nodes but one are in one configuration of three or more, and may vote on all."""
        nodes = [machine.node for machine in self.machines if machine is not but and not machine.is_gone]
        if any(node is None for node in nodes):
            return False
        here = [node for node in nodes if node is not None]
        numbers = {node.members.number for node in here}
        current = here[0].members.current
        if len(numbers) != 1 or current is None or len(current.members) < 3:
            return False
        if any(machine.is_gone and machine.id in current.members for machine in self.machines):
            return False
        members = [node for node in here if node.my_id in current.members]
        if but is not None and but.id in current.members and but.id not in members[0].members.settled:
            return False
        return all(node.members.is_settled for node in members)

    def may_lose(self, machine: KeyMachine) -> bool:
        """Whether a node may lose what it wrote: only one at a time does, but in careless runs."""
        if self.policy == CARELESS:
            self.lost_data = True
            return True
        if machine.lacks_end or machine.is_leaving or not self.is_settled(machine):
            return False
        node = machine.node
        if node is None or not node.members.is_settled or node.members.number != self.number():
            return False
        self.lost_data = True
        return True

    def number(self) -> int:
        """The highest configuration of all."""
        return max(machine.node.members.number for machine in self.machines if machine.node is not None)

    def fault(self) -> None:
        """Begin a fault, and plan the next."""
        random = self.random
        if self.timeline.now_us >= HEAL - 2 * SECOND:
            return
        name = random.choice(self.fault_names)
        length_us = 200 * MS + int(random.random() ** 2 * 8 * SECOND)
        self.say(f"fault {name} for {length_us / 1e6:.1f} s")
        self.faults.append(name)
        getattr(self, f"_fault_{name}")(length_us)
        self.timeline.after(int(random.random() * 2 * SECOND), self.fault)

    def _fault_messages(self, length_us: int) -> None:
        random = self.random
        self.loss = random.choice((0, 0.05, 0.2, 0.5))
        self.doubles = random.choice((0, 0.1, 0.5))
        self.late = random.choice((0, 0.1, 0.5))
        self.late_us = random.choice((5, 100, 2500)) * MS
        self.timeline.after(length_us, self._clear_messages)

    def _clear_messages(self) -> None:
        self.loss = self.doubles = self.late = 0.0

    def _cut(self, pairs: list[tuple[int, int]], length_us: int) -> None:
        for pair in pairs:
            self.cuts[pair] = self.cuts.get(pair, 0) + 1
        self.timeline.after(length_us, self._mend, pairs)

    def _mend(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            if self.cuts.get(pair):
                self.cuts[pair] -= 1
                if not self.cuts[pair]:
                    del self.cuts[pair]

    def _fault_halves(self, length_us: int) -> None:
        count = len(self.machines)
        here = set(self.random.sample(range(count), self.random.randint(1, count - 1)))
        there = set(range(count)) - here
        self._cut([pair for a in here for b in there for pair in ((a, b), (b, a))], length_us)

    def _fault_one_way(self, length_us: int) -> None:
        a = self.random.randrange(len(self.machines))
        others = [b for b in range(len(self.machines)) if b != a and self.random.random() < 0.7]
        self._cut([(a, b) if self.random.random() < 0.5 else (b, a) for b in others], length_us)

    def _fault_kill(self, length_us: int) -> None:
        machine = self.random.choice(self.machines)
        machine.kill()
        self.timeline.after(length_us, machine.start)

    def _fault_turn(self, length_us: int) -> None:
        machine = self.random.choice(self.machines)
        machine.cuts_turn = self.random.choice((1, 2))
        self.timeline.after(length_us, machine.start)

    def _fault_restart_all(self, length_us: int) -> None:
        is_power = self.policy != EVERYSEC and self.random.random() < 0.5
        if is_power and self.policy == CARELESS:
            self.lost_data = True
        for machine in self.machines:
            if is_power:
                machine.cut_power()
            else:
                machine.kill()
            self.timeline.after(int(self.random.random() * length_us), machine.start)

    def _fault_power(self, length_us: int) -> None:
        machine = self.random.choice(self.machines)
        if self.policy == ALWAYS or self.may_lose(machine):
            machine.cut_power()
            self.timeline.after(length_us, machine.start)

    def _fault_wipe(self, length_us: int) -> None:
        machine = self.random.choice(self.machines)
        if self.may_lose(machine):
            # Of the lists of members, a majority must be left, or an operator has to begin a new one.
            with_members = self.random.random() < 0.5 and not any(other.lacks_members for other in self.machines)
            is_enough = len(self.configurations[max(self.configurations)]) > 2 and self.is_settled(machine)
            with_members = with_members and is_enough
            machine.wipe(with_members)
            self.timeline.after(length_us, machine.start)

    def _fault_rotate(self, length_us: int) -> None:
        """One node is cut off, a second loses what it wrote, and then the third is cut off in place of the first."""
        first, second, third = self.random.sample(self.machines, 3)
        if not self.may_lose(second):
            return
        everybody = range(NODES_MAX)
        around = [
            [pair for b in everybody if b != one.index for pair in ((one.index, b), (b, one.index))]
            for one in (first, third)
        ]
        self._cut(around[0], 1500 * MS)
        self.timeline.after(1200 * MS, self._lose, second)
        self.timeline.after(1450 * MS, second.start)
        self.timeline.after(1480 * MS, self._cut, around[1], length_us)

    def _lose(self, machine: KeyMachine) -> None:
        if not self.may_lose(machine):
            return  # another one has lost something meanwhile
        if self.policy == EVERYSEC:
            machine.cut_power()
        else:
            machine.wipe(False)

    def _fault_stop(self, length_us: int) -> None:
        machine = self.random.choice(self.machines)
        if machine.is_up and not machine.is_stopped:
            machine.stop()
            self.timeline.after(length_us, machine.go_on)

    def _fault_drift(self, length_us: int) -> None:
        machine = self.random.choice(self.machines)
        now = machine.now_ms()
        machine.rate = self.random.choice((0.9, 0.97, 1.03, 1.1))
        machine.born_us = self.timeline.now_us - int((now - 1000) * MS / machine.rate) - MS

    def _fault_join(self, length_us: int) -> None:
        if len(self.machines) < NODES_MAX:
            machine = KeyMachine(self, len(self.machines))
            self.machines.append(machine)
            machine.start()

    def _staying(self) -> list[KeyMachine]:
        return [machine for machine in self.machines if not machine.is_leaving and not machine.is_gone]

    def _fault_drain(self, length_us: int) -> None:
        """A node leaves for good; it is taken away when it says that it can be."""
        staying = self._staying()
        if len(staying) > 3:
            machine = self.random.choice(staying)
            machine.is_leaving = True
            if machine.node is not None:
                machine.turn(machine.node.leave)

    def _fault_regret(self, length_us: int) -> None:
        """A node that leaves stays, or comes back."""
        leaving = [machine for machine in self.machines if machine.is_leaving and not machine.is_gone]
        if leaving:
            machine = self.random.choice(leaving)
            machine.is_leaving = False
            if machine.node is not None:
                machine.turn(machine.node.stay)

    def _fault_forget(self, length_us: int) -> None:
        """A machine is lost for good, and the operator says so on every node."""
        staying = self._staying()
        machine = self.random.choice(self.machines)
        if len(staying) > 3 and not machine.is_gone and (self.policy == CARELESS or self.may_lose(machine)):
            if self.policy == CARELESS and (
                not self.is_settled(machine) or any(other.lacks_members for other in self.machines)
            ):
                return
            self.lost_data = True
            machine.give_up()
            for other in self.machines:
                if other.node is not None:
                    other.turn(other.node.forget, machine.id)

    def heal(self) -> None:
        """All faults end."""
        self.say("everything heals")
        self.is_calm = True
        self._clear_messages()
        self.cuts.clear()
        for machine in self.machines:
            machine.cuts_turn = 0
            machine.go_on()
            machine.start()

    def take_away(self) -> None:
        """Take away the nodes that have left."""
        for machine in self.machines:
            if machine.is_leaving and machine.node is not None and machine.node.has_left:
                self.say(f"{machine.index} is taken away")
                machine.kill()
                machine.is_gone = True
        self.timeline.after(SECOND, self.take_away)

    def sync(self) -> None:
        """Sync the journals, as `everysec` does."""
        for machine in self.machines:
            if machine.is_up and not machine.is_stopped:
                machine.sync()
        self.timeline.after(SECOND, self.sync)

    # The end.

    def check_alive(self) -> None:
        """Each key has its job, or is free; and adds succeed, on every node."""
        for machine in self.machines:
            if machine.is_gone:
                continue
            assert machine.node is not None
            for copy in machine.node.copies.jobs.values():
                if copy.state == WAITING:
                    self.fail("alive", f"{copy.id!r} still waits on {machine.index}")
        for key in self.keys:
            for machine in self.machines:
                if machine.is_gone or machine.is_leaving:
                    continue
                request = Request(-1, key, 0, 1)
                self.add(request, machine, PROBE_MS)
                for _ in range(2 * PROBE_MS // 500):
                    if request.outcome:
                        break
                    self.timeline.run(self.timeline.now_us + 500 * MS)
                if request.outcome not in (ADDED, DUPLICATE):
                    self.fail("alive", f"an add of {key!r} on {machine.index} ends as {request.outcome or 'nothing'}")
                elif request.outcome == DUPLICATE:
                    self._check_owner(request.owner)

    def _check_owner(self, job_id: bytes) -> None:
        """A key belongs to a job that is there, or ended within its keep time, give or take the time bound."""
        job = self.jobs[job_id]
        if job.ended_us >= 0 and self.timeline.now_us - job.ended_us > job.keep_ms * MS / SLACK + BOUND:
            self.fail("alive", f"{job_id!r} ended at {job.ended_us / 1e6:.3f}, and still has its key")
        elif job.ended_us < 0 and not self._is_anywhere(job):
            self.fail("alive", f"{job_id!r} is nowhere, and still has its key")

    def check_lost(self) -> None:
        """All accepted jobs are there, or done."""
        for job in self.jobs.values():
            if job.accepted_us >= 0 and job.ended_us < 0 and not job.was_hit and not self._is_anywhere(job):
                self.fail("lost", f"{job.id!r} was accepted, and no node has it")

    def check_memory(self) -> None:
        """Nothing is left of the keys."""
        for machine in self.machines:
            if machine.node is not None:
                current = machine.node.members.current
                homes = [key for key in machine.node.homes.records if current and machine.id in current.homes(key)]
                accounted = machine.node.homes.used_bytes if not machine.node.homes.records else 0
                if homes or machine.node.copies.jobs or machine.node.copies.used_bytes or accounted:
                    self.fail("memory", f"{machine.index} keeps {homes} {list(machine.node.copies.jobs)}")


FAULT_NAMES: Final = (
    *("messages",) * 4,
    *("halves",) * 2,
    "one_way",
    *("kill",) * 3,
    *("turn",) * 3,
    "restart_all",
    *("power",) * 2,
    "wipe",
    *("rotate",) * 2,
    *("stop",) * 2,
    "drift",
    *("join",) * 2,
    *("drain",) * 2,
    "regret",
    "forget",
)


class Result(NamedTuple):
    """What became of a run."""

    seed: int
    policy: str
    violations: list[Violation]
    digest: str
    messages: int
    jobs: int
    outcomes: dict[str, int]
    changes: int
    faults: list[str]
    trace: list[str]


def play(seed: int, trace: bool = False, faults: str = "") -> Result:
    """Run a seed, with the kinds of faults drawn from it or with those given."""
    cluster = KeyedCluster(seed, trace, faults=faults)
    timeline = cluster.timeline
    for producer in range(3):
        timeline.at(SECOND // 2, cluster.produce, producer)
    timeline.at(FAULTS_FROM, cluster.fault)
    timeline.at(SECOND, cluster.take_away)
    if cluster.policy != ALWAYS:
        timeline.at(SECOND, cluster.sync)
    timeline.run(HEAL)
    cluster.heal()
    timeline.run(HEAL + 10 * SECOND)
    cluster.is_producing = False
    timeline.run(HEAL + BOUND)
    cluster.check_lost()
    cluster.check_alive()
    cluster.check_lost()
    for _ in range(4):
        timeline.run(timeline.now_us + 12 * SECOND)
        cluster.end_everything()
    timeline.run(timeline.now_us + 30 * SECOND)
    cluster.check_memory()
    number = max(machine.node.members.number for machine in cluster.machines if machine.node is not None)
    return Result(
        seed,
        cluster.policy,
        cluster.violations,
        cluster.digest.hexdigest(),
        cluster.messages,
        len(cluster.jobs),
        cluster.outcomes,
        number - 1,
        cluster.faults,
        cluster.trace or [],
    )


def main(arguments: list[str]) -> int:
    """Run seeds; 1 if one fails."""
    parser = argparse.ArgumentParser(description="simulate unique keys")
    parser.add_argument("--seeds", default="1-100", help="as 1-100 or 1,5,9")
    parser.add_argument("--faults", default="", help="kinds of faults, with commas; without it they are drawn")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--stop", action="store_true", help="end with the first failure")
    options = parser.parse_args(arguments)
    failed: list[dict[str, Any]] = []
    digest = blake2b(digest_size=16)
    seeds: list[int] = []
    for part in options.seeds.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    gc.disable()
    totals: dict[str, int] = {}
    for seed in seeds:
        result = play(seed, options.trace, options.faults)
        digest.update(result.digest.encode())
        for name, count in result.outcomes.items():
            totals[name] = totals.get(name, 0) + count
        totals["changes"] = totals.get("changes", 0) + result.changes
        totals["messages"] = totals.get("messages", 0) + result.messages
        if options.trace:
            sys.stdout.write("\n".join(result.trace) + "\n")
        if result.violations:
            failed.append({"seed": seed, "violations": [str(one) for one in result.violations]})
            if not options.json:
                sys.stdout.write(f"seed {seed} ({result.policy}): {result.violations[0]}\n")
            if options.stop:
                break
        if seed % 20 == 0:
            gc.collect()
    if options.json:
        sys.stdout.write(json.dumps({"failures": failed, "digest": digest.hexdigest()}))
    else:
        sys.stdout.write(f"{len(seeds)} seeds, {len(failed)} failed; {totals}\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
