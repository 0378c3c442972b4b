"""What a power failure may leave of a directory tree, from a record of the system calls.

A `RecordingDisk` does the real thing and writes down what it did. `Left` plays such a record up to any point and gives
every tree that a disk may hold after a crash there, by these rules:

- Data that was not synced may be missing, cut off anywhere, or zeros of the full length.
- A change of names (create, link, unlink, rename) that no sync of its directory has followed may be on the disk or
  not, whatever became of others; but of changes to one name, the later implies the earlier.
- A rename within a directory is one change. Between two directories it is two, of which the removal implies the
  addition: a rename never loses a file, though after a crash both names may be there.
- A directory is a name in the one above it. A name in a directory implies that the directory is there; that one is
  removed, or has another name, implies what was changed in it before.
- A sync of a directory forces the changes made in it before. A sync of a file forces its data, and no name.

`strict` models a disk that is worse than those we know: there, syncing the directory that a file was renamed out of
forces the removal without the addition, and the file may be gone; and syncing a new directory forces the names in it
without its own. One process alone can keep its files even so, by the order of its syncs; several can't, since any of
them may sync the directory at the wrong moment.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from penstock.fsq.files import FileSystem

Entry = tuple[str, str]  # directory, name
Tree = frozenset[tuple[str, str, bytes, int]]  # directory, name, data, which file it is
DIRECTORY = 0  # in place of the number of a file
CHANGES_OF_DIRECTORIES = ("make_directory", "remove_directory", "rename_directory")


@dataclass(frozen=True)
class Operation:
    """One system call, or the point where a caller is told that something is done (`ack`)."""

    kind: str
    path: str = ""
    target: str = ""
    file: int = 0
    data: bytes = b""


class RecordingDisk(FileSystem):
    """The real disk, with a record. Paths are given from `base` on."""

    def __init__(self, base: str) -> None:
        self._base = base + "/"
        self._files: dict[int, int] = {}
        self.record: list[Operation] = []
        self.next_file = itertools.count(1)

    def _short(self, path: str) -> str:
        assert path.startswith(self._base), path
        return path.removeprefix(self._base)

    def create(self, path: str, mode: int) -> int:
        fd = super().create(path, mode)
        self._files[fd] = next(self.next_file)
        self.record.append(Operation("create", self._short(path), file=self._files[fd]))
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> None:
        super().write(fd, data)
        self.record.append(Operation("write", file=self._files[fd], data=bytes(data)))

    def sync(self, fd: int) -> None:
        self.record.append(Operation("sync", file=self._files[fd]))

    def close(self, fd: int) -> None:
        self._files.pop(fd)
        super().close(fd)

    def link(self, source: str, target: str) -> None:
        super().link(source, target)
        self.record.append(Operation("link", self._short(source), self._short(target)))

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self.record.append(Operation("unlink", self._short(path)))

    def rename(self, source: str, target: str) -> None:
        kind = "rename_directory" if os.path.isdir(source) else "rename"
        super().rename(source, target)
        self.record.append(Operation(kind, self._short(source), self._short(target)))

    def make_directory(self, path: str, mode: int) -> None:
        super().make_directory(path, mode)
        self.record.append(Operation("make_directory", self._short(path)))

    def remove_directory(self, path: str) -> None:
        super().remove_directory(path)
        self.record.append(Operation("remove_directory", self._short(path)))

    def sync_directory(self, path: str) -> None:
        self.record.append(Operation("sync_directory", self._short(path)))

    def ack(self, what: str) -> None:
        self.record.append(Operation("ack", what))

    def take(self) -> list[Operation]:
        """Return the record since the last time."""
        record, self.record = self.record, []
        return record


@dataclass
class Change:
    """Names that change together: each leads to a file from now on, or to none."""

    entries: dict[Entry, int | None]
    after: list[int] = field(default_factory=list)  # positions of changes to the same names: this one implies them
    loose: list[int] = field(default_factory=list)  # of others that it implies, but not where a strict disk forces it
    is_forced: bool = False


@lru_cache(None)
def _chain(directory: str) -> tuple[str, ...]:
    """A directory, and those above it."""
    parts = directory.split("/")
    return tuple("/".join(parts[:length]) for length in range(1, len(parts) + 1))


def split(path: str) -> Entry:
    directory, _, name = path.rpartition("/")
    return directory, name


class Left:
    """Plays a record; yields what a crash leaves at each point."""

    def __init__(
        self, start: dict[str, bytes], strict: bool = False, unread: Iterable[str] = (), shared: Iterable[str] = ()
    ) -> None:
        """Begin with a tree that is all on the disk, given by paths.

        Nobody reads the `unread` directories; `shared` ones are there, whoever makes or removes them.
        """
        self._strict = strict
        self._unread = frozenset(unread)
        self._shared = frozenset(shared)
        self.names: dict[Entry, int] = {}
        self.data: dict[int, bytes] = {DIRECTORY: b""}
        self.safe: dict[int, int] = {DIRECTORY: 0}  # how many bytes of each file are synced
        self._made: set[str] = set()  # directories that we know of; all others are always there
        self.acks: set[str] = set()
        self.changes: list[Change] = []
        self._durable: dict[Entry, int] = {}
        for number, (path, data) in enumerate(start.items()):
            file = -1 - number
            self.names[split(path)] = self._durable[split(path)] = file
            self.data[file], self.safe[file] = data, len(data)
            for directory in _chain(split(path)[0]):
                self._made.add(directory)
                self.names[split(directory)] = self._durable[split(directory)] = DIRECTORY

    def play(self, step: Operation) -> None:
        if step.kind == "create":
            self.data[step.file], self.safe[step.file] = b"", 0
            self._change({split(step.path): step.file})
        elif step.kind == "write":
            self.data[step.file] += step.data
        elif step.kind == "sync":
            self.safe[step.file] = len(self.data[step.file])
        elif step.kind == "link":
            self._change({split(step.target): self.names[split(step.path)]})
        elif step.kind == "unlink":
            self._change({split(step.path): None})
        elif step.kind == "rename":
            self._rename(split(step.path), split(step.target))
        elif step.kind in CHANGES_OF_DIRECTORIES and step.path in self._shared:
            pass
        elif step.kind == "make_directory":
            self._made.add(step.path)
            self._change({split(step.path): DIRECTORY})
        elif step.kind == "remove_directory":
            self._change({split(step.path): None}, emptied=step.path)
        elif step.kind == "rename_directory":
            self._made |= {step.path, step.target}
            self._change({split(step.path): None, split(step.target): DIRECTORY}, emptied=step.path)
        elif step.kind == "sync_directory":
            self._force(step.path)
        else:
            assert step.kind == "ack"
            self.acks.add(step.path)

    def _rename(self, source: Entry, target: Entry) -> None:
        file = self.names[source]
        if source[0] == target[0]:
            self._change({source: None, target: file})
            return
        self._change({target: file})
        addition = len(self.changes) - 1
        self._change({source: None})
        if source[0] not in self._unread:
            self.changes[-1].loose += [addition, *self.changes[addition].loose]

    def _change(self, entries: dict[Entry, int | None], emptied: str | None = None) -> None:
        for entry, file in entries.items():
            if file is None:
                self.names.pop(entry, None)
            else:
                self.names[entry] = file
        seen = {entry: file for entry, file in entries.items() if entry[0] not in self._unread}
        after = [position for position, other in enumerate(self.changes) if not other.entries.keys().isdisjoint(seen)]
        above = {split(path) for directory, _ in seen for path in _chain(directory)}
        loose = [position for position, other in enumerate(self.changes) if not other.entries.keys().isdisjoint(above)]
        if emptied is not None:
            loose += [
                position
                for position, other in enumerate(self.changes)
                if any(emptied in _chain(directory) for directory, _ in other.entries)
            ]
        if seen:
            self.changes.append(Change(seen, after, loose))

    def _force(self, directory: str) -> None:
        for change in self.changes:
            if any(entry[0] == directory for entry in change.entries):
                self._force_change(change)
        # What is forced from the start on is part of the durable tree.
        while self.changes and self.changes[0].is_forced:
            _apply(self._durable, self.changes.pop(0))
            for change in self.changes:
                change.after = [position - 1 for position in change.after if position > 0]
                change.loose = [position - 1 for position in change.loose if position > 0]

    def _force_change(self, change: Change) -> None:
        if not change.is_forced:
            change.is_forced = True
            for position in self._implied(change):
                self._force_change(self.changes[position])

    def trees(self) -> Iterator[Tree]:
        """Return every tree that a crash may leave now."""
        forced = frozenset(position for position, change in enumerate(self.changes) if change.is_forced)
        free = [position for position in range(len(self.changes)) if position not in forced]
        for kept in self._legal(forced, free):
            yield from self._with_data(kept)

    def _legal(self, kept: frozenset[int], free: list[int]) -> Iterator[frozenset[int]]:
        """Add any of the free changes; what a change implies came before it."""
        if not free:
            yield kept
            return
        yield from self._legal(kept, free[1:])
        if kept.issuperset(self._implied(self.changes[free[0]])):
            yield from self._legal(kept | {free[0]}, free[1:])

    def _implied(self, change: Change) -> list[int]:
        return change.after if self._strict and change.is_forced else [*change.after, *change.loose]

    def _with_data(self, kept: frozenset[int]) -> Iterator[Tree]:
        names = dict(self._durable)
        for position in sorted(kept):
            _apply(names, self.changes[position])
        gone = {path for path in self._made if split(path) not in names}
        names = {
            entry: file for entry, file in names.items() if file != DIRECTORY and gone.isdisjoint(_chain(entry[0]))
        }
        open_files = sorted({file for file in names.values() if self.safe[file] < len(self.data[file])})
        for contents in itertools.product(*(self._contents(file) for file in open_files)):
            data = {**self.data, **dict(zip(open_files, contents, strict=True))}
            yield frozenset((place, name, data[file], file) for (place, name), file in names.items())

    def _contents(self, file: int) -> list[bytes]:
        data, safe = self.data[file], self.safe[file]
        cut = (safe + len(data)) // 2
        return list({data, data[:safe], data[:cut], data[:safe] + bytes(len(data) - safe)})


def shared_directories(threads: Iterable[list[Operation]]) -> set[str]:
    """Those that several processes use: mixed in another order, one might use what another makes later."""
    users: Counter[str] = Counter()
    for thread in threads:
        paths = {path for step in thread if step.kind != "ack" for path in (step.path, step.target)}
        users.update({directory for path in paths for directory in _chain(path)})
    return {directory for directory, count in users.items() if count > 1}


def _apply(names: dict[Entry, int], change: Change) -> None:
    for entry, file in change.entries.items():
        if file is None:
            names.pop(entry, None)
        else:
            names[entry] = file


def lay_out(tree: Iterable[tuple[str, str, bytes, int]], base: str) -> None:
    """Make a tree real. Names of one file become links."""
    made: dict[int, str] = {}
    for directory, name, data, file in sorted(tree):
        path = f"{base}/{directory}/{name}"
        if file in made:
            os.link(made[file], path)
            continue
        with open(path, "wb") as stream:
            stream.write(data)
        os.chmod(path, 0o640)  # as items have it: with another mode they would be repaired, too
        made[file] = path
