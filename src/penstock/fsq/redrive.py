"""Bringing failed items back, and removing those that nobody needs any more."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice

from penstock.fsq import files, path
from penstock.fsq.errors import FSQError, FSQFailError, FSQScanError, FSQWorkItemError, as_error
from penstock.fsq.inspecting import PROGRESS_ITEMS, Progress, place_of, unseen
from penstock.fsq.items import FSQWorkItem
from penstock.fsq.names import parse
from penstock.fsq.snapshot import ItemSnapshot

SYNC_ITEMS = PROGRESS_ITEMS  # items that share one sync of their directories


def redrive(
    queue: str,
    item_ids: Iterable[str] | None = None,
    place: str = "fail",
    host: str | None = None,
    keep_tries: bool = False,
    progress: Progress = unseen,
) -> list[str]:
    """Put items of `fail` (or `done`) back into the queue, all or the named ones, with 0 tries; return their new names.

    The time in the name stays, and with it the age that a TTL looks at. One that waits already under that name is an
    error; a name that can't be read stays where it is.
    """
    if place not in ("fail", "done"):
        raise ValueError(f"the place must be fail or done, got {place!r}")
    source, target = place_of(place, queue, host), path.queue(queue, host)
    names = iter(_names(source) if item_ids is None else map(path.valid_name, item_ids))
    new_ids: list[str] = []
    while together := list(islice(names, SYNC_ITEMS)):
        new_ids += _bring_back(together, source, target, keep_tries, is_named=item_ids is not None)
        if len(together) == SYNC_ITEMS:
            progress(len(new_ids))
    return new_ids


def _bring_back(names: list[str], source: str, target: str, keep_tries: bool, is_named: bool) -> list[str]:
    """Rename items where they are, sync that, then move them.

    A power failure may leave an item in both places. Under one name that means completed, and nobody runs it; under two
    the names are unknown.
    """
    new_ids: list[str] = []
    try:
        for name in names:
            try:
                new_ids.append(_renamed(name, source, target, keep_tries))
            except FSQError as error:
                if is_named or error.errno != errno.EINVAL:
                    raise
    finally:
        if new_ids:
            _move(new_ids, source, target)
    return new_ids


def _renamed(name: str, source: str, target: str, keep_tries: bool) -> str:
    parsed = parse(name)
    new_id = name if keep_tries else parsed.with_tries(0)
    with as_error(FSQFailError, f"cannot put {name} back"):
        found = files.status(f"{source}/{name}")
        if not stat.S_ISREG(found.st_mode):
            text = f"an item must be a regular file, got {files.kind_of(found)}"
            raise FSQFailError(errno.EINVAL, f"cannot put {name} back: {text}")
        for directory in (target,) if new_id == name else (target, source):
            if files.identity(f"{directory}/{new_id}") is not None:
                raise FSQFailError(errno.EEXIST, f"cannot put {name} back: there is {directory}/{new_id} already")
        if new_id != name:
            files.disk.rename(f"{source}/{name}", f"{source}/{new_id}")
    return new_id


def _move(names: list[str], source: str, target: str) -> None:
    with as_error(FSQFailError, f"cannot put items back into {target}"):
        files.disk.sync_directory(source)
        try:
            for name in names:
                files.disk.rename(f"{source}/{name}", f"{target}/{name}")
        finally:
            files.disk.sync_directory(target)
            files.disk.sync_directory(source)


def purge(
    queue: str,
    place: str,
    older_seconds: float = 0,
    host: str | None = None,
    dry_run: bool = False,
    progress: Progress = unseen,
) -> int:
    """Remove the items of a place that were enqueued at least `older_seconds` ago; return their number.

    Waiting items that somebody works on are left alone. Names that can't be read go by the age of their file.
    """
    if place not in ("queue", "done", "fail"):
        raise ValueError(f"the place must be queue, done or fail, got {place!r}")
    directory = place_of(place, queue, host)
    limit = datetime.now() - timedelta(seconds=older_seconds)  # noqa: DTZ005 - names hold local time
    removed = 0
    for count, name in enumerate(_names(directory), 1):
        with as_error(FSQScanError, f"cannot remove {name}"):
            if _enqueued_at(directory, name) <= limit and (dry_run or _remove(queue, place, host, directory, name)):
                removed += 1
        if not count % PROGRESS_ITEMS:
            progress(count)
    if removed and not dry_run:
        files.disk.sync_directory(directory)
    return removed


def _enqueued_at(directory: str, name: str) -> datetime:
    try:
        return parse(name).enqueued_at
    except FSQError:
        pass
    try:
        changed = files.status(f"{directory}/{name}").st_mtime
    except FileNotFoundError:
        return datetime.max  # noqa: DTZ901 - to be compared with local time
    return datetime.fromtimestamp(changed)  # noqa: DTZ006 - to be compared with local time


def _remove(queue: str, place: str, host: str | None, directory: str, name: str) -> bool:
    if place != "queue":
        try:
            return files.remove_if_there(f"{directory}/{name}")
        except IsADirectoryError:
            return False  # not an item: `fsq audit` names it
    try:
        with FSQWorkItem(queue, name, max_tries=0, ttl=0, lock=True, host=host, look=True):
            return files.remove_if_there(f"{directory}/{name}")
    except FSQWorkItemError as error:
        # Somebody works on it, it is gone, or it is not an item: `fsq audit` names those.
        if error.errno in (errno.EAGAIN, errno.ENOENT, errno.EINVAL, errno.EISDIR):
            return False
        raise
    except FSQError:
        return files.remove_if_there(f"{directory}/{name}")  # nobody can work on what can't be read


def _names(directory: str) -> Iterator[str]:
    with as_error(FSQScanError, f"cannot list {directory}"):
        found = ItemSnapshot([(directory, "")])
    return (name for name, _ in found)
