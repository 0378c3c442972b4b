"""Runs a blocking call without holding up the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class OneThread:
    """A thread of its own for calls that must come one after the other, as those of one SQLite connection.

    A caller that is cancelled waits for the call's end all the same: it can't be stopped, and its outcome must be
    known.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        """The call's result."""
        work = asyncio.get_running_loop().run_in_executor(self._pool, lambda: call(*args, **named))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.cancelled():
                await asyncio.wait([work])
            raise

    def close(self) -> None:
        """No more calls."""
        self._pool.shutdown(wait=False)
