"""One connection of the event loop: requests out, replies in, in the same order.

Requests of one turn of the loop are sent in one write, at the end of the turn. A request that carries a batch already
is sent at once if nothing else is under way, since a turn costs more than the write.

Replies belong to the requests in the order in which those were sent. If a caller is cancelled, the reply that comes for
it is taken all the same, and jobs in it go to `orphaned`, which returns them to their queue.

Time runs for the request that is next to be answered, from its turn or from the last reply. If it runs out the
connection is closed, so that a late reply can't be taken for another.
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
from penstock.client.attempts import NotSent
from penstock.client.connection import encode, hiredis_decoder, reason
from penstock.client.requests import Repeat, Request
from penstock.errors import BadReply, ConnectionLost, PeerError, ReplyError, TimedOut
from penstock.wire.reply_reader import NOTHING

# After this many turns any event loop has read what has arrived.
TURNS_TO_READ = 4

Orphaned = Callable[[Request, Sequence[Any]], None]


class PendingRequest:
    """A request under way, and the future that its caller waits for."""

    __slots__ = ("data", "future", "replies", "request", "seconds")

    def __init__(self, request: Request, data: bytes, seconds: float, future: asyncio.Future[None]) -> None:
        self.request, self.data, self.seconds, self.future = request, data, seconds, future
        self.replies: list[Any] = []


class PipelinedConnection(asyncio.Protocol):
    """A connection to one node."""

    def __init__(self, address: Address, orphaned: Orphaned) -> None:
        self._address, self._orphaned = address, orphaned
        self._loop = asyncio.get_running_loop()
        self._decoder = hiredis_decoder()
        self._transport: asyncio.Transport | None = None
        self._poll: select.poll | None = None
        self._unsent: list[PendingRequest] = []
        self._sent: deque[PendingRequest] = deque()
        self._waiting_since = 0.0  # for the reply to the first in `_sent`
        self._timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._problem: PeerError | None = None  # why it is closed
        self._unasked = ""  # an error reply without a request, such as "max number of clients reached"
        self._drained: list[asyncio.Future[None]] = []
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether it is connected, as far as the event loop knows."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._sent and not self._unsent

    async def exchange(self, request: Request, seconds: float, now: float) -> list[Any]:
        """Send a request and return its replies, error replies as values. Raises after `seconds` of silence."""
        commands = request.commands_at(now)
        data = encode(commands[0]) if len(commands) == 1 else b"".join(map(encode, commands))
        if not self._writable.is_set():  # the node takes less than we send
            await self._writable.wait()
        if self._poll is not None and not self._sent and request.repeat in (Repeat.ALLOWED, Repeat.NEVER):
            # The node may have closed an idle connection: the loop must see it before what can't be sent twice.
            turns = TURNS_TO_READ
            while turns and self.is_idle and self.is_open and self._poll.poll(0):
                await asyncio.sleep(0)
                turns -= 1
        pending = self.post(request, data, seconds)
        try:
            await pending.future
        except asyncio.CancelledError:
            if pending.future.done() and not pending.future.cancelled() and pending.future.exception() is None:
                self._orphaned(request, pending.replies)  # they came, and nobody will see them
            raise
        return pending.replies

    def post(self, request: Request, data: bytes, seconds: float) -> PendingRequest:
        """Send a request, at the end of this turn or at once. The future is done when it is answered."""
        if not self.is_open:
            raise NotSent(f"There is no connection to {self._address}.")
        pending = PendingRequest(request, data, seconds, self._loop.create_future())
        self._unsent.append(pending)
        if len(self._unsent) == 1:
            if request.is_batch and not self._sent:
                self._flush()
            else:
                self._loop.call_soon(self._flush)
        return pending

    def _flush(self) -> None:
        """Write the unsent requests, without those that were cancelled."""
        if self._transport is None or self._transport.is_closing():
            return  # connection_lost ends the waits
        unsent = [pending for pending in self._unsent if not pending.future.cancelled()]
        self._unsent = []
        if unsent:
            if not self._sent:
                self._waiting_since = self._loop.time()
            self._sent.extend(unsent)
            self._transport.write(b"".join([pending.data for pending in unsent]))
            self._set_timer()
        self._tell_drained()

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        if not self.is_idle:
            future: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(future)
            await future

    def hang_up(self) -> None:
        """Close our direction, and go on reading until the node has closed.

        What it sends before that shows for certain whether it has handed out a job in the meantime.
        """
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
            return
        # TLS transports can't do this. The socket itself can: nothing more is sent, TLS records included.
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

    # Called by the event loop.

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
        if self._sent:
            self._waiting_since = self._loop.time()
            self._set_timer()
        elif self._drained:
            self._tell_drained()

    def _take(self, reply: Any) -> None:
        if not self._sent:
            if isinstance(reply, ReplyError):
                self._unasked = str(reply)
                return
            raise BadReply("a reply without a request")
        pending = self._sent[0]
        pending.replies.append(reply)
        if len(pending.replies) < pending.request.count:
            return
        self._sent.popleft()
        if pending.future.cancelled():
            self._orphaned(pending.request, pending.replies)
        elif not pending.future.done():
            pending.future.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        why = self._unasked or (reason(exc) if exc else "the server closed it")
        problem = self._problem or ConnectionLost(f"Lost the connection to {self._address}: {why}")
        for pending in self._sent:
            if not pending.future.done():
                pending.future.set_exception(problem)
        for pending in self._unsent:
            if not pending.future.done():
                pending.future.set_exception(NotSent(str(problem)))
        self._sent.clear()
        self._unsent.clear()
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
        self._tell_drained()
        if not self.ended.done():
            self.ended.set_result(None)

    def _tell_drained(self) -> None:
        if self._drained and self.is_idle:
            for future in self._drained:
                if not future.done():
                    future.set_result(None)
            self._drained.clear()

    def _set_timer(self) -> None:
        """Have `_check_time` called when the next reply is overdue."""
        if not self._sent or math.isinf(self._sent[0].seconds):
            return
        overdue_at = self._waiting_since + self._sent[0].seconds
        if self._timer is not None:
            if self._timer.when() <= overdue_at:
                return  # it will find that it is early, and set another
            self._timer.cancel()
        self._timer = self._loop.call_at(overdue_at, self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        if self._sent and self._loop.time() >= self._waiting_since + self._sent[0].seconds:
            seconds = self._sent[0].seconds
            self.abort(TimedOut(f"No answer from {self._address} within {seconds:g} s"))
        else:
            self._set_timer()
