"""A call of a task that is checked and ready to be pushed, in either form of the library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.errors import BadPayload
from penstock.tasks.arguments import Arguments
from penstock.tasks.message import Message


@dataclass(slots=True)
class PreparedCall:
    """A message, the queue that it goes to, and the options of that push."""

    queue: str
    message: Message
    arguments: Arguments | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def flow_id(self) -> str:
        """The id of the workflow that it belongs to."""
        return "" if self.message.flow is None else self.message.flow.id

    def blamed(self, problem: BadPayload) -> BadPayload:
        """Return the error of a push with the name of the argument that is the cause."""
        return problem if self.arguments is None else self.arguments.blamed(self.message.args, problem)
