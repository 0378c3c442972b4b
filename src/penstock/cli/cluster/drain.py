"""`penstock cluster drain`: moves all jobs of a node to the others, and shows the progress.

The node does the work (CLUSTER DRAIN); here it is asked how many jobs are left. If that doesn't change for a while, the
states of its jobs show what each of them waits for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.cli.cluster import table
from penstock.cli.cluster.access import Access, fetch, typed_command
from penstock.cli.cluster.view import SHORT_ID, NodeLine, Report, report_of, scan
from penstock.cli.output import EventPrinter
from penstock.client.addresses import Address
from penstock.client.connection import Connection
from penstock.errors import OperatorError, PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXIT_DONE, EXIT_NOT_DONE, EXIT_INTERRUPTED = 0, 1, 130
POLL_SECONDS = 0.2
LINE_SECONDS = 2.0  # between two lines of progress in a pipe
STALL_SECONDS = 5.0  # without a change, before the reason is searched for
AGAIN_SECONDS = 30.0  # between two searches, while still nothing changes
STATES = ("queued", "active", "wait-repl", "acked")
IDS_MAX = 1000  # ids to fetch of the jobs of a state: a stalled drain seldom has more
DETAILS_MAX = 20  # jobs of a state whose details are fetched, with their bodies


@dataclass(frozen=True)
class RemainingJobs:
    """The jobs in one state that a node still has."""

    state: str
    count: int
    is_all: bool  # False: there are more than were counted
    missing: frozenset[str] = frozenset()  # nodes that have not confirmed
    wait_ms: int = 0  # the longest time until one of them is due


def drain(access: Access, address: Address, printer: EventPrinter, timeout_s: float | None = None) -> int:
    """Drain a node, and print the progress; returns the exit code."""
    link = access.open(address)
    try:
        report = report_of(link)
        _begin(link, report)
        sentence = f"{address} takes no new jobs, and moves {table.jobs(report.jobs)} to other nodes."
        printer.event("draining", sentence, address=str(address), jobs=report.jobs)
        return _follow(link, address, report.jobs, printer, timeout_s)
    except KeyboardInterrupt:
        printer.event("interrupted", _still_draining(address), address=str(address))
        return EXIT_INTERRUPTED
    finally:
        link.close()


def _begin(link: Connection, report: Report) -> None:
    if not report.others:
        raise OperatorError(
            f"{link.address} is not in a cluster: no other node can take its jobs.\n"
            "Add one first: penstock cluster add ADDRESS --to " + link.address
        )
    reply = fetch(link, [("CLUSTER", "DRAIN")])[0]
    if isinstance(reply, Exception):
        if "Wrong CLUSTER subcommand" in str(reply):
            raise OperatorError(
                f"{link.address} can't be drained: it is a node of Disque, or an older one. Send it CLUSTER LEAVING "
                "yes, and wait until workers have emptied its queues."
            )
        raise OperatorError(f"{link.address}: {reply}")


def _still_draining(address: Address) -> str:
    return (
        f"{address} goes on draining. Show the progress:\n  penstock cluster status {address}\n"
        f"Cancel it:\n  {typed_command(address, 'CLUSTER', 'LEAVING', 'no')}"
    )


def _follow(link: Connection, address: Address, total: int, printer: EventPrinter, timeout_s: float | None) -> int:
    """Print the progress until no job is left."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    left, explain_at = total, time.monotonic() + STALL_SECONDS
    with _progress(total, printer) as show:
        while True:
            report = _ask_again(link)
            now = time.monotonic()
            if report.jobs != left:
                left, explain_at = report.jobs, now + STALL_SECONDS
            show(left)
            if not left:
                break
            if deadline is not None and now > deadline:
                printer.warning(f"{table.jobs(left)} left after {timeout_s:g} s.\n{_still_draining(address)}")
                return EXIT_NOT_DONE
            if now > explain_at:
                explain_at = now + AGAIN_SECONDS
                for reason in reasons(remaining_jobs(link, report), report):
                    printer.event("stalled", f"  {reason}", reason=reason, left=left)
            time.sleep(POLL_SECONDS)
    printer.event("drained", f"{address} has no jobs left.", address=str(address))
    return EXIT_DONE


def _ask_again(link: Connection) -> Report:
    try:
        report = report_of(link)
    except PeerError as error:
        raise PeerError(
            f"{error}\nWhen it runs again it goes on draining. Run this again to see the progress."
        ) from error
    if not report.is_draining:
        raise OperatorError(
            f"{link.address} has stopped draining: it got CLUSTER LEAVING no. Run this again to continue."
        )
    return report


# Progress.


@contextmanager
def _progress(total: int, printer: EventPrinter) -> Iterator[Callable[[int], None]]:
    """Show how many jobs are left: a bar on a terminal, else a line every LINE_SECONDS."""
    if table.is_terminal() and not printer.is_json:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.fields[left]} left"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        with Progress(*columns, TimeElapsedColumn()) as bar:
            task = bar.add_task("", total=max(1, total), left=total)
            yield lambda left: bar.update(task, completed=max(0, total - left) if left else max(1, total), left=left)
        return
    said_at, said = 0.0, -1

    def say(left: int) -> None:
        nonlocal said_at, said
        if total and left != said and (not left or time.monotonic() - said_at >= LINE_SECONDS):
            said_at, said = time.monotonic(), left
            printer.event("progress", f"{left} of {table.jobs(total)} left", left=left, total=total)

    yield say


# Why a drain makes no progress.


def remaining_jobs(link: Connection, report: Report) -> list[RemainingJobs]:
    """Return the jobs that a node still has, by their states."""
    found = []
    for state in STATES:
        ids = scan(link, state, IDS_MAX) or []
        if ids:
            shown = fetch(link, [("SHOW", job_id) for job_id in ids[:DETAILS_MAX]])
            found.append(_remaining(state, ids, [_pairs(reply) for reply in shown if isinstance(reply, list)], report))
    return found


def _pairs(reply: list[Any]) -> dict[bytes, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _remaining(state: str, ids: Sequence[bytes], jobs: Iterable[dict[bytes, Any]], report: Report) -> RemainingJobs:
    missing: set[str] = set()
    wait_ms = 0
    for job in jobs:
        holders = {name.decode() for name in job[b"nodes-delivered"]}
        missing |= (holders & report.lines.keys()) - {name.decode() for name in job[b"nodes-confirmed"]} - {report.id}
        wait_ms = max(wait_ms, job[b"next-requeue-within"] or 0)
    return RemainingJobs(state, len(ids), len(ids) < IDS_MAX, frozenset(missing), wait_ms)


def reasons(held: Sequence[RemainingJobs], report: Report) -> list[str]:
    """Return sentences about what the jobs of a draining node wait for."""
    takers = [line for line in report.others if not line.flags & {"fail", "fail?", "leaving"} and line.is_linked]
    said = []
    if not takers:
        said.append("No other node that takes jobs can be reached: see `penstock cluster status`.")
    for one in held:
        count = table.jobs(one.count) if one.is_all else f"more than {table.jobs(one.count)}"
        names = ", ".join(sorted(_name(report, node_id) for node_id in one.missing))
        if one.state == "active" and takers:
            said.append(
                f"{count} leased by workers: until they are done, or for {table.age(one.wait_ms // 1000)} at most."
            )
        elif one.state == "wait-repl" and names:
            said.append(f"{count} sent, and not yet confirmed by {names}.")
        elif one.state == "acked" and names:
            said.append(
                f"{count} acked, and kept until {names} has confirmed it. {_advice(report, one.missing)}".rstrip()
            )
        elif takers:
            said.append(f"{count} {one.state}: they will be sent again.")
        else:
            said.append(f"{count} {one.state}.")
    unknown = report.jobs - sum(one.count for one in held)
    if unknown > 0 and all(one.is_all for one in held):
        said.append(f"{unknown} acks for jobs that it never had, kept until the other nodes have confirmed them.")
    return said


def _name(report: Report, node_id: str) -> str:
    line = report.lines[node_id]
    ills = ", ".join(sorted(line.flags & {"fail", "fail?", "noaddr"}))
    return f"{_place(line)} ({ills})" if ills else _place(line)


def _place(line: NodeLine) -> str:
    return str(Address(line.host, line.port)) if line.host else line.id[:SHORT_ID]


def _advice(report: Report, missing: Iterable[str]) -> str:
    gone = [node_id for node_id in sorted(missing) if report.lines[node_id].flags & {"fail", "fail?", "noaddr"}]
    return (
        f"If it is gone for good: penstock cluster forget {gone[0][:SHORT_ID]} --from {_place(report.me)}"
        if gone
        else ""
    )
