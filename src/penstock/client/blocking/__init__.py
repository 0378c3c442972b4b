"""The cluster client in blocking form: for programs without an event loop.

It has one connection to the node it is on, and is for one thread; each thread needs its own. A fork is noticed: the
child opens connections of its own, and the parent's stay the parent's. All but `pool` is written by `scripts/blocking`
from `penstock.client.aio`.
"""

from penstock.client.blocking.cluster import ClusterClient

__all__ = ["ClusterClient"]
