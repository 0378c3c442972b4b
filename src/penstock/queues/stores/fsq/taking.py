"""Jobs out of `queue`: each item is locked, read and renamed (or removed) before its lock is let go."""

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import StoreError
from penstock.fsq import attempts, files
from penstock.fsq.errors import FSQCannotLockError, FSQWorkItemError, describe
from penstock.fsq.names import ItemName
from penstock.fsq.reserved import Held, hold, readable
from penstock.queues.stores.fsq.directory import Place
from penstock.queues.stores.fsq.line import Line

READ_BYTES = 1 << 20


class Item(NamedTuple):
    """An item that we have locked."""

    path: str
    name: ItemName
    data: bytes
    status: os.stat_result


def waiting_items(place: Place) -> Iterator[Item]:
    """The items that nobody works on, oldest first, each locked until the next one is asked for.

    What can't be opened is passed over, and raised at the end if there was nothing else.
    """
    problem: OSError | None = None
    is_any = False
    for file in _names(place.line):
        try:
            with _opened(place, file) as item:
                if item is not None:
                    is_any = True
                    yield item
        except FSQCannotLockError:
            place.line.locked.add(file)
        except (FileNotFoundError, FSQWorkItemError):
            continue  # gone, or no item at all
        except OSError as error:
            problem = problem or error
    if problem is not None and not is_any:
        raise StoreError(f"{place.aside.queue} has items that can't be had: {describe(problem)}") from problem


def _names(line: Line) -> Iterator[str]:
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
def _opened(place: Place, file: str) -> Iterator[Item | None]:
    """One item; nothing if it turned out to be none, or to be completed already."""
    where = f"{place.aside.queue}/{file}"
    held = hold(where)
    try:
        name = readable(file)
        if name is None:
            _refuse(place, where)
            yield None
        elif not place.aside.keep_one(where, name, held.status):
            yield None
        else:
            data = _read(held)
            name = _settled(place, where, name)
            yield Item(f"{place.aside.queue}/{name}", name, data, held.status)
    finally:
        os.close(held.fd)


def _refuse(place: Place, where: str) -> None:
    """What has a name that can't be read goes to `fail`, as in a scan."""
    with files.Steps() as steps:
        steps.move(where, f"{place.aside.fail}/{os.path.basename(where)}")


def _read(held: Held) -> bytes:
    pieces = []
    while piece := os.read(held.fd, READ_BYTES):
        pieces.append(piece)
    return b"".join(pieces)


def _settled(place: Place, where: str, name: ItemName) -> ItemName:
    """Give an item the name that we would have written, with the tries of scanners that were killed in it.

    So its name can be told from its id and its tries. Mostly it has that name already.
    """
    file = os.path.basename(where)
    lost = attempts.lost(place.directory, file)
    if not lost and str(name) == file:
        return name
    settled = place.aside.free(place.aside.queue, name, name.tries + lost)
    files.disk.rename(where, f"{place.aside.queue}/{settled}")
    files.disk.sync_directory(place.aside.queue)
    attempts.end(place.directory, file, None)
    return settled


def read_item(where: str) -> tuple[bytes, os.stat_result]:
    """The data of an item that is ours, or that is only looked at."""
    fd, status = files.open_file(where, os.O_RDONLY)
    try:
        return _read(Held(fd, status)), status
    finally:
        os.close(fd)
