"""The token of a lease in PostgreSQL and MongoDB: the stored end of the reservation, which each reserve changes."""

from __future__ import annotations

from typing import NamedTuple


class LeaseToken(NamedTuple):
    """What a reserve writes into the row or document, and the maturity before: as text, the token of the lease.

    Both times are in the store's unit: µs in PostgreSQL, ms in MongoDB.
    """

    mature: int
    tries: int
    before: int

    def __str__(self) -> str:
        return f"{self.mature}.{self.tries}.{self.before}"

    @classmethod
    def read(cls, text: str | None) -> LeaseToken | None:
        """Return the token of a text; None if it can't be one of ours."""
        try:
            return None if text is None else cls(*(int(part) for part in text.split(".")))
        except (TypeError, ValueError):
            return None
