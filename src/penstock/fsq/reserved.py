"""Items set aside: those that a worker of the queue library has, and those that wait for their time.

The store `fsq:///root` of the queue library shares directories with scanners, which must not see what it has handed
out. So it renames an item out of `queue`, and later back or onwards. All of this lies in one directory beside `queue`,
which originals never read:

    .penstock/lease/UNTIL.NONCE/NAME         reserved until then; one or two directories for each call that reserved
    .penstock/back/ID                        the item of this job id came back to `queue` from a lease that ran out
    .penstock/claim/KEY/key                  a claim, with its key's text. Without this file it was never made
    .penstock/claim/KEY/UNTIL.NONCE/NAME     what the claim holds
    .penstock/claim/KEY/lost/NAME            empty: the name under which an item of an ended lease went back
    .penstock/later/MINUTE/MS/NAME           waits for its time
    .penstock/later/.news                    made and removed at once, so that watchers of `later` see an item

UNTIL and MS are unix times in milliseconds, MINUTE is MS / 60,000, NONCE is 16 hexadecimal digits of chance, KEY the
first 32 of the key's SHA-256. The NONCE of a lease under which work has not begun is 00000, three digits, and chance.
The three digits are 1, and 1 more for each such lease just before it that ran out. When work on an item begins, it goes
to the directory whose name has fffff in place of 00000. The file ID in `back` has as a text how many leases in a row
ran out before work began; it is removed when the item is taken. Four rules hold here:

- Out of `queue` an item goes under its lock, and only if nobody else has that. Once it has left nobody holds a lock:
  only the process that reserved it knows the directory's name, and a rename from there succeeds once.
- When the time in a directory's name has come, its items are free: any process that reads the queue takes their locks
  and brings them back, those of leases with one try more.
- A lease that ran out costs no try if work on the item had not begun.
- A reservation alone is not synced: after a power failure the item may be back in `queue`, or have both names. Then the
  one counts that is further on the way (`keep_one`). Everything else is synced before it is said to be done.

What is due is brought back into `queue` by the next reader: the queue library whenever it reserves or counts, `fsq
scan` before it lists, and `fsq repair`. An item of an ended lease has had a worker that died or was too slow: it comes
back with one try more, if work on it had begun, and that it comes back is noted. If it was under a claim, the claim
remembers the name that it has now: while nobody else takes it, it is still the claim's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import NamedTuple

from penstock.fsq import files
from penstock.fsq.constants import number_of, text_of
from penstock.fsq.directory import SIDE
from penstock.fsq.errors import FSQCannotLockError, FSQError, FSQWorkItemError
from penstock.fsq.items import open_item
from penstock.fsq.names import ItemName, parse
from penstock.fsq.path import valid_name

LOST = "lost"
KEY_FILE = "key"
NEWS = ".news"
MINUTE_MS = 60_000
NONCE_BYTES = 8
KEY_DIGITS = 32
AHEAD, BEGUN = "00000", "fffff"
AHEAD_MAX = 0xFFF
BACK_MAX = 1000  # notes in `back`: with more, those of items that scanners took are removed, which is all that are old
BACK_S = 3600.0
NOTE_MODE = 0o666  # the umask applies, and the directory decides who gets there
LEASE_NAME = re.compile(r"([0-9]{1,15})\.([0-9a-f]{16})", re.ASCII)
KEY_NAME = re.compile(r"[0-9a-f]{32}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)


class LeaseDirectory(NamedTuple):
    """A directory of reserved items."""

    until_ms: int
    path: str
    key: str | None  # the directory of the claim that it belongs to

    @property
    def ahead(self) -> int:
        """0 if work on the items has begun; else 1, and 1 more for each lease before it of which this is true."""
        return ahead_of(self.path)


class Parked(NamedTuple):
    """A directory of items that wait for their time."""

    mature_ms: int
    path: str


class LockedItem(NamedTuple):
    """An open item, locked."""

    fd: int
    status: os.stat_result


def ahead_of(lease: str) -> int:
    """Return 0 for a lease under which work has begun; else 1, and 1 more for each such lease just before it."""
    nonce = lease.rpartition(".")[2]
    return int(nonce[5:8], 16) if nonce.startswith(AHEAD) else 0


def begun(lease: str) -> str:
    """Return the directory that an item of a lease is in once work on it has begun."""
    start, _, nonce = lease.rpartition(".")
    return f"{start}.{BEGUN}{nonce[5:]}" if nonce.startswith(AHEAD) else lease


def key_name(key: str) -> str:
    """Return the name of a claim's directory."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:KEY_DIGITS]


def hold(where: str) -> LockedItem:
    """Open an item and lock it; the caller closes it.

    FileNotFoundError if it is gone, FSQCannotLockError if somebody has it, FSQWorkItemError if it isn't a regular file.
    """
    fd, status = open_item(where, is_locked=True)
    try:
        if files.identity(where) != (status.st_dev, status.st_ino):
            raise FileNotFoundError(where)
    except BaseException:
        os.close(fd)
        raise
    return LockedItem(fd, status)


class ReservedArea:
    """What is set aside of one queue, or of one host."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.queue, self.done, self.fail, self.tmp = (
            f"{base}/{valid_name(text_of(setting))}" for setting in ("FSQ_QUEUE", "FSQ_DONE", "FSQ_FAIL", "FSQ_TMP")
        )
        self.side = f"{base}/{SIDE}"
        self.lease = f"{self.side}/lease"
        self.claim = f"{self.side}/claim"
        self.later = f"{self.side}/later"
        self.back = f"{self.side}/back"

    def is_there(self) -> bool:
        """Whether anything was ever set aside."""
        return files.is_directory(self.side)

    def make(self, directory: str, is_safe: bool = True) -> None:
        """Make a directory below the queue's, with those above it, all of the queue's mode; synced unless `is_safe` is
        False."""
        missing = []
        while not files.is_directory(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        if not missing:
            return
        mode = files.mode_of_directory(self.base)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                files.disk.make_directory(path, mode)
            if is_safe:
                files.disk.sync_directory(os.path.dirname(path))

    def new_lease(self, until_ms: int, key: str | None = None, ahead: int = 0) -> str:
        """Think of a directory for items that are reserved until then; it is not made yet."""
        chance = os.urandom(NONCE_BYTES).hex()
        if ahead:
            chance = f"{AHEAD}{min(ahead, AHEAD_MAX):03x}{chance[8:]}"
        elif chance.startswith(AHEAD):
            chance = BEGUN + chance[5:]
        name = f"{until_ms}.{chance}"
        return f"{self.lease}/{name}" if key is None else f"{self.claim}/{key}/{name}"

    def parking(self, mature_ms: int) -> str:
        """Return the directory for items that wait until then."""
        return f"{self.later}/{mature_ms // MINUTE_MS}/{mature_ms}"

    def note_back(self, name: ItemName, unbegun: int) -> None:
        """Note that an item comes back from a lease that ran out. Not synced: at worst it is taken for any other."""
        self.make(self.back, is_safe=False)
        notes = listed(self.back)
        if len(notes) > BACK_MAX:
            self._tidy_back(notes)
        with contextlib.suppress(OSError):
            fd = files.open_own(f"{self.back}/{name.job_id}", os.O_WRONLY | os.O_CREAT, NOTE_MODE).fd
            with os.fdopen(fd, "w", encoding="ascii") as note:
                note.truncate()
                note.write(str(unbegun))

    def _tidy_back(self, notes: list[str]) -> None:
        before = time.time() - BACK_S
        for note in notes:
            with contextlib.suppress(OSError):
                if files.status(f"{self.back}/{note}").st_mtime < before:
                    files.remove_if_there(f"{self.back}/{note}")

    def take_back_note(self, name: ItemName) -> int | None:
        """Remove the note of an item that is taken; return how many leases in a row ran out before work began.

        None if the item doesn't come back from a lease that ran out.
        """
        path = f"{self.back}/{name.job_id}"
        try:
            text = files.read_note(path).decode("ascii")
            files.remove_if_there(path)
        except (OSError, UnicodeDecodeError):
            return None
        return int(text) if text.isdecimal() else 0

    def tell_news(self) -> None:
        """Notify the processes that watch `later`."""
        with contextlib.suppress(OSError):
            os.close(files.open_file(f"{self.later}/{NEWS}", os.O_CREAT | os.O_WRONLY, 0o600).fd)
            files.remove_if_there(f"{self.later}/{NEWS}")

    def leases(self) -> Iterator[LeaseDirectory]:
        """Return all directories of reserved items."""
        yield from leases_in(self.lease, listed(self.lease))
        for key in listed(self.claim):
            if KEY_NAME.fullmatch(key):
                yield from leases_in(f"{self.claim}/{key}", listed(f"{self.claim}/{key}"), key)

    def parked(self) -> Iterator[Parked]:
        """Return all directories of items that wait for their time."""
        for minute in listed(self.later):
            yield from parked_in(f"{self.later}/{minute}", listed(f"{self.later}/{minute}"))

    def names_of(self, name: ItemName, own: tuple[int, int]) -> Iterator[tuple[tuple[int, int], str]]:
        """Return all paths that lead to an item, each with how far on its way it is there."""
        for tries in range(max(0, name.tries - 1), name.tries + 2):
            file = name.again(tries)
            for rank, directory in ((0, self.queue), (3, self.done), (3, self.fail)):
                if files.identity(f"{directory}/{file}") == own:
                    yield (rank, tries), f"{directory}/{file}"
        for lease in self.leases():
            for file in listed(lease.path):
                if files.identity(f"{lease.path}/{file}") == own:
                    yield (1, lease.until_ms), f"{lease.path}/{file}"
        for parked in self.parked():
            for file in listed(parked.path):
                if files.identity(f"{parked.path}/{file}") == own:
                    yield (2, parked.mature_ms), f"{parked.path}/{file}"

    def keep_one(self, where: str, name: ItemName, status: os.stat_result) -> bool:
        """Finish what a power failure cut in two: keep the one of an item's names that is furthest on its way.

        Return whether that is the one at `where`. An item that is linked into other queues has names that don't count.
        """
        if status.st_nlink < 2:
            return True
        found = sorted(self.names_of(name, (status.st_dev, status.st_ino)))
        if len(found) < 2:
            return True
        best = found.pop()[1]
        files.disk.sync_directory(os.path.dirname(best))
        with files.Steps() as steps:
            for _, path in found:
                with contextlib.suppress(FileNotFoundError):
                    steps.remove(path)
        return best == where

    @staticmethod
    def free(directory: str, name: ItemName, tries: int) -> ItemName:
        """Return the name with this number of tries; more where another item, which has the same id, is called so
        already.

        A rename replaces what has the name. Two items of one id are rare, but neither is to be lost.
        """
        while files.exists(f"{directory}/{name.again(tries)}"):
            tries += 1
        return name._replace(tries=tries)


def listed(directory: str) -> list[str]:
    """Return the names in a directory; none if it isn't there."""
    try:
        return files.names(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def leases_in(directory: str, names: Iterable[str], key: str | None = None) -> Iterator[LeaseDirectory]:
    """Return those names that are directories of reserved items."""
    for name in names:
        found = LEASE_NAME.fullmatch(name)
        if found:
            yield LeaseDirectory(int(found[1]), f"{directory}/{name}", key)


def parked_in(directory: str, names: Iterable[str]) -> Iterator[Parked]:
    """Return those names that are directories of items that wait for their time."""
    for name in names:
        if _NUMBER.fullmatch(name):
            yield Parked(int(name), f"{directory}/{name}")


def readable(name: str) -> ItemName | None:
    """Read a name, if it is an item's."""
    try:
        return parse(name)
    except FSQError:
        return None


# Gone since, or locked, or not one of ours.
_PASSED_OVER = (FileNotFoundError, FSQCannotLockError, FSQWorkItemError)


def bring_back(base: str, now_ms: int | None = None) -> list[str]:
    """Bring back what is due in the directory of a queue or host; return the names that items have in `queue` now."""
    area = ReservedArea(base)
    if not area.is_there():
        return []
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    ended = [lease for lease in area.leases() if lease.until_ms <= now_ms]
    due = [parked for parked in area.parked() if parked.mature_ms <= now_ms]
    return end_leases(area, ended) + unpark(area, due)


def end_leases(area: ReservedArea, ended: Iterable[LeaseDirectory]) -> list[str]:
    """Bring back the items of leases that are over, with one try more."""
    back: list[str] = []
    with files.Steps() as steps:
        for lease in sorted(ended):
            names = listed(lease.path)
            if lease.key is not None and names:
                _remember(area, lease.key, names)
            for file in names:
                name = readable(file)
                if name is not None:
                    tries = name.tries if lease.ahead else name.tries + 1
                    returned = _returned(area, f"{lease.path}/{file}", name, tries, steps)
                    if returned and lease.key is None:
                        area.note_back(name, lease.ahead)
                    back += returned
            steps.empty(lease.path)
    return back


def unpark(area: ReservedArea, due: Iterable[Parked]) -> list[str]:
    """Bring in items whose time has come."""
    back: list[str] = []
    with files.Steps() as steps:
        for parked in sorted(due):
            for file in listed(parked.path):
                name = readable(file)
                if name is not None:
                    back += _returned(area, f"{parked.path}/{file}", name, name.tries, steps)
            steps.empty(parked.path)
            steps.empty(os.path.dirname(parked.path))
    return back


def _returned(area: ReservedArea, where: str, name: ItemName, tries: int, steps: files.Steps) -> list[str]:
    """Put one item into `queue`; return its name there, or nothing if somebody was faster."""
    try:
        held = hold(where)
    except _PASSED_OVER:
        return []
    try:
        if not area.keep_one(where, name, held.status):
            return []
        return put_into_queue(area, where, name, tries, steps)
    except FileNotFoundError:
        return []
    finally:
        os.close(held.fd)


def put_into_queue(area: ReservedArea, where: str, name: ItemName, tries: int, steps: files.Steps) -> list[str]:
    """Rename an item into `queue`; into `fail` if its name has no room for another try."""
    file = str(area.free(area.queue, name, tries))
    try:
        steps.move(where, f"{area.queue}/{file}")
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        steps.move(where, f"{area.fail}/{os.path.basename(where)}")
        return []
    return [file]


def _remember(area: ReservedArea, key: str, names: list[str]) -> None:
    """Note, in a claim, the names that its items will have in `queue`: before they are there."""
    directory = f"{area.claim}/{key}"
    if not files.exists(f"{directory}/{KEY_FILE}"):
        return  # its maker was killed before it got any item
    area.make(f"{directory}/{LOST}")
    for file in names:
        name = readable(file)
        if name is not None:
            with contextlib.suppress(FileExistsError):
                mark = f"{directory}/{LOST}/{name.again(name.tries + 1)}"
                files.disk.close(files.disk.create(mark, number_of("FSQ_ITEM_MODE")))
    files.disk.sync_directory(f"{directory}/{LOST}")
