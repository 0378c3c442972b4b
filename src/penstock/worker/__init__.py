"""Runs handlers for the jobs of queues.

    worker = penstock.Worker("sqlite:///jobs.db", "mail", send, concurrency=20)
    await worker.run()                     # or worker.main(), in a program of its own

Read in this order: `choices` (what becomes of a job), `worker` (the options), `shift` (a run), `intake` (how jobs come
in), `tasks` and `threads` (what runs handlers), `thread_jobs` (what plain ones are given), `settling` (how the store is
told, and leases are kept). `supervisor` runs several processes of them for `penstock worker`, and `events` has the
table of what is logged.
"""

from penstock.worker.choices import Fail, Retry
from penstock.worker.handlers import payload_handler
from penstock.worker.reporting import Summary
from penstock.worker.worker import Worker

__all__ = ["Fail", "Retry", "Summary", "Worker", "payload_handler"]
