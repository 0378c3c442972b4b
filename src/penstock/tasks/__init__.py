"""Tasks: functions that are pushed to queues and run by workers.

    app = penstock.App("sqlite:///shop.db")

    @app.task(queue="mail")
    async def welcome(user_id: int) -> None: ...

    await welcome.push(42)            # penstock worker shop:app runs it

A thin layer over the queue library and the worker: a task is a job like any other. Read in this order: `message` (what
is pushed), `arguments` (how it is written and checked), `task` and `app` (how it is pushed), `router` (what a worker
does with it), `worker`; for chains and groups `workflow` and `continuation`.
"""

from penstock.tasks.aio.handle import Handle
from penstock.tasks.app import App
from penstock.tasks.blocking.handle import BlockingHandle
from penstock.tasks.results import State, Status
from penstock.tasks.running import TaskJob, current_job
from penstock.tasks.task import Call, Step, Task
from penstock.tasks.worker import TaskWorker
from penstock.tasks.workflow import Chain, FailedCall, Group, Workflow, chain, group

__all__ = [
    "App",
    "BlockingHandle",
    "Call",
    "Chain",
    "FailedCall",
    "Group",
    "Handle",
    "State",
    "Status",
    "Step",
    "Task",
    "TaskJob",
    "TaskWorker",
    "Workflow",
    "chain",
    "current_job",
    "group",
]
