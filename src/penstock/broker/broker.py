"""The broker: a node with its commands, clients, configuration and journal. Everything but sockets and the event loop.

A shell (server.py, or a test with a clock of its own) passes in requests (`run`), messages of other nodes (`receive`)
and time (`tick`, `cron`). The requests of one turn are run one after another and their replies collect. At the end of
the turn `flush` writes the journal, then sends the messages to other nodes, then the replies (core/inputs.py says why
in this order): one write to the journal and one to each socket a turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from penstock.broker.clients import (
    REPLY_ON,
    REPLY_SKIP,
    REPLY_SKIP_NEXT,
    Client,
    ConnectionLimits,
    Sink,
    requests_bytes,
)
from penstock.broker.commands.handlers import HANDLERS, RUN_HANDLERS, Handler
from penstock.broker.commands.jobs import shape_addition, shape_outcome
from penstock.broker.commands.table import COMMANDS, CommandInfo
from penstock.broker.config import Config, is_secret
from penstock.broker.core import inputs
from penstock.broker.core.adding import AddRules
from penstock.broker.core.gossip import LinkInfo
from penstock.broker.core.ids import Entropy
from penstock.broker.core.inputs import receive, serve_ready, tell_waits
from penstock.broker.core.jobs import Job
from penstock.broker.core.membership import Peer
from penstock.broker.core.memory import Memory
from penstock.broker.core.node import Node
from penstock.broker.core.outbox import BusPort
from penstock.broker.core.refusals import Refused
from penstock.broker.core.replication import Addition
from penstock.broker.core.waiters import Waiter
from penstock.broker.disk import Disk
from penstock.broker.events import NodeEvents
from penstock.broker.journal import Journal
from penstock.broker.persistence import Persistence
from penstock.broker.statistics import Statistics, cut_arguments
from penstock.errors import PenstockError
from penstock.wire import bus
from penstock.wire.replies import OK, error, simple
from penstock.wire.words import quote_word

log = logging.getLogger("penstock")

ARGUMENTS_ANY: Final = 1 << 62
REPLY_BYTES_HIGH: Final = 1 << 20  # a client with more unread replies must read them before its next command runs
REDACTED: Final = b"(redacted)"
MONITOR_BYTES_MAX: Final = 32 << 20  # a monitor with more unread output is closed
MONITOR_REQUEST_BYTES_MAX: Final = 64 << 10  # shown of one request: quoted it takes up to four times that, a monitor
EARLY_MAX: Final = 10_000  # NEEDJOBS messages that are kept while the journal is loaded
NO_AUTH: Final = b"-NOAUTH Authentication required.\r\n"
OUT_OF_MEMORY: Final = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
IS_LOADING: Final = b"-LOADING Disque is loading the dataset in memory\r\n"
# HTTP requests that a web page can make a browser send to a node on the same machine begin with one of these.
HTTP_WORDS: Final = (b"post", b"host:")
NOT_HTTP: Final = b"-ERR this is not a web server\r\n"


class Shell(Protocol):
    """What the broker needs from the process that runs it."""

    def soon(self) -> None:
        """Call `flush` once the requests that have arrived have run."""

    def stop(self) -> None:
        """End the process in order."""

    def restart(self, crash: bool, delay_ms: int) -> None:
        """End this process and start again in its place; with `crash` without any cleaning up."""

    def apply(self, directive: str, value: object) -> None:
        """Put a changed directive into effect where it concerns sockets or the process."""

    def facts(self) -> dict[str, object]:
        """Return what INFO shows about the process, by the keys of INFO."""

    def sleep(self, seconds: float) -> None:
        """Block the whole process (DEBUG SLEEP)."""

    def save_cluster(self) -> None:
        """Write nodes.conf; raises OSError."""


class Command:
    """One command as this broker runs it, with its statistics."""

    __slots__ = (
        "calls",
        "handler",
        "info",
        "is_loading",
        "is_plain",
        "is_write",
        "least",
        "most",
        "name",
        "needs_memory",
        "run",
        "seconds",
    )

    def __init__(self, info: CommandInfo, handler: Handler) -> None:
        self.info = info
        self.name = info.name
        self.handler = handler
        self.run = RUN_HANDLERS.get(info.name)
        self.least = abs(info.arity)
        self.most = info.arity if info.arity > 0 else ARGUMENTS_ANY
        self.is_plain = info.group in ("jobs", "queues")  # changes nothing about clients
        self.is_write = "write" in info.flags
        self.needs_memory = "denyoom" in info.flags
        self.is_loading = "loading" in info.flags
        self.calls = 0
        self.seconds = 0.0


class Broker:
    """One running broker."""

    def __init__(
        self,
        config: Config,
        shell: Shell,
        disk: Disk,
        clock: Callable[[], float],
        wall: Callable[[], float],
        entropy: Entropy,
        node_id: bytes,
    ) -> None:
        self.config = config
        self.shell = shell
        self.disk = disk
        self.clock = clock
        self.wall = wall
        self.statistics = Statistics(config.slowlog_max_len)
        self.statistics.latency.threshold_ms = config.latency_monitor_threshold
        memory = Memory(config.maxmemory, config.maxmemory_policy == "acks")
        memory.limit_clients(config.maxmemory_clients)
        memory.unauthenticated.max_bytes = config.maxmemory_unauthenticated
        self.node = Node(node_id, entropy, self, memory)
        self.persistence = Persistence(self)
        self.events: NodeEvents | None = None
        self.clients: dict[int, Client] = {}
        self.monitors: list[Client] = []
        self.dirty: list[Client] = []
        self.terms: dict[bytes | tuple[bytes, ...], AddRules] = {}  # options of adds, parsed, by their words
        self.run_id = entropy(20).hex().encode()
        self.paused_until_ms = 0  # CLIENT PAUSE
        self.needs_checks = False
        self.slow_s = 0.0
        self._next_client_id = 1
        self._is_unsaveable = False  # nodes.conf could not be written
        self._asked_early: list[tuple[LinkInfo, bytes]] = []  # requests for jobs, while the journal is loaded
        self.connections = ConnectionLimits(self.clients, config, self.node)
        self.by_name = {name: Command(info, HANDLERS[name]) for name, info in COMMANDS.items()}
        self.commands = self._spellings()
        self.set_clock()
        self.refresh_checks()

    def _spellings(self) -> dict[bytes, Command]:
        """Map what clients write to commands: lower and upper case, and other names for renamed ones."""
        spellings: dict[bytes, Command] = {}
        renamed = self.config.rename_command
        for name, command in self.by_name.items():
            word = renamed.get(name.encode(), name.encode())
            if word:
                spellings[word.lower()] = spellings[word.upper()] = command
        return spellings

    # Clients connect, send requests and disconnect.

    def connect(self, address: str, sink: Sink, is_unix: bool = False) -> Client:
        """Register a new client."""
        self.set_clock()
        client = Client(self._next_client_id, address, sink, self.node.now_ms, is_unix)
        self._next_client_id += 1
        self.clients[client.id] = client
        self.statistics.connections += 1
        return client

    def disconnect(self, client: Client) -> None:
        """Remove a client that is gone."""
        if self.clients.pop(client.id, None) is None:
            return
        self.node.client = client
        client.closing = True
        client.backlog = []
        client.backlog_bytes = 0
        self._drop_replies(client)
        if client.waiter is not None:
            self.set_clock()
            inputs.give_up_waiting(self.node, client.waiter)
            client.waiter = None
            client.moving_bytes = 0
            self.shell.soon()
        if client.handed is not None:
            self.set_clock()
            jobs, client.handed = client.handed, None
            others = [other.handed for other in self.dirty if other.handed is not None]
            # A job that was returned by its id meanwhile may be in the reply to another client.
            inputs.take_back(self.node, [job for job in jobs if not any(job in other for other in others)])
            self.shell.soon()
        if client.is_monitor:
            self.monitors.remove(client)
            self.refresh_checks()

    def _drop_replies(self, client: Client) -> None:
        """Discard replies that are not to be sent."""
        self.node.memory.reply_bytes -= sum(map(len, client.out))
        client.out.clear()

    def run(self, client: Client, requests: list[list[bytes]], counted_bytes: int = 0) -> None:
        """Run requests of a client, in order. Those behind one that blocks wait in its backlog.

        `counted_bytes` is the memory they take, if they come from the backlog.
        """
        if client.waiter is not None or client.backlog or self.paused_until_ms:
            client.backlog += requests
            client.backlog_bytes += requests_bytes(requests)
            self._run_backlog(client)
            return
        node, memory, commands, clock = self.node, self.node.memory, self.commands, self.clock
        node.client = client
        out = client.out
        command: Command | None = None
        reply: bytes | None
        at, end, owed_bytes = 0, len(requests), 0
        began = clock()
        self._move_clock(int(began * 1000))
        while at < end:
            args = requests[at]
            at += 1
            node.now_ms = int(began * 1000)
            command = commands.get(args[0]) or commands.get(args[0].lower())
            if command is None or not command.least <= len(args) <= command.most:
                reply = self._reject(client, command, args)
            elif (self.needs_checks or memory.used_bytes > memory.full_bytes) and (
                refusal := self._refuse(client, command, args)
            ):
                reply = refusal
            else:
                try:
                    ran = 0
                    if at < end and command.run is not None and requests[at][0] == args[0]:
                        if not self.needs_checks and not client.reply_mode:
                            ran, reply = command.run(self, client, requests, at - 1)
                    if ran:
                        at += ran - 1
                        command.calls += ran - 1
                    else:
                        reply = command.handler(self, client, args)
                except Exception as problem:
                    reply = self._explain(args, problem)
                if node.ready:
                    serve_ready(node)
                ended = clock()
                command.calls += 1
                command.seconds += ended - began
                if ended - began > self.slow_s:
                    self._note_slow(command, args, ended - began)
                began = ended
            if client.reply_mode:
                self._mute(client)
            elif reply is not None:
                out.append(reply)
                owed_bytes += len(reply)
                if command is not None and command.is_plain and owed_bytes < REPLY_BYTES_HIGH:
                    continue
            if self._must_wait(client) or owed_bytes >= REPLY_BYTES_HIGH:
                client.backlog = requests[at:]
                if client.backlog:
                    # Each request is counted once on its way in, and once on its way out.
                    ran_bytes = requests_bytes(requests[:at]) if counted_bytes else 0
                    client.backlog_bytes = counted_bytes - ran_bytes or requests_bytes(client.backlog)
                break
        memory.reply_bytes += owed_bytes
        self.statistics.commands += len(requests) - len(client.backlog)
        client.active_ms = node.now_ms
        client.last_command = command.name if command is not None else "NULL"
        if out and not client.dirty:
            self.touch(client)
        else:
            self.shell.soon()  # a timeout may be the next event

    def _must_wait(self, client: Client) -> bool:
        """Whether a client's next request must wait."""
        return client.waiter is not None or client.closing or self.paused_until_ms > 0

    def _reject(self, client: Client, command: Command | None, args: list[bytes]) -> bytes:
        """Answer an unknown command, or one with a wrong number of arguments."""
        if command is not None:
            return error(f"ERR wrong number of arguments for '{command.name}' command")
        if args[0].lower() == b"quit":
            client.closing = True
            return OK
        if args[0].lower() in HTTP_WORDS:
            log.warning("closing client %s: it sent HTTP, perhaps from a web page in a browser", client.address)
            client.closing = True
            return NOT_HTTP
        return error(b"ERR unknown command '%b'" % args[0])

    def _explain(self, args: list[bytes], problem: Exception) -> bytes:
        """Turn an exception of a command into its reply. A bug must not end the node."""
        if isinstance(problem, Refused):
            return error(str(problem))
        if isinstance(problem, PenstockError):
            return error(f"ERR {problem}")
        log.error("command %r failed", args[0][:64], exc_info=problem)
        return b"-ERR internal error, see the log of this node\r\n"

    def _refuse(self, client: Client, command: Command, args: list[bytes]) -> bytes | None:
        """Run the checks before a command that are skipped while `needs_checks` is false."""
        config, memory = self.config, self.node.memory
        if config.requirepass and not client.authenticated and command.name not in ("auth", "hello"):
            return NO_AUTH
        if memory.used_bytes > memory.full_bytes and not inputs.make_room(self.node) and command.needs_memory:
            return OUT_OF_MEMORY
        if self.persistence.failure and (command.is_write or command.name == "ping"):
            return error(" ".join(self.persistence.refusal()))
        if self.persistence.loading and not command.is_loading:
            return IS_LOADING
        if self.monitors:
            self._show_to_monitors(client, command, args)
        return None

    def _show_to_monitors(self, client: Client, command: Command, args: list[bytes]) -> None:
        if command.name in ("auth", "hello", "monitor"):
            return
        words = b" ".join(quote_word(arg) for arg in cut_arguments(_redacted(command, args), MONITOR_REQUEST_BYTES_MAX))
        address = ("unix:" if client.is_unix else "") + client.address
        line = simple(b"%.6f [%b] %b" % (self.wall(), address.encode("utf-8", "surrogateescape"), words))
        for monitor in self.monitors:
            if self.config.requirepass and not monitor.authenticated:
                continue  # it was let in before there was a password, or has given a wrong one since
            if monitor.sink.buffered_bytes() > MONITOR_BYTES_MAX:
                monitor.sink.close(now=True)
            else:
                monitor.out.append(line)
                self.node.memory.reply_bytes += len(line)
                self.touch(monitor)

    def _note_slow(self, command: Command, args: list[bytes], seconds: float) -> None:
        event = "fast-command" if "fast" in command.info.flags else "command"
        now_s = int(self.wall())
        self.statistics.latency.add(event, now_s, int(seconds * 1000))
        limit_us = self.config.slowlog_log_slower_than
        if 0 <= limit_us <= seconds * 1e6 and command.name not in ("auth", "hello"):
            self.statistics.slow.add(now_s, int(seconds * 1e6), _redacted(command, args))

    def _mute(self, client: Client) -> None:
        """Drop a reply for CLIENT REPLY OFF or SKIP. SKIP drops its own reply, then the next one, however late."""
        client.handed = None  # it wants its jobs without a reply
        if client.reply_mode == REPLY_SKIP_NEXT:
            client.reply_mode = REPLY_SKIP
        elif client.reply_mode == REPLY_SKIP and client.waiter is None:
            client.reply_mode = REPLY_ON

    def _run_backlog(self, client: Client) -> None:
        if client.waiter is not None or self.paused_until_ms or client.closing or not client.backlog:
            return
        if client.out or client.sink.buffered_bytes() > REPLY_BYTES_HIGH:
            return  # it must read its replies first: `flush`, or its connection, calls again
        if self.node.memory.reply_bytes > self.node.memory.reply_bytes_max:
            self.touch(client)  # the replies of other clients are sent first
            return
        requests, client.backlog = client.backlog, []
        counted_bytes, client.backlog_bytes = client.backlog_bytes, 0
        self.run(client, requests, counted_bytes)
        if client.backlog:
            client.sink.account()
        else:
            client.sink.caught_up()

    def answer(self, waiter: Waiter, outcome: Job | Refused | None) -> None:
        """Answer a client that waited for a job (node.Port)."""
        client = waiter.client
        assert isinstance(client, Client)
        if isinstance(outcome, Job):
            client.hand([outcome])
        self._end_wait(client, shape_outcome(client, waiter, outcome))

    def added(self, addition: Addition) -> None:
        """Answer a producer that waited for copies (node.Port)."""
        client = addition.client
        assert isinstance(client, Client)
        self._end_wait(client, shape_addition(addition))

    def _end_wait(self, client: Client, reply: bytes) -> None:
        client.waiter = None
        client.moving_bytes = 0
        if client.reply_mode:
            self._mute(client)
        else:
            client.out.append(reply)
            self.node.memory.reply_bytes += len(reply)
        self.touch(client)

    def use_events(self, events: NodeEvents) -> None:
        """Record what happens to jobs from now on."""
        self.events = self.node.events = events

    # Other nodes.

    def use_bus(self, port: BusPort) -> None:
        """Set the port to other nodes."""
        self.node.outbox.port = port
        self.node.renumber()

    def link_opened(self, peer: Peer) -> None:
        """Our link to a node has opened."""
        self.set_clock()
        inputs.link_opened(self.node, peer)
        self._heard()

    def link_lost(self, peer: Peer) -> None:
        """Our link to a node has closed."""
        self.set_clock()
        inputs.link_lost(self.node, peer)

    def receive(self, link: LinkInfo, data: list[bytes]) -> None:
        """Handle whole messages that arrived on a link."""
        self.set_clock()
        self.node.client = None
        if self.persistence.loading:
            asked = [(link, message) for message in data if bus.is_request(message)]
            self._asked_early += asked[: EARLY_MAX - len(self._asked_early)]
            data = [message for message in data if bus.is_about_nodes(message)]
        elif self._asked_early:
            self._take_early()
        for message in data:
            receive(self.node, link, message)
        self._heard()

    def _take_early(self) -> None:
        """Handle NEEDJOBS messages that came while the journal was loaded: they are repeated only after 15 s."""
        early, self._asked_early = self._asked_early, []
        for link, message in early:
            receive(self.node, link, message)

    def _heard(self) -> None:
        if self.node.ready:
            serve_ready(self.node)
        self.shell.soon()

    # Time passes, and turns end.

    def touch(self, client: Client) -> None:
        """Note that a client has replies to be sent, or a backlog that may run now."""
        if not client.dirty:
            client.dirty = True
            if not self.dirty:
                self.shell.soon()
            self.dirty.append(client)

    def flush(self) -> None:
        """End a turn: write the journal, then send messages to other nodes, then replies."""
        if self.node.untold:
            tell_waits(self.node)
        safe = self.persistence.flush()
        if not safe:
            self.node.outbox.discard()
        if self.node.cluster.unsaved and not self._is_unsaveable:
            self._save_cluster()  # before messages that rely on these nodes leave
        self.node.outbox.flush()
        dirty, self.dirty = self.dirty, []
        for client in dirty:
            client.dirty = False
            if not safe and client.out:
                # Its replies promise what could not be written. Without an answer it knows that the outcome is open.
                self._drop_replies(client)
                client.closing = True
                client.sink.close(now=True)
                continue
            if client.out:
                data = b"".join(client.out)
                client.out.clear()
                self.statistics.output_bytes += len(data)
                self.node.memory.reply_bytes -= len(data)
                if client.sink.write(data):
                    client.handed = None
            if client.closing:
                client.sink.close(now=False)
            elif client.backlog:
                self._run_backlog(client)
        if not self.dirty:
            self.node.memory.reply_bytes = 0
        if self.events is not None:
            self.events.flush()

    def set_clock(self) -> None:
        """Set the node's clocks."""
        now_ms = int(self.clock() * 1000)
        self._move_clock(now_ms)
        self.node.wall_offset_ms = int(self.wall() * 1000) - now_ms

    def _move_clock(self, now_ms: int) -> None:
        node = self.node
        has_stood = now_ms - node.now_ms > node.node_timeout_ms  # crons come ten times a second
        node.now_ms = now_ms
        if has_stood:
            inputs.hold(node)

    def tick(self) -> bool:
        """Handle timers that are due. True if more are due: the shell calls again after serving clients."""
        self.set_clock()
        if self.persistence.loading:
            return False
        self.node.client = None
        began = self.clock()
        more = inputs.tick(self.node)
        self.statistics.latency.add("jobs-processing", int(self.wall()), int((self.clock() - began) * 1000))
        if (self.node.journal is not None or self.node.outbox.waiting or self.node.untold) and not self.dirty:
            self.flush()
        elif self.events is not None:
            self.events.flush()
        return more

    def cron(self) -> None:
        """Ten times a second: everything that isn't urgent."""
        self.set_clock()
        node, stats = self.node, self.statistics
        stats.commands_rate.sample(stats.commands, node.now_ms)
        stats.input_rate.sample(stats.input_bytes, node.now_ms)
        stats.output_rate.sample(stats.output_bytes, node.now_ms)
        if self.paused_until_ms and node.now_ms >= self.paused_until_ms:
            self.paused_until_ms = 0
            for client in self.clients.values():
                if client.backlog:
                    self.touch(client)
        try:
            inputs.cron(node, self.config.cluster_node_timeout)
        finally:  # a bug there must not keep the journal from being synced
            self._cron_of_this_node()

    def _cron_of_this_node(self) -> None:
        node = self.node
        if node.cluster.unsaved:
            self._save_cluster()
        if not self.persistence.loading:
            if self._asked_early:
                self._take_early()
                self._heard()
            inputs.drop_idle_queues(node)
            if node.cluster.leaving:
                inputs.refuse_waiters(node)
                inputs.drain(node)
        self.connections.cron()
        node.memory.peak_bytes = max(node.memory.peak_bytes, node.memory.used_bytes)
        self.persistence.cron()
        if self.events is not None and not self.persistence.loading:
            self.events.cron()
        if node.outbox.waiting or node.untold:
            self.flush()

    def _save_cluster(self) -> None:
        try:
            self.shell.save_cluster()
            self.node.cluster.unsaved = self._is_unsaveable = False
        except OSError as problem:
            if not self._is_unsaveable:
                log.error("can't write nodes.conf: %s", problem)
            self._is_unsaveable = True  # the cron tries again

    def refresh_checks(self) -> None:
        """Decide again whether commands need checks, and which time counts as slow."""
        self.needs_checks = bool(
            self.config.requirepass or self.monitors or self.persistence.loading or self.persistence.failure
        )
        self.node.refuses_copies = bool(self.persistence.loading or self.persistence.failure)
        limits_s = [self.config.slowlog_log_slower_than / 1e6] if self.config.slowlog_log_slower_than >= 0 else []
        if self.statistics.latency.threshold_ms:
            limits_s.append(self.statistics.latency.threshold_ms / 1000)
        self.slow_s = min(limits_s, default=float("inf"))

    @property
    def journal(self) -> Journal | None:
        """The journal, while there is one."""
        return self.persistence.journal


def _redacted(command: Command, args: list[bytes]) -> list[bytes]:
    """Return the words of a command, without what follows the name of a secret in CONFIG, also where SET is missing."""
    if command.name == "config":
        for at in range(1, len(args) - 1):
            if is_secret(args[at]):
                return [*args[: at + 1], *(REDACTED for _ in args[at + 1 :])]
    return args
