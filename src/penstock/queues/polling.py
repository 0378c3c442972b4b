"""How long callers that wait for jobs sleep between two looks, in both forms of the fetcher."""

from __future__ import annotations

NAP_S = 0.001  # between two looks at a store, unless something was heard
TROUBLE_S = 0.5  # between two tries to reach a store that is gone
IDLE_SHARE = 50


def watch_pause(watch_s: float, idle_s: float) -> float:
    """Between two looks at a store that tells nobody what changed: a part of the time since the last job.

    So it is seen soon where jobs come one after the other, and nobody is kept busy where none come.
    """
    return min(watch_s, max(NAP_S, idle_s / IDLE_SHARE))
