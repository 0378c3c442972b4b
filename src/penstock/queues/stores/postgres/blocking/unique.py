# Written by scripts/blocking from ../aio/unique.py: change that, then run `make blocking`.
"""Unique keys in PostgreSQL: table `penstock_unique`, and the trigger that notes the ends of jobs (`sql`, rule 8)."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from penstock.codec import to_json
from penstock.errors import StoreError
from penstock.job import NewJob
from penstock.queues.stores.postgres.blocking.link import Run
from penstock.queues.stores.postgres.blocking.pool import Pool
from penstock.queues.stores.postgres.blocking.tables import KeussTable, Tables
from penstock.queues.stores.postgres.element import batch, id_batch
from penstock.queues.stores.postgres.sql import (
    HAS_TRIGGER,
    IS_THERE,
    REMOVE_FREE_KEYS,
    RETAKE,
    UNIQUE_TABLE,
    trigger,
)

REMOVAL_EVERY = 1000  # pushed keys between two removals of keys that are free
_REMOVED_MAX = 2000  # twice as many, so that they never pile up
_TRIGGER_RETRY_S = 60.0  # between two attempts to make a trigger


class PostgresUniqueKeys:
    """The unique keys of one store."""

    def __init__(self, pool: Pool, tables: Tables) -> None:
        self._pool = pool
        self._tables = tables
        self._triggers: dict[str, float] = {}  # when each queue's trigger was last looked for
        self._pushed = 0

    def push(self, run: Run, table: KeussTable, jobs: Sequence[NewJob], shift: str, channel: str | None) -> list[str]:
        """Store jobs; return their ids, or the id of the job that has the key."""
        self._make_trigger(table)
        ids = self._push(run, table, jobs, shift, channel)
        mine = {job.id for job in jobs}
        taken = [place for place, job_id in enumerate(ids) if job_id not in mine]
        if taken:
            keys = sorted({jobs[place].unique or "" for place in taken})
            records = batch(f'{{"k":{to_json(key)}}}' for key in keys)
            noted = run(table, table.sql.missed_ends, shift, records, table.queue)
            if noted[0][0]:
                again = self._push(run, table, [jobs[place] for place in taken], shift, channel)
                for place, job_id in zip(taken, again, strict=True):
                    ids[place] = job_id
        self._remove_free(len(jobs), shift)
        return ids

    @staticmethod
    def _push(run: Run, table: KeussTable, jobs: Sequence[NewJob], shift: str, channel: str | None) -> list[str]:
        records = batch([job.prepared for job in jobs])
        return [row[0] for row in run(table, table.sql.push_unique, shift, records, channel, table.queue)]

    def _make_trigger(self, table: KeussTable) -> None:
        """Make the trigger, unless it is there. Without the right to, or while the table is busy, keys work without."""
        self._tables.make_own(UNIQUE_TABLE)
        tried = self._triggers.get(table.queue)
        if tried is not None and time.monotonic() - tried < _TRIGGER_RETRY_S:
            return
        self._triggers[table.queue] = time.monotonic()
        if not table.is_known:
            self._tables.find(table, True)
        if not (self._pool.run(HAS_TRIGGER, table.sql.table))[0][0]:
            with suppress(StoreError):
                self._tables.create(trigger(table.sql.table))

    def _remove_free(self, pushed: int, shift: str) -> None:
        self._pushed += pushed
        if self._pushed >= REMOVAL_EVERY:
            self._pushed = 0
            self._pool.run(REMOVE_FREE_KEYS, shift, str(_REMOVED_MAX))

    def retake(self, queue: str, ids: Iterable[str]) -> None:
        """The keys of jobs that are back in the queue are taken again."""
        if (self._pool.run(IS_THERE, UNIQUE_TABLE))[0][0]:
            self._pool.run(RETAKE, queue, id_batch(ids))
