"""Which events a table has: ranges of sequence numbers, by writer and epoch.

    {"node-1": {3: [[1, 500], [601, 900]]}}    of the third start of node-1: 1 to 500 and 601 to 900, both included

A writer numbers its events without gaps, from 1 at each start (its epoch). So a range says which events are there
whatever file, batch or order they came in: events that are covered are dropped, and what is not covered is still to
be read. A segment that arrives late fills the hole it left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Range = tuple[int, int]


class Coverage:
    """Ranges of sequence numbers, by writer and epoch."""

    def __init__(self, ranges: Mapping[str, Mapping[int, Iterable[Range]]] | None = None) -> None:
        self._ranges: dict[str, dict[int, list[Range]]] = {
            writer: {int(epoch): [(int(first), int(last)) for first, last in some] for epoch, some in epochs.items()}
            for writer, epochs in (ranges or {}).items()
        }

    @classmethod
    def from_json(cls, value: Any) -> Coverage:
        """Return the coverage in a value that `to_json` made."""
        return cls(value or {})

    def to_json(self) -> dict[str, dict[str, list[list[int]]]]:
        """Return plain data."""
        return {
            writer: {str(epoch): [list(one) for one in some] for epoch, some in sorted(epochs.items())}
            for writer, epochs in sorted(self._ranges.items())
        }

    def ranges(self, writer: str, epoch: int) -> list[Range]:
        """Return the ranges of an epoch, in order."""
        return list(self._ranges.get(writer, {}).get(epoch, []))

    def __iter__(self) -> Iterator[tuple[str, int, Range]]:
        for writer, epochs in sorted(self._ranges.items()):
            for epoch, some in sorted(epochs.items()):
                for one in some:
                    yield writer, epoch, one

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Coverage) and self._ranges == other._ranges

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Coverage({self._ranges})"

    @property
    def count(self) -> int:
        """Return the number of events."""
        return sum(last - first + 1 for _, _, (first, last) in self)

    def add(self, writer: str, epoch: int, first: int, last: int) -> None:
        """Add a range; ranges that touch or overlap become one."""
        if last < first:
            return
        kept: list[Range] = []
        for low, high in self._ranges.get(writer, {}).get(epoch, []):
            if high + 1 < first or last + 1 < low:
                kept.append((low, high))
            else:
                first, last = min(low, first), max(high, last)
        self._ranges.setdefault(writer, {})[epoch] = sorted([*kept, (first, last)])

    def is_behind(self, writer: str, epoch: int, first: int) -> bool:
        """Whether later events of the writer are covered."""
        epochs = self._ranges.get(writer, {})
        return bool(epochs) and (max(epochs), epochs[max(epochs)][-1][1]) > (epoch, first)

    def epochs(self, writer: str) -> list[int]:
        """Return the epochs of a writer, in order."""
        return sorted(self._ranges.get(writer, ()))

    def writers(self) -> list[str]:
        """Return all writers, in order."""
        return sorted(self._ranges)

    def drop(self, writer: str, epoch: int) -> int:
        """Forget an epoch; return how many numbers were covered."""
        epochs = self._ranges.get(writer, {})
        some = epochs.pop(epoch, [])
        if not epochs:
            self._ranges.pop(writer, None)
        return sum(last - first + 1 for first, last in some)

    def missing(self, writer: str, epoch: int, first: int, last: int) -> list[Range]:
        """Return the parts of a range that are not covered."""
        found: list[Range] = []
        for low, high in self.ranges(writer, epoch):
            if high < first or low > last:
                continue
            if first < low:
                found.append((first, low - 1))
            first = high + 1
        if first <= last:
            found.append((first, last))
        return found

    def gaps(self) -> list[tuple[str, int, Range]]:
        """Return the ranges that are missing between others, or at the beginning of an epoch."""
        found: list[tuple[str, int, Range]] = []
        for writer, epochs in sorted(self._ranges.items()):
            for epoch, some in sorted(epochs.items()):
                found += [(writer, epoch, hole) for hole in self.missing(writer, epoch, 1, some[-1][1])]
        return found
