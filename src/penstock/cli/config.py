"""`penstock config [MODULE:APP]`: the settings that are in force, and where each came from."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.application import application
from penstock.cli.application import run as run_application
from penstock.cli.output import print_json, print_table

app = application()


def run(argv: list[str]) -> int:
    """Run `penstock config` with these words; returns the exit code."""
    return run_application(app, argv, "penstock config")


@app.command()
def config(
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", show_default=False, help="Such as shop:app.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Lines of JSON, for programs.")] = False,
) -> None:
    """Print the settings of an app, or without one those that any app here would have. Passwords are left out."""
    from penstock.cli.worker import load_app
    from penstock.tasks.settings import SETTINGS, find

    found = [find(name) for name in SETTINGS] if target is None else load_app(target).settings()
    for one in found if as_json else ():
        print_json({"setting": one.name, "value": one.shown or None, "origin": one.origin})
    if not as_json:
        print_table(("setting", "value", "from"), [(one.name, one.shown, one.origin) for one in found])
