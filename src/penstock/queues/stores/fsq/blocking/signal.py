"""Signals of directories: inotify reports new items of all processes, local signals report pauses of this one.

Each waiting caller has a watch of its own, which is kept for the next wait on the same queue. Without inotify (the
extra `fsq` isn't installed, or the system has no watch left) the directory's time of change is checked once a second.
"""

import os
import select
import threading
import time
from collections import deque
from contextlib import suppress

from penstock.fsq.waiting import POLL_SECONDS, QueueWatch
from penstock.queues import local_signals
from penstock.queues.blocking.signal import Signal, Subscription
from penstock.queues.stores.fsq.names import directory_of
from penstock.queues.stores.fsq.root import Root

NEWS = "0"  # a time that has passed: a job may be ready
TEXTS_MAX = 100  # kept for a waiter that is busy: the last ones say as much as all of them
KEPT_MAX = 16  # watches that wait for the next waiter; a user of Linux may have 128 by default


class _Watch:
    """A queue's directory, and a pipe by which other threads end the wait."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.pid = os.getpid()
        self.waiter = QueueWatch(directory_of(channel.split(":", 3)[3]), aside=True)  # keuss:signal:NAMESPACE:QUEUE
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """End the wait."""
        with suppress(BlockingIOError):  # full: the wait ends already
            os.write(self._wake_writer, b"\0")

    def clear(self) -> None:
        """Forget earlier calls of `wake`."""
        with suppress(BlockingIOError):
            while os.read(self._wake_reader, 4096):
                pass

    def wait(self, seconds: float) -> None:
        """Until something happens, or the time is over."""
        poller = select.poll()
        for fd in (self._wake_reader, *self.waiter.descriptors()):
            poller.register(fd, select.POLLIN)
        poller.poll(max(0.0, seconds) * 1000)

    def close(self) -> None:
        self.waiter.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)


class DirectorySubscription(Subscription):
    """Signals of one queue."""

    def __init__(self, signal: "DirectorySignal", watch: _Watch) -> None:
        self._signal = signal
        self._watch: _Watch | None = watch
        self._texts: deque[str] = deque(maxlen=TEXTS_MAX)
        self._lock = threading.Lock()
        local_signals.listen(signal.place, watch.channel, self._hear)

    def _hear(self, text: str) -> None:
        with self._lock:
            if self._watch is not None:
                self._texts.append(text)
                self._watch.wake()

    def wait(self, timeout: float) -> str | None:
        watch = self._watch
        if watch is None:
            return ""
        deadline = time.monotonic() + timeout
        while True:
            watch.clear()
            if self._texts:
                return self._texts.popleft()
            if watch.waiter.check():
                return NEWS
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            watch.wait(min(left, POLL_SECONDS) if watch.waiter.polls else left)

    def wake(self) -> None:
        self._hear("")

    def close(self) -> None:
        watch = self._watch
        if watch is None:
            return
        local_signals.leave(self._signal.place, watch.channel, self._hear)
        with self._lock:
            self._watch = None
        self._signal.keep(watch)


class DirectorySignal(Signal):
    """The queues below one root."""

    def __init__(self, root: Root, place: str) -> None:
        self.place = place
        self._root = root
        self._lock = threading.Lock()
        self._kept: list[_Watch] = []
        self._is_closed = False

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            kept, self._kept = self._kept, []
        for watch in kept:
            watch.close()

    def send(self, channel: str, text: str) -> None:
        local_signals.send(self.place, channel, text)

    def subscribe(self, channel: str) -> Subscription:
        with self._lock:
            # What a parent has opened before it forked is the parent's.
            found = [watch for watch in self._kept if watch.channel == channel and watch.pid == os.getpid()]
            if found:
                self._kept.remove(found[0])
        watch = found[0] if found else self._root.guard(_Watch, channel)
        watch.clear()
        watch.waiter.check()
        return DirectorySubscription(self, watch)

    def keep(self, watch: _Watch) -> None:
        """Keep a watch for the next caller that waits."""
        with self._lock:
            self._kept.append(watch)
            over = self._kept if self._is_closed else self._kept[:-KEPT_MAX]
            self._kept = [] if self._is_closed else self._kept[-KEPT_MAX:]
        for one in over:
            one.close()
