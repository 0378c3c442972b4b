"""The cluster client for asyncio. `links` is the only module that knows the event loop.

`router` and `cluster` are the source of the blocking form, which `scripts/blocking` writes: they await, and leave
to `links` all else that differs.
"""

from penstock.client.aio.cluster import ClusterClient

__all__ = ["ClusterClient"]
