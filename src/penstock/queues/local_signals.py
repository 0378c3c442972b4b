"""Signals within one process, for any mix of threads and event loops.

Stores of the same place share its listeners, so that a consumer hears of a job that another part of its process pushed.
"""

import threading
from collections.abc import Callable

Callback = Callable[[str], None]

_lock = threading.Lock()
_listeners: dict[tuple[str, str], list[Callback]] = {}


def listen(place: str, channel: str, callback: Callback) -> None:
    """Call back with each text, from whatever thread sends it."""
    with _lock:
        _listeners.setdefault((place, channel), []).append(callback)


def leave(place: str, channel: str, callback: Callback) -> None:
    """Call back no more."""
    with _lock:
        callbacks = _listeners.get((place, channel), [])
        if callback in callbacks:
            callbacks.remove(callback)
        if not callbacks:
            _listeners.pop((place, channel), None)


def send(place: str, channel: str, text: str) -> None:
    """Call back everybody who listens."""
    with _lock:
        callbacks = tuple(_listeners.get((place, channel), ()))
    for callback in callbacks:
        callback(text)
