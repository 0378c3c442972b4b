"""Signals by LISTEN and NOTIFY: PostgreSQL sends them when the transaction that they are part of is committed.

Each caller that waits has a connection of its own that listens; those of callers that no longer wait are kept for the
next ones. When one breaks, it is replaced while the caller waits, which then gets an empty text, since something may
have been missed. Channels have Keuss' names, but for long ones: see `penstock.queues.stores.postgres.names`.
"""

import os
import select
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import PGnotify

from penstock.errors import PenstockError
from penstock.queues.blocking.signal import Signal, Subscription
from penstock.queues.options import StoreURL
from penstock.queues.stores.postgres.blocking.link import PostgresLink
from penstock.queues.stores.postgres.blocking.pool import Pool
from penstock.queues.stores.postgres.names import channel_name, quoted
from penstock.queues.stores.postgres.sql import NOTIFY

RECONNECT_S = 0.5  # between two attempts
KEPT_MAX = 4  # connections for the next callers that listen


class PostgresSubscription(Subscription):
    """Texts of one channel."""

    def __init__(self, signal: "PostgresSignal", channel: str) -> None:
        self._signal = signal
        self._name = channel_name(channel)
        self._texts: deque[str] = deque()
        self._wake_input, self._wake_output = os.pipe()
        self._link: PostgresLink | None = None
        self._listen()

    def _listen(self) -> bool:
        """Whether it listens now; without a server, `wait` tries again."""
        self._link = None
        with suppress(PenstockError, psycopg.Error):
            link = self._signal.borrow()
            link.pgconn.notify_handler = self._notified  # for what comes along with an answer
            link.run_script(f"LISTEN {quoted(self._name)}")
            self._link = link
        return self._link is not None

    def _notified(self, notify: PGnotify) -> None:
        self._texts.append(notify.extra.decode())

    def wait(self, timeout: float) -> str | None:
        deadline = time.monotonic() + timeout
        while not self._texts:
            left = max(0.0, deadline - time.monotonic())
            if self._link is None or self._link.session.is_broken:
                self._reconnect(min(left, RECONNECT_S))
            elif not self._read(self._link, left):
                return None
            if left <= 0 and not self._texts:
                return None
        return self._texts.popleft()

    def _read(self, link: PostgresLink, seconds: float) -> bool:
        """Wait for a notification or for `wake`; return whether something came."""
        poll = select.poll()
        poll.register(link.pgconn.socket, select.POLLIN)
        poll.register(self._wake_input, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        if self._wake_input in ready:
            os.read(self._wake_input, 100)
            self._texts.append("")
        if ready - {self._wake_input}:
            try:
                link.pgconn.consume_input()
            except psycopg.Error:
                link.close()
                return True
            while notify := link.pgconn.notifies():
                self._notified(notify)
        return bool(ready)

    def _reconnect(self, seconds: float) -> None:
        if self._listen():
            self._texts.append("")
            return
        poll = select.poll()
        poll.register(self._wake_input, select.POLLIN)
        if poll.poll(seconds * 1000):
            os.read(self._wake_input, 100)
            self._texts.append("")

    def wake(self) -> None:
        with suppress(OSError):
            os.write(self._wake_output, b".")

    def close(self) -> None:
        os.close(self._wake_input)
        os.close(self._wake_output)
        link, self._link = self._link, None
        if link is not None:
            self._signal.give_back(link)


class PostgresSignal(Signal):
    """The channels of one database."""

    def __init__(self, address: StoreURL, extra: Mapping[str, Any], pool: Pool | None = None) -> None:
        self._pool = Pool(address, extra) if pool is None else pool
        self._is_own = pool is None
        self._is_closed = False
        self._kept: list[PostgresLink] = []
        self._pid = os.getpid()
        self._left_to_parent: list[PostgresLink] = []

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

    def borrow(self) -> PostgresLink:
        """Return a connection that listens to no channel yet."""
        self._check_process()
        while self._kept:
            with suppress(IndexError):  # another thread may have been faster
                link = self._kept.pop()
                if link.session.is_quiet:
                    return link
                link.close()
        return self._pool.connect()

    def give_back(self, link: PostgresLink) -> None:
        """Keep a connection for the next caller."""
        link.pgconn.notify_handler = None  # what comes now is for nobody
        try:
            link.run_script("UNLISTEN *")
        except psycopg.Error:
            link.close()
            return
        while link.pgconn.notifies():
            pass
        if self._is_closed or len(self._kept) >= KEPT_MAX:
            link.close()
        else:
            self._kept.append(link)

    def send(self, channel: str, text: str) -> None:
        with suppress(PenstockError):
            self._pool.run(NOTIFY, channel_name(channel), text)

    def subscribe(self, channel: str) -> Subscription:
        return PostgresSubscription(self, channel)
