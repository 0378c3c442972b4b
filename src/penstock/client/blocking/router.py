# Written by scripts/blocking from ../aio/router.py: change that, then run `make blocking`.
"""Finds a node for every command, and another one when that fails.

The client is *on* one node, and stays there while the node answers. It moves, between two calls, when that node can't
be reached, leaves the cluster or refuses; when HELLO, which is read again from time to time, names a better one; and to
the node that created most of the jobs it fetches. Connections to a former node stay open while jobs that came from
there are not finished.

Some commands must go to one node: those about a lease, a claim or a scan, since no other node knows of it.
"""

import random
from typing import Any

from penstock.client.addresses import Address, Seeds
from penstock.client.attempts import ATTEMPT_SECONDS_MIN, Attempts, NotSent
from penstock.client.blocking.pool import ConnectionPool, Turn, owner, sleep
from penstock.client.connection import refined
from penstock.client.members import Members
from penstock.client.producers import Producers
from penstock.client.requests import REFUSALS, Repeat, Request
from penstock.client.settings import ClientSettings
from penstock.client.values import Hello, Job, hello_of
from penstock.errors import BadReply, CallerError, ConnectionLost, OutcomeUnknown, PeerError, ReplyError, TimedOut

# A job that was fetched without a lease is out for its retry time, by default at most this long.
UNLEASED_SECONDS = 300.0


class NodeRoute:
    """A node with the connections to it, and until when they are needed for jobs that were fetched there."""

    __slots__ = ("address", "id", "lacks_addjobs", "needed_until", "pool")

    def __init__(self, node_id: str, address: Address, pool: ConnectionPool) -> None:
        self.id, self.address, self.pool = node_id, address, pool
        self.needed_until = 0.0
        self.lacks_addjobs = False  # it is an original Disque node


class NodeRouter:
    """The nodes of a cluster, as one thing that executes commands."""

    def __init__(self, seeds: Seeds, settings: ClientSettings) -> None:
        self.settings = settings
        self.members = Members(seeds.addresses, settings.randomness, settings.translate)
        self.current: NodeRoute | None = None  # the node that the client is on
        self._clock = settings.clock
        self._answer_seconds = min(settings.answer_timeout, max(ATTEMPT_SECONDS_MIN, settings.timeout))
        self._routes: dict[str, NodeRoute] = {}
        self._last: Address | None = None  # of the last node that the client was on
        self._owner: object = None
        self._turn = Turn()
        self._hello_at = 0.0
        self._producers = Producers(settings.follow_jobs or 0, settings.follow_seconds)
        self._next: str | None = None  # the node to move to
        self._is_moving = False
        self._is_closed = False

    def run(
        self, request: Request, node: str | None = None, *, is_required: bool = True, retries: bool = True
    ) -> tuple[NodeRoute, list[Any]]:
        """Have a request executed, by this node or any. Return the route to the node that did, and the replies.

        Nothing is awaited after a success: a caller that is cancelled then would lose the replies.
        """
        began = self._clock()
        attempts: Attempts | None = None  # most calls need none: their node is there, and answers
        route = self._ready(node, began)
        seconds = request.wait_at(began) + self._answer_seconds
        problem: PeerError | None = None
        while True:
            if route is not None:
                try:
                    replies = route.pool.exchange(request, seconds)
                except (ConnectionLost, BadReply) as error:
                    problem = error
                    self._broke(route, request, error)
                else:
                    if not _is_refused(replies):
                        return route, replies
                    problem = replies[0]
                    self.members.record_failure(route.address, self._clock(), problem)
            if attempts is None:
                attempts = Attempts(request, self.settings, began, node, is_required=is_required, retries=retries)
            if route is not None and problem is not None:
                attempts.note(route.address, problem)
            route = self._find(attempts)
            now = self._clock()
            seconds = min(request.wait_at(now) + self.settings.answer_timeout, attempts.left(now))

    def _ready(self, node: str | None, now: float) -> NodeRoute | None:
        """Return the route to a node, or to the one that the client is on, if it can be used as it is."""
        if self._is_closed or self._owner != owner():
            return None
        if node:
            route = self._routes.get(node)
        elif self._next is not None or self._is_moving or now >= self._hello_at:
            return None
        else:
            route = self.current
        return route if route is not None and route.pool.connected else None

    def _broke(self, route: NodeRoute, request: Request, error: PeerError) -> None:
        """A connection broke under a request. Raises OutcomeUnknown if the request must not be sent again."""
        self._hello_at = 0.0
        if isinstance(error, TimedOut):
            self.members.record_failure(route.address, self._clock(), error)
        if isinstance(error, NotSent) or request.repeat in (Repeat.ALWAYS, Repeat.FETCH):
            return
        if request.repeat is Repeat.NEVER or not self.settings.retry_adds:
            raise OutcomeUnknown(f"{request.name} was sent, and may or may not have been executed. {error}") from error

    def _find(self, attempts: Attempts) -> NodeRoute:
        """Return the route to the node to ask next, connected. Raises if none can be reached in time."""
        if self._is_closed:
            raise CallerError("The client is closed.")
        if self._owner != owner():
            self._reset()
        while True:
            route = self._ready(attempts.node, self._clock())
            if route is not None and route.address not in attempts.tried:
                return route
            attempts.search_began = self._clock()
            with self._turn:
                route = self._reach(attempts) if attempts.node else self._choose(attempts)
            if route is not None:
                return route
            sleep(attempts.pause(self.settings))

    def _reset(self) -> None:
        """Drop all connections: they belong to the parent process, or to another event loop."""
        if self._owner is not None:
            self.settings.randomness = self.members.randomness = random.Random()
        self._owner = owner()
        for route in self._routes.values():
            route.pool.abandon()
        self._routes.clear()
        self.current = None
        self._turn = Turn()

    def _choose(self, attempts: Attempts) -> NodeRoute | None:
        """Return the node to be on from now on; None if no node that was not tried yet can be reached."""
        current = self.current
        if current is not None and (not current.pool.connected or current.address in attempts.tried):
            current = None
        if current is not None and self._next is not None:
            return self._move(current)
        if current is not None and self._clock() >= self._hello_at and not self._refresh(current):
            current = None
        return self._be_on(self._best(current, attempts))

    def _be_on(self, route: NodeRoute | None) -> NodeRoute | None:
        """Send commands there from now on."""
        self.current = route
        if route is not None:
            self._last = route.address
            self._close_unneeded()
        return route

    def _best(self, best: NodeRoute | None, attempts: Attempts) -> NodeRoute | None:
        """Connect to the best node, which may be the one that is connected already."""
        preferred = self._last if self.settings.sticky else None
        seen = set(attempts.tried)
        while True:
            now = self._clock()
            address = self.members.next(seen, now, preferred)
            if address is None:
                return best
            if best is not None and self.members.rank(address, now) >= self.members.rank(best.address, now):
                return best
            seen.add(address)
            if (problem := self.members.failure_since(address, attempts.search_began)) is not None:
                attempts.failed(address, problem)  # another call has just tried it
                continue
            best = self._open(address, attempts) or best

    def _refresh(self, route: NodeRoute) -> bool:
        """Read HELLO again. Whether the node answered it."""
        self._hello_at = self._clock() + self.settings.hello_every  # at once: other calls needn't wait for this
        try:
            self.members.learn(self._hello(route.pool), route.address)
        except PeerError as error:
            self.members.record_failure(route.address, self._clock(), error)
            return False
        return True

    def _move(self, current: NodeRoute) -> NodeRoute:
        """Move to the node that creates the jobs, once nothing is under way here. If that fails, stay."""
        node, self._next = self._next, None
        address = self.members.address_of(node or "", self._clock())
        if address is None:
            return current
        route = self._open(address, Attempts(Request(("HELLO",)), self.settings, self._clock()))
        if route is None or route.id != node:
            return current
        self._is_moving = True  # no new request is sent here
        try:
            current.pool.drain()
        finally:
            self._is_moving = False
        self._be_on(route)
        return route

    def _reach(self, attempts: Attempts) -> NodeRoute | None:
        """Return the route to the required node; None if it can't be reached now."""
        node = attempts.node
        assert node is not None
        route = self._ready(node, self._clock())
        if route is not None and route.address not in attempts.tried:
            return route
        address = self._locate(node, attempts)
        if address in attempts.tried:
            return None
        route = self._open(address, attempts)
        if route is not None and route.id != node:
            attempts.failed(address, NotSent(f"At {address} is the node {route.id}, not {node}"))
            return None
        return route

    def _locate(self, node: str, attempts: Attempts) -> Address:
        """Return the address of a node, from a fresh HELLO if it isn't known."""
        address = self.members.address_of(node, self._clock())
        if address is None:
            self._hello_at = 0.0
            self._choose(attempts)
            address = self.members.address_of(node, self._clock())
        if address is None:
            raise attempts.unknown(node)
        return address

    def _open(self, address: Address, attempts: Attempts) -> NodeRoute | None:
        """Connect to a node, unless that is done, and ask for its id; None if that fails."""
        for route in self._routes.values():
            if route.address == address and route.pool.connected and self._refresh(route):
                self.members.clear_failure(address)
                return route
        pool = ConnectionPool(address, self.settings.connections)
        seconds = min(self.settings.connections.connect_timeout, attempts.left(self._clock()))
        try:
            pool.connect(seconds)
            hello = self._hello(pool)
        except PeerError as error:
            pool.close()
            self.members.record_failure(address, self._clock(), error)
            attempts.failed(address, error)
            return None
        except BaseException:
            pool.close()
            raise
        self._hello_at = self._clock() + self.settings.hello_every
        self.members.clear_failure(address)
        self.members.learn(hello, address)
        return self._admit(NodeRoute(hello.node, address, pool))

    def _admit(self, route: NodeRoute) -> NodeRoute:
        """Keep a route. An earlier one to the same node is used further, if it is connected."""
        before = self._routes.get(route.id)
        if before is not None and before.pool.connected:
            route.pool.close()
            return before
        if before is not None:
            route.needed_until = before.needed_until
        self._routes[route.id] = route
        return route

    def _hello(self, pool: ConnectionPool) -> Hello:
        (reply,) = pool.exchange(Request(("HELLO",)), self.settings.answer_timeout)
        if isinstance(reply, ReplyError):
            raise refined(reply)
        return hello_of(reply)

    def _close_unneeded(self) -> None:
        """Close connections to former nodes from which no job is out any more."""
        now = self._clock()
        for route in list(self._routes.values()):
            if route is not self.current and not route.pool.busy and now >= route.needed_until:
                route.pool.close()
                del self._routes[route.id]

    def hold(self, node: str, until: float) -> None:
        """Keep the connections to a node: a job that came from there is out."""
        route = self._routes.get(node)
        if route is not None:
            route.needed_until = max(route.needed_until, until)

    def fetched(self, route: NodeRoute, jobs: list[Job], lease: float | None) -> None:
        """Remember where jobs came from and which node created them."""
        if not jobs:
            return
        now = self._clock()
        route.needed_until = max(route.needed_until, now + (UNLEASED_SECONDS if lease is None else lease))
        if self.settings.follow_jobs is None:
            return
        prefix = self._producers.count((job.id for job in jobs), now)
        creator = self.members.by_prefix(prefix) if prefix else None
        current = self.current
        if creator is not None and current is not None and creator != current.id:
            if self.members.is_healthy(creator, now):
                self._next = creator

    def connected(self, node: str | None) -> str | None:
        """Return a node if there is still a connection to it, else None, which means any."""
        route = self._routes.get(node) if node else None
        return route.id if route is not None and route.pool.connected else None

    def close(self) -> None:
        """Close all connections. Calls that are under way fail."""
        self._is_closed = True
        if self._owner != owner():
            self._reset()
        routes = list(self._routes.values())
        self._routes.clear()
        self.current = None
        for route in routes:
            route.pool.finish()


def _is_refused(replies: list[Any]) -> bool:
    """Whether a node executed nothing of a request, and says that another one may."""
    return all(isinstance(reply, ReplyError) and reply.code in REFUSALS for reply in replies)
