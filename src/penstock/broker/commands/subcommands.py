"""Commands made of subcommands (CLIENT KILL, CONFIG SET): each has a table from the word to what runs it.

A row is found by the word in any case and by the number of words of the whole request. The error for an unknown
subcommand differs from command to command, so each command has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.broker.commands.handlers import Handler

ANY = 1 << 62  # as many words as the request has


class Subcommand(NamedTuple):
    """One row. Words are counted with the command's own and the subcommand's."""

    least: int
    most: int
    run: Handler


def find(table: Mapping[bytes, Subcommand], args: list[bytes]) -> Handler | None:
    """Return what runs this request; None if the subcommand is unknown or has a wrong number of words."""
    row = table.get(args[1].upper())
    return row.run if row is not None and row.least <= len(args) <= row.most else None
