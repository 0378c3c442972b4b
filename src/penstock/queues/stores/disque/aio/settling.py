"""How jobs of a node end, go back, or are kept.

Only the node that gave a lease knows its token, so everything goes there, in one command for all jobs of one node. If
that node can't be reached an ack may still be done: while the lease holds by this machine's clock, nobody else has the
job, so an ack by its id alone, at any node, is as good. A job that is given back or kept has to wait for its node, and
comes back by itself when its lease is over.
"""

import time
from collections.abc import Sequence
from typing import Any

from penstock.client.aio import ClusterClient
from penstock.errors import ConnectionLost
from penstock.job import Lease
from penstock.queues.stores.disque.aio.base import values
from penstock.queues.stores.disque.aio.looking import DisqueLooking
from penstock.queues.stores.disque.jobs import Held, held, token

# What a lease must still have before its end for an ack by id: clocks go at their own pace, and an ack takes its time.
MARGIN_MS = 1000
OK = b"OK"


class DisqueSettling(DisqueLooking):
    """`ack`, `nack`, `extend` and `release`."""

    async def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        done = [False] * len(leases)
        async with self._clients.borrow() as client:
            begins = self._begins(begun)
            for group in held(leases):
                if group.has_numbers:
                    outcomes = await self._ack_by_token(client, group, begins.pop(group.node, ()))
                else:
                    outcomes = await self._ack_by_id(client, group)
                for place, is_done in zip(group.places, outcomes, strict=True):
                    done[place] = is_done
            for node, words in begins.items():
                await client.at(node).call(*words)
        return done

    def _begins(self, begun: Sequence[Lease]) -> dict[str, tuple[str, ...]]:
        """The commands that tell nodes on which jobs work has begun."""
        if not begun or not self._is_current:
            return {}
        words: dict[str, tuple[str, ...]] = {}
        for group in held(begun):
            words[group.node] = (*words.get(group.node, ("BEGIN",)), *group.pairs())
        return words

    async def _ack_by_token(self, client: ClusterClient, group: Held, begin: tuple[str, ...]) -> list[bool]:
        words = ("ACKLEASE", *group.pairs(), *begin)
        try:
            statuses = await client.at(group.node).without_retry().call(*words)
        except ConnectionLost as problem:
            is_over = group.until_ms < time.monotonic() * 1000 + MARGIN_MS
            if not is_over and any(node.id != group.node for node in client.nodes):
                return await self._ack_elsewhere(client, group, problem)
            statuses = await client.at(group.node).call(*words)
        return [status == OK for status in statuses]

    @staticmethod
    async def _ack_elsewhere(client: ClusterClient, group: Held, problem: ConnectionLost) -> list[bool]:
        """An ack by ids alone, which any node takes and passes on. It can't tell what became of each."""
        try:
            await client.without_retry().call("ACKJOB", *group.ids)
        except ConnectionLost:
            raise problem from None
        return [True] * len(group.ids)

    @staticmethod
    async def _ack_by_id(client: ClusterClient, group: Held) -> list[bool]:
        """Of a node that gives no tokens: the first ack of a job counts, whoever sends it."""
        view = client.at(group.node)
        return [count == 1 for count in values(await view.call_many([("ACKJOB", job_id) for job_id in group.ids]))]

    async def nack(
        self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None
    ) -> list[bool]:
        done = [False] * len(leases)
        async with self._clients.borrow() as client:
            for group in held(leases):
                for row, status in await self._nacked(client.at(group.node), group, delays_ms):
                    done[group.places[row]] = status in (OK, 1)
        return done

    async def _nacked(self, view: ClusterClient, group: Held, delays_ms: Sequence[int]) -> list[tuple[int, Any]]:
        if group.has_numbers:
            return await self._told_by_time(view, "NACKLEASE", group, delays_ms)
        delays = [delays_ms[place] if self._is_ours else 0 for place in group.places]
        # Disque's nacks know no delay: the job is ready at once.
        commands = [
            ("NACK", "AFTER", delay_ms, job_id) if delay_ms else ("NACK", job_id)
            for job_id, delay_ms in zip(group.ids, delays, strict=True)
        ]
        return list(enumerate(values(await view.call_many(commands))))

    @staticmethod
    async def _told_by_time(
        view: ClusterClient, name: str, group: Held, times_ms: Sequence[int]
    ) -> list[tuple[int, Any]]:
        """A command for all leases that have the same time, all in one go: a lease's place in the group, its status."""
        rows_by_time: dict[int, list[int]] = {}
        for row, place in enumerate(group.places):
            rows_by_time.setdefault(times_ms[place], []).append(row)
        commands: list[tuple[Any, ...]] = [
            (name, time_ms, *group.pairs(rows)) for time_ms, rows in rows_by_time.items()
        ]
        replies = values(await view.call_many(commands))
        rows_in_order = [row for rows in rows_by_time.values() for row in rows]
        return list(zip(rows_in_order, [status for reply in replies for status in reply], strict=True))

    async def extend(
        self, queue: str, leases: Sequence[Lease], leases_ms: Sequence[int], begun: Sequence[bool] = ()
    ) -> list[str | None]:
        tokens: list[str | None] = [None] * len(leases)
        working = [lease for lease, has_begun in zip(leases, begun, strict=True) if has_begun] if begun else []
        async with self._clients.borrow() as client:
            for node, words in self._begins(working).items():
                await client.at(node).call(*words)
            for group in held(leases):
                view = client.at(group.node)
                if not group.has_numbers:
                    for place, is_kept in zip(group.places, await self._restart(view, group), strict=True):
                        tokens[place] = leases[place].token if is_kept else None
                    continue
                now_ms = int(time.monotonic() * 1000)
                for row, status in await self._told_by_time(view, "EXTEND", group, leases_ms):
                    if status == OK:
                        place = group.places[row]
                        tokens[place] = token(group.numbers[row], group.node, now_ms + leases_ms[place])
        return tokens

    @staticmethod
    async def _restart(view: ClusterClient, group: Held) -> list[bool]:
        """Let the retry time of jobs begin anew, on a node that gives no leases.

        False for a job that it doesn't know, or that may not be put off since half of its life is over.
        """
        replies = await view.call_many([("WORKING", job_id) for job_id in group.ids])
        return [isinstance(reply, int) for reply in replies]

    async def release(self, queue: str, leases: Sequence[Lease]) -> None:
        async with self._clients.borrow() as client:
            for group in held(leases):
                view = client.at(group.node)
                if group.has_numbers:
                    await view.call("RELEASE", *group.pairs())
                else:
                    # Disque has no way to undo a fetch: one more delivery is counted.
                    values(await view.call_many([("ENQUEUE", job_id) for job_id in group.ids]))
