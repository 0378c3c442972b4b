"""Signals of directories: inotify reports new items of all processes, local signals report pauses of this one.

Listeners to one queue share one watch. Without inotify (the extra `fsq` isn't installed, or the system has no watch
left) the directory's time of change is checked once a second.
"""

import asyncio
from contextlib import suppress

from penstock.fsq.waiting import POLL_SECONDS, QueueWatch
from penstock.queues.aio.signal import Hear, LocalSignal, Signal
from penstock.queues.stores.fsq.names import directory_of
from penstock.queues.stores.fsq.root import Root

NEWS = "0"  # a time that has passed: a job may be ready


class _Watch:
    """One directory, and its listeners."""

    def __init__(self, waiter: QueueWatch) -> None:
        self.hears: list[Hear] = []
        self._waiter = waiter
        self._loop = asyncio.get_running_loop()
        self._readers: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def _wait(self) -> None:
        readers = self._waiter.descriptors()
        if readers != self._readers:
            self._stop_reading()
            for fd in readers:
                self._loop.add_reader(fd, self._check)
            self._readers = readers
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiter.polls:
            self._timer = self._loop.call_later(POLL_SECONDS, self._check)

    def _stop_reading(self) -> None:
        for fd in self._readers:
            self._loop.remove_reader(fd)
        self._readers = []

    def _check(self) -> None:
        if self._waiter.check():
            for hear in tuple(self.hears):
                hear(NEWS)
        self._wait()

    def close(self) -> None:
        """Stop watching."""
        self._stop_reading()
        if self._timer is not None:
            self._timer.cancel()
        self._waiter.close()


class DirectorySignal(Signal):
    """The queues below one root."""

    def __init__(self, root: Root, place: str) -> None:
        self._local = LocalSignal(place)
        self._root = root
        self._watches: dict[str, _Watch] = {}
        self._making = asyncio.Lock()

    async def close(self) -> None:
        await self._local.close()
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    async def send(self, channel: str, text: str) -> None:
        await self._local.send(channel, text)

    async def subscribe(self, channel: str, hear: Hear) -> None:
        async with self._making:
            if channel not in self._watches:
                waiter = await asyncio.to_thread(self._root.guard, self._waiter, channel)
                self._watches[channel] = _Watch(waiter)
        self._watches[channel].hears.append(hear)
        await self._local.subscribe(channel, hear)

    @staticmethod
    def _waiter(channel: str) -> QueueWatch:
        queue = channel.split(":", 3)[3]  # keuss:signal:NAMESPACE:QUEUE
        return QueueWatch(directory_of(queue), aside=True)

    async def unsubscribe(self, channel: str, hear: Hear) -> None:
        await self._local.unsubscribe(channel, hear)
        watch = self._watches.get(channel)
        if watch is None:
            return
        with suppress(ValueError):
            watch.hears.remove(hear)
        if not watch.hears:
            del self._watches[channel]
            watch.close()
