# Written by scripts/blocking from ../aio/looking.py: change that, then run `make blocking`.
"""What a node knows: its queues, its jobs, and itself."""

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.client import requests
from penstock.client.blocking.asking import Asking
from penstock.client.connection import Word, refined
from penstock.client.requests import JobOrId, Request
from penstock.client.values import (
    Hello,
    Job,
    JobDetails,
    QueueDetails,
    QueueName,
    hello_of,
    info_of,
    job_details,
    jobs_of,
    queue_details,
    queue_name,
    text,
)
from penstock.errors import ReplyError


class Looking(Asking):
    """Commands that look at one node's part of the cluster, and PAUSE."""

    def _home(self, job: JobOrId) -> str | None:
        """The node that gave a job, if there is still a connection to it; any other will do as well."""
        return self._router.at(job.node) if isinstance(job, Job) else None

    def show(self, job: JobOrId) -> JobDetails | None:
        """All that the node knows of a job; None if it doesn't know it."""
        reply = self._ask(Request(("SHOW", requests.id_of(job))), self._home(job), only_there=False)
        return None if reply is None else job_details(reply)

    def peek(self, queue: QueueName, count: int = 1) -> list[Job]:
        """Look at waiting jobs without taking them: oldest first, newest first for a negative count."""
        route, (reply,) = self._run(Request(("QPEEK", queue, count)))
        if isinstance(reply, ReplyError):
            raise refined(reply)
        return jobs_of(reply, route.id)

    def qlen(self, queue: QueueName) -> int:
        """How many jobs wait in the node's part of a queue."""
        reply: int = self._ask(Request(("QLEN", queue)))
        return reply

    def qstat(self, queue: QueueName) -> QueueDetails | None:
        """All that the node knows of a queue; None if it doesn't know it."""
        reply = self._ask(Request(("QSTAT", queue)))
        return None if reply is None else queue_details(reply)

    def pause(self, queue: QueueName, state: str = "state", *, broadcast: bool = False) -> str:
        """Stop a queue from taking in or giving out jobs: in, out, all or none. The state after it."""
        options = ("BCAST",) if broadcast else ()
        return text(self._ask(Request(("PAUSE", queue, state, *options))))

    def queues(self, *, minlen: int | None = None, maxlen: int | None = None) -> Iterator[QueueName]:
        """Walk over the names of the node's queues; a name may come twice."""
        options: list[Word] = []
        for option, value in (("MINLEN", minlen), ("MAXLEN", maxlen)):
            options += [option, value] if value is not None else []
        for page in self._scan("QSCAN", options):
            for name in page:
                yield queue_name(name)

    def jobs(self, *, queue: QueueName | None = None, states: Iterable[str] = ()) -> Iterator[JobDetails]:
        """Walk over the node's jobs, of one queue or in some states, with all that it knows of each."""
        for page in self._scan("JSCAN", [*_job_options(queue, states), "REPLY", "all"]):
            for row in page:
                yield job_details(row)

    def job_ids(self, *, queue: QueueName | None = None, states: Iterable[str] = ()) -> Iterator[str]:
        """The same with nothing but the ids."""
        for page in self._scan("JSCAN", _job_options(queue, states)):
            for job_id in page:
                yield text(job_id)

    def _scan(self, name: str, options: list[Word]) -> Iterator[list[Any]]:
        """Pages of a scan, all from the same node: no other one knows the cursor."""
        cursor: Word = 0
        node: str | None = None
        while True:
            route, (reply,) = self._run(Request((name, cursor, *options)), node)
            if isinstance(reply, ReplyError):
                raise refined(reply)
            node = route.id
            cursor, page = reply
            yield page
            if cursor == b"0":
                return

    def info(self, section: str | None = None) -> dict[str, str]:
        """Facts and counters of the node."""
        return info_of(self._ask(Request(("INFO", *([section] if section else [])))))

    def hello(self) -> Hello:
        """The nodes of the cluster, as the node sees them now."""
        route, (reply,) = self._run(Request(("HELLO",)))
        if isinstance(reply, ReplyError):
            raise refined(reply)
        hello = hello_of(reply)
        self._router.members.learn(hello, route.address)
        return hello


def _job_options(queue: QueueName | None, states: Iterable[str]) -> list[Word]:
    options: list[Word] = [] if queue is None else ["QUEUE", queue]
    for state in states:
        options += ["STATE", state]
    return options
