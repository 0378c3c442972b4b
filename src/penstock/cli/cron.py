"""`penstock cron MODULE:APP`: the crons of an app, and when they run next."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from penstock.cli.application import application
from penstock.cli.application import run as run_application
from penstock.cli.output import print_json, print_table
from penstock.cli.worker import load_app

app = application()
TITLE = ("task", "cron", "time zone", "missed", "runs next")


def run(argv: list[str]) -> int:
    """Run `penstock cron` with these words; returns the exit code."""
    return run_application(app, argv, "penstock cron")


@app.command()
def cron(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", show_default=False, help="Such as shop:app.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="Runs to show for each cron.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Lines of JSON, for programs.")] = False,
) -> None:
    """Show the crons of an app and their next runs. Workers push them; nothing is pushed here."""
    found = load_app(target)
    rows = []
    for name, one in sorted(found.crons.items()):
        schedule = one.schedule
        for at in islice(schedule.after(found.now()), count):
            when = datetime.fromtimestamp(at, ZoneInfo(schedule.timezone)).isoformat()
            rows.append((name, schedule.expression, schedule.timezone, one.missed, when))
            if as_json:
                print_json(dict(zip(("task", "cron", "timezone", "missed", "next"), rows[-1], strict=True)))
    if not as_json:
        print_table(TITLE, rows)
