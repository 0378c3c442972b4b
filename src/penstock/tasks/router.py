"""What a worker does with each job of an app.

| the job                                   | what becomes of it                                                       |
|-------------------------------------------|--------------------------------------------------------------------------|
| of a task that the app has                | its function is called                                                   |
| of one that it doesn't have               | waits in `__unknown__`, or with `unknown="fail"` is a dead letter        |
| in `__unknown__`, of a task that it has   | goes back to the queue that it came from                                 |
| of an app's task, with no tries left      | a dead letter: its worker was killed during the last try                 |
| of a workflow that was cancelled          | acked; its function isn't called, or is stopped                          |
| that starts a group, or waits for one     | see `continuation`                                                       |
| past its deadline                         | a dead letter                                                            |
| whose body or arguments don't fit         | a dead letter, with a sentence that names the argument                   |

What the function raises is tried again, unless `retry_on` or `fail_on` say otherwise.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import BadPayload, CallerError, LeaseLost
from penstock.queues.aio import Job
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letter import Failure, described
from penstock.tasks.arguments import BoundArguments
from penstock.tasks.continuation import Continuation
from penstock.tasks.isolation import IsolatedRunner
from penstock.tasks.message import JOIN_TASK, START_TASK, UNKNOWN_QUEUE, Message, read
from penstock.tasks.results import done_text, failed_text, key_of, plain_result, since_key, since_text, stop_key
from penstock.tasks.running import TaskJob, current
from penstock.worker import Fail, Retry, Route
from penstock.worker.outcomes import DONE, Action, Destination, GivenUp, Outcome, WorkerStopped
from penstock.worker.reporting import log_event
from penstock.worker.run import NOTE_S

if TYPE_CHECKING:
    from penstock.tasks.app import App
    from penstock.tasks.task import Task

UNKNOWN_PAUSE_S = 30.0  # between two looks at a job whose task is unknown
FLOW_KEYS = {"flow", "on_failure"}  # of the body of a job
SINCE_TTL_S = 3 * NOTE_S  # of the note that a call runs: it is written again meanwhile
LONG_S = 1.0  # a call that took longer may have been cancelled meanwhile, which is looked for before its result is kept
AS_THEY_ARE = (Retry, Fail, LeaseLost, WorkerStopped, asyncio.CancelledError)


class TaskRouter:
    """Chooses the route of each job of an app."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._continuation = Continuation(app)
        routes = {name: _routes_of(task, self._continuation) for name, task in app.tasks.items()}
        self._routes = {name: route for name, (route, _) in routes.items()}
        self._flow_routes = {name: route for name, (_, route) in routes.items()}  # for calls of workflows
        self._exhausted = {name: _exhausted_route(route) for name, route in self._routes.items()}
        # The jobs of these come with no limit on tries: whoever has the task decides.
        self._malformed = Route(_refuse, is_async=True, max_tries=1)
        self._unknown = Route(self._put_aside, is_async=True, max_tries=0, failed=self._unknown_failed)
        self._returning = Route(self._return, is_async=True, max_tries=0)
        self._own = {
            # Both without a limit on tries: workers that die beside them are no fault of theirs. Their age is limited.
            START_TASK: Route(self._start, is_async=True, max_tries=0, failed=self._unknown_failed),
            JOIN_TASK: Route(self._join, is_async=True, max_tries=0, failed=self._unknown_failed),
        }

    @property
    def counts_late(self) -> bool:
        """Whether jobs may have to wait in the worker, since enough calls of their task run."""
        return any(route.concurrency is not None for route in self._routes.values())

    def route(self, job: Job) -> Route:
        """Return what to do with a job."""
        payload = job.payload
        name = payload.get("task") if isinstance(payload, dict) else None
        if not isinstance(name, str):
            return self._malformed
        route = (self._routes if payload.get("flow") is None else self._flow_routes).get(name) or self._own.get(name)
        if job.queue.name == UNKNOWN_QUEUE:
            return self._unknown if route is None else self._returning
        if route is None:
            return self._unknown
        if route.limit.error_of(job.stored):
            return self._exhausted.get(name) or _exhausted_route(route)
        return route

    async def _start(self, job: Job) -> Outcome:
        with _hopeless():
            return await self._continuation.start(job, _message(job))

    async def _join(self, job: Job) -> Outcome:
        with _hopeless():
            return await self._continuation.join(job, _message(job))

    async def _unknown_failed(self, job: Job, failure: Failure) -> None:
        if isinstance(job.payload, dict) and job.payload.keys() & FLOW_KEYS:
            await self._continuation.failed(job, _message(job), failure, None)

    async def _put_aside(self, job: Job) -> Outcome:
        name = job.payload["task"]
        why = f"there is no task {name} in this app"
        if self._app.unknown == "fail":
            raise Fail(why)
        if job.queue.name == UNKNOWN_QUEUE:
            return Outcome(Action.NACK, UNKNOWN_PAUSE_S, why)
        log_event(
            "unknown",
            f"{job.queue.name} {job.id} waits in {UNKNOWN_QUEUE}: {why}. A worker that has it will run it.",
            queue=job.queue.name,
            job=job.id,
            task=name,
        )
        # On some stores a job has another id in another queue: by this one its result and its effects are known.
        aside = {**job.payload, "queue": job.queue.name, "id": _call_id(job)}
        return _moved(job, UNKNOWN_QUEUE, aside)

    async def _return(self, job: Job) -> Outcome:
        message = _message(job)
        to = message.queue
        if to is None or to == UNKNOWN_QUEUE:
            to = self._app.tasks[message.task].settings.queue
        fresh = {key: value for key, value in job.payload.items() if key != "queue"}
        return _moved(job, to, fresh)


@contextmanager
def _hopeless() -> Iterator[None]:
    """Raise Fail for what the store refuses: another try would find the same."""
    try:
        yield
    except LeaseLost:
        raise
    except CallerError as problem:
        raise Fail(str(problem)) from problem


async def _refuse(job: Job) -> Outcome:
    try:
        read(job.payload)
    except ValueError as problem:
        raise Fail(str(problem)) from None
    raise Fail("the body is not that of a task")


def _message(job: Job) -> Message:
    try:
        return read(job.payload)
    except ValueError as problem:
        raise Fail(str(problem)) from None


def _moved(job: Job, to: str, payload: Any) -> Outcome:
    """Return a move. Fail for one that can never be made: no other try would end such a job."""
    destination = Destination(to, payload)
    try:
        destination.transfer(job)
    except CallerError as problem:
        raise Fail(str(problem)) from problem
    return Outcome(Action.MOVE, destination=destination)


class Keeper:
    """Keeps what becomes of the calls of a task, and goes on with their workflows."""

    def __init__(self, task: Task[Any, Any, Any], continuation: Continuation) -> None:
        self._app = task.app
        self._task = task
        self._ttl = task.result_ttl
        self._continuation = continuation

    async def done(self, job: Job, result: Any, seconds: float) -> Outcome:
        if isinstance(result, Outcome):  # its workflow was cancelled
            return result
        try:
            plain = plain_result(result)
            if job.payload.get("flow") is not None:
                return await self._continuation.done(job, _message(job), plain)
            if not self._ttl:
                return DONE
            record = done_text(plain, self._app.now())
        except BadPayload as problem:
            raise Fail(str(problem)) from problem
        key = key_of(_call_id(job))
        if seconds > LONG_S and await self._app.client.record(key) is not None:
            return DONE  # somebody cancelled it, and has removed the job
        await self._app.client.keep(key, record, self._ttl)
        return DONE

    async def still_runs(self, job: Job, seconds: float) -> None:
        client = self._app.client
        if Capability.VALUES in client.results.capabilities:
            await client.keep(since_key(_call_id(job)), since_text(self._app.now() - seconds), SINCE_TTL_S)

    async def failed(self, job: Job, failure: Failure) -> None:
        message = None
        if job.payload.keys() & FLOW_KEYS or self._task.settings.on_failure is not None:
            message = _message(job)
            await self._continuation.failed(job, message, failure, self._task)
        if self._ttl and (message is None or message.flow is None):
            record = failed_text(failure.text, failure.trace, self._app.now())
            await self._app.client.keep(key_of(_call_id(job)), record, self._ttl)


def _call_id(job: Job) -> str:
    return str(job.payload.get("id") or job.id)


def _routes_of(task: Task[Any, Any, Any], continuation: Continuation) -> tuple[Route, Route]:
    """Return the route of the jobs of a task, and that of those in workflows."""
    to = task.settings
    keeper = Keeper(task, continuation)
    is_isolated = to.isolate and not task.app.is_under_test
    is_async = task.is_async or is_isolated
    runner = IsolatedRunner(task) if is_isolated else AsyncRunner(task) if task.is_async else PlainRunner(task)

    def route(in_workflow: bool) -> Route:
        return Route(
            _unless_stopped(runner.run, is_async) if in_workflow else runner.run,
            is_async=is_async,
            max_tries=to.max_tries,
            time_limit=to.time_limit,
            backoff=to.backoff,
            concurrency=to.concurrency,
            done=keeper.done if in_workflow or task.keeps_results else None,
            failed=keeper.failed,
            is_cancelled=_is_stopped if in_workflow else None,
            still_runs=keeper.still_runs,
        )

    of_workflows = route(in_workflow=True)
    # A route counts what runs of it: with a limit, there is one for all.
    return (route(in_workflow=False) if to.concurrency is None else of_workflows), of_workflows


def _unless_stopped(run: Callable[[Any], Any], is_async: bool) -> Callable[[Any], Any]:
    """Return a handler that doesn't begin a call of a workflow that was cancelled."""

    async def run_async(job: Job) -> Any:
        return DONE if await _is_stopped(job) else await run(job)

    def run_plain(job: Any) -> Any:
        key = _stop_key(job)
        is_stopped = key is not None and job.queue.store.value(key) is not None
        return DONE if is_stopped else run(job)

    return run_async if is_async else run_plain


async def _is_stopped(job: Job) -> bool:
    key = _stop_key(job)
    return key is not None and await job.queue.store.value(key) is not None


def _stop_key(job: Any) -> str | None:
    flow = job.payload.get("flow")
    return stop_key(str(flow.get("id"))) if isinstance(flow, dict) else None


def _exhausted_route(route: Route) -> Route:
    async def give_up(job: Job) -> Outcome:
        error = route.limit.error_of(job.stored)
        job.stored.tries = max(0, job.stored.tries - 1)  # those before the last one, as on every dead letter
        raise Fail(error)

    return Route(give_up, is_async=True, max_tries=0, failed=route.failed)


class Beginning:
    """What comes before and after a task's function, whatever kind of function it is."""

    def __init__(self, task: Task[Any, Any, Any]) -> None:
        self._task = task
        self._hooks = task.hooks
        self._context = task.app.context
        self._decode = task.arguments.decode

    def begin(self, job: Any) -> tuple[BoundArguments, TaskJob]:
        """Return the arguments, and the job as the function may ask for it. Fail for a job that can't be run."""
        task = self._task
        try:
            message = read(job.payload)
            call = self._decode(message.args)
        except ValueError as problem:
            raise Fail(f"task {task.name}: {problem}") from None
        if message.deadline is not None and task.app.now() > message.deadline:
            late = task.app.now() - message.deadline
            raise Fail(f"task {task.name}: its deadline was {late:.1f} s ago, before it could start")
        running = TaskJob(job, task, message)
        current.set(running)
        if self._context:
            self._set_context(message)
        if self._hooks:
            self._hooks.before(running)
        return call, running

    def _set_context(self, message: Message) -> None:
        for name, value in (message.context or {}).items():
            variable = self._context.get(name)
            if variable is not None:
                variable.set(value)

    def judge(self, problem: BaseException, running: TaskJob) -> None:
        """Raise Fail in place of what the function raised, if another try is hopeless."""
        if self._hooks:
            self._hooks.failed(running, problem)
        if self._task.app.on_error is not None:
            self._task.app.on_error(running, problem)
        to = self._task.settings
        is_hopeless = isinstance(problem, to.fail_on) or (
            to.retry_on is not None and not isinstance(problem, to.retry_on)
        )
        if is_hopeless and not isinstance(problem, AS_THEY_ARE):
            raise GivenUp(described(problem)) from problem


class AsyncRunner:
    """Runs a task that is an `async def`."""

    def __init__(self, task: Task[Any, Any, Any]) -> None:
        self._function = task.function
        self._beginning = Beginning(task)
        self._hooks = task.hooks

    async def run(self, job: Job) -> Any:
        """Run the task of a job."""
        call, running = self._beginning.begin(job)
        try:
            result = await self._function(*call.positional, **call.named)
        except BaseException as problem:
            self._beginning.judge(problem, running)
            raise
        if self._hooks:
            self._hooks.after(running, result)
        return result


class PlainRunner:
    """Runs a task that is a plain function, in a thread."""

    def __init__(self, task: Task[Any, Any, Any]) -> None:
        self._function = task.function
        self._beginning = Beginning(task)
        self._hooks = task.hooks

    def run(self, job: Any) -> Any:
        """Run the task of a job, in a context of its own: the thread goes on to other jobs."""
        return contextvars.copy_context().run(self._run, job)

    def _run(self, job: Any) -> Any:
        call, running = self._beginning.begin(job)
        try:
            result = self._function(*call.positional, **call.named)
        except BaseException as problem:
            self._beginning.judge(problem, running)
            raise
        if self._hooks:
            self._hooks.after(running, result)
        return result
