"""The clients of a store of our broker, for threads: a client can be used by one thread at a time, so there are as many
as threads have needed at once. `aio.link` is the other form.
"""

from collections import deque
from collections.abc import Callable
from types import TracebackType

from penstock.client.blocking import ClusterClient
from penstock.errors import CallerError
from penstock.queues.stores.disque.errors import store_error


class DisqueLink:
    """Lends clients, each for a block. Error replies of a node become errors of a store there."""

    def __init__(self, make: Callable[[], ClusterClient], url: str) -> None:
        self._make, self.url = make, url
        self._idle: deque[ClusterClient] = deque()  # whose append and pop are safe with threads
        self._is_closed = False

    def client(self) -> "ClientLoan":
        """Return the context of a block, which has a client."""
        if self._is_closed:
            raise CallerError(f"the store {self.url} is closed")
        try:
            client = self._idle.pop()
        except IndexError:
            client = self._make()
        return ClientLoan(self, client)

    def put_back(self, client: ClusterClient) -> None:
        """Take a client back at the end of a block."""
        self._idle.append(client)
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Close all connections; those that are lent, when their block is over."""
        self._is_closed = True
        while self._idle:
            try:
                client = self._idle.pop()
            except IndexError:
                return
            client.close()


class ClientLoan:
    """A client, for one block."""

    __slots__ = ("_client", "_link")

    def __init__(self, link: DisqueLink, client: ClusterClient) -> None:
        self._link, self._client = link, client

    def __enter__(self) -> ClusterClient:
        return self._client

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.put_back(self._client)
        if problem is not None:
            error = store_error(problem, self._link.url)
            if error is not None:
                raise error from problem
