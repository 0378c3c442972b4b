"""The attempts of one call: which nodes were tried, what they answered, and how much time is left.

Nodes are tried in rounds. In a round each node is tried once, or twice if its connection broke under the command, since
the node may only have been restarted. Between rounds there is a pause that grows and is spread at random, so that many
clients which lost the same node don't come back at the same moment. Without retries there is one round.
"""

import math

from penstock.client.addresses import Address
from penstock.client.requests import Request
from penstock.client.settings import ClientSettings
from penstock.errors import AuthenticationError, ConnectionLost, PeerError, ReplyError, TimedOut, Unreachable

ATTEMPT_SECONDS_MIN = 0.5  # for an attempt that starts late because other calls were choosing a node
DOUBLINGS_MAX = 16  # of the pause: enough for any pause_max, and the number stays small


class NotSent(ConnectionLost):
    """Nothing of the command was sent, so it was not executed. Callers see it as the cause of Unreachable."""


class Attempts:
    """The state of one call while nodes are tried."""

    __slots__ = (
        "_broken",
        "_command",
        "_deadline",
        "_is_required",
        "_problems",
        "_retries",
        "_rounds",
        "_seconds",
        "node",
        "search_began",
        "tried",
    )

    def __init__(
        self,
        request: Request,
        settings: ClientSettings,
        began: float,
        node: str | None = None,
        *,
        is_required: bool = True,
        retries: bool = True,
    ) -> None:
        self.node = node  # the node to ask; None for any
        self._is_required = is_required  # no other node will do
        self._retries = retries  # whether there is a second round
        self.tried: set[Address] = set()
        # When the search for a node began: what other calls have found unreachable since then isn't tried again.
        self.search_began = began
        self._seconds = settings.timeout + request.wait_at(began)
        self._deadline = began + self._seconds
        self._command = request.name
        self._broken: set[Address] = set()
        self._problems: dict[str, PeerError] = {}
        self._rounds = 0

    def left(self, now: float) -> float:
        """Return the seconds until the call is given up. Raises if nodes have failed and no time is left."""
        if self._problems and now >= self._deadline:
            raise self.error()
        return max(ATTEMPT_SECONDS_MIN, self._deadline - now)

    def failed(self, address: Address, error: PeerError) -> None:
        """Record that a node can't be reached, refused, or is not the right one: it isn't tried again in this round."""
        self._problems[str(address)] = error
        if not self._is_required:
            self.node = None
        self.tried.add(address)

    def note(self, address: Address, error: PeerError) -> None:
        """Record why a node didn't execute the command.

        Under a connection that broke for the first time the node may only have been restarted: it may be tried again.
        """
        is_broken = not isinstance(error, ReplyError | TimedOut)
        may_try_again = is_broken and address not in self._broken
        self.failed(address, error)
        if may_try_again:
            self._broken.add(address)
            self.tried.discard(address)

    def pause(self, settings: ClientSettings) -> float:
        """Return the seconds to wait before the next round. Raises if there is no time for it, or no use in it."""
        now = settings.clock()
        longest = min(settings.pause_max, settings.pause_first * 2.0 ** min(self._rounds, DOUBLINGS_MAX))
        seconds = longest * settings.randomness.uniform(0.5, 1.0)
        if not self._retries or self._is_unauthorized() or now + seconds >= self._deadline:
            raise self.error()
        self._rounds += 1
        self.tried.clear()
        self._broken.clear()
        return seconds

    def _is_unauthorized(self) -> bool:
        """Whether all nodes refused the password: to wait doesn't help."""
        problems = self._problems.values()
        return bool(problems) and all(isinstance(problem, AuthenticationError) for problem in problems)

    def unknown(self, node: str) -> PeerError:
        """Return the error for a required node that no other node knows, with what those answered."""
        if self._is_unauthorized():
            return self.error()
        return Unreachable(f"The node {node} is not known in this cluster. {self._details()}".rstrip(), self._answers())

    def error(self) -> PeerError:
        """Return the error that ends the call, with what each node answered."""
        if self._is_unauthorized():
            return AuthenticationError(f"NOAUTH No node accepts the password. {self._details()}")
        within = f" within {self._seconds:g} s" if self._retries and not math.isinf(self._seconds) else ""
        details = self._details() or "No node was tried."
        return Unreachable(f"No node executed {self._command}{within}. {details}", self._answers())

    def _details(self) -> str:
        return " ".join(_sentence(where, problem) for where, problem in self._problems.items())

    def _answers(self) -> dict[str, str]:
        return {where: str(problem) for where, problem in self._problems.items()}


def _sentence(where: str, problem: PeerError) -> str:
    """Return what a node answered. Errors other than error replies name the address themselves."""
    words = f"{where} answered: {problem}" if isinstance(problem, ReplyError) else str(problem)
    return words.rstrip(".") + "."
