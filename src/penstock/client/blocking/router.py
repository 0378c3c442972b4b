# Written by scripts/blocking from ../aio/router.py: change that, then run `make blocking`.
"""Finds a node for every command, and another one when that fails.

The client is *on* one node, and stays there while all is well. It moves, between two calls, when that node can't be
reached, leaves the cluster or refuses; when HELLO, which is read again from time to time, knows a better one; and to
the node that makes most of the jobs it fetches. Connections to a node that it was on stay open while jobs are out
that came from there.

Some commands must go to one node: those about a lease, a claim or a scan, since no other node knows of it.
"""

import random
from typing import Any

from penstock.client.addresses import Address, Seeds
from penstock.client.blocking.links import Links, Turn, owner, sleep
from penstock.client.connection import refined
from penstock.client.effort import Effort, NotSent
from penstock.client.members import Members
from penstock.client.producers import Producers
from penstock.client.requests import REFUSALS, Repeat, Request
from penstock.client.settings import Settings
from penstock.client.values import Hello, Job, hello_of
from penstock.errors import BadReply, CallerError, ConnectionLost, OutcomeUnknown, PeerError, ReplyError, TimedOut

# A job that was fetched without a lease is out for its retry time, which is no longer than this by default.
UNLEASED_SECONDS = 300.0


class Route:
    """A node with the connections to it, and until when they are needed for what was fetched there."""

    __slots__ = ("address", "id", "lacks_addjobs", "links", "needed_until")

    def __init__(self, node_id: str, address: Address, links: Links) -> None:
        self.id, self.address, self.links = node_id, address, links
        self.needed_until = 0.0
        self.lacks_addjobs = False  # it is an original


class Router:
    """The nodes of a cluster, as one thing that takes commands."""

    def __init__(self, seeds: Seeds, settings: Settings) -> None:
        self.settings = settings
        self._clock = settings.clock
        self._members = Members(seeds.addresses, settings.chance, settings.translate)
        self._routes: dict[str, Route] = {}
        self._current: Route | None = None
        self._last: Address | None = None  # where it was on a node
        self._owner: object = None
        self._turn = Turn()
        self._hello_at = 0.0
        self._producers = Producers(settings.follow_jobs or 0, settings.follow_seconds)
        self._wish: str | None = None  # the node to move to
        self._is_moving = False
        self._is_closed = False

    @property
    def current(self) -> Route | None:
        """The node that it is on."""
        return self._current

    @property
    def members(self) -> Members:
        """The nodes that are known."""
        return self._members

    def run(
        self, request: Request, node: str | None = None, *, only_there: bool = True, patient: bool = True
    ) -> tuple[Route, list[Any]]:
        """Have a request answered, by this node or any: who did, and the replies.

        Nothing waits after a success: who is cancelled then would lose them.
        """
        effort = Effort(request, self.settings, node, only_there=only_there, patient=patient)
        while True:
            route = self._find(effort)
            replies = self._attempt(request, route, effort)
            if replies is not None:
                return route, replies

    def _attempt(self, request: Request, route: Route, effort: Effort) -> list[Any] | None:
        """Ask a node. None means that another attempt may be made."""
        now = self._clock()
        seconds = min(request.wait_at(now) + self.settings.answer_timeout, effort.left(now))
        try:
            replies = route.links.exchange(request, seconds)
        except (ConnectionLost, BadReply) as error:
            self._hello_at = 0.0
            if isinstance(error, TimedOut):
                self._members.avoid(route.address, now, error)
            if not isinstance(error, NotSent) and not self._may_repeat(request.repeat):
                raise OutcomeUnknown(f"{request.name} was sent, and may or may not have been done. {error}") from error
            effort.broke(route.address, error)
            return None
        refusals = [reply for reply in replies if isinstance(reply, ReplyError) and reply.code in REFUSALS]
        if len(refusals) < len(replies):
            return replies
        self._leave(route, refusals[0], effort)
        return None

    def _may_repeat(self, repeat: Repeat) -> bool:
        if repeat is Repeat.ALLOWED:
            return self.settings.retry_adds
        return repeat is not Repeat.NEVER

    def _leave(self, route: Route, error: PeerError, effort: Effort) -> None:
        """Go elsewhere for a while."""
        effort.failed(route.address, error)
        self._members.avoid(route.address, self._clock(), error)

    def _find(self, effort: Effort) -> Route:
        """The node to ask next, connected. Raises if none can be had in time."""
        if self._is_closed:
            raise CallerError("The client is closed.")
        if self._owner != owner():
            self._begin_anew()
        route = self._routes.get(effort.node) if effort.node else self._current
        while route is None or not self._is_fit(route, effort):
            effort.looking_since = self._clock()
            with self._turn:
                route = self._reach(effort) if effort.node else self._choose(effort)
            if route is not None:
                break
            sleep(effort.pause(self.settings))
        return route

    def _is_fit(self, route: Route, effort: Effort) -> bool:
        """Whether a node can be asked without a second thought."""
        if not route.links.connected or route.address in effort.tried:
            return False
        if effort.node:
            return True
        return self._wish is None and not self._is_moving and self._clock() < self._hello_at

    def _begin_anew(self) -> None:
        """The process was forked, or there is another event loop: the connections belong to the old one."""
        if self._owner is not None:
            self.settings.chance = self._members.chance = random.Random()
        self._owner = owner()
        for route in self._routes.values():
            route.links.abandon()
        self._routes.clear()
        self._current = None
        self._turn = Turn()

    def _choose(self, effort: Effort) -> Route | None:
        """The node to be on from now on; None if no node that was not tried yet can be reached."""
        current = self._current
        if current is not None and (not current.links.connected or current.address in effort.tried):
            current = None
        if current is not None and self._wish is not None:
            return self._follow(current)
        if current is not None and self._clock() >= self._hello_at and not self._refresh(current):
            current = None
        return self._be_on(self._best(current, effort))

    def _be_on(self, route: Route | None) -> Route | None:
        """Send commands there from now on."""
        self._current = route
        if route is not None:
            self._last = route.address
            self._tidy()
        return route

    def _best(self, best: Route | None, effort: Effort) -> Route | None:
        """Connect to the best node, which may be the one that is connected already."""
        favourite = self._last if self.settings.sticky else None
        seen = set(effort.tried)
        while True:
            now = self._clock()
            address = self._members.next(seen, now, favourite)
            if address is None:
                return best
            if best is not None and self._members.rank(address, now) >= self._members.rank(best.address, now):
                return best
            seen.add(address)
            if (problem := self._members.trouble_since(address, effort.looking_since)) is not None:
                effort.failed(address, problem)  # another call has just tried it
                continue
            best = self._open(address, effort) or best

    def _refresh(self, route: Route) -> bool:
        """Read HELLO again; False if the node didn't answer it."""
        self._hello_at = self._clock() + self.settings.hello_every  # at once: others needn't wait for this
        try:
            self._members.learn(self._hello(route.links), route.address)
        except PeerError as error:
            self._members.avoid(route.address, self._clock(), error)
            return False
        return True

    def _follow(self, current: Route) -> Route:
        """Move to the node that makes the jobs, once nothing is under way here. If that fails: stay."""
        wish, self._wish = self._wish, None
        address = self._members.address_of(wish or "", self._clock())
        if address is None:
            return current
        attempt = Effort(Request(("HELLO",)), self.settings)
        route = self._open(address, attempt)
        if route is None or route.id != wish:
            return current
        self._is_moving = True  # nothing new goes out here
        try:
            current.links.drain()
        finally:
            self._is_moving = False
        self._be_on(route)
        return route

    def _reach(self, effort: Effort) -> Route | None:
        """The one node that will do; None if it can't be reached now."""
        assert effort.node is not None
        route = self._routes.get(effort.node)
        if route is not None and self._is_fit(route, effort):
            return route
        address = self._whereabouts(effort.node, effort)
        if address in effort.tried:
            return None
        route = self._open(address, effort)
        if route is not None and route.id != effort.node:
            effort.failed(address, NotSent(f"At {address} is not the node {effort.node} but {route.id}"))
            return None
        return route

    def _whereabouts(self, node: str, effort: Effort) -> Address:
        """Where a node is, after a look at HELLO if that isn't known."""
        address = self._members.address_of(node, self._clock())
        if address is None:
            self._hello_at = 0.0
            self._choose(effort)
            address = self._members.address_of(node, self._clock())
        if address is None:
            raise effort.unknown(node)
        return address

    def _open(self, address: Address, effort: Effort) -> Route | None:
        """Connect to a node, unless that is done, and ask it who is there; None if that fails."""
        for route in self._routes.values():
            if route.address == address and route.links.connected and self._refresh(route):
                self._members.forgive(address)
                return route
        links = Links(address, self.settings.links)
        seconds = min(self.settings.links.connect_timeout, effort.left(self._clock()))
        try:
            links.connect(seconds)
            hello = self._hello(links)
        except PeerError as error:
            links.close()
            self._members.avoid(address, self._clock(), error)
            effort.failed(address, error)
            return None
        except BaseException:
            links.close()
            raise
        self._hello_at = self._clock() + self.settings.hello_every
        self._members.forgive(address)
        self._members.learn(hello, address)
        return self._admit(Route(hello.node, address, links))

    def _admit(self, route: Route) -> Route:
        """Keep a route; another one to the same node goes on, if it can."""
        before = self._routes.get(route.id)
        if before is not None and before.links.connected:
            route.links.close()
            return before
        if before is not None:
            route.needed_until = before.needed_until
        self._routes[route.id] = route
        return route

    def _hello(self, links: Links) -> Hello:
        (reply,) = links.exchange(Request(("HELLO",)), self.settings.answer_timeout)
        if isinstance(reply, ReplyError):
            raise refined(reply)
        return hello_of(reply)

    def _tidy(self) -> None:
        """Close connections to nodes that it was on, where nothing is out any more."""
        now = self._clock()
        for route in list(self._routes.values()):
            if route is not self._current and not route.links.busy and now >= route.needed_until:
                route.links.close()
                del self._routes[route.id]

    def hold(self, node: str, until: float) -> None:
        """Keep the connections to a node: a job that came from there is out."""
        route = self._routes.get(node)
        if route is not None:
            route.needed_until = max(route.needed_until, until)

    def fetched(self, route: Route, jobs: list[Job], lease: float | None) -> None:
        """Remember where jobs came from and who made them."""
        now = self._clock()
        if jobs:
            self.hold(route.id, now + (UNLEASED_SECONDS if lease is None else lease))
        if self.settings.follow_jobs is None or not jobs:
            return
        prefix = self._producers.count((job.id for job in jobs), now)
        maker = self._members.by_prefix(prefix) if prefix else None
        current = self._current
        if maker is not None and current is not None and maker != current.id and self._members.is_well(maker, now):
            self._wish = maker

    def at(self, node: str | None) -> str | None:
        """A node if there is still a connection to it, else None, which means any."""
        route = self._routes.get(node) if node else None
        return route.id if route is not None and route.links.connected else None

    def close(self) -> None:
        """Close all connections. Calls that are under way fail."""
        self._is_closed = True
        if self._owner != owner():
            self._begin_anew()
        routes = list(self._routes.values())
        self._routes.clear()
        self._current = None
        for route in routes:
            route.links.finish()
