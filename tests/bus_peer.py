"""An original Disque node as its neighbours on the cluster bus see it: for tests, and as strict as it can be.

A `BusPeer` listens on the bus port of a client port that it doesn't serve. It does by itself only what keeps it in a
cluster: it answers PING and MEET with a PONG on the same link, connects back to whoever sent it a MEET, and opens a
lost link of its own again. Everything else is done by the test: `send` any message, `wait_for` what comes. It holds no
jobs, and believes no gossip.

    peer = BusPeer()
    peer.join("127.0.0.1", node.port)
    peer.send("REPLJOB", jobs=(peer.new_job(nodes=(peer.id, node_id)),))
    peer.wait_for("GOTJOB", sender=node_id)
    assert not peer.violations

What no original would have sent is a violation: it is noted, and the message is ignored or the link closed, as an
original would do. Sockets belong to one thread; what the test asks for is done there, before the call returns.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.bus_messages import MYSELF, BadFrameError, Gossip, JobCopy, Message, decode, take_frame
from tests.processes import free_port

BUS_PORT_OFFSET = 10_000
PATIENCE_S = 30.0
RECONNECT_S = 0.1
READ_BYTES = 65_536
NS_PER_MS = 1_000_000
ID_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

Result = TypeVar("Result")
Kind = str | tuple[str, ...]


@dataclass(eq=False)
class Contact:
    """A node that this peer keeps a link of its own to."""

    host: str
    port: int
    greeting: str  # what a new link begins with: MEET until it is answered, then PING; nothing for a stranger
    id: bytes = b""  # known from its PONG
    link: Link | None = None
    next_try: float = 0.0


@dataclass(eq=False)
class Link:
    """One connection; `contact` is who this peer has connected to, None if the other side has."""

    socket: socket.socket
    host: str  # of the other side
    contact: Contact | None
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    pings_sent: int = 0
    pongs_received: int = 0
    unanswered: int = 0  # pings that silence has left so


class BusPeer:
    """One node of an original cluster."""

    def __init__(self, host: str = "127.0.0.1", port: int | None = None, node_id: bytes | None = None) -> None:
        self.host = host
        self.id = node_id or secrets.token_hex(20).encode()
        self.flags = MYSELF  # of every message from now on
        self.gossip: tuple[Gossip, ...] = ()  # of every PONG from now on
        self.received: list[Message] = []
        self.violations: list[str] = []
        self.hangups = 0  # links of this peer that the other side has closed, and nobody has waited for
        self._taken: set[int] = set()  # places in `received` that `wait_for` has given
        self._silent = False
        self._closing = False
        self._contacts: list[Contact] = []
        self._links: list[Link] = []
        self._actions: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._news = threading.Condition()
        self.port, self._listener = self._listen(port)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._alarm, self._bell = socket.socketpair()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=f"bus peer {self.port}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Vanish, as a killed node does."""
        if not self._closing:
            self._do(self._end)
            self._thread.join(PATIENCE_S)

    # Membership

    def connect(self, host: str, port: int) -> None:
        """Open a link to a node without a word, and keep it: what is sent then comes from a stranger."""
        self._add_contact(host, port, greeting="")

    def join(self, host: str, port: int) -> bytes:
        """Introduce itself to a node, wait until it has connected back and been answered, and return its id."""
        contact = self._add_contact(host, port, greeting="MEET")
        self._wait(lambda: contact.id, f"a PONG to the MEET to port {port}")
        self._wait(
            lambda: self.seen(("PING", "MEET"), sender=contact.id),
            f"a PING from {contact.id!r}, which should have connected back",
        )
        return contact.id

    def wait_until_met(self) -> bytes:
        """Wait until a node that sent a MEET has been connected back to and has answered, and return its id."""
        met: bytes = self._wait(
            lambda: next((contact.id for contact in self._contacts if contact.id), None), "somebody's MEET"
        )
        return met

    def silence(self) -> None:
        """Answer no PING from now on, like a process that is stopped."""
        self._do(lambda: setattr(self, "_silent", True))

    def speak(self) -> None:
        """Answer again, also what was left unanswered."""
        self._do(self._end_silence)

    def drop_links(self) -> None:
        """Close all links in both directions; the peer's own are soon opened again."""
        self._do(self._drop_all)

    # Messages

    def send(self, kind: str, to: bytes | None = None, **fields: Any) -> None:
        """Send a message of these fields (see `Message`) to a node, which needn't be named if there is only one."""
        raw = self.message(kind, **fields).encode()
        self.send_raw(raw, to, pings=int(kind in {"PING", "MEET"} and decode(raw)[0].understood))

    def message(self, kind: str, **fields: Any) -> Message:
        """Make a message of this peer without sending it."""
        all_fields: dict[str, Any] = {"sender": self.id, "port": self.port, "flags": self.flags, **fields}
        return Message(kind=kind, **all_fields)

    def send_raw(self, data: bytes, to: bytes | None = None, pings: int = 0) -> None:
        """Send bytes as they are; `pings` tells how many of the messages in them a node answers with a PONG."""
        contact = self._contact(to)
        self._wait(lambda: contact.link, f"a link to port {contact.port}")

        def write() -> None:
            link = contact.link
            assert link is not None, f"the link to port {contact.port} was lost before anything was sent"
            link.pings_sent += pings
            self._write(link, data)

        self._do(write)

    def fence(self, to: bytes | None = None, timeout: float = PATIENCE_S) -> None:
        """Wait for the answers to all PINGs, the last of them new: all that was sent before has been handled."""
        contact = self._contact(to)
        self.send("PING", to)
        link = contact.link
        self._wait(
            lambda: contact.link is not link or link is None or link.pongs_received >= link.pings_sent,
            f"a PONG from port {contact.port}",
            timeout,
        )
        assert link is not None
        assert contact.link is link, f"port {contact.port} closed the link in place of answering a PING"

    def wait_for(
        self,
        kind: Kind,
        where: Callable[[Message], object] | None = None,
        timeout: float = PATIENCE_S,
        **fields: Any,
    ) -> Message:
        """Return the first message of this type, with these fields, not returned before; wait for it."""

        def take() -> Message | None:
            for place, message in self._find(kind, where, fields):
                self._taken.add(place)
                return message
            return None

        found: Message = self._wait(take, f"{kind} with {fields}", timeout)
        return found

    def seen(self, kind: Kind, where: Callable[[Message], object] | None = None, **fields: Any) -> list[Message]:
        """Return all messages of this type and with these fields that have come so far."""
        with self._news:
            return [message for message in self.received if _fits(message, kind, where, fields)]

    def hears(self, kind: Kind) -> bool:
        """Whether `wait_for` would give such a message at once."""
        with self._news:
            return any(self._find(kind, None, {}))

    def forget(self) -> None:
        """Let `wait_for` give nothing that came before."""
        with self._news:
            self._taken.update(range(len(self.received)))

    def wait_for_hangup(self) -> None:
        """Wait until the other side closes a link of this peer; each such end is given once."""
        self._wait(lambda: self.hangups, "the end of a link")
        with self._news:
            self.hangups -= 1

    def new_job(self, **fields: Any) -> JobCopy:
        """Make a job that this peer might have created; it is held by this peer alone unless `nodes` says more."""
        is_retried = bool(fields.get("retry", JobCopy.retry))
        job_id = b"D-%b-%b-%b" % (
            self.id[:8],
            "".join(secrets.choice(ID_LETTERS) for _ in range(24)).encode(),
            b"05a1" if is_retried else b"05a0",
        )
        ctime = time.time_ns() // NS_PER_MS * NS_PER_MS
        all_fields: dict[str, Any] = {"id": job_id, "ctime": ctime, "nodes": (self.id,), **fields}
        return JobCopy(**all_fields)

    # What the test's thread does

    def _find(
        self, kind: Kind, where: Callable[[Message], object] | None, fields: dict[str, Any]
    ) -> Iterator[tuple[int, Message]]:
        """Look for messages that were not given yet."""
        for place, message in enumerate(self.received):
            if place not in self._taken and _fits(message, kind, where, fields):
                yield place, message

    def _add_contact(self, host: str, port: int, greeting: str) -> Contact:
        contact = Contact(host, port, greeting)
        self._do(lambda: self._contacts.append(contact))
        self._wait(lambda: contact.link, f"a connection to the bus of port {port}")
        return contact

    def _contact(self, node_id: bytes | None) -> Contact:
        with self._news:
            fitting = [contact for contact in self._contacts if node_id in {None, contact.id}]
        assert len(fitting) == 1, f"{len(fitting)} nodes are linked that could be meant by {node_id!r}"
        return fitting[0]

    def _do(self, action: Callable[[], Result]) -> Result:
        """Have something done by the thread that owns the sockets."""
        future: Future[Result] = Future()
        self._actions.append((action, future))
        # The thread may have seen the action already, and if it was the end, closed this.
        with suppress(OSError):
            self._alarm.send(b"!")
        return future.result(PATIENCE_S)

    def _wait(self, what: Callable[[], Any], name: str, timeout: float = PATIENCE_S) -> Any:
        """Wait until something is true, and return it."""
        with self._news:
            value = self._news.wait_for(what, timeout)
            if value:
                return value
            came = dict(Counter(message.kind for message in self.received))
            raise AssertionError(f"no sign of {name} within {timeout} s; came: {came}; violations: {self.violations}")

    # What the thread of the sockets does

    def _listen(self, port: int | None) -> tuple[int, socket.socket]:
        while True:
            chosen = port or free_port()
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((self.host, chosen + BUS_PORT_OFFSET))
            except OSError:
                listener.close()
                if port:
                    raise
                continue
            listener.listen()
            return chosen, listener

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except Exception:
            self._note("the peer itself failed: " + traceback.format_exc())
            self._end()
        for _, future in self._actions:
            future.set_exception(AssertionError("the peer has ended"))

    def _turn(self) -> None:
        for key, events in self._selector.select(RECONNECT_S):
            if key.fileobj is self._bell:
                self._bell.recv(READ_BYTES)
            elif key.fileobj is self._listener:
                connection, (host, _) = self._listener.accept()
                self._open_link(connection, host, None)
            else:
                self._serve(key.data, events)
        while self._actions and not self._closing:
            action, future = self._actions.popleft()
            with self._news:
                try:
                    future.set_result(action())
                except Exception as error:
                    future.set_exception(error)
                self._news.notify_all()
        if not self._closing:
            self._reconnect()

    def _reconnect(self) -> None:
        now = time.monotonic()
        for contact in self._contacts:
            if contact.link is not None or contact.next_try > now:
                continue
            contact.next_try = now + RECONNECT_S
            with suppress(OSError):
                address = (contact.host, contact.port + BUS_PORT_OFFSET)
                connection = socket.create_connection(address, PATIENCE_S, (self.host, 0))
                with self._news:
                    contact.link = self._open_link(connection, contact.host, contact)
                    if contact.greeting:
                        contact.link.pings_sent += 1
                        self._write(contact.link, self.message(contact.greeting).encode())
                    self._news.notify_all()

    def _open_link(self, connection: socket.socket, host: str, contact: Contact | None) -> Link:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(connection, host, contact)
        self._links.append(link)
        self._selector.register(connection, selectors.EVENT_READ, link)
        return link

    def _serve(self, link: Link, events: int) -> None:
        if link not in self._links:
            return
        if events & selectors.EVENT_WRITE:
            self._write(link, b"")
        if not events & selectors.EVENT_READ:
            return
        try:
            data = link.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        with self._news:
            if data:
                self._read(link, data)
            elif link in self._links:
                self._drop(link)
                self.hangups += link.contact is not None
            self._news.notify_all()

    def _read(self, link: Link, data: bytes) -> None:
        link.incoming += data
        try:
            while (frame := take_frame(link.incoming)) is not None:
                self._handle(link, frame)
        except BadFrameError as problem:
            self._note(str(problem))
            self._drop(link)

    def _handle(self, link: Link, frame: bytes) -> None:
        inbound = link.contact is None
        message, complaints = decode(frame, inbound)
        for complaint in complaints:
            self._note(complaint)
        self.received.append(message)
        if inbound == (message.kind == "PONG"):
            self._note(f"{message.kind} on a link that {'its sender' if inbound else 'this peer'} opened")
        elif not message.understood:
            return
        elif link.contact is not None:
            link.pongs_received += 1
            link.contact.id = message.sender
            if link.contact.greeting:
                link.contact.greeting = "PING"
        elif message.kind in {"PING", "MEET"}:
            link.unanswered += 1
            self._answer(link)
            if message.kind == "MEET" and all(contact.id != message.sender for contact in self._contacts):
                self._connect_back(link.host, message.port)

    def _connect_back(self, host: str, port: int) -> None:
        if all((contact.host, contact.port) != (host, port) for contact in self._contacts):
            self._contacts.append(Contact(host, port, greeting="PING"))

    def _answer(self, link: Link) -> None:
        while link.unanswered and not self._silent:
            link.unanswered -= 1
            self._write(link, self.message("PONG", gossip=self.gossip).encode())

    def _end_silence(self) -> None:
        self._silent = False
        for link in list(self._links):
            self._answer(link)

    def _write(self, link: Link, data: bytes) -> None:
        link.outgoing += data
        with suppress(OSError):  # the end of a link shows when it is read from
            while link.outgoing:
                sent = link.socket.send(link.outgoing)
                del link.outgoing[:sent]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.outgoing else 0)
        if link in self._links and self._selector.get_key(link.socket).events != wanted:
            self._selector.modify(link.socket, wanted, link)

    def _drop(self, link: Link) -> None:
        self._links.remove(link)
        self._selector.unregister(link.socket)
        link.socket.close()
        if link.contact is not None:
            link.contact.link = None

    def _drop_all(self) -> None:
        for link in list(self._links):
            self._drop(link)

    def _note(self, violation: str) -> None:
        with self._news:
            self.violations.append(violation)

    def _end(self) -> None:
        self._closing = True
        self._drop_all()
        self._selector.close()
        for one in (self._listener, self._alarm, self._bell):
            one.close()


def _fits(message: Message, kind: Kind, where: Callable[[Message], object] | None, fields: dict[str, Any]) -> bool:
    kinds: Sequence[str] = (kind,) if isinstance(kind, str) else kind
    if message.kind not in kinds or not message.understood:
        return False
    if any(getattr(message, name) != value for name, value in fields.items()):
        return False
    return where is None or bool(where(message))
