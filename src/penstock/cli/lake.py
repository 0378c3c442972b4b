"""`penstock lake`: events into tables, and questions to them."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.application import EventsDirectory, application
from penstock.cli.application import run as run_application
from penstock.cli.output import EventPrinter, ProgressCounter, print_json, print_table
from penstock.errors import CallerError, MissingExtra, OperatorError, PenstockError, printable

if TYPE_CHECKING:
    from pathlib import Path

app = application(no_args_is_help=True, help="Tables of what happened to every job. `penstock why` asks for one job.")

Lake = Annotated[
    str,
    typer.Option(
        "--lake", metavar="DIR", envvar="PENSTOCK_LAKE", help="The lake.", show_default=False, show_envvar=True
    ),
]
Events = Annotated[
    str,
    typer.Option(
        "--events",
        metavar="DIR",
        envvar="PENSTOCK_EVENTS",
        help="The directory that nodes, stores and workers write events into.",
        show_default=False,
        show_envvar=True,
    ),
]
Master = Annotated[
    str, typer.Option(metavar="MASTER", help="Where Spark runs: local[*], spark://host:7077, yarn, k8s://…")
]
Settings = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
]
Noise = Annotated[bool, typer.Option("--spark-log", help="Show what Spark itself prints.")]
Json = Annotated[bool, typer.Option("--json", help="Print lines of JSON.")]
EVERY = "60s"
CHECK_PAUSE_S = 600.0  # with --follow
ROWS_MAX = 1000  # of an answer; --limit changes it
STORES_SHOWN = 5


@app.command()
def build(
    events: Events,
    lake: Lake,
    follow: Annotated[bool, typer.Option("--follow", help="Continue when all is read, until Ctrl-C.")] = False,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help=f"With --follow: the pause between two builds. [default: {EVERY}]", show_default=False
        ),
    ] = None,
    fold: Annotated[bool, typer.Option("--fold/--no-fold", help="Bring the other tables up to date, too.")] = True,
    commit_events: Annotated[int, typer.Option(min=1, help="Maximum number of events in a commit.")] = 4_000_000,
    master: Master = "local[*]",
    conf: Settings = None,
    spark_log: Noise = False,
) -> None:
    """Read new events into the table of events, each once, fold them into the other tables, and check these.

    Killed at any point, it goes on from its last commit. Two builds at once are safe. A check that fails is printed,
    and stops nothing.
    """
    if every is not None and not follow:
        raise CallerError("--every needs --follow: leave it out, or add --follow")
    pause = _seconds("--every", every or EVERY)
    directory, source = _directory(lake), _existing(events)
    stop = threading.Event()
    with _spark(master, conf, spark_log, directory) as spark, ProgressCounter("events") as read:
        from penstock.lake.build import build as build_events
        from penstock.lake.fold import fold as fold_tables

        if follow:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stop.set())
        while True:
            built = build_events(spark, source, directory, limit=commit_events, progress=read)
            folded = fold_tables(spark, directory) if fold else None
            if built.events or not follow:
                hours = "" if folded is None else f"; {len(folded.hours)} hours folded"
                print(f"{built.events} events in {built.commits} commits, version {built.version}{hours}", flush=True)
            if fold:
                _check_after_build(directory, CHECK_PAUSE_S if follow else 0.0)
            if not follow or stop.wait(pause):
                return


def _check_after_build(directory: Path, pause_s: float) -> None:
    """Check the tables, keep the results, and print what failed. Nothing of it stops a build."""
    from datetime import UTC, datetime, timedelta

    try:
        if not _quality().is_check_due(directory, datetime.now(UTC), timedelta(seconds=pause_s)):
            return
        results = _checked(directory)
    except PenstockError as problem:
        sys.stderr.write(printable(f"The tables could not be checked: {problem}\n"))
        return
    failed = ", ".join(f"{one.name} ({one.found:,})" for one in results if not one.is_ok)
    said = f"checks failed: {failed}; `penstock lake check` says what is counted" if failed else "all checks passed"
    print(said, flush=True)


def _checked(directory: Path) -> list[Any]:
    """Check the tables, and keep the results."""
    from datetime import UTC, datetime

    at = datetime.now(UTC)
    results: list[Any] = _quality().checks(directory)
    try:
        _quality().keep(directory, results, at)
    except OperatorError as problem:  # who may only read a lake can check it, too
        sys.stderr.write(f"The results are not kept: {problem}\n")
    return results


@app.command()
def fold(
    lake: Lake,
    everything: Annotated[bool, typer.Option("--all", help="Compute all partitions again.")] = False,
    master: Master = "local[*]",
    conf: Settings = None,
    spark_log: Noise = False,
) -> None:
    """Bring the tables of jobs, attempts, metrics and workers up to the table of events."""
    directory = _built(lake)
    with _spark(master, conf, spark_log, directory) as spark, ProgressCounter("hours") as done:
        from penstock.lake.fold import fold as fold_tables

        folded = fold_tables(spark, directory, everything=everything, progress=done)
    print(f"{len(folded.hours)} hours in {folded.commits} commits, events version {folded.version}")


@app.command()
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", show_default=False, help="A query in Spark's SQL.")],
    lake: Lake,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = ROWS_MAX,
    json: Json = False,
    master: Master = "local[*]",
    conf: Settings = None,
    spark_log: Noise = False,
) -> None:
    """Print the answer to a query.

    Tables and views: events, jobs, attempts, metrics, workers, jobs_now, stuck, dead, errors.
    """
    directory = _built(lake)
    with _spark(master, conf, spark_log, directory) as spark:
        from penstock.lake.views import register

        register(spark, directory)
        answer = spark.sql(sql)
        rows = answer.limit(limit + 1).toArrow().to_pylist()
        names = answer.columns
    if json:
        for row in rows[:limit]:
            print_json({name: _plain(value) for name, value in row.items()})
    else:
        print_table(names, [[_shown(row[name]) for name in names] for row in rows[:limit]])
    if len(rows) > limit:
        sys.stderr.write(f"Only the first {limit} rows are shown; --limit shows more.\n")


@app.command()
def status(
    lake: Lake,
    events: EventsDirectory = None,
    json: Json = False,
) -> None:
    """Show how far the lake is: rows, last event, what is not folded, the last check, the lag of each writer.

    Starts no JVM.
    """
    found = _quality().status(_built(lake), None if events is None else _existing(events))
    last, committed = _plain(found.last_event), _plain(found.last_commit)
    if json:
        lags = {lag.writer: lag.events for lag in found.lags}
        facts = {"events": found.events, "version": found.version, "last_event": last, "last_commit": committed}
        checked = None if found.checked is None else {"at": _plain(found.checked), "failed": found.failed}
        print_json({**facts, "unfolded": found.unfolded, "tables": found.tables, "lag": lags, "checked": checked})
        return
    rows: list[tuple[str, object]] = [
        ("events", f"{found.events:,}"),
        ("last event", last or "none"),
        ("last commit", f"{committed}, version {found.version}"),
        ("not folded", f"{found.unfolded} commits" if found.unfolded else "nothing"),
        ("quality", _shown_quality(found.checked, found.failed)),
        *((f"rows of {name}", f"{count:,}") for name, count in found.tables.items()),
        *((f"lag of {lag.writer}", f"{lag.events:,} events, from {lag.oldest_segment}") for lag in found.lags),
    ]
    print_table(("what", "value"), rows)


def _shown_quality(checked: Any, failed: dict[str, int]) -> str:
    if checked is None:
        return "not checked: `penstock lake check`"
    names = ", ".join(f"{name} ({count:,})" for name, count in failed.items())
    return f"{f'failed: {names}' if names else 'all checks passed'}, at {_plain(checked)}"


@app.command()
def check(lake: Lake, json: Json = False) -> None:
    """Check whether the tables can be trusted; the exit code is 1 if one of the checks fails. Starts no JVM.

    The results are kept in the table `checks`.
    """
    results = _checked(_built(lake))
    for one in results:
        if json:
            print_json({"check": one.name, "ok": one.is_ok, "found": one.found, "meaning": one.meaning})
    if not json:
        title = ("", "check", "found", "what is counted")
        print_table(title, [("ok" if one.is_ok else "failed", one.name, one.found, one.meaning) for one in results])
    raise typer.Exit(0 if all(one.is_ok for one in results) else 1)


@app.command()
def report(
    lake: Lake,
    to: Annotated[str, typer.Option("--to", metavar="FILE", help="The file to write.")] = "report.html",
    master: Master = "local[*]",
    conf: Settings = None,
    spark_log: Noise = False,
) -> None:
    """Write one HTML file with charts and tables of all jobs; it opens offline."""
    from pathlib import Path

    directory, path = _built(lake), Path(to)
    if not path.parent.is_dir():
        raise CallerError(f"the report must go into a directory that exists, got {to}")
    with _spark(master, conf, spark_log, directory) as spark:
        from penstock.lake.report import gather, write

        write(gather(spark, directory), path)
    print(path)


# Asking: what if, and sending jobs once more.


@app.command()
def whatif(
    lake: Lake,
    workers: Annotated[
        list[int],
        typer.Option(
            metavar="N", min=1, show_default=False, help="Jobs that run at once; may be repeated, to compare."
        ),
    ],
    day: Annotated[
        str | None,
        typer.Option(metavar="DAY", help="The day in UTC, as 2026-11-18. [default: the last one]", show_default=False),
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Only this queue. [default: all]", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Replay a day's arrivals and run times with another number of workers: waits, and how busy they are.

    A simulation of the queue; starts no JVM. It says where its figures are not to be trusted.
    """
    from datetime import date

    from penstock.lake.whatif import last_day, read_day, recorded, simulate

    directory = _built(lake)
    found = read_day(directory, last_day(directory) if day is None else date.fromisoformat(_day("--day", day)), queue)
    outcomes = [simulate(found, number) for number in workers]
    p50, p95 = recorded(found)
    facts = {"day": found.day.isoformat(), "queue": queue}
    if json:
        print_json({**facts, "workers": None, "deliveries": outcomes[0].deliveries, "wait_p50_ms": p50}
                   | {"wait_p95_ms": p95, "left_out": found.left_out})  # fmt: skip
        for one in outcomes:
            print_json({**facts, **one._asdict(), "doubt": one.doubt or None})
        return
    rows = [("as it was", _shown_ms(p50), _shown_ms(p95), "")]
    rows += [
        (_workers(one.workers), _shown_ms(one.wait_p50_ms), _shown_ms(one.wait_p95_ms), f"{one.busy_share:.0%}")
        for one in outcomes
    ]
    print_table((str(found.day), "wait p50", "wait p95", "busy"), rows)
    for one in outcomes:
        if one.doubt:
            sys.stderr.write(f"With {_workers(one.workers)}: {one.doubt}.\n")
    if found.left_out:
        sys.stderr.write(f"Deliveries left out, as they have not ended or have no start: {found.left_out:,}.\n")


@app.command()
def redrive(
    lake: Lake,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URL",
            envvar="PENSTOCK_URL",
            help="The jobs' store.",
            show_default=False,
            show_envvar=True,
        ),
    ],
    where: Annotated[
        str,
        typer.Option(
            metavar="SQL",
            show_default=False,
            help="Which jobs: a condition on the columns of jobs, and on error and error_class.",
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="Their queue. [default: the one they came from]", show_default=False),
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Also jobs that were done, expired or removed, if their bodies were kept.")
    ] = False,
    events: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            envvar="PENSTOCK_EVENTS",
            show_default=False,
            show_envvar=True,
            help="With --replay: the directory of events, which has the bodies.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Maximum number of jobs.")] = 1_000_000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, and send nothing.")] = False,
    json: Json = False,
    master: Master = "local[*]",
    conf: Settings = None,
    spark_log: Noise = False,
) -> None:
    """Send jobs once more that a query chooses: dead letters go back; with --replay others are pushed again.

    Shows the plan first. Killed at any point, the same command goes on with the same plan, and sends each job once.
    """
    from penstock.lake.redrive import Plans, Question, carry_out, choose
    from penstock.queues.blocking import connect

    if events is not None and not replay:
        events = None  # from the environment
    directory = _built(lake)
    if events is not None:
        _existing(events)
    printer = EventPrinter(json)
    with connect(store) as opened:
        if not opened.exists():
            raise CallerError(f"{opened.url} doesn't exist: check the path")
        question = Question(where, opened.url, to, replay, limit)
        plans = Plans(directory)
        plan = None if dry_run else plans.unfinished(question)
        if plan is None:
            with _spark(master, conf, spark_log, directory) as spark:
                plan = choose(spark, directory, question)
            _show_plan(printer, plan, plan.promise(opened))
            if dry_run or not plan.jobs:
                return
            if plans.is_ended(plan):
                printer.event(
                    "ended",
                    f"Plan {plan.name} was carried out before, and the lake has not changed since: nothing is sent.",
                    plan=plan.name,
                )
                return
            plans.write(plan)
        else:
            printer.event(
                "goes on",
                f"Plan {plan.name} goes on: {len(plan.done):,} of {len(plan.jobs):,} jobs are sent.",
                plan=plan.name,
                jobs=len(plan.jobs),
                done=len(plan.done),
            )
        with ProgressCounter("jobs", len(plan.left), quiet=json) as counter:
            sent = carry_out(plan, plans, opened, events, counter)
    printer.event(
        "sent",
        f"{sent.moved:,} dead letters moved, {sent.pushed:,} jobs pushed again.",
        plan=plan.name,
        moved=sent.moved,
        pushed=sent.pushed,
        gone=len(sent.gone),
        without_body=len(sent.without_body),
    )
    if sent.gone:
        printer.warning(f"{_some(sent.gone)} not among the dead letters any more: nothing was sent for them.")
    if sent.without_body:
        reason = "" if events else " --events names the directory of events, which may have them."
        printer.warning(
            f"{_some(sent.without_body)} not sent: no body was kept (events-bodies of a node), or its segment is "
            f"gone.{reason}"
        )
    if sent.gone or sent.without_body:
        raise typer.Exit(1)


def _some(jobs: list[str]) -> str:
    shown = ", ".join(jobs[:3]) + (", …" if len(jobs) > 3 else "")
    return f"{_jobs(len(jobs))} {'was' if len(jobs) == 1 else 'were'} ({shown})"


def _jobs(number: int) -> str:
    return f"{number:,} job{'' if number == 1 else 's'}"


def _show_plan(printer: EventPrinter, plan: Any, promise: str) -> None:
    from penstock.lake.redrive import GROUPS_MAX, SAMPLES

    groups, samples = plan.groups(), plan.jobs[:SAMPLES]
    question = plan.question
    nothing = "" if plan.jobs else f"No job is to be sent: none that the condition chooses {_kind_of(question.replay)}."
    printer.event(
        "plan",
        nothing
        or f"Plan {plan.name}: {_jobs(len(plan.jobs))}, to {question.to or 'the queues that they came from'}, each "
        f"{promise} if this is killed and started again.",
        plan=plan.name,
        jobs=len(plan.jobs),
        to=question.to,
        promise=promise,
        open=plan.open,
        kept_out=plan.kept_out,
        groups=[dict(zip(("queue", "outcome", "error", "jobs"), group, strict=True)) for group in groups[:GROUPS_MAX]],
        samples=[one.job for one in samples],
    )
    if printer.is_json:
        return
    for queue, outcome, error, count in groups[:GROUPS_MAX]:
        print(printable(f"  {count:,} {outcome} of {queue}{f': {error}' if error else ''}"))
    for one in samples:
        print(printable(f"  such as {one.job} of {one.queue}, {one.outcome}{f': {one.error}' if one.error else ''}"))
    if plan.open:
        print(f"  Left alone: {plan.open:,} that wait or run.")
    if plan.kept_out:
        print(f"  Left out: {plan.kept_out:,} that ended otherwise; --replay sends those, too.")


def _kind_of(replay: bool) -> str:
    return "has ended" if replay else "is dead"


def _workers(number: int) -> str:
    return f"{number:,} worker{'' if number == 1 else 's'}"


def _shown_ms(ms: float) -> str:
    for size, unit in ((3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if ms >= size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms:.0f} ms"


@app.command()
def settle(
    lake: Lake,
    events: Events,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URL",
            envvar="PENSTOCK_URL",
            help="The jobs' store, by the URL that the programs use which record its events.",
            show_default=False,
            show_envvar=True,
        ),
    ],
    quiet: Annotated[
        str,
        typer.Option("--quiet-for", metavar="TIME", help="Leave out jobs to which something happened since: 10m, 1d."),
    ] = "1h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what was found, and record nothing.")] = False,
    json: Json = False,
) -> None:
    """Look in the store for jobs that have not ended, and record the ends that no program recorded. Starts no JVM.

    The next `penstock lake build` brings them into the tables. It never guesses: jobs of other stores are left out, and
    nothing is recorded unless the whole store can be seen.
    """
    from penstock.lake.settle import settle as settle_ends

    directory, source = _built(lake), _existing(events)
    with ProgressCounter("jobs", quiet=json) as read:
        found = settle_ends(
            directory, source, store, quiet=_duration("--quiet-for", quiet), dry_run=dry_run, progress=read
        )
    if json:
        kinds = {"present": found.present, "failed": found.failed, "gone": found.gone}
        print_json({**kinds, "recent": found.recent, "elsewhere": found.elsewhere, "recorded": not dry_run})
    else:
        rows = [
            ("in the store", found.present, "nothing is recorded"),
            ("dead", found.failed, "failed: among the dead letters"),
            ("gone", found.gone, "gone: not in the store, and nobody recorded why"),
            ("left out", found.recent, f"something happened to them within {quiet}"),
            ("left out", found.elsewhere, "no event of theirs names this store"),
        ]
        print_table(("jobs without an end", "jobs", "what it means"), rows)
    if found.elsewhere and not found.present + found.ends and found.names:
        names = ", ".join(sorted(found.names)[:STORES_SHOWN])
        sys.stderr.write(printable(f"No job is of {store}. Events name the stores {names}: use the same URL.\n"))
    if found.ends and not dry_run and not json:
        print(f"{found.ends:,} ends are recorded: `penstock lake build` brings them into the tables.")


# What is kept, and for how long.

OptionalEvents = Annotated[
    str | None,
    typer.Option(
        "--events",
        metavar="DIR",
        envvar="PENSTOCK_EVENTS",
        help="The directory of events; left out, raw segments are not looked at.",
        show_default=False,
        show_envvar=True,
    ),
]


def _kept(name: str, what: str) -> Any:
    return typer.Option(f"--{name}-for", metavar="TIME", help=f"How long to keep {what}: 36h, 90d.")


@app.command()
def vacuum(
    lake: Lake,
    events: OptionalEvents = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done. Starts no JVM.")] = False,
    raw: Annotated[str, _kept("raw", "raw segments and bodies after the commit of their events")] = "24h",
    events_for: Annotated[str, _kept("events", "events of jobs that have ended")] = "90d",
    jobs: Annotated[str, _kept("jobs", "jobs and attempts, after the last event")] = "400d",
    minutes: Annotated[str, _kept("minutes", "metrics by minute, before they are put together by hour")] = "30d",
    files: Annotated[str, _kept("files", "files of earlier versions, for queries at work")] = "24h",
    json: Json = False,
    master: Master = "local[*]",
    conf: Settings = None,
    spark_log: Noise = False,
) -> None:
    """Delete what is too old, and put small files together. Spark starts only if tables are to be rewritten.

    Killed at any point, the next one goes on. Builds may run meanwhile; folds wait.
    """
    from datetime import UTC, datetime

    directory = _built(lake)
    from penstock.lake.vacuum import Keep, VacuumStep
    from penstock.lake.vacuum import vacuum as vacuum_lake

    keep = Keep(
        raw=_duration("--raw-for", raw),
        events=_duration("--events-for", events_for),
        jobs=_duration("--jobs-for", jobs),
        minutes=_duration("--minutes-for", minutes),
        files=_duration("--files-for", files),
    )

    def show(step: VacuumStep) -> None:
        if json:
            print_json({"what": step.what, "found": step.found, "count": step.items, "bytes": step.size})
        else:
            size = f", {step.size:,} bytes" if step.size else ""
            print(f"{'would be done: ' if dry_run else ''}{step.what}: {step.found}{size}", flush=True)

    source = None if events is None else _existing(events)
    with ExitStack() as stack:
        started: list[Any] = []

        def spark() -> Any:
            if not started:
                started.append(stack.enter_context(_spark(master, conf, spark_log, directory)))
            return started[0]

        steps = vacuum_lake(
            spark, directory, source, keep, dry_run=dry_run, now=datetime.now(UTC), on_step=show, on_wait=_say_waiting
        )
    if not steps and not json:
        print("nothing to do")


@app.command()
def forget(
    lake: Lake,
    where: Annotated[
        str,
        typer.Option(
            metavar="SQL",
            help="Which jobs: a condition on the columns of jobs, as in \"job = 'ID'\".",
            show_default=False,
        ),
    ],
    events: OptionalEvents = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which jobs those are.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    master: Master = "local[*]",
    conf: Settings = None,
    spark_log: Noise = False,
) -> None:
    """Delete all that the lake knows of some jobs, for good, and say what can't be deleted yet.

    The queue's store is not touched. The exit code is 1 if no job meets the condition.
    """
    directory = _built(lake)
    source = None if events is None else _existing(events)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise CallerError("forget deletes permanently: add --yes, or --dry-run")
    with _spark(master, conf, spark_log, directory) as spark:
        from penstock.lake.fold import fold as fold_tables
        from penstock.lake.forget import choose
        from penstock.lake.forget import forget as forget_jobs

        if not dry_run:
            fold_tables(spark, directory)
        chosen = choose(spark, directory, where)
        names = printable(", ".join(chosen.sample)) + (", …" if chosen.jobs > len(chosen.sample) else "")
        if dry_run or not chosen.jobs:
            print(f"{chosen.jobs} jobs: {names}" if chosen.jobs else "no job meets the condition")
            raise typer.Exit(0 if chosen.jobs else 1)
        if not yes:
            typer.confirm(f"Permanently forget {chosen.jobs} jobs: {names}?", abort=True)
        done = forget_jobs(spark, directory, where, events=source, on_wait=_say_waiting)
    print(f"{done.jobs} jobs forgotten: {done.events} events deleted, {done.files} files written again")
    print(f"{done.deleted} files of earlier versions and {done.segments} raw segments deleted")
    for line in done.left:
        print(f"left: {line}")


@app.command()
def rebuild(
    lake: Lake,
    day: Annotated[
        str, typer.Option("--from", metavar="DAY", help="The first day of creation: 2026-11-18.", show_default=False)
    ],
    master: Master = "local[*]",
    conf: Settings = None,
    spark_log: Noise = False,
) -> None:
    """Compute all tables again from the events of jobs that were created on a day or later.

    Needed after an update that computes a table in another way, and when files of a table were damaged.
    """
    directory = _built(lake)
    first = _day("--from", day)
    with _spark(master, conf, spark_log, directory) as spark, ProgressCounter("hours") as done:
        from penstock.lake.fold import fold as fold_tables

        folded = fold_tables(spark, directory, from_day=first, progress=done)
    print(f"{len(folded.hours)} hours in {folded.commits} commits, events version {folded.version}")
    sealed = str(_quality().open_events(directory)[1].note.get("sealed_before", ""))
    if first < sealed:
        print(f"left: jobs that were created before {sealed} and whose events are gone keep their rows")


def _duration(name: str, text: str) -> Any:
    from datetime import timedelta

    try:
        return timedelta(seconds=_seconds(name, text))
    except OverflowError:
        raise CallerError(f"{name} must be at most 100 years, got {text}") from None


def _day(name: str, text: str) -> str:
    from datetime import date

    try:
        if date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise CallerError(f"{name} must be a day such as 2026-11-18, got {text!r}")


def _say_waiting() -> None:
    sys.stderr.write("Another fold or vacuum of this lake is at work; this one waits for it.\n")


# What the commands share.


def _plain(value: Any) -> Any:
    """Return a value as JSON can have it."""
    from datetime import date, datetime

    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return value


def _shown(value: Any) -> Any:
    return "" if value is None else _plain(value)


def _directory(lake: str) -> Path:
    try:
        from penstock.lake.table import lake_directory
    except ModuleNotFoundError as problem:
        raise MissingExtra(
            f"penstock lake needs {problem.name}. Install it with: pip install 'penstock[lake,jre]'"
        ) from problem
    return lake_directory(lake)


def _quality() -> Any:
    from penstock.lake import quality

    return quality


def _built(lake: str) -> Path:
    directory = _directory(lake)
    _quality().open_events(directory)
    return directory


def _existing(events: str) -> Path:
    from penstock.lake.segments import segment_files

    segment_files(events)
    return _directory(events)


def _seconds(name: str, text: str) -> float:
    from penstock.spark.settings import seconds_of

    return seconds_of(name, text)


@contextmanager
def _spark(master: str, conf: list[str] | None, loud: bool, directory: Path) -> Iterator[Any]:
    """Start Spark, which takes some seconds; say so meanwhile on a terminal."""
    from penstock.cli.spark import quiet, spark_session

    if directory.exists() and not directory.is_dir():
        raise CallerError(f"the lake must be a directory, got a file at {directory}")
    if sys.stderr.isatty():
        sys.stderr.write("Spark starts …\n")
    with quiet(loud), spark_session("penstock lake", master, conf, loud) as spark:
        yield spark


def run(words: list[str]) -> int:
    """Run one of the commands with its words."""
    return run_application(app, words, "penstock lake")
