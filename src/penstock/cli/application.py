"""What the typer applications of the command line share.

`application` makes one with common settings, `run` runs it and returns its exit code. `StoreCommand` is the class of
commands whose first argument is a store's URL: where the variable PENSTOCK_URL is set, the URL can be left out, so that
a password need not be on a command line, which every user of the machine can read. PENSTOCK_TO_URL does the same for
the second store of `penstock move`.

A first argument is a URL if it has `://`, or begins with the scheme of a store and a colon.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from penstock.errors import CallerError
from penstock.queues.registry import is_store_url

URL_VARIABLE = "PENSTOCK_URL"
TO_URL_VARIABLE = "PENSTOCK_TO_URL"
URL_HELP = (
    "The store: sqlite:///jobs.db, redis://localhost:6379/0, postgresql://localhost/jobs, disque://localhost:7711, "
    f"and so on. It can be left out where the variable {URL_VARIABLE} is set."
)

EventsDirectory = Annotated[
    str | None,
    typer.Option(
        "--events",
        metavar="DIR",
        envvar="PENSTOCK_EVENTS",
        help="The directory of events.",
        show_default=False,
        show_envvar=True,
    ),
]


def application(**settings: Any) -> typer.Typer:
    """Return a typer application with common settings."""
    return typer.Typer(
        add_completion=False,  # `penstock` itself has it
        rich_markup_mode=None,  # rich would take longer to load than everything else
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
        **settings,
    )


def run(app: typer.Typer, words: Sequence[str], program: str, **named: Any) -> int:
    """Run an application with these words; return the exit code."""
    try:
        app(args=list(words), prog_name=program, **named)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def left_out_url(first: object, variable: str = URL_VARIABLE) -> list[str]:
    """Return the URL of PENSTOCK_URL as a list where `first`, the first argument of a command, isn't a URL itself."""
    url = os.environ.get(variable)
    if not url or (isinstance(first, str) and is_store_url(first)):
        return []
    if not is_store_url(url):
        raise CallerError(f"{variable} must be the URL of a store, such as sqlite:///jobs.db")
    return [url]


class StoreCommand(TyperCommand):
    """A command whose first argument is a store's URL."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words, with the URL put before them where it was left out."""
        if not ctx.resilient_parsing:
            # The first argument as the parser sees it, whatever options come before it.
            options, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            args = [*left_out_url(options.get("url")), *args]
        return super().parse_args(ctx, args)
