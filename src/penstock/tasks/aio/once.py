"""`once` on PostgreSQL: a block with the job's mark as one transaction, or as a part of the caller's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.errors import InsufficientPrivilege
from psycopg.rows import tuple_row

from penstock.errors import CallerError
from penstock.tasks.once import REMOVED_MAX, TABLE, EffectMark

SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (job text NOT NULL, step text NOT NULL, kept_until timestamptz NOT NULL, "
    f"PRIMARY KEY (job, step)); CREATE INDEX IF NOT EXISTS {TABLE}_kept_until ON {TABLE} (kept_until)"
)
_EXISTS = f"SELECT to_regclass('{TABLE}') IS NOT NULL"
# Two that make the table at the same time would both fail, IF NOT EXISTS or not.
_LOCK = f"SELECT pg_advisory_xact_lock(hashtext('{TABLE}'))"
# The insert waits for another transaction that has inserted the same key, until that has ended.
_ADD = f"""
WITH old AS (
    DELETE FROM {TABLE} WHERE (job, step) <> ($1, $2) AND (job, step) IN (
        SELECT job, step FROM {TABLE} WHERE kept_until < to_timestamp($3::float8)
        ORDER BY kept_until LIMIT {REMOVED_MAX} FOR UPDATE SKIP LOCKED
    )
)
INSERT INTO {TABLE} (job, step, kept_until) VALUES ($1, $2, to_timestamp($4::float8))
ON CONFLICT DO NOTHING RETURNING true
"""


@asynccontextmanager
async def on_postgres(connection: AsyncConnection[Any], mark: EffectMark) -> AsyncIterator[bool]:
    """Run a block within a transaction, which is a savepoint where the connection has one open."""
    async with connection.transaction():
        # Neither the rows nor the placeholders of the caller's own cursors.
        cursor = AsyncRawCursor(connection, row_factory=tuple_row)
        await cursor.execute(_EXISTS)
        if await cursor.fetchone() != (True,):
            await _make_table(cursor)
        await cursor.execute(_ADD, (mark.job, mark.step, mark.now, mark.kept_until))
        yield await cursor.fetchone() is not None


async def _make_table(cursor: AsyncRawCursor[Any]) -> None:
    try:
        await cursor.execute(_LOCK)
        await cursor.execute(SCHEMA)
    except InsufficientPrivilege as problem:
        raise CallerError(
            f"once() needs the table {TABLE}, which this user of the database may not make ({problem}). Let one who "
            f"may run: {SCHEMA}"
        ) from problem
