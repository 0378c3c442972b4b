"""A bus for short texts between the users of a queue: best effort, without history.

The blocking form has no thread that listens: whoever waits for a job waits on the subscription itself.
"""

from typing import ClassVar


class Subscription:
    """One channel, for one waiter at a time."""

    def wait(self, timeout: float) -> str | None:
        """The next text since the subscription began; None if the time is over. An empty text says that something may
        have been missed."""
        raise NotImplementedError

    def wake(self) -> None:
        """End a wait that goes on in another thread; it gets an empty text."""
        raise NotImplementedError

    def close(self) -> None:
        """Hear no more."""


class Signal:
    """What every bus can do."""

    is_silent: ClassVar[bool] = False  # nobody ever hears anything: what would be told need not be worked out

    def open(self) -> None:
        """Connect."""

    def close(self) -> None:
        """Stop hearing and sending."""

    def send(self, channel: str, text: str) -> None:
        """Tell everybody, this process included. A bus that is gone is no error: nothing depends on it."""
        raise NotImplementedError

    def subscribe(self, channel: str) -> Subscription:
        """From the return on, texts on the channel are kept for whoever waits."""
        raise NotImplementedError
