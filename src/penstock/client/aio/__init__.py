"""The cluster client for asyncio. Only `pool` and `connection` know the event loop.

`router` and `cluster` are the source of the blocking form, which `scripts/blocking` writes.
"""

from penstock.client.aio.cluster import ClusterClient

__all__ = ["ClusterClient"]
