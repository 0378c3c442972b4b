"""Where jobs go that can't be done, and what is written on them.

| header            | whose | what                                                                   |
|-------------------|-------|------------------------------------------------------------------------|
| `x-dl-from-queue` | Keuss | the queue that the job came from                                       |
| `x-dl-t`          | Keuss | when it was given up, ISO 8601 in UTC                                  |
| `x-dl-tries`      | Keuss | how often it was delivered before                                      |
| `x-dl-error`      | ours  | what went wrong, if a text or an exception was given                   |
| `x-dl-traceback`  | ours  | the last lines of the exception's traceback, if an exception was given |
| `x-dl-job`        | ours  | the id that the job had, where it gets another one in each queue       |
"""

import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.codec import HEADERS_BYTES_MAX, to_json
from penstock.errors import CallerError
from penstock.job import JobMove, Lease, NewJob, StoredJob

DEAD_LETTER_QUEUE = "__deadletter__"

FROM_QUEUE = "x-dl-from-queue"
TIME = "x-dl-t"
TRIES = "x-dl-tries"
ERROR = "x-dl-error"
TRACEBACK = "x-dl-traceback"
JOB = "x-dl-job"
HEADERS = (FROM_QUEUE, TIME, TRIES, ERROR, TRACEBACK, JOB)

ERROR_CHARACTERS_MAX = 2000  # headers travel with every read
TRACEBACK_LINES_MAX = 20  # the last ones: there it says what went wrong, and where
TRACEBACK_CHARACTERS_MAX = 4000
# After this number of workers in a row that died before work on it began, a job is given up: something about the
# job itself must end them. Far more than tries, since most such jobs only waited in a worker that another job killed.
UNBEGUN_MAX = 1000
# Keuss moves at the first nack whose `tries` exceeds max_ko: that is the delivery number max_ko + 2.
_KO_TO_TRIES = 2


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """After how many deliveries a job is given up, and the queue that it goes to then.

    `max_tries=3` delivers three times at most; deliveries to workers that died count, once work on the job had begun. 0
    is forever: only `fail` moves a job then. `max_ko` is Keuss' way of saying it, where M means M + 2 deliveries.
    """

    max_tries: int = 0
    queue: str = DEAD_LETTER_QUEUE
    max_ko: int | None = None

    def __post_init__(self) -> None:
        if self.max_ko is not None:
            if self.max_tries:
                raise CallerError("either max_tries or max_ko must be given, got both")
            if self.max_ko < 0:
                raise CallerError(f"max_ko must be 0 or more, got {self.max_ko!r}")
            object.__setattr__(self, "max_tries", self.max_ko + _KO_TO_TRIES if self.max_ko else 0)
        if self.max_tries < 0:
            raise CallerError(f"max_tries must be 0 or more deliveries, got {self.max_tries!r}")
        if not self.queue:
            raise CallerError("the queue for dead letters needs a name")

    def is_last(self, tries: int) -> bool:
        """Whether the delivery after `tries` others is the last one."""
        return bool(self.max_tries) and tries + 1 >= self.max_tries

    def is_over(self, tries: int) -> bool:
        """Whether there were too many deliveries already: a worker died during the last one."""
        return bool(self.max_tries) and tries >= self.max_tries

    def error_of(self, job: StoredJob) -> str:
        """Why a job that was just reserved is given up; empty if it is not."""
        if self.is_over(job.tries):
            return "the worker died, or lost its lease, on the last try"
        if self.max_tries and job.unbegun >= UNBEGUN_MAX:
            return f"was reserved {job.unbegun} times by workers that died before its handler began"
        return ""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with a job, as it is written on a dead letter."""

    text: str
    trace: str = ""

    @classmethod
    def of(cls, error: "str | BaseException | Failure") -> "Failure":
        """Return the failure of a text or an exception."""
        if isinstance(error, Failure):
            return error
        if isinstance(error, BaseException):
            return cls(described(error), last_lines(error))
        return cls(error)


Error = str | BaseException | Failure  # what callers may give


def check_error(error: object) -> None:
    """Refuse what can't be the reason of a failure."""
    if not isinstance(error, Error):
        raise CallerError(f"error must be text or an exception, got {error!r}")


def described(problem: BaseException) -> str:
    """An error in a line: its kind and its text."""
    try:
        text = str(problem)
    except Exception:  # an error of the application's own, whose text can't be made
        text = ""
    return f"{type(problem).__name__}: {text}"[:ERROR_CHARACTERS_MAX] if text else type(problem).__name__


def last_lines(problem: BaseException) -> str:
    """The last lines of an exception's traceback, with its causes."""
    try:
        lines = "".join(traceback.format_exception(problem)).splitlines()
    except Exception:  # the same
        return ""
    return "\n".join(lines[-TRACEBACK_LINES_MAX:])[-TRACEBACK_CHARACTERS_MAX:]


def dead_headers(
    headers: dict[str, Any], queue: str, tries: int, error: Error, now_ms: int, job_id: str = ""
) -> dict[str, Any]:
    """The headers of a job that goes to the dead letters."""
    when = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    failure = Failure.of(error)
    added: dict[str, Any] = {FROM_QUEUE: queue, TIME: when, TRIES: tries}
    if job_id:
        added[JOB] = job_id
    if failure.text:
        added[ERROR] = _storable(failure.text)[:ERROR_CHARACTERS_MAX]
    if failure.trace:
        added[TRACEBACK] = _storable(failure.trace)
    kept = {name: value for name, value in headers.items() if name not in HEADERS}
    for name in (TRACEBACK, ERROR):  # a job whose own headers leave no room for them must be given up, too
        if name in added and len(to_json({**kept, **added}).encode(errors="replace")) > HEADERS_BYTES_MAX:
            del added[name]
    return {**kept, **added}


def _storable(text: str) -> str:
    """A text as every store can keep it: PostgreSQL takes neither zero bytes nor half characters."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def to_dead_letters(
    job: StoredJob, body: bytes, queue: str, error: Error, now_ms: int, *, keeps_id: bool = True
) -> JobMove:
    """The step that takes a job to the dead letters. It keeps its payload and headers, and its id where it can."""
    headers = dead_headers(job.headers, queue, job.tries, error, now_ms, job_id="" if keeps_id else job.id)
    dead = NewJob(job.payload, body, headers, job.id, created_ms=job.created_ms)
    return JobMove(Lease(job.id, job.token), dead)


def from_dead_letters(job: StoredJob, body: bytes) -> JobMove:
    """The way back: a fresh job with the same id, without what was written on it."""
    headers = {name: value for name, value in job.headers.items() if name not in HEADERS}
    fresh = NewJob(job.payload, body, headers, job.id, created_ms=job.created_ms)
    return JobMove(Lease(job.id, job.token), fresh)
