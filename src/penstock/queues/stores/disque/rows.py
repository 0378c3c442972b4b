"""Jobs of a node as columns, from the rows of JSCAN REPLY compact. A scan of a million jobs spends its time here.

A row has 12 fields: id, queue, state, body, time of creation (ns), ttl, delay (s), retry, copies, nacks, additional
deliveries, and in how many milliseconds the job is queued again. States are words of ours: queued, scheduled, reserved;
active is a job that is away.
Most jobs were never returned and have no headers, so that a column often has one value for a whole page: `Same`.
"""

from collections.abc import Sequence
from typing import Any

from penstock.client.values import JobDetails, queue_name
from penstock.codec import MARK
from penstock.job import JobState
from penstock.queues.scan import Column, Same
from penstock.queues.stores.disque.jobs import unframed

Row = Sequence[Any]

STATES = {
    b"queued": JobState.READY,
    b"scheduled": JobState.SCHEDULED,
    b"reserved": JobState.RESERVED,
    b"active": JobState.AWAY,  # asked for as such: a job of another node, which can't be reached
}
WORDS = {state: word for word, state in STATES.items()}
_QUEUE, _STATE, _CREATED, _DELAY = 1, 2, 4, 6
_NS_PER_MS = 1_000_000
_MS = 1000


def row_of(details: JobDetails, state: JobState) -> Row:
    """Return the row of a job that SHOW replied, in a state that is known otherwise."""
    name = details.queue or ""
    return (
        details.id.encode(),
        name.encode() if isinstance(name, str) else name,
        WORDS[state],
        details.body or b"",
        details.created_ns,
        details.ttl,
        details.delay,
        details.retry,
        details.replicate,
        details.nacks,
        details.additional_deliveries,
        details.next_requeue_ms,
    )


def columns_of_rows(rows: Sequence[Row], node: str, now_ms: int) -> dict[str, Column]:
    """Return the columns of jobs that a node showed."""
    if not rows:
        return {}
    ids, queues, states, bodies, created_ns, _, delays, _, _, nacks, deliveries, requeues = zip(*rows, strict=True)
    created_ms = [time_ns // _NS_PER_MS for time_ns in created_ns]
    columns: dict[str, Column] = {
        "id": [job_id.decode() for job_id in ids],
        "queue": _few_values(queues, queue_name),
        "created_ms": created_ms,
        "state": _few_values(states, STATES.__getitem__),
        "nacks": nacks if any(nacks) else Same(0),
        "additional_deliveries": deliveries if any(deliveries) else Same(0),
        "node": Same(node),
        "body": bodies,
        "headers": Same({}),
        "tries": Same(0),
    }
    if any(nacks) or any(deliveries):
        columns["tries"] = [one + other for one, other in zip(nacks, deliveries, strict=True)]
    columns["mature_ms"] = _matures(states, created_ms, delays, requeues, now_ms)
    if True in [body.startswith(MARK) for body in bodies]:
        _unframe(columns)
    return columns


def _few_values(values: Sequence[bytes], read: Any) -> Column:
    """Return a column that mostly has one value."""
    different = set(values)
    if len(different) == 1:
        return Same(read(values[0]))
    known = {value: read(value) for value in different}
    return [known[value] for value in values]


def _matures(
    states: Sequence[bytes],
    created_ms: Sequence[int],
    delays: Sequence[int],
    requeues: Sequence[int | None],
    now_ms: int,
) -> Column:
    """Return when each job was ready, or will be; None if it never will."""
    ready = WORDS[JobState.READY]
    if not any(delays) and set(states) == {ready}:
        return created_ms
    return [
        created + delay * _MS if state == ready else None if requeue is None else now_ms + requeue
        for state, created, delay, requeue in zip(states, created_ms, delays, requeues, strict=True)
    ]


def _unframe(columns: dict[str, Column]) -> None:
    """Move headers, and the tries and time of a push, out of the bodies that have them."""
    bodies, headers, before, pushed_ms = zip(*[unframed(body) for body in columns["body"]], strict=True)
    columns["body"], columns["headers"] = bodies, headers
    if any(before):
        tries = columns["tries"]
        added = [tries.value] * len(bodies) if isinstance(tries, Same) else tries
        columns["tries"] = [one + other for one, other in zip(added, before, strict=True)]
    added_ms = columns["created_ms"]
    assert not isinstance(added_ms, Same)
    columns["created_ms"] = [
        at if earlier is None else earlier for at, earlier in zip(added_ms, pushed_ms, strict=True)
    ]


def of_queues(rows: Sequence[Row], queues: Sequence[str]) -> Sequence[Row]:
    """Return the rows of these queues, where the node was not asked for one of them."""
    names = {queue.encode() for queue in queues}
    return [row for row in rows if row[_QUEUE] in names]


def delayed(rows: Sequence[Row], now_ms: int) -> list[str]:
    """Return the ids of jobs that wait for their first delivery: each node that holds one shows it."""
    word = WORDS[JobState.SCHEDULED]
    return [
        row[0].decode()
        for row in rows
        if row[_STATE] == word and now_ms < row[_CREATED] // _NS_PER_MS + row[_DELAY] * _MS
    ]
