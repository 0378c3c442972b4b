"""The queue library for programs without an event loop: `penstock.blocking.connect(url)`."""

from penstock.queues.blocking import Job, Queue, Store, connect

__all__ = ["Job", "Queue", "Store", "connect"]
