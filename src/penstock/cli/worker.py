"""`penstock worker`: runs a function of the application for the jobs of queues, in one process or several.

With --processes this process only sees to the others, which are started with the same words; each finds out through
its environment that it is one of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.application import URL_VARIABLE, application, left_out_url
from penstock.cli.application import run as run_application
from penstock.errors import CallerError, OperatorError

if TYPE_CHECKING:
    from penstock.queues.aio import Store
    from penstock.queues.backoff import Backoff
    from penstock.queues.dead_letters import DeadLetter
    from penstock.worker import Worker
    from penstock.worker.channel import Post

app = application()

FORMS = ("text", "json")
EXAMPLE = "penstock worker sqlite:///jobs.db mail shop.mail:send"

USAGE = """\
usage: penstock worker URL QUEUE [QUEUE ...] MODULE:FUNCTION [options]

Calls a function for each job of the queues, until it gets SIGTERM or SIGINT. The function is called with a Job, as a
task if it is an `async def`, else in a thread. When it returns, the job is done. When it raises, the job comes back
later; after its last try it goes to the dead letters. Modules of the current directory are found.

  URL                    the store: sqlite:///jobs.db, redis+oq://localhost:6379/0, postgresql://localhost/jobs,
                         disque://localhost:7711, and so on. It can be left out where the variable PENSTOCK_URL is
                         set; every user of the machine can read a password on the command line, but not in there

How many:
  -c, --concurrency N    so many jobs at a time (default 10), in each process
  -p, --processes M      so many processes, which are replaced when they die (default: only this one)
  --prefetch N           take so many jobs ahead (default: by how long they take)
  --until-empty          end when no job is ready; those that wait for their time stay

How long:
  --lease SECONDS        jobs of a worker that died come back after so long (default: the store's, mostly 120);
                         made longer while a job runs
  --time-limit SECONDS   a function that takes longer has failed; a plain one can't be ended, so its process is
                         replaced (with --processes) or goes on without that thread
  --stop-within SECONDS  running jobs get so long when the worker must stop, then they go back (default 30)

When a job fails:
  --max-tries N          to the dead letters after so many deliveries, 0: never (default: the store's, or 25)
  --dead-letters QUEUE   the queue for them (default __deadletter__)
  --backoff SECONDS      wait so long before the next try: `5` each time, `1..600` doubles from 1 s up to 600,
                         `1..600*3` grows threefold (default 1..3600); half of it is left to chance

What is said:
  --log text|json        lines for people, or lines of JSON (default text), on standard error
  -v, --verbose          also each job that is done, and where errors arose
  --name NAMESPACE       the namespace of signals and statistics (default N, as in Keuss)
  -h, --help             this text

A function for `penstock worker sqlite:///jobs.db mail shop:send`, in shop.py:
  def send(job):
      print("to", job.payload["to"])

Exit codes: 0 stopped, or empty; 1 it failed; 2 the command line was wrong.
"""


def run(argv: list[str]) -> int:
    """Run `penstock worker` with these words. Returns the exit code."""
    if not argv or "-h" in argv or "--help" in argv:
        print(USAGE, end="")
        return 0
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
    stop_within: Annotated[float, typer.Option("--stop-within", metavar="SECONDS", min=0)] = 30.0,
    until_empty: Annotated[bool, typer.Option("--until-empty")] = False,
    name: Annotated[str | None, typer.Option("--name", metavar="NAMESPACE")] = None,
    log: Annotated[str, typer.Option("--log", metavar="text|json")] = "text",
    verbose: Annotated[bool, typer.Option("-v", "--verbose")] = False,
) -> None:
    """Run a function for the jobs of queues."""
    url, *queues, handler = _checked_words([*left_out_url(words[0]), *words])
    if log not in FORMS:
        raise CallerError(f"--log {log}: there is {' and '.join(FORMS)}")
    from penstock.worker.channel import own_post

    post = own_post()
    _set_up_log(log, verbose, None if post is None else post.number)
    if processes and post is None:
        raise typer.Exit(_supervise(url, context.obj, processes, stop_within, until_empty))
    from penstock.worker.handlers import load

    make = partial(
        _worker,
        queues=queues,
        handler=load(handler),
        concurrency=concurrency,
        lease=lease,
        time_limit=time_limit,
        dead_letter=_limit(max_tries, dead_letters),
        backoff=None if backoff is None else parse_backoff(backoff),
        prefetch=prefetch,
        stop_within=stop_within,
        stuck_max=None if post is None else 0,
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        worker = runner.run(_serve(make, url, name, until_empty, post))
    raise typer.Exit(_exit_code(worker, is_child=post is not None))


def _checked_words(words: list[str]) -> list[str]:
    if len(words) < 3:
        raise CallerError(f"penstock worker needs a URL, a queue and a function: {EXAMPLE}")
    return words


def _worker(store: Store, **options: Any) -> Worker:
    from penstock.worker import Worker

    return Worker(store, **options)


def _limit(max_tries: int | None, queue: str | None) -> DeadLetter | None:
    """When jobs are given up, if anything was said about it."""
    if max_tries is None and queue is None:
        return None
    from penstock.queues.dead_letters import DEAD_LETTER_QUEUE, DeadLetter
    from penstock.worker.worker import MAX_TRIES

    return DeadLetter(MAX_TRIES if max_tries is None else max_tries, queue or DEAD_LETTER_QUEUE)


async def _serve(
    make: Callable[[Store], Worker], url: str, name: str | None, until_empty: bool, post: Post | None
) -> Worker:
    from penstock.queues.aio import connect
    from penstock.worker.channel import Channel

    async with connect(url, name=name) as store:
        worker = make(store)
        if post is None:
            await worker.run(until_empty=until_empty, signals=True)
            return worker
        channel = Channel(post, lambda: worker.summary, worker.stop_at)
        telling = asyncio.get_running_loop().create_task(channel.run())
        try:
            await worker.run(until_empty=until_empty, signals=True)
        finally:
            telling.cancel()
            await channel.report()
        return worker


def _exit_code(worker: Worker, is_child: bool) -> int:
    from penstock.worker.supervisor import EXIT_REPLACE

    if not worker.is_stuck:
        return 0
    if is_child:
        return EXIT_REPLACE
    raise OperatorError(
        "handlers overran their time limit and can't be ended. With --processes such a process is replaced by itself."
    )


def _supervise(url: str, argv: list[str], processes: int, stop_within: float, until_empty: bool) -> int:
    from penstock.worker.supervisor import Supervisor

    # The URL may have a password, and every user can read the words of a process, but not its environment.
    at = argv.index(url) if url in argv else len(argv)
    os.environ[URL_VARIABLE] = url
    command = [sys.executable, "-m", "penstock", "worker", *argv[:at], *argv[at + 1 :]]
    supervisor = Supervisor(command, processes, stop_within=stop_within, until_empty=until_empty)
    return asyncio.run(supervisor.run())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """A faster event loop, where there is one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def parse_backoff(text: str) -> Backoff:
    """`5` waits 5 s each time; `1..600` begins with 1 s and doubles up to 600; `1..600*3` grows threefold."""
    from penstock.queues.backoff import Exponential, Fixed

    first, dots, rest = text.partition("..")
    longest, times, factor = rest.partition("*")
    try:
        if not dots:
            return Fixed(float(first))
        return Exponential(float(first), float(factor) if times else 2.0, float(longest))
    except CallerError as problem:
        raise CallerError(f"--backoff {text}: {problem}") from None
    except ValueError:
        text = f"--backoff {text}: write 5 for 5 s each time, or 1..600 for 1 s that doubles up to 600"
        raise CallerError(text) from None


def _set_up_log(form: str, verbose: bool, number: int | None) -> None:
    from penstock.worker.logs import JsonFormatter, LeftOut, Sparing, TextFormatter

    handler = logging.StreamHandler()  # standard error
    if form == "json":
        always = {"pid": os.getpid()} if number is None else {"pid": os.getpid(), "worker": number}
        handler.setFormatter(JsonFormatter(verbose, **always))
    else:
        colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        handler.setFormatter(TextFormatter(colours, verbose, "" if number is None else f"[{number}]"))
    if not verbose:
        handler.addFilter(Sparing())
    if number is not None:
        handler.addFilter(LeftOut({"start", "summary", "stopping", "stop"}))  # the supervisor says it for all
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("penstock.worker").setLevel(logging.DEBUG if verbose else logging.INFO)
