"""Statistics that are kept in this process, by place and namespace: both forms of the library share them."""

import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ProcessStats:
    """All that is known of the queues of one namespace."""

    counters: dict[str, Counter[str]] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)  # threads of the blocking form count together


_all: dict[tuple[str, str], ProcessStats] = {}


def process_stats(place: str, namespace: str) -> ProcessStats:
    """Return the statistics of a namespace, made when it is first asked for."""
    return _all.setdefault((place, namespace), ProcessStats())


def _unlock() -> None:
    """In a forked child: another thread of the parent may have held a lock."""
    for one in _all.values():
        one.lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)
