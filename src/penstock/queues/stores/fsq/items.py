"""Takes items out of `queue`: each is locked, read and renamed (or removed) before its lock is released."""

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import StoreError
from penstock.fsq import attempts, files
from penstock.fsq.errors import FSQCannotLockError, FSQWorkItemError, describe
from penstock.fsq.names import ItemName
from penstock.fsq.reserved import LockedItem, hold, readable
from penstock.queues.stores.fsq.directory import QueueDirectory
from penstock.queues.stores.fsq.listing import ReadyNames

READ_BYTES = 1 << 20


class Item(NamedTuple):
    """An item that we have locked."""

    path: str
    name: ItemName
    data: bytes
    status: os.stat_result


def waiting_items(queue_dir: QueueDirectory) -> Iterator[Item]:
    """Yield the items that are not locked, oldest first, each locked until the next one is asked for.

    What can't be opened is passed over, and raised at the end if there was nothing else.
    """
    problem: OSError | None = None
    is_any = False
    for file in _names(queue_dir.ready_names):
        try:
            with _opened(queue_dir, file) as item:
                if item is not None:
                    is_any = True
                    yield item
        except FSQCannotLockError:
            queue_dir.ready_names.locked.add(file)
        except (FileNotFoundError, FSQWorkItemError):
            continue  # gone, or no item at all
        except OSError as error:
            problem = problem or error
    if problem is not None and not is_any:
        raise StoreError(f"{queue_dir.area.queue} has items that can't be had: {describe(problem)}") from problem


def _names(line: ReadyNames) -> Iterator[str]:
    """The names to try: as they are known, then those that were locked, then those that have come since."""
    line.begin()
    locked = sorted(line.locked)  # whoever worked on these may be done, or dead
    line.locked.clear()
    while (file := line.pop()) is not None:
        yield file
    yield from locked
    line.renew()
    while (file := line.pop()) is not None:
        yield file


@contextlib.contextmanager
def _opened(queue_dir: QueueDirectory, file: str) -> Iterator[Item | None]:
    """One item; nothing if it turned out to be none, or to be completed already."""
    where = f"{queue_dir.area.queue}/{file}"
    held = hold(where)
    try:
        name = readable(file)
        if name is None:
            _refuse(queue_dir, where)
            yield None
        elif not queue_dir.area.keep_one(where, name, held.status):
            yield None
        else:
            data = _read(held)
            name = _settled(queue_dir, where, name)
            yield Item(f"{queue_dir.area.queue}/{name}", name, data, held.status)
    finally:
        os.close(held.fd)


def _refuse(queue_dir: QueueDirectory, where: str) -> None:
    """What has a name that can't be read goes to `fail`, as in a scan."""
    with files.Steps() as steps:
        steps.move(where, f"{queue_dir.area.fail}/{os.path.basename(where)}")


def _read(held: LockedItem) -> bytes:
    pieces = []
    while piece := os.read(held.fd, READ_BYTES):
        pieces.append(piece)
    return b"".join(pieces)


def _settled(queue_dir: QueueDirectory, where: str, name: ItemName) -> ItemName:
    """Rename an item as we would have named it, with the tries of scanners that were killed during them added.

    So its name follows from its id and its tries. Mostly it has that name already.
    """
    file = os.path.basename(where)
    lost = attempts.lost(queue_dir.fsq_queue, file)
    if not lost and str(name) == file:
        return name
    settled = queue_dir.area.free(queue_dir.area.queue, name, name.tries + lost)
    files.disk.rename(where, f"{queue_dir.area.queue}/{settled}")
    files.disk.sync_directory(queue_dir.area.queue)
    attempts.end(queue_dir.fsq_queue, file, None)
    return settled


def read_item(where: str) -> tuple[bytes, os.stat_result]:
    """Return the data of an item, which may be locked by another process."""
    fd, status = files.open_file(where, os.O_RDONLY)
    try:
        return _read(LockedItem(fd, status)), status
    finally:
        os.close(fd)
