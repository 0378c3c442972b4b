"""Bringing back into `queue` what was set aside and whose time has come (see aside.py).

Whoever looks does it: the queue library whenever it reserves or counts, `fsq scan` before it lists, and `fsq repair`.
An item of an ended lease has had a worker that died or was too slow: it comes back with one try more, if work on it had
begun, and that it comes back is noted. If it was under a claim, the claim remembers the name that it has now: as long
as nobody else takes it, it is still the claim's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable

from penstock.fsq import files
from penstock.fsq.aside import KEY_FILE, LOST, Aside, Lease, Parked, hold, listed, readable
from penstock.fsq.constants import number_of
from penstock.fsq.errors import FSQCannotLockError, FSQWorkItemError
from penstock.fsq.names import ItemName

# Gone since, or somebody is at it, or it is none of ours.
_PASSED_OVER = (FileNotFoundError, FSQCannotLockError, FSQWorkItemError)


def bring_back(base: str, now_ms: int | None = None) -> list[str]:
    """Bring back what is due in the directory of a queue or host; give the names that items have in `queue` now."""
    aside = Aside(base)
    if not aside.is_there():
        return []
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    ended = [lease for lease in aside.leases() if lease.until_ms <= now_ms]
    due = [parked for parked in aside.parked() if parked.mature_ms <= now_ms]
    return end_leases(aside, ended) + unpark(aside, due)


def end_leases(aside: Aside, ended: Iterable[Lease]) -> list[str]:
    """Bring back the items of leases that are over, with one try more."""
    back: list[str] = []
    with files.Steps() as steps:
        for lease in sorted(ended):
            names = listed(lease.path)
            if lease.key is not None and names:
                _remember(aside, lease.key, names)
            for file in names:
                name = readable(file)
                if name is not None:
                    tries = name.tries if lease.ahead else name.tries + 1
                    returned = _returned(aside, f"{lease.path}/{file}", name, tries, steps)
                    if returned and lease.key is None:
                        aside.note_back(name, lease.ahead)
                    back += returned
            steps.empty(lease.path)
    return back


def unpark(aside: Aside, due: Iterable[Parked]) -> list[str]:
    """Bring in items whose time has come."""
    back: list[str] = []
    with files.Steps() as steps:
        for parked in sorted(due):
            for file in listed(parked.path):
                name = readable(file)
                if name is not None:
                    back += _returned(aside, f"{parked.path}/{file}", name, name.tries, steps)
            steps.empty(parked.path)
            steps.empty(os.path.dirname(parked.path))
    return back


def _returned(aside: Aside, where: str, name: ItemName, tries: int, steps: files.Steps) -> list[str]:
    """Put one item into `queue`; gives its name there, or nothing if somebody was faster."""
    try:
        held = hold(where)
    except _PASSED_OVER:
        return []
    try:
        if not aside.keep_one(where, name, held.status):
            return []
        return put_into_queue(aside, where, name, tries, steps)
    except FileNotFoundError:
        return []
    finally:
        os.close(held.fd)


def put_into_queue(aside: Aside, where: str, name: ItemName, tries: int, steps: files.Steps) -> list[str]:
    """Rename an item into `queue`; into `fail` if its name has no room for another try."""
    file = str(aside.free(aside.queue, name, tries))
    try:
        steps.move(where, f"{aside.queue}/{file}")
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        steps.move(where, f"{aside.fail}/{os.path.basename(where)}")
        return []
    return [file]


def _remember(aside: Aside, key: str, names: list[str]) -> None:
    """Note, in a claim, the names that its items will have in `queue`: before they are there."""
    directory = f"{aside.claim}/{key}"
    if not files.exists(f"{directory}/{KEY_FILE}"):
        return  # its maker was killed before it was told of any item
    aside.make(f"{directory}/{LOST}")
    for file in names:
        name = readable(file)
        if name is not None:
            with contextlib.suppress(FileExistsError):
                mark = f"{directory}/{LOST}/{name.again(name.tries + 1)}"
                files.disk.close(files.disk.create(mark, number_of("FSQ_ITEM_MODE")))
    files.disk.sync_directory(f"{directory}/{LOST}")
