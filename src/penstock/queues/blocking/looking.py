# Written by scripts/blocking from ../aio/looking.py: change that, then run `make blocking`.
"""What is in a queue, and how to tidy it up."""

from collections.abc import Callable, Iterator
from typing import Any

from penstock.errors import CallerError
from penstock.job import JobState, Move, Sizes
from penstock.queues.blocking.ending import Ending, stored_body
from penstock.queues.blocking.job import Job
from penstock.queues.blocking.stats.base import shown
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letter import FROM_QUEUE, from_dead_letters

PAGE = 500  # jobs looked at in one round trip


class Looking(Ending):
    """`peek`, `size`, `remove`, `redrive`, `purge` and their kin."""

    def peek(self, count: int = 10, *, state: JobState | str | None = JobState.READY) -> list[Job]:
        """Look at the first jobs of a state (None for all states) without touching them."""
        self._require(Capability.PEEK)
        if count < 1:
            raise CallerError(f"count={count}: look at one job at least")
        page = self._driver.peek(self.name, _checked(state), count)
        return [Job(self, stored) for stored in page.jobs[:count]]  # a page may have more than was asked for

    def jobs(self, *, state: JobState | str | None = None) -> Iterator[Job]:
        """Look at all jobs of a state, or of all states, a page at a time. Jobs may come and go meanwhile."""
        self._require(Capability.PEEK)
        checked = _checked(state)
        cursor = None
        while True:
            page = self._driver.peek(self.name, checked, PAGE, cursor)
            for stored in page.jobs:
                yield Job(self, stored)
            if page.cursor is None:
                return
            cursor = page.cursor

    def remove(self, *ids: str) -> list[bool]:
        """Remove jobs that wait; gives for each whether it was there. Reserved jobs stay."""
        self._require(Capability.REMOVE)
        removed: list[bool] = []
        for begin in range(0, len(ids), self._driver.batch_max):
            removed += self._driver.remove(self.name, ids[begin : begin + self._driver.batch_max])
        return removed

    def purge(self) -> int:
        """Remove all jobs that nobody has reserved; gives how many."""
        return self._driver.purge(self.name)

    def redrive(
        self,
        where: Callable[[Job], bool] | None = None,
        *,
        to: str | None = None,
        limit: int | None = None,
        moved: Callable[[int], object] = lambda count: None,
    ) -> int:
        """Send dead letters back to the queues that they came from, or to another one; gives how many.

        Called on the queue of dead letters. `where` chooses; jobs that came from no queue stay unless `to` is given.
        `moved` hears of each page how many went.
        """
        self._require(Capability.PEEK)
        if to == self.name:
            raise CallerError(f"{to!r} is the queue itself: its jobs would never end to come")
        done = 0
        cursor = None
        while limit is None or done < limit:
            page = self._driver.peek(self.name, None, PAGE, cursor)
            chosen: dict[str, list[Move]] = {}
            room = len(page.jobs) if limit is None else limit - done
            for stored in page.jobs:
                home = to or stored.headers.get(FROM_QUEUE)
                is_chosen = home != self.name and (where is None or where(Job(self, stored)))
                if room > 0 and home and stored.state is not JobState.RESERVED and is_chosen:
                    chosen.setdefault(str(home), []).append(from_dead_letters(stored, stored_body(stored)))
                    room -= 1
            before = done
            for home, moves in chosen.items():
                done += sum(self._move(home, moves, None))
            moved(done - before)
            cursor = page.cursor
            if cursor is None:
                break
        return done

    def sizes(self) -> Sizes:
        """All sizes at once."""
        return self._driver.sizes(self.name)

    def size(self) -> int:
        """How many jobs are ready."""
        return self._driver.ready(self.name)

    def total(self) -> int:
        """How many jobs there are."""
        return (self._driver.sizes(self.name)).total

    def scheduled(self) -> int:
        """How many jobs wait for their time."""
        return (self._driver.sizes(self.name)).scheduled

    def reserved(self) -> int | None:
        """How many jobs are in the hands of workers; None where the store can't tell."""
        return (self._driver.sizes(self.name)).reserved

    def next_mature(self) -> float | None:
        """When the next job is ready, as unix time; None for an empty queue, and where jobs have no times."""
        if Capability.DELAY not in self.store.capabilities:
            return None
        next_ms = self._driver.next_mature_ms(self.name)
        return None if next_ms is None else next_ms / 1000

    def stats(self) -> dict[str, Any]:
        """Return the counters `push`, `pop`, `reserve`, `ack`, `nack`, `dead_letter`, and `paused` and `type`.

        On our broker there is `expired`, too. They are exact where the store counts by itself. Where statistics are
        kept elsewhere, those of other processes may be 100 ms old.
        """
        self.store._counting_of(self.name).flush()
        self._services.open()
        counters = shown(self._services.stats.counters(self.name))
        own = self._driver.counters(self.name)
        return {**counters, **own, "paused": self.paused(), "type": self.type}


def _checked(state: JobState | str | None) -> JobState | None:
    try:
        return None if state is None else JobState(state)
    except ValueError as problem:
        raise CallerError(f"there is no state {state!r}; the states are {', '.join(JobState)}") from problem
