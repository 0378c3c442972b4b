"""`penstock worker`: runs a function of the application for the jobs of queues, in one process or several.

With --processes this process is the supervisor of the others, which are started with the same words. Each knows by its
environment that it is one of them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.application import URL_VARIABLE, application, left_out_url
from penstock.cli.application import run as run_application
from penstock.errors import CallerError, OperatorError

if TYPE_CHECKING:
    from penstock import DeadLetter
    from penstock.queues.aio import Store
    from penstock.queues.backoff import Backoff
    from penstock.tasks import App, TaskWorker
    from penstock.worker import Worker
    from penstock.worker.supervisor import ChildInfo, Supervisor

app = application()

Address = tuple[str, int]
FORMS = ("text", "json")
EXAMPLE = "penstock worker sqlite:///jobs.db mail shop.mail:send"

USAGE = """\
usage: penstock worker URL QUEUE [QUEUE ...] MODULE:FUNCTION [options]
       penstock worker MODULE:APP [options]

The second form runs the tasks of a penstock.App, from its queues and its store; what happens when a job fails is set
where the task is defined.

The first form calls a function for each job of the queues, until it gets SIGTERM or SIGINT. The function is called with
a Job, as a task if it is an `async def`, else in a thread. When it returns, the job is done. When it raises, the job is
tried again later; after its last try it goes to the dead letters. Modules of the current directory are found.

  URL                    the store: sqlite:///jobs.db, redis://localhost:6379/0, postgresql://localhost/jobs,
                         disque://localhost:7711, and so on. It can be left out where the variable PENSTOCK_URL is
                         set: other users of the machine can read a password on the command line, but not in there

Tasks of an app:
  --queues NAME,NAME     run only the tasks of these queues (default: all queues of the app's tasks)

Concurrency:
  -c, --concurrency N    jobs that run at the same time, in each process (default 10)
  -p, --processes M      number of processes, which are replaced when they die (default: only this one)
  --prefetch N           jobs to reserve ahead of those that run (default: by their run times)
  --reload               restart when a source file of the application changes, for development; running jobs finish
  --until-empty          end when no job is ready; scheduled jobs stay

Times:
  --lease SECONDS        if a worker crashes, its jobs are redelivered after this time (default: the store's, mostly
                         120); extended while a job runs
  --time-limit SECONDS   maximum run time of the function, after which the job counts as failed (default: no limit). A
                         plain function can't be ended: its process is replaced (with --processes), or goes on
                         without that thread
  --shutdown-timeout SECONDS
                         how long running jobs may go on after SIGTERM, before they are cancelled and returned
                         (default 30)

When a job fails:
  --max-tries N          deliveries after which it goes to the dead letters, 0: no limit (default: the store's, or 25)
  --dead-letters QUEUE   the queue of dead letters (default __deadletter__)
  --backoff SECONDS      delay before the next try: `5` is always 5 s, `1..600` doubles from 1 s up to 600 s,
                         `1..600*3` triples (default 1..3600); half of each delay is random

Log:
  --log text|json        lines for people, or lines of JSON (default text), on standard error
  -v, --verbose          also log each job that is done, and the tracebacks of errors
  --health [HOST:]PORT   answer HTTP requests with 200, or 503 while a process is stuck, for supervisors such as
                         Kubernetes; systemd's notifications and watchdog need no option
  --events DIR           record what happens to jobs in this directory: see docs/how-to/record-events.md
  --namespace NAME       the namespace of signals and statistics (default N, as in Keuss)
  -h, --help             print this text

A function for `penstock worker sqlite:///jobs.db mail shop:send`, in shop.py:
  def send(job):
      print("to", job.payload["to"])

Exit codes: 0 stopped, or empty; 1 it failed; 2 the command line was wrong.
"""
RENAMED = {"--stop-within": "--shutdown-timeout", "--name": "--namespace"}  # options: old name -> new


def run(argv: list[str]) -> int:
    """Run `penstock worker` with these words; returns the exit code."""
    if not argv or "-h" in argv or "--help" in argv:
        print(USAGE, end="")
        return 0
    for word in argv:
        old = word.partition("=")[0]
        if old in RENAMED:
            raise CallerError(f"the option {old} is now {RENAMED[old]}")
    return run_application(app, argv, "penstock worker", obj=argv)


@app.command()
def work(
    context: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="URL QUEUE [QUEUE ...] MODULE:FUNCTION", show_default=False)],
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", metavar="N", min=1)] = 10,
    processes: Annotated[int, typer.Option("-p", "--processes", metavar="M", min=0)] = 0,
    lease: Annotated[float | None, typer.Option("--lease", metavar="SECONDS")] = None,
    time_limit: Annotated[float | None, typer.Option("--time-limit", metavar="SECONDS")] = None,
    max_tries: Annotated[int | None, typer.Option("--max-tries", metavar="N", min=0)] = None,
    dead_letters: Annotated[str | None, typer.Option("--dead-letters", metavar="QUEUE")] = None,
    backoff: Annotated[str | None, typer.Option("--backoff", metavar="SECONDS")] = None,
    prefetch: Annotated[int | None, typer.Option("--prefetch", metavar="N", min=0)] = None,
    shutdown_timeout: Annotated[float, typer.Option("--shutdown-timeout", metavar="SECONDS", min=0)] = 30.0,
    until_empty: Annotated[bool, typer.Option("--until-empty")] = False,
    events: Annotated[str | None, typer.Option("--events", metavar="DIR")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", metavar="NAME")] = None,
    log: Annotated[str, typer.Option("--log", metavar="text|json")] = "text",
    verbose: Annotated[bool, typer.Option("-v", "--verbose")] = False,
    only_queues: Annotated[str | None, typer.Option("--queues", metavar="NAME,NAME")] = None,
    reload: Annotated[bool, typer.Option("--reload")] = False,
    health: Annotated[str | None, typer.Option("--health", metavar="[HOST:]PORT")] = None,
) -> None:
    """Run a function for the jobs of queues."""
    is_app = len(words) == 1
    url, *queues, handler = ["", *words] if is_app else _checked_words([*left_out_url(words[0]), *words])
    if log not in FORMS:
        raise CallerError(f"--log must be {' or '.join(FORMS)}, got {log}")
    if is_app:
        of_tasks = {"--time-limit": time_limit, "--max-tries": max_tries, "--backoff": backoff}
        others = {"--dead-letters": dead_letters, "--namespace": namespace}
        _refuse_options(of_tasks, "set it where the task is defined, in @app.task(...)")
        _refuse_options(others, "it is an option of the store, in App(...)")
    else:
        _refuse_options({"--queues": only_queues}, "it is for an app; name queues before the function")
    if reload and until_empty:
        raise CallerError("--reload and --until-empty can't be given together")
    from penstock.worker.health import parse_address
    from penstock.worker.supervisor import child_info

    child = child_info()
    address = None if health is None or child is not None else parse_address(health)
    set_up_log(log, verbose, None if child is None else child.number)
    if (processes or reload) and child is None:
        if is_app:
            load_app(handler)  # so that a mistake in it is reported once
        supervisor = _supervisor(
            [_child_command(url, context.obj)] * (processes or 1),
            reload=reload,
            health=address,
            shutdown_timeout=shutdown_timeout,
            until_empty=until_empty,
        )
        raise typer.Exit(asyncio.run(supervisor.run()))
    if is_app:
        tasks_of = load_app(handler)
        if events is not None:
            tasks_of.record_events(events)
        task_worker = tasks_of.worker(
            queues=None if only_queues is None else _names(only_queues),
            concurrency=concurrency,
            lease=lease,
            prefetch=prefetch,
            shutdown_timeout=shutdown_timeout,
            max_stuck=None if child is None else 0,
        )
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve_app(tasks_of, task_worker, until_empty, child, address))
        raise typer.Exit(_exit_code(task_worker, is_child=child is not None))
    from penstock.worker.handlers import load

    make = partial(
        _worker,
        queues=queues,
        handler=load(handler),
        concurrency=concurrency,
        lease=lease,
        time_limit=time_limit,
        dead_letter=_limit(max_tries, dead_letters),
        backoff=None if backoff is None else backoff_option(backoff),
        prefetch=prefetch,
        shutdown_timeout=shutdown_timeout,
        max_stuck=None if child is None else 0,
    )
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        worker = runner.run(_serve(make, url, namespace, events, until_empty, child, address))
    raise typer.Exit(_exit_code(worker, is_child=child is not None))


def _checked_words(words: list[str]) -> list[str]:
    if len(words) < 3:
        raise CallerError(f"penstock worker needs a URL, a queue and a function, such as: {EXAMPLE}")
    return words


def _refuse_options(given: Mapping[str, object], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise CallerError(f"{name} can't be given here: {why}")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise CallerError(f"--queues must be names with commas between them, such as mail,video, got {text!r}")
    return names


def load_app(name: str) -> App:
    """Return the app that `module:app` names."""
    from penstock.tasks import loading

    return loading.load_app(name)


async def _serve_app(
    app: App, worker: TaskWorker, until_empty: bool, child: ChildInfo | None, health: Address | None
) -> None:
    async with app:
        await _run(worker, until_empty, child, health)


def _worker(store: Store, **options: Any) -> Worker:
    from penstock.worker import Worker

    return Worker(store, **options)


def _limit(max_tries: int | None, queue: str | None) -> DeadLetter | None:
    """Return the limit on tries that the options ask for; None without such an option."""
    if max_tries is None and queue is None:
        return None
    from penstock import DeadLetter
    from penstock.queues.dead_letter import DEAD_LETTER_QUEUE
    from penstock.worker.worker import MAX_TRIES

    return DeadLetter(MAX_TRIES if max_tries is None else max_tries, queue or DEAD_LETTER_QUEUE)


async def _serve(
    make: Callable[[Store], Worker],
    url: str,
    namespace: str | None,
    events: str | None,
    until_empty: bool,
    child: ChildInfo | None,
    health: Address | None,
) -> Worker:
    from penstock.queues.aio import connect

    async with connect(url, namespace=namespace, events=events) as store:
        worker = make(store)
        await _run(worker, until_empty, child, health)
        return worker


async def _run(worker: Worker | TaskWorker, until_empty: bool, child: ChildInfo | None, health: Address | None) -> None:
    """Run a worker, and report to the supervisor if there is one, or else to those of the machine."""
    from penstock.worker.health import reporting
    from penstock.worker.supervisor import SupervisorSocket

    if child is None:
        # Whoever gets an answer knows that the event loop turns.
        async with reporting(health, lambda: {"healthy": True, "processes": 1, **worker.summary.counts()}):
            with _frozen_modules():
                await worker.run(until_empty=until_empty, signals=True)
        return
    channel = SupervisorSocket(child, lambda: worker.summary, worker.stop_at)
    telling = asyncio.get_running_loop().create_task(channel.run())
    try:
        with _frozen_modules():
            await worker.run(until_empty=until_empty, signals=True)
    finally:
        telling.cancel()
        await channel.report()


@contextmanager
def _frozen_modules() -> Iterator[None]:
    """Let the garbage collector pass over what is imported by now: each job makes objects that it is called for."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _exit_code(worker: Worker | TaskWorker, is_child: bool) -> int:
    from penstock.worker.supervisor import EXIT_REPLACE

    if not worker.is_stuck:
        return 0
    if is_child:
        return EXIT_REPLACE
    raise OperatorError(
        "handlers overran their time limit and don't end. With --processes such a process is replaced automatically."
    )


def _child_command(url: str, argv: list[str]) -> list[str]:
    """Return the words that start a process of the supervisor."""
    # The URL may have a password, and every user can read the command line of a process, but not its environment.
    at = argv.index(url) if url in argv else len(argv)
    if url:  # an app has its own
        os.environ[URL_VARIABLE] = url
    return [sys.executable, "-m", "penstock", "worker", *argv[:at], *argv[at + 1 :]]


def _supervisor(commands: list[list[str]], *, reload: bool, **options: Any) -> Supervisor:
    from penstock.worker.sources import WatchedFiles, imported_files
    from penstock.worker.supervisor import Supervisor

    sources = WatchedFiles(Path.cwd(), imported_files()) if reload else None
    return Supervisor(commands, sources=sources, **options)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of a faster event loop, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def backoff_option(text: str) -> Backoff:
    from penstock.queues.backoff import parse_backoff

    try:
        return parse_backoff(text)
    except CallerError as problem:
        front = "--backoff" if str(problem).startswith("must be") else f"--backoff {text}:"
        raise CallerError(f"{front} {problem}") from None


def set_up_log(form: str, verbose: bool, number: int | None) -> None:
    """Log to standard error, as text or as lines of JSON; `number` is that of a process of a supervisor."""
    from penstock.worker.logs import EventFilter, JsonFormatter, RateLimit, TextFormatter

    handler = logging.StreamHandler()  # standard error
    if form == "json":
        always = {"pid": os.getpid()} if number is None else {"pid": os.getpid(), "worker": number}
        handler.setFormatter(JsonFormatter(verbose, **always))
    else:
        colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        handler.setFormatter(TextFormatter(colours, verbose, "" if number is None else f"[{number}]"))
    if not verbose:
        handler.addFilter(RateLimit())
    if number is not None:
        handler.addFilter(EventFilter({"start", "summary", "stopping", "stop"}))  # the supervisor logs these for all
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("penstock.worker").setLevel(logging.DEBUG if verbose else logging.INFO)
