"""Runs handlers for the jobs of queues.

    worker = penstock.Worker("sqlite:///jobs.db", "mail", send, concurrency=20)
    await worker.run()                     # or worker.main(), in a program of its own

Read in this order: `outcomes` (what becomes of a job), `worker` (the options), `run` (a run), `prefetch` (how jobs are
taken), `runners` (tasks and threads), `routes` (several kinds of jobs), `settling` (acks), `lease_extender`,
`reporting` (counts, log events, hooks), `logs` (formats of the log). `supervisor` runs several processes for
`penstock worker`; `handlers` finds functions by name.
"""

from penstock.worker.handlers import payload_handler
from penstock.worker.outcomes import Fail, Retry
from penstock.worker.reporting import Summary
from penstock.worker.routes import Route, Router
from penstock.worker.worker import Worker

__all__ = ["Fail", "Retry", "Route", "Router", "Summary", "Worker", "payload_handler"]
