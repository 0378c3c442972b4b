"""Statistics that are kept in this process, by place and namespace: both forms of the library share them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Shelf:
    """All that is known of the queues of one namespace."""

    counters: dict[str, Counter[str]] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)


_shelves: dict[tuple[str, str], Shelf] = {}


def shelf(place: str, namespace: str) -> Shelf:
    """The shelf of a namespace, made when it is first asked for."""
    return _shelves.setdefault((place, namespace), Shelf())
