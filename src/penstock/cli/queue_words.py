"""What `penstock push`, `pop`, `peek` and the rest print: tables for people, lines of text or JSON for programs."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.queues.dead_letter import ERROR, FROM_QUEUE, TIME

if TYPE_CHECKING:
    from penstock.queues.blocking import Job

BODY_CHARACTERS_MAX = 60  # of a body in a table
UNCUT = frozenset({"id", "token", "queue"})  # columns whose cells are arguments of other commands
OTHERS_CHARACTERS_MIN = 12  # room for each of the other columns on a narrow terminal
ERROR_CHARACTERS_MAX = 120  # of an error in a table; --json has all of it


def job_facts(job: Job) -> dict[str, Any]:
    """All that is known of a job, for programs. A payload that is neither JSON nor text is given in base64."""
    payload = job.payload
    facts: dict[str, Any] = {"id": job.id, "queue": job.queue.name, "state": str(job.state), "tries": job.tries}
    if isinstance(payload, bytes):
        facts["base64"] = base64.b64encode(payload).decode()
    else:
        facts["payload"] = payload
    facts["headers"] = job.headers
    more = {"created": job.created, "mature": job.mature, "token": job.token}
    return facts | {name: value for name, value in more.items() if value is not None}


def print_json(value: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def print_body(job: Job) -> None:
    """The body as it is, and a line end."""
    payload = job.stored.payload if job.stored.body is None else None
    body = payload.encode() if isinstance(payload, str) else job.body
    sys.stdout.flush()
    sys.stdout.buffer.write(body + b"\n")
    sys.stdout.buffer.flush()


def print_table(title: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns, coloured on a terminal, with tabs between them in a pipe."""
    texts = [[_cell(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in texts:
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in title:
        table.add_column(name, no_wrap=name in UNCUT)
    for row in texts:
        table.add_row(*row)
    console = Console()
    # A terminal that is too narrow breaks the lines itself: what is copied from it is still whole.
    uncut = sum(max(len(row[at]) for row in [title, *texts]) + 1 for at, name in enumerate(title) if name in UNCUT)
    console.width = max(console.width, uncut + OTHERS_CHARACTERS_MIN * sum(name not in UNCUT for name in title))
    console.print(table, soft_wrap=False, crop=False)


def _cell(value: Any) -> str:
    if value is None:
        return "?"
    text = str(value)
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def short_body(job: Job) -> str:
    """A body's beginning, for a table."""
    text = job.body[: 4 * BODY_CHARACTERS_MAX].decode(errors="replace")
    return text if len(text) <= BODY_CHARACTERS_MAX else text[: BODY_CHARACTERS_MAX - 1] + "…"


def dead_facts(job: Job) -> tuple[str, str, str]:
    """Where a dead letter came from, when it was given up, and why; empty for any other job."""
    queue, time, error = (str(job.headers.get(name, "")) for name in (FROM_QUEUE, TIME, ERROR))
    return queue, time, error if len(error) <= ERROR_CHARACTERS_MAX else error[: ERROR_CHARACTERS_MAX - 1] + "…"


def when(seconds: float | None) -> str:
    """A time for people, in UTC."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
