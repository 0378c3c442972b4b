"""The `penstock` command: finds the group that the first word names, and turns errors into messages.

A group is a module with `run(argv: list[str]) -> int`. It is imported only when it is called, and gets its
words untouched and before typer is loaded: `penstock cli PING` starts in a quarter of the time, and
directives of `penstock server` that look like options (or a job's body `--`) reach whoever understands them.
Typer shows the list of groups and answers words that name none.

Exit codes: 0 done, 1 it failed, 2 the command line was wrong, 130 interrupted. Of `server`, 1 whatever is wrong.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from penstock.cli import output
from penstock.errors import CallerError, LeaseLost, PenstockError

if TYPE_CHECKING:
    import typer

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class Group(NamedTuple):
    """A word after `penstock`, and where its `run` lives."""

    module: str
    summary: str
    words: tuple[str, ...] = ()  # what `run` gets in front of the rest, where a module has several commands


_QUEUES = "penstock.cli.queues"


GROUPS: dict[str, Group] = {
    "server": Group("penstock.cli.server", "Run a node, with a configuration file or --directive value."),
    "cli": Group("penstock.cli.shell", "Talk to a node: one command, a script of commands, or a prompt."),
    "check-aof": Group("penstock.cli.check_aof", "Check a journal, and cut off a damaged tail with --fix."),
    "cluster": Group("penstock.cli.cluster", "Try a cluster, look at one, add, drain and remove nodes."),
    "fsq": Group("penstock.cli.fsq", "Directories as queues: install, enqueue, scan and more."),
    "push": Group(_QUEUES, "Add jobs to a queue of any store.", ("push",)),
    "pop": Group(_QUEUES, "Take jobs, and print their bodies.", ("pop",)),
    "reserve": Group(_QUEUES, "Lease jobs, and print them with their tokens.", ("reserve",)),
    "ack": Group(_QUEUES, "End a job that was reserved.", ("ack",)),
    "nack": Group(_QUEUES, "Give a job back that was reserved.", ("nack",)),
    "peek": Group(_QUEUES, "Look at jobs without touching them.", ("peek",)),
    "queues": Group(_QUEUES, "List the queues of a store.", ("queues",)),
    "stats": Group(_QUEUES, "Show the counters of a queue.", ("stats",)),
    "size": Group(_QUEUES, "Print how many jobs are ready.", ("size",)),
    "pause": Group(_QUEUES, "Hand out no more jobs of a queue.", ("pause",)),
    "resume": Group(_QUEUES, "Hand out jobs again.", ("resume",)),
    "redrive": Group(_QUEUES, "Send dead letters back.", ("redrive",)),
    "purge": Group(_QUEUES, "Remove all waiting jobs of a queue.", ("purge",)),
    "copy": Group(_QUEUES, "Move a queue's jobs to another store.", ("copy",)),
    "spark": Group("penstock.cli.spark", "Drain a queue into Parquet with Spark, and fill one from it."),
    "worker": Group("penstock.cli.worker", "Run a function of yours for the jobs of queues."),
    "version": Group("penstock.cli.version", "Print the version."),
}


def main(argv: list[str] | None = None) -> NoReturn:
    """The entry point of `penstock`. Never returns, never shows a traceback for a user's mistake."""
    words = sys.argv[1:] if argv is None else argv
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except PenstockError as error:
        # A lost lease is no mistake in the command line: it comes with time.
        is_mistake = isinstance(error, CallerError) and not isinstance(error, LeaseLost)
        code = _complain(error, EXIT_USAGE if is_mistake else EXIT_FAILED)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except OSError as error:
        code = EXIT_FAILED
        if problem := output.give_up(error):
            _complain(problem, code)
    sys.exit(code)


def _dispatch(words: list[str]) -> int:
    group = GROUPS.get(words[0]) if words else None
    if group is not None:
        return load(group)([*group.words, *words[1:]])
    if words[:1] in (["--version"], ["-v"]):
        return load(GROUPS["version"])([])
    app = _help_app()
    try:
        app(args=words or ["--help"], prog_name="penstock")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    return 0


def load(group: Group) -> Callable[[list[str]], int]:
    """The group's `run`."""
    run: Callable[[list[str]], int] = import_module(group.module).run
    return run


def _help_app() -> "typer.Typer":
    """A typer application that knows the groups by name, for --help and for words that name none."""
    import typer

    # Without rich, whose import alone would take half of the time that --help may take.
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Penstock: a replicated job queue. `penstock COMMAND --help` explains a command.",
    )
    for name, group in GROUPS.items():
        app.command(name, help=group.summary)(lambda: None)
    return app


def _complain(error: Exception | str, code: int) -> int:
    print(f"penstock: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
