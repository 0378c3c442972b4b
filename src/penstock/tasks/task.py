"""Tasks: functions that can be pushed. Each way to push takes the arguments of the function, as type checkers see them.

task.push(...)                  await it: the job is stored
task.blocking.push(...)         the same from code without an event loop
task.options(delay=60).push(…)  with options for this one push
task.call(...)                  a call that is not pushed yet, for workflows too
task.step(...)                  a call without its first argument, which is the result of what comes before it
task(...)                       calls the function, here and now
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from penstock.errors import CallerError
from penstock.queues.push import plain_seconds, point_ms, seconds
from penstock.tasks.aio.handle import Handle
from penstock.tasks.arguments import Arguments, from_plain
from penstock.tasks.blocking.handle import BlockingHandle
from penstock.tasks.call import PreparedCall
from penstock.tasks.message import Message, WorkflowPart
from penstock.tasks.options import NO_OPTIONS, PushChoices, PushOptions, TaskOptions, refuse_to_come
from penstock.tasks.results import RESULT_TTL_S
from penstock.tasks.workflow import R_co, Workflow, X, X_contra, failure_node

if TYPE_CHECKING:
    from penstock.tasks.app import App

# What other libraries call it -> what to write.
ELSEWHERE = {
    "apply_async": "options(...).push(...)",
    "delay": "push(...), or blocking.push(...) without an event loop",
    "s": "call(...), or step(...) without the first argument",
    "send": "push(...), or blocking.push(...) without an event loop",
    "send_with_options": "options(...).push(...)",
    "si": "call(...)",
    "signature": "call(...)",
}

P = ParamSpec("P")
Q = ParamSpec("Q")  # the parameters behind the first
R = TypeVar("R")  # what the function returns, once awaited
D = TypeVar("D")  # what a direct call of it returns


class Call(Workflow[object, R_co]):
    """A call of a task that is not pushed yet: the task, its arguments and its options."""

    __slots__ = ("_args", "_named", "_options", "_plain", "task")

    def __init__(
        self, task: Task[Any, R_co, Any], args: tuple[Any, ...], named: dict[str, Any], to: PushOptions
    ) -> None:
        self.task = task
        self._args = args
        self._named = named
        self._options = to
        self._plain = task.arguments.encode(args, named)  # so that a mistake is found where the call is written

    def __repr__(self) -> str:
        return _shown(self.task.name, self._args, self._named)

    @property
    def app(self) -> App:
        return self.task.app

    @property
    def takes_result(self) -> bool:
        return False

    def prepared(self) -> PreparedCall:
        """Return what is pushed."""
        return self.task.prepared_plain(self._plain, self._options)

    def node(self, at: str, depth: int = 0) -> WorkflowPart:
        return self.task.node(at, self._plain, None, self._options)

    def read(self, plain: Any) -> R_co:
        return cast(R_co, self.task.read(plain))


class Step(Workflow[X_contra, R_co]):
    """A call without its first argument, which is the result of what comes before it in a chain."""

    def __init__(
        self, task: Task[Any, R_co, Any], args: tuple[Any, ...], named: dict[str, Any], to: PushOptions
    ) -> None:
        self.task = task
        self._args = args
        self._named = named
        self._options = to
        self._takes = task.arguments.first
        self._plain = task.arguments.encode_rest(args, named)

    def __repr__(self) -> str:
        return _shown(self.task.name, ("...", *map(repr, self._args)), self._named, str)

    @property
    def app(self) -> App:
        return self.task.app

    @property
    def takes_result(self) -> bool:
        return True

    def node(self, at: str, depth: int = 0) -> WorkflowPart:
        return self.task.node(at, self._plain, self._takes, self._options)

    def read(self, plain: Any) -> R_co:
        return cast(R_co, self.task.read(plain))


def _shown(task: str, args: tuple[Any, ...], named: dict[str, Any], show: Callable[[Any], str] = repr) -> str:
    values = [*map(show, args), *(f"{name}={value!r}" for name, value in named.items())]
    return f"<{task}({', '.join(values)})>"


class TakesFirst(Protocol[X_contra, Q, R]):
    """What can be pushed with a first argument: so a type checker knows the type of that, and what comes behind it."""

    async def push(self, first: X_contra, /, *args: Q.args, **named: Q.kwargs) -> Handle[R]: ...


class Pusher(Generic[P, R]):
    """Pushes a task with options of its own; made by `task.options(...)`."""

    def __init__(self, task: Task[P, R, Any], options: PushOptions) -> None:
        self._task = task
        self._options = options

    async def push(self, *args: P.args, **named: P.kwargs) -> Handle[R]:
        """Push a call."""
        task = self._task
        return await task.app.push_prepared(task.prepared(args, named, self._options), task)

    @overload
    def call(  # type: ignore[overload-overlap]  # with no argument it is a call only if none must be given
        self, *args: P.args, **named: P.kwargs
    ) -> Call[R]: ...
    @overload
    def call(self: TakesFirst[X, Q, R]) -> Step[X, R]: ...
    def call(self, *args: Any, **named: Any) -> Call[R] | Step[Any, R]:
        """Return a call that is not pushed yet; without its first argument, if that must be given, a step."""
        return self._task.made_call(args, named, self._options)

    def step(self: TakesFirst[X, Q, R], *args: Q.args, **named: Q.kwargs) -> Step[X, R]:
        """Return a call that gets the result of what comes before it as its first argument; these are the others."""
        pusher: Any = self  # the annotation is for type checkers
        return Step(pusher._task, args, dict(named), pusher._options)

    @property
    def blocking(self) -> BlockingPusher[P, R]:
        """The same without an event loop."""
        return BlockingPusher(self._task, self._options)


class BlockingPusher(Generic[P, R]):
    """Pushes a task from code without an event loop."""

    def __init__(self, task: Task[P, R, Any], options: PushOptions) -> None:
        self._task = task
        self._options = options

    def push(self, *args: P.args, **named: P.kwargs) -> BlockingHandle[R]:
        """Push a call."""
        task = self._task
        return task.app.push_prepared_blocking(task.prepared(args, named, self._options), task)

    def options(self, **options: Unpack[PushChoices]) -> BlockingPusher[P, R]:
        """Return a pusher with these options; see `Task.options`."""
        return BlockingPusher(self._task, replace(self._options, **options))


class Task(Generic[P, R, D]):
    """A function of an app that can be pushed. Made by `@app.task`."""

    def __init__(
        self, app: App, function: Callable[P, D], name: str, aliases: tuple[str, ...], to: TaskOptions
    ) -> None:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise CallerError(f"task {name} must be a function, got a generator, which does nothing when called")
        self.app = app
        self.function = function
        self.name = name
        self.aliases = aliases
        self.settings = to
        self.arguments = Arguments(name, function)
        self.hooks = app.hooks
        self.is_async = inspect.iscoroutinefunction(function)
        if to.isolate and (self.is_async or "<locals>" in function.__qualname__):
            raise CallerError(f"task {name}: isolate=True is for plain functions at the top of a module")
        returned = inspect.signature(function).return_annotation
        has_result = returned not in (inspect.Signature.empty, None, "None", Never, NoReturn)
        own = to.result_ttl
        self.result_ttl = own if own is not None else RESULT_TTL_S if has_result else 0.0
        update_wrapper(self, function)

    if not TYPE_CHECKING:  # or every name would be an attribute for a type checker

        def __getattr__(self, name: str) -> Any:
            here = ELSEWHERE.get(name)
            hint = "" if here is None else f": it is {self.__dict__.get('name', 'task')}.{here} here"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    @property
    def keeps_results(self) -> bool:
        """Whether results of calls are kept."""
        return self.result_ttl > 0

    @property
    def returns(self) -> Any:
        """The type of the result."""
        self.arguments.prepare()
        return self.arguments.returns

    def __repr__(self) -> str:
        return f"<Task {self.name} of queue {self.settings.queue!r}>"

    def __call__(self, *args: P.args, **named: P.kwargs) -> D:
        """Call the function here and now, without a queue."""
        return self.function(*args, **named)

    async def push(self, *args: P.args, **named: P.kwargs) -> Handle[R]:
        """Push a call: a worker will run it. Arguments are checked here."""
        return await self.app.push_prepared(self.prepared(args, named, NO_OPTIONS), self)

    @property
    def blocking(self) -> BlockingPusher[P, R]:
        """`blocking.push(...)` pushes from code without an event loop."""
        return BlockingPusher(self, NO_OPTIONS)

    def options(self, **options: Unpack[PushChoices]) -> Pusher[P, R]:
        """Return a pusher with options for its pushes.

        `delay` (seconds or timedelta), `at` (unix time or datetime with a zone), `unique` and `unique_for`, `queue`,
        `deadline` (don't start after that many seconds), `ttl`, `retry`, `replicate`, and `connection`: push within the
        transaction that is open there.
        """
        refuse_to_come(f"a push of {self.name}", options)
        known = PushOptions.__dataclass_fields__
        unknown = [name for name in options if name not in known]
        if unknown:
            raise TypeError(f"a push has no option {unknown[0]}=; there are {', '.join(sorted(known))}")
        return Pusher(self, PushOptions(**options))

    @overload
    def call(  # type: ignore[overload-overlap]  # with no argument it is a call only if none must be given
        self, *args: P.args, **named: P.kwargs
    ) -> Call[R]: ...
    @overload
    def call(self: TakesFirst[X, Q, R]) -> Step[X, R]: ...
    def call(self, *args: Any, **named: Any) -> Call[R] | Step[Any, R]:
        """Return a call that is not pushed yet.

        Without its first argument, if that must be given, it is a step: what comes before it in a chain gives that.
        """
        return self.made_call(args, named, NO_OPTIONS)

    def step(self: TakesFirst[X, Q, R], *args: Q.args, **named: Q.kwargs) -> Step[X, R]:
        """Return a call that gets the result of what comes before it as its first argument; these are the others."""
        task: Any = self  # the annotation is for type checkers
        return Step(task, args, dict(named), NO_OPTIONS)

    def made_call(self, args: tuple[Any, ...], named: dict[str, Any], options: PushOptions) -> Call[R] | Step[Any, R]:
        """Return a call, or a step if it lacks its first argument."""
        is_step = not args and not named and self.arguments.needs_first
        return (Step if is_step else Call)(self, args, named, options)

    def node(self, at: str, args: dict[str, Any], takes: str | None, options: PushOptions) -> WorkflowPart:
        """Return a call as a part of a workflow."""
        names = ("unique", "ttl", "retry", "replicate", "connection")
        refused = [name for name in names if getattr(options, name) is not None]
        if refused:
            raise CallerError(f"a call of a workflow can't have {refused[0]}=, got it for {self.name}")
        queue = options.queue or self.settings.queue
        deadline = plain_seconds(options.deadline) if options.deadline is not None else self.settings.deadline
        found = WorkflowPart(at, self.name, args, takes, queue, deadline=deadline)
        if options.at is not None:
            found.time = point_ms("at", options.at) / 1000
        else:
            found.delay = seconds("delay", options.delay)
        found.on_failure = failure_node(at, options.on_failure)
        return found

    def read(self, plain: Any) -> Any:
        """Return a result from what is stored."""
        return from_plain(plain, self.returns) if self.keeps_results else plain

    def prepared(self, args: tuple[Any, ...], named: Mapping[str, Any], options: PushOptions) -> PreparedCall:
        """Return a call, checked and ready to be pushed."""
        return self.prepared_plain(self.arguments.encode(args, named), options)

    def prepared_plain(self, plain: dict[str, Any], options: PushOptions) -> PreparedCall:
        """Return a call whose arguments have been checked and written as JSON has them."""
        message = Message(self.name, plain)
        deadline = plain_seconds(options.deadline) if options.deadline is not None else self.settings.deadline
        if deadline is not None:
            message.deadline = self.app.now() + deadline
        if self.app.context:
            message.context = self.app.carried()
        message.on_failure = failure_node("", options.on_failure)
        to = options.queue or self.settings.queue
        return PreparedCall(to, message, self.arguments, {} if options is NO_OPTIONS else options.of_queue)
