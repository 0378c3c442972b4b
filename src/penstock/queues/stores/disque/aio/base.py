"""What all parts of the store of our broker share: its clients, its options, what its nodes can do."""

from typing import Any, ClassVar, NamedTuple

from penstock.client.aio import ClusterClient
from penstock.client.values import Job
from penstock.errors import BadUrl, CallerError, ConnectionLost, PenstockError, ReplyError
from penstock.queues.aio.driver import Driver
from penstock.queues.aio.signals.base import Signal
from penstock.queues.aio.signals.silent import SilentSignal
from penstock.queues.capabilities import Capability
from penstock.queues.options import Address, Options
from penstock.queues.stores.disque.aio.clients import Clients
from penstock.queues.stores.disque.refusals import too_few_nodes
from penstock.queues.stores.disque.terms import OWN_OPTIONS, TIMEOUT_S, defaults, read_options

# Connections for calls that wait for a job. Beyond these, callers that wait share what comes.
WAITS_MAX = 64
ALL = -1  # work on all jobs of a reserve begins at once
# What tells our nodes from those of Disque, and what the store needs of them.
SYNTAX = "ERR syntax error"  # what a node says of a word that it doesn't know
OUR_COMMANDS = ("acklease", "addjobs", "lease", "release")

COMMON = frozenset(
    {
        Capability.DELAY,
        Capability.RESERVE,
        Capability.EXTEND,
        Capability.PEEK,
        Capability.REMOVE,
        Capability.HEADERS,
        Capability.TTL,
        Capability.RETRY,
        Capability.REPLICATE,
        Capability.SHARED_PAUSE,
    }
)
OURS = COMMON | {Capability.TOKEN, Capability.CLAIM}


class Nodes(NamedTuple):
    """The nodes of a cluster, by id."""

    views: dict[str, ClusterClient]  # a client for each that answers, to ask only there
    missing: list[str]  # those that don't: what only they hold can't be seen


class DisqueBase(Driver):
    """A cluster, as far as it is the same for all that is asked of it."""

    type: ClassVar[str] = "disque"
    capabilities: ClassVar[frozenset[Capability]] = OURS
    can_wait: ClassVar[bool] = True
    pauses_itself: ClassVar[bool] = True
    own_options: ClassVar[frozenset[str] | None] = OWN_OPTIONS

    def __init__(self, address: Address, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        if address.path.strip("/"):
            raise BadUrl(f"{address.url}: nodes have no parts to choose from; leave {address.path} out")
        self._own = read_options(address.rest, extra, address.url)
        self._defaults = defaults(self._own, options.lease)
        try:
            self._make_client()
        except CallerError as problem:
            raise BadUrl(f"{address.url}: {problem}") from problem
        self._clients = Clients(self._make_client, address.url)
        self._is_ours = True  # every node is one of ours, and knows leases
        self._is_current = True  # every node knows GETJOB WITHCTIME and BEGIN

    def _make_client(self) -> ClusterClient:
        """A client, which connects when it is first used."""
        return ClusterClient(
            self.address.full,
            tls=self._own.get("tls", False),
            ca=self._own.get("ca"),
            cert=self._own.get("cert"),
            key=self._own.get("key"),
            timeout=self._own.get("timeout", TIMEOUT_S),
            waits_max=WAITS_MAX,
            translate=self._own.get("translate"),
        )

    def own_signal(self) -> Signal:
        return SilentSignal()

    async def open(self) -> None:
        async with self._clients.borrow() as client:
            # Whoever opens a store that isn't there wants to know at once.
            await client.without_retry().call("PING")
            for view in (await self._nodes(client)).views.values():
                *ours, begins = await view.call("COMMAND", "INFO", *OUR_COMMANDS, "BEGIN")
                self._is_current = self._is_current and begins is not None
                if None in ours:
                    self._is_ours = False
                    vars(self)["capabilities"] = COMMON  # of this store alone

    async def close(self) -> None:
        await self._clients.close()

    async def _nodes(self, client: ClusterClient) -> "Nodes":
        """All nodes of the cluster, each as a client that asks only there."""
        hello = await client.hello()
        views: dict[str, ClusterClient] = {}
        missing: list[str] = []
        for node_id in sorted(node.id for node in hello.nodes):
            view = client.at(node_id).without_retry()
            try:
                await view.call("PING")
            except ConnectionLost:
                missing.append(node_id)
            else:
                views[node_id] = view
        return Nodes(views, missing)

    @staticmethod
    async def _size(client: ClusterClient) -> int:
        """Return how many nodes the cluster has, dead ones included, as far as it was heard a short while ago."""
        return len(client.nodes or (await client.hello()).nodes)

    async def _too_few(self, client: ClusterClient, problem: ReplyError, copies: int) -> tuple[int, PenstockError]:
        """Return how many nodes there are, now that an add was refused, and what the caller is told."""
        if problem.code != "NOREPL":
            return copies, problem
        nodes = await self._nodes(client)
        reachable, known = len(nodes.views), len(nodes.views) + len(nodes.missing)
        if reachable >= copies:  # the node has another reason
            return known, problem
        return known, too_few_nodes(problem, self.address.url, copies, reachable, known)

    async def _get(
        self, client: ClusterClient, queue: str, count: int, lease_ms: int, wait_ms: int, begin: int = ALL
    ) -> list[Job]:
        """GETJOB, with all that a node tells of a job; without waiting if `wait_ms` is 0.

        Work on the first `begin` jobs begins at once.
        """
        lease_s = lease_ms / 1000 if self._is_ours else None
        options: dict[str, Any] = {"timeout": wait_ms / 1000, "count": count, "counters": True, "lease": lease_s}
        if self._is_current:
            try:
                return await client.get(queue, created=True, begin=begin, **options)
            except ReplyError as problem:
                if not str(problem).startswith(SYNTAX):
                    raise
                self._is_current = False  # an older node of ours, or an original one
        return await client.get(queue, **options)

    async def now_ms(self) -> int:
        async with self._clients.borrow() as client:
            return await self._time_ms(client)

    async def _time_ms(self, client: ClusterClient) -> int:
        seconds, microseconds = await client.call("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000 + self.shift_ms


def values(replies: list[Any]) -> list[Any]:
    """Replies of a pipeline; an error among them is raised."""
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise reply
    return replies
