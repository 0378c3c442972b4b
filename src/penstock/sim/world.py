"""Everything of one run: time, machines, network, clients, faults and checks, and what joins them."""

from __future__ import annotations

import traceback
from random import Random
from typing import NamedTuple

from penstock.broker.core.node import EventsPort
from penstock.sim.connection import Operator, SimConnection
from penstock.sim.coverage import RunCoverage
from penstock.sim.faults import Faults
from penstock.sim.machine import OFF, PORT, Machine
from penstock.sim.network import Network
from penstock.sim.plan import Plan, Setup
from penstock.sim.promises import Promises
from penstock.sim.timeline import MS, Digest, Timeline
from penstock.sim.waits import Waits
from penstock.wire import bus

VIOLATIONS_MAX = 20
INTRODUCED_US = 100 * MS
QUEUES = (b"red", b"green", b"blue %\x00\xff")


class Violation(NamedTuple):
    """A promise that did not hold."""

    at_us: int
    promise: str
    text: str

    def __str__(self) -> str:
        return f"{self.at_us / 1e6:9.3f} {self.promise}: {self.text}"


class Enough(BaseException):
    """The first violation of a run that need not show more. Nothing in a node may catch it."""


class World:
    """One run."""

    def __init__(
        self,
        setup: Setup,
        plan: Plan,
        trace: bool = False,
        is_brief: bool = False,
        events: EventsPort | None = None,
    ) -> None:
        self.setup = setup
        self.events = events  # of all nodes together
        self._is_brief = is_brief
        self.timeline = Timeline()
        self.digest = Digest()
        self.coverage = RunCoverage()
        self.violations: list[Violation] = []
        self.trace: list[str] | None = [] if trace else None
        self.queues = QUEUES
        self.jumped_us = 0
        self.is_calm = False  # after the faults: workers do their best
        self.is_producing = True
        self.is_over = False  # everything has drained for the second time: clients go home
        self._numbers = 0
        self.machines: list[Machine] = []
        self.by_ip: dict[str, Machine] = {}
        self.network = Network(self, Random(f"{setup.seed} network"))
        self.operator = Operator(self)
        self.promises = Promises(self)
        self.waits = Waits(self)
        self.network.watch = self.promises.node_checks.sends
        self.network.unsent = self.promises.unsent
        for _ in range(setup.nodes):
            self.add_machine()
        self.faults = Faults(self, plan)

    def add_machine(self) -> Machine:
        """Put up one more machine."""
        index = len(self.machines)
        machine = Machine(self, index, self.setup.policies[index])
        self.machines.append(machine)
        self.by_ip[machine.ip] = machine
        return machine

    def next_number(self) -> int:
        """Number connections."""
        self._numbers += 1
        return self._numbers

    # What operators do.

    def introduce(self, machine: Machine) -> None:
        """Let all others meet a node, once it has loaded its jobs: nodes that forgot it ignore gossip about it."""
        self.timeline.after(INTRODUCED_US, self._introduce, machine, machine.life)

    def _introduce(self, machine: Machine, life: int) -> None:
        if not machine.is_up or machine.life != life:
            return
        strangers = [other for other in self.machines if other is not machine and not other.knows(machine)]
        for other in strangers:
            other.command("CLUSTER", "MEET", machine.ip, PORT)
        if strangers:  # a handshake that meets a fault is given up
            self.timeline.after(INTRODUCED_US + self.setup.node_timeout_ms * MS, self._introduce, machine, life)

    def forget_ghosts(self) -> None:
        """Let every node forget ids that no machine has any more."""
        real = {machine.node_id for machine in self.machines}
        for machine in self.machines:
            if machine.is_up and not machine.is_stopped:
                for peer in list(machine.node.cluster.others):
                    if peer.id not in real:
                        machine.command("CLUSTER", "FORGET", peer.id)

    def mend_cluster(self) -> None:
        """Look at CLUSTER NODES everywhere, and introduce whoever isn't known; let all queues go on."""
        self.forget_ghosts()
        for machine in self.machines:
            for queue in self.queues:  # the word of a pause may have come after that of its end
                if machine.has_paused(queue):
                    machine.insist("PAUSE", queue, "none")
            if machine.is_up:
                known = machine.node.cluster.ids
                for other in self.machines:
                    if other.node_id not in known:
                        machine.command("CLUSTER", "MEET", other.ip, PORT)

    # What happens.

    def say(self, text: str) -> None:
        """Write a line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.timeline.now_us / 1e6:10.4f} {text}")

    def fail(self, promise: str, text: str) -> None:
        """Note that a promise did not hold."""
        self.say(f"VIOLATION {promise}: {text}")
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(self.timeline.now_us, promise, text))
        if self._is_brief:
            raise Enough

    def defect(self, machine: Machine, problem: Exception) -> None:
        """Note that the broker raised something, which ends its process."""
        lines = "".join(traceback.format_exception(problem))
        self.fail("crash", f"n{machine.index} raised {problem!r}\n{lines}")
        machine.kill()

    def arrives(self, machine: Machine, src: Machine, messages: list[bytes]) -> None:
        """Note messages that reach a node."""
        note, count = self.digest.note, self.coverage.message
        for message in messages:
            note(machine.mark, message)
            count(message)
        if self.trace is not None:
            for message in messages:
                self.say(f"n{src.index} -> n{machine.index} {self._text(message)}")

    def _text(self, message: bytes) -> str:
        from penstock.sim.report import describe  # noqa: PLC0415 - which imports this module

        return describe(self, message)

    def ticks(self, machine: Machine) -> None:
        """Note a timer."""
        self.digest.note(machine.mark, self.timeline.now_us.to_bytes(8, "big"))

    def replies(self, connection: SimConnection, data: bytes) -> None:
        """Note replies to a client."""
        self.digest.note(b"r%d" % connection.number, data)
        if self.trace is not None:
            self.say(f"n{connection.machine.index} => c{connection.number} {data[:300]!r}")

    def asks(self, connection: SimConnection, requests: list[list[bytes]]) -> None:
        """Note requests of a client."""
        if self.trace is not None:
            for words in requests:
                self.say(f"c{connection.number} => n{connection.machine.index} {b' '.join(words)[:300]!r}")

    def dropped(self, message: bytes) -> None:
        """Note a message that the network lost."""
        kind = int.from_bytes(message[12:14], "big")
        if self.trace is not None:
            self.say(f"lost: {self._text(message)}")
        if kind in bus.RECORD_TYPES:
            decoded = bus.decode(message)
            if decoded is not None:
                for record in bus.records(decoded):
                    job = self.promises.history.by_body.get(record.body)
                    if job is not None:
                        job.lost_in_message.add(bus.TYPE_NAMES[kind])

    def process_ends(self, machine: Machine, was_power: bool) -> None:
        """Note the end of a process, perhaps with its host."""
        self.say(f"n{machine.index} ends")
        machine.ended_us = self.timeline.now_us
        if machine.policy == OFF or (was_power and machine.policy != "always"):
            machine.lost_data_us = self.timeline.now_us
        self.promises.process_ends(machine, was_power)

    def loaded(self, machine: Machine) -> None:
        """Note that a process has its jobs back."""
        self.say(f"n{machine.index} has loaded {machine.node.jobs.count} jobs")
        self.promises.loaded(machine)
        if machine.lost_data_us == machine.ended_us:  # what was done last is undone, an operator knows
            paused = self.faults.paused()
            for queue in self.queues:
                if machine.has_paused(queue) and queue not in paused:
                    machine.insist("PAUSE", queue, "none")

    def look(self) -> None:
        """Look at the nodes, every second."""
        self.promises.look()
        self.timeline.after((5000 if self.is_over else 1000) * MS, self.look)
