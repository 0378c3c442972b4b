"""Queries on a PostgreSQL server, past the store."""

from __future__ import annotations

from typing import Any


def rows(database: Any, text: str, *values: object) -> list[tuple[Any, ...]]:
    """Return the rows of a statement."""
    return list(database.execute(text, values).fetchall())


def columns(database: Any, table: str) -> list[tuple[Any, ...]]:
    """The columns of a table: name, type, length, whether it may be null, default."""
    text = """SELECT column_name, data_type, character_maximum_length, is_nullable, column_default
        FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position"""
    return rows(database, text, table)


def indexes(database: Any, table: str) -> list[str]:
    """The indexes of a table, as statements that make them."""
    return [row[0] for row in rows(database, "SELECT indexdef FROM pg_indexes WHERE tablename = %s ORDER BY 1", table)]
