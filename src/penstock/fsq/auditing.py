"""Finding what is not as it should be in a queue, and putting it right.

    tmp-litter      a file in `tmp` that nobody has written to for long: its enqueuer was killed         removed
    half-linked     a file in `tmp` that is in `queue` or beyond already: the last step was missing      removed
    completed       an item that is in `queue` and in `done` or `fail`: a power failure in between       out of `queue`
    unreadable      a name in `queue` that is not an item's                                              to `fail`
    stray           a directory that is a link or another owner's; an item that isn't a regular file     only reported
    mode            an item that is more open than FSQ_ITEM_MODE, or that its owner can't read           changed
    directory-mode  a directory with another mode than the queue's own                                   changed
    attempt         a note of an attempt at an item that is gone                                         removed
    missing         a directory of the four that isn't there                                             made
    lease-over      an item of the queue library (reserved.py) whose lease or claim is over                 put back
    due             an item that was set aside for later, and its time has come                          into `queue`
    leftover        an empty directory of a lease that is over, or a claim that was never made           removed

The last column is what `repair` does about it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count

from penstock.fsq import files, path, reserved
from penstock.fsq.constants import number_of
from penstock.fsq.directory import directory, listing_of
from penstock.fsq.errors import FSQConfigError, FSQError, FSQWorkItemError, as_error, describe
from penstock.fsq.inspecting import PROGRESS_ITEMS, Progress, host_names, place_of, unseen
from penstock.fsq.items import FSQWorkItem
from penstock.fsq.names import parse
from penstock.fsq.owners import LEAVE, Owner
from penstock.fsq.reserved import KEY_FILE, ReservedArea, leases_in, listed, readable

OLD_SECONDS = 3600.0  # how long a file in `tmp` may be unchanged: a slow writer's file must stay
# A second name in `tmp`, then one in `queue`, goes before the mode of the file is changed: see `files.set_mode`.
ORDER = ("tmp", "queue", "done", "fail")
KINDS = (
    "tmp-litter",
    "half-linked",
    "completed",
    "unreadable",
    "stray",
    "mode",
    "directory-mode",
    "attempt",
    "missing",
    "lease-over",
    "due",
    "leftover",
)


@dataclass
class Finding:
    """Something wrong; `repair` puts it right, where that is safe."""

    kind: str
    where: str
    text: str
    repair: Callable[[], None] | None = None

    def as_dict(self) -> dict[str, object]:
        """Return what JSON can hold."""
        return {"kind": self.kind, "path": self.where, "text": self.text, "repairable": self.repair is not None}


def audit(queue: str, older_seconds: float = OLD_SECONDS, progress: Progress = unseen) -> Iterator[Finding]:
    """Look through a queue and its hosts."""
    with as_error(FSQConfigError, f"there is no queue {queue}: {path.base(queue)}"):
        directory(path.base(queue))
    numbers = count(1)  # of the items that were looked at
    try:
        hosts = host_names(queue)
    except FSQError as error:
        hosts = []
        yield Finding("stray", path.hosts(queue), describe(error))
    for host in (None, *hosts):
        found = {place: _directory(queue, host, place) for place in ORDER}
        yield from (finding for finding in found.values() if finding is not None)
        for place, finding in found.items():
            if finding is not None and finding.kind != "directory-mode":
                continue
            for findings in _Place(queue, host, place, older_seconds).findings():
                number = next(numbers)
                if not number % PROGRESS_ITEMS:
                    progress(number)
                yield from findings
        yield from _attempts(queue, host)
        yield from _set_aside(ReservedArea(path.base(queue, host)), time.time_ns() // 1_000_000)


def repair(
    queue: str, older_seconds: float = OLD_SECONDS, progress: Progress = unseen
) -> Iterator[tuple[Finding, str | None]]:
    """Put right what can be, one by one; each finding comes with nothing, or with the reason why it stays."""
    for finding in audit(queue, older_seconds, progress):
        if finding.repair is None:
            yield finding, "a person must look at it"
            continue
        try:
            finding.repair()
        except OSError as error:
            yield finding, describe(error)
        else:
            yield finding, None


def _directory(queue: str, host: str | None, place: str) -> Finding | None:
    """What is wrong with one of the four directories."""
    base, where = path.base(queue, host), place_of(place, queue, host)
    try:
        mode = files.mode_of_directory(where)
    except FileNotFoundError:
        return Finding("missing", where, "there is no such directory", partial(_make, where, base))
    except OSError as error:
        return Finding("stray", where, describe(error))
    wanted = files.mode_of_directory(base)
    if mode == wanted:
        return None
    text = f"its mode is {mode:04o}, the queue's is {wanted:04o}"
    return Finding("directory-mode", where, text, partial(files.set_mode, where, wanted))


def _make(where: str, base: str) -> None:
    """Make a directory like the queue's own; nothing is left if its owner can't be the queue's."""
    files.disk.make_directory(where, 0o700)
    try:
        owner = Owner(directory(base).owner, LEAVE)
        if owner.uid != os.geteuid():
            with listing_of(where) as fd:
                files.own(fd, owner)
        files.set_mode(where, files.mode_of_directory(base))
    except BaseException:
        files.disk.remove_directory(where)
        raise


def _attempts(queue: str, host: str | None) -> Iterator[Finding]:
    notes = path.attempts(queue, host)
    try:
        names = files.names(notes)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding("stray", notes, describe(error))
        return
    for name in names:
        if files.identity(path.item(queue, name, host)) is None:
            where = f"{notes}/{name}"
            yield Finding("attempt", where, "the item is gone", partial(_remove, where))


def _set_aside(area: ReservedArea, now_ms: int) -> Iterator[Finding]:
    """What is set aside and should be back."""
    try:
        area.is_there()
    except OSError as error:
        yield Finding("stray", area.side, describe(error))
        return
    for lease in sorted(area.leases()):
        if lease.until_ms <= now_ms:
            text = f"its lease ended {(now_ms - lease.until_ms) // 1000} s ago"
            yield from _late("lease-over", lease.path, text, partial(reserved.end_leases, area, [lease]))
    for parked in sorted(area.parked()):
        if parked.mature_ms <= now_ms:
            text = f"its time came {(now_ms - parked.mature_ms) // 1000} s ago"
            yield from _late("due", parked.path, text, partial(reserved.unpark, area, [parked]))
    for key in listed(area.claim):
        where = f"{area.claim}/{key}"
        if files.is_directory(where) and not files.exists(f"{where}/{KEY_FILE}"):
            if all(lease.until_ms <= now_ms for lease in leases_in(where, listed(where))):
                yield Finding("leftover", where, "the claim was never made", partial(_remove_claim, where))


def _late(kind: str, directory: str, text: str, bring_back: Callable[[], object]) -> Iterator[Finding]:
    names = listed(directory)
    if not names:
        yield Finding("leftover", directory, "there is nothing in it", partial(_call, bring_back))
    for name in names:
        where = f"{directory}/{name}"
        if readable(name) is None:
            yield Finding("stray", where, "it is not an item")
        else:
            yield Finding(kind, where, text, partial(_call, bring_back))


def _call(action: Callable[[], object]) -> None:
    action()


def _remove_claim(where: str) -> None:
    """Remove what is left of a claim; what still has items in it stays."""
    for name in listed(where):
        with contextlib.suppress(OSError):
            files.disk.remove_directory(f"{where}/{name}")
    files.disk.remove_directory(where)


class _Place:
    """One directory of a queue or a host."""

    def __init__(self, queue: str, host: str | None, place: str, older_seconds: float) -> None:
        self._queue = queue
        self._host = host
        self._place = place
        self._older_seconds = older_seconds
        self._item_mode = number_of("FSQ_ITEM_MODE")

    def findings(self) -> Iterator[Iterator[Finding]]:
        """What is wrong with each of its files."""
        where = place_of(self._place, self._queue, self._host)
        with files.entries(where) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield self._look(entry.name, f"{where}/{entry.name}", status)

    def _look(self, name: str, where: str, status: os.stat_result) -> Iterator[Finding]:
        if not stat.S_ISREG(status.st_mode):
            yield Finding("stray", where, f"an item must be a regular file, got {files.kind_of(status)}")
            return
        if self._place == "tmp":
            yield from self._look_at_draft(where, status)
            return
        if self._place == "queue":
            twin = self._completed_as(name, status)
            if twin is not None:
                yield Finding("completed", where, f"it is in {twin} already", partial(self._drop, name))
                return
            try:
                parse(name)
            except FSQError as error:
                yield Finding("unreadable", where, describe(error), partial(self._to_fail, name))
                return
        mode = stat.S_IMODE(status.st_mode)
        if mode & ~self._item_mode or not mode & stat.S_IRUSR:
            text = f"its mode is {mode:04o}, items have {self._item_mode:04o}"
            yield Finding("mode", where, text, partial(files.set_mode, where, self._item_mode))

    def _look_at_draft(self, where: str, status: os.stat_result) -> Iterator[Finding]:
        age = time.time() - max(status.st_mtime, status.st_ctime)
        if age < self._older_seconds:
            return
        if status.st_nlink > 1:
            yield Finding("half-linked", where, "the item was enqueued", partial(_remove, where))
        else:
            text = f"nobody has written to it for {int(age)} s"
            yield Finding("tmp-litter", where, text, partial(_remove, where))

    def _completed_as(self, name: str, status: os.stat_result) -> str | None:
        if status.st_nlink < 2:
            return None
        for place in ("done", "fail"):
            there = files.identity(f"{place_of(place, self._queue, self._host)}/{name}")
            if there == (status.st_dev, status.st_ino):
                return place
        return None

    def _drop(self, name: str) -> None:
        """Let whoever opens the item notice that it is completed: that is one implementation for both."""
        with contextlib.suppress(FSQWorkItemError):
            FSQWorkItem(self._queue, name, lock=True, host=self._host).close()

    def _to_fail(self, name: str) -> None:
        source, target = place_of("queue", self._queue, self._host), place_of("fail", self._queue, self._host)
        files.move(f"{source}/{name}", f"{target}/{name}")
        files.disk.sync_directory(target)
        files.disk.sync_directory(source)


def _remove(where: str) -> None:
    files.remove_if_there(where)
