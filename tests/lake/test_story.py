"""What `penstock why` says, word for word."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.lake.story import Happened, InStore, Known, story
from tests.lake.conftest import NOON


def at(seconds: float) -> Any:
    return NOON + timedelta(seconds=seconds)


def happened(seconds: float, kind: str, until: float | None = None, **more: Any) -> Happened:
    return Happened(
        at(seconds), kind, **{"queue": "mail", **more}, until=None if until is None else at(until), created=NOON
    )


ADDED = happened(0, "added", size=10)
RESERVED = happened(1, "reserved", 61, attempt=1, worker="w1", node="node-1")
NACKED = happened(3, "nacked", 33, attempt=1, worker="w1", error="Timeout: no answer")
STORE = "redis://localhost"

STORIES: dict[str, tuple[Known, list[str]]] = {
    "done": (
        Known(now=at(10), events=[ADDED, RESERVED, happened(3.5, "acked", attempt=1, worker="w1")]),
        [
            "Job j1 of mail is done: w1 acknowledged it at 2026-03-10 12:00:03Z, after 2.5 s of work.",
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
            "  2026-03-10 12:00:01.000  reserved by w1 at node-1, attempt 1, leased until 2026-03-10 12:01:01Z",
            "  2026-03-10 12:00:03.500  acknowledged by w1",
        ],
    ),
    "delayed": (
        Known(now=at(10), events=[happened(0, "added", 3600, size=10)]),
        [
            "Job j1 of mail waits for its delay: ready at 2026-03-10 13:00:00Z, in 59 min 50 s.",
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes, delayed until 2026-03-10 13:00:00Z",
        ],
    ),
    "waiting for a worker": (
        Known(now=at(90), events=[ADDED]),
        [
            "Job j1 of mail waits for a worker since 2026-03-10 12:00:00Z, for 1 min 30 s.",
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
        ],
    ),
    "paused": (
        Known(now=at(90), events=[ADDED], store=STORE, in_store=InStore("mail", "ready", is_paused=True)),
        [
            (
                "Job j1 of mail waits since 2026-03-10 12:00:00Z, for 1 min 30 s. Its queue is paused: "
                "`penstock resume` "
                "lets it go on."
            ),
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
        ],
    ),
    "leased": (
        Known(now=at(10), events=[ADDED, RESERVED, happened(5, "extended", 70, worker="w1")]),
        [
            (
                "Job j1 of mail is running: w1 at node-1 has had it since 2026-03-10 12:00:01Z, attempt 1, "
                "leased until "
                "2026-03-10 12:01:10Z, in 1 min. Without an ack it is delivered again then."
            ),
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
            "  2026-03-10 12:00:01.000  reserved by w1 at node-1, attempt 1, leased until 2026-03-10 12:01:01Z",
            "  2026-03-10 12:00:05.000  lease extended by w1, until 2026-03-10 12:01:10Z",
        ],
    ),
    "its lease has ended": (
        Known(now=at(100), events=[ADDED, RESERVED]),
        [
            (
                "Job j1 of mail is running: w1 at node-1 has had it since 2026-03-10 12:00:01Z, attempt 1. Its "
                "lease ended "
                "at 2026-03-10 12:01:01Z, 39 s ago: the worker was killed or is stuck, and the job is delivered "
                "again when "
                "its store next looks."
            ),
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
            "  2026-03-10 12:00:01.000  reserved by w1 at node-1, attempt 1, leased until 2026-03-10 12:01:01Z",
        ],
    ),
    "back-off": (
        Known(now=at(10), events=[ADDED, RESERVED, NACKED]),
        [
            (
                "Job j1 of mail waits for its next try: attempt 1 failed: Timeout: no answer; ready at "
                "2026-03-10 12:00:33Z, in 23 s."
            ),
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
            "  2026-03-10 12:00:01.000  reserved by w1 at node-1, attempt 1, leased until 2026-03-10 12:01:01Z",
            "  2026-03-10 12:00:03.000  returned by w1: Timeout: no answer, ready again at 2026-03-10 12:00:33Z",
        ],
    ),
    "dead": (
        Known(
            now=at(10),
            events=[ADDED, happened(4, "failed", attempt=3, worker="w1", error="Boom: x", to_queue="__deadletter__")],
        ),
        [
            (
                "Job j1 of mail is dead: given up after 3 attempts at 2026-03-10 12:00:04Z: Boom: x. Its dead "
                "letter is in "
                "__deadletter__: `penstock redrive` sends it back."
            ),
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
            "  2026-03-10 12:00:04.000  given up: Boom: x, dead letter in __deadletter__",
        ],
    ),
    "dead, and its node says that it was acked": (
        Known(
            now=at(10),
            events=[
                happened(0, "added", node="node-1"),
                happened(4, "acked", attempt=1, worker="10.0.0.1:5000", node="node-1"),
                happened(4.001, "failed", attempt=1, worker="w1", error="Boom: x", to_queue="__deadletter__"),
            ],
        ),
        [
            (
                "Job j1 of mail is dead: given up after 1 attempt at 2026-03-10 12:00:04Z: Boom: x. Its dead letter is "
                "in __deadletter__: `penstock redrive` sends it back."
            ),
            "  2026-03-10 12:00:00.000  added to mail",
            "  2026-03-10 12:00:04.001  given up: Boom: x, dead letter in __deadletter__",
        ],
    ),
    "expired": (
        Known(now=at(10), events=[ADDED, happened(9, "expired")]),
        [
            "Job j1 of mail has expired: its ttl ended at 2026-03-10 12:00:09Z, before a worker took it.",
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
            "  2026-03-10 12:00:09.000  expired: its ttl is over",
        ],
    ),
    "moved": (
        Known(now=at(10), events=[ADDED, happened(8, "moved", to_queue="sms")]),
        [
            "Job j1 of sms waits for a worker since 2026-03-10 12:00:08Z, for 2.0 s. It was moved from mail.",
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
            "  2026-03-10 12:00:08.000  moved from mail to sms",
        ],
    ),
    "ended by a foreign peer": (
        Known(now=at(60), events=[ADDED, RESERVED], store=STORE, in_store=None),
        [
            (
                "Job j1 of mail has ended, and no event says how: redis://localhost does not have it any more. "
                "A program "
                "that writes no events has ended it since 2026-03-10 12:00:01Z."
            ),
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
            "  2026-03-10 12:00:01.000  reserved by w1 at node-1, attempt 1, leased until 2026-03-10 12:01:01Z",
        ],
    ),
    "ready again, and a node recorded it, too": (
        Known(
            now=at(60),
            events=[
                ADDED,
                RESERVED,
                happened(3, "nacked", 33, attempt=1, worker="w1", error="Timeout: no answer", key=("a", 1, 1)),
                happened(3, "nacked", 33, attempt=1, worker="w1", key=("node", 1, 1)),
                happened(33, "queued", attempt=1),
            ],
        ),
        [
            (
                "Job j1 of mail waits for a worker since 2026-03-10 12:00:33Z, for 27 s. Attempt 1 failed: "
                "Timeout: no answer."
            ),
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
            "  2026-03-10 12:00:01.000  reserved by w1 at node-1, attempt 1, leased until 2026-03-10 12:01:01Z",
            "  2026-03-10 12:00:03.000  returned by w1: Timeout: no answer, ready again at 2026-03-10 12:00:33Z",
            "  2026-03-10 12:00:03.000  returned by w1, ready again at 2026-03-10 12:00:33Z",
            "  2026-03-10 12:00:33.000  ready",
        ],
    ),
    "settled by a look at the store": (
        Known(now=at(60), events=[ADDED, RESERVED, happened(50, "gone", node=STORE)]),
        [
            (
                "Job j1 of mail has ended, and no event says how: redis://localhost did not have it any more at "
                "2026-03-10 12:00:50Z. A program that writes no events has ended it since 2026-03-10 12:00:01Z."
            ),
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
            "  2026-03-10 12:00:01.000  reserved by w1 at node-1, attempt 1, leased until 2026-03-10 12:01:01Z",
            "  2026-03-10 12:00:50.000  not in its store any more at redis://localhost",
        ],
    ),
    "not found by an earlier look, and there now": (
        Known(now=at(90), events=[ADDED, happened(50, "gone")], store=STORE, in_store=InStore("mail", "ready")),
        [
            "Job j1 of mail waits for a worker since 2026-03-10 12:00:00Z, for 1 min 30 s.",
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
        ],
    ),
    "acked, which an event said after the look": (
        Known(now=at(90), events=[ADDED, happened(50, "gone"), happened(5, "acked", worker="w1")]),
        [
            "Job j1 of mail is done: w1 acknowledged it at 2026-03-10 12:00:05Z.",
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
            "  2026-03-10 12:00:05.000  acknowledged by w1",
        ],
    ),
    "ended by a foreign peer, in a store with history": (
        Known(now=at(60), events=[ADDED], store=STORE, in_store=InStore("mail", "done")),
        [
            (
                "Job j1 of mail has ended, and no event says how: redis://localhost keeps it as one that has ended. "
                "A program that writes no events has ended it since 2026-03-10 12:00:00Z."
            ),
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
        ],
    ),
    "unknown": (
        Known(now=NOON, store=STORE),
        ["Job j1 is unknown: the events and redis://localhost could know it. Check the id."],
    ),
    "the lake is behind": (
        Known(now=at(7200), events=[ADDED], tables_until=at(60)),
        [
            "Job j1 of mail waits for a worker since 2026-03-10 12:00:00Z, for 2 h.",
            (
                "The lake ends at 2026-03-10 12:01:00Z, 1 h 59 min ago: what happened later is not in it. "
                "`penstock lake "
                "build` brings it up to date, --events reads the segments."
            ),
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
        ],
    ),
    "events are off": (
        Known(now=NOON, has_events=False, store=STORE, in_store=InStore("mail", "scheduled", at(60), deliveries=1)),
        [
            (
                "Job j1 of mail waits for its time until 2026-03-10 12:01:00Z, for 1 min; without events its "
                "past is not "
                "known. It was delivered 1 time before."
            )
        ],
    ),
    "the node is away": (
        Known(now=at(10), events=[ADDED, RESERVED], store=STORE, store_error="can't reach redis://localhost"),
        [
            (
                "Job j1 of mail is running: w1 at node-1 has had it since 2026-03-10 12:00:01Z, attempt 1, "
                "leased until "
                "2026-03-10 12:01:01Z, in 51 s. Without an ack it is delivered again then."
            ),
            "The store could not be asked: can't reach redis://localhost. This is what the events say.",
            "  2026-03-10 12:00:00.000  added to mail, 10 bytes",
            "  2026-03-10 12:00:01.000  reserved by w1 at node-1, attempt 1, leased until 2026-03-10 12:01:01Z",
        ],
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_word_for_word(name: str) -> None:
    known, expected = STORIES[name]
    assert story("j1", known) == expected


def test_events_come_once_and_in_order_whatever_order_they_are_found_in() -> None:
    events = [one._replace(key=("n", 1, number)) for number, one in enumerate((ADDED, RESERVED, NACKED))]
    known = Known(now=at(10), events=[*reversed(events), events[0]])
    assert story("j1", known) == STORIES["back-off"][1]


def test_an_ack_is_final() -> None:
    late = [ADDED, RESERVED, happened(5, "acked", attempt=1, worker="w1"), happened(6, "reserved", attempt=2)]
    assert story("j1", Known(now=at(10), events=late))[0].startswith("Job j1 of mail is done: w1 acknowledged it")
