"""A job as a row, and many of them as an Arrow batch.

The columns, which `COLUMNS` below defines:

    id                     text
    queue                  text
    body                   binary: bytes as they are, text as UTF-8, anything else as JSON
    payload                text: the payload as JSON, where it is JSON; else null
    headers                map of texts; values that are no texts, as JSON
    created                when the job was pushed, where the store knows
    tries                  deliveries before this one
    nacks                  of these, given back by a worker, where the store knows
    additional_deliveries  of these, redelivered for another reason, where the store knows
    node                   the node that gave the job, on a cluster
    claim                  the key under which a stream's batch holds the job; null in a look
    state                  ready, scheduled or reserved: of use in a look; jobs of a stream are all reserved, by it
    mature                 when the job was or will be ready; of a reserved one, when its lease ends
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.codec import from_json, to_json
from penstock.errors import CallerError
from penstock.job import StoredJob

_MICROSECONDS = 1000


def body_of(job: StoredJob) -> bytes:
    """The body for Spark: a text is its UTF-8, without the quotes of JSON."""
    if job.body is not None:
        return job.body
    if isinstance(job.payload, bytes):
        return job.payload
    return (job.payload if isinstance(job.payload, str) else to_json(job.payload)).encode(errors="replace")


def payload_of(job: StoredJob) -> str | None:
    """The payload as JSON text, or None if the job holds no JSON."""
    if job.body is None:
        return None if isinstance(job.payload, bytes) else to_json(job.payload)
    try:
        text = job.body.decode()
    except UnicodeDecodeError:
        return None
    return text if _is_json(text) else None


def _is_json(text: str) -> bool:
    try:
        from_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def _headers_of(job: StoredJob) -> list[tuple[str, str]]:
    return [(name, value if isinstance(value, str) else to_json(value)) for name, value in job.headers.items()]


def _micros(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * _MICROSECONDS


# Column -> Spark's type, and how a job gives it. What all jobs of a batch share is filled in apart.
_Column = tuple[str, Callable[[StoredJob], Any]]
COLUMNS: dict[str, _Column] = {
    "id": ("string", lambda job: job.id),
    "queue": ("string", lambda job: None),
    "body": ("binary", body_of),
    "payload": ("string", payload_of),
    "headers": ("map<string,string>", _headers_of),
    "created": ("timestamp", lambda job: _micros(job.created_ms)),
    "tries": ("int", lambda job: job.tries),
    "nacks": ("int", lambda job: job.nacks),
    "additional_deliveries": ("int", lambda job: job.additional_deliveries),
    "node": ("string", lambda job: job.node),
    "claim": ("string", lambda job: None),
    "state": ("string", lambda job: str(job.state)),
    "mature": ("timestamp", lambda job: _micros(job.mature_ms)),
}


def chosen(wanted: str | None) -> list[str]:
    """The names in the option `columns`, in their order; all without it."""
    if not wanted:
        return list(COLUMNS)
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not names:
        raise CallerError(
            f"columns={wanted!r}: there is no column {', '.join(unknown)}; there are {', '.join(COLUMNS)}"
        )
    return names


def schema_text(names: Iterable[str]) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"{name} {COLUMNS[name][0]}" for name in names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """The same for Arrow, exactly as Spark wants it."""
    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([pa.field(name, types[COLUMNS[name][0]]) for name in names])


def to_batch(jobs: Sequence[StoredJob], schema: pa.Schema, queue: str, claim: str | None = None) -> pa.RecordBatch:
    """Jobs as an Arrow batch."""
    same = {"queue": queue, "claim": claim}
    arrays = []
    for field in schema:
        if field.name in same:
            values: list[Any] = [same[field.name]] * len(jobs)
        else:
            read = COLUMNS[field.name][1]
            values = [read(job) for job in jobs]
        arrays.append(pa.array(values, type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
