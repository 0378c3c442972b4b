"""Handles: what a push returns. They need nothing but the id: `app.handle(id)` makes one anywhere.

A workflow has one handle for the whole of it. Its parts have the ids `ID.0`, `ID.1.2` and so on, by their places.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from penstock.queues.aio.runtime import sleep
from penstock.tasks import results
from penstock.tasks.reference import CallReference

if TYPE_CHECKING:
    from penstock.tasks.app import App
    from penstock.tasks.task import Task
    from penstock.tasks.workflow import Workflow

R = TypeVar("R")


class Handle(Generic[R]):
    """A pushed call or workflow."""

    __slots__ = ("_of", "id")

    def __init__(
        self,
        app: App,
        call_id: str,
        task: Task[Any, R, Any] | None = None,
        queue: str | None = None,
        *,
        workflow: Workflow[Any, R] | None = None,
        job_id: str | None = None,
    ) -> None:
        self._of = CallReference(app, call_id, task, queue, workflow, job_id)
        self.id = call_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def result(self, timeout: float | None = None) -> R:
        """Wait for the result, at most `timeout` seconds; raises TaskFailed if the call failed for good.

        The result of a chain is that of its last call, of a group the list of its members' results.
        """
        of = self._of
        of.check_kept()
        client = of.aio_client
        record = await client.record(of.key)
        if record is None:
            of.check_may_wait()
        for pause in results.pauses(timeout, time.monotonic):
            if record is not None:
                break
            await sleep(pause)
            record = await client.record(of.key)
        if record is None:
            raise of.too_late(timeout)
        return cast(R, of.read(record))

    async def status(self) -> results.Status:
        """Return where the call or workflow stands. A call that keeps no results is unknown once it is over."""
        of = self._of
        client = of.aio_client
        record = await client.record(of.key)
        progress = None if record is not None else await client.record(results.progress_key(self.id))
        since = None if record is not None else await client.record(results.since_key(self.id))
        if of.is_flow:
            keys = of.keys_of_calls(await client.record(results.shape_key(self.id)))
            done = len(keys) if results.is_done(record) else await client.count_done(keys)
            is_begun = bool(done) or record is not None
            job = None if is_begun else await client.job_state(of.queues, of.job_id)
            return results.flow_status(record, progress, job, since, done, len(keys))
        job = None if record is not None else await client.job_state(of.queues, of.job_id)
        if job is None and record is None:
            record = await client.record(of.key)  # it may have ended since
        return results.status_of(record, progress, job, since)

    async def cancel(self) -> bool:
        """Cancel the call or workflow, whether it waits or runs; returns False if it was over.

        A worker that runs it finds out when it next extends the lease: an async function is cancelled then, the
        process of an isolated one is killed, and one in a thread sees it in `current_job().cancelled`. Nothing else of
        a workflow is started.
        """
        of = self._of
        of.check_whole()
        client = of.aio_client
        if await client.record(of.key) is not None:
            return False
        record = results.cancelled_text(of.app.now())
        if of.is_flow:
            return await client.cancel_flow(self.id, of.key, record)
        return await client.cancel(of.queues, of.job_id, of.key, record)
