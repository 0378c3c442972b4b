"""How jobs lie in collections: one class for each layout of Keuss, and which scheme of a URL means which.

| | `mongodb` | `mongodb+pl` | `mongodb+ps` | `mongodb+stream` | `mongodb+intraorder` |
|---|---|---|---|---|---|
| collection | the queue's name | the pipeline's | the queue's name | the queue's name | the queue's name |
| a document is | a job | a job | a job | a job, with a state for each group | the jobs of one key |
| filter | | `_q` is the queue | `processed` is absent | `processed.G` is false | `qcnt` is above 0 |
| indexes | `mature_1` | `_q_1_mature_1` | `mature_1`, `processed_1` | `mature.G_1`, `t_1` | `mature_1_qcnt_1` |
| a job's end | it is deleted | it is deleted | `processed` is the time | `processed.G` is the time | it leaves `q` |

The driver speaks of every job as of one of `mongodb`: a document with `mature`, `tries`, `reserved` and so on. `stored`
turns filters, updates and fields that are said so into those of the layout, and `seen` turns what was read back.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from bson import DatetimeMS, json_util
from bson.regex import Regex
from pymongo import ASCENDING, IndexModel

from penstock.errors import BadPayload, CallerError
from penstock.job import NewJob, id_time_ms, new_id
from penstock.queues.capabilities import Capability
from penstock.queues.stores.mongo.element import (
    AT,
    ENTRY,
    JOB,
    RECORDED,
    Document,
    is_bson,
    new_object_id,
    object_id,
    packed,
)

Update = Document | list[Document]

UNIQUE = "penstock_unique"
CLAIMS = "penstock_claims"
NAME_BYTES_MAX = 255  # of database and collection, with a dot between
PIPELINE = "default"  # the pipeline of queues whose URL names none, as with Keuss
TTL_S = 3600
TTL_S_MAX = 2**31 - 1  # as the server has it
GROUPS = "A,B,C"  # of a stream whose URL names none, as with Keuss
GROUPS_MAX = 32  # each has an index, and MongoDB takes 64 of a collection
KEY = "iid"  # the field of the payload that orders jobs, as with Keuss
_EARLIEST = DatetimeMS(-(2**62))
_FAR = 100  # times the ttl: where `mature` of an ended job goes, as Keuss has it
_BETWEEN_GROUPS = re.compile("[:,;.-]")


class Layout:
    """Jobs as documents of the queue's collection: `mongodb`, and what the others have in common with it."""

    pipeline: str | None = None  # the collection of all queues
    place: str = ""  # what tells stores of one database apart whose jobs are others
    ttl_s: int | None = None  # how long ended jobs stay
    groups: tuple[str, ...] = ()  # that a push is for
    group: str = ""  # the one whose jobs are seen
    keeps_ids: ClassVar[bool] = True  # a job that moves keeps its id
    has_many: ClassVar[bool] = False  # a document has several jobs
    is_job: ClassVar[Document] = {"payload": {"$exists": True}, "tries": {"$exists": True}}

    @property
    def keeps_history(self) -> bool:
        """Whether ended jobs stay."""
        return self.ttl_s is not None

    def collection(self, queue: str) -> str:
        """Return the name of a queue's collection."""
        return self.pipeline or queue

    def indexes(self) -> list[IndexModel]:
        """Return the indexes, with the names and options that Keuss gives them."""
        return [IndexModel([("mature", ASCENDING)])]

    def stored(self, said: Any) -> Any:
        """Return a filter, an update or fields with the names that they have in the collection."""
        return said

    def seen(self, document: Document) -> Document:
        """Return a document of the collection as the driver sees it: the job, or the first of several."""
        return document

    def all_seen(self, document: Document) -> list[Document]:
        """Return all jobs of a document."""
        return [self.seen(document)]

    # Jobs into a queue.

    def prepare(self, job: NewJob) -> None:
        """Check a job, and put its document without the times into `job.prepared`."""
        job.prepared = packed(job)
        job.id = str(job.prepared["_id"])

    def made(self, queue: str, job: NewJob, mature_ms: int, now_ms: int, is_moving: bool) -> Document:
        """Return the document of a new job."""
        return {**job.prepared, "mature": DatetimeMS(mature_ms)}

    def added(self, document: Document) -> tuple[Document, Update] | None:
        """Return the filter and the update that add a new job to its document; None: it is inserted.

        The update changes nothing if the job is there already.
        """
        return None

    # Which jobs.

    def all_of(self, queue: str) -> Document:
        """Return the filter for all jobs of a queue, ended ones too."""
        return {}

    def of(self, queue: str) -> Document:
        """Return the filter for the jobs of a queue that have not ended."""
        return self.all_of(queue)

    def with_id(self, job_id: str) -> Document | None:
        """Return the filter for a job that is reserved, or can be; None if no job here can have this id."""
        found = object_id(job_id)
        return None if found is None else {"_id": found}

    def with_ids(self, ids: Sequence[str]) -> Document:
        """Return the filter for the documents of some jobs."""
        return {"_id": {"$in": [found for job_id in ids if (found := object_id(job_id)) is not None]}}

    def lease_fields(self) -> Document:
        """Return the fields that show whether a lease holds."""
        return {"mature": True, "tries": True, "reserved": True, "penstock.key": True}

    def ready(self, queue: str, high_ms: int, shift_ms: int) -> Document:
        """Return the filter for jobs that are ready.

        The server's own clock decides; the bound is for the index, and leaves out what is not a date.
        """
        return {
            **self.of(queue),
            "mature": {"$lte": DatetimeMS(high_ms)},
            "$expr": {"$lte": ["$mature", _now(shift_ms)]},
        }

    def not_ready(self, queue: str, shift_ms: int) -> Document:
        """Return the filter for jobs that are not ready."""
        return {**self.dated(queue), "$expr": {"$gt": ["$mature", _now(shift_ms)]}}

    def waiting(self, queue: str, shift_ms: int) -> Document:
        """Return the filter for jobs that nobody has reserved, or whose lease has run out."""
        is_free = {"$or": [{"$lte": ["$reserved", None]}, {"$lte": ["$mature", _now(shift_ms)]}]}
        return {**self.of(queue), "$expr": is_free}

    def dated(self, queue: str) -> Document:
        """Return the filter for jobs whose maturity is a date, as it must be."""
        return {**self.of(queue), "mature": {"$gte": _EARLIEST}}

    def done(self, queue: str) -> Document:
        """Return the filter for ended jobs."""
        return {**self.all_of(queue), "processed": {"$gte": _EARLIEST}}

    def as_it_was(self, queue: str, document: Document) -> Document:
        """Return the filter for a job that nobody has changed since it was read."""
        return {
            **self.of(queue),
            "_id": document["_id"],
            "mature": document.get("mature"),
            "tries": document.get("tries"),
            "reserved": document.get("reserved", {"$exists": False}),
        }

    # What happens to jobs.

    def ended(self, now_ms: int, removed: bool = False) -> Update | None:
        """Return the update that ends a job; None: its document is deleted."""
        return None

    def taken_out(self, document: Document, now_ms: int, removed: bool = False) -> Update | None:
        """Return the update that takes a job which was read, and may wait behind others, out of the queue."""
        return self.ended(now_ms, removed)

    def put_back(self, document: Document) -> tuple[Document, Update] | None:
        """Return the filter and the update that undo a pop; None: the document is inserted again."""
        return None

    def removed_copy(self, queue: str, document: Document) -> tuple[Document, Update | None]:
        """Return the write that removes a new job again, unless somebody has it by now."""
        return {"_id": document["_id"], "reserved": {"$exists": False}}, None

    def delayed(self, mature_ms: int) -> Document:
        """Return what an update needs besides when a job is given back until a time."""
        return {}


def _now(shift_ms: int) -> Any:
    return {"$add": ["$$NOW", shift_ms]} if shift_ms else "$$NOW"


class PipelineLayout(Layout):
    """Jobs of all queues of a pipeline in one collection: `mongodb+pl`."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = self.place = pipeline

    def indexes(self) -> list[IndexModel]:
        return [IndexModel([("_q", ASCENDING), ("mature", ASCENDING)])]

    def made(self, queue: str, job: NewJob, mature_ms: int, now_ms: int, is_moving: bool) -> Document:
        return {**job.prepared, "_q": queue, "mature": DatetimeMS(mature_ms)}

    def all_of(self, queue: str) -> Document:
        return {"_q": queue}


class HistoryLayout(Layout):
    """Jobs that stay for a while when they have ended: `mongodb+ps`."""

    def __init__(self, ttl_s: int) -> None:
        self.ttl_s = self._ttl_s = ttl_s

    def indexes(self) -> list[IndexModel]:
        return [*super().indexes(), IndexModel([("processed", ASCENDING)], expireAfterSeconds=self._ttl_s)]

    def of(self, queue: str) -> Document:
        return {"processed": {"$exists": False}}

    def ended(self, now_ms: int, removed: bool = False) -> Update | None:
        return _kept(self._ttl_s, now_ms, removed)

    def put_back(self, document: Document) -> tuple[Document, Update] | None:
        return (
            {"_id": document["_id"], "processed": {"$exists": True}},
            {
                "$set": {"mature": document["mature"], "tries": document["tries"]},
                "$unset": {"processed": "", "reserved": ""},
            },
        )


def _kept(ttl_s: int, now_ms: int, removed: bool) -> Document:
    """Return the update that ends a job which stays."""
    changes: Document = {"processed": DatetimeMS(now_ms), "mature": DatetimeMS(now_ms + _FAR * ttl_s * 1000)}
    if removed:
        changes["removed"] = True
    return {"$set": changes, "$unset": {"reserved": ""}}


class StreamLayout(Layout):
    """Jobs that each of several groups of consumers gets once: `mongodb+stream`.

    `mature`, `tries`, `processed`, `reserved`, `removed` and our `penstock` are objects with a field for each group.
    """

    keeps_ids: ClassVar[bool] = False  # in the other queue, the job of another group may have it
    _OF_GROUP = frozenset({"mature", "tries", "processed", "reserved", "removed", "penstock"})

    def __init__(self, groups: tuple[str, ...], group: str, ttl_s: int) -> None:
        self.ttl_s = self._ttl_s = ttl_s
        self.groups = groups
        self.group = self.place = group

    def indexes(self) -> list[IndexModel]:
        groups = dict.fromkeys([*self.groups, self.group])
        found = [IndexModel([(f"mature.{group}", ASCENDING)]) for group in groups]
        return [*found, IndexModel([("t", ASCENDING)], expireAfterSeconds=self._ttl_s)]

    def stored(self, said: Any) -> Any:
        if isinstance(said, dict):
            return {self._name(name): self._listed(name, value) for name, value in said.items()}
        if isinstance(said, (list, tuple)):
            return [self.stored(one) for one in said]
        if isinstance(said, str) and said[:1] == "$" and said[:2] != "$$":
            return "$" + self._name(said[1:])
        return said

    def _listed(self, name: str, value: Any) -> Any:
        """Return what stands behind a name; that of `$unset` in a pipeline is a name or a list of names."""
        if name == "$unset" and isinstance(value, str):
            return self._name(value)
        if name == "$unset" and isinstance(value, list):
            return [self._name(one) for one in value]
        return self.stored(value)

    def _name(self, name: str) -> str:
        front, dot, rest = name.partition(".")
        return f"{front}.{self.group}{dot}{rest}" if front in self._OF_GROUP else name

    def seen(self, document: Document) -> Document:
        found = {name: value for name, value in document.items() if name not in self._OF_GROUP}
        for name in self._OF_GROUP:
            value = document.get(name)
            if isinstance(value, Mapping) and self.group in value and value[self.group] is not False:
                found[name] = value[self.group]
        return found

    def made(self, queue: str, job: NewJob, mature_ms: int, now_ms: int, is_moving: bool) -> Document:
        # What moves is a job of one group: the others have the original.
        groups = (self.group,) if is_moving else self.groups
        mature = DatetimeMS(mature_ms)
        document = {
            **job.prepared,
            "mature": dict.fromkeys(groups, mature),
            "tries": dict.fromkeys(groups, job.prepared["tries"]),
            "processed": dict.fromkeys(groups, False),
            # The TTL counts from here. A job that waits must not go before its time.
            "t": DatetimeMS(max(now_ms, mature_ms)),
        }
        if is_moving:
            document["_id"] = new_object_id(job.created_ms)
        return document

    def of(self, queue: str) -> Document:
        return {"processed": False}

    def ended(self, now_ms: int, removed: bool = False) -> Update | None:
        return _kept(self._ttl_s, now_ms, removed)

    def put_back(self, document: Document) -> tuple[Document, Update] | None:
        changes = {"mature": document["mature"], "tries": document["tries"], "processed": False}
        return (
            {"_id": document["_id"], "processed": {"$gte": _EARLIEST}},
            {"$set": changes, "$unset": {"reserved": ""}},
        )

    def delayed(self, mature_ms: int) -> Document:
        return {"$max": {"t": DatetimeMS(mature_ms)}}


class OrderedLayout(Layout):
    """Jobs in order by a key, those of one key in one document: `mongodb+intraorder`.

    Only the first job of a document can be taken, so `mature`, `tries` and `reserved` of the document are those of that
    job. Our entries of `q` have an id, `penstock.id`: by it a late ack can't hit the next job of the key.
    """

    has_many: ClassVar[bool] = True
    is_job: ClassVar[Document] = {"q": {"$exists": True}}

    def __init__(self, key: str) -> None:
        self._key = key

    def indexes(self) -> list[IndexModel]:
        return [IndexModel([("mature", ASCENDING), ("qcnt", ASCENDING)])]

    def of(self, queue: str) -> Document:
        return {"qcnt": {"$gt": 0}}

    def seen(self, document: Document) -> Document:
        return self._entry(document, 0)

    def all_seen(self, document: Document) -> list[Document]:
        return [self._entry(document, at) for at in range(len(document.get("q", ())))]

    def _entry(self, document: Document, at: int) -> Document:
        """Return one of the jobs of a document. What comes behind the first has its own time, and no lease."""
        found = {name: value for name, value in document.items() if name != "q"}
        entries = document.get("q")
        entry = entries[at] if isinstance(entries, list) and at < len(entries) else {}
        entry = entry if isinstance(entry, Mapping) else {}
        entry_id = _id_of(entry)
        found[JOB] = key_text(document["_id"], entry_id)
        found[ENTRY] = entry_id
        found[AT] = at
        made_ms = None if entry_id is None else id_time_ms(entry_id)
        if made_ms is not None:
            found[RECORDED] = made_ms
        found["payload"], found["hdrs"] = entry.get("payload"), entry.get("hdrs")
        if at:
            for name in ("reserved", "penstock"):
                found.pop(name, None)
            found |= {"mature": entry.get("mature"), "tries": entry.get("tries")}
        return found

    def prepare(self, job: NewJob) -> None:
        job.prepared = packed(job)
        _, given = key_of_text(job.id)
        entry_id = job.id if id_time_ms(job.id) is not None and "-" in job.id else given or new_id()
        key = job.payload.get(self._key) if isinstance(job.payload, dict) else None
        if not key:
            key = entry_id
        elif not isinstance(key, str | int | float) or not is_bson(key):
            raise BadPayload(f"{self._key} of a payload orders its jobs, and must be a text or a number, got {key!r}")
        job.prepared["_id"] = key
        job.prepared[ENTRY] = entry_id
        job.id = key_text(key, entry_id)

    def made(self, queue: str, job: NewJob, mature_ms: int, now_ms: int, is_moving: bool) -> Document:
        return {**job.prepared, JOB: job.id, "mature": DatetimeMS(mature_ms)}

    def added(self, document: Document) -> tuple[Document, Update] | None:
        entry = self._stored_entry(document)
        there = {"$ifNull": ["$q", []]}
        is_new = {"$not": [{"$in": [{"$literal": document[ENTRY]}, {"$ifNull": ["$q.penstock.id", []]}]}]}
        is_first = {"$lte": [{"$ifNull": ["$qcnt", 0]}, 0]}
        changes = {
            "q": {"$cond": [is_new, {"$concatArrays": [there, [{"$literal": entry}]]}, there]},
            "qcnt": {"$add": [{"$ifNull": ["$qcnt", 0]}, {"$cond": [is_new, 1, 0]}]},
            "mature": {"$cond": [is_first, entry["mature"], "$mature"]},
            "tries": {"$cond": [is_first, entry["tries"], "$tries"]},
        }
        return {"_id": document["_id"]}, [{"$set": changes}]

    @staticmethod
    def _stored_entry(document: Document) -> Document:
        entry = {name: document[name] for name in ("mature", "payload", "tries", "hdrs")}
        return {**entry, "penstock": {"id": document[ENTRY]}} if document[ENTRY] is not None else entry

    def with_id(self, job_id: str) -> Document | None:
        key, entry_id = key_of_text(job_id)
        # A document of which nothing but the key is known may be ours, with the key for an id, or that of a Node peer.
        return {"_id": key, "q.0.penstock.id": entry_id if entry_id is not None else {"$in": [None, key]}}

    def with_ids(self, ids: Sequence[str]) -> Document:
        return {"_id": {"$in": [key_of_text(job_id)[0] for job_id in ids]}}

    def lease_fields(self) -> Document:
        return {**super().lease_fields(), "qcnt": True, "q.penstock.id": True}

    def as_it_was(self, queue: str, document: Document) -> Document:
        entry_id = document[ENTRY]
        if entry_id is None:
            return {**super().as_it_was(queue, document), "q.0.penstock.id": None}
        if "reserved" in document:
            return {**super().as_it_was(queue, document), "q.0.penstock.id": entry_id}
        # The first job may be another one by now: what matters is that nobody has this one.
        is_free = [{"q.0.penstock.id": {"$ne": entry_id}}, {"reserved": {"$exists": False}}]
        return {**self.of(queue), "_id": document["_id"], "q.penstock.id": entry_id, "$or": is_free}

    def ended(self, now_ms: int, removed: bool = False) -> Update | None:
        return [{"$set": self._without_first()}, {"$unset": "reserved"}]

    @staticmethod
    def _without_first() -> Document:
        def of_next(name: str) -> Document:
            following = {"$arrayElemAt": ["$q", 1]}
            return {"$let": {"vars": {"next": following}, "in": {"$ifNull": [f"$$next.{name}", f"${name}"]}}}

        return {
            "q": {"$slice": ["$q", 1, {"$max": [1, {"$size": "$q"}]}]},
            "qcnt": {"$subtract": ["$qcnt", 1]},
            "mature": of_next("mature"),
            "tries": of_next("tries"),
            # The next lease ends later than this one, or a Node peer's job might have its token.
            "penstock": {"$mergeObjects": [{"last": {"$max": ["$penstock.last", "$mature"]}}]},
        }

    def taken_out(self, document: Document, now_ms: int, removed: bool = False) -> Update | None:
        entry_id = document[ENTRY]
        if entry_id is None:
            return self.ended(now_ms)
        named = {"$literal": entry_id}
        is_first = {"$eq": [{"$arrayElemAt": ["$q.penstock.id", 0]}, named]}
        changes = self._without_first()
        others = {"$filter": {"input": "$q", "cond": {"$ne": ["$$this.penstock.id", named]}}}
        found: Document = {
            name: {"$cond": [is_first, changes[name], f"${name}"]} for name in ("mature", "tries", "penstock")
        }
        found |= {"q": others, "qcnt": {"$size": others}, "reserved": {"$cond": [is_first, "$$REMOVE", "$reserved"]}}
        return [{"$set": found}]

    def put_back(self, document: Document) -> tuple[Document, Update] | None:
        entry = {"$literal": self._stored_entry(document)}
        there = {"$ifNull": ["$q", []]}
        # If another worker has the next job of the key by now, this one comes behind it.
        is_leased = {"$gt": ["$reserved", None]}
        behind = {"$concatArrays": [{"$slice": [there, 1]}, [entry], {"$slice": [there, 1, 2**31 - 1]}]}
        changes = {
            "q": {"$cond": [is_leased, behind, {"$concatArrays": [[entry], there]}]},
            "qcnt": {"$add": [{"$ifNull": ["$qcnt", 0]}, 1]},
            "mature": {"$cond": [is_leased, "$mature", document["mature"]]},
            "tries": {"$cond": [is_leased, "$tries", document["tries"]]},
        }
        return {"_id": document["_id"]}, [{"$set": changes}]

    def removed_copy(self, queue: str, document: Document) -> tuple[Document, Update | None]:
        return self.as_it_was(queue, document), self.taken_out(document, 0)


def _id_of(entry: Mapping[str, Any]) -> str | None:
    ours = entry.get("penstock")
    found = ours.get("id") if isinstance(ours, Mapping) else None
    return found if isinstance(found, str) else None


def key_text(key: Any, entry_id: str | None) -> str:
    """Return the id of a job: its key, and behind a colon the id of its entry, unless that is the key itself."""
    text = key if isinstance(key, str) else ""
    if not text or text.startswith("=") or key_of_text(text) != (text, None):
        text = "=" + json_util.dumps(key)
    return text if entry_id is None or entry_id == key else f"{text}:{entry_id}"


def key_of_text(job_id: str) -> tuple[Any, str | None]:
    """Return the key and the id of the entry that a job's id names."""
    if job_id.startswith("="):
        try:
            _, end = json.JSONDecoder().raw_decode(job_id, 1)
            key = json_util.loads(job_id[1:end])
        except Exception:  # json_util raises many kinds
            return job_id, None
        return (key, job_id[end + 1 :] or None) if _can_be_key(key) else (job_id, None)
    key, colon, entry_id = job_id.rpartition(":")
    return (key, entry_id) if colon and _is_ours(entry_id) else (job_id, None)


def _can_be_key(key: Any) -> bool:
    """Whether the server lets a document have this `_id`: in a filter, all else would be an operator or a pattern."""
    if isinstance(key, list | Regex):
        return False
    return not (isinstance(key, dict) and any(name.startswith("$") for name in key)) and is_bson(key)


def _is_ours(entry_id: str) -> bool:
    return "-" in entry_id and id_time_ms(entry_id) is not None


def check_name(database: str, name: str, what: str) -> None:
    """Raise CallerError for a name that no collection can have."""
    wrong = ""
    if not name or "$" in name or "\0" in name:
        wrong = "must not be empty, nor have a $ or a zero byte"
    elif name.startswith("system.") or name in {UNIQUE, CLAIMS}:
        wrong = f"must not begin with 'system.', nor be {UNIQUE} or {CLAIMS}"
    elif name.startswith(".") or name.endswith(".") or ".." in name:
        wrong = "must not begin or end with a dot, nor have two in a row"
    else:
        try:
            size = len(f"{database}.{name}".encode())
        except UnicodeEncodeError:
            wrong = "must be valid Unicode"
        else:
            if size > NAME_BYTES_MAX:
                wrong = f"must be at most {NAME_BYTES_MAX - len(database.encode()) - 1} bytes"
    if wrong:
        raise CallerError(f"{what} on MongoDB {wrong}, got {name!r}")


def _simple(options: Mapping[str, Any], database: str) -> Layout:
    return Layout()


def _pipeline(options: Mapping[str, Any], database: str) -> Layout:
    pipeline = str(options.get("pipeline", PIPELINE))
    check_name(database, pipeline, "a pipeline name")
    return PipelineLayout(pipeline)


def _ttl(options: Mapping[str, Any]) -> int:
    given = options.get("ttl", TTL_S)
    try:
        ttl_s = int(given)
    except (TypeError, ValueError):
        ttl_s = 0
    if not 0 < ttl_s <= TTL_S_MAX:
        raise CallerError(f"ttl must be a whole number of seconds from 1 to {TTL_S_MAX}, got {given!r}")
    return ttl_s


def _history(options: Mapping[str, Any], database: str) -> Layout:
    return HistoryLayout(_ttl(options))


def _stream(options: Mapping[str, Any], database: str) -> Layout:
    given = str(options.get("groups", GROUPS))
    groups = tuple(dict.fromkeys(name.strip() for name in _BETWEEN_GROUPS.split(given)))
    if not all(_is_group(name) for name in groups) or len(groups) > GROUPS_MAX:
        raise CallerError(
            f"groups must be 1 to {GROUPS_MAX} names with commas between them, each without $ and not empty, "
            f"got {given!r}"
        )
    group = str(options.get("group", groups[0])).strip()
    if not _is_group(group) or _BETWEEN_GROUPS.search(group):
        raise CallerError(f"group must be one name, without any of : , ; . - and $, got {group!r}")
    return StreamLayout(groups, group, _ttl(options))


def _is_group(name: str) -> bool:
    return bool(name) and "$" not in name and "\0" not in name


def _ordered(options: Mapping[str, Any], database: str) -> Layout:
    key = str(options.get("key", KEY))
    if not key:
        raise CallerError("key must be the name of a field of the payload, got ''")
    return OrderedLayout(key)


class QueueKind(NamedTuple):
    """What the scheme of a URL means: Keuss' name for it, its own options, and how they make a layout."""

    type: str
    layout: Callable[[Mapping[str, Any], str], Layout]
    options: frozenset[str] = frozenset()
    has: frozenset[Capability] = frozenset()  # what it can do besides
    lacks: frozenset[Capability] = frozenset()  # what it can't


KINDS = {
    "mongodb": QueueKind("mongo:simple", _simple),
    "mongodb+pl": QueueKind("mongo:pipeline", _pipeline, frozenset({"pipeline"})),
    "mongodb+ps": QueueKind("mongo:persistent", _history, frozenset({"ttl"}), frozenset({Capability.HISTORY})),
    "mongodb+stream": QueueKind(
        "mongo:stream",
        _stream,
        frozenset({"groups", "group", "ttl"}),
        frozenset({Capability.HISTORY}),
        frozenset({Capability.UNIQUE}),
    ),
    "mongodb+intraorder": QueueKind(
        "mongo:intraorder", _ordered, frozenset({"key"}), lacks=frozenset({Capability.UNIQUE})
    ),
}
