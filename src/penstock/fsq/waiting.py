"""Waiting for work without asking for it again and again.

What ends a wait: a new name in a watched `queue` directory, an `up` of the queue, or a pull of its trigger. The first
two come from inotify, through the package inotify_simple (the extra `fsq`); where that is missing, or the system has no
watch left, the directories' times are checked once a second. The trigger is kept open all the time, so that no pull
finds nobody there.

A retry renames an item within `queue`. That is not new work: it would turn a queue with one failing item into a busy
loop. It wakes nobody, and is tried at the next check, which comes after a minute at the latest.

A queue that isn't there yet can be waited for: then its root is watched until it is.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import time
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from penstock.fsq import files, path
from penstock.fsq.constants import text_of, using
from penstock.fsq.directory import directory, parent
from penstock.fsq.reserved import ReservedArea

POLL_SECONDS = 1.0  # between two checks of the directories' times
RESCAN_SECONDS = 60.0  # between two scans if nothing at all happens
DRAIN_BYTES = 4096

# From <sys/inotify.h>; they are part of the kernel's interface.
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_OVERFLOW, _IGNORED = 0x4000, 0x8000


class QueueWatch:
    """Watches a queue, or some of its hosts, from when it is made. Close it at the end, or use it in `with`.

    With `aside`, items that are set aside for later are news, too, and pulls of the trigger are left to other
    listeners where inotify reports items: the trigger is held open, so that pulls find somebody, and not read.
    """

    def __init__(
        self,
        queue: str,
        hosts: Iterable[str] | None = None,
        trigger: str | None = None,
        use_inotify: bool = True,
        *,
        aside: bool = False,
    ) -> None:
        named = None if hosts is None else list(hosts)
        if trigger is None:
            trigger = text_of("FSQ_TRIGGER" if named is None else "FSQ_HOSTS_TRIGGER")
        self._root = text_of("FSQ_ROOT")
        self._name = path.valid_name(queue)
        self._down = text_of("FSQ_DOWN")
        self._trigger = path.trigger(queue, trigger)
        self._directories = [path.queue(queue)] if named is None else [path.queue(queue, host) for host in named]
        self._bases = [path.base(queue), *(path.base(queue, host) for host in named or ())]
        self._aside = ReservedArea(path.base(queue)) if aside else None
        self._fifo: int | None = None
        self._fifo_identity: tuple[int, int] | None = None
        self._inotify: Any = None
        self._watched: set[int] = set()
        self._cradle: int | None = None  # the watch of the root, as long as the queue isn't there
        self._times = self._look()
        if use_inotify:
            self._inotify = self._watch()
        self._open_fifo()

    @property
    def polls(self) -> bool:
        """Whether directories must be checked from time to time."""
        return self._inotify is None

    def _watch(self) -> Any:
        try:
            inotify = import_module("inotify_simple").INotify()
        except (ImportError, OSError, AttributeError, TypeError):
            return None
        try:
            self._add_watches(inotify)
        except OSError:
            inotify.close()
            return None
        return inotify

    def _add_watches(self, inotify: Any) -> None:
        self._cradle = None
        try:
            news = _CREATE | _MOVED_TO | _MOVED_FROM
            self._watched = {inotify.add_watch(_watchable(where), news) for where in self._directories}
            for where in self._bases:
                inotify.add_watch(_watchable(where), _DELETE | _MOVED_FROM)
        except FileNotFoundError:
            self._watched = set()
            self._cradle = inotify.add_watch(self._root, _CREATE | _MOVED_TO)
            return
        if self._aside is not None:
            # Where it can't be made, in a directory that isn't ours, nobody will set anything aside there either.
            with contextlib.suppress(OSError):
                self._aside.make(self._aside.later, is_safe=False)
                self._watched.add(inotify.add_watch(_watchable(self._aside.later), _CREATE))

    def _open_fifo(self) -> None:
        """Hold the trigger open, for writing too: otherwise it would be at its end whenever no puller is there."""
        there = files.identity(self._trigger)
        if there == self._fifo_identity:
            return
        self._close_fifo()
        with contextlib.suppress(OSError):
            above, name = parent(self._trigger)
            fd = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=above.fd)
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                self._fifo, self._fifo_identity = fd, there
            else:
                os.close(fd)

    def _close_fifo(self) -> None:
        if self._fifo is not None:
            os.close(self._fifo)
            self._fifo = None
        self._fifo_identity = None

    def descriptors(self) -> list[int]:
        """Return what to wait for with poll, along with other things; then `check`."""
        with using(FSQ_ROOT=self._root):
            self._open_fifo()
        own = [] if self._inotify is None else [self._inotify.fileno()]
        return own if self._fifo is None or self._leaves_pulls else [*own, self._fifo]

    @property
    def _leaves_pulls(self) -> bool:
        return self._aside is not None and self._inotify is not None

    def check(self) -> bool:
        """Whether something has happened since the last call. Never waits."""
        with using(FSQ_ROOT=self._root):
            return self._check()

    def _check(self) -> bool:
        pulled = self._was_pulled()
        if self._inotify is not None:
            return self._has_news() or pulled
        times = self._look()
        changed = times != self._times
        self._times = times
        return changed or pulled

    def _was_pulled(self) -> bool:
        pulled = False
        if self._leaves_pulls:
            return False
        with contextlib.suppress(BlockingIOError):
            while self._fifo is not None and os.read(self._fifo, DRAIN_BYTES):
                pulled = True
        return pulled

    def _has_news(self) -> bool:
        events = list(self._inotify.read(timeout=0))
        if any(event.mask & _IGNORED or (event.wd == self._cradle and event.name == self._name) for event in events):
            # The queue was made, removed, or made again: the watches are of directories that are gone.
            try:
                self._add_watches(self._inotify)
            except OSError:
                self._inotify.close()
                self._inotify = None
            return True
        left = {event.cookie for event in events if event.mask & _MOVED_FROM and event.wd in self._watched}
        for event in events:
            if event.mask & _OVERFLOW:
                return True
            if event.wd not in self._watched:
                if event.name == self._down:
                    return True
            elif event.mask & _CREATE or (event.mask & _MOVED_TO and event.cookie not in left):
                return True
        return False

    def _look(self) -> list[int]:
        times = []
        later = [] if self._aside is None else [self._aside.later]
        for where in [*self._directories, *self._bases, *later]:
            with contextlib.suppress(OSError):
                times.append(os.fstat(directory(where).fd).st_mtime_ns)
        return times

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until something happens, or the time is over; return whether something did."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self.check():
            rest = None if deadline is None else deadline - time.monotonic()
            if rest is not None and rest <= 0:
                return False
            if self.polls:
                rest = POLL_SECONDS if rest is None else min(rest, POLL_SECONDS)
            poller = select.poll()
            for fd in self.descriptors():
                poller.register(fd, select.POLLIN)
            poller.poll(None if rest is None else rest * 1000)
        return True

    def close(self) -> None:
        """Stop watching."""
        self._close_fifo()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def __enter__(self) -> QueueWatch:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _watchable(where: str) -> str:
    """Return a path for inotify that leads to the directory itself, whatever is put in its place meanwhile."""
    return f"/proc/self/fd/{directory(where).fd}"
