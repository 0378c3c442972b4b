"""How long a caller that waits for jobs sleeps before it asks the store again, in both forms of the fetcher."""

from __future__ import annotations

NAP_S = 0.001  # before a store is asked again, unless a signal came
TROUBLE_S = 0.5  # between two attempts to reach a store that is gone
IDLE_SHARE = 50


def watch_pause(watch_s: float, idle_s: float) -> float:
    """Return the pause before a store that sends no signals is asked again: a share of the time since the last job.

    So jobs that come one after the other are seen soon, and an idle queue costs little.
    """
    return min(watch_s, max(NAP_S, idle_s / IDLE_SHARE))
