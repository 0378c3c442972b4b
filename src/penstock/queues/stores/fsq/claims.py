"""Claims: many jobs leased under one key, in a directory of the key's own.

The directory has its leases, as others have (`penstock.fsq.reserved`), and a file `key`, which is made last: until then
the claim doesn't exist, and what is in it goes back. Items whose lease ended went back into `queue`, and the name that
they got there is noted in `lost`: as long as an item has that name, nobody else has taken it, and it is still the
claim's. A claim is changed under the lock `.penstock/claim.lock`.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from penstock.fsq import files
from penstock.fsq.errors import FSQCannotLockError, FSQWorkItemError
from penstock.fsq.names import ItemName
from penstock.fsq.reserved import KEY_FILE, LOST, LockedItem, hold, key_name, leases_in, listed, readable
from penstock.fsq.snapshot import row
from penstock.job import JobState, StoredJob
from penstock.queues.stores.fsq.directory import QueueDirectory
from penstock.queues.stores.fsq.items import read_item, waiting_items
from penstock.queues.stores.fsq.leases import LeaseChanges
from penstock.queues.stores.fsq.names import ItemToken, stored
from penstock.queues.stores.fsq.own_files import write_whole


class Under(NamedTuple):
    """An item that a claim has."""

    path: str
    name: ItemName  # as it was claimed
    mark: str | None = None  # where it is noted that it went back into `queue`


class FsqClaims:
    """The claims of one queue."""

    def __init__(self, queue_dir: QueueDirectory, keep: bool) -> None:
        self._queue_dir = queue_dir
        self._area = queue_dir.area
        self._keep = keep

    def claim(self, key: str, count: int, until_ms: int) -> list[StoredJob]:
        """Reserve jobs under a key, or return those that it has."""
        name = key_name(key)
        with self._queue_dir.claims_locked():
            if self._is_made(name):
                return self._again(name, until_ms, is_read=True)[1]
            self._undo(name)
            return self._begin(key, name, count, until_ms) if count else []

    def _begin(self, key: str, name: str, count: int, until_ms: int) -> list[StoredJob]:
        lease = self._area.new_lease(until_ms, name)
        token = os.path.basename(lease)
        jobs: list[StoredJob] = []
        with LeaseChanges(self._queue_dir, self._keep) as changes:
            for item in waiting_items(self._queue_dir):
                self._area.take_back_note(item.name)
                leased = changes.into(item.path, lease, item.name)
                mine = str(ItemToken(token, leased.tries, name))
                jobs.append(stored(leased, item.data, item.status, JobState.RESERVED, until_ms, mine))
                if len(jobs) == count:
                    break
        if jobs:
            write_whole(f"{self._area.claim}/{name}/{KEY_FILE}", key.encode("utf-8", "surrogatepass"), is_safe=True)
            files.disk.sync_directory(f"{self._area.claim}/{name}")
        return jobs

    def _undo(self, name: str) -> None:
        """Return the jobs of a claim that was never completed: its process was killed, so nobody knows of them."""
        with LeaseChanges(self._queue_dir, self._keep) as changes:
            for under in self._under(name):
                changes.give_back(under.path, under.name, under.name.tries, None)
        self._remove(name)

    def _under(self, name: str) -> list[Under]:
        """What a claim has, oldest first."""
        directory = f"{self._area.claim}/{name}"
        found = []
        for lease in leases_in(directory, listed(directory)):
            for file in listed(lease.path):
                item = readable(file)
                if item is not None:
                    found.append(Under(f"{lease.path}/{file}", item))
        for file in listed(f"{directory}/{LOST}"):
            item = readable(file)
            if item is not None:
                before = item._replace(tries=item.tries - 1)
                found.append(Under(f"{self._area.queue}/{file}", before, f"{directory}/{LOST}/{file}"))
        return sorted(found, key=lambda under: row(str(under.name)))

    def _at_hand(self, name: str) -> Iterator[Under]:
        """What a claim still has; an item that went back is locked meanwhile, so that nobody takes it."""
        for under in self._under(name):
            held: LockedItem | None = None
            try:
                held = hold(under.path) if under.mark is not None else None
            except (FileNotFoundError, FSQCannotLockError, FSQWorkItemError):
                files.remove_if_there(under.mark or "")
                continue
            try:
                yield under
            finally:
                if held is not None:
                    os.close(held.fd)
            if under.mark is not None:
                files.remove_if_there(under.mark)

    def _again(self, name: str, until_ms: int, is_read: bool) -> tuple[int, list[StoredJob]]:
        """Renew the leases of a claim; return how many there are, and the jobs if they are wanted."""
        lease = self._area.new_lease(until_ms, name)
        count, jobs = 0, []
        with LeaseChanges(self._queue_dir, self._keep) as changes:
            for under in self._at_hand(name):
                try:
                    leased = changes.into(under.path, lease, under.name)
                except FileNotFoundError:
                    continue
                changes.left(under.path)
                count += 1
                if is_read:
                    token = str(ItemToken(os.path.basename(lease), leased.tries, name))
                    data, status = read_item(f"{lease}/{leased}")
                    jobs.append(stored(leased, data, status, JobState.RESERVED, until_ms, token))
        return count, jobs

    def extend(self, key: str, until_ms: int) -> int:
        """Keep what a claim has; return how many there are."""
        name = key_name(key)
        with self._queue_dir.claims_locked():
            return self._again(name, until_ms, is_read=False)[0] if self._is_made(name) else 0

    def ack(self, key: str) -> list[str]:
        """End what a claim has, and the claim; return the ids."""
        name = key_name(key)
        ended = []
        with self._queue_dir.claims_locked():
            if self._is_made(name):
                with LeaseChanges(self._queue_dir, self._keep) as changes:
                    ended = [under.name.job_id for under in self._at_hand(name) if changes.end(under.path)]
                self._remove(name)
        return ended

    def nack(self, key: str, mature_ms: int | None) -> int:
        """Return the jobs of a claim to the queue, and end the claim; return how many there were."""
        name = key_name(key)
        count = 0
        with self._queue_dir.claims_locked():
            if self._is_made(name):
                with LeaseChanges(self._queue_dir, self._keep) as changes:
                    for under in self._at_hand(name):
                        is_back = under.mark is not None and mature_ms is None
                        count += is_back or changes.give_back(under.path, under.name, under.name.tries + 1, mature_ms)
                self._remove(name)
        return count

    def _is_made(self, name: str) -> bool:
        return files.exists(f"{self._area.claim}/{name}/{KEY_FILE}")

    def _remove(self, name: str) -> None:
        """Remove a claim. What came into it meanwhile stays, and comes back with its lease."""
        directory = f"{self._area.claim}/{name}"
        if files.remove_if_there(f"{directory}/{KEY_FILE}"):
            files.disk.sync_directory(directory)
        for file in listed(f"{directory}/{LOST}"):
            files.remove_if_there(f"{directory}/{LOST}/{file}")
        for inner in [*(f"{directory}/{one}" for one in listed(directory)), directory]:
            with suppress(OSError):
                files.disk.remove_directory(inner)
