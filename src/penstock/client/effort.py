"""One call's way through the nodes: whom it has tried, what they said, and how much time is left.

Nodes are tried in rounds. In a round each is tried once, or twice if its link broke under the command, which may only
mean that the node was started again. Between rounds there is a pause that grows and is spread by chance, so that many
clients which lost the same node don't come back at the same moment. Who has no patience gets one round.
"""

import math

from penstock.client.addresses import Address
from penstock.client.requests import Request
from penstock.client.settings import Settings
from penstock.errors import AuthenticationError, ConnectionLost, PeerError, ReplyError, TimedOut, Unreachable

ATTEMPT_SECONDS_MIN = 0.5  # for an attempt that is made late, since others were choosing a node for so long
DOUBLINGS_MAX = 16  # of the pause: enough for any pause_max, and no number gets too large


class NotSent(ConnectionLost):
    """Nothing of the command has left, so it was not done. Callers see it as the cause of Unreachable."""


class Effort:
    """What one call remembers while it is being made."""

    __slots__ = (
        "_broken",
        "_deadline",
        "_only_there",
        "_patient",
        "_problems",
        "_rounds",
        "_seconds",
        "_what",
        "looking_since",
        "node",
        "tried",
    )

    def __init__(
        self,
        request: Request,
        settings: Settings,
        node: str | None = None,
        *,
        only_there: bool = True,
        patient: bool = True,
    ) -> None:
        self.node = node  # that shall do it
        self._only_there = only_there
        self._patient = patient  # whether there is a second round
        self.tried: set[Address] = set()
        now = settings.clock()
        self.looking_since = now  # for a node; who fails while others look needn't be asked by all of them
        self._seconds = settings.timeout + request.wait_at(now)
        self._deadline = now + self._seconds
        self._what = request.name
        self._broken: set[Address] = set()
        self._problems: dict[str, PeerError] = {}
        self._rounds = 0

    def left(self, now: float) -> float:
        """Seconds until it must be given up. Raises if nodes have failed for so long."""
        if self._problems and now >= self._deadline:
            raise self.error()
        return max(ATTEMPT_SECONDS_MIN, self._deadline - now)

    def failed(self, where: Address | str, error: PeerError) -> None:
        """A node could not be reached, refused, or is not the right one: not again in this round."""
        self._note(where, error)
        if isinstance(where, Address):
            self.tried.add(where)

    def broke(self, address: Address, error: PeerError) -> None:
        """A link broke under the command. The first time the same node may be tried again."""
        self._note(address, error)
        if address in self._broken or isinstance(error, TimedOut):
            self.tried.add(address)
        self._broken.add(address)

    def _note(self, where: Address | str, error: PeerError) -> None:
        self._problems[str(where)] = error
        if not self._only_there:
            self.node = None

    def pause(self, settings: Settings) -> float:
        """How long to wait before all nodes are tried again. Raises if there is no time for it, or no use in it."""
        now = settings.clock()
        longest = min(settings.pause_max, settings.pause_first * 2.0 ** min(self._rounds, DOUBLINGS_MAX))
        seconds = longest * settings.chance.uniform(0.5, 1.0)
        if not self._patient or self._is_hopeless() or now + seconds >= self._deadline:
            raise self.error()
        self._rounds += 1
        self.tried.clear()
        self._broken.clear()
        return seconds

    def _is_hopeless(self) -> bool:
        """Whether all nodes said what time won't heal."""
        problems = self._problems.values()
        return bool(problems) and all(isinstance(problem, AuthenticationError) for problem in problems)

    def unknown(self, node: str) -> PeerError:
        """The end of it, since nobody knows the node that shall do it. What others said is told, too."""
        if self._is_hopeless():
            return self.error()
        text = " ".join(_sentence(where, problem) for where, problem in self._problems.items())
        return Unreachable(f"The node {node} is not known in this cluster. {text}".rstrip(), self._said())

    def error(self) -> PeerError:
        """The end of it, with what each node said."""
        text = " ".join(_sentence(where, problem) for where, problem in self._problems.items())
        if self._is_hopeless():
            return AuthenticationError(f"NOAUTH No node takes the password. {text}")
        within = f" within {self._seconds:g} s" if self._patient and not math.isinf(self._seconds) else ""
        return Unreachable(f"No node took {self._what}{within}. {text or 'None was asked.'}", self._said())

    def _said(self) -> dict[str, str]:
        return {where: str(problem) for where, problem in self._problems.items()}


def _sentence(where: str, problem: PeerError) -> str:
    """What a node said; errors that are not its own words name its address already."""
    words = f"{where} said: {problem}" if isinstance(problem, ReplyError) else str(problem)
    return words.rstrip(".") + "."
