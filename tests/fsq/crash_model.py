"""What a power failure may leave of a directory tree, from a record of the system calls.

A `RecordingDisk` does the real thing and writes down what it did. `Left` plays such a record up to any point and gives
every tree that a disk may hold after a crash there, by these rules:

- Data that was not synced may be missing, cut off anywhere, or zeros of the full length.
- A change of names (create, link, unlink, rename) that no sync of its directory has followed may be on the disk or
  not, whatever became of others; but of changes to one name, the later implies the earlier.
- A rename within a directory is one change. Between two directories it is two, of which the removal implies the
  addition: a rename never loses a file, though after a crash both names may be there.
- A sync of a directory forces the changes made in it before. A sync of a file forces its data, and no name.

`strict` models a disk that is worse than those we know: there, syncing the directory that a file was renamed out of
forces the removal without the addition, and the file may be gone. One process alone can keep its files even so, by the
order of its syncs; several can't, since any of them may sync the directory at the wrong moment.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from penstock.fsq.files import Disk

Entry = tuple[str, str]  # directory, name
Tree = frozenset[tuple[str, str, bytes, int]]  # directory, name, data, which file it is


@dataclass(frozen=True)
class Operation:
    """One system call, or the point where a caller is told that something is done (`ack`)."""

    kind: str
    path: str = ""
    target: str = ""
    file: int = 0
    data: bytes = b""


class RecordingDisk(Disk):
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
        super().rename(source, target)
        self.record.append(Operation("rename", self._short(source), self._short(target)))

    def sync_directory(self, path: str) -> None:
        self.record.append(Operation("sync_directory", self._short(path)))

    def ack(self, what: str) -> None:
        self.record.append(Operation("ack", what))

    def take(self) -> list[Operation]:
        """Give the record since the last time."""
        record, self.record = self.record, []
        return record


@dataclass
class Change:
    """Names that change together: each leads to a file from now on, or to none."""

    entries: dict[Entry, int | None]
    after: list[int] = field(default_factory=list)  # positions of changes to the same names that this one implies
    addition: int | None = None  # position of the other half of a rename
    is_forced: bool = False


def split(path: str) -> Entry:
    directory, _, name = path.rpartition("/")
    return directory, name


class Left:
    """Plays a record, and gives what a crash leaves at the point it has come to."""

    def __init__(self, start: dict[str, bytes], strict: bool = False) -> None:
        """Begin with a tree that is all on the disk, given by paths."""
        self._strict = strict
        self.names: dict[Entry, int] = {}
        self.data: dict[int, bytes] = {}
        self.safe: dict[int, int] = {}  # how many bytes of each file are synced
        self.acks: set[str] = set()
        self.changes: list[Change] = []
        self._durable: dict[Entry, int] = {}
        for number, (path, data) in enumerate(start.items()):
            file = -1 - number
            self.names[split(path)] = self._durable[split(path)] = file
            self.data[file], self.safe[file] = data, len(data)

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
        self.changes[-1].addition = addition

    def _change(self, entries: dict[Entry, int | None]) -> None:
        after = [
            position for position, other in enumerate(self.changes) if not other.entries.keys().isdisjoint(entries)
        ]
        self.changes.append(Change(entries, after))
        for entry, file in entries.items():
            if file is None:
                self.names.pop(entry, None)
            else:
                self.names[entry] = file

    def _force(self, directory: str) -> None:
        for change in self.changes:
            if any(entry[0] == directory for entry in change.entries):
                self._force_change(change)
        # What is forced from the start on is part of the durable tree.
        while self.changes and self.changes[0].is_forced:
            _apply(self._durable, self.changes.pop(0))
            for change in self.changes:
                change.after = [position - 1 for position in change.after if position > 0]
                if change.addition is not None:
                    change.addition = change.addition - 1 if change.addition > 0 else None

    def _force_change(self, change: Change) -> None:
        if not change.is_forced:
            change.is_forced = True
            for position in self._implied(change):
                self._force_change(self.changes[position])

    def trees(self) -> Iterator[Tree]:
        """Give every tree that a crash may leave now."""
        free = [position for position, change in enumerate(self.changes) if not change.is_forced]
        for size in range(len(free) + 1):
            for chosen in itertools.combinations(free, size):
                kept = {position for position, change in enumerate(self.changes) if change.is_forced} | set(chosen)
                if all(kept.issuperset(self._implied(self.changes[position])) for position in kept):
                    yield from self._with_data(kept)

    def _implied(self, change: Change) -> list[int]:
        if change.addition is None or (self._strict and change.is_forced):
            return change.after
        return [*change.after, change.addition]

    def _with_data(self, kept: set[int]) -> Iterator[Tree]:
        names = dict(self._durable)
        for position in sorted(kept):
            _apply(names, self.changes[position])
        open_files = sorted({file for file in names.values() if self.safe[file] < len(self.data[file])})
        for contents in itertools.product(*(self._contents(file) for file in open_files)):
            data = {**self.data, **dict(zip(open_files, contents, strict=True))}
            yield frozenset((place, name, data[file], file) for (place, name), file in names.items())

    def _contents(self, file: int) -> list[bytes]:
        data, safe = self.data[file], self.safe[file]
        cut = (safe + len(data)) // 2
        return list({data, data[:safe], data[:cut], data[:safe] + bytes(len(data) - safe)})


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
        made[file] = path
