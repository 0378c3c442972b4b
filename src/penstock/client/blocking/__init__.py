"""The cluster client in blocking form: for programs without an event loop.

It has one connection to the node it is on, and is for one thread; give each thread its own. A fork is noticed: the
child connects anew, and the parent's connection stays the parent's. All but `links` is written by `scripts/blocking`
from `penstock.client.aio`.
"""

from penstock.client.blocking.cluster import ClusterClient

__all__ = ["ClusterClient"]
