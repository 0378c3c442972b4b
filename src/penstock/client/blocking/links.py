"""The connection to one node, for programs without an event loop. `aio.links` is its twin, with several.

A caller that is interrupted while it waits for a job (by Ctrl-C, or by what a signal's handler raises) doesn't lose
one silently: the connection is hung up and listened to until the node closes it, and a job that was on its way is
given back.
"""

import logging
import math
import os
import time
from types import TracebackType
from typing import Any

from penstock.client.addresses import Address
from penstock.client.connection import Connection, slices
from penstock.client.effort import NotSent
from penstock.client.requests import Repeat, Request, is_at_most_once
from penstock.client.settings import LinkSettings
from penstock.errors import ConnectionLost, PeerError, PenstockError

log = logging.getLogger("penstock.client")

# How long a node may take to close a connection that was hung up, and to answer what gives jobs back.
LAST_WORDS_SECONDS = 2.0

sleep = time.sleep


class Turn:
    """What one task at a time may do; there is only one here."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def owner() -> object:
    """To whom connections belong: after a fork the parent goes on with them, and the child must not."""
    return os.getpid()


class Links:
    """The one connection to the node at an address."""

    busy = False  # between two calls nothing is under way

    def __init__(self, address: Address, settings: LinkSettings) -> None:
        self._clock = settings.clock
        self._link = Connection(
            address.host, address.port, password=settings.password, tls=settings.tls or False, timeout=None
        )

    @property
    def connected(self) -> bool:
        """Whether there was a link when we last looked."""
        return self._link.connected

    def connect(self, seconds: float) -> None:
        """Open the connection."""
        self._link.timeout = seconds
        self._link.connect()

    def exchange(self, request: Request, seconds: float) -> list[Any]:
        """Ask the node, and give its replies, errors as values. `seconds` is how long it may be silent."""
        # A node closes connections that were idle for long, and a send doesn't notice. Ask before what can't be
        # asked twice.
        is_gone = request.repeat in (Repeat.ALLOWED, Repeat.NEVER) and not self._link.alive()
        if is_gone or not self._link.connected:
            raise NotSent(f"There is no connection to {self._link.address}.")
        self._link.timeout = None if math.isinf(seconds) else seconds
        replies: list[Any] = []
        try:
            self._exchange(request, replies)
        except PenstockError:
            raise
        except BaseException:
            self._let_go(request, replies)
            raise
        return replies

    def _exchange(self, request: Request, replies: list[Any]) -> None:
        for payload, count in slices(request.commands_at(self._clock())):
            try:
                self._link.send_bytes(payload)
            except ConnectionLost as error:
                if request.count > 1:
                    raise
                # A part of a single command is none, and nothing is done.
                raise NotSent(str(error)) from error
            replies.extend(self._link.receive() for _ in range(count))

    def _let_go(self, request: Request, replies: list[Any]) -> None:
        """The caller was interrupted: a job that the node has sent meanwhile goes back."""
        try:
            if request.repeat is Repeat.FETCH:
                back = request.give_back(replies or self._last_words())
                if back is not None:
                    self._give_back(back)
        finally:
            self._link.close()

    def _last_words(self) -> list[Any]:
        self._link.timeout = LAST_WORDS_SECONDS
        try:
            self._link.hang_up()
            return [self._link.receive()]
        except PeerError:
            return []

    def _give_back(self, back: Request) -> None:
        commands = back.commands_at(0.0)
        ids = [word.decode() for word in commands[0] if isinstance(word, bytes) and word.startswith(b"D-")]
        if lost := [job_id for job_id in ids if is_at_most_once(job_id)]:
            log.warning("fetched for a caller that is gone, and delivered at most once: %s", ", ".join(lost))
        self._link.close()
        try:
            # Where there are several ways to give back, the last one always works.
            outcome = self._link.pipeline(commands)[-1]
        except PeerError as error:
            outcome = error
        if isinstance(outcome, PeerError):
            log.warning("fetched for a caller that is gone, back after retry (%s): %s", outcome, ", ".join(ids))

    def drain(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def finish(self) -> None:
        """Close the connection."""
        self._link.close()

    def abandon(self) -> None:
        """Let go of a connection that the parent goes on with: only this process' end of it is closed."""
        self._link.close()
