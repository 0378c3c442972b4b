"""The connections to one node, for asyncio: the part of the client that waits. `blocking.pool` is the other form.

    connection   how many    commands
    quick        1           those that a node answers at once
    adds         0 or 1      adds of several copies: a node delays the reply until the job is on enough nodes, and with
                             it all that follows on the same connection
    waiting      up to N     one GETJOB that waits each

If a caller is cancelled, no job is lost silently. A request that is not sent yet isn't sent. If the reply is here, its
jobs go back to their queue. If it isn't, a shared connection sends them back when it comes; a waiting one is hung up
and read until the node closes it, which shows for certain whether a job was on its way. What can't go back (retry 0, or
no connection left) is logged.
"""

import asyncio
import logging
import math
import os
import ssl
from collections.abc import Sequence
from typing import Any

from penstock.client.addresses import Address
from penstock.client.aio.connection import PipelinedConnection
from penstock.client.attempts import NotSent
from penstock.client.connection import encode, reason
from penstock.client.requests import ConnectionUse, Request, is_at_most_once
from penstock.client.settings import ConnectionSettings
from penstock.errors import AuthenticationError, ConnectionLost, PeerError, ReplyError

log = logging.getLogger("penstock.client")

# How long a node may take to close a connection that was hung up, and to answer what returns jobs.
HANG_UP_SECONDS = 2.0

Turn = asyncio.Lock
"""Lets one task at a time choose a node."""

sleep = asyncio.sleep


def owner() -> object:
    """Return what connections belong to: they can't be used in another process, or under another event loop."""
    return os.getpid(), asyncio.get_running_loop()


class ConnectionPool:
    """The connections to the node at an address."""

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        self._address, self._settings = address, settings
        self._quick: PipelinedConnection | None = None
        self._adds: PipelinedConnection | None = None
        self._adds_lock = asyncio.Lock()
        self._idle: list[PipelinedConnection] = []
        self._waiting: set[PipelinedConnection] = set()
        self._ending: set[PipelinedConnection] = set()
        self._free_waits = asyncio.Semaphore(settings.waits_max)

    @property
    def connected(self) -> bool:
        """Whether the node can be asked, as far as the event loop knows."""
        return self._quick is not None and self._quick.is_open

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        shared = [one for one in (self._quick, self._adds) if one is not None]
        return bool(self._waiting or self._ending) or not all(one.is_idle for one in shared)

    async def connect(self, seconds: float) -> None:
        """Open the first connection."""
        self._quick = await self._open(seconds)

    async def _open(self, seconds: float) -> PipelinedConnection:
        tls, host = self._settings.tls, self._address.host
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                _, connection = await loop.create_connection(
                    lambda: PipelinedConnection(self._address, self._orphaned),
                    host,
                    self._address.port,
                    ssl=tls,
                    server_hostname=host if tls else None,
                )
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise NotSent(f"Could not connect to {self._address}: {_why(error)}") from error
        if self._settings.password is not None:
            await self._authenticate(connection, self._settings.password, seconds)
        if self._settings.name is not None:
            await self._introduce(connection, Request(("CLIENT", "SETNAME", self._settings.name)), seconds)
        return connection

    @staticmethod
    async def _introduce(connection: PipelinedConnection, request: Request, seconds: float) -> None:
        """Say the connection's name; a node that refuses it serves as well."""
        try:
            await connection.exchange(request, seconds, 0.0)
        except BaseException as error:
            connection.close()
            if isinstance(error, ConnectionLost):
                raise NotSent(str(error)) from error
            raise

    async def _authenticate(self, connection: PipelinedConnection, password: str | bytes, seconds: float) -> None:
        try:
            (reply,) = await connection.exchange(Request(("AUTH", password)), seconds, 0.0)
        except BaseException as error:
            connection.close()
            if isinstance(error, ConnectionLost):
                raise NotSent(str(error)) from error
            raise
        if isinstance(reply, ReplyError):
            connection.close()
            raise AuthenticationError(str(reply))

    async def exchange(self, request: Request, seconds: float) -> list[Any]:
        """Send a request and return its replies, error replies as values. Raises after `seconds` of silence."""
        if request.use is ConnectionUse.WAIT:
            return await self._wait(request, seconds)
        connection = self._quick
        if request.use is ConnectionUse.ADD:
            connection = self._adds
            if connection is None or not connection.is_open:
                connection = await self._open_adds(seconds)
        if connection is None:
            raise NotSent(f"There is no connection to {self._address}.")
        return await connection.exchange(request, seconds, self._settings.clock())

    async def _open_adds(self, seconds: float) -> PipelinedConnection:
        async with self._adds_lock:
            if self._adds is None or not self._adds.is_open:
                self._adds = await self._open(min(seconds, self._settings.connect_timeout))
            return self._adds

    async def _wait(self, request: Request, seconds: float) -> list[Any]:
        """Send a GETJOB on a connection of its own. If none is free in time, no job has come either."""
        clock = self._settings.clock
        wait = request.wait_at(clock())
        try:
            async with asyncio.timeout(None if math.isinf(wait) else wait):
                await self._free_waits.acquire()
        except TimeoutError:
            return [None]
        try:
            connection = await self._free_connection(seconds)
            self._waiting.add(connection)
            try:
                return await connection.exchange(request, seconds, clock())
            finally:
                self._waiting.discard(connection)
                self._put_back(connection)
        finally:
            self._free_waits.release()

    async def _free_connection(self, seconds: float) -> PipelinedConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return await self._open(min(seconds, self._settings.connect_timeout))

    def _put_back(self, connection: PipelinedConnection) -> None:
        if connection.is_idle:
            if connection.is_open:
                self._idle.append(connection)
            return
        # Its caller was cancelled, and the node still waits for a job.
        self._hang_up(connection)

    def _hang_up(self, connection: PipelinedConnection) -> None:
        self._ending.add(connection)
        connection.hang_up()
        late = ConnectionLost(f"{self._address} did not close a connection that was hung up")
        limit = asyncio.get_running_loop().call_later(HANG_UP_SECONDS, connection.abort, late)

        def ended(_: object) -> None:
            self._ending.discard(connection)
            limit.cancel()

        connection.ended.add_done_callback(ended)

    def _orphaned(self, request: Request, replies: Sequence[Any]) -> None:
        """Send jobs of a reply whose caller was cancelled back to their queue."""
        undo = request.undo(replies)
        if undo is None:
            return
        ids = [row[1].decode() for row in replies[0]]
        lost = [job_id for job_id in ids if is_at_most_once(job_id)]
        if lost:
            log.warning("fetched for a caller that is gone, and delivered at most once: %s", ", ".join(lost))
        try:
            if self._quick is None:
                raise NotSent(f"There is no connection to {self._address}.")
            data = b"".join([encode(command) for command in undo.commands_at(0.0)])
            pending = self._quick.post(undo, data, HANG_UP_SECONDS)
        except NotSent as error:
            _log_stuck(ids, error)
            return
        pending.future.add_done_callback(lambda done: _check_undone(ids, pending.replies, done))

    async def drain(self) -> None:
        """Wait until what is under way on the connection for quick commands is answered."""
        if self._quick is not None:
            await self._quick.drain()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._all():
            connection.close()

    async def finish(self) -> None:
        """Close all connections, first the waiting ones: jobs that are on their way there go back by the others."""
        for connection in [*self._waiting]:
            self._hang_up(connection)
        await _wait_closed(self._ending)
        try:
            async with asyncio.timeout(HANG_UP_SECONDS):
                await self.drain()
        except TimeoutError:
            pass
        connections = self._all()
        self.close()
        await _wait_closed(connections)

    def abandon(self) -> None:
        """Drop connections that belong to another event loop or process, without touching either."""
        self._quick = self._adds = None
        self._idle.clear()

    def _all(self) -> set[PipelinedConnection]:
        shared = {one for one in (self._quick, self._adds) if one is not None}
        return shared | set(self._idle) | self._waiting | self._ending


def _why(error: Exception) -> str:
    """Return the system's text of an error, which the event loop may have replaced by its own."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return reason(error)


async def _wait_closed(connections: set[PipelinedConnection]) -> None:
    futures = [connection.ended for connection in connections if not connection.ended.done()]
    if futures:
        await asyncio.wait(futures, timeout=HANG_UP_SECONDS)


def _check_undone(ids: Sequence[str], replies: Sequence[Any], done: "asyncio.Future[None]") -> None:
    """Log jobs that could not be sent back."""
    if done.cancelled():
        return
    error = done.exception() or replies[-1]  # of several commands that return jobs, the last one always works
    if isinstance(error, PeerError):
        _log_stuck(ids, error)


def _log_stuck(ids: Sequence[str], error: BaseException) -> None:
    log.warning("fetched for a caller that is gone, back after their retry time (%s): %s", error, ", ".join(ids))
