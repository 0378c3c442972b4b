"""A task while it runs: what its function can ask by `penstock.tasks.current_job()`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from penstock.errors import CallerError
from penstock.queues.push import Duration, seconds
from penstock.tasks.once import KEEP_S, EffectBlock, EffectMark
from penstock.tasks.results import progress_key, progress_text

if TYPE_CHECKING:
    from penstock.tasks.message import Message
    from penstock.tasks.task import Task


class TaskJob:
    """The job of the task that runs here."""

    __slots__ = ("_job", "_message", "_since", "_task", "task")

    def __init__(self, job: Any, task: Task[Any, Any, Any], message: Message) -> None:
        self._job = job  # of the queue library, in the form that the function can use
        self._message = message
        self._task = task
        self._since = task.app.now()
        self.task = task.name

    def __repr__(self) -> str:
        return f"<TaskJob {self.id} of {self.task}>"

    @property
    def id(self) -> str:
        """The id of the call: that of the handle which the push returned."""
        return self._message.id or str(self._job.id)

    @property
    def job_id(self) -> str:
        """The id of the job in its queue: most often the same."""
        return str(self._job.id)

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return str(self._job.queue.name)

    @property
    def tries(self) -> int:
        """The number of earlier tries: 0 at the first."""
        return int(self._job.tries)

    @property
    def args(self) -> dict[str, Any]:
        """The arguments by name, as they are stored."""
        return self._message.args

    def progress(self, share: float, text: str = "") -> Any:
        """Note how far the call has come, from 0 to 1, for `handle.status()`. In an async task it is awaited."""
        task = self._task
        if not task.keeps_results:
            raise CallerError(f"task {task.name} keeps no results, and so no progress: give it result_ttl=")
        client = task.app.client if task.is_async else task.app.blocking_client
        record = progress_text(share, text, self._since, task.app.now())
        return client.keep(progress_key(self.id), record, task.result_ttl)

    def once(
        self, connection: Any, step: str = "", *, keep: Duration = KEEP_S, database: str | None = None
    ) -> EffectBlock:
        """Return a block whose effect in a database happens exactly once for this call; see the module `once`.

        - `connection`: an open one of sqlite3 or psycopg, or a session of pymongo. The block is a transaction there; in
          one that is open already it is a part of it, which your commit commits.
        - `step`: a name for the effect, in a task that has several.
        - `keep`: how long the mark is kept, in seconds. A job that comes back later has its effect again.
        - `database`: of MongoDB, if the client's URL names none.
        """
        if not isinstance(step, str):
            raise CallerError(f"step must be a text, got {step!r}")
        return EffectBlock(connection, EffectMark(self.id, step, self._task.app.now(), seconds("keep", keep), database))

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled, or its lease was lost: a function in a thread that sees it should stop."""
        return bool(self._job.lost)


current: ContextVar[TaskJob] = ContextVar("penstock.tasks.current")


def current_job() -> TaskJob:
    """Return the job of the task that runs here."""
    try:
        return current.get()
    except LookupError:
        raise CallerError("current_job() must be called within a task that a worker runs") from None
