"""Clients of the broker.

`ClusterClient` is for asyncio: it knows all nodes of a cluster and talks to the best of them. Any number of tasks may
use one at the same time. `penstock.client.blocking.ClusterClient` is the same for programs without an event loop.
`Connection` is one blocking link to one node, for raw commands.
"""

from penstock.client.aio import ClusterClient
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
