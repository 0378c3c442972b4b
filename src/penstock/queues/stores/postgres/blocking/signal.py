"""Signals by LISTEN and NOTIFY: PostgreSQL sends them when the transaction that they are part of is committed.

Each caller that waits has a connection of its own that listens; those of callers that no longer wait are kept for the
next ones. One that breaks is replaced while the caller waits, who then hears an empty text, since something may have
been missed. Channels have Keuss' names, but for long ones: see `penstock.queues.stores.postgres.names`.
"""

import os
import select
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import RawCursor

from penstock.errors import PenstockError
from penstock.queues.blocking.signal import Signal, Subscription
from penstock.queues.options import Address
from penstock.queues.stores.postgres.blocking.client import Pool, connect, is_quiet
from penstock.queues.stores.postgres.blocking.link import Link
from penstock.queues.stores.postgres.names import channel_name, quoted
from penstock.queues.stores.postgres.sql import NOTIFY

TROUBLE_S = 0.5  # between two tries to reach a server that is gone
KEPT_MAX = 4  # connections that wait for the next one who listens


class PostgresSubscription(Subscription):
    """Texts of one channel."""

    def __init__(self, signal: "PostgresSignal", channel: str) -> None:
        self._signal = signal
        self._name = channel_name(channel)
        self._texts: deque[str] = deque()
        self._bell, self._ringer = os.pipe()
        self._link: Link | None = None
        self._listen()

    def _listen(self) -> bool:
        """Begin to hear; without a server, `wait` goes on trying."""
        self._link = None
        with suppress(PenstockError, psycopg.Error):
            link = self._signal.borrow()
            link.add_notify_handler(self._notified)
            RawCursor(link).execute(f"LISTEN {quoted(self._name)}")
            self._link = link
        return self._link is not None

    def _notified(self, notify: psycopg.Notify) -> None:
        self._texts.append(notify.payload)

    def wait(self, timeout: float) -> str | None:
        deadline = time.monotonic() + timeout
        while not self._texts:
            left = max(0.0, deadline - time.monotonic())
            if self._link is None or self._link.closed:
                self._mend(min(left, TROUBLE_S))
            elif not self._look(self._link, left):
                return None
            if left <= 0 and not self._texts:
                return None
        return self._texts.popleft()

    def _look(self, link: Link, seconds: float) -> bool:
        """Wait for anything to happen; whether something did."""
        poll = select.poll()
        poll.register(link.pgconn.socket, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        if self._bell in ready:
            os.read(self._bell, 100)
            self._texts.append("")
        if ready - {self._bell}:
            try:
                link.pgconn.consume_input()
            except psycopg.Error:
                link.close()
                return True
            while notify := link.pgconn.notifies():
                self._texts.append(notify.extra.decode())
        return bool(ready)

    def _mend(self, seconds: float) -> None:
        if self._listen():
            self._texts.append("")
            return
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if poll.poll(seconds * 1000):
            os.read(self._bell, 100)
            self._texts.append("")

    def wake(self) -> None:
        with suppress(OSError):
            os.write(self._ringer, b".")

    def close(self) -> None:
        os.close(self._bell)
        os.close(self._ringer)
        link, self._link = self._link, None
        if link is not None:
            link.remove_notify_handler(self._notified)
            self._signal.give_back(link)


class PostgresSignal(Signal):
    """The channels of one database."""

    def __init__(self, address: Address, extra: Mapping[str, Any], pool: Pool | None = None) -> None:
        self._pool = Pool(address, extra) if pool is None else pool
        self._is_own = pool is None
        self._is_closed = False
        self._kept: list[Link] = []
        self._pid = os.getpid()
        self._left_to_parent: list[Link] = []

    def open(self) -> None:
        if self._is_own:
            self._pool.open()

    def close(self) -> None:
        self._is_closed = True
        self._check_process()
        while self._kept:
            self._kept.pop().close()
        if self._is_own:
            self._pool.close()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            self._left_to_parent += self._kept  # never closed here: that would end the parent's sessions
            self._kept = []
            self._pid = os.getpid()

    def borrow(self) -> Link:
        """A connection that listens to nothing yet."""
        self._check_process()
        while self._kept:
            with suppress(IndexError):  # another thread may have been faster
                link = self._kept.pop()
                if is_quiet(link):
                    return link
                link.close()
        return connect(self._pool.conninfo, self._pool.url)

    def give_back(self, link: Link) -> None:
        """A connection that is no longer needed."""
        try:
            RawCursor(link).execute("UNLISTEN *")
        except psycopg.Error:
            link.close()
            return
        while link.pgconn.notifies():
            pass  # what came last was for somebody who is gone
        if self._is_closed or len(self._kept) >= KEPT_MAX:
            link.close()
        else:
            self._kept.append(link)

    def send(self, channel: str, text: str) -> None:
        with suppress(PenstockError):
            self._pool.run(NOTIFY, channel_name(channel), text)

    def subscribe(self, channel: str) -> Subscription:
        return PostgresSubscription(self, channel)
