"""The `penstock` command: runs the group that the first word names, and turns errors into messages.

A group is a module or package with `run(argv: list[str]) -> int`. It is imported only when it is called, and gets its
words unparsed and before typer is loaded: `penstock cli PING` starts in a quarter of the time, and directives of
`penstock server` that look like options (or a job's body `--`) reach the group unchanged. Typer prints the list of
groups, and errors for unknown words.

Exit codes: 0 done, 1 it failed, 2 the command line was wrong, 130 interrupted. Of `server`, 1 whatever is wrong.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from penstock.cli import output
from penstock.errors import CallerError, LeaseLost, PenstockError

if TYPE_CHECKING:
    import typer

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class CommandGroup(NamedTuple):
    """A word after `penstock`, and the module of its `run`."""

    module: str
    summary: str
    words: tuple[str, ...] = ()  # passed to `run` before the rest, where a module has several commands


_QUEUES = "penstock.cli.queues"


GROUPS: dict[str, CommandGroup] = {
    "server": CommandGroup("penstock.cli.server", "Run a node, with a configuration file or --directive value."),
    "cli": CommandGroup("penstock.cli.shell", "Talk to a node: one command, a script of commands, or a prompt."),
    "check-aof": CommandGroup("penstock.cli.check_aof", "Check a journal, and cut off a damaged tail with --fix."),
    "cluster": CommandGroup("penstock.cli.cluster", "Try a cluster, show one, add, drain and remove nodes."),
    "fsq": CommandGroup("penstock.cli.fsq", "Directories as queues: install, enqueue, scan and more."),
    "push": CommandGroup(_QUEUES, "Add jobs to a queue of any store.", ("push",)),
    "pop": CommandGroup(_QUEUES, "Take jobs and print their bodies.", ("pop",)),
    "reserve": CommandGroup(_QUEUES, "Reserve jobs and print them with their tokens.", ("reserve",)),
    "ack": CommandGroup(_QUEUES, "Acknowledge a reserved job.", ("ack",)),
    "nack": CommandGroup(_QUEUES, "Return a reserved job to its queue.", ("nack",)),
    "peek": CommandGroup(_QUEUES, "Show jobs without taking them.", ("peek",)),
    "queues": CommandGroup(_QUEUES, "List the queues of a store.", ("queues",)),
    "stats": CommandGroup(_QUEUES, "Show the counters of a queue.", ("stats",)),
    "size": CommandGroup(_QUEUES, "Print how many jobs are ready.", ("size",)),
    "pause": CommandGroup(_QUEUES, "Pause delivery of a queue's jobs.", ("pause",)),
    "resume": CommandGroup(_QUEUES, "Resume delivery.", ("resume",)),
    "redrive": CommandGroup(_QUEUES, "Send dead letters back to their queues.", ("redrive",)),
    "purge": CommandGroup(_QUEUES, "Remove all waiting jobs of a queue.", ("purge",)),
    "move": CommandGroup(_QUEUES, "Move a queue's jobs to another store.", ("move",)),
    "spark": CommandGroup("penstock.cli.spark", "Drain a queue into Parquet with Spark, and fill one from it."),
    "lake": CommandGroup("penstock.cli.lake", "Turn events into tables with Spark, and ask them."),
    "why": CommandGroup("penstock.cli.why", "Say what happened to a job, and what it waits for."),
    "pipeline": CommandGroup("penstock.cli.pipeline", "Check, draw and run queues that are joined by links."),
    "worker": CommandGroup("penstock.cli.worker", "Run a function for each job of queues, or the tasks of an app."),
    "tasks": CommandGroup("penstock.cli.tasks", "List the tasks of an app."),
    "cron": CommandGroup("penstock.cli.cron", "Show the crons of an app and their next runs."),
    "config": CommandGroup("penstock.cli.config", "Show the settings of an app and where they come from."),
    "version": CommandGroup("penstock.cli.version", "Print the version."),
}


RENAMED = {"copy": "move"}  # commands: old name -> new
COMPLETE_VARIABLE = "_PENSTOCK_COMPLETE"  # set by the script of --install-completion

EPILOG = """\
\b
Add a job to a queue in a file, and run a function for it:
  penstock push sqlite:///jobs.db mail --json '{"to": "ann"}'
  penstock worker sqlite:///jobs.db mail shop:send
\b
Start a broker, and use it:
  mkdir data && penstock server --dir data
  penstock push disque://localhost:7711 mail hello
\b
Show queues, and jobs that failed:
  penstock queues sqlite:///jobs.db
  penstock peek sqlite:///jobs.db __deadletter__
  penstock redrive sqlite:///jobs.db
"""


def main(argv: list[str] | None = None) -> NoReturn:
    """Run `penstock` and exit. A user's mistake is answered by a message, never by a traceback."""
    words = sys.argv[1:] if argv is None else argv
    try:
        code = _complete() if COMPLETE_VARIABLE in os.environ else _dispatch(words)
        sys.stdout.flush()
    except PenstockError as error:
        # A lost lease is not a mistake in the command line.
        is_mistake = isinstance(error, CallerError) and not isinstance(error, LeaseLost)
        code = _complain(error, EXIT_USAGE if is_mistake else EXIT_FAILED)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except OSError as error:
        code = EXIT_FAILED
        if problem := output.abandon_stdout(error):
            _complain(problem, code)
    sys.exit(code)


def _dispatch(words: list[str]) -> int:
    group = GROUPS.get(words[0]) if words else None
    if group is not None:
        return load(group)([*group.words, *words[1:]])
    if words[:1] in (["--version"], ["-v"]):
        return load(GROUPS["version"])([])
    if words and words[0] in RENAMED:
        raise CallerError(f"`penstock {words[0]}` is now `penstock {RENAMED[words[0]]}`")
    try:
        _help_app()(args=words or ["--help"], prog_name="penstock")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    return 0


def load(group: CommandGroup) -> Callable[[list[str]], int]:
    """Return the `run` of a group."""
    run: Callable[[list[str]], int] = import_module(group.module).run
    return run


def _help_app() -> "typer.Typer":
    """Return a typer application with the names of the groups, for --help and for unknown words."""
    import typer

    # Without rich, whose import alone would take half of the time that --help may take.
    app = typer.Typer(
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help="Penstock: job queues in any store, and a replicated broker. `penstock COMMAND --help` explains one.",
        epilog=EPILOG,
    )

    @app.callback()
    def options(version: bool = typer.Option(False, "-v", "--version", help="Print the version.")) -> None: ...

    for name, group in GROUPS.items():
        app.command(name, help=group.summary)(lambda: None)
    return app


def _complete() -> int:
    """Print the words that can come next: commands, or options of the typed command."""
    app = _help_app()
    typed = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()
    name = typed[1] if len(typed) > 1 else ""
    own = getattr(import_module(GROUPS[name].module), "app", None) if name in GROUPS else None
    if own is not None:
        app.registered_commands = [row for row in app.registered_commands if row.name != name]
        commands = [row for row in own.registered_commands if len(own.registered_commands) == 1 or _is(row, name)]
        if commands:
            commands[0].name = name
            app.registered_commands += commands[:1]
        else:
            app.add_typer(own, name=name)
    try:
        app(args=[], prog_name="penstock")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    return 0


def _is(command: Any, name: str) -> bool:
    return name in (command.name, command.callback.__name__.replace("_", "-"))


def _complain(error: Exception | str, code: int) -> int:
    print(f"penstock: {output.printable_lines(str(error))}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
