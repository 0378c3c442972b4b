"""What runs have reached: messages, states and changes of jobs, kinds of faults, and which of them together.

Counts grow as a run goes on. What happened while a fault lasted is the difference between its end and its begin, so a
pair costs nothing per event. Changes of jobs are seen where a message speaks of a job, and once a second.

A batch of runs fails if it never reached something of `expected()` that `UNREACHED` doesn't excuse, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from penstock.broker.core.jobs import ACKED, ACTIVE, GONE, QUEUED, WAIT_REPL
from penstock.wire import bus

if TYPE_CHECKING:
    from penstock.sim.machine import Machine

NONE: Final = 5  # where a job comes from
STATE_NAMES: Final = {
    WAIT_REPL: "wait-repl",
    ACTIVE: "active",
    QUEUED: "queued",
    ACKED: "acked",
    GONE: "gone",
    NONE: "",
}
STATES: Final = len(STATE_NAMES)
# What a job may change from and to on one node.
CHANGES: Final = (
    (NONE, WAIT_REPL), (NONE, ACTIVE), (NONE, QUEUED), (NONE, ACKED),
    (WAIT_REPL, ACTIVE), (WAIT_REPL, QUEUED), (WAIT_REPL, ACKED), (WAIT_REPL, GONE),
    (ACTIVE, QUEUED), (ACTIVE, ACKED), (ACTIVE, GONE),
    (QUEUED, ACTIVE), (QUEUED, ACKED), (QUEUED, GONE),
    (ACKED, GONE),
)  # fmt: skip
TYPES: Final = len(bus.TYPE_NAMES)
INNER_AT: Final = TYPES  # types inside MANY are counted behind the others
CHANGES_AT: Final = 2 * TYPES
MANY_NODES_AT: Final = bus.HEADER_BYTES + 4  # where MANY has the number of its nodes
COUNTS: Final = CHANGES_AT + STATES * STATES

# Patterns of what need not be reached in a batch, and why.
UNREACHED: Final = {
    "* with message MEET": "said a few times in a run, when nodes are introduced",
    "* with message FAIL": "said once by each node that finds another one failing",
    "* with message PAUSE": "said once when a queue is paused everywhere",
    "* with message ENQUEUE": "said only while a node is leaving or short of memory",
    "* with change wait-repl>*": "a matter of milliseconds, unless copies are refused",
    "* with change >wait-repl": "a matter of milliseconds, unless copies are refused",
    "* with change *>gone": "mostly within a second of the ack, so seldom seen",
    "* with change >acked": "only acks of jobs that a node doesn't know begin so",
    "restart-all with *": "nobody is there to talk to",
}


class RunCoverage:
    """The counts of one run."""

    def __init__(self) -> None:
        self.counts = [0] * COUNTS
        self._pairs: dict[str, list[int]] = {}

    def message(self, data: bytes) -> None:
        """Count a message."""
        kind = data[13]
        self.counts[kind] += 1
        if kind == bus.MANY:
            inner = data[bus.HEADER_BYTES + 1]
            self.counts[inner] += 1
            self.counts[INNER_AT + inner] += 1

    def change(self, before: int, after: int) -> None:
        """Count a change of a job's state."""
        self.counts[CHANGES_AT + before * STATES + after] += 1

    def snapshot(self) -> list[int]:
        """Return the counts as they are."""
        return list(self.counts)

    def lasted(self, kind: str, before: list[int]) -> None:
        """Count what happened while a fault lasted."""
        pair = self._pairs.setdefault(kind, [0] * COUNTS)
        for at, count in enumerate(self.counts):
            pair[at] += count - before[at]

    def reached(self) -> dict[str, int]:
        """Return all that was reached, as text."""
        found = dict(_words(self.counts))
        for kind, counts in self._pairs.items():
            found[f"fault {kind}"] = found.get(f"fault {kind}", 0) + 1
            for word, count in _words(counts):
                found[f"{kind} with {word}"] = count
        return found


def _words(counts: list[int]) -> Iterator[tuple[str, int]]:
    for kind in range(TYPES):
        if counts[kind]:
            yield f"message {bus.TYPE_NAMES[kind]}", counts[kind]
        if counts[INNER_AT + kind]:
            yield f"many {bus.TYPE_NAMES[kind]}", counts[INNER_AT + kind]
    for before in range(STATES):
        for after in range(STATES):
            count = counts[CHANGES_AT + before * STATES + after]
            if count:
                yield f"change {STATE_NAMES[before]}>{STATE_NAMES[after]}", count


def expected(kinds: Iterable[str]) -> list[str]:
    """Return all that a large batch should reach, for these kinds of faults."""
    words = [f"message {name}" for name in bus.TYPE_NAMES]
    words += [f"many {bus.TYPE_NAMES[kind]}" for kind in sorted(bus.REFERENCE_TYPES)]
    words += [f"change {STATE_NAMES[before]}>{STATE_NAMES[after]}" for before, after in CHANGES]
    pairs = [word for word in words if not word.startswith("many")]
    for kind in kinds:
        words.append(f"fault {kind}")
        words += [f"{kind} with {word}" for word in pairs]
    return words


def missing(reached: Iterable[str], kinds: Iterable[str]) -> list[str]:
    """Return what was expected, never reached, and has no excuse."""
    found = frozenset(reached)
    return [
        word
        for word in expected(kinds)
        if word not in found and not any(fnmatchcase(word, pattern) for pattern in UNREACHED)
    ]


def type_of(message: bytes) -> int:
    """Return the type of a message; of a MANY, the type inside."""
    return message[bus.HEADER_BYTES + 1] if message[13] == bus.MANY else message[13]


def job_ids(message: bytes) -> list[bytes]:
    """Return the job ids of a message about jobs."""
    kind = message[13]
    if kind in bus.REFERENCE_TYPES:
        return [message[bus.HEADER_BYTES : bus.HEADER_BYTES + bus.JOB_ID_BYTES]]
    if kind == bus.MANY:
        nodes = int.from_bytes(message[MANY_NODES_AT : MANY_NODES_AT + 4], "big")
        first = MANY_NODES_AT + 4 + nodes * bus.NODE_ID_BYTES
        return [message[at : at + bus.JOB_ID_BYTES] for at in range(first, len(message), bus.REFERENCE_BYTES)]
    if kind not in bus.RECORD_TYPES:
        return []
    decoded = bus.decode(message)
    return [record[4:44] for record in bus.cut_records(decoded)] if decoded is not None else []


def state_of(machine: Machine, job_id: bytes) -> int:
    """Return the state of a job on a node."""
    job = machine.node.jobs.get(job_id)
    return NONE if job is None else job.state
