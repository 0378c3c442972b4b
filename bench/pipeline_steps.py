"""The functions of `bench.pipelines`: a link that does nothing, or computes for a while. The payload stays."""

from __future__ import annotations

import time
from typing import Any


def step_0(payload: Any) -> None:
    """Do nothing."""


def step_100(payload: Any) -> None:
    """Compute for 100 microseconds of this thread."""
    _compute(100)


def step_1000(payload: Any) -> None:
    """Compute for a millisecond of this thread."""
    _compute(1000)


def _compute(microseconds: int) -> None:
    end = time.thread_time() + microseconds / 1e6
    while time.thread_time() < end:
        pass
