"""A client's connection to a simulated machine, and clients as small programs.

A client is a generator. It yields how many microseconds to sleep, or an `Ask`: requests on a connection. It is resumed
with the replies, or with None if the connection was lost or its timeout is over. A reply is recorded by the `note` of
the Ask at the moment it leaves the node, since the node may be gone when the client reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import TYPE_CHECKING, Any

import hiredis

from penstock.broker.broker import Broker
from penstock.broker.clients import Client
from penstock.sim.timeline import SECOND

if TYPE_CHECKING:
    from penstock.sim.machine import Machine
    from penstock.sim.world import World

Words = list[bytes]
Note = Callable[["SimConnection", Words, Any], None]
FETCHES = (b"GETJOB", b"CLAIM")
PATIENCE_US = 30 * SECOND
AGAIN_US = SECOND // 2
REPLY_US = 300  # on its way back to the client


class SimConnection:
    """One connection: the sink of the broker's replies."""

    __slots__ = ("_reader", "client", "is_open", "life", "machine", "number", "owner")

    def __init__(self, owner: Actor | Operator, machine: Machine, number: int) -> None:
        self.owner = owner
        self.machine = machine
        self.life = machine.life
        self.number = number
        self.client: Client | None = None
        self.is_open = True  # as the client sees it
        self._reader = hiredis.Reader()
        machine.connections[self] = None

    def serve(self, broker: Broker, requests: list[Words]) -> None:
        """Let the broker run requests."""
        if self.client is None:
            self.client = broker.connect(f"10.1.0.1:{self.number}", self)
        broker.run(self.client, requests)

    def lost(self) -> None:
        """The process at the other end is gone."""
        if self.is_open:
            self.is_open = False
            self.owner.disconnected(self)

    def close_ours(self) -> None:
        """Hang up."""
        self.is_open = False
        if self.machine.is_up and self.machine.life == self.life:
            self.machine.disconnect(self)

    # What the broker uses.

    def write(self, data: bytes) -> bool:
        """Take replies."""
        self.owner.world.replies(self, data)
        self._reader.feed(data)
        self.machine.replied[self] = None
        return True

    def look(self, at_fetches: bool) -> None:
        """Let the client see its replies, those to fetches or the others."""
        if self.owner.is_fetching(self) == at_fetches:
            while (reply := self._reader.gets()) is not False:
                self.owner.told(self, reply)

    def close(self, now: bool) -> None:
        """Take the end of the connection."""
        self.owner.world.timeline.after(REPLY_US, self._closed)

    def _closed(self) -> None:
        self.machine.disconnect(self)
        self.lost()

    def caught_up(self) -> None:
        """Do nothing: a client here waits for its replies."""

    def account(self) -> None:
        """Do nothing: a client here holds nothing."""

    def buffered_bytes(self) -> int:
        """Nothing is unsent."""
        return 0

    def unread_bytes(self) -> int:
        """Nothing is unread."""
        return 0

    def describe(self) -> str:
        """Return what CLIENT LIST shows."""
        return f"fd={self.number}"


class Ask:
    """Requests on a connection, and who notes the replies."""

    __slots__ = ("connection", "is_fetch", "note", "patience_us", "replies", "requests")

    def __init__(self, connection: SimConnection, requests: list[Words], note: Note, patience_us: int) -> None:
        self.is_fetch = requests[0][0] in FETCHES
        self.connection = connection
        self.requests = requests
        self.note = note
        self.patience_us = patience_us
        self.replies: list[Any] = []


Script = Generator["int | Ask", "list[Any] | None", None]


class Actor:
    """A client that follows a script."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = Random(f"{world.setup.seed} {name}")
        self._script = self.script()
        self._ask: Ask | None = None
        self._abandoned: dict[SimConnection, Ask] = {}  # hung up on, but the node doesn't know yet

    def script(self) -> Script:
        """Live."""
        raise NotImplementedError

    def begin(self) -> None:
        """Start."""
        self._go_on(None)

    def pick(self, choices: int) -> int:
        """Choose a number below another."""
        return int(self.random.random() * choices)

    def choose(self, table: tuple[tuple[Any, int], ...]) -> Any:
        """Choose from a table of values and weights."""
        at = self.pick(sum(weight for _, weight in table))
        for value, weight in table:
            at -= weight
            if at < 0:
                return value
        raise AssertionError

    def between(self, least_us: int, most_us: int) -> int:
        """Choose a time."""
        return least_us + self.pick(most_us - least_us)

    def connect(self, machine: Machine) -> SimConnection | None:
        """Open a connection, if there is a process."""
        if not machine.is_up:
            return None
        return SimConnection(self, machine, self.world.next_number())

    def ask(self, connection: SimConnection, requests: list[Words], note: Note, patience_us: int = PATIENCE_US) -> Ask:
        """Make an Ask."""
        return Ask(connection, requests, note, patience_us)

    def _go_on(self, value: list[Any] | None) -> None:
        want = next(self._script, None) if value is None else self._send(value)
        if want is None:
            return
        if isinstance(want, int):
            self.world.timeline.after(want, self._go_on, None)
            return
        self._ask = want
        connection = want.connection
        if not connection.is_open:
            self.world.timeline.after(REPLY_US, self._end, want, None)
            return
        self.world.asks(connection, want.requests)
        connection.machine.request(connection, want.requests)
        self.world.timeline.after(want.patience_us, self._lose_patience, want)

    def _send(self, value: list[Any]) -> int | Ask | None:
        try:
            return self._script.send(value)
        except StopIteration:
            return None

    def _end(self, ask: Ask, value: list[Any] | None) -> None:
        if ask is self._ask:
            self._ask = None
            self._go_on(value)

    def _lose_patience(self, ask: Ask) -> None:
        if ask is self._ask:
            self._abandoned[ask.connection] = ask
            ask.connection.close_ours()
            self._end(ask, None)

    def _ask_of(self, connection: SimConnection) -> Ask | None:
        ask = self._ask
        if ask is None or ask.connection is not connection:
            return self._abandoned.get(connection)
        return ask

    def is_fetching(self, connection: SimConnection) -> bool:
        """Whether a connection waits for jobs."""
        ask = self._ask_of(connection)
        return ask is not None and ask.is_fetch

    def told(self, connection: SimConnection, reply: Any) -> None:
        """Take a reply the moment it leaves the node."""
        ask = self._ask_of(connection)
        if ask is None or len(ask.replies) == len(ask.requests):
            self.world.fail("protocol", f"{self.name} got a reply to nothing: {reply!r}")
            return
        ask.replies.append(reply)
        ask.note(connection, ask.requests[len(ask.replies) - 1], reply)
        if len(ask.replies) == len(ask.requests):
            self.world.timeline.after(REPLY_US, self._end, ask, ask.replies)

    def disconnected(self, connection: SimConnection) -> None:
        """The connection is lost."""
        ask = self._ask
        if ask is not None and ask.connection is connection and len(ask.replies) < len(ask.requests):
            self._end(ask, None)


class Operator:
    """The operator of the cluster: sends single commands, answered at once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._reply: Any = None

    def ask(self, machine: Machine, words: Words) -> Any:
        """Run a command on a machine whose process can answer; None if it can't."""
        if not machine.is_up or machine.is_stopped:
            return None
        self._reply = None
        connection = SimConnection(self, machine, self.world.next_number())
        self.world.asks(connection, [words])
        machine.operated_us = self.world.timeline.now_us
        machine.request(connection, [words])
        if self._reply is None:
            machine.end_turn()
        connection.close_ours()
        return self._reply

    def insist(self, machine: Machine, words: Words) -> None:
        """Repeat a command until it succeeds: the machine may be down, or loading."""
        reply = self.ask(machine, words)
        if reply is None or isinstance(reply, hiredis.ReplyError):
            self.world.timeline.after(AGAIN_US, self.insist, machine, words)

    def is_fetching(self, connection: SimConnection) -> bool:
        """No client here waits for jobs."""
        return False

    def told(self, connection: SimConnection, reply: Any) -> None:
        """Take the reply."""
        self._reply = reply

    def disconnected(self, connection: SimConnection) -> None:
        """Do nothing: the next command has a connection of its own."""
