"""A link: from which queue to which, by which function, and how it is run.

| kind     | targets | what it does                   |
|----------|---------|--------------------------------|
| `direct` | one     | every job goes to that queue   |
| `choice` | several | a function chooses for each    |
| `sink`   | none    | jobs leave the pipeline        |

Nothing here knows how a link is run: `decide` turns what the function returned into one of three results, and an engine
does what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.errors import CallerError
from penstock.pipelines.results import DROP, Drop, Later, Move
from penstock.queues.backoff import Backoff

CONCURRENCY = 10
TAKES = ("job", "payload", "pandas", "arrow")
BATCH_JOBS = 1000
WORKER, SPARK = "worker", "spark"
ENGINES = (WORKER, SPARK)


class LinkKind(StrEnum):
    """Where the jobs of a link can go."""

    DIRECT = "direct"
    CHOICE = "choice"
    SINK = "sink"


class StepKind(StrEnum):
    """How a job goes from one queue to the next, which is what a crash in the middle can do."""

    ATOMIC = "one atomic move"
    KEYED = "two steps under a unique key"  # a crash leaves one job, too
    TWO = "at least once"  # two steps: a crash may leave two jobs
    END = "ends jobs"  # it goes nowhere


@dataclass(frozen=True, slots=True)
class Link:
    """One link of a pipeline.

    - `source`: the queue whose jobs it takes. `targets`: the queues that they go to.
    - `function`: a function, async or plain, or its name as `module:function`.
    - `takes`: what it is called with, `job` or `payload`; or many jobs at once, as `pandas` or `arrow` (see `frames`).
    - `batch`: the jobs of one call, with `pandas` and `arrow`.
    - `concurrency`: number of calls at the same time, in each process. `processes`: processes of its own; 0: it runs
      beside the other links.
    - `max_tries`, `backoff`, `time_limit`, `lease`: as those of a worker.
    - `max_waiting`: while one of the targets has this number of ready jobs, no more are taken.
    - `paused`: it takes no jobs.
    - `engine`: what runs it, `worker` or `spark`.
    """

    name: str
    source: str
    targets: tuple[str, ...]
    function: Callable[[Any], Any] | str
    takes: str = "job"
    batch: int = BATCH_JOBS
    concurrency: int = CONCURRENCY
    processes: int = 0
    max_tries: int | None = None
    backoff: Backoff | None = None
    time_limit: float | None = None
    lease: float | None = None
    max_waiting: int | None = None
    paused: bool = False
    engine: str = WORKER

    @property
    def kind(self) -> LinkKind:
        """What kind of link it is, by the number of its targets."""
        if not self.targets:
            return LinkKind.SINK
        return LinkKind.DIRECT if len(self.targets) == 1 else LinkKind.CHOICE

    def decide(self, returned: object) -> Move | Later | Drop:
        """Return what becomes of a job whose function returned this: see the table in `results`.

        A Move has the name of its target. CallerError is raised for what the link can't do.
        """
        if isinstance(returned, Later | Drop):
            return returned
        if not self.targets:
            if isinstance(returned, Move):
                raise CallerError(f"the link {self.name!r} is a sink: it must return no Move, got {returned!r}")
            return DROP
        if isinstance(returned, Move):
            return Move(self._target(returned.to), returned.payload, returned.headers, returned.delay, returned.at)
        if len(self.targets) > 1:
            raise CallerError(
                f"the link {self.name!r} must return Move(to=...) with one of {self._names}, DROP or Later, "
                f"got {type(returned).__name__}"
            )
        return Move(self.targets[0]) if returned is None else Move(self.targets[0], returned)

    def _target(self, to: str | int | None) -> str:
        if to is None and len(self.targets) == 1:
            return self.targets[0]
        if isinstance(to, int) and not isinstance(to, bool) and 0 <= to < len(self.targets):
            return self.targets[to]
        if isinstance(to, str) and to in self.targets:
            return to
        raise CallerError(f"the link {self.name!r} must move jobs to one of {self._names}, got to={to!r}")

    @property
    def _names(self) -> str:
        return ", ".join(self.targets)
