"""Handles: what a push returns. They need nothing but the id: `app.handle(id)` makes one anywhere.

A workflow has one handle for the whole of it. Its parts have the ids `ID.0`, `ID.1.2` and so on, by their places.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from penstock.codec import from_json
from penstock.errors import CallerError
from penstock.tasks import results

if TYPE_CHECKING:
    from penstock.tasks.app import App
    from penstock.tasks.task import Task
    from penstock.tasks.workflow import Workflow

R = TypeVar("R")


class _Reference:
    """Which call or workflow a handle means. Nothing is computed before somebody asks: most handles are never used."""

    __slots__ = ("_job_id", "_queue", "app", "id", "task", "workflow")

    def __init__(
        self,
        app: App,
        call_id: str,
        task: Task[Any, Any, Any] | None,
        queue: str | None,
        workflow: Workflow[Any, Any] | None,
        job_id: str | None,
    ) -> None:
        self.app = app
        self.id = call_id
        self.task = task
        self.workflow = workflow
        self._queue = queue
        self._job_id = job_id

    @property
    def job_id(self) -> str:
        """The id of its job; of a workflow that of its first job."""
        return self.id if self._job_id is None else self._job_id

    @property
    def is_flow(self) -> bool:
        return self.id.startswith(results.FLOW_PREFIX)

    @property
    def queues(self) -> list[str]:
        return self.app.known_queues() if self._queue is None else [self._queue]

    @property
    def key(self) -> str:
        return results.key_of(self.id)

    def check_kept(self) -> None:
        if self.task is not None and not self.task.keeps_results:
            raise CallerError(
                f"task {self.task.name} keeps no results: give its function a return type, or the task result_ttl="
            )

    def check_whole(self) -> None:
        if self.is_flow and "." in self.id:
            raise CallerError(f"a workflow is cancelled as a whole, by the handle of {self.id.partition('.')[0]}")

    def check_may_wait(self) -> None:
        if not self.app.may_wait:
            raise TimeoutError(
                f"call {self.id} has no result: in app.testing() nothing runs before testing.run() or clock.advance(), "
                "and one task at a time"
            )

    def too_late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"call {self.id} has no result after {timeout:g} s")

    def read(self, record: str) -> Any:
        plain = results.plain_of(record)
        if self.workflow is not None:
            return self.workflow.read(plain)
        return plain if self.task is None else self.task.read(plain)

    def keys_of_calls(self, shape: str | None) -> list[str]:
        """Return the keys of the records of all calls of a workflow."""
        paths = [] if shape is None else from_json(shape)
        return [results.key_of(f"{self.id}.{at}" if at else self.id) for at in paths]


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
        self._of = _Reference(app, call_id, task, queue, workflow, job_id)
        self.id = call_id

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"

    async def result(self, timeout: float | None = None) -> R:  # noqa: ASYNC109 - its end is an error of its own
        """Wait for the result, at most `timeout` seconds; raises TaskFailed if the call failed for good.

        The result of a chain is that of its last call, of a group the list of its members' results.
        """
        of = self._of
        of.check_kept()
        client = of.app.client
        record = await client.record(of.key)
        if record is None:
            of.check_may_wait()
        for pause in results.pauses(timeout, time.monotonic):
            if record is not None:
                break
            await asyncio.sleep(pause)
            record = await client.record(of.key)
        if record is None:
            raise of.too_late(timeout)
        return cast(R, of.read(record))

    async def status(self) -> results.Status:
        """Return where the call or workflow stands. A call that keeps no results is unknown once it is over."""
        of = self._of
        client = of.app.client
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
        client = of.app.client
        if await client.record(of.key) is not None:
            return False
        record = results.cancelled_text(of.app.now())
        if of.is_flow:
            return await client.cancel_flow(self.id, of.key, record)
        return await client.cancel(of.queues, of.job_id, of.key, record)


class BlockingHandle(Generic[R]):
    """A pushed call or workflow, for programs without an event loop."""

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
        self._of = _Reference(app, call_id, task, queue, workflow, job_id)
        self.id = call_id

    def __repr__(self) -> str:
        return f"<BlockingHandle {self.id}>"

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result, at most `timeout` seconds; raises TaskFailed if the call failed for good."""
        of = self._of
        of.check_kept()
        client = of.app.blocking_client
        record = client.record(of.key)
        if record is None:
            of.check_may_wait()
        for pause in results.pauses(timeout, time.monotonic):
            if record is not None:
                break
            time.sleep(pause)
            record = client.record(of.key)
        if record is None:
            raise of.too_late(timeout)
        return cast(R, of.read(record))

    def status(self) -> results.Status:
        """Return where the call or workflow stands. A call that keeps no results is unknown once it is over."""
        of = self._of
        client = of.app.blocking_client
        record = client.record(of.key)
        progress = None if record is not None else client.record(results.progress_key(self.id))
        since = None if record is not None else client.record(results.since_key(self.id))
        if of.is_flow:
            keys = of.keys_of_calls(client.record(results.shape_key(self.id)))
            done = len(keys) if results.is_done(record) else client.count_done(keys)
            is_begun = bool(done) or record is not None
            job = None if is_begun else client.job_state(of.queues, of.job_id)
            return results.flow_status(record, progress, job, since, done, len(keys))
        job = None if record is not None else client.job_state(of.queues, of.job_id)
        if job is None and record is None:
            record = client.record(of.key)  # it may have ended since
        return results.status_of(record, progress, job, since)

    def cancel(self) -> bool:
        """Cancel the call or workflow, whether it waits or runs; returns False if it was over. See `Handle.cancel`."""
        of = self._of
        of.check_whole()
        client = of.app.blocking_client
        if client.record(of.key) is not None:
            return False
        record = results.cancelled_text(of.app.now())
        if of.is_flow:
            return client.cancel_flow(self.id, of.key, record)
        return client.cancel(of.queues, of.job_id, of.key, record)
