"""An app: its tasks, and the store that they are pushed to."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, ParamSpec, Protocol, Self, TypeVar, overload
from weakref import WeakKeyDictionary

from penstock.errors import CallerError
from penstock.queues import aio, blocking
from penstock.queues.backoff import Backoff
from penstock.queues.options import without_password
from penstock.queues.push import Duration
from penstock.tasks import settings
from penstock.tasks.aio.client import TaskClient
from penstock.tasks.aio.handle import Handle
from penstock.tasks.arguments import to_plain
from penstock.tasks.blocking.client import TaskClient as BlockingClient
from penstock.tasks.blocking.handle import BlockingHandle
from penstock.tasks.call import PreparedCall
from penstock.tasks.hooks import Hooks, PushedCall
from penstock.tasks.options import Kinds, checked, task_name
from penstock.tasks.running import TaskJob, current
from penstock.tasks.schedule import Schedule
from penstock.tasks.scheduler import Cron, checked_missed
from penstock.tasks.task import Call, Task
from penstock.tasks.testing import FrozenTime, TestingContext
from penstock.tasks.worker import TaskWorker
from penstock.tasks.workflow import FailedCall, Workflow, prepared, shape_text

P = ParamSpec("P")
R = TypeVar("R")

_numbers = itertools.count(1)


class TaskDecorator(Protocol):
    """What `app.task(...)` returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class App:
    """Tasks that are pushed to the queues of one store, and run by `penstock worker module:app`.

        app = penstock.App("sqlite:///shop.db")

        @app.task(queue="mail")
        async def welcome(user_id: int) -> None: ...

        await welcome.push(42)

    What is left out comes from the environment or a file, see `settings`; but not `hooks` and `context`.

    - `url`: the store; without one, that of the variable PENSTOCK_URL. Options of the store may follow by name.
    - `queue`: the queue of tasks that name none.
    - `queues`: how many jobs of a queue run at the same time in a worker process, by its name; other queues share the
      worker's `--concurrency`.
    - `unknown`: what becomes of a job for a task that the app doesn't have: "wait" for a worker that has it, or "fail".
    - `results`: the store for results, if it is another one.
    - `hooks`: objects with methods `before`, `after`, `failed` and `pushed`; see `Hook`.
    - `context`: context variables whose values go with each push to the task.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str | None = None,
        queues: Mapping[str, int] | None = None,
        unknown: str | None = None,
        results: str | None = None,
        hooks: Iterable[object] = (),
        context: Iterable[ContextVar[Any]] = (),
        **store_options: Any,
    ) -> None:
        self._given = {"url": url, "queue": queue, "queues": queues, "unknown": unknown, "results": results}
        for name, value in self._given.items():
            if value is not None:
                settings.find(name, value)  # which checks it
        self.queue = str(settings.find("queue", queue).value)
        self.queues: dict[str, int] = settings.find("queues", queues).value or {}
        self.unknown = settings.find("unknown", unknown).value
        self.hooks = Hooks(hooks)
        self.context = {variable.name: variable for variable in context}
        self.tasks: dict[str, Task[Any, Any, Any]] = {}  # by name, and by alias
        self.crons: dict[str, Cron] = {}  # by the name of the task
        self._url = url
        self._store_options = store_options
        self._memory_name = f"memory:app-{os.getpid()}-{next(_numbers)}"
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, TaskClient] = WeakKeyDictionary()
        self._blocking_client: BlockingClient | None = None
        self._lock = threading.Lock()
        self.now: Callable[[], float] = time.time
        self.on_error: Callable[[TaskJob, BaseException], None] | None = None  # what tests know of every error
        self._time: FrozenTime | None = None

    def __repr__(self) -> str:
        return f"<App of {len(set(self.tasks.values()))} tasks>"

    # Tasks.

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        queue: str | None = None,
        max_tries: int | None = None,
        time_limit: Duration | None = None,
        retry_on: Kinds | None = None,
        fail_on: Kinds | None = None,
        backoff: Backoff | float | None = None,
        deadline: Duration | None = None,
        concurrency: int | None = None,
        result_ttl: Duration | None = None,
        isolate: bool = False,
        on_failure: Workflow[FailedCall, Any] | None = None,
        hooks: Iterable[object] = (),
    ) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        hooks: Iterable[object] = (),
        **options: Any,
    ) -> Any:
        """Make a function a task.

        - `name`: by default `module.function`. `aliases`: names that it had before; their jobs are run, too.
        - `queue`: where its jobs go.
        - `max_tries`: deliveries after which a job goes to the dead letters; 25 by default, 0 is without limit.
        - `retry_on`, `fail_on`: exception classes. Of these only the first are tried again; the others go to the dead
          letters at once. By default every exception is tried again.
        - `backoff`: how long a job waits after an error: seconds, `Fixed`, `Exponential` or a function of its tries.
        - `time_limit`: maximum run time in seconds. `deadline`: don't start later than this after the push.
        - `concurrency`: how many run at the same time in one worker process.
        - `isolate`: run each call of a plain function in a process of its own, which its time limit kills.
        - `result_ttl`: how long results are kept, in seconds; 0: not at all. By default a day for functions that are
          annotated with a return type other than None.
        - `on_failure`: a call, chain or group that is pushed when a call of the task goes to the dead letters.
        """
        if function is not None:
            return self._add(function, name, aliases, hooks, options)
        return lambda function: self._add(function, name, aliases, hooks, options)

    def cron(
        self,
        expression: str,
        *,
        timezone: str = "UTC",
        missed: str = "once",
        **options: Any,
    ) -> TaskDecorator:
        """Make a function a task that workers push by the clock; see `Schedule`.

        `missed` says what becomes of runs that came while no worker ran: "once" pushes the last of them, "all" each one
        of the last week, "skip" none. Other options are those of `task`. The function needs no arguments.
        """
        schedule = Schedule(expression, timezone)
        checked_missed(missed)

        def decorate(function: Callable[..., Any]) -> Any:
            task = self.task(**options)(function)
            task.arguments.encode((), {})  # CallerError or TypeError if it needs arguments
            self.crons[task.name] = Cron(task, schedule, missed)
            return task

        return decorate

    def _add(
        self,
        function: Callable[..., Any],
        name: str | None,
        aliases: Sequence[str],
        hooks: Iterable[object],
        options: Mapping[str, Any],
    ) -> Task[Any, Any, Any]:
        if not callable(function):
            raise CallerError(f"a task must be a function, got {function!r}; options go by name, as in queue='mail'")
        if isinstance(aliases, str):
            raise CallerError(f"aliases must be a list of names, got {aliases!r}")
        name = name or task_name(function)
        task: Task[Any, Any, Any] = Task(self, function, name, tuple(aliases), checked(name, options, self.queue))
        task.hooks = self.hooks.and_also(hooks)
        for one in (name, *aliases):
            if one in self.tasks:
                raise CallerError(f"the app has a task {one} already: give one of them another name=")
            self.tasks[one] = task
        return task

    def check(self) -> None:
        """Check all tasks, as a worker does before it begins: CallerError for annotations that can't be used."""
        for task in self.tasks.values():
            task.arguments.prepare()

    # The store.

    @property
    def url(self) -> str:
        """The URL of the store."""
        url = settings.find("url", self._url).value
        if url is None:
            raise CallerError("the app has no store: App('sqlite:///shop.db'), or set PENSTOCK_URL")
        # Pushes from both forms, and the worker, shall meet in one store.
        return self._memory_name if url == "memory:" else url

    def settings(self) -> list[settings.Value]:
        """Return the settings that are in force, and where each came from."""
        return [settings.find(name, value) for name, value in self._given.items()]

    @property
    def shown_url(self) -> str:
        """The URL without a password."""
        return without_password(self.url)

    @property
    def _other_results_url(self) -> str | None:
        return None if self._time is not None else settings.find("results", self._given["results"]).value

    @property
    def _options_of_store(self) -> dict[str, Any]:
        return {} if self._time is not None else self._store_options

    @property
    def client(self) -> TaskClient:
        """What pushes in this event loop."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            store = aio.connect(self.url, **self._options_of_store)
            if self._time is not None:
                self._time.set_store(store)
            other = self._other_results_url
            client = TaskClient(store, None if other is None else aio.connect(other))
            self._clients[loop] = client
        return client

    @property
    def blocking_client(self) -> BlockingClient:
        """What pushes without an event loop."""
        with self._lock:
            if self._blocking_client is None:
                store = blocking.connect(self.url, **self._options_of_store)
                if self._time is not None:
                    self._time.set_store(store)
                other = self._other_results_url
                self._blocking_client = BlockingClient(store, None if other is None else blocking.connect(other))
            self._blocking_client.store.open()
            return self._blocking_client

    async def __aenter__(self) -> Self:
        await self.client.store.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close this event loop's connections to the store."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def open_blocking(self) -> None:
        """Open the connections of pushes without an event loop.

        The first push does it, too; but not within a transaction that holds the lock of an SQLite file.
        """
        _ = self.blocking_client

    def close_blocking(self) -> None:
        """Close the connections of pushes without an event loop."""
        with self._lock:
            client, self._blocking_client = self._blocking_client, None
        if client is not None:
            client.close()

    def worker(self, **options: Any) -> TaskWorker:
        """Return a worker of this app. Options are those of `TaskWorker`."""
        return TaskWorker(self, **options)

    def record_events(self, directory: str) -> None:
        """Record what happens to jobs in this process, as `penstock worker --events` does. Before the first push."""
        self._store_options["events"] = directory

    def known_queues(self) -> list[str]:
        """Return the names of the queues of all tasks."""
        return sorted({task.settings.queue for task in self.tasks.values()} | set(self.queues))

    # Tests.

    def testing(self, *, start: datetime | None = None) -> TestingContext:
        """Run the app in memory, with a clock that stands still: for `with`, or `async with`, in tests.

        The clock begins at `start`, by default now.
        """
        return TestingContext(self, start)

    @property
    def is_under_test(self) -> bool:
        """Whether the app runs in memory, for a test."""
        return self._time is not None

    @property
    def may_wait(self) -> bool:
        """Whether waiting for a result makes sense: in a test only beside what the test runs, and not within a task."""
        return self._time is None or (self._time.is_running and current.get(None) is None)

    def replace_store(
        self, url: str, time: FrozenTime, on_error: Callable[[TaskJob, BaseException], None]
    ) -> dict[str, Any]:
        """Use another store, and the time of a test; returns what `restore_store` takes."""
        if self._time is not None:
            raise CallerError("the app is under test already: leave the other app.testing() first")
        names = ("_url", "_clients", "_blocking_client", "now", "on_error", "_time")
        before = {name: getattr(self, name) for name in names}
        self._url, self._clients, self._blocking_client = url, WeakKeyDictionary(), None
        self.now, self.on_error, self._time = time.now, on_error, time
        return before

    def restore_store(self, before: dict[str, Any]) -> None:
        """Undo `replace_store`."""
        self.close_blocking()
        for name, value in before.items():
            setattr(self, name, value)

    # Pushes.

    async def push_prepared(self, one: PreparedCall, task: Task[Any, R, Any]) -> Handle[R]:
        """Push a checked call."""
        job_id = await self.client.push(one)
        if task.hooks:
            task.hooks.pushed(PushedCall(task.name, job_id, one.queue, one.message.args))
        return Handle(self, one.message.id or job_id, task, one.queue)

    def push_prepared_blocking(self, one: PreparedCall, task: Task[Any, R, Any]) -> BlockingHandle[R]:
        """Push a checked call without an event loop."""
        self._check_may_block(f"{task.name}.blocking.push()", f"{task.name}.push()")
        job_id = self.blocking_client.push(one)
        if task.hooks:
            task.hooks.pushed(PushedCall(task.name, job_id, one.queue, one.message.args))
        return BlockingHandle(self, one.message.id or job_id, task, one.queue)

    async def push_workflow(self, workflow: Workflow[object, R], connection: Any) -> Handle[R]:
        """Push a call, a chain or a group as one job."""
        if isinstance(workflow, Call):
            one = workflow.prepared()
            if connection is not None:
                one.options["connection"] = connection
            return await self.push_prepared(one, workflow.task)
        one = self._prepared_workflow(workflow, connection)
        job_id = await self.client.push_workflow(one, shape_text(workflow))
        self.note_pushed(one, job_id)
        return Handle(self, one.flow_id, None, one.queue, workflow=workflow, job_id=job_id)

    def push_workflow_blocking(self, workflow: Workflow[object, R], connection: Any) -> BlockingHandle[R]:
        """Push a call, a chain or a group without an event loop."""
        if isinstance(workflow, Call):
            one = workflow.prepared()
            if connection is not None:
                one.options["connection"] = connection
            return self.push_prepared_blocking(one, workflow.task)
        self._check_may_block("blocking.push()", "push()")
        one = self._prepared_workflow(workflow, connection)
        job_id = self.blocking_client.push_workflow(one, shape_text(workflow))
        self.note_pushed(one, job_id)
        return BlockingHandle(self, one.flow_id, None, one.queue, workflow=workflow, job_id=job_id)

    def _prepared_workflow(self, workflow: Workflow[object, Any], connection: Any) -> PreparedCall:
        context = self.carried() if self.context else None
        return prepared(workflow, self.now(), context, connection)

    def note_pushed(self, one: PreparedCall, job_id: str) -> None:
        """Call the hooks of a task after one of its calls was pushed."""
        task = self.tasks.get(one.message.task)
        if task is not None and task.hooks:
            task.hooks.pushed(PushedCall(task.name, one.message.id or job_id, one.queue, one.message.args))

    def _check_may_block(self, call: str, other: str) -> None:
        if _running_loop() and not self._is_quick:
            raise CallerError(f"{call} would block the event loop that runs here: await {other}")

    @property
    def _is_quick(self) -> bool:
        return self.url.startswith("memory:")

    async def push_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Push many calls, those of one queue together: 1,000 a round trip."""
        calls = list(calls)
        for call in calls:
            if not isinstance(call, Call):
                raise CallerError(f"push_many takes calls with all their arguments, got {call!r}: push it by itself")
        prepared = [call.prepared() for call in calls]
        ids = await self.client.push_many(prepared)
        for call, one, job_id in zip(calls, prepared, ids, strict=True):
            if call.task.hooks:
                call.task.hooks.pushed(PushedCall(call.task.name, job_id, one.queue, one.message.args))
        return [
            Handle(self, job_id, call.task, one.queue) for call, one, job_id in zip(calls, prepared, ids, strict=True)
        ]

    def handle(self, call_id: str, task: Task[Any, R, Any] | None = None) -> Handle[R]:
        """Return the handle of a call by its id; with its task, the result has the task's type."""
        return Handle(self, call_id, task)

    def blocking_handle(self, call_id: str, task: Task[Any, R, Any] | None = None) -> BlockingHandle[R]:
        """Return the handle of a call, for programs without an event loop."""
        return BlockingHandle(self, call_id, task)

    def carried(self) -> dict[str, Any] | None:
        """Return the values of the context variables that are set here."""
        nothing = object()
        found = {name: variable.get(nothing) for name, variable in self.context.items()}
        return {name: to_plain(value) for name, value in found.items() if value is not nothing} or None


def _running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
