"""Which call or workflow a handle means: what handles have in both forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.codec import from_json
from penstock.errors import CallerError
from penstock.tasks import results

if TYPE_CHECKING:
    from penstock.tasks.aio.client import TaskClient
    from penstock.tasks.app import App
    from penstock.tasks.blocking.client import TaskClient as BlockingClient
    from penstock.tasks.task import Task
    from penstock.tasks.workflow import Workflow


class CallReference:
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
    def aio_client(self) -> TaskClient:
        return self.app.client

    @property
    def blocking_client(self) -> BlockingClient:
        return self.app.blocking_client

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
