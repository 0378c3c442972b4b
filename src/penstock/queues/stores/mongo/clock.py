"""The server's clock, as far as a client knows it.

MongoDB writes the time of the server into a document only with an update, and jobs are inserted. So the client
measures: the server's reply to `hello` has its time, which was taken after the question left and before the reply came.
That gives two bounds, which move on with the monotonic clock of this machine:

    low_ms      the server's time is not before it: for jobs that are ready at once, which everybody must see at once
    high_ms     the server's time is not after it: for delays, which must not end early

Which jobs are ready is not decided by these, but by the server itself (`$$NOW`): see `element.ready`.
"""

import math
import time

MEASURED_FOR_S = 10.0  # two clocks drift apart by less than a millisecond meanwhile, unless somebody sets one
_STEP_MS = 1000  # a difference of more is a clock that was set, which is followed at once


class ServerClock:
    """Bounds of the server's time, measured now and then."""

    def __init__(self) -> None:
        self._server_ms = 0
        self._sent_s = self._received_s = -math.inf
        self._last_low_ms = 0

    @property
    def is_old(self) -> bool:
        """Whether the server should be asked again."""
        return time.monotonic() - self._received_s > MEASURED_FOR_S

    def measured(self, server_ms: int, sent_s: float, received_s: float) -> None:
        """Take the server's time, and when the question left and the reply came, by the monotonic clock."""
        self._server_ms = server_ms
        self._sent_s, self._received_s = sent_s, received_s

    @property
    def low_ms(self) -> int:
        """It never goes back, or jobs of one producer would change places; unless the server's clock was set back."""
        low = self._server_ms + int((time.monotonic() - self._received_s) * 1000)
        if low < self._last_low_ms < low + _STEP_MS:
            return self._last_low_ms
        self._last_low_ms = low
        return low

    @property
    def high_ms(self) -> int:
        """One millisecond is added, since the time in the reply has no fractions of one."""
        return self._server_ms + 1 + math.ceil((time.monotonic() - self._sent_s) * 1000)
