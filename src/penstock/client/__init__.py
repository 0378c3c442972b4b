"""Clients of the broker.

`ClusterClient` is for asyncio: it knows all nodes of a cluster and uses the best of them. Any number of tasks may use
one at the same time. `penstock.client.blocking.ClusterClient` is the same for programs without an event loop.
`Connection` is one blocking connection to one node, for raw commands.
"""

from typing import TYPE_CHECKING, Any

from penstock.client.connection import Connection
from penstock.client.values import (
    Claim,
    Hello,
    Job,
    JobDetails,
    Lease,
    LeaseOutcome,
    Node,
    QueueDetails,
)

if TYPE_CHECKING:
    from penstock.client.aio import ClusterClient

__all__ = [
    "Claim",
    "ClusterClient",
    "Connection",
    "Hello",
    "Job",
    "JobDetails",
    "Lease",
    "LeaseOutcome",
    "Node",
    "QueueDetails",
]


def __getattr__(name: str) -> Any:
    """Import the client for asyncio on first use: it takes longer to load than the command line can spare."""
    if name == "ClusterClient":
        from penstock.client.aio import ClusterClient  # noqa: PLC0415 - see above

        return ClusterClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
