"""The body of a task's job: a JSON object, which a program in any language can push.

| key          | what                                                                                          |
|--------------|-----------------------------------------------------------------------------------------------|
| `task`       | the name of the task                                                                          |
| `args`       | the arguments by name; may be left out if there are none                                      |
| `id`         | under which its result is kept; the job's id if left out                                      |
| `deadline`   | unix time after which the task is not started any more                                        |
| `context`    | variables of the pusher that the app carries to the task, by name                             |
| `queue`      | of a job that waits in `__unknown__`: where it came from                                      |
| `on_failure` | a node that is started if the job goes to the dead letters                                    |
| `flow`       | its place in a workflow: the workflow's `id`, its own path `at`, the frames that come `then`  |

A **node** is a call (`task`, `args`, `queue`; the result of what came before goes to the parameter `takes`), or has
the nodes of a `chain` or a `group`. Its path is that of the node around it, a dot and its number: `1.0`. A **frame** is
what is still to be done once a call is done: the first of `then` comes first. Each is one of

| frame                     | when the result comes to it                                                     |
|---------------------------|---------------------------------------------------------------------------------|
| `start`: a node           | the node is started with it                                                     |
| `end`: a path             | the chain or group with this path has ended, and this is its result             |
| `member`: path, number, n | it is the result of one of the n members of the group with this path            |

Other keys are left alone: a newer version may have put them there.
"""

from __future__ import annotations

from typing import Any

import msgspec

UNKNOWN_QUEUE = "__unknown__"  # where jobs wait whose task no worker has known yet
USUAL = {"task", "args"}
START_TASK = "penstock.start"  # of a job that starts a group
JOIN_TASK = "penstock.join"  # of a job that waits for a group, where the store has no unique keys
EXAMPLE = '{"task": "shop.welcome", "args": {"user_id": 42}}'


class WorkflowPart(msgspec.Struct, omit_defaults=True):
    """A part of a workflow that is not started yet: a call, a chain or a group."""

    at: str = ""  # its path
    task: str | None = None
    args: dict[str, Any] = {}
    takes: str | None = None  # the parameter for the result of what came before
    queue: str | None = None
    delay: float = 0.0
    time: float | None = None  # unix time before which it isn't run
    deadline: float | None = None  # seconds from its start
    chain: list[WorkflowPart] | None = None
    group: list[WorkflowPart] | None = None
    on_failure: WorkflowPart | None = None


class Frame(msgspec.Struct, omit_defaults=True):
    """What is done with a result."""

    start: WorkflowPart | None = None
    end: str | None = None
    on_failure: WorkflowPart | None = None  # of an end
    member: tuple[str, int, int] | None = None


class Flow(msgspec.Struct, omit_defaults=True):
    """The place of a job in a workflow."""

    id: str
    keep: float  # seconds that what belongs to the workflow is kept
    until: float  # unix time to which that is surely so
    at: str = ""
    then: list[Frame] = []


class Message(msgspec.Struct, omit_defaults=True, gc=False):  # JSON has no cycles
    """What is pushed for one call of a task."""

    task: str
    args: dict[str, Any] = {}
    id: str | None = None
    deadline: float | None = None
    context: dict[str, Any] | None = None
    queue: str | None = None
    on_failure: WorkflowPart | None = None
    flow: Flow | None = None

    def payload(self) -> dict[str, Any]:
        """Return what is pushed."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def read(payload: Any) -> Message:
    """Return the message of a job. ValueError, with what is wrong, for one that was not meant for a task."""
    if isinstance(payload, dict) and payload.keys() <= USUAL:  # of two keys little can be wrong
        task, args = payload.get("task"), payload.get("args", {})
        if isinstance(task, str) and isinstance(args, dict):
            return Message(task, args)
    try:
        return msgspec.convert(payload, Message)
    except msgspec.ValidationError as problem:
        raise ValueError(f"the body must be an object such as {EXAMPLE}: {str(problem).replace('`', '')}") from None
