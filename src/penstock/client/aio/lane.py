"""One connection of the event loop: requests out, replies in, in the same order.

Requests that come in one turn of the loop leave in one write. Replies belong to the requests in the order in which
those were sent, so a caller that goes away leaves its place: the reply that comes for it is taken, and if there are
jobs in it they go to `orphaned`, which gives them back.

Time runs for the request that is next to be answered, from its turn or from the last reply. If it runs out the
connection is closed, lest a late reply be mistaken for another.
"""

import asyncio
import math
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from penstock.client.addresses import Address
from penstock.client.connection import encode, hiredis_decoder, reason
from penstock.client.effort import NotSent
from penstock.client.replies import NOTHING
from penstock.client.requests import Repeat, Request
from penstock.errors import BadReply, ConnectionLost, PeerError, ReplyError, TimedOut

# After this many turns of the loop what has arrived is read, by any of the loops.
TURNS_TO_HEAR = 4

Orphaned = Callable[[Request, Sequence[Any]], None]


class Slot:
    """A request under way, and who waits for its replies."""

    __slots__ = ("data", "future", "replies", "request", "seconds")

    def __init__(self, request: Request, data: bytes, seconds: float, future: asyncio.Future[None]) -> None:
        self.request, self.data, self.seconds, self.future = request, data, seconds, future
        self.replies: list[Any] = []


class Lane(asyncio.Protocol):
    """A connection to one node."""

    def __init__(self, address: Address, orphaned: Orphaned) -> None:
        self._address, self._orphaned = address, orphaned
        self._loop = asyncio.get_running_loop()
        self._decoder = hiredis_decoder()
        self._transport: asyncio.Transport | None = None
        self._poll: select.poll | None = None
        self._unsent: list[Slot] = []
        self._sent: deque[Slot] = deque()
        self._will_flush = False
        self._turn_began = 0.0  # of the first in `_sent`
        self._watch: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._problem: PeerError | None = None  # why it ends
        self._unasked = ""  # an error that answers nothing, as "max number of clients reached"
        self._drained: list[asyncio.Future[None]] = []
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether there is a link, as far as the event loop has heard."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._sent and not self._unsent

    async def exchange(self, request: Request, seconds: float, now: float) -> list[Any]:
        """Send a request and give its replies; of errors only the last `seconds` of silence raise."""
        data = b"".join([encode(command) for command in request.commands_at(now)])
        if not self._room.is_set():  # the node takes less than we send
            await self._room.wait()
        if request.repeat in (Repeat.ALLOWED, Repeat.NEVER):
            await self._hear()
        slot = self.post(request, data, seconds)
        try:
            await slot.future
        except asyncio.CancelledError:
            if slot.future.done() and not slot.future.cancelled() and slot.future.exception() is None:
                self._orphaned(request, slot.replies)  # they came, and nobody will see them
            raise
        return slot.replies

    async def _hear(self) -> None:
        """Let the event loop notice that the node has closed an idle connection, before what can't be sent twice."""
        for _ in range(TURNS_TO_HEAR):
            if self._poll is None or not self.is_idle or not self.is_open or not self._poll.poll(0):
                return
            await asyncio.sleep(0)

    def post(self, request: Request, data: bytes, seconds: float) -> Slot:
        """Put a request into what is sent at the end of this turn. The slot's future tells when it is answered."""
        if not self.is_open:
            raise NotSent(f"There is no connection to {self._address}.")
        slot = Slot(request, data, seconds, self._loop.create_future())
        self._unsent.append(slot)
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)
        return slot

    def _flush(self) -> None:
        """Write what has collected, without what was cancelled before it left."""
        self._will_flush = False
        if self._transport is None or self._transport.is_closing():
            return  # connection_lost tells those who wait
        slots = [slot for slot in self._unsent if not slot.future.cancelled()]
        self._unsent = []
        if slots:
            if not self._sent:
                self._turn_began = self._loop.time()
            self._sent.extend(slots)
            self._transport.write(b"".join([slot.data for slot in slots]))
            self._keep_watch()
        self._tell_drained()

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        if not self.is_idle:
            future: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(future)
            await future

    def hang_up(self) -> None:
        """Say that no more requests come, and go on listening until the node has closed.

        Its last words tell for certain whether it has given us a job in the meantime.
        """
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
            return
        # TLS transports have no such thing. The socket itself does: nothing more of us comes, records or other.
        fd = self._transport.get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(fd)) as raw:
            try:
                raw.shutdown(socket.SHUT_WR)
            except OSError:
                self._transport.abort()

    def close(self) -> None:
        """Close, after what is still to be written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, problem: PeerError) -> None:
        """Close at once, for this reason."""
        self._problem = self._problem or problem
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._poll = select.poll()
        self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        try:
            while (reply := self._decoder.gets()) is not NOTHING:
                self._take(reply)
        except BadReply as error:
            self.abort(BadReply(f"{self._address} does not answer like a Penstock node: {error}"))
            return
        self._turn_began = self._loop.time()
        self._keep_watch()
        self._tell_drained()

    def _take(self, reply: Any) -> None:
        if not self._sent:
            if isinstance(reply, ReplyError):
                self._unasked = str(reply)
                return
            raise BadReply("a reply that answers nothing")
        slot = self._sent[0]
        slot.replies.append(reply)
        if len(slot.replies) < slot.request.count:
            return
        self._sent.popleft()
        if slot.future.cancelled():
            self._orphaned(slot.request, slot.replies)
        elif not slot.future.done():
            slot.future.set_result(None)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        why = self._unasked or (reason(exc) if exc else "the server closed it")
        problem = self._problem or ConnectionLost(f"Lost the connection to {self._address}: {why}")
        for slot in self._sent:
            if not slot.future.done():
                slot.future.set_exception(problem)
        for slot in self._unsent:
            if not slot.future.done():
                slot.future.set_exception(NotSent(str(problem)))
        self._sent.clear()
        self._unsent.clear()
        self._room.set()
        if self._watch is not None:
            self._watch.cancel()
        self._tell_drained()
        if not self.ended.done():
            self.ended.set_result(None)

    def _tell_drained(self) -> None:
        if self._drained and self.is_idle:
            for future in self._drained:
                if not future.done():
                    future.set_result(None)
            self._drained.clear()

    def _keep_watch(self) -> None:
        """See to it that somebody looks at the clock when the next reply is overdue."""
        if not self._sent or math.isinf(self._sent[0].seconds):
            return
        overdue_at = self._turn_began + self._sent[0].seconds
        if self._watch is not None:
            if self._watch.when() <= overdue_at:
                return  # it will find that it is early, and look again
            self._watch.cancel()
        self._watch = self._loop.call_at(overdue_at, self._look)

    def _look(self) -> None:
        self._watch = None
        if self._sent and self._loop.time() >= self._turn_began + self._sent[0].seconds:
            seconds = self._sent[0].seconds
            self.abort(TimedOut(f"No answer from {self._address} within {seconds:g} s"))
        else:
            self._keep_watch()
