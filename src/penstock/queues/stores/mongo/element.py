"""Jobs as documents, in the layout of Keuss.

| field | BSON type | meaning |
|---|---|---|
| `_id` | ObjectId | the id: 24 hexadecimal digits in the API |
| `mature` | date | when it is ready; of a reserved job, when its lease ends |
| `payload` | any but null; bytes are binary | see below |
| `tries` | int | number of deliveries: a reserve adds 1, a release takes it off |
| `hdrs` | object | headers |
| `reserved` | date | when it was reserved; absent if it was not, or was given back |
| `_q` | string | only in `mongodb+pl`: the queue |
| `processed`, `removed` | date, true | only in `mongodb+ps`: when it ended, and whether it was removed |
| `penstock` | object | only ours, see below; absent from most jobs |

A payload that BSON can't hold (null at the top, whole numbers beyond 64 bits, zero bytes in names, more than 90 levels)
is stored as the bytes of its JSON, which are read as the same payload. In headers, whole numbers beyond 64 bits are
decimals, up to 34 digits. Values that only BSON has, in jobs of others, are read as JSON has them: dates as ISO 8601
text, whole decimals as numbers, ids and all others as text.

Fields of `penstock`, which no Node peer reads:

| field | meaning |
|---|---|
| `key` | the job's unique key |
| `by`, `at` | mark of the batch or claim that reserved it, and when: `reserved` is the same while that lease holds |
| `before`, `back`, `unbegun` | the maturity before that; whether a lease had run out; how many unbegun ones in a row |
| `ahead`, `until` | the number of leases in a row, up to the one that ends at `until`, under which no work has begun |
| `last` | end of the last lease that was released: the next one ends later |

`ahead` counts only while `until` equals `mature` and `reserved` is there: whatever a Node peer does to the job ends it.
A lease under which work has not begun costs no try when it runs out: the next reserve of ours leaves `tries` as it is,
and what shows `tries` takes 1 off.

The token of a lease names `mature` and `tries`, and what ends or changes a leased job compares both. Every reserve,
also one by Keuss, writes others.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import bson
from bson import DatetimeMS, Decimal128, ObjectId
from bson.errors import BSONError

from penstock.codec import HEADERS_BYTES_MAX, is_deeper, to_json
from penstock.errors import BadPayload
from penstock.job import JobState, NewJob, StoredJob
from penstock.queues.lease_token import LeaseToken

Document = dict[str, Any]

# Fields of a document as the driver sees it that no stored document has, as their names have a dot.
JOB = "penstock.job"  # the id, where it isn't `_id`
ENTRY = "penstock.entry"  # the id of the entry, of a document with several jobs
AT = "penstock.place"  # its place among them
RECORDED = "penstock.recorded"  # when the job was made, where its id doesn't say it

_NOT_BSON = (BSONError, OverflowError, UnicodeError, RecursionError)
_LEVELS_MAX = 90  # the server takes 100, with those of the document itself
_PLAIN = (str, float, bool, type(None))
_DECIMAL_MAX = 10**34  # what a decimal of BSON holds exactly


def object_id(text: str) -> ObjectId | None:
    """Return the id of a text; None if no job here can have it."""
    return ObjectId(text) if len(text) == 24 and ObjectId.is_valid(text) else None


def text_id(document: Mapping[str, Any]) -> str:
    """Return the id of a job."""
    found = document.get(JOB)
    return str(document["_id"]) if found is None else str(found)


def new_object_id(made_ms: int | None) -> ObjectId:
    """Return a new id with the time at which a job was made; None: now."""
    new = ObjectId()
    made_s = -1 if made_ms is None else made_ms // 1000
    if not 0 <= made_s < 2**32:
        return new
    return ObjectId(made_s.to_bytes(4, "big") + new.binary[4:])


def packed(job: NewJob) -> Document:
    """Return the document of a job, without its maturity. Raises BadPayload if MongoDB can't store it."""
    headers = dict(job.headers)
    if headers:
        size = len(to_json(headers).encode())
        if size > HEADERS_BYTES_MAX:
            raise BadPayload(f"headers must be at most {HEADERS_BYTES_MAX} bytes as JSON, got {size}")
        headers = {name: _without_large(value) for name, value in headers.items()}
        if not is_bson(headers):
            raise BadPayload("headers on MongoDB must be values that BSON has, without zero bytes in their names")
    found = object_id(job.id)
    document: Document = {
        "_id": ObjectId() if found is None else found,
        "payload": _stored_payload(job),
        "tries": job.tries,
        "hdrs": headers,
    }
    if job.unique is not None:
        document["penstock"] = {"key": job.unique}
    return document


def _stored_payload(job: NewJob) -> Any:
    payload = job.payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    # A name that begins with $ref is read as a reference by most drivers.
    if payload is None or b'"$ref"' in job.body or not is_bson(payload):
        return job.body
    return payload


def _without_large(value: Any) -> Any:
    """Return a value with whole numbers beyond 64 bits as decimals, as far as these go."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return Decimal128(str(value)) if abs(value) < _DECIMAL_MAX else value
    if isinstance(value, dict):
        return {name: _without_large(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_large(one) for one in value]
    return value


def is_bson(value: Any) -> bool:
    """Whether BSON, and the server, can hold a value."""
    if isinstance(value, _PLAIN) and not isinstance(value, str):
        return True
    try:
        bson.encode({"": value})
    except _NOT_BSON:
        return False
    return not isinstance(value, dict | list | tuple) or not is_deeper(value, _LEVELS_MAX)


def plain(value: Any) -> Any:
    """Return a value of BSON as JSON has it; bytes stay bytes at the top, and are text within others."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, list):
        return [_inner(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _inner(one) for name, one in value.items()}
    return _inner(value)


def _inner(value: Any) -> Any:
    if isinstance(value, DatetimeMS):
        return _iso(int(value))
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Decimal128):
        text = str(value)
        return int(text) if text.removeprefix("-").isdigit() else text
    if isinstance(value, (*_PLAIN, int, list, Mapping)):
        return plain(value)
    return str(value)


def _iso(ms: int) -> str:
    try:
        when = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ms_of(value: object) -> int:
    """Return a date in milliseconds; 0 for what others wrote in its place."""
    return int(value) if isinstance(value, DatetimeMS) else 0


def _of_penstock(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found = document.get("penstock")
    return found if isinstance(found, Mapping) else {}


def key_of(document: Mapping[str, Any]) -> str | None:
    """Return the unique key of a job."""
    return _of_penstock(document).get("key")


def ahead_of(document: Mapping[str, Any]) -> int:
    """Return the number of leases in a row, the present or last one among them, under which work has not begun."""
    ours = _of_penstock(document)
    if "ahead" in ours and "reserved" in document and ours.get("until") == document.get("mature"):
        return int(ours["ahead"])
    return 0


def tries_of(document: Mapping[str, Any]) -> int:
    """Return `tries` as it is stored."""
    tries = document.get("tries")
    return int(tries) if isinstance(tries, int | float) else 0


def _job(document: Mapping[str, Any], **fields: Any) -> StoredJob:
    headers = document.get("hdrs")
    return StoredJob(
        text_id(document),
        recorded_ms=document.get(RECORDED),
        payload=plain(document.get("payload")),
        headers=plain(headers) if isinstance(headers, Mapping) else {},
        **fields,
    )


def read(document: Mapping[str, Any], now_ms: int, must_be_reserved: bool = False) -> StoredJob:
    """Return a job that was read and not changed."""
    mature_ms, tries = ms_of(document.get("mature")), tries_of(document)
    reserved = document.get("reserved")
    is_ahead = ahead_of(document) > 0
    state = JobState.READY
    if "processed" in document:
        state = JobState.DONE
    elif mature_ms > now_ms or must_be_reserved:
        state = JobState.SCHEDULED if reserved is None else JobState.RESERVED
    token = None if reserved is None else str(LeaseToken(mature_ms, tries, ms_of(reserved)))
    return _job(
        document,
        tries=max(0, tries - (is_ahead or state is JobState.RESERVED)),
        mature_ms=ms_of(document["processed"]) if state is JobState.DONE else mature_ms,
        token=None if state is JobState.DONE else token,
        state=state,
        has_begun=not is_ahead,
    )


def popped(document: Document) -> StoredJob:
    """Return a job that was taken out, with the document that puts it back."""
    tries = max(0, tries_of(document) - (ahead_of(document) > 0))
    key = key_of(document)
    raw = {**document, "tries": tries}
    for name in ("reserved", "penstock", "processed"):
        raw.pop(name, None)
    if key is not None:
        raw["penstock"] = {"key": key}
    return _job(document, tries=tries, mature_ms=ms_of(document.get("mature")), raw=raw)


def leased_before(document: Document, until_ms: int, begin: int | None) -> StoredJob:
    """Return a job that was just reserved until a time, by the document as it was before; see `lease_stages`."""
    is_back = "reserved" in document
    ahead = ahead_of(document)
    last = _of_penstock(document).get("last")
    mature_ms = until_ms if last is None else max(until_ms, ms_of(last) + 1)
    tries = tries_of(document) + (0 if ahead else 1)
    return _job(
        document,
        tries=tries - 1,
        mature_ms=mature_ms,
        token=str(LeaseToken(mature_ms, tries, ms_of(document.get("mature")))),
        state=JobState.RESERVED,
        has_begun=begin is None or (begin > 0 and not is_back),
        is_back=is_back,
        unbegun=ahead,
    )


def leased_after(document: Document) -> StoredJob:
    """Return a job that was just reserved with a mark, by the document as it is now."""
    ours = _of_penstock(document)
    mature_ms, tries = ms_of(document["mature"]), tries_of(document)
    return _job(
        document,
        tries=tries - 1,
        mature_ms=mature_ms,
        token=str(LeaseToken(mature_ms, tries, ms_of(ours.get("before")))),
        state=JobState.RESERVED,
        has_begun=ahead_of(document) == 0,
        is_back=bool(ours.get("back")),
        unbegun=int(ours.get("unbegun", 0)),
    )


# Expressions of update pipelines.

_IS_BACK: Document = {"$gt": ["$reserved", None]}
_IS_AHEAD: Document = {
    "$and": [{"$gt": ["$penstock.ahead", 0]}, {"$eq": ["$penstock.until", "$mature"]}, _IS_BACK],
}
_AHEAD: Document = {"$cond": [_IS_AHEAD, "$penstock.ahead", 0]}


def lease_stages(
    until_ms: int, reserved_ms: int, begin: int | None, ids: Sequence[ObjectId] = (), mark: ObjectId | None = None
) -> list[Document]:
    """Return the update that reserves a job, or those with `ids` under a mark. Work begins on the first `begin`."""
    mature = {"$max": [DatetimeMS(until_ms), {"$add": ["$penstock.last", 1]}]}
    fields: Document = {
        "mature": mature,
        "reserved": DatetimeMS(reserved_ms),
        "tries": {"$add": [{"$ifNull": ["$tries", 0]}, {"$cond": [_IS_AHEAD, 0, 1]}]},
    }
    ours: Document = {}
    if begin is not None:
        begins = {"$and": [{"$not": [_IS_BACK]}, {"$in": ["$_id", list(ids[:begin])]} if mark else begin > 0]}
        ours["ahead"] = {"$cond": [begins, 0, {"$add": [_AHEAD, 1]}]}
        ours["until"] = mature
    if mark is not None:
        ours |= {"by": mark, "at": DatetimeMS(reserved_ms), "before": "$mature", "back": _IS_BACK, "unbegun": _AHEAD}
    if ours:
        fields["penstock"] = {"$mergeObjects": ["$penstock", ours]}
        return [{"$set": fields}]
    return [{"$set": fields}, {"$unset": "penstock.by"}]


def extend_stages(until_ms: int, has_begun: bool) -> list[Document]:
    """Return the update that lets a lease end at another time."""
    fields: Document = {"mature": DatetimeMS(until_ms)}
    if not has_begun:
        fields["penstock"] = {
            "$cond": [_IS_AHEAD, {"$mergeObjects": ["$penstock", {"until": DatetimeMS(until_ms)}]}, "$penstock"]
        }
    return [{"$set": fields}]


def release_stages(before_ms: int) -> list[Document]:
    """Return the update that undoes a reserve. The next lease ends later than this one, or it might have its token."""
    fields = {
        "mature": DatetimeMS(before_ms),
        "tries": {"$subtract": ["$tries", 1]},
        "penstock.last": {"$max": ["$penstock.last", "$mature"]},
    }
    return [{"$set": fields}, {"$unset": ["reserved", "penstock.by", "penstock.ahead"]}]
