"""The client of a store of our broker: one for all tasks. `blocking.link` is the other form, with one a thread."""

from collections.abc import Callable
from types import TracebackType

from penstock.client.aio import ClusterClient
from penstock.queues.stores.disque.errors import store_error


class DisqueLink:
    """Lends the client, for a block. Error replies of a node become errors of a store there."""

    def __init__(self, make: Callable[[], ClusterClient], url: str) -> None:
        self._make, self._url = make, url
        self._client: ClusterClient | None = None

    def client(self) -> "DisqueLink":
        """Return the context of a block, which has the client."""
        return self

    def __enter__(self) -> ClusterClient:
        if self._client is None:
            self._client = self._make()
        return self._client

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None:
            error = store_error(problem, self._url)
            if error is not None:
                raise error from problem

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None
