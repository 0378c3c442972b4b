"""What commands print: lines of JSON for programs; tables, events and progress for people.

    print_json, print_table, print_body   one object, rows or a body, on standard output
    EventPrinter                          what happens while a command runs, as sentences or as lines of JSON
    ProgressCounter                       a count, shown as a bar on a terminal
    abandon_stdout                        after standard output could not be written

`main` imports this module for every command, so everything that is slow to load is imported where it is used.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

from penstock.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from penstock.queues.blocking import Job

# Errors of a write: a full disk, or a reader that closed the pipe (`| head`). Files that we write ourselves have
# handlers of their own.
UNWRITABLE = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
BODY_CHARACTERS_MAX = 60  # of a body in a table
ERROR_CHARACTERS_MAX = 120  # of an error in a table; --json has all of it
UNCUT = frozenset({"id", "token", "queue"})  # columns whose cells are arguments of other commands
OTHERS_CHARACTERS_MIN = 12  # room for each of the other columns on a narrow terminal


def abandon_stdout(error: OSError) -> str:
    """Discard all further output; return the message for the user, empty if the reader closed the pipe.

    Raises the error again if it is not about standard output.
    """
    if error.errno not in UNWRITABLE or error.filename is not None:
        raise error
    # Python would complain once more when it closes stdout.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return "" if isinstance(error, BrokenPipeError) else f"can't write the output: {error.strerror}"


# Jobs.


def job_facts(job: Job) -> dict[str, Any]:
    """Return everything that is known of a job, for --json. A payload that is neither JSON nor text is in base64."""
    import base64

    payload = job.payload
    facts: dict[str, Any] = {"id": job.id, "queue": job.queue.name, "state": str(job.state), "tries": job.tries}
    if isinstance(payload, bytes):
        facts["base64"] = base64.b64encode(payload).decode()
    else:
        facts["payload"] = payload
    facts["headers"] = job.headers
    more = {"created": job.created, "mature": job.mature, "token": job.token}
    return facts | {name: value for name, value in more.items() if value is not None}


DEAD_LETTER_COLUMNS = ("from", "failed", "deliveries", "error")


def dead_letter_facts(job: Job) -> tuple[str, str, str, str]:
    """Return the columns of a dead letter: its queue, when it failed, after how many deliveries, the error.

    They are empty for any other job. The header counts the deliveries before the last one, as Keuss does.
    """
    from penstock.queues.dead_letter import ERROR, FROM_QUEUE, TIME, TRIES

    queue, time, error = (str(job.headers.get(name, "")) for name in (FROM_QUEUE, TIME, ERROR))
    tries = job.headers.get(TRIES)
    deliveries = str(tries + 1) if isinstance(tries, int) else ""
    return queue, time, deliveries, shortened(error, ERROR_CHARACTERS_MAX)


def short_body(job: Job) -> str:
    """Return the beginning of a body, for a table."""
    return shortened(job.body[: 4 * BODY_CHARACTERS_MAX].decode(errors="replace"), BODY_CHARACTERS_MAX)


def shortened(text: str, characters_max: int) -> str:
    """Return a text cut to a length; a cut one ends with `…`."""
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def utc_time(seconds: float | None) -> str:
    """Return a Unix time as text, in UTC."""
    from datetime import UTC, datetime

    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def print_body(job: Job) -> None:
    """Print the body as it is, and a line end."""
    payload = job.stored.payload if job.stored.body is None else None
    body = payload.encode() if isinstance(payload, str) else job.body
    sys.stdout.flush()
    sys.stdout.buffer.write(body + b"\n")
    sys.stdout.buffer.flush()


# Lines of JSON, and tables.


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    sys.stdout.write(_json_line(value, ensure_ascii=False) + "\n")


def _json_line(value: Any, *, ensure_ascii: bool = True) -> str:
    import json

    return json.dumps(value, ensure_ascii=ensure_ascii)


def print_table(title: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows: as a table with a title on a terminal, else separated by tabs."""
    texts = [[_cell(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in texts:
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in title:
        table.add_column(name, no_wrap=name in UNCUT)
    for row in texts:
        table.add_row(*map(Text, row))  # rich would take [words] in a str for markup
    console = Console()
    # A terminal that is too narrow breaks the lines itself: what is copied from it is still whole.
    uncut = sum(max(len(row[at]) for row in [title, *texts]) + 1 for at, name in enumerate(title) if name in UNCUT)
    console.width = max(console.width, uncut + OTHERS_CHARACTERS_MIN * sum(name not in UNCUT for name in title))
    console.print(table, soft_wrap=False, crop=False)


def _cell(value: Any) -> str:
    return "?" if value is None else printable(str(value))


def printable_lines(text: str) -> str:
    """Return a text of several lines, each as `printable` makes it."""
    return "\n".join(map(printable, text.split("\n")))


# What happens meanwhile.


class EventPrinter:
    """Prints events: a sentence for people, or with --json a line of JSON with the event's name and facts."""

    def __init__(self, is_json: bool = False) -> None:
        self.is_json = is_json

    def event(self, name: str, sentence: str, /, **facts: object) -> None:
        """Print an event. One with an empty sentence is for programs only."""
        if self.is_json:
            print(_json_line({"event": name, **facts}), flush=True)
        elif sentence:
            print(printable_lines(sentence), flush=True)

    def warning(self, sentence: str) -> None:
        """Print a warning: with --json in order with the events, else on standard error."""
        if self.is_json:
            print(_json_line({"event": "warning", "text": sentence}), flush=True)
        else:
            print(f"Warning: {printable_lines(sentence)}", file=sys.stderr, flush=True)


class ProgressCounter:
    """A count that grows by calling it. Within its block a terminal shows a progress bar."""

    def __init__(self, what: str, expected: int | None = None, *, quiet: bool = False) -> None:
        """`expected` is the final count, if it is known."""
        self.total = 0
        self._what = what
        self._expected = expected
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> ProgressCounter:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(file=sys.stderr))
            self._task = self._bar.add_task(self._what, total=self._expected)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, count: int) -> None:
        self.total += count
        if self._bar is not None:
            self._bar.advance(self._task, count)
