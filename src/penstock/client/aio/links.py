"""All connections to one node, for asyncio: the part of the client that waits. `blocking.links` is its twin.

Commands that a node answers at once share one connection. Adds share another, since a node lets an add wait until the
job is on enough nodes, and what is behind it on the same connection with it. A GETJOB that waits has one to itself,
out of a pool.

A caller that is cancelled never loses a job silently. What is not sent yet isn't sent. If the reply is here, its jobs
are given back. If it isn't, a shared connection gives them back when it comes; one of the pool is hung up and listened
to until the node closes it, which tells for certain whether a job was on its way. What can't come back (retry 0, or no
connection left) is logged.
"""

import asyncio
import logging
import math
import os
import ssl
from collections.abc import Sequence
from typing import Any

from penstock.client.addresses import Address
from penstock.client.aio.lane import Lane
from penstock.client.connection import encode, reason
from penstock.client.effort import NotSent
from penstock.client.requests import Lane as LaneKind
from penstock.client.requests import Request, is_at_most_once
from penstock.client.settings import LinkSettings
from penstock.errors import AuthenticationError, ConnectionLost, PeerError, ReplyError

log = logging.getLogger("penstock.client")

# How long a node may take to close a connection that was hung up, and to answer what gives jobs back.
LAST_WORDS_SECONDS = 2.0

Turn = asyncio.Lock
"""What one task at a time may do: choose a node."""

sleep = asyncio.sleep


def owner() -> object:
    """To whom connections belong: they are of no use in another process, or under another event loop."""
    return os.getpid(), asyncio.get_running_loop()


class Links:
    """The connections to the node at an address."""

    def __init__(self, address: Address, settings: LinkSettings) -> None:
        self._address, self._settings = address, settings
        self._quick: Lane | None = None
        self._adds: Lane | None = None
        self._adds_turn = asyncio.Lock()
        self._idle: list[Lane] = []
        self._waiting: set[Lane] = set()
        self._ending: set[Lane] = set()
        self._places = asyncio.Semaphore(settings.waits_max)

    @property
    def connected(self) -> bool:
        """Whether the node can be asked, as far as the event loop has heard."""
        return self._quick is not None and self._quick.is_open

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        shared = [lane for lane in (self._quick, self._adds) if lane is not None]
        return bool(self._waiting or self._ending) or not all(lane.is_idle for lane in shared)

    async def connect(self, seconds: float) -> None:
        """Open the first connection."""
        self._quick = await self._dial(seconds)

    async def _dial(self, seconds: float) -> Lane:
        tls, host = self._settings.tls, self._address.host
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                _, lane = await loop.create_connection(
                    lambda: Lane(self._address, self._orphaned),
                    host,
                    self._address.port,
                    ssl=tls,
                    server_hostname=host if tls else None,
                )
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise NotSent(f"Could not connect to {self._address}: {_why(error)}") from error
        if self._settings.password is not None:
            await self._show_password(lane, self._settings.password, seconds)
        return lane

    async def _show_password(self, lane: Lane, password: str | bytes, seconds: float) -> None:
        try:
            (reply,) = await lane.exchange(Request(("AUTH", password)), seconds, 0.0)
        except BaseException as error:
            lane.close()
            if isinstance(error, ConnectionLost):
                raise NotSent(str(error)) from error
            raise
        if isinstance(reply, ReplyError):
            lane.close()
            raise AuthenticationError(str(reply))

    async def exchange(self, request: Request, seconds: float) -> list[Any]:
        """Ask the node, and give its replies, errors as values. `seconds` is how long it may be silent."""
        if request.lane is LaneKind.WAIT:
            return await self._wait(request, seconds)
        lane = await self._adding(seconds) if request.lane is LaneKind.ADD else self._quick
        if lane is None:
            raise NotSent(f"There is no connection to {self._address}.")
        return await lane.exchange(request, seconds, self._settings.clock())

    async def _adding(self, seconds: float) -> Lane:
        async with self._adds_turn:
            if self._adds is None or not self._adds.is_open:
                self._adds = await self._dial(min(seconds, self._settings.connect_timeout))
            return self._adds

    async def _wait(self, request: Request, seconds: float) -> list[Any]:
        """Ask on a connection of the pool. If none gets free in time, no job has come either."""
        clock = self._settings.clock
        patience = request.wait_at(clock())
        try:
            async with asyncio.timeout(None if math.isinf(patience) else patience):
                await self._places.acquire()
        except TimeoutError:
            return [None]
        try:
            lane = await self._free_lane(seconds)
            self._waiting.add(lane)
            try:
                return await lane.exchange(request, seconds, clock())
            finally:
                self._waiting.discard(lane)
                self._put_back(lane)
        finally:
            self._places.release()

    async def _free_lane(self, seconds: float) -> Lane:
        while self._idle:
            lane = self._idle.pop()
            if lane.is_open:
                return lane
        return await self._dial(min(seconds, self._settings.connect_timeout))

    def _put_back(self, lane: Lane) -> None:
        if lane.is_idle:
            if lane.is_open:
                self._idle.append(lane)
            return
        # Its caller was cancelled, and the node still looks for a job.
        self._hang_up(lane)

    def _hang_up(self, lane: Lane) -> None:
        self._ending.add(lane)
        lane.hang_up()
        late = ConnectionLost(f"{self._address} did not close a connection that was hung up")
        limit = asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, lane.abort, late)

        def ended(_: object) -> None:
            self._ending.discard(lane)
            limit.cancel()

        lane.ended.add_done_callback(ended)

    def _orphaned(self, request: Request, replies: Sequence[Any]) -> None:
        """Replies came that nobody wants any more: give the jobs in them back."""
        back = request.give_back(replies)
        if back is None:
            return
        ids = [row[1].decode() for row in replies[0]]
        lost = [job_id for job_id in ids if is_at_most_once(job_id)]
        if lost:
            log.warning("fetched for a caller that is gone, and delivered at most once: %s", ", ".join(lost))
        try:
            if self._quick is None:
                raise NotSent(f"There is no connection to {self._address}.")
            data = b"".join([encode(command) for command in back.commands_at(0.0)])
            slot = self._quick.post(back, data, LAST_WORDS_SECONDS)
        except NotSent as error:
            _log_stuck(ids, error)
            return
        slot.future.add_done_callback(lambda done: _check(ids, slot.replies, done))

    async def drain(self) -> None:
        """Wait until what is under way on the connection for quick commands is answered."""
        if self._quick is not None:
            await self._quick.drain()

    def close(self) -> None:
        """Close all connections."""
        for lane in self._lanes():
            lane.close()

    async def finish(self) -> None:
        """Close all connections, first those of the pool: jobs that are on their way there go back by the others."""
        for lane in [*self._waiting]:
            self._hang_up(lane)
        await _ended(self._ending)
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self.drain()
        except TimeoutError:
            pass
        lanes = self._lanes()
        self.close()
        await _ended(lanes)

    def abandon(self) -> None:
        """Let go of connections that belong to another event loop or process, without touching either."""
        self._quick = self._adds = None
        self._idle.clear()

    def _lanes(self) -> set[Lane]:
        shared = {lane for lane in (self._quick, self._adds) if lane is not None}
        return shared | set(self._idle) | self._waiting | self._ending


def _why(error: Exception) -> str:
    """What the system says, where the event loop has put its own words in that place."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return reason(error)


async def _ended(lanes: set[Lane]) -> None:
    futures = [lane.ended for lane in lanes if not lane.ended.done()]
    if futures:
        await asyncio.wait(futures, timeout=LAST_WORDS_SECONDS)


def _check(ids: Sequence[str], replies: Sequence[Any], done: "asyncio.Future[None]") -> None:
    """Look whether what was given back has arrived."""
    if done.cancelled():
        return
    error = done.exception() or replies[-1]  # where there are several ways to give back, the last one always works
    if isinstance(error, PeerError):
        _log_stuck(ids, error)


def _log_stuck(ids: Sequence[str], error: BaseException) -> None:
    log.warning("fetched for a caller that is gone, back after their retry time (%s): %s", error, ", ".join(ids))
