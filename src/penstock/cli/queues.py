"""The commands for queues of any store, such as `penstock push URL QUEUE BODY`.

Each command is a function with typer's options; `penstock.cli.main` calls `run` with the command's name as the first
word. They use the blocking form of the library; `output` prints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from penstock.cli.application import TO_URL_VARIABLE, URL_HELP, StoreCommand, application, left_out_url
from penstock.cli.application import run as run_application
from penstock.cli.output import (
    DEAD_LETTER_COLUMNS,
    ProgressCounter,
    dead_letter_facts,
    job_facts,
    print_body,
    print_json,
    print_table,
    printable_lines,
    short_body,
    utc_time,
)
from penstock.codec import decode, from_json
from penstock.errors import BadPayload, CallerError, Unsupported
from penstock.job import JobState
from penstock.queues.blocking import Queue, Store, connect
from penstock.queues.blocking.stats import SHOWN
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letter import DEAD_LETTER_QUEUE, ERROR, FROM_QUEUE, TRACEBACK
from penstock.queues.push import Push

EXIT_NONE = 1  # no job came
LINES_BATCH = 1000

app = application()

Url = Annotated[str, typer.Argument(metavar="URL", show_default=False, help=URL_HELP)]
Name = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False, help="The queue.")]
Json = Annotated[bool, typer.Option("--json", help="Lines of JSON, for programs.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for a job; exit code 1 if none comes.")
]
Count = Annotated[int, typer.Option("-n", "--count", min=1, help="Maximum number of jobs.")]


def _fields(pairs: list[str]) -> dict[str, Any]:
    """Return headers from NAME=VALUE options; values that are JSON numbers, true or false become that."""
    headers = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise CallerError(f"--header must be NAME=VALUE, got {pair}")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        headers[name] = value if isinstance(value, bool | int | float) else text
    return headers


def _payloads(words: list[str], lines: bool, read: Callable[[bytes], Any]) -> Iterator[Any]:
    """Yield the payloads to push: each word, or each line of standard input, or all of it."""
    raw: Iterator[bytes]
    if words:
        raw = (word.encode(errors="surrogateescape") for word in words)
    elif lines:
        raw = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    elif sys.stdin.isatty():
        raise CallerError(
            "penstock push needs a body, --lines, or a body on standard input: echo hello | penstock push URL QUEUE"
        )
    else:
        raw = iter([sys.stdin.buffer.read()])
    for number, body in enumerate(raw, 1):
        try:
            yield read(body)
        except UnicodeDecodeError as problem:
            raise BadPayload(f"body {number} is not UTF-8 text: {problem}") from problem
        except (ValueError, RecursionError) as problem:
            raise BadPayload(f"body {number} is not valid JSON: {problem}") from problem


def _checked_json(body: bytes) -> bytes:
    try:
        from_json(body)
    except UnicodeDecodeError as problem:
        raise ValueError(str(problem)) from problem
    return body


@app.command(cls=StoreCommand)
def push(
    url: Url,
    queue: Name,
    bodies: Annotated[
        list[str] | None, typer.Argument(metavar="BODY", show_default=False, help="The body of a job.")
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Refuse a body that is not JSON.")] = False,
    is_text: Annotated[bool, typer.Option("--text", help="Store bodies as text, even if they are valid JSON.")] = False,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of standard input is a job.")] = False,
    delay: Annotated[float, typer.Option(metavar="SECONDS", help="Delay in seconds.")] = 0,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")] = None,
    unique: Annotated[
        str | None, typer.Option(metavar="KEY", help="Unique key: no second job with it is added.")
    ] = None,
    unique_for: Annotated[
        float, typer.Option(metavar="SECONDS", help="Keep the key for this time after the job's end.")
    ] = 0,
    ttl: Annotated[float | None, typer.Option(metavar="SECONDS", help="Time to live; no expiry by default.")] = None,
    retry: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Redelivered if it isn't acknowledged within this time.")
    ] = None,
    replicate: Annotated[int | None, typer.Option(metavar="N", help="Number of copies; 2 by default.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Don't print the ids.")] = False,
) -> None:
    """Add jobs, and print their ids. Bodies are read from the command line or from standard input.

    A body is stored as it is. On stores that keep payloads (Redis, PostgreSQL) it is stored as JSON if it is JSON, else
    as text. Either way a consumer gets the same payload: JSON, else text, else bytes.
    """
    if unique is not None and (lines or len(bodies or []) > 1):
        raise CallerError("--unique can be used with one job only")
    if unique_for and unique is None:
        raise CallerError("--unique-for needs --unique")
    if lines and bodies:
        raise CallerError("--lines reads the bodies from standard input: leave it out, or the other bodies")
    if is_json and is_text:
        raise CallerError("--json and --text can't be used together")
    headers = _fields(header or [])
    # On a terminal the ids show the progress.
    is_still = not lines or (not quiet and sys.stdout.isatty())
    with connect(url) as store, ProgressCounter("jobs pushed", quiet=is_still) as pushed:
        place = store.queue(queue)
        check = _checked_json if is_json else bytes
        stored = decode if store.keeps_payloads else bytes
        read = bytes.decode if is_text else lambda body: stored(check(body))
        pushes = (
            Push(payload, delay, None, 0, headers or None, ttl, retry, replicate, unique, unique_for)
            for payload in _payloads(bodies or [], lines, read)
        )
        while batch := list(islice(pushes, LINES_BATCH)):
            _push_batch(place, batch, quiet)
            pushed(len(batch))


def require_existing(store: Store) -> None:
    """Refuse a file or directory that nobody has made: a mistyped path is an error, and must not become a store."""
    if not store.exists():
        raise CallerError(f"{store.url} doesn't exist: check the path, or push a job first")


def _push_batch(queue: Queue, batch: list[Push], quiet: bool) -> None:
    ids = queue.push_many(batch)
    if not quiet:
        print("\n".join(ids), flush=True)


@app.command(cls=StoreCommand)
def pop(url: Url, queue: Name, count: Count = 1, timeout: Timeout = 0, is_json: Json = False) -> None:
    """Take jobs and print their bodies. If the store can reserve, a job is removed only after it was printed."""
    with connect(url) as store:
        place = store.queue(queue)
        can_reserve = Capability.RESERVE in store.capabilities
        jobs = (place.reserve_many if can_reserve else place.pop_many)(count, timeout)
        for job in jobs:
            print_json(job_facts(job)) if is_json else print_body(job)
        sys.stdout.flush()
        if can_reserve and jobs:
            place.ack_many(jobs)
    if not jobs:
        raise typer.Exit(EXIT_NONE)


@app.command(cls=StoreCommand)
def reserve(
    url: Url,
    queue: Name,
    count: Count = 1,
    timeout: Timeout = 0,
    lease: Annotated[float | None, typer.Option(metavar="SECONDS", help="How long the jobs stay reserved.")] = None,
    is_json: Json = False,
) -> None:
    """Reserve jobs and print them. Use `penstock ack` or `penstock nack` with their id and token afterwards."""
    with connect(url) as store:
        jobs = store.queue(queue).reserve_many(count, timeout, lease=lease)
    if not jobs:
        raise typer.Exit(EXIT_NONE)
    if is_json:
        for job in jobs:
            print_json(job_facts(job))
        return
    rows = [(job.id, job.token or "", job.tries, utc_time(job.mature), short_body(job)) for job in jobs]
    print_table(("id", "token", "tries", "leased until", "body"), rows)


JobId = Annotated[str, typer.Argument(metavar="ID", show_default=False, help="The job's id.")]
Token = Annotated[str, typer.Argument(metavar="TOKEN", show_default=False, help="The lease's token.")]


@app.command(cls=StoreCommand)
def ack(url: Url, queue: Name, job: JobId, token: Token) -> None:
    """Acknowledge a reserved job."""
    with connect(url) as store:
        require_existing(store)
        store.queue(queue).ack_by_token(job, token)


@app.command(cls=StoreCommand)
def nack(
    url: Url,
    queue: Name,
    job: JobId,
    token: Token,
    delay: Annotated[float, typer.Option(metavar="SECONDS", help="Delay until it is ready again.")] = 0,
    error: Annotated[str, typer.Option(metavar="TEXT", help="The error, for the dead letters.")] = "",
) -> None:
    """Return a reserved job to its queue; after its last try (dead_letter=N in the URL) it goes to the dead letters."""
    with connect(url) as store:
        require_existing(store)
        store.queue(queue).nack_by_token(job, token, delay, error)


@app.command(cls=StoreCommand)
def peek(
    url: Url,
    queue: Name,
    count: Count = 10,
    state: Annotated[
        JobState | None,
        typer.Option(help="Only jobs of this state; done: ended jobs, where the store keeps them.", show_default=False),
    ] = None,
    has_traceback: Annotated[
        bool, typer.Option("--traceback", help="Also print the last lines of the traceback of dead letters.")
    ] = False,
    is_json: Json = False,
) -> None:
    """Show jobs without taking them; for dead letters also the queue they came from, the time and the error."""
    with connect(url) as store:
        require_existing(store)
        jobs = store.queue(queue).peek(count, state=state)
    if is_json:
        for job in jobs:
            print_json(job_facts(job))
        return
    is_dead = any(FROM_QUEUE in job.headers for job in jobs)
    rows = [
        (
            job.id,
            job.state,
            job.tries,
            utc_time(job.mature),
            *(dead_letter_facts(job) if is_dead else ()),
            short_body(job),
        )
        for job in jobs
    ]
    print_table(("id", "state", "tries", "ready", *(DEAD_LETTER_COLUMNS if is_dead else ()), "body"), rows)
    for job in jobs:
        if has_traceback and TRACEBACK in job.headers:
            print(printable_lines(f"\n{job.id}:\n{job.headers[TRACEBACK]}"))


@app.command(cls=StoreCommand)
def queues(url: Url, is_json: Json = False) -> None:
    """List the queues of a store, with their sizes."""
    with connect(url) as store:
        rows = [(name, store.queue(name).sizes(), store.paused(name)) for name in store.queues()]
    if is_json:
        for name, sizes, paused in rows:
            print_json({"queue": name, **sizes._asdict(), "paused": paused})
        return
    print_table(
        ("queue", "ready", "scheduled", "reserved", ""),
        [(name, s.ready, s.scheduled, s.reserved, "paused" if paused else "") for name, s, paused in rows],
    )


@app.command(cls=StoreCommand)
def stats(url: Url, queue: Name, is_json: Json = False) -> None:
    """Show the counters of a queue, whether it is paused, and the type of its store."""
    with connect(url) as store:
        shown = store.queue(queue).stats()
        if not store.has_shared_counters:  # this process has only its own counts
            shown = {name: value for name, value in shown.items() if name not in SHOWN.values()}
            if shown.keys() <= {"paused", "type"}:
                raise Unsupported(
                    f"{store.url} keeps no statistics: each process has only its own counts. Add stats=redis://HOST/0, "
                    "or another store for them, to the URL that all processes use",
                    "statistics",
                )
    if is_json:
        print_json({"queue": queue, **shown})
    else:
        rows = [(name, json.dumps(value) if isinstance(value, bool) else value) for name, value in shown.items()]
        print_table(("name", "value"), rows)


@app.command(cls=StoreCommand)
def size(url: Url, queue: Name, is_json: Json = False) -> None:
    """Print the number of ready jobs; with --json all sizes."""
    with connect(url) as store:
        sizes = store.queue(queue).sizes()
    if is_json:
        print_json({"queue": queue, **sizes._asdict()})
    else:
        print(sizes.ready)


@app.command(cls=StoreCommand)
def pause(url: Url, queue: Name) -> None:
    """Pause delivery of a queue's jobs to all processes, until `resume`."""
    with connect(url) as store:
        store.queue(queue).pause()


@app.command(cls=StoreCommand)
def resume(url: Url, queue: Name) -> None:
    """Resume delivery."""
    with connect(url) as store:
        store.queue(queue).resume()


@app.command(cls=StoreCommand)
def redrive(
    url: Url,
    queue: Annotated[str, typer.Argument(metavar="[QUEUE]", help="The queue of dead letters.")] = DEAD_LETTER_QUEUE,
    to: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Send them to this queue instead of the one they came from.")
    ] = None,
    came_from: Annotated[
        str | None, typer.Option("--from", metavar="QUEUE", help="Only dead letters of this queue.")
    ] = None,
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only dead letters whose error contains this text.")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Maximum number of jobs.")] = None,
    is_json: Json = False,
) -> None:
    """Send dead letters back to the queues that they came from, and print how many."""

    def is_chosen(job: Any) -> bool:
        fits_queue = came_from is None or job.headers.get(FROM_QUEUE) == came_from
        return fits_queue and (error is None or error in str(job.headers.get(ERROR, "")))

    with connect(url) as store:
        dead = store.queue(queue)
        # With a filter the number is not known.
        expected = None if came_from or error else limit or dead.sizes().total
        with ProgressCounter("dead letters", expected) as moved:
            dead.redrive(is_chosen, to=to, limit=limit, moved=moved)
    _print_count(moved.total, is_json, queue=queue)


@app.command(cls=StoreCommand)
def purge(
    url: Url,
    queue: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    is_json: Json = False,
) -> None:
    """Remove all jobs that are not reserved, and print how many."""
    with connect(url) as store:
        require_existing(store)
        place = store.queue(queue)
        if not yes:
            if not sys.stdin.isatty():
                raise CallerError("purge removes jobs permanently: add --yes")
            typer.confirm(f"Permanently remove about {place.sizes().total} jobs of {queue!r}?", abort=True)
        removed = place.purge()
    _print_count(removed, is_json, queue=queue)


def _print_count(count: int, is_json: bool, **where: str) -> None:
    """Print a number of jobs."""
    if is_json:
        print_json({**where, "jobs": count})
    else:
        print(count)


@app.command(cls=StoreCommand)
def move(
    url: Url,
    queue: Name,
    to_url: Annotated[
        str,
        typer.Argument(
            metavar="TO_URL",
            show_default=False,
            help=f"The other store. It can be left out where the variable {TO_URL_VARIABLE} is set.",
        ),
    ],
    to_queue: Annotated[
        str | None, typer.Argument(metavar="TO_QUEUE", show_default=False, help="The queue there.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Don't show the progress.")] = False,
    is_json: Json = False,
) -> None:
    """Move the jobs of a queue to a queue of another store, and print how many were moved.

    If it is interrupted, start it again: it continues where it was. Reserved jobs stay.
    """
    from penstock.queues.blocking.migration import move as move_jobs

    if to_queue is None:
        target_url, to_queue = left_out_url(to_url, TO_URL_VARIABLE), to_url
        if not target_url:
            raise CallerError(f"move needs TO_URL and TO_QUEUE, or TO_QUEUE and the variable {TO_URL_VARIABLE}")
        (to_url,) = target_url
    with connect(url) as source, connect(to_url) as target:
        require_existing(source)
        if Capability.UNIQUE not in target.capabilities:
            print(
                f"penstock: {target.url} has no unique keys: if this is interrupted, a batch may be added twice",
                file=sys.stderr,
            )
        place = source.queue(queue)
        with ProgressCounter("moving jobs", place.sizes().total, quiet=quiet) as moved:
            move_jobs(place, target.queue(to_queue), moved)
    _print_count(moved.total, is_json, queue=queue, to=to_queue)


def run(words: list[str]) -> int:
    """Run one of the commands with its words; the first is its name."""
    return run_application(app, words, "penstock")
