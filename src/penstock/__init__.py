"""Penstock: one job queue for brokers, databases and directories.

    async with penstock.connect("sqlite:///jobs.db") as store:
        mail = store.queue("mail")
        await mail.push({"to": "tom@example.net"})

`penstock.blocking` has the same for programs without an event loop. Names are imported when they are first used, so
that the command line starts fast.

The hot modules may be compiled (in a wheel, or by `make native`); the sources stay beside them and do the same. With
PENSTOCK_PURE=1 the sources are used, and in a clone also where a compiled module is older than its source.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.native import choose_modules

if TYPE_CHECKING:
    from penstock.job import JobState
    from penstock.queues.aio import Job, Queue, Store, connect
    from penstock.queues.backoff import Exponential, Fixed
    from penstock.queues.capabilities import Capability
    from penstock.queues.dead_letter import DeadLetter
    from penstock.queues.push import Push
    from penstock.tasks import App, chain, current_job, group
    from penstock.worker import Fail, Retry, Summary, Worker

__version__ = "0.1.0"

__all__ = [
    "App",
    "Capability",
    "DeadLetter",
    "Exponential",
    "Fail",
    "Fixed",
    "Job",
    "JobState",
    "Push",
    "Queue",
    "Retry",
    "Store",
    "Summary",
    "Worker",
    "__version__",
    "chain",
    "connect",
    "current_job",
    "group",
]

choose_modules()

# Where each name is.
_HOMES = {
    "App": "penstock.tasks",
    "Capability": "penstock.queues.capabilities",
    "DeadLetter": "penstock.queues.dead_letter",
    "Exponential": "penstock.queues.backoff",
    "Fail": "penstock.worker",
    "Fixed": "penstock.queues.backoff",
    "Job": "penstock.queues.aio",
    "JobState": "penstock.job",
    "Push": "penstock.queues.push",
    "Queue": "penstock.queues.aio",
    "Retry": "penstock.worker",
    "Store": "penstock.queues.aio",
    "Summary": "penstock.worker",
    "Worker": "penstock.worker",
    "chain": "penstock.tasks",
    "connect": "penstock.queues.aio",
    "current_job": "penstock.tasks",
    "group": "penstock.tasks",
}


def __getattr__(name: str) -> Any:
    if name == "blocking":
        return import_module("penstock.blocking")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
