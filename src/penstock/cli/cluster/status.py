"""`penstock cluster status`: a table of the nodes, their totals, and what is wrong."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from penstock.cli.cluster import table
from penstock.cli.cluster.access import Access
from penstock.cli.cluster.table import NOTHING, TableColumn
from penstock.cli.cluster.view import SHORT_ID, Member, Report, View, disagreements, problems, view_cluster
from penstock.client.addresses import Address
from penstock.errors import PeerError

if TYPE_CHECKING:
    from rich.console import Group

EXIT_FINE, EXIT_WRONG = 0, 1


def status(access: Access, address: Address, is_json: bool, watch_s: float | None) -> int:
    """Show the cluster once, or repeatedly until Ctrl-C; returns the exit code."""
    if watch_s is not None:
        return _watch(access, address, is_json, watch_s)
    view = view_cluster(access, address, count_acked=True)
    if is_json:
        print(json.dumps(as_json(view)))
    elif table.is_terminal():
        from rich.console import Console

        Console().print(painted(view))
    else:
        print(as_text(view))
    return EXIT_WRONG if problems(view) else EXIT_FINE


def _watch(access: Access, address: Address, is_json: bool, watch_s: float) -> int:
    """Show the cluster repeatedly, even while the node can't be asked: it may be starting."""
    try:
        if table.is_terminal() and not is_json:
            from rich.live import Live

            with Live(auto_refresh=False) as live:
                while True:
                    live.update(_painted_or_reason(access, address), refresh=True)
                    time.sleep(watch_s)
        while True:
            print(_printed_or_reason(access, address, is_json), end="\n" if is_json else "\n\n", flush=True)
            time.sleep(watch_s)
    except KeyboardInterrupt:  # the way to end it
        return EXIT_FINE


def _painted_or_reason(access: Access, address: Address) -> Group:
    from rich.console import Group
    from rich.text import Text

    try:
        return painted(view_cluster(access, address, count_acked=True))
    except PeerError as error:
        return Group(Text(str(error), style="red"))


def _printed_or_reason(access: Access, address: Address, is_json: bool) -> str:
    try:
        view = view_cluster(access, address, count_acked=True)
    except PeerError as error:
        return json.dumps({"asked": str(address), "ok": False, "problem": str(error)}) if is_json else str(error)
    return json.dumps(as_json(view)) if is_json else as_text(view)


# The table.


def _flags(member: Member) -> str:
    if member.link == "unknown":
        return "unknown"
    return ",".join(sorted(member.flags)) or ("ok" if member.report else "silent")


def _sees(member: Member) -> str:
    """Return how many of the others it can reach, without those that are leaving."""
    report = member.report
    return f"{report.cluster.get('reachable_nodes', '?')}/{len(report.others)}" if report else NOTHING


def _jobs(member: Member) -> str:
    return str(member.report.jobs) if member.report else NOTHING


def _acked(member: Member) -> str:
    return NOTHING if member.report is None or member.report.acked is None else str(member.report.acked)


def _queues(member: Member) -> str:
    return member.report.info.get("registered_queues", NOTHING) if member.report else NOTHING


def _clients(member: Member) -> str:
    return str(member.report.clients) if member.report else NOTHING


def _memory(member: Member) -> str:
    report = member.report
    if report is None:
        return NOTHING
    limit = "?" if report.memory_limit is None else table.size(report.memory_limit)
    return f"{table.size(int(report.info.get('used_memory', 0)))}/{limit}"


def version(report: Report) -> str:
    """Return the version of a node, with `disque` for an original one."""
    ours = report.info.get("penstock_version")
    return ours or f"disque {report.info.get('disque_version', '?')}"


def _uptime(member: Member) -> str:
    return table.age(int(member.report.info.get("uptime_in_seconds", 0))) if member.report else NOTHING


def _messages(member: Member) -> str:
    cluster = member.report.cluster if member.report else None
    return f"{cluster.get('stats_messages_sent')}/{cluster.get('stats_messages_received')}" if cluster else NOTHING


COLUMNS: tuple[TableColumn[Member], ...] = (
    TableColumn("NODE", False, lambda member: member.id[:SHORT_ID]),
    TableColumn("ADDRESS", False, lambda member: str(member.address or NOTHING)),
    TableColumn("STATE", False, _flags),
    TableColumn("LINK", False, lambda member: member.link),
    TableColumn("SEES", True, _sees),
    TableColumn("JOBS", True, _jobs),
    TableColumn("ACKED", True, _acked),
    TableColumn("QUEUES", True, _queues),
    TableColumn("MEMORY", True, _memory),
    TableColumn("CLIENTS", True, _clients),
    TableColumn("VERSION", False, lambda member: version(member.report) if member.report else NOTHING),
    TableColumn("UP", True, _uptime),
    TableColumn("SENT/RECEIVED", True, _messages),
)


def _style(member: Member) -> str:
    if member.report is None or {"fail", "fail?"} & member.flags:
        return "red"
    return "yellow" if "leaving" in member.flags or member.link == "unknown" else ""


# Totals.


def _total(view: View, name: str) -> int:
    return sum(int(member.report.info.get(name, 0)) for member in view.answering if member.report)


def _uncollected(view: View) -> int | None:
    counts = [member.report.acked for member in view.answering if member.report]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def summary(view: View) -> list[str]:
    """Return sentences about the whole cluster."""
    answering = len(view.answering)
    lines = [f"{table.nodes(len(view.members))}, {answering if answering < len(view.members) else 'all'} answering."]
    acked = _uncollected(view)
    waiting = (
        "acked ones not counted" if acked is None else f"{acked} of them acked, and not yet removed from all nodes"
    )
    lines.append(f"{table.jobs(_total(view, 'registered_jobs'))} held, copies included ({waiting}).")
    for member in view.answering:
        if member.report is not None and member.report.is_draining:
            left = int(member.report.cluster.get("drain_left", 0))
            done = "has no jobs left" if not left else f"still has {table.jobs(left)}"
            lines.append(f"{member.name} is draining: it {done}.")
    return lines + view.notes


def as_text(view: View) -> str:
    """Return the view as text, for a pipe."""
    warnings = [f"Warning: {text}" for text in problems(view)]
    return "\n".join([table.plain(COLUMNS, view.members), "", *summary(view), *warnings])


def painted(view: View) -> Group:
    """Return the view for a terminal."""
    from rich.console import Group
    from rich.text import Text

    tables = table.drawn(COLUMNS, view.members, _style, table.terminal_width())
    parts: list[Any] = [part for one in tables for part in (one, Text())]
    parts += [Text(line) for line in summary(view)]
    parts += [Text(f"Warning: {text}", style="red") for text in problems(view)]
    return Group(*parts)


def _number(facts: dict[str, str], name: str) -> int | None:
    return int(facts[name]) if facts.get(name, "").isdecimal() else None


def _member_as_json(member: Member) -> dict[str, Any]:
    known: dict[str, Any] = {
        "id": member.id,
        "address": str(member.address) if member.address else None,
        "flags": sorted(member.flags),
        "link": member.link,
        "answers": member.report is not None,
        "problem": member.problem or None,
    }
    report = member.report
    if report is None:
        return known
    return known | {
        "reachable": _number(report.cluster, "reachable_nodes"),
        "others": len(report.others),
        "jobs": report.jobs,
        "acked": report.acked,
        "queues": _number(report.info, "registered_queues"),
        "memory_used": _number(report.info, "used_memory"),
        "memory_limit": report.memory_limit,
        "clients": report.clients,
        "version": version(report),
        "uptime_seconds": _number(report.info, "uptime_in_seconds"),
        "messages_sent": _number(report.cluster, "stats_messages_sent"),
        "messages_received": _number(report.cluster, "stats_messages_received"),
        "leaving": report.is_leaving,
        "draining": report.is_draining,
        "drain_left": _number(report.cluster, "drain_left"),
    }


def as_json(view: View) -> dict[str, Any]:
    """Return the view for --json."""
    return {
        "asked": str(view.asked),
        "ok": not problems(view),
        "known": len(view.members),
        "answering": len(view.answering),
        "jobs": _total(view, "registered_jobs"),
        "acked": _uncollected(view),
        "nodes": [_member_as_json(member) for member in view.members],
        "warnings": disagreements(view),
        "notes": view.notes,
    }
