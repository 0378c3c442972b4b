"""Jobs as they travel between nodes: written for others, and read from what they send.

Jobs that are added alike differ in id, creation time and body only. So the rest of a record is kept ready for writing,
and what follows from it is worked out once for reading (`Kind`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.core.jobs import ACTIVE, DELIVERED, STORED_FLAGS, Holders, Job, Rules
from penstock.wire import bus
from penstock.wire.record import JobRecord, RecordError, decode_record, record_template, split_record

if TYPE_CHECKING:
    from penstock.broker.core.node import Node

KINDS_MAX: Final = 4096  # kept ready, of each sort; beyond that the collection starts anew


class Kind:
    """What follows from all of a record but its id, times and body."""

    __slots__ = ("deliveries", "flags", "holders", "nacks", "nodes", "queue", "rules")

    def __init__(self, record: JobRecord, rules: Rules, holders: Holders) -> None:
        self.queue = record.queue
        self.rules = rules
        self.nodes = frozenset(record.nodes)
        self.holders = holders
        self.flags = record.flags & STORED_FLAGS & ~DELIVERED
        self.nacks = record.nacks
        self.deliveries = record.deliveries


class Copy:
    """A job that another node has sent."""

    __slots__ = ("body", "ctime", "id", "kind", "left_s")

    def __init__(self, job_id: bytes, body: bytes, ctime: int, left_s: int, kind: Kind) -> None:
        self.id = job_id
        self.body = body
        self.ctime = ctime
        self.left_s = left_s
        self.kind = kind


class Forms:
    """What a node keeps ready, for as long as the cluster stays as it is."""

    def __init__(self) -> None:
        self.epoch = -1
        self.kinds: dict[bytes, Kind] = {}
        self.templates: dict[tuple[object, ...], bytes] = {}
        self.rules: dict[tuple[int, int, int], Rules] = {}


def message_record(node: Node, job: Job) -> bytes:
    """Serialize a job for another node: it knows no clock but its own, so it is told how many seconds are left."""
    left_s = max((job.expires_at - node.now_ms) // 1000, 0) + 1
    flags = job.flags & STORED_FLAGS & ~DELIVERED
    delivered = job.holders.delivered
    key = (job.queue, job.rules, flags, job.nacks, job.deliveries, left_s, delivered, len(job.body))
    templates = node.forms.templates
    template = templates.get(key)
    if template is None:
        if len(templates) >= KINDS_MAX:
            templates.clear()
        rules, nodes = job.rules, tuple(sorted(delivered))
        template, _ = record_template(
            JobRecord(
                job.id, ACTIVE, 0, flags, rules.replicate, left_s, job.ctime, rules.delay_s, rules.retry_s,
                job.nacks, job.deliveries, job.queue, job.body, nodes,
            )
        )  # fmt: skip
        templates[key] = template
    return template % (job.id, job.ctime.to_bytes(8, "little"), job.body)


def copy_flags(job: Job) -> int:
    """Return the flags of a message with a copy of a job: its tries, where there are any."""
    return bus.tries_flags(job.tries) if job.tries else 0


def read_copies(node: Node, message: bus.Message) -> list[Copy]:
    """Read the jobs of REPLJOB and YOURJOBS, up to the first that can't be read."""
    forms = node.forms
    if forms.epoch != node.cluster.epoch:
        forms.epoch = node.cluster.epoch
        forms.kinds.clear()
    copies: list[Copy] = []
    for data in bus.cut_records(message):
        body, ctime, left_s, key = split_record(data)
        kind = forms.kinds.get(key) if key else None
        if kind is None:
            try:
                record, _ = decode_record(data)
            except RecordError:
                break
            body, ctime, left_s = record.body, record.ctime, record.expires
            kind = _kind(node, record)
            if key:
                if len(forms.kinds) >= KINDS_MAX:
                    forms.kinds.clear()
                forms.kinds[key] = kind
        copies.append(Copy(data[4:44], body, ctime, left_s, kind))
    return copies


def _kind(node: Node, record: JobRecord) -> Kind:
    terms = (record.replicate, record.delay, record.retry)
    rules = node.forms.rules.get(terms)
    if rules is None:
        if len(node.forms.rules) >= KINDS_MAX:
            node.forms.rules.clear()
        rules = node.forms.rules[terms] = Rules.of(*terms)
    holders = node.held_by(frozenset(record.nodes) & node.cluster.ids | node.alone.delivered)
    return Kind(record, rules, holders)
