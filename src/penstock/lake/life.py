"""What each kind of event means for its job: the table behind `tables` and `story`.

    after     state of the job afterwards; empty if it stays as it was
    ends      whether a delivery ends with it
    begins    whether the job begins again: attempts count from 1 afterwards

Events of one job come from several machines, so their times may be equal, or wrong by what the clocks differ. They are
put in order by time, then by `RANKS` (the rows from top to bottom), so that every order of arrival gives the same
tables. An ack is final whatever comes after it; a delivery that is acked after its lease was lost ended with that ack.
An ack of a delivery that also `failed` is a node's word for the job's leaving its queue for the dead letters: no ack.
`gone` says that a look at the store did not find the job: an end only for a job that no other event had ended, and no
end of its last delivery, since nobody knows when that was. Kinds that are not here are kept in `events`, and change
nothing.
"""

from __future__ import annotations

from typing import NamedTuple

WAITING, RUNNING = "waiting", "running"
ENDED = ("acked", "failed", "expired", "removed", "gone")
"""The outcomes of jobs that have ended, by the event that ended them."""


class Meaning(NamedTuple):
    """A row of the table."""

    after: str
    ends: bool = False
    begins: bool = False


LIFE = {
    "imported": Meaning(WAITING),
    "added": Meaning(WAITING),
    "redriven": Meaning(WAITING, begins=True),
    "queued": Meaning(WAITING),
    "reserved": Meaning(RUNNING),
    "begun": Meaning(""),
    "extended": Meaning(""),
    "nacked": Meaning(WAITING, ends=True),
    "requeued": Meaning(WAITING, ends=True),
    "moved": Meaning(WAITING, ends=True, begins=True),
    "failed": Meaning("failed", ends=True),
    "expired": Meaning("expired", ends=True),
    "removed": Meaning("removed", ends=True),
    "acked": Meaning("acked", ends=True),
    "gone": Meaning("gone"),
}

RANKS = {kind: rank for rank, kind in enumerate(LIFE)}
READY = tuple(kind for kind, meaning in LIFE.items() if meaning.after == WAITING)
ENDING = tuple(kind for kind, meaning in LIFE.items() if meaning.ends)
BEGINNING = tuple(kind for kind, meaning in LIFE.items() if meaning.begins)
ADDING = ("added", "imported")
