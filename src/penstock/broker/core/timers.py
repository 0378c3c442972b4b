"""Timers: a wheel of lists in place of a heap.

Most timers are cancelled long before they are due (an acknowledged job never retries), so setting and cancelling must
cost next to nothing, and order matters only shortly before the time comes. Items wait unsorted in slots of 128 ms; when
a slot's time comes it is sorted into `_due`.

Cancelling leaves a dead entry behind. A slot that is more than half dead is swept, so that at most about as many dead
entries as live ones are kept, at a constant cost per cancel. An entry is alive while its item's `wake_at` falls into
the slot it stands in.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

SLOT_BITS: Final = 7  # 128 ms: at 200,000 new timers a second a slot sorts in a few milliseconds


class Timed:
    """What can be scheduled: `wake_at` is the time it is due, 0 while it isn't scheduled."""

    __slots__ = ("wake_at",)

    def __init__(self, wake_at: int) -> None:
        self.wake_at = wake_at


class Slot:
    """What waits for one stretch of time, and how many of the entries are dead."""

    __slots__ = ("dead", "items", "key", "may_repeat")

    def __init__(self, key: int) -> None:
        self.key = key
        self.items: list[Timed] = []
        self.dead = 0
        self.may_repeat = False  # an item was moved here, and may have an entry from an earlier time


class Timers:
    """Everything of a node that will happen at a known time."""

    __slots__ = ("_due", "_keys", "_now_key", "_sequence", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}
        self._keys: list[int] = []  # heap of the slots' keys
        self._due: list[tuple[int, int, Timed]] = []  # heap of the current slot and what is overdue
        self._now_key = 0
        self._sequence = 0

    def set(self, item: Timed, at_ms: int) -> None:
        """Schedule an item, or move it."""
        if item.wake_at:
            if item.wake_at >> SLOT_BITS == at_ms >> SLOT_BITS > self._now_key:
                item.wake_at = at_ms
                return
            self.cancel(item)
        item.wake_at = at_ms
        if at_ms >> SLOT_BITS > self._now_key:
            slot = self.slot(at_ms)
            slot.items.append(item)
            slot.may_repeat = True
        else:
            self._sequence += 1
            heappush(self._due, (at_ms, self._sequence, item))

    def slot(self, at_ms: int) -> Slot:
        """Return the slot of a future time; the caller appends items whose `wake_at` is that time."""
        key = at_ms >> SLOT_BITS
        assert key > self._now_key
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = Slot(key)
            heappush(self._keys, key)
        return slot

    def cancel(self, item: Timed) -> None:
        """Forget an item; harmless if it isn't scheduled."""
        slot = self._slots.get(item.wake_at >> SLOT_BITS)
        item.wake_at = 0
        if slot is not None:  # else it is in the due heap, and skipped when it is popped
            slot.dead += 1
            if slot.dead * 2 >= len(slot.items):
                self._sweep(slot)

    def _sweep(self, slot: Slot) -> None:
        """Let the dead entries go, and all but one of an item that left the slot and came back."""
        key = slot.key
        alive = [item for item in slot.items if item.wake_at >> SLOT_BITS == key]
        slot.items = list(dict.fromkeys(alive)) if slot.may_repeat else alive
        slot.dead = 0

    def pop_due(self, now_ms: int, most: int) -> Iterator[Timed]:
        """Yield at most `most` items that are due, earliest first; each is unscheduled as it is yielded."""
        self._turn(now_ms)
        due = self._due
        while due and due[0][0] <= now_ms and most > 0:
            at_ms, _, item = heappop(due)
            if item.wake_at == at_ms:
                item.wake_at = 0
                most -= 1
                yield item

    def next_ms(self) -> int | None:
        """Return when to call `pop_due` next, or None while nothing is scheduled."""
        due, keys = self._due, self._keys
        while due and due[0][2].wake_at != due[0][0]:
            heappop(due)
        if due:
            return due[0][0]
        return keys[0] << SLOT_BITS if keys else None

    def _turn(self, now_ms: int) -> None:
        """Sort the slots whose time has come into the due heap."""
        self._now_key = max(self._now_key, now_ms >> SLOT_BITS)
        keys = self._keys
        while keys and keys[0] <= self._now_key:
            key = heappop(keys)
            fresh = []
            for item in self._slots.pop(key).items:
                if item.wake_at >> SLOT_BITS == key:
                    self._sequence += 1
                    fresh.append((item.wake_at, self._sequence, item))
            if self._due:
                for entry in fresh:
                    heappush(self._due, entry)
            else:
                heapify(fresh)
                self._due = fresh
