# Written by scripts/blocking from ../aio/asking.py: change that, then run `make blocking`.
"""How a client asks: one command, or several of a kind in one go, of the node that it is on or of another one."""

from collections.abc import Iterable
from typing import Any, Self

from penstock.client import requests
from penstock.client.blocking.router import Route, Router
from penstock.client.connection import Command, Word, refined
from penstock.client.requests import Request
from penstock.errors import ReplyError


class Asking:
    """The way to a node, which all parts of a client share."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._place: str | None = None  # the one node that is asked, if it is only one
        self._patient = True

    def asking(self, *, node: str | None = None, patient: bool = True) -> Self:
        """The same client with the same connections, in another manner.

        With `node`, everything is asked of that node. Without patience each node is tried once: if none can be reached
        now, that is told at once, and not when `timeout` is over.
        """
        other = object.__new__(type(self))
        vars(other).update(vars(self), _place=node, _patient=patient)
        return other

    def call(self, *words: Word) -> Any:
        """Send any command, and give its reply: int, bytes, None or list. An error reply is raised."""
        return self._ask(requests.raw(words))

    def call_many(self, commands: Iterable[Command]) -> list[Any]:
        """Send several commands of one name in one go, and give their replies, errors among them as values."""
        request = requests.raw_many(commands)
        return [] if request is None else (self._run(request))[1]

    def _run(self, request: Request, node: str | None = None, *, only_there: bool = True) -> tuple[Route, list[Any]]:
        """Have a request answered: who did, and the replies. The client's own place goes before the given node."""
        if self._place is not None:
            node, only_there = self._place, True
        return self._router.run(request, node, only_there=only_there, patient=self._patient)

    def _ask(self, request: Request, node: str | None = None, *, only_there: bool = True) -> Any:
        """Have one command answered; an error reply is raised."""
        _, (reply,) = self._run(request, node, only_there=only_there)
        if isinstance(reply, ReplyError):
            raise refined(reply)
        return reply
