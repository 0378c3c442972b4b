"""Ack, nack and extend: each is a rename out of the directory that the token names.

The rename is the check of the token: if the item is not there, nothing is changed.
"""

import os
from collections.abc import Sequence

from penstock.fsq import files, reserved
from penstock.fsq.files import Steps
from penstock.fsq.names import ItemName
from penstock.fsq.reserved import put_into_queue
from penstock.job import Lease
from penstock.queues.stores.fsq.directory import QueueDirectory
from penstock.queues.stores.fsq.names import ItemToken, item_of, read_token

_MAKING_TRIES = 5  # to make a directory that another process removes at the same time, since it was empty


class LeaseChanges:
    """Changes leases, one by one, and syncs all that it touched at the end of its block."""

    def __init__(self, queue_dir: QueueDirectory, keep: bool) -> None:
        self.queue_dir = queue_dir
        self.area = queue_dir.area
        self.steps = Steps()
        self._keep = keep
        self._is_any_ready = self._is_any_parked = False
        # Directories for leases that are made longer, by their end, their claim, and whether they have begun.
        self._made: dict[tuple[int, str | None, int], str] = {}
        self._counts: dict[str, int] = {}  # of items in them

    def __enter__(self) -> "LeaseChanges":
        self.steps.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self.steps.__exit__(None, None, None)
        for directory, count in self._counts.items():
            self.queue_dir.lease_dirs.filled(directory, count)
        if self._is_any_parked:
            self.area.tell_news()
        if self._is_any_ready:
            self.queue_dir.pull_trigger()

    def left(self, where: str) -> None:
        """Note that an item has left its directory of leases."""
        # The reservation was not synced: the name in `queue` might come back after a power failure.
        self.steps.touch(self.area.queue)
        self._clear(os.path.dirname(where))

    def _clear(self, directory: str) -> None:
        if directory.startswith(self.area.side) and not self.queue_dir.lease_dirs.emptied(directory):
            self.steps.empty(directory)

    def end(self, where: str) -> bool:
        """Move an item to `done` if those are kept, else remove it. False if it isn't there."""
        try:
            if self._keep:
                self.steps.move(where, f"{self.area.done}/{os.path.basename(where)}")
            else:
                self.steps.remove(where)
        except (FileNotFoundError, NotADirectoryError):
            return False
        self.left(where)
        return True

    def give_back(self, where: str, name: ItemName, tries: int, mature_ms: int | None) -> bool:
        """Return an item to the queue, at once or at a time. False if it isn't there."""
        try:
            if mature_ms is None:
                for file in put_into_queue(self.area, where, name, tries, self.steps):
                    self.queue_dir.ready_names.put(file)
            else:
                directory = self.area.parking(mature_ms)
                self.into(where, directory, name, tries)
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._is_any_ready |= mature_ms is None
        self._is_any_parked |= mature_ms is not None
        self.left(where)
        return True

    def into(self, where: str, directory: str, name: ItemName, tries: int | None = None) -> ItemName:
        """Rename an item into a directory, made if it is missing; return the item's name there."""
        attempts = 0
        while True:
            attempts += 1
            self.area.make(directory)
            free = self.area.free(directory, name, name.tries if tries is None else tries)
            try:
                self.steps.move(where, f"{directory}/{free}")
            except FileNotFoundError:
                if attempts == _MAKING_TRIES or not files.exists(where):
                    raise
            else:
                return free

    def begin(self, lease: Lease) -> None:
        """Note that work on an item has begun; nothing if it isn't there, or was noted before."""
        token = read_token(lease.token)
        where = self.queue_dir.leased(lease.id, token)
        if where is None or not reserved.ahead_of(os.path.dirname(where)) or not files.exists(where):
            return
        directory = reserved.begun(os.path.dirname(where))
        self.queue_dir.lease_dirs.add(directory)
        try:
            files.disk.rename(where, f"{directory}/{os.path.basename(where)}")
        except (FileNotFoundError, NotADirectoryError):
            self._clear(directory)
        else:
            self._clear(os.path.dirname(where))

    def extend(self, lease: Lease, until_ms: int, has_begun: bool = False) -> str | None:
        """Extend the lease of an item; return the new token, or None if it isn't there."""
        token = read_token(lease.token)
        where = self.queue_dir.leased(lease.id, token)
        name = None if token is None else item_of(lease.id, token.tries)
        if where is None or token is None or name is None or not files.exists(where):
            return None
        group = until_ms, token.key, 0 if has_begun else reserved.ahead_of(os.path.dirname(where))
        if group not in self._made:
            self._made[group] = self.area.new_lease(*group)
            if token.key is None:
                self.queue_dir.lease_dirs.make(self._made[group])
                self.steps.lead(self.area.lease)
        directory = self._made[group]
        try:
            name = self.into(where, directory, name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        self._clear(os.path.dirname(where))
        self._counts[directory] = self._counts.get(directory, 0) + 1
        return str(ItemToken(os.path.basename(directory), name.tries, token.key))


def ack(queue_dir: QueueDirectory, leases: Sequence[Lease], keep: bool, begun: Sequence[Lease] = ()) -> list[bool]:
    """Acknowledge jobs; note that work on those of `begun` has begun."""
    with LeaseChanges(queue_dir, keep) as changes:
        for lease in begun:
            changes.begin(lease)
        found = [queue_dir.leased(lease.id, read_token(lease.token)) for lease in leases]
        return [where is not None and changes.end(where) for where in found]


def give_back(
    queue_dir: QueueDirectory, leases: Sequence[Lease], matures_ms: Sequence[int | None], more_tries: int
) -> list[bool]:
    """Return jobs to the queue, each at once (None) or at a time, with `more_tries` added to its tries."""
    done = []
    with LeaseChanges(queue_dir, keep=False) as changes:
        for lease, mature_ms in zip(leases, matures_ms, strict=True):
            token = read_token(lease.token)
            where = queue_dir.leased(lease.id, token)
            name = None if token is None else item_of(lease.id, token.tries)
            done.append(
                where is not None
                and name is not None
                and changes.give_back(where, name, name.tries + more_tries, mature_ms)
            )
    return done
