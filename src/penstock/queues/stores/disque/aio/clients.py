"""The client of a store of our broker: one for all tasks. `blocking.disque.clients` is its twin, with one a thread."""

from collections.abc import Callable
from types import TracebackType

from penstock.client.aio import ClusterClient
from penstock.queues.stores.disque.refusals import as_told


class Clients:
    """Lends the client out. While it is lent, refusals of a node become errors of a store."""

    def __init__(self, make: Callable[[], ClusterClient], url: str) -> None:
        self._make, self._url = make, url
        self._client: ClusterClient | None = None

    def borrow(self) -> "Borrowed":
        """A client, for a block."""
        if self._client is None:
            self._client = self._make()
        return Borrowed(self._client, self._url)

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None


class Borrowed:
    """The client, for one block."""

    __slots__ = ("_client", "_url")

    def __init__(self, client: ClusterClient, url: str) -> None:
        self._client, self._url = client, url

    async def __aenter__(self) -> ClusterClient:
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        told = as_told(problem, self._url)
        if told is not None:
            raise told from problem
