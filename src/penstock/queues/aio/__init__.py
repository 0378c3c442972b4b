"""The queue library for asyncio, and the source of its blocking form."""

from penstock.queues.aio.job import Job
from penstock.queues.aio.queue import Queue
from penstock.queues.aio.store import Store, connect

__all__ = ["Job", "Queue", "Store", "connect"]
