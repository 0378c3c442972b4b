"""Patience with a store that is away for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import ConnectionLost, PenstockError

OUTAGE_S_MAX = 60.0  # a store that is gone for longer fails the query; Spark, or whoever runs it, starts it again
OUTAGE_PAUSE_S = 0.5

Result = TypeVar("Result")


def through_outages(
    call: Callable[[], Result], repeated: tuple[type[PenstockError], ...] = (ConnectionLost,)
) -> Result:
    """Calls again while the store is away, within bounds."""
    until = time.monotonic() + OUTAGE_S_MAX
    while True:
        try:
            return call()
        except repeated:
            if time.monotonic() >= until:
                raise
            time.sleep(OUTAGE_PAUSE_S)
