"""`penstock tasks MODULE:APP`: the tasks of an app, with their queues and limits, and their parameters."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from penstock.cli.application import application
from penstock.cli.application import run as run_application
from penstock.cli.output import print_json, print_table
from penstock.cli.worker import load_app

app = application()
TITLE = ("task", "queue", "parameters", "tries", "time limit", "kind", "aliases")


def run(argv: list[str]) -> int:
    """Run `penstock tasks` with these words; returns the exit code."""
    return run_application(app, argv, "penstock tasks")


@app.command()
def tasks(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", show_default=False, help="Such as shop:app.")],
    as_json: Annotated[bool, typer.Option("--json", help="Lines of JSON, for programs.")] = False,
) -> None:
    """List the tasks of an app. Modules of the current directory are found."""
    found = load_app(target)
    found.check()
    rows = []
    for task in sorted(set(found.tasks.values()), key=lambda task: task.name):
        to = task.settings
        facts: dict[str, Any] = {
            "task": task.name,
            "queue": to.queue,
            "parameters": str(inspect.signature(task.function)).partition(" -> ")[0],
            "max_tries": to.max_tries,
            "time_limit": to.time_limit,
            "kind": "async" if task.is_async else "process" if to.isolate else "thread",
            "aliases": list(task.aliases),
        }
        if as_json:
            print_json(facts)
        limit = "" if to.time_limit is None else f"{to.time_limit:g} s"
        tries = to.max_tries or "no limit"
        aliases = ", ".join(task.aliases)
        rows.append((task.name, to.queue, facts["parameters"], tries, limit, facts["kind"], aliases))
    if not as_json:
        print_table(TITLE, rows)
