"""The options of `format("penstock")`, checked when the query is made, not when it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.errors import CallerError
from penstock.job import LIVE, JobState
from penstock.queues.options import LEASE_S_MAX, parse

JOBS_PER_TRIGGER = 20_000  # enough that the cost of a batch itself (two logs, planning) hardly counts
LEASE_S = 60.0  # extended while a batch runs; after a crash its jobs are redelivered after this time
PARTITION_JOBS = 5_000
UNIQUE_FOR_S = 24 * 3600.0  # a batch or a file that is written again within a day adds no job twice
UNIQUE_FOR_S_MAX = 365 * UNIQUE_FOR_S  # a year of keys is more than most stores have memory for
MEGABYTE = 1024 * 1024
BATCH_MB = 64  # Java has several copies of it in memory, and 2 GB by default
TRIGGER_DELAY = "15m"  # as in Kafka's source

# What options are for -> how it is written in a program.
USES = {"read": "spark.read", "stream": "spark.readStream", "write": "a writer"}


class QueryOption(NamedTuple):
    """The meaning of an option, and what it is for."""

    meaning: str
    uses: str = "read stream write"


# By name, as written in programs.
OPTIONS = {
    "url": QueryOption("the store"),
    "queue": QueryOption("the queue"),
    "queues": QueryOption("several queues, separated by commas, or * for all that have jobs", "read"),
    "maxJobsPerTrigger": QueryOption("maximum number of jobs in a batch", "stream"),
    "minJobsPerTrigger": QueryOption("minimum number of jobs in a batch, unless maxTriggerDelay is over", "stream"),
    "maxTriggerDelay": QueryOption("a time such as 60s or 15m, after which a batch may have fewer jobs", "stream"),
    "lease": QueryOption("seconds after which the jobs of a batch are redelivered if the driver dies", "stream"),
    "owner": QueryOption("a fixed name for this query's claims, for recovery without its checkpoint", "stream"),
    "runFile": QueryOption(
        "a file that keeps the run id of the claims, for recovery before a batch is logged", "stream"
    ),
    "columns": QueryOption("only these columns, separated by commas: leaves out large bodies", "read stream"),
    "wait": QueryOption("seconds that one call of a stream waits for a job", "stream"),
    "states": QueryOption("the states of the jobs to read: ready,scheduled,reserved, or also dead", "read"),
    "pushdown": QueryOption("true lets the store evaluate those of a query's filters that it can", "read"),
    "delayColumn": QueryOption("the column with the delay of each job, in seconds", "write"),
    "ttlColumn": QueryOption("the column with the seconds after which each job expires", "write"),
    "retryColumn": QueryOption("the column with the retry time of each job, in seconds", "write"),
    "headersColumn": QueryOption("the column with the headers of each job, a map", "write"),
    "uniqueColumn": QueryOption("the column with the unique key of each job, which is added once", "write"),
    "uniqueFor": QueryOption("seconds that a unique key is kept after the end of its job", "write"),
    "writeName": QueryOption("a name that distinguishes this write from others in the same batch of a stream", "write"),
    "rowKeyColumn": QueryOption(
        "a column that replaces the row in its unique key, and is not part of the job", "write"
    ),
    "countFile": QueryOption("a file on the driver's machine for the number of jobs that were added", "write"),
    "partitionJobs": QueryOption("maximum number of jobs in a partition", "stream"),
    "fetch": QueryOption(
        "where the jobs of a batch are read: executors, or driver if only that reaches the store", "stream"
    ),
    "batchMegabytes": QueryOption("maximum size of the jobs of a batch", "stream"),
    "storeMoved": QueryOption("true accepts a checkpoint that was written for another address of the store", "stream"),
}
_BY_SMALL_NAME = {name.lower(): name for name in OPTIONS}
SPARKS_OWN = {"checkpointlocation"}  # options of Spark itself that are passed on to us
DRIVER, EXECUTORS = "driver", "executors"  # where the jobs of a stream are read
# Stores whose address is a path. Executors on other machines have no such file, so the driver reads there by default.
FILES = ("sqlite", "fsq", "memory")
DEAD = "dead"  # the state of dead letters in a batch read
ALL = "*"
# Options of a push that a column can have, each named by the option `NAMEColumn`.
PUSH_OPTIONS = ("delay", "ttl", "retry", "headers", "unique")
_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_OWNER = re.compile(r"[\w.\-]{1,100}")


@dataclass(slots=True)
class QuerySettings:
    """The options of a query. They are sent to the workers, so nothing here is a connection."""

    url: str
    queue: str
    jobs_max: int = JOBS_PER_TRIGGER
    jobs_min: int = 0  # a batch waits for this many jobs,
    delay_s_max: float = 900.0  # but not longer than this
    lease_s: float = LEASE_S
    owner: str | None = None
    run_file: str | None = None
    columns: str | None = None
    wait_s: float = 0.5
    states: tuple[JobState, ...] = (JobState.READY, JobState.SCHEDULED, JobState.RESERVED)
    has_pushdown: bool = False
    has_dead: bool = False  # a batch read shows the dead letters of its queues, too
    queues: tuple[str, ...] = ()  # of a batch read; "*" is all
    push_columns: dict[str, str] = field(default_factory=dict)  # option of a push -> the column that has it
    unique_for_s: float = UNIQUE_FOR_S
    write_name: str = ""
    row_key_column: str | None = None
    count_file: str | None = None
    partition_jobs: int = PARTITION_JOBS
    fetch: str = DRIVER
    batch_bytes: int = BATCH_MB * MEGABYTE
    has_moved: bool = False
    # Tasks settle their jobs one by one, and a batch has a claim for each of this number of tasks; None: Spark's log
    # says that all jobs of a batch are done.
    settling_tasks: int | None = None
    shown: str = field(default="")  # the URL without its password


def _number(options: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    text = options.get(name.lower(), options.get(name))
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not low <= value <= high:
        raise CallerError(f"the option {name} must be a number from {low:g} to {high:g}, got {text!r}")
    return value


def seconds_of(name: str, text: str) -> float:
    """Return a time with a unit, such as 15m, in seconds."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise CallerError(f"{name} must be a time such as 60s, 15m or 1h, got {text!r}")
    return float(match[1]) * _UNITS_S[match[2]]


def _switch(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise CallerError(f"the option {name} must be true or false, got {text!r}")
    return text == "true"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def check_use(options: Mapping[str, Any], use: str) -> None:
    """Refuse options that don't apply to a batch read, a stream or a write, and a store that Spark can't share."""
    given = {str(name).lower(): str(value) for name, value in options.items()}
    for name, (_, uses) in OPTIONS.items():
        if name.lower() in given and use not in uses.split():
            places = " and ".join(USES[one] for one in uses.split())
            raise CallerError(f"the option {name} is for {places}, not for {USES[use]}: leave it out")
    if given.get("url") and parse(given["url"], {})[0].scheme == "memory":
        raise CallerError(
            f"url must be a store that processes can share, such as sqlite:///jobs.db, got {given['url']}, which is in "
            "the memory of one"
        )


def read_settings(options: Mapping[str, Any], *, needs_queue: bool = True, has_many: bool = False) -> QuerySettings:
    """Return the settings of options as Spark passes them. Unknown options are refused.

    With `has_many`, the option `queues` can replace `queue`.
    """
    given = {str(name).lower(): str(value) for name, value in options.items()}
    unknown = [name for name in given if name not in _BY_SMALL_NAME and name not in SPARKS_OWN]
    if unknown:
        known = ", ".join(OPTIONS)
        raise CallerError(f"an option of the format penstock must be one of {known}, got {', '.join(sorted(unknown))}")
    needs_queue = needs_queue and not (has_many and given.get("queues"))
    for name in ("url", *(["queue"] if needs_queue else [])):
        if not given.get(name):
            raise CallerError(f"the format penstock needs the option {name}: {OPTIONS[name].meaning}")
    if given.get("queue") and given.get("queues"):
        raise CallerError("the options queue and queues can't be given together: leave one of them out")
    owner = given.get("owner")
    if owner is not None and not _OWNER.fullmatch(owner):
        raise CallerError(f"owner must be 1 to 100 letters, digits, dots, hyphens and underscores, got {owner!r}")
    address, _, _ = parse(given["url"], {})
    words = _words(given.get("states", "ready,scheduled,reserved"))
    if not words:
        raise CallerError(f"states must name some of ready, scheduled, reserved and {DEAD}, got none")
    for word in words:
        if word not in {*LIVE, DEAD}:
            raise CallerError(f"states must name some of ready, scheduled, reserved and {DEAD}, got {word!r}")
    fetch = given.get("fetch", DRIVER if address.scheme in FILES else EXECUTORS)
    if fetch not in (DRIVER, EXECUTORS):
        raise CallerError(f"the option fetch must be {DRIVER} or {EXECUTORS}, got {fetch!r}")
    states = tuple(JobState(word) for word in words if word != DEAD)
    jobs_max = int(_number(given, "maxJobsPerTrigger", JOBS_PER_TRIGGER, 1, 1_000_000))
    jobs_min = int(_number(given, "minJobsPerTrigger", 0, 0, 1_000_000))
    if jobs_min > jobs_max:
        raise CallerError(f"minJobsPerTrigger must be at most maxJobsPerTrigger ({jobs_max}), got {jobs_min}")
    return QuerySettings(
        url=given["url"],
        queue=given.get("queue", ""),
        jobs_max=jobs_max,
        jobs_min=jobs_min,
        delay_s_max=seconds_of("maxTriggerDelay", given.get("maxtriggerdelay", TRIGGER_DELAY)),
        lease_s=_number(given, "lease", LEASE_S, 1, LEASE_S_MAX),
        owner=owner,
        run_file=given.get("runfile"),
        columns=given.get("columns"),
        wait_s=_number(given, "wait", 0.5, 0, 60),
        states=states,
        has_pushdown=_switch(given, "pushdown"),
        has_dead=DEAD in words,
        queues=_words(given.get("queues", "")),
        push_columns={name: given[f"{name}column"] for name in PUSH_OPTIONS if f"{name}column" in given},
        unique_for_s=_number(given, "uniqueFor", UNIQUE_FOR_S, 0, UNIQUE_FOR_S_MAX),
        write_name=given.get("writename", ""),
        row_key_column=given.get("rowkeycolumn"),
        count_file=given.get("countfile"),
        partition_jobs=int(_number(given, "partitionJobs", PARTITION_JOBS, 1, 1_000_000)),
        fetch=fetch,
        batch_bytes=int(_number(given, "batchMegabytes", BATCH_MB, 0.001, 100_000) * MEGABYTE),
        has_moved=_switch(given, "storeMoved"),
        shown=address.url,
    )
