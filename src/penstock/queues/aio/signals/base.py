"""A bus for short texts between the users of a queue: best effort, without history.

Keuss' channels and texts: `keuss:signal:NAMESPACE:QUEUE`, with the time of maturity in milliseconds when a job comes
in, and `p true` or `p false` when the queue is paused or resumed. A text that is lost costs at most the poll interval.
"""

from collections.abc import Callable
from typing import ClassVar

Hear = Callable[[str], None]


class Signal:
    """What every bus can do. `hear` is called in the event loop of whoever subscribed."""

    is_silent: ClassVar[bool] = False  # nobody ever hears anything: what would be told need not be worked out

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Stop hearing and sending."""

    async def send(self, channel: str, text: str) -> None:
        """Tell everybody, this process included. A bus that is gone is no error: nothing depends on it."""
        raise NotImplementedError

    async def subscribe(self, channel: str, hear: Hear) -> None:
        """From the return on, texts on the channel are heard; again by itself after the connection was lost, with an
        empty text first, since something may have been missed."""
        raise NotImplementedError

    async def unsubscribe(self, channel: str, hear: Hear) -> None:
        """Hear no more."""
        raise NotImplementedError
