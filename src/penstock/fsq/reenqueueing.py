"""Re-enqueueing: an item under the name it has, into further queues or hosts.

Name, time and tries are kept, so that doing it twice does no harm: an item that is there already is left as it is.
The data is copied, or, with `link`, all queues share one file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.fsq import files, path
from penstock.fsq.constants import number_of
from penstock.fsq.enqueueing import Pieces, check_writable, data_of
from penstock.fsq.errors import FSQReenqueueError, as_error
from penstock.fsq.installing import hosts as hosts_of
from penstock.fsq.items import FSQWorkItem


class Target:
    """A queue, or a host of one, that gets an item."""

    def __init__(self, queue: str, host: str | None = None) -> None:
        self.label = path.valid_name(queue) if host is None else f"host {path.valid_name(host)} of {queue}"
        self.tmp = path.tmp(queue, host)
        self.queue = path.queue(queue, host)

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """The system's errors as ours."""
        return as_error(FSQReenqueueError, f"cannot reenqueue into {self.label}")

    def publish(self, draft: str, item_id: str) -> None:
        """Make the item visible, unless it is."""
        with self.errors():
            with contextlib.suppress(FileExistsError):
                files.disk.link(draft, f"{self.queue}/{item_id}")
            files.disk.sync_directory(self.queue)


def targets_of(queues: Iterable[str], hosts: Iterable[str] | None, all_hosts: bool) -> list[Target]:
    """Return the queues, or those of their hosts that are meant."""
    if isinstance(queues, str | bytes) or isinstance(hosts, str | bytes):
        raise TypeError("queues and hosts must be lists of names, got one name")
    names = list(queues)
    if not names:
        raise ValueError("at least one queue must be named, got none")
    if all_hosts:
        return [Target(queue, host) for queue in names for host in hosts_of(queue)]
    if hosts is not None:
        chosen = list(hosts)
        return [Target(queue, host) for queue in names for host in chosen]
    return [Target(queue) for queue in names]


def checked_id(item_id: object) -> str:
    """Return the id if it is a plain name that readers can read."""
    return check_writable(path.valid_name(item_id))


def vreenqueue(
    source: Any,
    *rest: Any,
    src_queue: str | None = None,
    link: bool = False,
    hosts: Iterable[str] | None = None,
    all_hosts: bool = False,
) -> str:
    """Put an item into the queues of a list, under its own name; return the name.

    The source is a work item, or an id with `src_queue`, each followed by the queues; or anything that can be
    enqueued, followed by the id and the queues.
    """
    is_queued = isinstance(source, FSQWorkItem) or src_queue is not None
    if len(rest) != (1 if is_queued else 2):
        raise ValueError("a work item, or an id with src_queue, goes with queues; another source with an id and queues")
    if link and not is_queued:
        raise ValueError("only an item of a queue can be linked")
    targets = targets_of(rest[-1], hosts, all_hosts)
    if not is_queued:
        item_id = checked_id(rest[0])
        return _copy(Pieces(source), item_id, targets)
    held = source if isinstance(source, FSQWorkItem) else None
    item_id = checked_id(held.id if held else source)
    queue, host = (held.queue, held.host) if held else (path.valid_name(src_queue), None)
    if link:
        return _link(path.item(queue, item_id, host), path.tmp(queue, host), item_id, targets)
    return _copy(_pieces(path.item(queue, item_id, host)), item_id, targets)


def reenqueue(source: Any, *rest: Any, **options: Any) -> str:
    """As `vreenqueue`, with the queues as arguments."""
    takes_id = not (isinstance(source, FSQWorkItem) or options.get("src_queue") is not None)
    if len(rest) < 1 + takes_id:
        raise ValueError("at least one queue must be named, got none")
    return vreenqueue(source, *rest[:takes_id], rest[takes_id:], **options)


def vsreenqueue(
    item_id: str,
    string: str | bytes,
    queues: Iterable[str],
    hosts: Iterable[str] | None = None,
    all_hosts: bool = False,
    charset: str | None = None,
) -> str:
    """Put data under a given name into the queues of a list; return the name."""
    data = data_of(string, charset)
    return _copy([data], checked_id(item_id), targets_of(queues, hosts, all_hosts))


def sreenqueue(item_id: str, string: str | bytes, *queues: str, **options: Any) -> str:
    """As `vsreenqueue`, with the queues as arguments."""
    return vsreenqueue(item_id, string, queues, **options)


def _pieces(where: str) -> Pieces:
    """The bytes of an item, which must be a regular file: a link in a queue would lead to what only we may read."""
    with as_error(FSQReenqueueError, f"cannot reenqueue {where}"):
        fd = files.open_file(where, os.O_RDONLY).fd
    try:
        return Pieces(fd)
    finally:
        os.close(fd)


def _copy(data: Iterable[bytes], item_id: str, targets: list[Target]) -> str:
    drafts: list[tuple[Target, int, str]] = []
    try:
        for target in targets:
            draft = f"{target.tmp}/{files.temporary_name()}"
            with target.errors():
                drafts.append((target, files.disk.create(draft, number_of("FSQ_ITEM_MODE")), draft))
        for piece in data:
            for target, fd, _ in drafts:
                with target.errors():
                    files.disk.write(fd, piece)
        for target, fd, _ in drafts:
            with target.errors():
                files.disk.sync(fd)
        for target, _, draft in drafts:
            target.publish(draft, item_id)
    finally:
        for _, fd, draft in drafts:
            files.disk.close(fd)
            with contextlib.suppress(OSError):
                files.disk.unlink(draft)
        close: Callable[[], None] = getattr(data, "close", _nothing)
        close()
    return item_id


def _link(source: str, tmp: str, item_id: str, targets: list[Target]) -> str:
    with _pinned(source, tmp) as pin:
        for target in targets:
            target.publish(pin, item_id)
    return item_id


@contextlib.contextmanager
def _pinned(source: str, tmp: str) -> Iterator[str]:
    """A second name for the source, which stays when somebody finishes the item meanwhile."""
    pin = f"{tmp}/{files.temporary_name()}"
    with as_error(FSQReenqueueError, f"cannot reenqueue {source}"):
        files.disk.link(source, pin)
    try:
        found = files.status(pin)
        if not stat.S_ISREG(found.st_mode):
            text = f"an item must be a regular file, got {files.kind_of(found)}"
            raise FSQReenqueueError(errno.EINVAL, f"cannot reenqueue {source}: {text}")
        yield pin
    finally:
        with contextlib.suppress(OSError):
            files.disk.unlink(pin)


def _nothing() -> None:
    """There is nothing to close."""
