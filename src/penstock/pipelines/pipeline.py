"""A pipeline: its links, and a run of them in one process.

A run keeps one worker for each link that is not paused. `change` gives it other links while it runs: the worker of a
link that is changed, paused or dropped takes no more jobs, and lets those that it has begun end, however long that
takes; a changed link goes on at once with a new worker. No job is lost by that: one that has not begun goes back to its
queue, and the jobs in the queue of a dropped link stay there.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.errors import CallerError, PenstockError
from penstock.pipelines import status as states
from penstock.pipelines.engine import Engine, LinkRun, handler_of, worker_of
from penstock.pipelines.link import SPARK, WORKER, Link, LinkKind, StepKind
from penstock.pipelines.recipe import Recipe, in_order
from penstock.queues.aio import Store
from penstock.queues.aio.store import opened
from penstock.queues.capabilities import Capability, require
from penstock.queues.dead_letter import DEAD_LETTER_QUEUE, FROM_QUEUE, described
from penstock.worker import Summary
from penstock.worker.reporting import log_event

SHUTDOWN_TIMEOUT_S = 30.0
EMPTY_CHECK_S = 0.2  # between two looks at the queues, with `until_empty`
EMPTY_CHECKS = 2  # looks that must find nothing: in a cycle a job may move to where one look has been
STOP_LEVELS = 3  # as those of Worker.stop_at

Function = TypeVar("Function", bound=Callable[[Any], Any])


class _Running(NamedTuple):
    """A link that is being run."""

    link: Link
    worker: LinkRun
    task: asyncio.Task[Summary]


class Pipeline:
    """Queues of one store, joined by links.

        pipeline = Pipeline("sqlite:///photos.db")

        @pipeline.link("incoming", to="resized")
        async def resize(job): ...

        await pipeline.run()

    - `store`: a URL, or a store of `penstock.connect()`.
    - `dead_letters`: the queue of dead letters of all links.
    - `shutdown_timeout`: how long running functions may go on when the pipeline is told to stop, in seconds.
    """

    def __init__(
        self,
        store: Store | str,
        *,
        name: str = "pipeline",
        dead_letters: str | None = None,
        shutdown_timeout: float = SHUTDOWN_TIMEOUT_S,
    ) -> None:
        if not isinstance(store, Store | str):
            raise CallerError(f"store must be a URL or a store of penstock.connect(), got {store!r}")
        if not shutdown_timeout >= 0:
            raise CallerError(f"shutdown_timeout must be at least 0 seconds, got {shutdown_timeout!r}")
        self.name = name
        self.dead_letters = dead_letters
        self._store = store
        self._shutdown_timeout = shutdown_timeout
        self._links: dict[str, Link] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._stop_level = 0
        self._running: dict[str, _Running] = {}
        self._ending: list[_Running] = []  # their links were changed, paused or dropped
        self._summaries: dict[str, Summary] = {}  # of workers that have ended, by link
        self._is_ours: Callable[[Link], bool] = lambda link: True
        self._max_stuck: int | None = None
        self._engines: dict[str, Engine] = {}
        self._was_stuck = False

    @classmethod
    def from_recipe(
        cls,
        recipe: Recipe | Mapping[str, Any] | str | Path,
        *,
        store: Store | str | None = None,
        shutdown_timeout: float = SHUTDOWN_TIMEOUT_S,
    ) -> Pipeline:
        """Return the pipeline of a recipe: a .toml or .json file, or plain data. `store` goes before the recipe's."""
        checked = Recipe.read(recipe)
        place = store or checked.store
        if place is None:
            raise CallerError(
                f"the recipe {checked.name!r} has no store: give one, such as store = 'sqlite:///jobs.db'"
            )
        made = cls(place, name=checked.name, dead_letters=checked.dead_letters, shutdown_timeout=shutdown_timeout)
        made._set(checked.links)
        return made

    def link(
        self, source: str, to: str | Collection[str] | None = None, *, name: str | None = None, **options: Any
    ) -> Callable[[Function], Function]:
        """Add a link with the decorated function; options are those of a recipe's link.

        `to` is one queue, several to choose from, or None for a sink. The link has the function's name, unless another
        is given.
        """

        def add(function: Function) -> Function:
            row = {"from": source, "function": function, **options}
            if to is not None:
                row["to"] = to if isinstance(to, str) else list(to)
            link_name = name if name is not None else str(getattr(function, "__name__", "link"))
            if link_name in self._links:
                raise CallerError(f"the pipeline has a link {link_name!r} already: give another name=")
            self.add(Recipe.read({"links": {link_name: row}}).links[link_name])
            return function

        return add

    def add(self, link: Link) -> None:
        """Add a link, or replace the one of the same name."""
        self._set({**self._links, link.name: link})

    def change(self, recipe: Recipe | Mapping[str, Any] | str | Path) -> None:
        """Have the links of another recipe from now on; also while the pipeline runs, in any thread.

        Functions are imported first: if one can't be, nothing changes. The store stays what it is.
        """
        checked = Recipe.read(recipe)
        for link in checked.links.values():
            if link != self._links.get(link.name):
                if self._loop is not None:
                    self._engine_of(link)
                try:
                    handler_of(link)
                except CallerError as problem:
                    raise CallerError(f"links.{link.name}.function: {problem}") from problem
        self.dead_letters = checked.dead_letters
        self._set(checked.links)

    def _set(self, links: dict[str, Link]) -> None:
        self._links = links
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed.set)

    @property
    def store(self) -> Store | str:
        """The store, or its URL."""
        return self._store

    @property
    def links(self) -> dict[str, Link]:
        """The links by their names."""
        return dict(self._links)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues, each before those that its jobs go to."""
        return in_order(self._links)

    def outputs(self) -> list[str]:
        """Return the queues that no link reads: where jobs leave the pipeline for others."""
        read = {link.source for link in self._links.values()}
        return [queue for queue in self.queues if queue not in read]

    async def check(self) -> list[str]:
        """Import all functions and ask the store what it can do; return a text for each problem."""
        problems = []
        for link in self._links.values():
            try:
                handler_of(link)
            except CallerError as problem:
                problems.append(f"links.{link.name}.function: {problem}")
        async with self._opened() as store:
            try:
                require(store.capabilities, Capability.RESERVE, store.url)
                if any(link.engine == SPARK for link in self._links.values()):
                    require(store.capabilities, Capability.CLAIM, store.url)
                for name in self.queues:
                    store.queue(name)
            except CallerError as problem:
                problems.append(f"store: {problem}")
        return problems

    async def atomic_steps(self) -> dict[str, bool | None]:
        """Return for each link whether its step is one atomic move on this store; None for a sink: it moves nothing."""
        steps = await self.steps()
        return {name: None if step is StepKind.END else step is StepKind.ATOMIC for name, step in steps.items()}

    async def steps(self) -> dict[str, StepKind]:
        """Return for each link what its step is on this store."""
        async with self._opened() as store:
            return {link.name: _step_of(link, store) for link in self._links.values()}

    async def status(self, interval: float | None = None) -> list[states.LinkStatus]:
        """Return the depth, errors and oldest job of each link; with `interval`, also its rate over those seconds."""
        async with self._opened() as store:
            return await states.of_links(store, list(self._links.values()), self._dead_letter_queue(store), interval)

    async def unread(self) -> dict[str, int]:
        """Return the number of jobs in queues that no link reads: outputs, and those of links that were dropped."""
        read = {link.source for link in self._links.values()}
        async with self._opened() as store:
            names = dict.fromkeys([*self.outputs(), *sorted(await store.queues(with_jobs=True))])
            hidden = read | {self._dead_letter_queue(store)}
            return {name: await store.queue(name).total() for name in names if name not in hidden}

    async def redrive(self, link: str | None = None) -> int:
        """Send the dead letters of a link, or of all links, back to where they came from; return their number."""
        if link is not None and link not in self._links:
            raise CallerError(f"link must be one of {', '.join(self._links)}, got {link!r}")
        chosen = [self._links[link]] if link is not None else self._links.values()
        sources = {one.source for one in chosen}
        async with self._opened() as store:
            dead = store.queue(self._dead_letter_queue(store))
            return await dead.redrive(lambda job: job.headers.get(FROM_QUEUE) in sources)

    def _dead_letter_queue(self, store: Store) -> str:
        limit = store.options.dead_letter
        return self.dead_letters or (DEAD_LETTER_QUEUE if limit is None else limit.queue)

    def _opened(self) -> AbstractAsyncContextManager[Store]:
        """Open the store for a block."""
        return opened(self._store)

    # A run.

    def main(self, *, until_empty: bool = False) -> dict[str, Summary]:
        """Run in an event loop of its own, until SIGTERM or SIGINT."""
        return asyncio.run(self.run(until_empty=until_empty, signals=True))

    async def run(
        self,
        *,
        links: Collection[str] | Callable[[Link], bool] | None = None,
        until_empty: bool = False,
        signals: bool = False,
        max_stuck: int | None = None,
        engines: Mapping[str, Engine] | None = None,
    ) -> dict[str, Summary]:
        """Run the links until `stop` is called; return what each has done.

        `links` are the names of those to run, or a function that chooses; all of them by default. With `until_empty` it
        ends when no queue that a link reads has jobs, scheduled ones included. With `signals`, SIGTERM and SIGINT stop
        it: the first gracefully, the second at once, the third without waiting for functions that don't end. `engines`
        run the links that ask for them by name: `{"spark": SparkEngine()}`, of `penstock.spark.links`.
        """
        if self._loop is not None:
            raise CallerError("this pipeline is already running")
        self._is_ours = self._chosen(links)
        self._max_stuck = max_stuck
        self._engines = {WORKER: worker_of, **(engines or {})}
        self._changed = asyncio.Event()
        self._running, self._ending, self._summaries = {}, [], {}
        self._was_stuck = False
        self._loop = asyncio.get_running_loop()
        try:
            with self._stop_signals() if signals else nullcontext():
                async with self._opened() as store:
                    await self._run(store, until_empty)
        finally:
            self._loop = None
            self._stop_level = 0
        return self.summaries

    def _chosen(self, links: Collection[str] | Callable[[Link], bool] | None) -> Callable[[Link], bool]:
        if links is None:
            return lambda link: True
        if callable(links):
            return links
        names = set(links)
        unknown = sorted(names - set(self._links))
        if unknown:
            raise CallerError(f"links must be among {', '.join(self._links)}, got {unknown[0]}")
        return lambda link: link.name in names

    @property
    def summaries(self) -> dict[str, Summary]:
        """What each link has done so far in this run."""
        found: dict[str, Summary] = {}
        rows = [(name, summary) for name, summary in self._summaries.items()]
        rows += [(one.link.name, one.worker.summary) for one in (*self._running.values(), *self._ending)]
        for name, summary in rows:
            found.setdefault(name, Summary()).add(summary.counts())
        return found

    @property
    def is_stuck(self) -> bool:
        """Whether functions overran their time limit and don't end, so that this process should be replaced."""
        return any(one.worker.is_stuck for one in (*self._running.values(), *self._ending)) or self._was_stuck

    def stop(self, *, now: bool = False) -> None:
        """Take no more jobs, wait for running ones, and end; with `now`, return them. Works in any thread."""
        self.stop_at(2 if now else 1)

    def stop_at(self, level: int) -> None:
        """Stop: 1 waits for running functions, 2 cancels them, 3 returns their jobs without waiting for their end."""
        self._stop_level = max(self._stop_level, level)
        for one in (*self._running.values(), *self._ending):
            one.worker.stop_at(self._stop_level)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed.set)

    async def _run(self, store: Store, until_empty: bool) -> None:
        loop = asyncio.get_running_loop()
        watching = loop.create_task(self._watch_empty(store)) if until_empty else None
        deadline: asyncio.TimerHandle | None = None
        problem: BaseException | None = None
        try:
            while True:
                self._changed.clear()
                if self._stop_level:
                    if deadline is None:
                        deadline = loop.call_later(self._shutdown_timeout, self.stop_at, 2)
                    for one in self._running.values():
                        one.worker.stop_at(self._stop_level)
                    if not self._running and not self._ending:
                        break
                else:
                    await self._apply(store)
                await self._wait(watching)
                problem = problem or self._collect()
                if problem is not None or (watching is not None and watching.done()):
                    self.stop_at(1)
        finally:
            # Also of a run that was cancelled: its jobs must go back.
            if deadline is not None:
                deadline.cancel()
            rest = [*self._running.values(), *self._ending]
            for one in rest:
                one.task.cancel()
            await asyncio.gather(*(one.task for one in rest), return_exceptions=True)
            self._collect()
            if watching is not None:
                watching.cancel()
        if problem is not None:
            raise problem
        if watching is not None and watching.done() and not watching.cancelled():
            watching.result()  # raises what ended it

    async def _apply(self, store: Store) -> None:
        """Let the workers be those of the present links."""
        wanted = {link.name: link for link in self._links.values() if not link.paused and self._is_ours(link)}
        for name, one in list(self._running.items()):
            if wanted.get(name) != one.link:
                one.worker.stop()
                self._ending.append(self._running.pop(name))
                await self._log_stopping(store, one.link)
        for name, link in wanted.items():
            if name not in self._running:
                worker = self._engine_of(link)(link, store, self.dead_letters, self._max_stuck)
                task = asyncio.get_running_loop().create_task(worker.run())
                self._running[name] = _Running(link, worker, task)

    def _engine_of(self, link: Link) -> Engine:
        engine = self._engines.get(link.engine)
        if engine is None:
            raise CallerError(
                f"the link {link.name!r} runs on {link.engine}: pass run(engines={{{link.engine!r}: ...}}), or use "
                "`penstock pipeline run`"
            )
        return engine

    async def _log_stopping(self, store: Store, link: Link) -> None:
        present = self._links.get(link.name)
        if present is not None:
            what = "is paused" if present.paused else "goes on with other options"
            log_event("recipe", f"Link {link.name} {what}.", link=link.name)
            return
        try:
            left = await store.queue(link.source).total()
        except PenstockError as problem:
            log_event(
                "trouble", f"The jobs of {link.source!r} can't be counted: {described(problem)}", queue=link.source
            )
            return
        text = f"Link {link.name} was dropped. {left} jobs stay in {link.source!r}, those under way included."
        log_event("recipe", text, link=link.name, queue=link.source, left=left)

    async def _wait(self, watching: asyncio.Task[None] | None) -> None:
        """Wait until a worker has ended, the links have changed, or it is time to stop."""
        changed = asyncio.get_running_loop().create_task(self._changed.wait())
        tasks = {changed, *(one.task for one in (*self._running.values(), *self._ending))}
        if watching is not None and not self._stop_level:
            tasks.add(watching)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    def _collect(self) -> BaseException | None:
        """Take workers that have ended out; return what ended one that should not have."""
        problem: BaseException | None = None
        for one in [*self._running.values(), *self._ending]:
            if not one.task.done():
                continue
            if one in self._ending:
                self._ending.remove(one)
            else:
                del self._running[one.link.name]
            self._summaries.setdefault(one.link.name, Summary()).add(one.worker.summary.counts())
            if one.worker.is_stuck:
                self._was_stuck = True
                self.stop_at(1)
            if not one.task.cancelled():
                problem = problem or one.task.exception()
        return problem

    async def _watch_empty(self, store: Store) -> None:
        """End when all queues that links read are empty.

        They are looked at in the order in which jobs go through them: a job that moves on meanwhile is found later.
        """
        found_nothing = 0
        while found_nothing < EMPTY_CHECKS:
            await asyncio.sleep(EMPTY_CHECK_S)
            read = {link.source for link in self._links.values()}
            try:
                left = 0
                for name in self.queues:
                    left += await store.queue(name).total() if name in read and not left else 0
            except CallerError:
                raise
            except PenstockError as problem:
                log_event("trouble", f"The queues can't be counted: {described(problem)}", error=described(problem))
                left = 1
            found_nothing = 0 if left else found_nothing + 1

    @contextmanager
    def _stop_signals(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT stop the pipeline; the handlers that the program had are restored after."""
        if threading.current_thread() is not threading.main_thread():
            raise CallerError("signals=True needs the main thread: elsewhere call pipeline.stop()")
        loop = asyncio.get_running_loop()
        before = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.getsignal(number) or signal.SIG_DFL
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _signalled(self, number: signal.Signals) -> None:
        level = min(self._stop_level + 1, STOP_LEVELS)
        what = {1: f"Stopping; running jobs get {self._shutdown_timeout:g} s", 2: "Stopping at once"}
        text = what.get(level, "Returning all jobs, also those whose functions don't end")
        log_event("stopping", f"{number.name}: {text}.", signal=number.name)
        self.stop_at(level)


def _step_of(link: Link, store: Store) -> StepKind:
    if link.kind is LinkKind.SINK:
        return StepKind.END
    if all(store.queue(link.source).moves_atomically(target) for target in link.targets):
        return StepKind.ATOMIC
    return StepKind.KEYED if store.keys_moves else StepKind.TWO
