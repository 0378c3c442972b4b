"""Moves jobs to another queue in one step (MOVEJOBS), at the node that has them.

    the job                         goes by                  sent to
    leased by the caller            the number of its lease  the node that gave it
    found by its id, with somebody  its id alone (ANY)       the node that showed it
    waiting                         its id, token 0          every node that knows it, until one has moved it

Jobs of one node and with the same options go in one command. A node that doesn't know the command says so, and its
jobs, and all that follow, are left to the caller.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.client.aio import ClusterClient
from penstock.client.requests import ADD_BYTES_MAX, ADD_JOBS_MAX
from penstock.client.values import text
from penstock.errors import ConnectionLost, OutcomeUnknown, ReplyError
from penstock.job import JobMove
from penstock.queues.stores.disque.aio.link import DisqueLink
from penstock.queues.stores.disque.aio.nodes import Nodes
from penstock.queues.stores.disque.jobs import lease_groups
from penstock.queues.stores.disque.terms import Defaults, Terms

MOVE_MS = 5000  # for the new jobs to be on enough nodes
WAITING = "0"
ANYBODY = "ANY"
NOT_MOVED = frozenset({"STALE", "NOJOB"})
UNKNOWN_COMMAND = "ERR unknown command"


@dataclass(slots=True, frozen=True)
class _JobToMove:
    """A job to move: its place in the call, how the node knows that it may, and what it becomes."""

    place: int
    job_id: str
    token: str
    body: bytes


class Lacking(Exception):
    """A node doesn't know the command. `done` has the outcomes so far, None for moves that were not tried."""

    def __init__(self, done: list[bool | None]) -> None:
        super().__init__("MOVEJOBS")
        self.done = done


class Moves:
    """`move` of the driver, where all nodes know the command."""

    def __init__(self, link: DisqueLink, nodes: Nodes, defaults: Defaults) -> None:
        self._link, self._nodes, self._defaults = link, nodes, defaults

    async def move(self, queue: str, to: str, moves: Sequence[JobMove]) -> list[bool]:
        """Move jobs; return for each whether it was moved. Raises Lacking."""
        done: list[bool | None] = [None] * len(moves)
        with self._link.client() as client:
            has_times = any(move.job.mature_ms is not None for move in moves)
            now_ms = await self._nodes.time_ms(client) if has_times else None
            try:
                for group in lease_groups([move.lease for move in moves]):
                    tokens = group.numbers if group.has_numbers else [ANYBODY] * len(group.ids)
                    steps = [
                        _JobToMove(place, job_id, number, moves[place].job.prepared)
                        for place, job_id, number in zip(group.places, group.ids, tokens, strict=True)
                    ]
                    await self._move_at(client, group.node, to, moves, steps, now_ms, done)
                free = [place for place, move in enumerate(moves) if move.lease.token is None]
                if free:
                    await self._move_waiting(client, queue, to, moves, free, now_ms, done)
            except ConnectionLost as problem:
                if any(done):
                    raise OutcomeUnknown(f"some of the jobs were moved, then: {problem}") from problem
                raise
        return [is_done is True for is_done in done]

    async def _move_waiting(
        self,
        client: ClusterClient,
        queue: str,
        to: str,
        moves: Sequence[JobMove],
        free: Sequence[int],
        now_ms: int | None,
        done: list[bool | None],
    ) -> None:
        """Move jobs that nobody has: where they wait is found out."""
        places = {moves[place].lease.id: place for place in reversed(free)}  # the same one twice is there once
        for node, view in (await self._nodes.find(client)).views.items():
            known = await self._nodes.details(view, queue, [job_id for job_id in places if not done[places[job_id]]])
            steps = [_JobToMove(places[one.id], one.id, WAITING, moves[places[one.id]].job.prepared) for one in known]
            await self._move_at(client, node, to, moves, steps, now_ms, done)

    async def _move_at(
        self,
        client: ClusterClient,
        node: str,
        to: str,
        moves: Sequence[JobMove],
        steps: Iterable[_JobToMove],
        now_ms: int | None,
        done: list[bool | None],
    ) -> None:
        """Move jobs of one node, and note the outcomes."""
        by_terms: dict[Terms, list[_JobToMove]] = {}
        for step in steps:
            by_terms.setdefault(self._defaults.terms(moves[step.place].job, now_ms), []).append(step)
        for terms, alike in by_terms.items():
            for some in _batches(alike):
                answers = await self._call(client, node, to, terms, some, done)
                for step, answer in zip(some, answers, strict=True):
                    done[step.place] = answer not in NOT_MOVED

    async def _call(
        self,
        client: ClusterClient,
        node: str,
        to: str,
        terms: Terms,
        steps: Sequence[_JobToMove],
        done: list[bool | None],
    ) -> list[str]:
        words = [word for step in steps for word in (step.job_id, step.token, step.body)]
        nodes = await self._nodes.size(client)
        while True:
            command = ("MOVEJOBS", to, MOVE_MS, *terms.words(nodes), "BODIES", *words)
            (reply,) = await client.at(node).without_retry().call_many([command])
            if not isinstance(reply, ReplyError):
                return [text(answer) for answer in reply]
            if str(reply).startswith(UNKNOWN_COMMAND):
                raise Lacking(done)
            copies = terms.copies(nodes)
            nodes, error = await self._nodes.too_few(client, reply, copies)
            if terms.copies(nodes) >= copies or isinstance(error, OutcomeUnknown):
                raise error from reply
            # nodes were removed from the cluster: fewer copies are enough


def _batches(steps: Sequence[_JobToMove]) -> Iterator[list[_JobToMove]]:
    """Yield jobs in groups that go into one command."""
    batch: list[_JobToMove] = []
    size = 0
    for step in steps:
        if batch and (len(batch) == ADD_JOBS_MAX or size + len(step.body) > ADD_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(step)
        size += len(step.body)
    if batch:
        yield batch
