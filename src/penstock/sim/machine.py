"""One simulated machine: a host with clocks and a disk, and the real broker that runs on it, life after life.

It is the broker's shell, as `penstock.broker.server` is in a real process: it ends turns, keeps the timer, calls the
cron, and loads the journal at a start. A machine can be stopped (SIGSTOP): what comes meanwhile waits. Its process can
be killed, also in the middle of an operation on its disk, and the host can lose power.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.broker.broker import Broker
from penstock.broker.config import Config
from penstock.broker.core.gossip import LinkInfo
from penstock.broker.core.jobs import GONE
from penstock.broker.core.membership import Peer, cluster_from_text
from penstock.broker.core.node import Node
from penstock.sim.coverage import NONE, job_ids, state_of, type_of
from penstock.sim.disk import Keep, SimDisk
from penstock.sim.network import Bus, SimLink, cut_messages
from penstock.sim.timeline import MS, SECOND
from penstock.wire import bus

if TYPE_CHECKING:
    from penstock.sim.connection import SimConnection
    from penstock.sim.world import World

PORT = 7711
OFF = "off"  # in place of an fsync policy: no journal
WALL_START_US = 1_700_000_000 * SECOND
MONOTONIC_START_US = 1000 * SECOND
TIMER_US_MIN = MS  # as the server's: a timer that was set for now still lets others have a turn
STEP_US = 2 * MS  # between two steps of a rewrite
AOF = "disque.aof"
FIRST_ABOUT_JOBS = bus.REPLJOB  # types below are about nodes
EVEN = 1000  # the rate of a clock that is right, per mille


class ProcessEnds(BaseException):
    """The process dies here. Nothing in the node may catch it."""


class Machine:
    """A host, its disk and its process."""

    def __init__(self, world: World, index: int, policy: str) -> None:
        self.world = world
        self.index = index
        self.mark = b"%d" % index  # of its events
        self.ip = f"10.0.0.{index + 1}"
        self.policy = policy
        self._timeline = world.timeline
        self._random = Random(f"{world.setup.seed} machine {index}")
        self.node_id = self._random.randbytes(20).hex().encode()
        self.disk = SimDisk()
        self.nodes_conf = ""
        self.life = 0  # which process this is: those of before are gone
        self.operated_us = -1  # when it was last given a command by an operator
        self.is_up = False  # a process runs, perhaps a stopped one
        self.is_stopped = False
        self.has_power = True
        self.is_loading = False
        self.started_us = self.started_monotonic_us = 0
        self.ended_us = -1  # when its last process ended
        self.lost_data_us = -1  # when it last may have lost something that its node had told others
        self.replaced_us = -1  # when another node took its place
        self.handed: set[tuple[bytes, int]] = set()  # messages that gave jobs away: their senders and numbers
        self.unflushed: list[bytes] = []  # jobs that messages of this turn spoke of
        self.states: dict[bytes, int] = {}  # of jobs, when somebody last looked
        self.copies: dict[bytes, bool] = {}  # of jobs that its last process had: whether they are on its disk
        self.acked: set[bytes] = set()  # jobs that were acked in its last process
        self.turn_us = 0  # how long turns last: what arrives meanwhile shares one
        self.inbound: list[SimLink] = []
        self.connections: dict[SimConnection, None] = {}
        self.replied: dict[SimConnection, None] = {}  # connections that were sent something in this turn
        self._held: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()  # what waits while it is stopped
        self._turn_wanted = self._turn_planned = False
        self._timer_at = 0
        self._stepping = False
        self._keep: Keep | None = None  # of what a planned end leaves
        self._rate = EVEN
        self._since_us = 0
        self._monotonic_us = MONOTONIC_START_US + self._random.randrange(SECOND)
        self.wall_offset_us = self._random.randrange(-200, 200) * MS

    # Clocks.

    @property
    def monotonic_us(self) -> int:
        """The monotonic clock of the host."""
        return self._monotonic_us + (self._timeline.now_us - self._since_us) * self._rate // EVEN

    @property
    def wall_us(self) -> int:
        """The wall clock of the host."""
        return WALL_START_US + self._timeline.now_us + self.wall_offset_us

    @property
    def gained_us(self) -> int:
        """How far the process is ahead of the time since its start, as its timers see it."""
        return self.monotonic_us - self.started_monotonic_us - (self._timeline.now_us - self.started_us)

    def _clock(self) -> float:
        return (self._monotonic_us + (self._timeline.now_us - self._since_us) * self._rate // EVEN) / 1e6

    def _wall(self) -> float:
        return (WALL_START_US + self._timeline.now_us + self.wall_offset_us) / 1e6

    def set_rate(self, rate: int) -> None:
        """Let the monotonic clock run faster or slower."""
        self._monotonic_us = self.monotonic_us
        self._since_us = self._timeline.now_us
        self._rate = rate
        if self.is_up:
            self._timer_at = 0
            self._arm()

    def _entropy(self, count: int) -> bytes:
        return self._random.randbytes(count)

    # The process begins and ends.

    @property
    def node(self) -> Node:
        """The node of the process that runs, or ran last."""
        return self.broker.node

    def start(self) -> None:
        """Start a process on what is on the disk."""
        config = Config()
        setup = self.world.setup
        config.appendonly = self.policy != OFF
        config.appendfsync = self.policy if config.appendonly else "no"
        config.cluster_node_timeout = setup.node_timeout_ms
        config.slowlog_log_slower_than = -1
        config.port = PORT
        self.life += 1
        self.is_up = self.has_power = True
        self.is_stopped = False
        self.started_us = self._timeline.now_us
        self.started_monotonic_us = self.monotonic_us
        self._turn_wanted = self._turn_planned = self._stepping = False
        self._timer_at = 0
        self.turn_us = setup.turn_us
        self.states = {}
        self.handed = set()
        self.bus = Bus(self.world.network, self)
        self.broker = Broker(config, self, self.disk, self._clock, self._wall, self._entropy, self.node_id)
        self.broker.node.events = self.world.events
        self._next_ms = self.broker.node.timers.next_ms
        if self.nodes_conf:
            self.node.take_cluster(cluster_from_text(self.nodes_conf, self.node.now_ms))
            self.node_id = self.node.cluster.my_id
        self.node.cluster.myself.port = PORT
        self.save_cluster()
        self.broker.use_bus(self.bus)
        self._timeline.after(self._random.randrange(setup.cron_ms * MS), self._cron, self.life)
        self.is_loading = config.appendonly
        if config.appendonly:
            self.broker.persistence.loading = True
            self.broker.refresh_checks()
            self._timeline.after(1 + self._random.randrange(20 * MS), self._load, self.life)
        else:
            self.world.loaded(self)

    def _load(self, life: int) -> None:
        if life != self.life or not self.is_up:
            return
        self.is_loading = False
        self.run(self._load_now)
        if self.is_up:
            self.world.loaded(self)

    def _load_now(self) -> None:
        persistence = self.broker.persistence
        for _ in persistence.begin_load(0):
            self.broker.set_clock()
        persistence.end_load()
        persistence.open()
        self._turn_wanted = True

    def kill(self) -> None:
        """End the process at once; what it wrote is there."""
        if self.is_up:
            self._end(self.disk.process_crash(), False)

    def cut_power(self, keep: Keep) -> None:
        """End the process and the host; what was not synced is lost as `keep` says."""
        if self.is_up or self.has_power:
            self.has_power = False
            self._end(self.disk.crash(self._random, keep), True)
            self._monotonic_us = MONOTONIC_START_US
            self._since_us = self._timeline.now_us

    def _end(self, left: SimDisk, was_power: bool) -> None:
        was_up = self.is_up
        if was_up:
            self._look()  # replies that were written before the end have left
            self.world.process_ends(self, was_power)
        self.is_up = self.is_stopped = self.is_loading = False
        for act, args in self._held:
            if act == self.receive:  # it had reached the host, and nobody read it
                self.world.network.drop(args[2])
        self._held.clear()
        self.unflushed.clear()
        self.disk = left
        if not was_up:
            return
        self.world.network.process_died(self)
        connections, self.connections = self.connections, {}
        for connection in connections:
            self._timeline.after(200, connection.lost)

    def kill_at_operation(self, count: int, keep: Keep | None) -> None:
        """Let the process die just before one of its next operations on the disk, with the power if `keep` is given."""
        left = count

        def before(kind: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise ProcessEnds

        self._keep = keep
        self.disk.before = before

    def shut_down(self) -> None:
        """End the process in order."""
        if self.is_up and not self.is_stopped and not self.is_loading:
            self.run(self.broker.set_clock)
            try:
                if self.broker.persistence.close(rewrite=False):
                    self.kill()
            except ProcessEnds:
                self._end_as_planned()

    def stop_running(self) -> None:
        """Halt the process, as SIGSTOP does."""
        self.is_stopped = self.is_up

    def run_on(self) -> None:
        """Let a halted process go on: first with all that has come meanwhile."""
        if self.is_stopped:
            self.is_stopped = False
            while self._held:  # its end on the way would clear it
                act, args = self._held.popleft()
                act(*args)

    # What happens to the process.

    def run(self, act: Callable[..., Any], *args: Any) -> None:
        """Let the broker do something, and end the turn when it is time."""
        try:
            act(*args)
            if self._turn_wanted and not self._turn_planned:
                if self.turn_us:
                    self._turn_planned = True
                    self._timeline.after(self.turn_us, self._turn_later, self.life)
                else:
                    self._turn()
        except ProcessEnds:
            self._end_as_planned()
        except Exception as problem:
            self.world.defect(self, problem)

    def _end_as_planned(self) -> None:
        if self._keep is None:
            self.kill()
        else:
            self.cut_power(self._keep)

    def _hold(self, act: Callable[..., None], *args: Any) -> bool:
        if self.is_stopped:
            self._held.append((act, args))
        return self.is_stopped

    def receive(self, src: Machine, line: LinkInfo, data: bytes) -> None:
        """Take messages from the network."""
        if self.is_stopped:
            self._held.append((self.receive, (src, line, data)))
            return
        messages = cut_messages(data)
        self.world.arrives(self, src, messages)
        if messages[-1][13] < FIRST_ABOUT_JOBS:  # a new link may bring a PING, and jobs behind it
            self.run(self.broker.receive, line, messages)
            return
        self.world.promises.node_checks.hears(self, messages)
        ids = [job_id for message in messages for job_id in job_ids(message)]
        if not ids:  # jobs are asked for
            self.run(self.broker.receive, line, messages)
            return
        before = [(job_id, state_of(self, job_id)) for job_id in ids]
        self.unflushed += ids
        self.run(self.broker.receive, line, messages)
        for job_id, state in before:
            now = state_of(self, job_id)
            if now != state:
                self.world.coverage.change(state, GONE if now == NONE else now)
        if len(messages) == 1 and type_of(data) == bus.QUEUED:
            self.world.promises.node_checks.contests(self, src, before)

    def link_opened(self, peer: Peer) -> None:
        """A link of ours is there."""
        if not self._hold(self.link_opened, peer):
            self.run(self.broker.link_opened, peer)

    def link_lost(self, peer: Peer) -> None:
        """A link of ours is gone."""
        if not self._hold(self.link_lost, peer):
            self.world.promises.unsent(self, peer.id)
            self.run(self.broker.link_lost, peer)

    def request(self, connection: SimConnection, requests: list[list[bytes]]) -> None:
        """Take requests from a client; those for a process that is gone reach nobody."""
        if connection.life != self.life or not self.is_up:
            return
        if not self._hold(self.request, connection, requests):
            self.run(connection.serve, self.broker, requests)

    def disconnect(self, connection: SimConnection) -> None:
        """Take the end of a connection from a client."""
        if connection in self.connections and not self._hold(self.disconnect, connection):
            del self.connections[connection]
            if connection.client is not None:
                self.run(self.broker.disconnect, connection.client)

    def command(self, *words: bytes | str | int) -> Any:
        """Run a command of an operator; return the reply, or None if the process can't answer."""
        return self.world.operator.ask(self, _words(words))

    def insist(self, *words: bytes | str | int) -> None:
        """Run a command of an operator as soon as the process can answer."""
        self.world.operator.insist(self, _words(words))

    def knows(self, other: Machine) -> bool:
        """Whether another machine's node is part of the cluster for this one."""
        return self.is_up and other.node_id in self.node.cluster.ids

    def has_paused(self, queue: bytes) -> bool:
        """Whether a queue is paused here."""
        known = self.node.queues.by_name.get(queue) if self.is_up else None
        return known is not None and bool(known.pause)

    # Turns and timers.

    def end_turn(self) -> None:
        """End the turn now, if one is under way."""
        self._turn_wanted = True
        self.run(self._turn)

    def _turn_later(self, life: int) -> None:
        if life == self.life and self.is_up and not self._hold(self._turn_later, life):
            self._turn_planned = False
            self.run(self._turn)

    def _turn(self) -> None:
        while self._turn_wanted:
            self._turn_wanted = False
            self.broker.flush()
        self.unflushed.clear()
        if self.replied:
            self._look()
        self._arm()

    def _look(self) -> None:
        """Let clients see their replies. In one turn, what was done to a job comes before its next delivery."""
        replied, self.replied = self.replied, {}
        for at_fetches in (False, True):
            for connection in replied:
                connection.look(at_fetches)

    def _arm(self) -> None:
        next_ms = self._next_ms()
        if next_ms is None:
            return
        now_us = self._timeline.now_us
        # One more, since clocks are cut to milliseconds by way of a float.
        ahead_us = next_ms * MS + 1 - self._monotonic_us
        if self._rate == EVEN:
            at_us = self._since_us + ahead_us
        else:
            at_us = self._since_us - (-ahead_us * EVEN // self._rate)
        at_us = max(at_us, now_us + TIMER_US_MIN)
        if not self._timer_at or at_us < self._timer_at:
            self._timer_at = at_us
            self._timeline.at(at_us, self._tick, self.life, at_us)

    def _tick(self, life: int, at_us: int) -> None:
        if life != self.life or at_us != self._timer_at or not self.is_up or self._hold(self._tick, life, at_us):
            return
        self._timer_at = 0
        self.world.ticks(self)
        self.run(self._tick_now)

    def _tick_now(self) -> None:
        self.broker.tick()
        if self.replied:
            self._look()
        self._arm()

    def _cron(self, life: int) -> None:
        if life != self.life or not self.is_up or self._hold(self._cron, life):
            return
        self._timeline.after(self.world.setup.cron_ms * MS * EVEN // self._rate, self._cron, life)
        self.run(self._cron_now)
        if self.broker.persistence.rewriting and not self._stepping:
            self._stepping = True
            self._step(life)

    def _cron_now(self) -> None:
        self.broker.cron()
        if self.replied:
            self._look()

    def _step(self, life: int) -> None:
        """Work on a rewrite of the journal."""
        if life != self.life or not self.is_up or self._hold(self._step, life):
            return
        self.run(self._step_now)
        if self._stepping and self.is_up:
            self._timeline.after(STEP_US, self._step, life)

    def _step_now(self) -> None:
        self.broker.set_clock()
        self._stepping = self.broker.persistence.step()

    # The broker's shell.

    def soon(self) -> None:
        """Plan the end of this turn."""
        self._turn_wanted = True

    def stop(self) -> None:
        """SHUTDOWN: not asked for here."""

    def restart(self, crash: bool, delay_ms: int) -> None:
        """DEBUG RESTART: not asked for here."""

    def apply(self, directive: str, value: object) -> None:
        """No directive concerns the process here."""

    def facts(self) -> dict[str, object]:
        """INFO: nothing to tell."""
        return {}

    def sleep(self, seconds: float) -> None:
        """DEBUG SLEEP: not asked for here."""

    def save_cluster(self) -> None:
        """Write nodes.conf, synced."""
        self.nodes_conf = self.node.cluster.text(with_handshakes=False)


def _words(words: tuple[bytes | str | int, ...]) -> list[bytes]:
    return [word if isinstance(word, bytes) else str(word).encode() for word in words]
