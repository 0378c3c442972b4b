# Written by scripts/blocking from ../aio/scan.py: change that, then run `make blocking`.
"""Looks at jobs in PostgreSQL: ranges of ids, which several connections can read at the same time."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from penstock.job import id_time_ms
from penstock.queues.scan import NOTHING, Column, Part, Rows, Same, Wanted
from penstock.queues.stores.postgres.blocking.base import PostgresBase
from penstock.queues.stores.postgres.element import id_batch, unpacked
from penstock.queues.stores.postgres.scan import COMPARES, by_ids, by_range, cuts, ends, names_of


class PostgresLooks(PostgresBase):
    """`parts` and `look`."""

    compares: ClassVar[frozenset[str]] = COMPARES

    def parts(self, queues: Sequence[str], wanted: Wanted) -> list[Part]:
        found: list[Part] = []
        for queue in queues:
            table = self._sql(queue).table
            rows = self._run(queue, ends(table), table)
            if not rows or rows[0][0] is None:
                continue
            low, high, size = rows[0]
            if wanted.ids is not None:
                found.append(Part((queue,)))
                continue
            places = [low, *cuts(low, high, size), high]
            for number, (begin, end) in enumerate(pairwise(places), 2):
                found.append(Part((queue,), json.dumps([begin, end, number == len(places)])))
        return found

    def look(self, part: Part, wanted: Wanted, count: int, cursor: str | None = None) -> Rows:
        (queue,) = part.queues
        table = self._sql(queue).table
        if wanted.ids is not None:
            rows = self._run(queue, by_ids(table, wanted), self._shift, id_batch(wanted.ids))
        else:
            begin, end, is_last = json.loads(part.place)
            statement = by_range(table, wanted, cursor is None, is_last)
            rows = self._run(queue, statement, self._shift, begin if cursor is None else cursor, end, str(count))
        if not rows:
            return NOTHING
        columns: dict[str, Column] = dict(zip(names_of(wanted), zip(*rows, strict=True), strict=True))
        if "element" in columns:
            elements = [unpacked(text) for text in columns.pop("element")]
            columns["payload"] = [payload for payload, _ in elements]
            columns["headers"] = [headers for _, headers in elements]
        if "created_ms" in wanted.columns:
            columns["created_ms"] = [id_time_ms(job_id) for job_id in columns["id"]]
        columns["queue"] = Same(queue)
        is_over = wanted.ids is not None or len(rows) < count
        return Rows(len(rows), columns, None if is_over else rows[-1][0])
