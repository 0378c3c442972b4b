"""`penstock pipeline check | show | run | status | redrive RECIPE`: pipelines as plain data, checked, drawn and run.

`run` is one process, or the supervisor of several: `--processes` for the links that have none of their own, and those
that a link asks for. Each is started with the same words and one more, which says what it runs. Every process reads the
recipe again when the file has changed, or at SIGHUP; the supervisor then starts and stops processes. All links on Spark
run in one process, which is Spark's driver.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.application import URL_VARIABLE, application
from penstock.cli.application import run as run_application
from penstock.cli.output import print_json, print_table
from penstock.errors import BadRecipe, CallerError, MissingExtra, OperatorError, PenstockError, printable

if TYPE_CHECKING:
    from penstock.pipelines import Link, Pipeline, Recipe
    from penstock.pipelines.engine import Engine, LinkRun
    from penstock.queues.aio import Store
    from penstock.spark.links import SparkEngine
    from penstock.worker.reporting import Summary
    from penstock.worker.supervisor import ChildInfo

app = application(help="Queues joined by links, described by a recipe.", no_args_is_help=True)

WATCH_S = 1.0  # between two looks at the file of the recipe
PROGRESS_S = 0.5
STATUS_S = 1.0  # over which `status` measures rates
SHARED = ""  # what a process of the supervisor runs: the links without processes of their own
ON_SPARK = ":spark"  # or those on Spark; no link can be named so on the command line

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", show_default=False, help="A .toml or .json file.")]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help=f"The store, in place of the recipe's; as the variable {URL_VARIABLE}."
    ),
]
Links = Annotated[
    list[str] | None, typer.Option("-l", "--link", metavar="NAME", help="Only this link; can be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Lines of JSON, for programs.")]


def run(argv: list[str]) -> int:
    """Run `penstock pipeline` with these words; returns the exit code."""
    return run_application(app, argv, "penstock pipeline", obj=argv)


def _read(path: Path, engine: str | None = None) -> Recipe:
    from penstock.pipelines import Recipe

    return Recipe.read(path).on(engine)


def _find_functions(path: Path) -> None:
    """Make modules beside a recipe known, for commands that import its functions. No other command may import one."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _pipeline(path: Path, store: str | None, shutdown_timeout: float = 30.0, engine: str | None = None) -> Pipeline:
    """Return the pipeline of a recipe."""
    from penstock.pipelines import Pipeline

    url = store or os.environ.get(URL_VARIABLE) or None
    return Pipeline.from_recipe(_read(path, engine), store=url, shutdown_timeout=shutdown_timeout)


@app.command()
def check(recipe: RecipePath, store: StoreUrl = None, as_json: Json = False) -> None:
    """Check a recipe: its keys, its functions, and what its store can do. Exit code 2 if something is wrong."""
    found, problems = "", []
    try:
        _find_functions(recipe)
        pipeline = _pipeline(recipe, store)
        found = f"{len(pipeline.links)} links, {len(pipeline.queues)} queues, no problem found."
        problems = asyncio.run(pipeline.check())
    except BadRecipe as problem:
        problems = problem.problems
    except CallerError as problem:
        problems = [str(problem)]
    if as_json:
        print_json({"recipe": str(recipe), "problems": problems})
    elif not problems:
        print(f"{recipe}: {found}")
    for text in problems if not as_json else ():
        print(f"{recipe}: {text}", file=sys.stderr)
    if problems:
        raise typer.Exit(2)


@app.command()
def show(
    recipe: RecipePath,
    store: StoreUrl = None,
    form: Annotated[
        str, typer.Option("--format", metavar="text|mermaid|svg", help="The form of the drawing.")
    ] = "text",
) -> None:
    """Draw a pipeline, and say for each link whether its step is one atomic move on this store."""
    from penstock.pipelines.drawing import FORMATS, Drawing
    from penstock.queues.aio import Store
    from penstock.queues.options import without_password

    if form not in FORMATS:
        raise CallerError(f"--format must be {', '.join(FORMATS)}, got {form}")
    pipeline = _pipeline(recipe, store)
    steps = asyncio.run(pipeline.steps())
    place = pipeline.store.url if isinstance(pipeline.store, Store) else pipeline.store
    print(FORMATS[form](Drawing(pipeline.name, without_password(place), pipeline.links, steps)), end="")


@app.command()
def status(
    recipe: RecipePath,
    store: StoreUrl = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Print it again and again, until interrupted.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="The time over which rates are measured.")
    ] = STATUS_S,
) -> None:
    """Show the depth, rate, errors and oldest job of every link, and the queues that no link reads."""
    pipeline = _pipeline(recipe, store)
    while True:
        rows, others = asyncio.run(_states(pipeline, interval))
        if as_json:
            print_json({"pipeline": pipeline.name, "links": [row.facts() for row in rows], "queues": others})
        else:
            if watch and sys.stdout.isatty():
                print("\x1b[2J\x1b[H", end="")
            _print_status(rows, others)
        sys.stdout.flush()
        if not watch:
            return


async def _states(pipeline: Pipeline, interval: float) -> tuple[list[Any], dict[str, int]]:
    return await pipeline.status(interval), await pipeline.unread()


def _print_status(rows: list[Any], others: dict[str, int]) -> None:
    title = "link", "queue", "ready", "scheduled", "reserved", "a second", "done", "retried", "dead", "oldest", ""
    table = [
        (
            row.link,
            row.queue,
            row.ready,
            row.scheduled,
            row.reserved,
            row.rate,
            row.done,
            row.retried,
            row.dead,
            "" if row.oldest is None else f"{row.oldest:g} s",
            "paused" if row.paused else "",
        )
        for row in rows
    ]
    print_table(title, table)
    for name, size in others.items():
        print(f"{printable(name)}: {size} jobs that no link of the recipe reads")


@app.command()
def redrive(
    recipe: RecipePath,
    store: StoreUrl = None,
    link: Annotated[str | None, typer.Option("-l", "--link", metavar="NAME", help="Only those of this link.")] = None,
) -> None:
    """Send dead letters back to the links that they came from."""
    count = asyncio.run(_pipeline(recipe, store).redrive(link))
    print(f"{count} jobs sent back.")


@app.command("run")
def run_links(
    context: typer.Context,
    recipe: RecipePath,
    store: StoreUrl = None,
    link: Links = None,
    processes: Annotated[
        int,
        typer.Option(
            "-p",
            "--processes",
            metavar="N",
            min=0,
            help="Processes for the links that have none of their own; one that dies is replaced (default: only this).",
        ),
    ] = 0,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when no queue that a link reads has jobs.")
    ] = False,
    shutdown_timeout: Annotated[
        float, typer.Option("--shutdown-timeout", metavar="SECONDS", min=0, help="Time for running jobs after SIGTERM.")
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Log lines of JSON.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Also log each job, and the tracebacks of errors.")
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="worker|spark", help="What runs all links, in place of what the recipe says."),
    ] = None,
    master: Annotated[
        str, typer.Option(metavar="MASTER", help="Where Spark runs: local[*], spark://host:7077, yarn, k8s://...")
    ] = "local[*]",
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
    ] = None,
    spark_log: Annotated[bool, typer.Option("--spark-log", help="Show what Spark and its tasks print.")] = False,
    part: Annotated[str | None, typer.Option("--part", hidden=True)] = None,
) -> None:
    """Run the links of a recipe until SIGTERM or SIGINT. The recipe is read again when it has changed, or at SIGHUP."""
    from penstock.cli.worker import set_up_log
    from penstock.pipelines.link import ENGINES
    from penstock.worker.supervisor import child_info

    if engine is not None and engine not in ENGINES:
        raise CallerError(f"--engine must be {' or '.join(ENGINES)}, got {engine}")
    child = child_info()
    if _uses_spark(_read(recipe, engine), link or [], part) and not spark_log:
        hide_java()
    set_up_log("json" if as_json else "text", verbose, None if child is None else child.number)
    seen = mark_of(recipe)
    _find_functions(recipe)
    pipeline = _pipeline(recipe, store, shutdown_timeout, engine)
    _check_names(pipeline, link or [])
    if child is None:
        _refuse_problems(pipeline)
        commands = _commands(_read(recipe, engine), context.obj, link or [], processes)
        if commands:
            raise typer.Exit(
                _supervise(recipe, store, context.obj, link or [], processes, shutdown_timeout, until_empty, engine)
            )
    spark = SparkLinks(pipeline, master, _settings(conf), recipe)
    watcher = RecipeWatcher(recipe, seen, pipeline.change, engine)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            is_ours = _chooser(link or [], part)
            runner.run(_serve(pipeline, watcher, is_ours, until_empty, child, as_json, {"spark": spark}))
    finally:
        spark.close()
    raise typer.Exit(_exit_code(pipeline, is_child=child is not None))


def _check_names(pipeline: Pipeline, names: list[str]) -> None:
    for name in names:
        if name not in pipeline.links:
            raise CallerError(f"--link must be one of {', '.join(pipeline.links)}, got {name}")


def _refuse_problems(pipeline: Pipeline) -> None:
    problems = asyncio.run(pipeline.check())
    if problems:
        raise BadRecipe("\n".join(problems), problems)


def _chooser(names: list[str], part: str | None) -> Callable[[Link], bool]:
    """Return which links this process runs."""

    def is_ours(link: Link) -> bool:
        is_named = not names or link.name in names
        if part is None:
            return is_named
        return is_named and _part_of(link) == part

    return is_ours


def _part_of(link: Link) -> str:
    """Return in which process of the supervisor a link runs."""
    if link.engine == "spark":
        return ON_SPARK
    return link.name if link.processes else SHARED


def _commands(recipe: Recipe, argv: list[str], names: list[str], processes: int) -> list[list[str]]:
    """Return the command of each process; none where this one is enough."""
    chosen = [link for link in recipe.links.values() if not names or link.name in names]
    own = [link for link in chosen if _part_of(link) == link.name]
    if not own and not processes:
        return []
    words = [sys.executable, "-m", "penstock", "pipeline", *argv]
    parts = [link.name for link in own for _ in range(link.processes)]
    others = {_part_of(link) for link in chosen if link not in own} or ({SHARED} if not own else set())
    if ON_SPARK in others:
        parts = [ON_SPARK, *parts]
    if SHARED in others:
        parts = [SHARED] * max(1, processes) + parts
    return [[*words, f"--part={part}"] for part in parts]


def _supervise(
    path: Path,
    store: str | None,
    argv: list[str],
    names: list[str],
    processes: int,
    shutdown_timeout: float,
    until_empty: bool,
    engine: str | None,
) -> int:
    from penstock.worker.supervisor import Supervisor

    # The URL may have a password, and every user can read the command line of a process, but not its environment.
    if store is not None:
        os.environ[URL_VARIABLE] = store
        argv = _without_store(argv)
    seen = mark_of(path)
    commands = _commands(_read(path, engine), argv, names, processes)
    supervisor = Supervisor(commands, shutdown_timeout=shutdown_timeout, until_empty=until_empty)

    def change(recipe: Recipe) -> None:
        supervisor.change(_commands(recipe, argv, names, max(1, processes)))

    async def watched() -> int:
        loop = asyncio.get_running_loop()
        watcher = RecipeWatcher(path, seen, change, engine)
        watching = loop.create_task(watcher.run())

        def hang_up() -> None:
            supervisor.send_signal(signal.SIGHUP)
            watcher.read_now()

        loop.add_signal_handler(signal.SIGHUP, hang_up)
        try:
            return await supervisor.run()
        finally:
            watching.cancel()

    return asyncio.run(watched())


def _without_store(argv: list[str]) -> list[str]:
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--store":
            next(words, None)
        elif not word.startswith("--store="):
            kept.append(word)
    return kept


FileMark = tuple[int, int, int]  # another one whenever a file has changed


def mark_of(path: Path) -> FileMark | None:
    """Return the mark of a file; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class RecipeWatcher:
    """Calls back with the recipe of a file whenever it has changed. One that is wrong is logged; the old one stays."""

    def __init__(
        self, path: Path, seen: FileMark | None, on_change: Callable[[Recipe], None], engine: str | None = None
    ) -> None:
        """`seen` is the mark of the file from before it was read last; `engine` goes before those of the recipe."""
        self._engine = engine
        self._path = path
        self._on_change = on_change
        self._seen = seen
        self._wake = asyncio.Event()

    def read_now(self) -> None:
        """Read the file, whether it has changed or not."""
        self._seen = None
        self._wake.set()

    async def run(self) -> None:
        """Watch the file until cancelled."""
        from penstock.worker.reporting import log_event

        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await self._wake.wait()
            self._wake.clear()
            mark = mark_of(self._path)
            if mark == self._seen or mark is None:  # an editor may remove a file before it writes it again
                continue
            self._seen = mark
            try:
                self._on_change(_read(self._path, self._engine))
            except PenstockError as problem:
                log_event("refused", f"The new recipe is wrong, and the old one stays. {problem}", error=str(problem))
            else:
                log_event("recipe", f"Read {self._path} again.", recipe=str(self._path))


async def _serve(
    pipeline: Pipeline,
    watcher: RecipeWatcher,
    is_ours: Callable[[Link], bool],
    until_empty: bool,
    child: ChildInfo | None,
    as_json: bool,
    engines: Mapping[str, Engine],
) -> None:
    from penstock.worker.supervisor import SupervisorSocket

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, watcher.read_now)
    beside = [loop.create_task(watcher.run())]
    channel: SupervisorSocket | None = None
    if child is not None:
        channel = SupervisorSocket(child, lambda: _summed(pipeline), pipeline.stop_at)
        beside.append(loop.create_task(channel.run()))
    elif sys.stderr.isatty() and not as_json:
        beside.append(loop.create_task(_show_progress(pipeline)))
    try:
        # In a child a function that doesn't end has its process replaced.
        stuck = None if child is None else 0
        await pipeline.run(links=is_ours, until_empty=until_empty, signals=True, max_stuck=stuck, engines=engines)
    finally:
        for task in beside:
            task.cancel()
        if channel is not None:
            await channel.report()


class SparkLinks:
    """The engine of links on Spark; nothing of Spark is imported before there is such a link."""

    def __init__(self, pipeline: Pipeline, master: str, settings: dict[str, str], recipe: Path) -> None:
        self._pipeline = pipeline
        self._master = master
        self._settings = settings
        self._folder = str(recipe.resolve().parent)
        self._engine: SparkEngine | None = None

    def __call__(self, link: Link, store: Store, dead_letters: str | None, max_stuck: int | None) -> LinkRun:
        from penstock.queues.aio import Store

        if self._engine is None:
            spark_links = _spark_links()
            place = self._pipeline.store
            url = place.url if isinstance(place, Store) else place
            self._engine = spark_links.SparkEngine(
                url, master=self._master, settings=self._settings, paths=[self._folder]
            )
        return self._engine(link, store, dead_letters, max_stuck)

    def close(self) -> None:
        """Stop Spark, if it was started."""
        if self._engine is not None:
            self._engine.close()


def _spark_links() -> Any:
    try:
        from penstock.spark import links
    except ModuleNotFoundError as problem:
        name = problem.name or "pyspark"
        text = f"a link on Spark needs {name}. Install it with: pip install 'penstock[spark,jre]'"
        raise MissingExtra(text) from problem
    return links


def _settings(words: list[str] | None) -> dict[str, str]:
    pairs = [word.partition("=") for word in words or []]
    for key, equals, value in pairs:
        if not key or not equals:
            raise CallerError(
                f"--conf must be KEY=VALUE, as in --conf spark.executor.memory=2g, got {key}{equals}{value}"
            )
    return {key: value for key, _, value in pairs}


def _uses_spark(recipe: Recipe, names: list[str], part: str | None) -> bool:
    return any(
        _part_of(link) == ON_SPARK and part in (None, ON_SPARK) and (not names or link.name in names)
        for link in recipe.links.values()
    )


def hide_java() -> None:
    """Let nothing of what Java and its processes print be seen; our own lines are."""
    sys.stderr.flush()
    own = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    sys.stderr = os.fdopen(own, "w", buffering=1)


def _summed(pipeline: Pipeline) -> Summary:
    from penstock.worker import Summary

    total = Summary()
    for summary in pipeline.summaries.values():
        total.add(summary.counts())
    return total


async def _show_progress(pipeline: Pipeline) -> None:
    """Keep a line on the terminal: what each link has done, and how fast it is."""
    before: dict[str, int] = {}
    while True:
        await asyncio.sleep(PROGRESS_S)
        done = {name: summary.done for name, summary in pipeline.summaries.items()}
        rates = {name: (count - before.get(name, 0)) / PROGRESS_S for name, count in done.items()}
        before = done
        line = "  ".join(f"{name} {count:,} ({rates[name]:,.0f}/s)" for name, count in done.items())
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
        sys.stderr.write(f"\r\x1b[K{line[: columns - 1]}")
        sys.stderr.flush()


def _exit_code(pipeline: Pipeline, is_child: bool) -> int:
    from penstock.worker.supervisor import EXIT_REPLACE

    if not pipeline.is_stuck:
        return 0
    if is_child:
        return EXIT_REPLACE
    raise OperatorError(
        "functions overran their time limit and don't end. With --processes such a process is replaced automatically."
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    from penstock.cli.worker import loop_factory

    return loop_factory()
