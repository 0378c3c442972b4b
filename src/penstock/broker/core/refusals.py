"""What a node refuses, in its own words: one row a reason, raised as `Refused`."""

from __future__ import annotations

from typing import Final

from penstock.errors import PenstockError


class Refused(PenstockError):
    """A request that the node understood and won't do; `code` is the word that programs look at."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


_NODES: Final = "Not enough reachable nodes for the requested replication level"
_UNABLE: Final = f"{_NODES}, since I'm unable to hold a copy of the message for the following reason: "

NOT_ENOUGH_NODES: Final = ("NOREPL", _NODES)
REPLICATION_TIMEOUT: Final = ("NOREPL", "Timeout reached before replicating to the requested number of nodes")
JOB_REMOVED: Final = ("NOREPL", "job removed (expired?) before the requested replication level was achieved")
LEAVING_AND_ONE_SHORT: Final = ("NOREPL", _UNABLE + "I'm leaving the cluster")
FULL_AND_ONE_SHORT: Final = ("NOREPL", _UNABLE + "I'm out of memory")
# The two blanks are the original's.
RETRY_0_REPLICATED: Final = (
    "ERR",
    "With RETRY set to 0 please explicitly set  REPLICATE to 1 (at-most-once delivery)",
)
DELAY_BEYOND_TTL: Final = (
    "ERR",
    "The specified DELAY is greater than TTL. Job refused since would never be delivered",
)
QUEUE_TOO_LONG: Final = ("MAXLEN", "Queue is already longer than the specified MAXLEN count")
QUEUE_PAUSED: Final = ("PAUSED", "Queue paused in input, try later")
NODE_LEAVING: Final = ("LEAVING", "This node is leaving the cluster, please connect to a different one")
BAD_ID: Final = ("BADID", "Invalid Job ID format.")
NO_JOB: Final = ("NOJOB", "Job not known in the context of this node.")
TOO_LATE: Final = (
    "TOOLATE",
    "Half of job TTL already elapsed, you are no longer allowed to postpone the next delivery.",
)
TOO_MANY_HANDSHAKES: Final = ("ERR", "too many handshakes under way, try later")
