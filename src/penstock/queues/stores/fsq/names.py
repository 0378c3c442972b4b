"""Names: of queues as directories, of jobs as items, of leases as tokens.

A queue is the directory of its name. One that can't be a directory's, or would be hidden, is written with escapes
behind a `%`: `a/b` is `%a%2fb`. So is one that begins with `%` itself.

A job's id is its item's name without the tries. A new one gets the time at which it is due, with the milliseconds and a
counter as entropy, ten digits: so names sort as jobs shall run, for originals as well.

The arguments of an item are the header `x-fsq-args`, a list of texts, and the other way round: so whatever store a job
is copied to keeps them. All other headers travel in the frame of `penstock.codec`, in the item's data.
"""

import itertools
import os
import random
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from penstock.codec import frame, unframe
from penstock.errors import BadPayload, CallerError
from penstock.fsq import names
from penstock.fsq.constants import text_of
from penstock.fsq.enqueueing import check_writable
from penstock.fsq.errors import FSQError
from penstock.fsq.names import ItemName
from penstock.job import JobState, NewJob, StoredJob

ARGUMENTS = "x-fsq-args"
NAME_BYTES_MAX = 255  # of a file, on all file systems that we know
TRIES_ROOM = 4  # digits that the tries of a new job may grow by
ENTROPY = re.compile(r"[0-9]{10}", re.ASCII)
_COUNTS = 10_000_000  # of one process, before they begin again; the other three digits are milliseconds

# From a random start: two processes of one pid, one after the other, must not make the same names for one due time.
_counter = itertools.count(random.randrange(_COUNTS))


def directory_of(queue: str) -> str:
    """The name of a queue's directory."""
    is_plain = not queue.startswith((".", "%")) and "/" not in queue and "\0" not in queue
    name = queue if is_plain else "%" + names.encode(queue, ".", "%", "\0")
    if len(os.fsencode(name)) > NAME_BYTES_MAX:
        raise CallerError(
            f"the directory of a queue must have a name of at most {NAME_BYTES_MAX} bytes, got {queue[:40]!r}..."
        )
    return name


def queue_of(directory: str) -> str:
    """The queue of a directory. One that nobody would have written so keeps its name, and can't be reached."""
    if not directory.startswith("%"):
        return directory
    try:
        return names.decode(directory[1:], ".", "%")
    except FSQError:
        return directory


class PreparedItem(NamedTuple):
    """What a job becomes: the data and the arguments of an item."""

    data: bytes
    arguments: tuple[str, ...]


def prepare(job: NewJob) -> PreparedItem:
    """Check a job; BadPayload if it can't be an item."""
    headers: Mapping[str, Any] = job.headers
    arguments = headers.get(ARGUMENTS)
    if not arguments or not isinstance(arguments, list) or not all(isinstance(one, str) for one in arguments):
        return PreparedItem(frame(job.body, headers), ())
    rest = {name: value for name, value in headers.items() if name != ARGUMENTS}
    prepared = PreparedItem(frame(job.body, rest), tuple(arguments))
    try:
        name = new_name(0, job.tries, prepared.arguments)
    except FSQError as problem:
        raise BadPayload(f"the header {ARGUMENTS} can't be the arguments of an item: {problem.strerror}") from problem
    if len(os.fsencode(name)) > NAME_BYTES_MAX - TRIES_ROOM:
        raise BadPayload(f"the header {ARGUMENTS} must fit into a file's name of {NAME_BYTES_MAX} bytes, got more")
    return prepared


def new_name(due_ms: int, tries: int, arguments: tuple[str, ...]) -> str:
    """Return a name for a new item; no two calls of one process return the same."""
    time_text = datetime.fromtimestamp(due_ms // 1000).strftime(text_of("FSQ_TIMEFMT"))  # noqa: DTZ006 - local by the standard
    entropy = f"{due_ms % 1000:03d}{next(_counter) % _COUNTS:07d}"
    fields = (time_text, entropy, os.getpid(), names.HOSTNAME, tries, *arguments)
    return check_writable(names.construct(fields).replace("\0", f"{text_of('FSQ_ENCODE')}00"))


def due_ms(name: ItemName) -> int:
    """The time in a name."""
    try:
        whole = int(name.enqueued_at.timestamp()) * 1000
    except (OverflowError, OSError, ValueError):
        return 0  # a year that no clock of this machine can have
    return whole + int(name.entropy[:3]) if ENTROPY.fullmatch(name.entropy) else whole


def stored(
    name: ItemName,
    data: bytes,
    status: os.stat_result,
    state: JobState,
    mature_ms: int,
    token: str | None = None,
) -> StoredJob:
    """The job of an item."""
    body, headers = unframe(data)
    if name.arguments:
        headers[ARGUMENTS] = list(name.arguments)
    return StoredJob(
        name.job_id,
        body,
        headers=headers,
        tries=name.tries,
        mature_ms=mature_ms,
        recorded_ms=status.st_mtime_ns // 1_000_000,
        token=token,
        state=state,
    )


class ItemToken(NamedTuple):
    """What a lease's holder has: the directory that the item is in, and the tries in its name.

    As a text: `UNTIL.NONCE.TRIES`, and `.KEY` where the directory is a claim's.
    """

    directory: str  # UNTIL.NONCE
    tries: int
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.directory}.{self.tries}" + (f".{self.key}" if self.key else "")


_TOKEN = re.compile(r"([0-9]{1,15}\.[0-9a-f]{16})\.([0-9]{1,18})(?:\.([0-9a-f]{32}))?", re.ASCII)


def read_token(text: str | None) -> ItemToken | None:
    """Return the token of a text; None if it is not one of ours."""
    found = _TOKEN.fullmatch(text or "")
    return ItemToken(found[1], int(found[2]), found[3]) if found else None


def item_of(job_id: str, tries: int = 0) -> ItemName | None:
    """Return the name of a job at one of its tries; None for an id that is not one of ours."""
    try:
        return names.parse_job_id(job_id)._replace(tries=tries)
    except (FSQError, ValueError):
        return None
