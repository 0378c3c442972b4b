"""Looks at all jobs of a cluster, a part a node: see `penstock.queues.scan`.

A node goes through its own jobs once (JSCAN), and shows each in the state that it has at that moment. Of a job that is
on several nodes, one shows it:

    ready       the node in whose queue it is
    reserved    the node that gave it to a worker
    scheduled   where it was given back for later; before its first time the node that made it, and if that can't be
                reached, or has handed it on, the first by id of those which can be, and have it

Limits: a job that goes to another node while the look is under way may be shown twice, or not at all. In a partition of
the cluster two nodes may each have queued a job, and then both show it. What only a node holds that could not be
reached when the look was cut is not shown. A node that is lost later makes the look fail. An original tells of no
reserved job.

A page costs its node time, in which it answers nobody else. So the first ones are small, and they grow as long as they
are answered quickly.
"""

import time
from collections.abc import Sequence
from typing import ClassVar

from penstock.client.aio import ClusterClient
from penstock.client.values import JobDetails, job_details
from penstock.job import JobState
from penstock.queues.scan import NOTHING, Part, Rows, Wanted
from penstock.queues.stores.disque.aio.claims import DisqueClaims
from penstock.queues.stores.disque.aio.scanning import PAGE_COUNT
from penstock.queues.stores.disque.jobs import is_before_its_time, is_made_by
from penstock.queues.stores.disque.rows import WORDS as SHOWN
from penstock.queues.stores.disque.rows import Row, columns_of_rows, delayed, of_queues, row_of

PAGE_S = 0.04  # as it is seen here: the node's own share of it is about a half


class DisqueSurvey(DisqueClaims):
    """`parts` and `look`."""

    compares: ClassVar[frozenset[str]] = frozenset({"id"})

    async def parts(self, queues: Sequence[str], wanted: Wanted) -> list[Part]:
        async with self._clients.borrow() as client:
            nodes = list((await self._nodes(client)).views)
        # Each part knows which other nodes there are: they decide together who shows a job.
        return [Part(tuple(queues), " ".join([node, *nodes])) for node in nodes] if queues else []

    async def look(self, part: Part, wanted: Wanted, count: int, cursor: str | None = None) -> Rows:
        if not wanted.states:
            return NOTHING
        node, *nodes = part.place.split(" ")
        async with self._clients.borrow() as client:
            view = client.at(node)
            now_ms = 0 if wanted.states == {JobState.READY} else await self._time_ms(view)
            found, following = await self._page(view, part, wanted, count, cursor, now_ms)
            rows = await self._spoken_for(client, node, nodes, found, now_ms)
        if not rows:
            return Rows(0, {}, following)
        return Rows(len(rows), columns_of_rows(rows, node, now_ms), following)

    async def _page(
        self, view: ClusterClient, part: Part, wanted: Wanted, count: int, cursor: str | None, now_ms: int
    ) -> tuple[Sequence[Row], str | None]:
        """The next rows of a scan, and where it goes on: the node's cursor, and how much to ask for."""
        if wanted.ids is not None:
            return await self._found(view, part, wanted, now_ms), None
        scan, asked = (0, min(count, PAGE_COUNT)) if cursor is None else map(int, cursor.split(" "))
        words: list[str | int] = ["JSCAN", scan, "COUNT", asked]
        if len(part.queues) == 1:
            words += ["QUEUE", part.queues[0]]
        for state in wanted.states:
            words += ["STATE", self._word(state)]
        began = time.monotonic()
        reply, rows = await view.call(*words, "REPLY", "compact" if self._is_ours else "all")
        took_s = time.monotonic() - began
        if not self._is_ours:
            rows = self._seen([job_details(row) for row in rows], wanted, now_ms)
        if len(part.queues) > 1:
            rows = of_queues(rows, part.queues)
        following = min(count, asked * 2) if took_s < PAGE_S / 2 else max(1, asked // 2) if took_s > PAGE_S else asked
        return rows, None if reply == b"0" else f"{int(reply)} {following}"

    def _word(self, state: JobState) -> str:
        return SHOWN[state].decode() if self._is_ours else ("queued" if state is JobState.READY else "active")

    @staticmethod
    def _seen(found: Sequence[JobDetails], wanted: Wanted, now_ms: int) -> list[Row]:
        """Rows of jobs whose state an original tells: it is queued, or its delay isn't over."""
        rows = []
        for details in found:
            if details.state == "queued" and JobState.READY in wanted.states:
                rows.append(row_of(details, JobState.READY))
            elif details.state == "active" and JobState.SCHEDULED in wanted.states:
                if is_before_its_time(details, now_ms):
                    rows.append(row_of(details, JobState.SCHEDULED))
        return rows

    async def _found(self, view: ClusterClient, part: Part, wanted: Wanted, now_ms: int) -> list[Row]:
        """The same for jobs by their ids. What is active is sought among the reserved ones and those of later."""
        rows: list[Row] = []
        for queue in part.queues:
            known = await self._known(view, queue, wanted.ids or ())
            if not self._is_ours:
                rows += self._seen(known, wanted, now_ms)
                continue
            if JobState.READY in wanted.states:
                rows += [row_of(one, JobState.READY) for one in known if one.state == "queued"]
            active = [one for one in known if one.state == "active"]
            for state in wanted.states - {JobState.READY} if active else ():
                ids = set(await self._ids(view, queue, state, now_ms))
                rows += [row_of(one, state) for one in active if one.id in ids]
        return rows

    @staticmethod
    async def _spoken_for(
        client: ClusterClient, node: str, nodes: Sequence[str], rows: Sequence[Row], now_ms: int
    ) -> Sequence[Row]:
        """Without the jobs that another node shows: of those whose delay isn't over, each holder has a copy."""
        before: dict[str, list[str]] = {}
        for job_id in delayed(rows, now_ms):
            speakers = sorted(nodes, key=lambda other: (not is_made_by(job_id, other), other))
            for other in speakers[: speakers.index(node)]:
                before.setdefault(other, []).append(job_id)
        elsewhere: set[str] = set()
        for other, asked in before.items():
            ids = [job_id for job_id in asked if job_id not in elsewhere]
            replies = await client.at(other).call_many([("SHOW", job_id) for job_id in ids])
            elsewhere.update(job_id for job_id, reply in zip(ids, replies, strict=True) if isinstance(reply, list))
        return [row for row in rows if row[0].decode() not in elsewhere] if elsewhere else rows
