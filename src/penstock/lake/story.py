"""A job's life in words: how it stands, why, what happens next and when, and then all that happened.

    >>> print("\\n".join(story("j1", Known(events=events, now=now))))

No Spark, no tables, no store: `why` collects what is known of the job from those, and this says it. The first line is
the verdict, lines with two spaces are the history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.lake.life import ENDED, LIFE, RANKS, RUNNING, WAITING


class Happened(NamedTuple):
    """An event of the job."""

    at: datetime
    kind: str
    queue: str | None = None
    attempt: int = 0
    node: str | None = None
    worker: str | None = None
    error: str | None = None
    size: int | None = None
    to_queue: str | None = None
    until: datetime | None = None
    created: datetime | None = None
    key: tuple[str, int, int] = ("", 0, 0)  # writer, epoch and number


class InStore(NamedTuple):
    """The job as its store has it now."""

    queue: str
    state: str  # ready, scheduled, reserved, done, or dead
    ready_at: datetime | None = None  # scheduled: when it becomes ready; reserved: the end of the lease
    deliveries: int = 0
    is_paused: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """All that is known of a job."""

    now: datetime
    events: Sequence[Happened] = ()
    has_events: bool = True  # whether tables or segments were asked
    store: str = ""  # the store that was asked, for people
    in_store: InStore | None = None
    store_error: str = ""  # why the store could not be asked
    tables_until: datetime | None = None  # only tables were asked: the last event that they have
    unread: int = 0  # events in segments that the tables don't have yet


def story(job: str, known: Known) -> list[str]:
    """Return the lines that say how the job stands, why, and what happened to it."""
    events = in_order(known.events)
    if known.in_store is not None and known.in_store.state != "done":  # whoever did not find it there was wrong
        events = [event for event in events if event.kind != "gone"]
    if not events:
        return _without_events(job, known)
    lines = [f"Job {job} of {_queue(events)} {_verdict(events, known)}"]
    lines += _notes(known)
    return [*lines, *(f"  {line}" for line in _history(events))]


def in_order(events: Sequence[Happened]) -> list[Happened]:
    """Return each event once, in the order of `life`."""
    once = {(event.key if event.key != ("", 0, 0) else event): event for event in events}
    found = sorted(
        once.values(), key=lambda event: (event.at, RANKS.get(event.kind, len(RANKS)), event.attempt, event.key)
    )
    rounds, number = [], 0
    for event in found:
        number += event.kind == "redriven"
        rounds.append(number)
        number += event.kind == "moved"
    given_up = {(one, event.attempt) for one, event in zip(rounds, found, strict=True) if event.kind == "failed"}
    kept: list[Happened] = []
    has_ended = False
    for one, event in zip(rounds, found, strict=True):
        is_late_word = event.kind == "gone" and has_ended
        if event.kind in LIFE and LIFE[event.kind].after:
            has_ended = LIFE[event.kind].after in ENDED
        if not is_late_word and (event.kind != "acked" or (one, event.attempt) not in given_up):
            kept.append(event)
    return kept


def _queue(events: Sequence[Happened]) -> str:
    """Return the queue that the job is in, or was in last."""
    found = ""
    for event in events:
        found = (event.to_queue if event.kind in ("moved", "redriven") else event.queue) or found
    return found or "an unknown queue"


def state_of(events: Sequence[Happened]) -> Happened:
    """Return the event that says how the job stands."""
    acked = [event for event in events if event.kind == "acked"]
    changes = [event for event in events if event.kind in LIFE and LIFE[event.kind].after]
    return acked[0] if acked else changes[-1] if changes else events[-1]


# The verdict: what the events say, unless the store knows better.


def _verdict(events: Sequence[Happened], known: Known) -> str:
    last = state_of(events)
    after = LIFE[last.kind].after if last.kind in LIFE else WAITING
    if after in ENDED:
        return _ENDS[after](events, last)
    if known.store and not known.store_error and known.in_store is None:
        return (
            f"has ended, and no event says how: {known.store} does not have it any more. A program that writes no "
            f"events has ended it since {_time(events[-1].at)}."
        )
    here = known.in_store
    if here is not None and here.state == "done":
        return (
            f"has ended, and no event says how: {known.store} keeps it as one that has ended. A program that writes no "
            f"events has ended it since {_time(events[-1].at)}."
        )
    if here is not None and here.state == "dead":
        return f"is dead: {_because(here.error)}its dead letter is in {here.queue}. `penstock redrive` sends it back."
    if after == RUNNING:
        return _running(events, known)
    return _waiting(events, last, known)


def _running(events: Sequence[Happened], known: Known) -> str:
    start = [event for event in events if event.kind == "reserved"][-1]
    leases = [event.until for event in events if event.kind in ("reserved", "extended") and event.at >= start.at]
    until = max((one for one in leases if one is not None), default=None)
    if known.in_store is not None and known.in_store.state == "reserved":
        until = known.in_store.ready_at or until
    who = f"{start.worker or 'a worker'}{_at(start)}"
    text = f"is running: {who} has had it since {_time(start.at)}{_attempt(start, ', attempt ')}"
    if until is None:
        return f"{text}, without a lease: it is not delivered again."
    if until > known.now:
        left = _span(until, known.now)
        return f"{text}, leased until {_time(until)}, in {left}. Without an ack it is delivered again then."
    ago = _span(known.now, until)
    return (
        f"{text}. Its lease ended at {_time(until)}, {ago} ago: the worker was killed or is stuck, and the job is "
        "delivered again when its store next looks."
    )


def _waiting(events: Sequence[Happened], last: Happened, known: Known) -> str:
    here = known.in_store
    cause, error = _cause(events, last)
    ready = last.until or last.at
    if here is not None and here.state == "scheduled" and here.ready_at is not None:
        ready = here.ready_at
    is_ready = ready <= known.now or (here is not None and here.state == "ready")
    paused = " Its queue is paused: `penstock resume` lets it go on." if here is not None and here.is_paused else ""
    if not is_ready:
        when = f"ready at {_time(ready)}, in {_span(ready, known.now)}."
        if cause.kind == "nacked":
            return f"waits for its next try: attempt {cause.attempt or '?'} {_failed(error)}; {when}{paused}"
        return f"waits for its delay: {when}{paused}"
    since = f"since {_time(ready)}, for {_span(known.now, ready)}"
    if paused:
        return f"waits {since}.{paused}"
    before = {
        "requeued": f" The lease of attempt {cause.attempt or '?'} ended without an answer.",
        "nacked": f" Attempt {cause.attempt or '?'} {_failed(error)}.",
        "moved": f" It was moved from {cause.queue or 'another queue'}.",
        "redriven": f" It was redriven from {cause.queue or 'the dead letters'}.",
    }.get(cause.kind, "")
    return f"waits for a worker {since}.{before}"


def _cause(events: Sequence[Happened], last: Happened) -> tuple[Happened, str | None]:
    """Return the event that made a job wait, and the error that goes with it.

    `queued` only says that a delay is over. A node and the worker both say `nacked`: the worker knows the error.
    """
    before = [event for event in events if event.kind in LIFE and LIFE[event.kind].after and event.kind != "queued"]
    cause = before[-1] if last.kind == "queued" and before else last
    same = [one.error for one in before if (one.kind, one.attempt) == (cause.kind, cause.attempt) and one.error]
    return cause, cause.error or (same[-1] if same else None)


def _acked(events: Sequence[Happened], last: Happened) -> str:
    starts = [event for event in events if event.kind in ("reserved", "begun") and event.at <= last.at]
    ran = f", after {_span(last.at, starts[-1].at)} of work" if starts else ""
    tries = f", at attempt {last.attempt}" if last.attempt > 1 else ""
    return f"is done: {last.worker or 'a worker'} acknowledged it at {_time(last.at)}{ran}{tries}."


def _given_up(events: Sequence[Happened], last: Happened) -> str:
    where = f" Its dead letter is in {last.to_queue}: `penstock redrive` sends it back." if last.to_queue else ""
    tries = f" after {_count(last.attempt, 'attempt')}" if last.attempt else ""
    return f"is dead: given up{tries} at {_time(last.at)}: {last.error or 'no error was reported'}.{where}"


def _expired(events: Sequence[Happened], last: Happened) -> str:
    worked = any(event.kind == "reserved" for event in events)
    return f"has expired: its ttl ended at {_time(last.at)}{'' if worked else ', before a worker took it'}."


def _removed(events: Sequence[Happened], last: Happened) -> str:
    return f"was removed at {_time(last.at)}{f' by {last.worker}' if last.worker else ''}, before it was done."


def _gone(events: Sequence[Happened], last: Happened) -> str:
    return (
        f"has ended, and no event says how: {last.node or 'its store'} did not have it any more at {_time(last.at)}. A "
        f"program that writes no events has ended it since {_time(events[max(0, events.index(last) - 1)].at)}."
    )


_ENDS: dict[str, Callable[[Sequence[Happened], Happened], str]] = {
    "acked": _acked,
    "failed": _given_up,
    "expired": _expired,
    "removed": _removed,
    "gone": _gone,
}


def _notes(known: Known) -> list[str]:
    notes = []
    if known.store_error:
        notes.append(f"The store could not be asked: {known.store_error.rstrip('.')}. This is what the events say.")
    if known.tables_until is not None:
        notes.append(
            f"The lake ends at {_time(known.tables_until)}, {_span(known.now, known.tables_until)} ago: what happened "
            "later is not in it. `penstock lake build` brings it up to date, --events reads the segments."
        )
    if known.unread:
        notes.append(f"The lake is {_count(known.unread, 'event')} behind: these were read from the segments.")
    return notes


def _without_events(job: str, known: Known) -> list[str]:
    here = known.in_store
    if here is None:
        asked = [*(["the events"] if known.has_events else []), *([known.store] if known.store else [])]
        if known.store_error:
            return [f"Job {job} is unknown to the events, and the store could not be asked: {known.store_error}."]
        return [f"Job {job} is unknown: {' and '.join(asked) or 'nothing was asked that'} could know it. Check the id."]
    why = "no event tells more" if known.has_events else "without events its past is not known"
    paused = " Its queue is paused." if here.is_paused else ""
    tries = f" It was delivered {_count(here.deliveries, 'time')} before." if here.deliveries else ""
    when = f" until {_time(here.ready_at)}, for {_span(here.ready_at, known.now)}" if here.ready_at else ""
    states = {
        "ready": "waits for a worker",
        "scheduled": f"waits for its time{when}",
        "reserved": f"is reserved by a worker{when}",
        "done": "has ended, and its store keeps it for a while",
        "dead": f"is dead: {_because(here.error)}`penstock redrive` sends it back",
    }
    return [f"Job {job} of {here.queue} {states[here.state]}; {why}.{paused}{tries}"]


# The history.


def _history(events: Sequence[Happened]) -> list[str]:
    lines: list[str] = []
    extended = 0
    for number, event in enumerate(events):
        following = events[number + 1].kind if number + 1 < len(events) else ""
        extended = extended + 1 if event.kind == "extended" else 0
        if event.kind == "extended" and following == "extended":
            continue  # the last one of a row says when the lease ends
        text = _SAYS[event.kind](event) if event.kind in _SAYS else event.kind
        if extended > 1:
            text = f"{text} ({extended} times by now)"
        lines.append(f"{_time(event.at, True)}  {text}")
    return lines


def _until(event: Happened, text: str) -> str:
    return f", {text} {_time(event.until)}" if event.until else ""


def _by(event: Happened) -> str:
    return f" by {event.worker}" if event.worker else ""


def _at(event: Happened) -> str:
    return f" at {event.node}" if event.node else ""


def _error(event: Happened) -> str:
    return f": {event.error}" if event.error else ""


def _size(event: Happened) -> str:
    return f", {_count(event.size, 'byte')}" if event.size is not None else ""


_SAYS: dict[str, Callable[[Happened], str]] = {
    "imported": lambda one: f"was in {one.queue} when events began{_size(one)}{_until(one, 'delayed until')}",
    "added": lambda one: f"added to {one.queue}{_size(one)}{_until(one, 'delayed until')}",
    "queued": lambda one: "ready",
    "reserved": lambda one: f"reserved{_by(one)}{_at(one)}{_attempt(one, ', attempt ')}{_until(one, 'leased until')}",
    "begun": lambda one: f"work began{_by(one)}",
    "extended": lambda one: f"lease extended{_by(one)}{_until(one, 'until')}",
    "acked": lambda one: f"acknowledged{_by(one)}",
    "nacked": lambda one: f"returned{_by(one)}{_error(one)}{_until(one, 'ready again at')}",
    "requeued": lambda one: f"lease ended without an answer{_attempt(one, ', attempt ')}: ready again",
    "moved": lambda one: f"moved from {one.queue} to {one.to_queue}",
    "redriven": lambda one: f"redriven from {one.queue} to {one.to_queue or one.queue}",
    "failed": lambda one: f"given up{_error(one)}{f', dead letter in {one.to_queue}' if one.to_queue else ''}",
    "expired": lambda one: "expired: its ttl is over",
    "removed": lambda one: f"removed{_by(one)}",
    "gone": lambda one: f"not in its store any more{_at(one)}",
}


def _attempt(event: Happened, before: str) -> str:
    return f"{before}{event.attempt}" if event.attempt else ""


def _because(error: str) -> str:
    return f"{error}; " if error else ""


def _failed(error: str | None) -> str:
    return f"failed: {error}" if error else "was returned by its worker"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _time(at: datetime | None, with_ms: bool = False) -> str:
    if at is None:
        return "an unknown time"
    utc = at.astimezone(UTC)
    text = utc.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{utc.microsecond // 1000:03d}" if with_ms else f"{text}Z"


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def _span(end: datetime, start: datetime) -> str:
    """Return a time between two others, with its two largest units."""
    seconds = max(0.0, (end - start).total_seconds())
    if seconds < 10:
        return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    whole = int(seconds)
    words: list[str] = []
    for size, unit in _UNITS:
        if whole >= size or words:
            words.append(f"{whole // size} {unit}" if whole // size else "")
            whole %= size
    return " ".join(word for word in words[:2] if word)
