"""A job as Keuss keeps it in Redis: a JSON object.

| field    | contents                                                                                       |
|----------|------------------------------------------------------------------------------------------------|
| _id      | the job's id, the same as in the index and the hash (not in redis-list, which has no ids)      |
| payload  | any JSON; bytes as base64                                                                      |
| type     | `buffer` if the payload is bytes, as of a Buffer of Node; else absent                          |
| hdrs     | headers, an object; absent in elements of Keuss before 1.6.3                                   |
| mature   | when the job is ready, as of its push, in ms (not in redis-list)                               |
| tries    | the number of earlier tries                                                                    |
| reserved | absent or false: it waits; true: it is reserved, or its lease has ended (redis-oq)             |

An id of ours contains the time of the push. In redis-list, which has no ids, the header `x-penstock-created` has it, in
ms; `job.headers` doesn't show it.

Readers don't depend on the order of fields. We write `tries` and `reserved` last, and change them there without
changing the rest; of a field that is there twice, Node, Redis' Lua and Python read the last one.
"""

import base64
import binascii
import json
import re
from typing import Any

from penstock.codec import from_json
from penstock.errors import BadPayload
from penstock.job import JobState, NewJob, StoredJob

_compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_BYTES = (bytes, bytearray, memoryview)
_NUMBERS = (int, float)
CREATED = "x-penstock-created"
_PLAIN_ID = re.compile(r"[0-9a-zA-Z-]+").fullmatch
_TAIL = re.compile(rb',"tries":(\d+)(?:,"reserved":[a-z]+)?}$')


def _json(value: Any) -> bytes:
    """Return JSON that Redis' Lua can read, too.

    It refuses the escape of half a surrogate pair, and Keuss' script that reserves such an element would fail halfway.
    So half a pair is written unescaped; Node reads it as U+FFFD.
    """
    try:
        return _compact(value).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError) as problem:
        raise BadPayload(f"a payload must be bytes or a value that JSON can express: {problem}") from problem


def written_payload(job: NewJob, created_ms: int | None = None) -> bytes:
    """Return the fields `payload`, `hdrs` and `type`, without braces; `created_ms` becomes a header."""
    payload = job.payload
    mark = b""
    if isinstance(payload, _BYTES):
        text = b'"%b"' % base64.b64encode(job.body)
        mark = b',"type":"buffer"'
    elif isinstance(payload, str) or b"\\ud" in job.body:
        text = _json(payload)
    else:
        text = job.body
    headers = _json(dict(job.headers)) if job.headers else b"{}"
    if created_ms is not None:
        headers = b'{"%b":%d%b%b' % (CREATED.encode(), created_ms, b"," if job.headers else b"", headers[1:])
    return b'"payload":%b,"hdrs":%b%b' % (text, headers, mark)


def written_id(job_id: str) -> bytes:
    """Return an id as JSON: ours need no escapes."""
    return b'"%b"' % job_id.encode() if _PLAIN_ID(job_id) else _json(job_id)


def stored_job(
    job_id: str, value: bytes, mature_ms: int | None, state: JobState, token_time: str | None = None
) -> StoredJob:
    """Return a job from its element. A value that is not an element becomes a payload of bytes: it must not block the
    queue.

    With `token_time`, the end of a lease as stored, the job gets its token.
    """
    element = _read(value)
    if not isinstance(element, dict):
        found = _TAIL.search(value)
        tries = int(found[1]) if found else 0
        job = StoredJob(job_id, None, value[: found.start()] if found else value, {}, tries, mature_ms)
    else:
        headers = element.get("hdrs")
        job = StoredJob(
            job_id,
            None,
            _payload(element),
            headers if isinstance(headers, dict) else {},
            _count(element.get("tries")),
            mature_ms,
        )
    job.state = state
    if token_time is not None:
        job.token = f"{token_time}:{job.tries}"
    return job


def _read(value: bytes) -> Any:
    try:
        return from_json(value.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


def _payload(element: dict[str, Any]) -> Any:
    payload = element.get("payload")
    if element.get("type") == "buffer" and isinstance(payload, str):
        try:
            return base64.b64decode(payload)
        except (ValueError, binascii.Error):
            return payload
    return payload


def _count(value: Any) -> int:
    return int(value) if isinstance(value, _NUMBERS) and 0 <= value < 2**53 else 0
