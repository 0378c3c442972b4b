"""Workflows: calls that follow one another, or run side by side.

    chain(load.call(url), clean.call(), store.step("table"))     each result goes to the next
    group([resize.call(path, size) for size in SIZES])           all of them, at the same time
    group([...]).then(publish.call())                            publish gets the list of results, once

A workflow is a tree of calls, chains and groups. It is pushed as one job, which carries the tree; `continuation` is
what a worker does when a call of it has ended. What takes the result of what came before is a `Step`: a call without
its first argument. Anything else can come second, too, and is then called as it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from penstock.codec import to_json
from penstock.errors import CallerError
from penstock.job import new_id
from penstock.tasks.aio.handle import Handle
from penstock.tasks.blocking.handle import BlockingHandle
from penstock.tasks.call import PreparedCall
from penstock.tasks.message import START_TASK, Flow, Frame, Message, WorkflowPart
from penstock.tasks.results import FLOW_PREFIX

if TYPE_CHECKING:
    from penstock.tasks.app import App

KEEP_S = 7 * 24 * 3600.0  # that what belongs to a workflow is kept: it must end within that, beside its delays
MEMBERS_MAX = 10_000  # of a group, and steps of a chain: all of them are in the body of one job
DEPTH_MAX = 8  # of chains and groups within one another: paths are parts of keys

X_contra = TypeVar("X_contra", contravariant=True)  # what it takes: `object` if it takes no result
R_co = TypeVar("R_co", covariant=True)  # its result
X = TypeVar("X")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
R = TypeVar("R")


@dataclass(frozen=True)
class FailedCall:
    """What an `on_failure` gets as its first argument, if it leaves that out: the call that failed for good."""

    task: str
    id: str
    queue: str
    error: str
    traceback: str
    args: dict[str, Any]


class Workflow(Generic[X_contra, R_co]):
    """A call, a chain or a group that is not pushed yet."""

    __slots__ = ()

    @property
    @abstractmethod
    def app(self) -> App:
        """The app of its tasks."""

    @property
    @abstractmethod
    def takes_result(self) -> bool:
        """Whether it needs the result of something that comes before."""

    @abstractmethod
    def node(self, at: str, depth: int = 0) -> WorkflowPart:
        """Return it as it is pushed, with this path."""

    @abstractmethod
    def read(self, plain: Any) -> R_co:
        """Return its result from what is stored."""

    def then(self, following: Workflow[R_co, B]) -> Chain[X_contra, B]:
        """Return a chain: what follows is started with the result of this, when this is done."""
        return Chain((self, following))

    async def push(self: Workflow[object, R], *, connection: Any = None) -> Handle[R]:
        """Push it, as one job; with `connection`, within the transaction that is open there."""
        return await self.app.push_workflow(self, connection)

    @property
    def blocking(self: Workflow[object, R]) -> BlockingWorkflow[R]:
        """The same without an event loop."""
        return BlockingWorkflow(self)


class BlockingWorkflow(Generic[R]):
    """A workflow, for programs without an event loop."""

    def __init__(self, workflow: Workflow[object, R]) -> None:
        self._workflow = workflow

    def push(self, *, connection: Any = None) -> BlockingHandle[R]:
        """Push it."""
        return self._workflow.app.push_workflow_blocking(self._workflow, connection)


class Chain(Workflow[X_contra, R_co]):
    """Parts that follow one another. Made by `chain(...)` and `then`."""

    def __init__(
        self, parts: Sequence[Workflow[Any, Any]], on_failure: Workflow[FailedCall, Any] | None = None
    ) -> None:
        self.on_failure: Workflow[FailedCall, Any] | None = on_failure
        flat: list[Workflow[Any, Any]] = []
        for one in parts:
            part = _checked(one, "a chain")
            # A chain within a chain is part of it, unless it has an on_failure of its own.
            flat += part.parts if isinstance(part, Chain) and part.on_failure is None else [part]
        if not flat:
            raise CallerError("a chain must have at least one call, got none")
        self.parts: list[Workflow[Any, Any]] = _few(flat, "a chain")

    def __repr__(self) -> str:
        return f"chain({', '.join(map(repr, self.parts))})"

    @property
    def app(self) -> App:
        return self.parts[0].app

    @property
    def takes_result(self) -> bool:
        return self.parts[0].takes_result

    def node(self, at: str, depth: int = 0) -> WorkflowPart:
        nodes = [one.node(path_of(at, number), _deeper(depth)) for number, one in enumerate(self.parts)]
        return WorkflowPart(at=at, chain=nodes, on_failure=failure_node(at, self.on_failure))

    def read(self, plain: Any) -> R_co:
        return cast(R_co, self.parts[-1].read(plain))


class Group(Workflow[X_contra, list[R_co]]):
    """Members that run side by side. Made by `group([...])`; its result is the list of theirs, in their order."""

    def __init__(
        self, members: Iterable[Workflow[X_contra, R_co]], on_failure: Workflow[FailedCall, Any] | None = None
    ) -> None:
        self.members: list[Workflow[X_contra, R_co]] = _few([_checked(one, "a group") for one in members], "a group")
        if not self.members:
            raise CallerError("a group must have at least one member, got none")
        self.on_failure = on_failure

    def __repr__(self) -> str:
        return f"group([{', '.join(map(repr, self.members))}])"

    @property
    def app(self) -> App:
        return self.members[0].app

    @property
    def takes_result(self) -> bool:
        return any(one.takes_result for one in self.members)

    def node(self, at: str, depth: int = 0) -> WorkflowPart:
        nodes = [one.node(path_of(at, number), _deeper(depth)) for number, one in enumerate(self.members)]
        return WorkflowPart(at=at, group=nodes, on_failure=failure_node(at, self.on_failure))

    def read(self, plain: Any) -> list[R_co]:
        return [one.read(part) for one, part in zip(self.members, plain, strict=True)]


@overload
def chain(first: Workflow[X, A], /, *, on_failure: Workflow[FailedCall, Any] | None = None) -> Chain[X, A]: ...
@overload
def chain(
    first: Workflow[X, A], second: Workflow[A, B], /, *, on_failure: Workflow[FailedCall, Any] | None = None
) -> Chain[X, B]: ...
@overload
def chain(
    first: Workflow[X, A],
    second: Workflow[A, B],
    third: Workflow[B, C],
    /,
    *,
    on_failure: Workflow[FailedCall, Any] | None = None,
) -> Chain[X, C]: ...
@overload
def chain(
    first: Workflow[X, A],
    second: Workflow[A, B],
    third: Workflow[B, C],
    fourth: Workflow[C, D],
    /,
    *,
    on_failure: Workflow[FailedCall, Any] | None = None,
) -> Chain[X, D]: ...
@overload
def chain(
    first: Workflow[X, A],
    second: Workflow[A, B],
    third: Workflow[B, C],
    fourth: Workflow[C, D],
    fifth: Workflow[D, E],
    /,
    *,
    on_failure: Workflow[FailedCall, Any] | None = None,
) -> Chain[X, E]: ...
@overload
def chain(
    first: Workflow[X, A],
    second: Workflow[A, B],
    third: Workflow[B, C],
    fourth: Workflow[C, D],
    fifth: Workflow[D, E],
    sixth: Workflow[E, F],
    /,
    *,
    on_failure: Workflow[FailedCall, Any] | None = None,
) -> Chain[X, F]: ...
def chain(*parts: Workflow[Any, Any], on_failure: Workflow[FailedCall, Any] | None = None) -> Chain[Any, Any]:
    """Return a chain: each part is started with the result of the one before, when that is done.

    A part that fails for good ends the chain; then `on_failure` is pushed, if it is given. Longer chains than six are
    written with `then`.
    """
    return Chain(parts, on_failure)


def group(members: Iterable[Workflow[X, R]], *, on_failure: Workflow[FailedCall, Any] | None = None) -> Group[X, R]:
    """Return a group: its members run side by side, and its result is the list of theirs.

    In a chain, each member is started with the result of what came before. A member that fails for good is the failure
    of the group; the others run all the same. `on_failure` is pushed at the first failure.
    """
    return Group(members, on_failure)


def path_of(around: str, number: int) -> str:
    """Return the path of a part."""
    return f"{around}.{number}" if around else str(number)


def failure_node(at: str, on_failure: Workflow[FailedCall, Any] | None) -> WorkflowPart | None:
    """Return what is started at a failure."""
    if on_failure is None:
        return None
    node: WorkflowPart = _checked(on_failure, "on_failure").node(f"{at}.failed" if at else "failed")
    return node


def prepared(
    workflow: Workflow[object, Any], now: float, context: dict[str, Any] | None, connection: Any
) -> PreparedCall:
    """Return the one job that a workflow is pushed as: its first call, or one that starts the members of a group."""
    if workflow.takes_result:
        raise CallerError(f"{_first_step(workflow)!r} lacks its first argument, and nothing comes before it")
    root = workflow.node("")
    keep = KEEP_S + sum(one.delay + max(0.0, (one.time or 0.0) - now) for one in calls_of(root))
    flow = Flow(FLOW_PREFIX + new_id(), keep, now + keep)
    node, then = root, list[Frame]()
    while node.chain is not None:
        then = [*(Frame(start=one) for one in node.chain[1:]), Frame(end=node.at, on_failure=node.on_failure), *then]
        node = node.chain[0]
    flow.then = then
    if node.task is not None:
        one = prepared_call(node, None, flow, now, context)
    else:
        first = next(calls_of(node))
        flow.at, flow.then = node.at, [Frame(start=node), *then]
        one = PreparedCall(first.queue or "", Message(START_TASK, context=context, flow=flow))
    if connection is not None:
        one.options["connection"] = connection
    return one


def prepared_call(
    node: WorkflowPart, result: Any, flow: Flow, now: float, context: dict[str, Any] | None
) -> PreparedCall:
    """Return the job of a call of a workflow, with the result of what came before."""
    args = node.args if node.takes is None else {node.takes: result, **node.args}
    mine = Flow(flow.id, flow.keep, flow.until, node.at, flow.then)
    message = Message(str(node.task), args, id=f"{flow.id}.{node.at}" if node.at else flow.id, flow=mine)
    message.context = context
    message.on_failure = node.on_failure
    if node.deadline is not None:
        message.deadline = now + node.deadline
    options: dict[str, Any] = {}
    if node.delay:
        options["delay"] = node.delay
    elif node.time is not None and node.time > now:
        options["at"] = node.time
    return PreparedCall(node.queue or "", message, None, options)


def shape_text(workflow: Workflow[Any, Any]) -> str:
    """Return the paths of all calls, for the status of a workflow by its id."""
    return to_json([one.at for one in calls_of(workflow.node(""))])


def calls_of(node: WorkflowPart) -> Iterator[WorkflowPart]:
    """Yield the calls of a tree, in their order."""
    if node.task is not None:
        yield node
    for one in node.chain or node.group or ():
        yield from calls_of(one)


def _first_step(workflow: Workflow[Any, Any]) -> Workflow[Any, Any]:
    if isinstance(workflow, Chain):
        return _first_step(workflow.parts[0])
    if isinstance(workflow, Group):
        return _first_step(next(one for one in workflow.members if one.takes_result))
    return workflow


def _checked(one: Any, where: str) -> Any:
    if not isinstance(one, Workflow):
        raise CallerError(f"{where} is made of calls, chains and groups, as task.call(...) returns one, got {one!r}")
    return one


def _few(parts: list[Any], what: str) -> list[Any]:
    if len(parts) > MEMBERS_MAX:
        raise CallerError(f"{what} must have at most {MEMBERS_MAX} parts, got {len(parts)}: push several")
    return parts


def _deeper(depth: int) -> int:
    if depth >= DEPTH_MAX:
        raise CallerError(f"chains and groups must be at most {DEPTH_MAX} deep within one another")
    return depth + 1
