"""`penstock why`: what happened to a job, and what happens next. Starts no JVM."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.application import EventsDirectory, application
from penstock.cli.application import run as run_application
from penstock.errors import printable

app = application()


@app.command()
def why(
    job: Annotated[str, typer.Argument(metavar="JOB_ID", show_default=False, help="The id of the job.")],
    lake: Annotated[
        str | None,
        typer.Option(metavar="DIR", envvar="PENSTOCK_LAKE", help="The lake.", show_default=False, show_envvar=True),
    ] = None,
    events: EventsDirectory = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", envvar="PENSTOCK_URL", help="The job's store.", show_default=False, show_envvar=True
        ),
    ] = None,
) -> None:
    """Say how a job stands, what it waits for, and all that happened to it.

    Asks the tables of a lake, the segments that the lake does not have yet, and the store, as far as they are given.
    The exit code is 1 if none of them knows the job.
    """
    from penstock.lake.story import story
    from penstock.lake.why import collect

    known = collect(job, lake=lake, events=events, url=store)
    for line in story(job, known):
        print(printable(line))
    if not known.events and known.in_store is None:
        raise typer.Exit(1)


def run(words: list[str]) -> int:
    """Run the command with its words."""
    return run_application(app, words, "penstock why")
