"""The clients of a store of our broker, for threads: one client is of use to one thread at a time, so there are as many
as threads have needed at once. `aio.disque.clients` is its twin.
"""

from collections import deque
from collections.abc import Callable
from types import TracebackType

from penstock.client.blocking import ClusterClient
from penstock.errors import CallerError
from penstock.queues.stores.disque.refusals import as_told


class Clients:
    """Lends clients out. While one is lent, refusals of a node become errors of a store."""

    def __init__(self, make: Callable[[], ClusterClient], url: str) -> None:
        self._make, self._url = make, url
        self._idle: deque[ClusterClient] = deque()  # whose append and pop are safe with threads
        self._is_closed = False

    def borrow(self) -> "Borrowed":
        """A client, for a block."""
        if self._is_closed:
            raise CallerError(f"the store {self._url} is closed")
        try:
            client = self._idle.pop()
        except IndexError:
            client = self._make()
        return Borrowed(self, client, self._url)

    def give_back(self, client: ClusterClient) -> None:
        """A block is over."""
        self._idle.append(client)
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Close all connections; those that are lent when their block is over."""
        self._is_closed = True
        while self._idle:
            try:
                client = self._idle.pop()
            except IndexError:
                return
            client.close()


class Borrowed:
    """A client, for one block."""

    __slots__ = ("_client", "_clients", "_url")

    def __init__(self, clients: Clients, client: ClusterClient, url: str) -> None:
        self._clients, self._client, self._url = clients, client, url

    def __enter__(self) -> ClusterClient:
        return self._client

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clients.give_back(self._client)
        told = as_told(problem, self._url)
        if told is not None:
            raise told from problem
