# Written by scripts/blocking from ../aio/__init__.py: change that, then run `make blocking`.
"""The queue library for asyncio, and the source of its blocking form."""

from penstock.queues.blocking.job import Job
from penstock.queues.blocking.queue import Queue
from penstock.queues.blocking.store import Store, connect

__all__ = ["Job", "Queue", "Store", "connect"]
