"""One queue: its directories, what is known of them, and how items that are due are brought back."""

import contextlib
from collections.abc import Iterator

from penstock.fsq import control, files, installing, path, reserved
from penstock.fsq.errors import FSQError, FSQInstallError
from penstock.fsq.reserved import (
    KEY_NAME,
    MINUTE_MS,
    LeaseDirectory,
    Parked,
    ReservedArea,
    ahead_of,
    begun,
    leases_in,
    listed,
    parked_in,
    readable,
)
from penstock.queues.stores.fsq.lease_dirs import LeaseDirPool
from penstock.queues.stores.fsq.listing import Listing, ReadyNames
from penstock.queues.stores.fsq.names import ItemToken, directory_of, due_ms, item_of
from penstock.queues.stores.fsq.own_files import locked


class QueueDirectory:
    """A queue's directory, as one driver knows it."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.fsq_queue = directory_of(queue)
        self.area = ReservedArea(path.base(self.fsq_queue))
        self.ready_names = ReadyNames(self.area.queue)
        self.lease_dirs = LeaseDirPool(self.area)
        self._leases = Listing(self.area.lease)
        self._claims = Listing(self.area.claim)
        self._leases_of: dict[str, Listing] = {}  # of each claim
        self._minutes = Listing(self.area.later)
        self._parked_in: dict[str, Listing] = {}  # of each minute

    def is_there(self) -> bool:
        """Whether the queue is installed."""
        return files.is_directory(self.area.queue)

    def install(self) -> None:
        """Make the queue, unless it is there."""
        if self.is_there():
            return
        try:
            installing.install(self.fsq_queue)
        except FSQInstallError:
            if not self.is_there():  # otherwise another process was faster
                raise
        self.area.make(self.area.lease)
        self.area.make(self.area.later)

    def is_down(self) -> bool:
        """Whether jobs are held back."""
        return control.is_down(self.fsq_queue)

    def pull_trigger(self) -> None:
        """Wake scanners that wait at the queue's trigger, if it has one and they are there."""
        with contextlib.suppress(FSQError):
            control.trigger_pull(self.fsq_queue, ignore_listener=True)

    @contextlib.contextmanager
    def claims_locked(self) -> Iterator[None]:
        """Keep other processes from changing claims."""
        self.area.make(self.area.claim)
        with locked(f"{self.area.side}/claim.lock"):
            yield

    # What is set aside

    def leases(self, must_know: bool) -> Iterator[LeaseDirectory]:
        """The directories of reserved items, those of claims included."""
        yield from leases_in(self.area.lease, self._leases.names(must_know))
        keys = self._claims.names(must_know)
        for key in keys:
            if KEY_NAME.fullmatch(key):
                listing = self._leases_of.setdefault(key, Listing(f"{self.area.claim}/{key}"))
                yield from leases_in(listing.directory, listing.names(must_know), key)
        if len(self._leases_of) > 2 * len(keys) + 10:
            self._leases_of = {key: self._leases_of[key] for key in keys if key in self._leases_of}

    def parked(self, until_ms: int | None, must_know: bool) -> Iterator[Parked]:
        """The directories of items that wait for their time: all, or those of the minutes up to a time."""
        minutes = sorted(int(minute) for minute in self._minutes.names(must_know) if minute.isdecimal())
        for minute in minutes:
            if until_ms is None or minute * MINUTE_MS <= until_ms:
                yield from self._parked_of(str(minute), must_know)
        if len(self._parked_in) > 2 * len(minutes) + 10:
            kept = set(map(str, minutes))
            self._parked_in = {one: listing for one, listing in self._parked_in.items() if one in kept}

    def _parked_of(self, minute: str, must_know: bool) -> Iterator[Parked]:
        listing = self._parked_in.setdefault(minute, Listing(f"{self.area.later}/{minute}"))
        yield from parked_in(listing.directory, listing.names(must_know))

    def first_parked_ms(self) -> int | None:
        """When the first of those that wait for their time is due."""
        for minute in sorted(int(name) for name in self._minutes.names(must_know=True) if name.isdecimal()):
            times = [parked.mature_ms for parked in self._parked_of(str(minute), must_know=True) if listed(parked.path)]
            if times:
                return min(times)
        return None

    def bring_back(self, now_ms: int, must_know: bool, but: str | None = None) -> bool:
        """Bring back what is due, except the items of one claim; return whether there was any."""
        ended = [
            lease for lease in self.leases(must_know) if lease.until_ms <= now_ms and (but is None or lease.key != but)
        ]
        due = [parked for parked in self.parked(now_ms, must_know) if parked.mature_ms <= now_ms]
        if not ended and not due:
            return False
        back = reserved.end_leases(self.area, ended) + reserved.unpark(self.area, due)
        for name in back:
            self.ready_names.put(name)
        if back:
            self.pull_trigger()
        return bool(back)

    # Where a job is

    def leased(self, job_id: str, token: ItemToken | None) -> str | None:
        """Return where the item of a lease is, if the lease still holds."""
        name = None if token is None else item_of(job_id, token.tries)
        if name is None or token is None:
            return None
        above = self.area.lease if token.key is None else f"{self.area.claim}/{token.key}"
        where = f"{above}/{token.directory}/{name}"
        if not ahead_of(token.directory) or files.exists(where):
            return where
        return f"{above}/{begun(token.directory)}/{name}"  # work on it has begun

    def waiting(self, job_ids: list[str]) -> dict[str, str]:
        """Return where the items of waiting jobs are: searched first where they most likely are, then everywhere."""
        found = {}
        for job_id in set(job_ids):
            where = self._likely(job_id)
            if where is not None:
                found[job_id] = where
        rest = {job_id for job_id in job_ids if job_id not in found and item_of(job_id) is not None}
        if rest:
            for directory in [self.area.queue, *(parked.path for parked in self.parked(None, must_know=True))]:
                found.update(_search(directory, rest))
        return found

    def _likely(self, job_id: str) -> str | None:
        name = item_of(job_id)
        if name is None:
            return None
        places = [f"{self.area.queue}/{name.again(tries)}" for tries in range(_LIKELY_TRIES)]
        for where in [*places, f"{self.area.parking(due_ms(name))}/{name.again(0)}"]:
            if files.exists(where):
                return where
        return None

    def existing(self, job_ids: set[str]) -> set[str]:
        """Return those of these jobs that are not ended; the cheapest searches come first."""
        found = {job_id for job_id in job_ids if self._likely(job_id) is not None}
        found |= self._reserved(job_ids - found)
        found |= set(self.waiting(list(job_ids - found)))
        # One may have been taken between the two searches.
        return found | self._reserved(job_ids - found)

    def _reserved(self, job_ids: set[str]) -> set[str]:
        found: set[str] = set()
        if job_ids:
            for lease in self.leases(must_know=True):
                found.update(_search(lease.path, job_ids))
        return found


_LIKELY_TRIES = 4


def _search(directory: str, job_ids: set[str]) -> dict[str, str]:
    """Return which of these jobs are in a directory, and where."""
    found = {}
    # Most names begin otherwise, and need not be parsed.
    starts = {job_id[:_START] for job_id in job_ids}
    with contextlib.suppress(FileNotFoundError), files.entries(directory) as entries:
        for entry in entries:
            name = readable(entry.name) if entry.name[:_START] in starts else None
            if name is not None and name.job_id in job_ids:
                found[name.job_id] = f"{directory}/{entry.name}"
    return found


_START = 12  # characters of a name: the delimiter and most of the time
