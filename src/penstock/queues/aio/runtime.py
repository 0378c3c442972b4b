"""What an event loop needs and threads don't: steps that are done once, calls that go together, calls that must end.

`penstock.queues.blocking.runtime` has the same names for programs without an event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Item = TypeVar("Item")
Result = TypeVar("Result")
Kind = TypeVar("Kind", bound=type)

Lock = asyncio.Lock
sleep = asyncio.sleep


def opened_in_this_form(kind: Kind) -> Kind:
    """Make a plain `with` on objects of a class raise a TypeError that says what to write instead.

    The methods are set here and not written in the class, so that type checkers still refuse such a `with`.
    """

    def refuse(self: object, *_: object) -> NoReturn:
        raise TypeError(
            f"{self!r} must be opened with `async with`; in a program without asyncio, use penstock.blocking.connect"
        )

    for name in ("__enter__", "__exit__"):
        setattr(kind, name, refuse)
    return kind


class Once:
    """Calls a function once. Concurrent callers wait; after a failure the next caller retries."""

    def __init__(self, call: Callable[[], Awaitable[None]]) -> None:
        self._call = call
        self._lock = asyncio.Lock()
        self.is_done = False

    async def __call__(self) -> None:
        if self.is_done:
            return
        async with self._lock:
            if not self.is_done:
                await self._call()
                self.is_done = True


class Coalescer(Generic[Item, Result]):
    """Sends the items of all calls of one turn of the event loop together.

    Fifty tasks that push one job each cost one round trip. A call that is alone in its turn is sent by its caller;
    several are sent by a task, so that a caller which is cancelled doesn't end the calls of the others.

    With `in_turn`, what comes while something is under way waits for its end, and is then sent together: the slower the
    store, the larger the batches.
    """

    def __init__(
        self, send: Callable[[list[Item]], Awaitable[list[Result]]], batch_max: int, *, in_turn: bool = False
    ) -> None:
        self._send = send
        self._batch_max = batch_max
        self._in_turn = in_turn
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._is_collecting = False
        self._alone = 0  # calls that their callers send
        self._idle: asyncio.Future[None] | None = None  # done when these have ended; made by `finish`
        self._under_way: set[asyncio.Task[None]] = set()

    async def add(self, item: Item) -> Result:
        """Return one item's result. A caller that is cancelled before the turn's end takes its item back."""
        if self._is_collecting or (self._in_turn and (self._under_way or self._alone)):
            future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            self._waiting.append((item, future))
            return await future
        self._is_collecting = True
        self._alone += 1
        try:
            await asyncio.sleep(0)
        except BaseException:
            self._is_collecting = False
            self._end_alone()
            self._start_all()
            raise
        self._is_collecting = False
        if self._waiting:
            self._end_alone()
            future = asyncio.get_running_loop().create_future()
            self._waiting.insert(0, (item, future))
            self._start_all()
            return await future
        try:
            return (await self._send([item]))[0]
        finally:
            self._end_alone()
            self._start_next()

    def _end_alone(self) -> None:
        self._alone -= 1
        if not self._alone and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _start_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for begin in range(0, len(waiting), self._batch_max):
            task = asyncio.get_running_loop().create_task(self._deliver(waiting[begin : begin + self._batch_max]))
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._start_next()

    def _start_next(self) -> None:
        """Send what came while something was under way."""
        if self._in_turn and self._waiting and not self._under_way and not self._alone:
            self._start_all()

    async def _deliver(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        batch = [(item, future) for item, future in batch if not future.cancelled()]
        if not batch:
            return
        try:
            results = await self._send([item for item, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as problem:
            for _, future in batch:
                if not future.done():
                    future.set_exception(problem)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)

    async def finish(self) -> None:
        """Wait for what is under way."""
        while self._under_way or self._alone:
            if self._under_way:
                await asyncio.wait(self._under_way)
            if self._alone:
                self._idle = asyncio.get_running_loop().create_future()
                await self._idle


async def to_the_end(work: Coroutine[Any, Any, Result], undo: Callable[[Result], Awaitable[object]]) -> Result:
    """Return the work's result. If the caller is cancelled meanwhile, the work is finished, then undone."""
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


class OneThread:
    """A thread of its own for calls that must come one after the other, as those of one SQLite connection.

    A caller that is cancelled waits for the call's end all the same: the call can't be stopped, and its outcome must be
    known.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        """Return the call's result."""
        work = asyncio.get_running_loop().run_in_executor(self._pool, lambda: call(*args, **named))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.cancelled():
                await asyncio.wait([work])
            raise

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=False)
