"""What is kept of a call: its result or its error, and how far it has come.

It is a text under the key `task:ID` of the store (`Store.put_value`), or of that of `App(results=URL)`: a JSON object.

| key        | what                                                                             |
|------------|----------------------------------------------------------------------------------|
| `state`    | `done`; `failed`, when it is a dead letter; `cancelled`                          |
| `at`       | unix time of that                                                                |
| `result`   | what the function returned, as arguments are written                             |
| `error`    | what went wrong; `traceback`: the last lines of it                               |

In a workflow every call, chain and group keeps one, under `task:ID.PATH`; see `continuation`.

Progress is another text, under `progress:ID`, so that a run which has not heard yet that its call is over (it was
cancelled, or another worker has ended it) can't overwrite the end.

| key        | what                                                                             |
|------------|----------------------------------------------------------------------------------|
| `at`       | unix time of this note; `since`: of the begin of this run                        |
| `progress` | a share from 0 to 1; `text`: what goes on                                        |

When the run of a call began is a text under `since:ID`, of any task: a worker writes it when the call has run for a
second, and again while it runs. So short calls cost nothing, and it ends soon after the run.

| key        | what                                                                             |
|------------|----------------------------------------------------------------------------------|
| `since`    | unix time of the begin of this run                                               |

A task keeps results if its function is annotated with a return type other than None, or if it has `result_ttl`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from penstock.codec import from_json, to_json
from penstock.errors import BadPayload, TaskCancelled, TaskFailed
from penstock.job import JobState
from penstock.tasks.arguments import to_plain

FLOW_PREFIX = "flow-"  # of the ids of workflows, and of the calls in them
RESULT_TTL_S = 24 * 3600.0
RESULT_BYTES_MAX = 4 * 1024 * 1024  # more belongs into a file, and its name into the result
FIRST_PAUSE_S = 0.005  # between two looks for a result
PAUSE_S_MAX = 0.5


class State(StrEnum):
    """Where a call stands."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"  # it waits for its time
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"  # the job is gone, and nothing was kept of it


OF_JOBS = {
    JobState.READY: State.WAITING,
    JobState.AWAY: State.WAITING,
    JobState.SCHEDULED: State.SCHEDULED,
    JobState.RESERVED: State.RUNNING,
}


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a call, and what is known of it."""

    state: State
    at: float | None = None  # when it came to its end, or when its progress was noted; unix time
    since: float | None = None  # when the run began, once it has run for two seconds; unix time
    progress: float | None = None
    text: str = ""
    error: str = ""
    done: int | None = None  # of a workflow: how many of its calls are done,
    total: int | None = None  # and how many it has


def key_of(call_id: str) -> str:
    """Return the key under which a call is kept."""
    return f"task:{call_id}"


def progress_key(call_id: str) -> str:
    """Return the key under which the progress of a call is kept."""
    return f"progress:{call_id}"


def since_key(call_id: str) -> str:
    """Return the key under which it is kept since when a call runs."""
    return f"since:{call_id}"


def stop_key(flow_id: str) -> str:
    """Return the key under which it is kept that a workflow was cancelled."""
    return f"stop:{flow_id}"


def shape_key(flow_id: str) -> str:
    """Return the key under which the shape of a workflow is kept: the paths of its calls."""
    return f"shape:{flow_id}"


def plain_result(result: Any) -> Any:
    """Return a result as JSON has it. BadPayload if it can't be."""
    try:
        return to_plain(result)
    except Exception as problem:  # the value is the application's
        raise BadPayload(f"its result can't be kept: {problem}") from problem


def done_text(plain: Any, now: float) -> str:
    """Return what is kept of a result. BadPayload if it can't be JSON."""
    try:
        text = to_json({"state": "done", "at": now, "result": plain})
    except Exception as problem:  # the value is the application's
        raise BadPayload(f"its result can't be kept: {problem}") from problem
    if len(text.encode()) > RESULT_BYTES_MAX:
        raise BadPayload(f"its result can't be kept: it must be at most {RESULT_BYTES_MAX} bytes as JSON")
    return text


def failed_text(error: str, trace: str, now: float) -> str:
    """Return what is kept of a failure."""
    return to_json({"state": "failed", "at": now, "error": error, "traceback": trace})


def cancelled_text(now: float) -> str:
    """Return what is kept of a call that somebody cancelled."""
    return to_json({"state": "cancelled", "at": now, "error": "it was cancelled"})


def progress_text(share: float, text: str, since: float, now: float) -> str:
    """Return what is kept of a call that runs."""
    if not 0 <= share <= 1:
        raise BadPayload(f"progress must be a share from 0 to 1, got {share!r}")
    return to_json({"at": now, "since": since, "progress": share, "text": str(text)})


def since_text(since: float) -> str:
    """Return what is kept of the begin of a run."""
    return to_json({"since": since})


def is_done(record: str | None) -> bool:
    """Whether what is kept is a result."""
    return record is not None and from_json(record).get("state") == State.DONE


def plain_of(record: str) -> Any:
    """Return the result that is kept, as JSON has it. TaskFailed if there is none."""
    kept = from_json(record)
    if kept["state"] == State.FAILED:
        raise TaskFailed(kept["error"], kept.get("traceback", ""))
    if kept["state"] == State.CANCELLED:
        raise TaskCancelled(kept["error"])
    return kept["result"]


def status_of(
    record: str | None, progress: str | None = None, job: JobState | None = None, since: str | None = None
) -> Status:
    """Return the status by its end, if it has one, else by what its run has noted and the state of its job."""
    if record is not None:
        end = from_json(record)
        return Status(State(end["state"]), end.get("at"), error=end.get("error", ""))
    state = State.UNKNOWN if job is None else OF_JOBS[job]
    began = from_json(since)["since"] if since is not None and state is State.RUNNING else None
    if progress is None:
        return Status(state, since=began)
    noted = from_json(progress)
    # An earlier run may have noted the progress, or the begin.
    began = noted["since"] if began is None else max(began, noted["since"])
    return Status(state, noted["at"], began, noted["progress"], noted["text"])


def flow_status(
    record: str | None, progress: str | None, job: JobState | None, since: str | None, done: int, total: int
) -> Status:
    """Return the status of a workflow or a part of it; `job` is the state of its first job, if no call is done yet."""
    if since is not None and job is None:  # a call within it, whose job has an id that nobody knows
        job = JobState.RESERVED
    found = status_of(record, progress, job, since)
    # Between its first job and the first call that is done, nothing else tells that it runs.
    is_running = found.state is State.UNKNOWN and (total or found.progress is not None)
    state = State.RUNNING if is_running else found.state
    return replace(found, state=state, done=done, total=total)


def pauses(timeout: float | None, now: Callable[[], float]) -> Iterator[float]:
    """Yield how long to wait before each look; ends when the time is over."""
    end = None if timeout is None else now() + timeout
    pause = FIRST_PAUSE_S
    while True:
        left = pause if end is None else min(pause, end - now())
        if left <= 0:
            return
        yield left
        pause = min(PAUSE_S_MAX, 1.5 * pause)
