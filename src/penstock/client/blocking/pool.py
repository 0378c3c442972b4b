"""The connection to one node, for programs without an event loop. `aio.pool` is the other form, with several.

If a caller is interrupted while it waits for a job (by Ctrl-C, or by what the handler of a signal raises), no job is
lost silently: the connection is hung up and read until the node closes it, and a job that was on its way goes back to
its queue.
"""

import logging
import math
import os
import time
from types import TracebackType
from typing import Any

from penstock.client.addresses import Address
from penstock.client.attempts import NotSent
from penstock.client.connection import Connection, slices
from penstock.client.requests import Repeat, Request, is_at_most_once
from penstock.client.settings import ConnectionSettings
from penstock.errors import ConnectionLost, PeerError, PenstockError

log = logging.getLogger("penstock.client")

# How long a node may take to close a connection that was hung up, and to answer what returns jobs.
HANG_UP_SECONDS = 2.0

sleep = time.sleep


class Turn:
    """Lets one task at a time choose a node; here there is only one."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def owner() -> object:
    """Return what connections belong to: after a fork the parent uses them further, and the child must not."""
    return os.getpid()


class ConnectionPool:
    """The one connection to the node at an address."""

    busy = False  # between two calls nothing is under way

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        self._clock = settings.clock
        self._connection = Connection(
            address.host,
            address.port,
            password=settings.password,
            name=settings.name,
            tls=settings.tls or False,
            timeout=None,
        )

    @property
    def connected(self) -> bool:
        """Whether it was connected when it was last used."""
        return self._connection.connected

    def connect(self, seconds: float) -> None:
        """Open the connection."""
        self._connection.timeout = seconds
        self._connection.connect()

    def exchange(self, request: Request, seconds: float) -> list[Any]:
        """Send a request and return its replies, error replies as values. Raises after `seconds` of silence."""
        # A node closes connections that were idle for long, and a send doesn't notice. So what can't be sent twice is
        # sent only after a check.
        is_gone = request.repeat in (Repeat.ALLOWED, Repeat.NEVER) and not self._connection.alive()
        if is_gone or not self._connection.connected:
            raise NotSent(f"There is no connection to {self._connection.address}.")
        self._connection.timeout = None if math.isinf(seconds) else seconds
        replies: list[Any] = []
        try:
            self._exchange(request, replies)
        except PenstockError:
            raise
        except BaseException:
            self._interrupted(request, replies)
            raise
        return replies

    def _exchange(self, request: Request, replies: list[Any]) -> None:
        for payload, count in slices(request.commands_at(self._clock())):
            try:
                self._connection.send_bytes(payload)
            except ConnectionLost as error:
                if request.count > 1:
                    raise
                # A node executes nothing of a command that did not arrive whole.
                raise NotSent(str(error)) from error
            replies.extend(self._connection.receive() for _ in range(count))

    def _interrupted(self, request: Request, replies: list[Any]) -> None:
        """Send a job that the node has sent meanwhile back to its queue, and close the connection."""
        try:
            if request.repeat is Repeat.FETCH:
                undo = request.undo(replies or self._last_replies())
                if undo is not None:
                    self._undo(undo)
        finally:
            self._connection.close()

    def _last_replies(self) -> list[Any]:
        self._connection.timeout = HANG_UP_SECONDS
        try:
            self._connection.hang_up()
            return [self._connection.receive()]
        except PeerError:
            return []

    def _undo(self, undo: Request) -> None:
        commands = undo.commands_at(0.0)
        ids = [word.decode() for word in commands[0] if isinstance(word, bytes) and word.startswith(b"D-")]
        if lost := [job_id for job_id in ids if is_at_most_once(job_id)]:
            log.warning("fetched for a caller that is gone, and delivered at most once: %s", ", ".join(lost))
        self._connection.close()
        try:
            # Of several commands that return jobs, the last one always works.
            outcome = self._connection.pipeline(commands)[-1]
        except PeerError as error:
            outcome = error
        if isinstance(outcome, PeerError):
            log.warning("fetched for a caller that is gone, back after retry (%s): %s", outcome, ", ".join(ids))

    def drain(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def finish(self) -> None:
        """Close the connection."""
        self._connection.close()

    def abandon(self) -> None:
        """Drop a connection that the parent uses further: only this process' end of it is closed."""
        self._connection.close()
