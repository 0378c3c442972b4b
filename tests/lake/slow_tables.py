"""The tables computed by plain Python, one job at a time: what Spark's must equal."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

ORDER = ["imported", "added", "redriven", "queued", "reserved", "begun", "extended"]
ORDER += ["nacked", "requeued", "moved", "failed", "expired", "removed", "acked", "gone"]
WAITS = {"imported", "added", "redriven", "queued", "nacked", "requeued", "moved"}
ENDS = {"failed", "expired", "removed", "acked", "gone"}
ENDS_ATTEMPT = ENDS - {"gone"} | {"nacked", "requeued", "moved"}

Row = dict[str, Any]


def hour_of(created: datetime | None) -> str:
    return "unknown" if created is None else created.strftime("%Y-%m-%dT%H")


def ms(start: datetime | None, end: datetime | None) -> int | None:
    if start is None or end is None:
        return None
    return ((end - start) // timedelta(microseconds=1)) // 1000


def lives(events: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the events of each job, each once, in order."""
    once = {(one["writer"], one["epoch"], one["seq"]): one for one in events}
    found = defaultdict(list)
    for one in once.values():
        if one["kind"] == "redriven":
            one = {**one, "queue": one["to_queue"] or one["queue"]}  # noqa: PLW2901 - as the table has it
        if one["job"] is not None:
            found[one["job"]].append(one)
    for life in found.values():
        life.sort(
            key=lambda one: (
                one["at"],
                ORDER.index(one["kind"]) if one["kind"] in ORDER else len(ORDER),
                one["attempt"],
                one["writer"],
                one["epoch"],
                one["seq"],
            )
        )
    for job, life in found.items():
        numbered = [{**one, "delivery": number} for one, number in zip(life, deliveries(life), strict=True)]
        given_up = {one["delivery"] for one in numbered if one["kind"] == "failed"}
        kept = [one for one in numbered if one["kind"] != "acked" or one["delivery"] not in given_up]
        ended_before = had_ended(numbered)
        late = [one for one, ended in zip(numbered, ended_before, strict=True) if ended and one["kind"] == "gone"]
        found[job] = [one for one in kept if one not in late]
    return found


def had_ended(life: list[Row]) -> list[bool]:
    """Return for each event whether the job had ended before it."""
    found, ended = [], False
    for one in life:
        found.append(ended)
        if one["kind"] in WAITS | ENDS | {"reserved"}:
            ended = one["kind"] in ENDS
    return found


def deliveries(life: list[Row]) -> list[tuple[int, int]]:
    """Return for each event the round of its job, and the delivery in it."""
    found = []
    rounds = given = counted = 0
    for one in life:
        if one["kind"] == "redriven":
            rounds, given, counted = rounds + 1, 0, 0
        if one["attempt"]:
            given = one["attempt"]
        if one["kind"] == "reserved":
            counted += 1
        found.append((rounds, one["attempt"] or max(given, counted)))
        if one["kind"] == "moved":
            rounds, given, counted = rounds + 1, 0, 0
    return found


def job_tables(life: list[Row]) -> tuple[Row, list[Row], list[tuple[str, datetime, int]]]:
    """Return the row of a job, its attempts, and how it changed the depth of queues: (queue, time, change)."""
    attempts: dict[tuple[int, int], Row] = {}
    depth = []
    known = [one["created"] for one in life if one["created"]]
    created = min(known) if known else None
    ready, waiting = None, False
    state, state_at, acked = "waiting", None, None
    queue = next((one["queue"] for one in life if one["queue"]), None)
    queue_now = None
    size = None
    for one in life:
        rounds, number = one["delivery"]
        kind, at = one["kind"], one["at"]
        due = max(at, one["until"] or at)
        if number:
            row = attempts.setdefault(
                (rounds, number),
                {"job": one["job"], "round": rounds, "attempt": number, "queue": None, "ready": None, "started": None}
                | {"begun": None, "ended": None, "outcome": None, "worker": None, "node": None, "error": None}
                | {"first_queue": one["queue"], "is_gone": False},
            )
            if kind == "reserved" and row["started"] is None:
                row.update(started=at, ready=ready, node=one["node"], queue=one["queue"])
            if kind == "begun" and row["begun"] is None:
                row["begun"] = at
            row["is_gone"] = row["is_gone"] or kind == "gone"
            if kind in ENDS_ATTEMPT and (row["ended"] is None or (kind == "acked" and row["outcome"] != "acked")):
                row.update(ended=at, outcome=kind)
            for name in ("worker", "error"):
                row[name] = one[name] if one[name] is not None else row[name]
        if kind in WAITS:
            ready = due
        now_waits = kind in WAITS if kind in WAITS | ENDS | {"reserved"} else waiting
        if kind == "moved":
            if waiting and one["queue"]:
                depth.append((one["queue"], at, -1))
            if one["to_queue"]:
                depth.append((one["to_queue"], due, 1))
        elif now_waits != waiting and one["queue"]:
            depth.append((one["queue"], due if now_waits else at, 1 if now_waits else -1))
        waiting = now_waits
        if kind in WAITS | ENDS | {"reserved"}:
            state = kind if kind in ENDS else "waiting" if kind in WAITS else "running"
            state_at = at
        if kind == "acked" and acked is None:
            acked = at
        if kind in ("moved", "redriven", "added", "imported"):
            queue_now = one["to_queue"] or one["queue"]
        if kind in ("added", "imported") and one["size"] is not None:
            size = max(size or 0, one["size"])
    rows = [attempts[key] for key in sorted(attempts)]
    for at, row in enumerate(rows):
        row["hour"] = hour_of(created)
        row["queue"] = row["queue"] or row.pop("first_queue")
        row.pop("first_queue", None)
        row["started"] = row.pop("begun") or row["started"]
        is_gone = row.pop("is_gone")
        row["outcome"] = row["outcome"] or ("requeued" if at + 1 < len(rows) else "gone" if is_gone else "running")
        row["wait_ms"] = ms(row["ready"], row["started"])
        row["run_ms"] = ms(row["started"], row["ended"])
    runs = [row["run_ms"] for row in rows if row["run_ms"] is not None]
    pauses = [ms(one["ended"], two["started"]) for one, two in itertools.pairwise(rows)]
    pauses = [pause for pause in pauses if pause is not None]
    added = min((one["at"] for one in life if one["kind"] in ("added", "imported")), default=None)
    started = min((row["started"] for row in rows if row["started"]), default=None)
    job = {
        "job": life[0]["job"],
        "queue": queue,
        "queue_now": queue_now or queue,
        "created": created,
        "added": added,
        "first_start": started,
        "ended": acked or (state_at if state in ENDS else None),
        "outcome": "acked" if acked else state,
        "attempts": len(rows),
        "wait_ms": ms(added, started),
        "run_ms": sum(runs) if runs else None,
        "retry_ms": sum(pauses) if pauses else None,
        "last_worker": rows[-1]["worker"] if rows else None,
        "last_error": next((one["error"] for one in reversed(life) if one["error"]), None),
        "size": size,
        "last_event": life[-1]["at"],
        "last_kind": life[-1]["kind"],
        "events": len(life),
        "hour": hour_of(created),
    }
    return job, rows, depth


def all_tables(events: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of all tables, without sketches."""
    events = list(events)
    jobs, attempts = [], []
    parts: dict[tuple[str, datetime, str], Row] = {}

    def part(queue: str, at: datetime, hour: str) -> Row:
        minute = at.replace(second=0, microsecond=0)
        names = ["added", "started", "acked", "retried", "failed", "expired", "depth_change"]
        return parts.setdefault(
            (queue, minute, hour),
            {"queue": queue, "minute": minute, "hour": hour}
            | dict.fromkeys(names, 0)
            | {"sample": None, "sampled": None, "wait_ms_max": None, "minutes": 1},
        )

    counted = {"added": "added", "imported": "added", "redriven": "added", "acked": "acked", "nacked": "retried"}
    counted |= {"requeued": "retried", "failed": "failed", "expired": "expired"}
    for life in lives(events).values():
        job, rows, depth = job_tables(life)
        jobs.append(job)
        attempts += rows
        ended = None  # the delivery that an event has ended last
        for one in life:
            is_again = one["delivery"] == ended
            ended = one["delivery"] if one["kind"] in ENDS_ATTEMPT else ended
            if one["queue"]:
                row = part(one["queue"], one["at"], job["hour"])
                column = counted.get(one["kind"])
                if column and not (column == "retried" and is_again):
                    row[column] += 1
        for queue, at, change in depth:
            part(queue, at, job["hour"])["depth_change"] += change
        for row in rows:
            if row["started"] and row["queue"]:
                begun = part(row["queue"], row["started"], job["hour"])
                begun["started"] += 1
                waits = [one for one in (begun["wait_ms_max"], row["wait_ms"]) if one is not None]
                begun["wait_ms_max"] = max(waits) if waits else None
            if row["run_ms"] is not None and row["queue"]:
                part(row["queue"], row["ended"], job["hour"])
    for one in {(one["writer"], one["epoch"], one["seq"]): one for one in events}.values():
        if one["kind"] == "sample" and one["queue"]:
            row = part(one["queue"], one["at"], hour_of(one["at"]))
            if row["sampled"] is None or (one["at"], one["size"]) > row["sampled"]:
                row["sampled"], row["sample"] = (one["at"], one["size"]), one["size"]
    for row in parts.values():
        row.pop("sampled")
    return {
        "jobs": jobs,
        "attempts": attempts,
        "metric_parts": list(parts.values()),
        "worker_parts": worker_parts(attempts),
    }


def worker_parts(attempts: list[Row]) -> list[Row]:
    parts: dict[tuple[str, datetime, str], Row] = {}
    for row in attempts:
        if row["worker"] is None or row["started"] is None:
            continue
        worked = first = row["started"].replace(minute=0, second=0, microsecond=0)
        end = max(row["started"], row["ended"] or row["started"])
        while worked <= end:
            found = parts.setdefault(
                (row["worker"], worked, row["hour"]),
                {"worker": row["worker"], "worked": worked, "hour": row["hour"], "busy_ms": 0, "jobs": 0}
                | {"acked": 0, "failures": 0},
            )
            if row["ended"]:
                busy = ms(max(row["started"], worked), min(row["ended"], worked + timedelta(hours=1)))
                found["busy_ms"] += max(busy or 0, 0)
            if worked == first:
                found["jobs"] += 1
                found["acked"] += row["outcome"] == "acked"
                found["failures"] += row["outcome"] not in ("acked", "gone", "running")
            worked += timedelta(hours=1)
    return list(parts.values())


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
