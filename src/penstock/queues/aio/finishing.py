"""Steps that must not be left half done when their caller is cancelled."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def to_the_end(work: Coroutine[Any, Any, Result], undo: Callable[[Result], Awaitable[object]]) -> Result:
    """The work's result. If the caller is cancelled meanwhile, the work is finished, then undone."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise

        async def take_back() -> None:
            await undo(await task)

        # On its own, since the caller may be cancelled once more; but not behind its back, or the event loop may end
        # before it.
        back = asyncio.ensure_future(take_back())
        _under_way.add(back)
        back.add_done_callback(_forget)
        await asyncio.wait([back])
        raise


_under_way: set[asyncio.Future[None]] = set()  # the event loop itself keeps only weak references


def _forget(task: "asyncio.Future[None]") -> None:
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()  # what can't be undone comes back by itself, or is lost with a caller that wanted it so
