"""The broker: a node with its commands, clients, configuration and journal. Everything but sockets and the event loop.

A shell (server.py, or a test with a clock of its own) gives it requests (`run`), time (`tick`, `cron`) and a way to
send. Requests of one turn are run one after another, their replies collect, and `flush` sends them all, once the
journal has what they promise. That is where batching comes from: one write to the journal and one to each socket a
turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from penstock.broker.clients import REPLY_ON, REPLY_SKIP, REPLY_SKIP_NEXT, Client, Sink, requests_bytes
from penstock.broker.commands.handlers import HANDLERS, RUN_HANDLERS, Handler
from penstock.broker.commands.jobs import shape_addition, shape_outcome
from penstock.broker.commands.table import COMMANDS, CommandInfo
from penstock.broker.config import Config, is_secret
from penstock.broker.core import blocking, draining, eviction, gossip, messages
from penstock.broker.core.adding import Terms
from penstock.broker.core.blocking import serve_ready
from penstock.broker.core.federation import tell_waits
from penstock.broker.core.gossip import Line
from penstock.broker.core.ids import Entropy
from penstock.broker.core.jobs import Job
from penstock.broker.core.membership import Peer
from penstock.broker.core.memory import Memory
from penstock.broker.core.node import Node
from penstock.broker.core.outbox import BusPort
from penstock.broker.core.refusals import Refused
from penstock.broker.core.waiting import Addition, Waiter
from penstock.broker.disk import Disk
from penstock.broker.housekeeping import Housekeeping
from penstock.broker.journal import Journal
from penstock.broker.persistence import Persistence
from penstock.broker.statistics import Statistics
from penstock.errors import PenstockError
from penstock.wire import bus
from penstock.wire.replies import OK, error, simple
from penstock.wire.words import quote_word

log = logging.getLogger("penstock")

ARGUMENTS_ANY: Final = 1 << 62
REPLY_BYTES_HIGH: Final = 1 << 20  # a client that owes us the reading of more has to wait with its next command
REDACTED: Final = b"(redacted)"
MONITOR_BYTES_MAX: Final = 32 << 20  # a monitor with more to read is closed: it doesn't ask for what it gets
EARLY_MAX: Final = 10_000  # requests of other nodes for jobs that are kept while the journal is loaded
NO_AUTH: Final = b"-NOAUTH Authentication required.\r\n"
OUT_OF_MEMORY: Final = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
IS_LOADING: Final = b"-LOADING Disque is loading the dataset in memory\r\n"
# What a web page can make a browser say to a node on the same machine begins with one of these.
HTTP_WORDS: Final = (b"post", b"host:")
NOT_HTTP: Final = b"-ERR this is no web server\r\n"


class Shell(Protocol):
    """What the broker asks of whoever runs it."""

    def soon(self) -> None:
        """Call `flush` once the requests that have arrived are run."""

    def stop(self) -> None:
        """End the process in order."""

    def restart(self, crash: bool, delay_ms: int) -> None:
        """End this process and start again in its place; with `crash` without any cleaning up."""

    def apply(self, directive: str, value: object) -> None:
        """Put a changed directive into effect where it concerns sockets or the process."""

    def facts(self) -> dict[str, object]:
        """Give what INFO tells about the process: keys as INFO names them."""

    def sleep(self, seconds: float) -> None:
        """Stand still, and everything with it (DEBUG SLEEP)."""

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
        self.clients: dict[int, Client] = {}
        self.monitors: list[Client] = []
        self.dirty: list[Client] = []
        self.terms: dict[bytes | tuple[bytes, ...], Terms] = {}  # options of adds, parsed, by their words
        self.run_id = entropy(20).hex().encode()
        self.paused_until_ms = 0  # CLIENT PAUSE
        self.guarded = False
        self.slow_s = 0.0
        self._next_client_id = 1
        self._is_unsaveable = False  # nodes.conf could not be written
        self._asked_early: list[tuple[Line, bytes]] = []  # requests for jobs, while the journal is loaded
        self.housekeeping = Housekeeping(self.clients, config, self.node)
        self.by_name = {name: Command(info, HANDLERS[name]) for name, info in COMMANDS.items()}
        self.commands = self._spellings()
        self.set_clock()
        self.reguard()

    def _spellings(self) -> dict[bytes, Command]:
        """Map what clients write to commands: lower and upper case, and other names for renamed ones."""
        spellings: dict[bytes, Command] = {}
        renamed = self.config.rename_command
        for name, command in self.by_name.items():
            word = renamed.get(name.encode(), name.encode())
            if word:
                spellings[word.lower()] = spellings[word.upper()] = command
        return spellings

    # Clients come, ask, and go.

    def connect(self, address: str, sink: Sink, is_unix: bool = False) -> Client:
        """Take a new client in."""
        self.set_clock()
        client = Client(self._next_client_id, address, sink, self.node.now_ms, is_unix)
        self._next_client_id += 1
        self.clients[client.id] = client
        self.statistics.connections += 1
        return client

    def disconnect(self, client: Client) -> None:
        """Forget a client that is gone."""
        if self.clients.pop(client.id, None) is None:
            return
        client.closing = True
        client.backlog = []
        client.backlog_bytes = 0
        self._drop_replies(client)
        if client.waiter is not None:
            self.set_clock()
            blocking.give_up_waiting(self.node, client.waiter)
            client.waiter = None
            self.shell.soon()
        if client.handed is not None:
            self.set_clock()
            jobs, client.handed = client.handed, None
            others = [other.handed for other in self.dirty if other.handed is not None]
            # One that was given back by its id meanwhile may be on its way to somebody else.
            blocking.take_back(self.node, [job for job in jobs if not any(job in other for other in others)])
            self.shell.soon()
        if client.is_monitor:
            self.monitors.remove(client)
            self.reguard()

    def _drop_replies(self, client: Client) -> None:
        """Forget replies that are not to be sent."""
        self.node.memory.reply_bytes -= sum(map(len, client.out))
        client.out.clear()

    def run(self, client: Client, requests: list[list[bytes]], counted_bytes: int = 0) -> None:
        """Run requests of a client, in order. Those behind one that blocks wait in its backlog.

        `counted_bytes` is what they take, where they come from there.
        """
        if client.waiter is not None or client.backlog or self.paused_until_ms:
            client.backlog += requests
            client.backlog_bytes += requests_bytes(requests)
            self._run_backlog(client)
            return
        node, memory, commands, clock = self.node, self.node.memory, self.commands, self.clock
        out = client.out
        command: Command | None = None
        reply: bytes | None
        at, end, owed_bytes = 0, len(requests), 0
        began = clock()
        while at < end:
            args = requests[at]
            at += 1
            node.now_ms = int(began * 1000)
            command = commands.get(args[0]) or commands.get(args[0].lower())
            if command is None or not command.least <= len(args) <= command.most:
                reply = self._reject(client, command, args)
            elif (self.guarded or memory.used_bytes > memory.full_bytes) and (
                refusal := self._refuse(client, command, args)
            ):
                reply = refusal
            else:
                try:
                    ran = 0
                    if at < end and command.run is not None and requests[at][0] == args[0]:
                        if not self.guarded and not client.reply_mode:
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
            self.shell.soon()  # a time-out may be the next thing to happen

    def _must_wait(self, client: Client) -> bool:
        """Tell whether a client's next request can't be run now."""
        return client.waiter is not None or client.closing or self.paused_until_ms > 0

    def _reject(self, client: Client, command: Command | None, args: list[bytes]) -> bytes:
        """Answer what isn't a command, or not with so many arguments."""
        if command is not None:
            return error(f"ERR wrong number of arguments for '{command.name}' command")
        if args[0].lower() == b"quit":
            client.closing = True
            return OK
        if args[0].lower() in HTTP_WORDS:
            log.warning("closing client %s: it speaks HTTP, perhaps for a web page in a browser", client.address)
            client.closing = True
            return NOT_HTTP
        return error(b"ERR unknown command '%b'" % args[0])

    def _explain(self, args: list[bytes], problem: Exception) -> bytes:
        """Turn what a command raised into its reply. A defect of ours must not take the node down."""
        if isinstance(problem, Refused):
            return error(str(problem))
        if isinstance(problem, PenstockError):
            return error(f"ERR {problem}")
        log.error("command %r failed", args[0][:64], exc_info=problem)
        return b"-ERR internal error, see the log of this node\r\n"

    def _refuse(self, client: Client, command: Command, args: list[bytes]) -> bytes | None:
        """Do the checks before a command that are off while nothing asks for them."""
        config, memory = self.config, self.node.memory
        if config.requirepass and not client.authenticated and command.name not in ("auth", "hello"):
            return NO_AUTH
        if memory.used_bytes > memory.full_bytes and not eviction.make_room(self.node) and command.needs_memory:
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
        words = b" ".join(quote_word(arg) for arg in _redacted(command, args))
        address = ("unix:" if client.is_unix else "") + client.address
        line = simple(b"%.6f [%b] %b" % (self.wall(), address.encode("utf-8", "surrogateescape"), words))
        for monitor in self.monitors:
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
        """Swallow a reply, and go on with CLIENT REPLY SKIP: first its own reply, then the next, however late."""
        client.handed = None  # it wants them so
        if client.reply_mode == REPLY_SKIP_NEXT:
            client.reply_mode = REPLY_SKIP
        elif client.reply_mode == REPLY_SKIP and client.waiter is None:
            client.reply_mode = REPLY_ON

    def _run_backlog(self, client: Client) -> None:
        if client.waiter is not None or self.paused_until_ms or client.closing or not client.backlog:
            return
        if client.out or client.sink.buffered_bytes() > REPLY_BYTES_HIGH:
            return  # it reads what it is owed first: `flush`, or its connection, comes back to this
        if self.node.memory.reply_bytes > self.node.memory.reply_bytes_max:
            self.touch(client)  # the replies of others leave first
            return
        requests, client.backlog = client.backlog, []
        counted_bytes, client.backlog_bytes = client.backlog_bytes, 0
        self.run(client, requests, counted_bytes)
        if client.backlog:
            client.sink.account()
        else:
            client.sink.caught_up()

    def answer(self, waiter: Waiter, outcome: Job | Refused | None) -> None:
        """Give a client that waited what it gets: the port of the node."""
        client = waiter.client
        assert isinstance(client, Client)
        client.waiter = None
        if client.reply_mode:
            self._mute(client)
        else:
            reply = shape_outcome(client, waiter, outcome)
            client.out.append(reply)
            self.node.memory.reply_bytes += len(reply)
            if isinstance(outcome, Job):
                client.hand([outcome])
        self.touch(client)

    def added(self, addition: Addition) -> None:
        """Tell a producer what became of its jobs: the port of the node."""
        client = addition.client
        assert isinstance(client, Client)
        client.waiter = None
        if client.reply_mode:
            self._mute(client)
        else:
            reply = shape_addition(addition)
            client.out.append(reply)
            self.node.memory.reply_bytes += len(reply)
        self.touch(client)

    # Other nodes.

    def use_bus(self, port: BusPort) -> None:
        """Take the links to other nodes."""
        self.node.outbox.port = port
        self.node.renumber()

    def link_opened(self, peer: Peer) -> None:
        """Our link to a node is there."""
        self.set_clock()
        gossip.link_opened(self.node, peer)
        self._heard()

    def link_lost(self, peer: Peer) -> None:
        """Our link to a node is gone."""
        self.set_clock()
        gossip.link_lost(self.node, peer)

    def receive(self, line: Line, data: list[bytes]) -> None:
        """Take whole messages that arrived on a link."""
        self.set_clock()
        if self.persistence.loading:
            asked = [(line, message) for message in data if bus.is_request(message)]
            self._asked_early += asked[: EARLY_MAX - len(self._asked_early)]
            data = [message for message in data if bus.is_about_nodes(message)]
        elif self._asked_early:
            self._take_early()
        for message in data:
            messages.receive(self.node, line, message)
        self._heard()

    def _take_early(self) -> None:
        """Take the requests for jobs that came while the journal was loaded: they are not repeated soon."""
        early, self._asked_early = self._asked_early, []
        for line, message in early:
            messages.receive(self.node, line, message)

    def _heard(self) -> None:
        if self.node.ready:
            serve_ready(self.node)
        self.shell.soon()

    # Time passes, and turns end.

    def touch(self, client: Client) -> None:
        """Remember that a client has something to be sent, or a backlog that may run now."""
        if not client.dirty:
            client.dirty = True
            if not self.dirty:
                self.shell.soon()
            self.dirty.append(client)

    def flush(self) -> None:
        """End a turn: make safe what happened in it, then send the replies."""
        if self.node.untold:
            tell_waits(self.node)
        safe = self.persistence.flush()
        if not safe:
            self.node.outbox.unsay()
        if self.node.cluster.unsaved and not self._is_unsaveable:
            self._save_cluster()  # before anybody counts on us as one of these nodes
        self.node.outbox.flush()
        dirty, self.dirty = self.dirty, []
        for client in dirty:
            client.dirty = False
            if not safe and client.out:
                # What its replies promise could not be written down. Without an answer it knows that it doesn't know.
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

    def set_clock(self) -> None:
        """Bring the node's clocks up to date."""
        now = self.clock()
        self.node.now_ms = int(now * 1000)
        self.node.wall_offset_ms = int(self.wall() * 1000) - self.node.now_ms

    def tick(self) -> bool:
        """Do what is due; True if more is due already, so that the shell comes back after the clients' turn."""
        self.set_clock()
        if self.persistence.loading:
            return False
        began = self.clock()
        more = blocking.tick(self.node)
        self.statistics.latency.add("jobs-processing", int(self.wall()), int((self.clock() - began) * 1000))
        if (self.node.journal is not None or self.node.outbox.waiting or self.node.untold) and not self.dirty:
            self.flush()
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
            gossip.cron(node, self.config.cluster_node_timeout)
        finally:  # a defect there must not keep the journal from being synced
            self._cron_of_this_node()

    def _cron_of_this_node(self) -> None:
        node = self.node
        if node.cluster.unsaved:
            self._save_cluster()
        if not self.persistence.loading:
            if self._asked_early:
                self._take_early()
                self._heard()
            eviction.drop_idle_queues(node)
            if node.cluster.leaving:
                blocking.refuse_waiters(node)
                draining.drain(node)
        self.housekeeping.cron()
        node.memory.peak_bytes = max(node.memory.peak_bytes, node.memory.used_bytes)
        self.persistence.cron()
        if node.outbox.waiting or node.untold:
            self.flush()

    def _save_cluster(self) -> None:
        try:
            self.shell.save_cluster()
            self.node.cluster.unsaved = self._is_unsaveable = False
        except OSError as problem:
            if not self._is_unsaveable:
                log.error("the nodes of the cluster can't be saved: %s", problem)
            self._is_unsaveable = True  # the cron tries again

    def reguard(self) -> None:
        """Find out again which checks every command needs."""
        self.guarded = bool(
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
    """The words of a command as others may see them."""
    if command.name == "config" and len(args) > 2 and is_secret(args[2]):
        return [*args[:3], *(REDACTED for _ in args[3:])]
    return args
