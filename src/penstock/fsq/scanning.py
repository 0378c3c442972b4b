"""Scanning: the waiting items of a queue one after the other, oldest first, each open and locked.

The names are listed once; what arrives later waits for the next scan. What the queue library set aside (reserved.py)
and whose time has come is brought back before. The iterators here are objects, not generators: an error concerns one
item, and whoever catches it can ask for the next one.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.fsq import control, installing, path, reserved
from penstock.fsq.directory import DirectorySession
from penstock.fsq.errors import FSQDownError, FSQScanError, FSQWorkItemError, as_error
from penstock.fsq.items import FSQWorkItem
from penstock.fsq.snapshot import ItemSnapshot
from penstock.fsq.waiting import RESCAN_SECONDS, QueueWatch

ItemId = str | tuple[str, str]  # a name, or a host and a name
_SKIPPED = frozenset({errno.EAGAIN, errno.ENOENT})  # somebody works on it, or it is finished


class FSQScanGenerator:
    """Opens the items of a list as they are asked for. The item before is closed then, unless it was released."""

    def __init__(
        self,
        queue: str,
        item_ids: Iterable[ItemId],
        lock: bool | None = None,
        ttl: int | None = None,
        max_tries: int | None = None,
        ignore_down: bool = False,
        no_open: bool = False,
        host: bool = False,
        *,
        look: bool = False,
    ) -> None:
        self.queue = path.valid_name(queue)
        self.item: FSQWorkItem | None = None
        self.ignore_down = ignore_down
        self.host = host
        self._ids = iter(item_ids)
        self._ahead: ItemId | None = None  # the next one, if somebody has asked whether there is one
        self._options: dict[str, Any] = {
            "lock": lock,
            "ttl": ttl,
            "max_tries": max_tries,
            "no_open": no_open,
            "look": look,
        }

    def __iter__(self) -> FSQScanGenerator:
        return self

    def __next__(self) -> FSQWorkItem:
        self.close()
        while self.has_more():
            found, self._ahead = self._ahead, None
            assert found is not None
            host, name = (None, found) if isinstance(found, str) else found
            try:
                with DirectorySession():
                    self.item = self._open(host, name)
            except FSQWorkItemError as error:
                if error.errno not in _SKIPPED:
                    raise
            else:
                return self.item
        raise StopIteration

    def _open(self, host: str | None, name: str) -> FSQWorkItem:
        if not self.ignore_down and control.is_withheld(self.queue, host):
            label = self.queue if host is None else f"{self.queue}, host {host}"
            raise FSQDownError(errno.EAGAIN, f"queue {label}: is down")
        return FSQWorkItem(self.queue, name, host=host, **self._options)

    def has_more(self) -> bool:
        """Whether there are names left in the list. Nothing is opened."""
        if self._ahead is None:
            self._ahead = next(self._ids, None)
        return self._ahead is not None

    def release(self) -> None:
        """Leave the current item to the caller, who closes it."""
        self.item = None

    def close(self) -> None:
        """Let go of the current item."""
        if self.item is not None:
            self.item.close()
            self.item = None


def scan(
    queue: str,
    lock: bool | None = None,
    ttl: int | None = None,
    max_tries: int | None = None,
    ignore_down: bool = False,
    no_open: bool = False,
    generator: Callable[..., Any] = FSQScanGenerator,
    host: bool = False,
    hosts: Iterable[str] | None = None,
    *,
    look: bool = False,
) -> Any:
    """List the waiting items of a queue, and return an iterator that opens them one by one.

    With `host` those of all its hosts, with `hosts` those of the named ones. With `look` nothing is moved or counted.
    """
    options: dict[str, Any] = {"lock": lock, "ttl": ttl, "max_tries": max_tries}
    options |= {"ignore_down": ignore_down, "no_open": no_open, "host": host or hosts is not None}
    if look:
        options["look"] = True
    return generator(queue, item_ids(queue, host, hosts, look), **options)


def item_ids(
    queue: str, host: bool = False, hosts: Iterable[str] | None = None, look: bool = False
) -> Iterator[ItemId]:
    """List what waits now, oldest first: names, or pairs of host and name."""
    if isinstance(hosts, str | bytes):
        raise TypeError("hosts must be a list of names, got one name")
    with as_error(FSQScanError, f"cannot scan {queue}"):
        if not host and hosts is None:
            if not look:
                # What can't be brought back, in a directory that isn't ours, must not keep us from the rest.
                with contextlib.suppress(OSError):
                    reserved.bring_back(path.base(queue))
            return (name for name, _ in ItemSnapshot([(path.queue(queue), "")]))
        names = installing.hosts(queue) if hosts is None else tuple(hosts)
        found = ItemSnapshot([(path.queue(queue, name), name) for name in names])
        return ((host_name, name) for name, host_name in found)


class ScanForever:
    """Scans, waits for something new, scans again, without end. Items as from `scan`."""

    def __init__(
        self,
        queue: str,
        process_once_now: bool = True,
        rescan_seconds: float = RESCAN_SECONDS,
        host: bool = False,
        hosts: Iterable[str] | None = None,
        **options: Any,
    ) -> None:
        self._queue = queue
        self._hosts = None if hosts is None else list(hosts)
        self._host = host or hosts is not None
        self._options = options
        self._rescan_seconds = rescan_seconds
        watched = list(installing.hosts(queue)) if self._host and self._hosts is None else self._hosts
        self._waiter = QueueWatch(queue, watched)
        self._items: Iterator[FSQWorkItem] = self._scan() if process_once_now else iter(())

    def _scan(self) -> Iterator[FSQWorkItem]:
        items: Iterator[FSQWorkItem] = scan(self._queue, host=self._host, hosts=self._hosts, **self._options)
        return items

    def __iter__(self) -> ScanForever:
        return self

    def __next__(self) -> FSQWorkItem:
        while True:
            try:
                return next(self._items)
            except (StopIteration, FSQDownError):
                self._waiter.wait(self._rescan_seconds)
                self._items = self._scan()

    def close(self) -> None:
        """Stop waiting."""
        self._waiter.close()


def scan_forever(queue: str, **options: Any) -> ScanForever:
    """Yield the items of a queue, then new ones as they come, without end; the options are those of `scan`.

    `process_once_now=False` waits first. `rescan_seconds` is how long it waits at most before it checks again.
    """
    return ScanForever(queue, **options)
