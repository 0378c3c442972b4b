# Written by scripts/blocking from ../aio/stats.py: change that, then run `make blocking`.
"""Statistics in PostgreSQL: `penstock_queues`, `penstock_counters` and `penstock_counter_deltas`, which are ours alone.

See `side_tables`. Keuss has no statistics there: to share them with Node, use those of Redis.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from penstock.codec import from_json, to_json
from penstock.errors import OutcomeUnknown
from penstock.queues.blocking.stats import COUNTERS as NAMES
from penstock.queues.blocking.stats import Stats
from penstock.queues.options import Address
from penstock.queues.stores.postgres.blocking.client import Pool
from penstock.queues.stores.postgres.blocking.link import Rows
from penstock.queues.stores.postgres.element import batch
from penstock.queues.stores.postgres.names import check_zero_bytes
from penstock.queues.stores.postgres.side_tables import (
    COUNT,
    COUNTERS,
    DELTAS,
    OPTIONS,
    PAUSED,
    QUEUES,
    REGISTER,
    SET_PAUSED,
)


class PostgresStats(Stats):
    """Counters, options and pauses of one namespace."""

    def __init__(self, address: Address, extra: Mapping[str, Any], namespace: str, pool: Pool | None = None) -> None:
        self._pool = Pool(address, extra) if pool is None else pool
        self._is_own = pool is None
        self._namespace = namespace

    def open(self) -> None:
        if self._is_own:
            self._pool.open()

    def close(self) -> None:
        if self._is_own:
            self._pool.close()

    def _run(self, statement: str, *values: str) -> Rows:
        for value in values[:1]:  # the queue
            check_zero_bytes(value)
        return self._pool.run_beside("penstock_queues", statement, self._namespace, *values)

    def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        for queue in counts:
            check_zero_bytes(queue)
        records = [
            f'{{"q":{to_json(queue)},"c":{to_json(name)},"v":{much}}}'
            for queue, counters in counts.items()
            for name, much in counters.items()
        ]
        self._pool.make_countable()
        # Rather counted once too seldom than twice: the caller would add the same again.
        with suppress(OutcomeUnknown):
            self._pool.run_beside(DELTAS, COUNT, self._namespace, batch(records), is_once=True)

    def counters(self, queue: str) -> dict[str, int]:
        self._pool.make_countable()
        return {**dict.fromkeys(NAMES, 0), **dict(self._run(COUNTERS, queue))}

    def register(self, queue: str, options: Mapping[str, Any]) -> None:
        self._run(REGISTER, queue, to_json(dict(options)))

    def options(self, queue: str) -> dict[str, Any]:
        rows = self._run(OPTIONS, queue)
        return dict(from_json(rows[0][0])) if rows else {}

    def queues(self) -> list[str]:
        return [row[0] for row in self._run(QUEUES)]

    def paused(self, queue: str) -> bool:
        rows = self._run(PAUSED, queue)
        return bool(rows and rows[0][0])

    def set_paused(self, queue: str, paused: bool) -> None:
        self._run(SET_PAUSED, queue, "true" if paused else "false")
