"""Reads a queue without changing it, and without disturbing workers."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import IO, Any

from penstock.fsq import attempts, control, files, installing, path
from penstock.fsq.errors import FSQError, FSQHostsError, FSQScanError, FSQWorkItemError, as_error, describe
from penstock.fsq.items import open_item
from penstock.fsq.names import parse
from penstock.fsq.reserved import ReservedArea, listed
from penstock.fsq.snapshot import ItemSnapshot

Progress = Callable[[int], None]  # is called with the number of items read, from time to time
PROGRESS_ITEMS = 1000

PLACES: dict[str, Callable[..., str]] = {
    "queue": path.queue,
    "done": path.done,
    "fail": path.fail,
    "tmp": path.tmp,
}


@dataclass
class Entry:
    """A file of a queue; `error` says why its name can't be read."""

    id: str
    place: str
    host: str | None
    size: int
    job: str | None = None
    enqueued_at: str | None = None
    tries: int | None = None
    lost_tries: int = 0
    arguments: tuple[str, ...] = ()
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {**asdict(self), "arguments": list(self.arguments)}


def unseen(count: int) -> None:
    """Progress that nobody wants to know of."""


def place_of(place: str, queue: str, host: str | None = None) -> str:
    """Return the directory of a place."""
    if place not in PLACES:
        raise ValueError(f"a place must be one of {', '.join(PLACES)}, got {place!r}")
    return PLACES[place](queue, host)


def entries(queue: str, place: str = "queue", host: str | None = None) -> Iterator[Entry]:
    """Return the items of a place, oldest first. What vanishes meanwhile is left out."""
    directory = place_of(place, queue, host)
    with as_error(FSQScanError, f"cannot list {directory}"):
        found = ItemSnapshot([(directory, "")])
    for name, _ in found:
        with contextlib.suppress(FileNotFoundError):
            yield entry(queue, name, place, host)


def entry(queue: str, name: str, place: str = "queue", host: str | None = None) -> Entry:
    """Describe one item; FileNotFoundError if it isn't there."""
    where = f"{place_of(place, queue, host)}/{path.valid_name(name)}"
    status = files.status(where)
    seen = Entry(id=name, place=place, host=host, size=status.st_size)
    if not stat.S_ISREG(status.st_mode):
        seen.error = f"an item must be a regular file, got {files.kind_of(status)}"
        return seen
    try:
        parsed = parse(name)
    except FSQError as error:
        seen.error = describe(error)
        return seen
    seen.job = parsed.job_id
    seen.enqueued_at = parsed.enqueued_at.isoformat()
    seen.tries = parsed.tries
    seen.arguments = parsed.arguments
    if place == "queue":
        seen.lost_tries = attempts.lost(queue, name, host)
    return seen


def find(queue: str, name: str, host: str | None = None) -> Entry:
    """Find an item by its name, wherever it is."""
    for place in PLACES:
        with contextlib.suppress(FileNotFoundError):
            return entry(queue, name, place, host)
    raise FSQScanError(errno.ENOENT, f"there is no item {name} in {queue}")


def content(queue: str, seen: Entry) -> IO[bytes]:
    """Open an item's data; FSQWorkItemError if it isn't a regular file."""
    where = f"{place_of(seen.place, queue, seen.host)}/{seen.id}"
    with as_error(FSQWorkItemError, f"cannot open {where}"):
        return os.fdopen(open_item(where, is_locked=False).fd, "rb")


def stats(queue: str, host: str | None = None) -> dict[str, Any]:
    """Return the counts and the state of a queue."""
    counts: dict[str, Any] = {"queue": queue, "host": host, "down": control.is_down(queue, host)}
    for place in PLACES:
        with (
            as_error(FSQScanError, f"cannot list {place} of {queue}"),
            files.entries(place_of(place, queue, host)) as all_,
        ):
            counts[f"{place}_items"] = sum(1 for _ in all_)
    counts["aside_items"] = _set_aside(ReservedArea(path.base(queue, host)))
    counts["oldest_seconds"] = _oldest_seconds(queue, host)
    if host is None:
        with contextlib.suppress(OSError):
            counts["trigger"] = stat.S_ISFIFO(files.status(path.trigger(queue)).st_mode)
        counts.setdefault("trigger", False)
        counts["hosts"] = host_names(queue)
    return counts


def _set_aside(area: ReservedArea) -> int:
    """What workers of the queue library have, and what waits for its time."""
    return sum(len(listed(place.path)) for places in (area.leases(), area.parked()) for place in places)


def _oldest_seconds(queue: str, host: str | None) -> int | None:
    """The age of the oldest waiting item whose name can be read."""
    for name, _ in ItemSnapshot([(path.queue(queue, host), "")]):
        with contextlib.suppress(FSQError):
            age = datetime.now() - parse(name).enqueued_at  # noqa: DTZ005 - names hold local time
            return int(age.total_seconds())
    return None


def host_names(queue: str) -> list[str]:
    """Return the hosts of a queue; none if it has no directory for them."""
    try:
        return list(installing.hosts(queue))
    except FSQHostsError as error:
        if error.errno != errno.ENOENT:
            raise
        return []
