# Written by scripts/blocking from ../aio/nodes.py: change that, then run `make blocking`.
"""The nodes of a cluster: which there are, what they can do, and what the store asks of each by itself.

Each node knows the jobs that wait there, and has copies of some that wait elsewhere. If the node of a job can't be
reached, one of the others that have a copy shows it, as away (QSIZE, JSCAN AWAY). What only a node holds that can't be
reached is not seen.

JSCAN goes through all jobs of a node, whatever their queue, a page at a time: ten times as many jobs as its COUNT says,
at most. The node answers nobody else meanwhile.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.client.blocking import ClusterClient
from penstock.client.values import Job, JobDetails, job_details, text
from penstock.errors import ConnectionLost, PenstockError, ReplyError
from penstock.job import JobState
from penstock.queues.stores.disque.errors import too_few_nodes
from penstock.queues.stores.disque.jobs import is_before_its_time
from penstock.queues.stores.disque.rows import WORDS

ALL = -1  # work on all jobs of a reserve begins at once
PAGE_COUNT = 1000  # jobs on a page; a node that goes through ten times as many is busy for 5 to 10 ms
SYNTAX = "ERR syntax error"  # the reply of a node that doesn't know an option
# Commands that original nodes of Disque don't have, and the store uses.
OUR_COMMANDS = ("acklease", "addjobs", "lease", "release")
# States in the order in which they are listed, in the words of our nodes.
STATE_WORDS: dict[JobState, str] = {state: word.decode() for state, word in WORDS.items() if state is not JobState.AWAY}
# Nodes of Disque know no more than `active`, and of such a job only whether its first delay is over.
ORIGINAL_STATE_WORDS = {JobState.READY: "queued", JobState.SCHEDULED: "active"}


class FoundNodes(NamedTuple):
    """The nodes of a cluster, by id."""

    views: dict[str, ClusterClient]  # for each that answers, a client that asks only there
    missing: list[str]  # those that don't


class Nodes:
    """The nodes, through a client that the caller has borrowed."""

    def __init__(self, url: str, shift_ms: Callable[[], int]) -> None:
        self._url, self._shift_ms = url, shift_ms
        self.are_ours = True  # every node is one of ours, and knows leases
        self.know_begin = True  # every node knows GETJOB WITHCTIME and BEGIN
        self.know_moves = True  # every node knows MOVEJOBS
        self.know_away = True  # every node knows QSIZE

    @property
    def state_words(self) -> dict[JobState, str]:
        """The states that all nodes know, with their words for them."""
        return STATE_WORDS if self.are_ours else ORIGINAL_STATE_WORDS

    def check(self, client: ClusterClient) -> None:
        """Find out what the nodes can do."""
        for view in (self.find(client)).views.values():
            words = ("COMMAND", "INFO", *OUR_COMMANDS, "BEGIN", "MOVEJOBS", "QSIZE")
            *ours, begin, moves, sizes = view.call(*words)
            self.know_begin = self.know_begin and begin is not None
            self.know_moves = self.know_moves and moves is not None
            self.know_away = self.know_away and sizes is not None
            self.are_ours = self.are_ours and None not in ours

    def find(self, client: ClusterClient) -> FoundNodes:
        """Return all nodes of the cluster."""
        hello = client.hello()
        views: dict[str, ClusterClient] = {}
        missing: list[str] = []
        for node_id in sorted(node.id for node in hello.nodes):
            view = client.at(node_id).without_retry()
            try:
                view.call("PING")
            except ConnectionLost:
                missing.append(node_id)
            else:
                views[node_id] = view
        return FoundNodes(views, missing)

    def views(self, client: ClusterClient) -> list[ClusterClient]:
        """Return a client for each node that answers."""
        return list((self.find(client)).views.values())

    @staticmethod
    def size(client: ClusterClient) -> int:
        """Return how many nodes the cluster has, dead ones included, by the last HELLO."""
        return len(client.nodes or (client.hello()).nodes)

    def too_few(self, client: ClusterClient, problem: ReplyError, copies: int) -> tuple[int, PenstockError]:
        """Return how many nodes there are, now that an add was refused, and the error for the caller."""
        if problem.code != "NOREPL":
            return copies, problem
        nodes = self.find(client)
        reachable, known = len(nodes.views), len(nodes.views) + len(nodes.missing)
        if reachable >= copies:  # the node has another reason
            return known, problem
        return known, too_few_nodes(problem, self._url, copies, reachable, known)

    def time_ms(self, client: ClusterClient) -> int:
        """Return the time of a node."""
        seconds, microseconds = client.call("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000 + self._shift_ms()

    def fetch(
        self, client: ClusterClient, queue: str, count: int, lease_ms: int, wait_ms: int, begin: int = ALL
    ) -> list[Job]:
        """GETJOB, with all that a node reports of a job; without waiting if `wait_ms` is 0.

        Work on the first `begin` jobs begins at once.
        """
        lease_s = lease_ms / 1000 if self.are_ours else None
        if self.know_begin:
            try:
                return client.get(
                    queue, timeout=wait_ms / 1000, count=count, counters=True, lease=lease_s, created=True, begin=begin
                )
            except ReplyError as problem:
                if not str(problem).startswith(SYNTAX):
                    raise
                self.know_begin = False  # an older node of ours, or an original one
        return client.get(queue, timeout=wait_ms / 1000, count=count, counters=True, lease=lease_s)

    # What one node knows, and does

    @staticmethod
    def details(view: ClusterClient, queue: str, ids: Sequence[str]) -> list[JobDetails]:
        """Return what a node knows of jobs of this queue. An id that it doesn't know is left out."""
        replies = view.call_many([("SHOW", job_id) for job_id in dict.fromkeys(ids)])
        details = [job_details(reply) for reply in replies if isinstance(reply, list)]
        return [one for one in details if one.queue == queue]

    def ids(self, view: ClusterClient, queue: str, state: JobState, now_ms: int) -> list[str]:
        """Return the ids of a node's jobs in a state."""
        is_active = state is JobState.SCHEDULED and not self.are_ours
        options = ("COUNT", PAGE_COUNT, "QUEUE", queue, "STATE", self.state_words[state])
        found: list[str] = []
        cursor = b"0"
        while True:
            if is_active:
                cursor, rows = view.call("JSCAN", cursor, *options, "REPLY", "all")
                details = [job_details(row) for row in rows]
                found += [one.id for one in details if is_before_its_time(one, now_ms)]
            else:
                cursor, rows = view.call("JSCAN", cursor, *options)
                found += [text(row) for row in rows]
            if cursor == b"0":
                return found

    def scheduled(self, view: ClusterClient, queue: str, active: Sequence[JobDetails], now_ms: int) -> list[str]:
        """Return those of a node's active jobs that wait for their time."""
        waiting = [one.id for one in active if is_before_its_time(one, now_ms)]
        if len(waiting) < len(active) and self.are_ours:  # returned with a delay, or with a worker
            returned = self.ids(view, queue, JobState.SCHEDULED, now_ms)
            waiting = list({one.id for one in active}.intersection([*waiting, *returned]))
        return waiting

    def ready(self, client: ClusterClient, queue: str) -> int:
        """Return how many jobs of a queue wait, with those that are away."""
        views, missing = self.find(client)
        if not missing or not self.know_away:
            return sum([view.qlen(queue) for view in views.values()])
        ready = 0
        for view in views.values():
            waiting, away, delayed = view.call("QSIZE", queue, *missing)
            if delayed:  # only the node can tell whose delay is over, and it has to look
                away = len(self.away_ids(view, queue, missing))
            ready += waiting + away
        return ready

    @staticmethod
    def away_ids(view: ClusterClient, queue: str, missing: Sequence[str]) -> list[str]:
        """Return the ids of the jobs that a node shows in place of others."""
        options = [word for node in missing for word in ("AWAY", node)]
        found: list[str] = []
        cursor = b"0"
        while True:
            cursor, rows = view.call("JSCAN", cursor, "COUNT", PAGE_COUNT, "QUEUE", queue, *options)
            found += [text(row) for row in rows]
            if cursor == b"0":
                return found

    @staticmethod
    def dequeue(view: ClusterClient, ids: Sequence[str]) -> list[str]:
        """Take jobs out of their queue. Return those that were still there: nobody else can get them any more."""
        counts = values(view.call_many([("DEQUEUE", job_id) for job_id in ids]))
        return [job_id for job_id, count in zip(ids, counts, strict=True) if count]

    @staticmethod
    def end(view: ClusterClient, ids: Sequence[str]) -> list[str]:
        """Acknowledge jobs. Return those that were not acknowledged before."""
        counts = values(view.call_many([("ACKJOB", job_id) for job_id in ids]))
        return [job_id for job_id, count in zip(ids, counts, strict=True) if count]


def values(replies: list[Any]) -> list[Any]:
    """Return the replies of a pipeline; an error among them is raised."""
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise reply
    return replies
