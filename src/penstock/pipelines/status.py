"""The state of each link: how many jobs wait for it, how fast it is, what went wrong, how old the oldest job is."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.pipelines.link import Link
from penstock.queues.aio import Queue, Store
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letter import FROM_QUEUE

DEAD_LETTERS_MAX = 10_000  # read for the count of each link: beyond it the count is a lower bound


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """The state of a link. None is what the store can't tell."""

    link: str
    queue: str
    targets: tuple[str, ...]
    paused: bool  # by the recipe, or as a queue
    ready: int
    scheduled: int
    reserved: int | None
    rate: float | None  # jobs a second that were ended or moved on; None without an interval
    done: int  # since the queue's counters began
    retried: int
    failed: int  # dead letters since then
    dead: int | None  # dead letters of this queue that are there now
    oldest: float | None  # seconds since the oldest ready job was pushed, or became ready where that isn't known

    def facts(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {**asdict(self), "targets": list(self.targets)}


async def of_links(store: Store, links: Sequence[Link], dead_letters: str, interval: float | None) -> list[LinkStatus]:
    """Return the status of links; with an interval, after it, with rates."""
    queues = {link.source: store.queue(link.source) for link in links}
    before = {name: await _done(queue) for name, queue in queues.items()} if interval else {}
    began = time.monotonic()
    if interval:
        await asyncio.sleep(interval)
    dead = await _dead_of(store, dead_letters)
    found = []
    for link in links:
        queue = queues[link.source]
        sizes, counters = await queue.sizes(), await queue.stats()
        elapsed_s = time.monotonic() - began
        found.append(
            LinkStatus(
                link=link.name,
                queue=link.source,
                targets=link.targets,
                paused=link.paused or bool(counters["paused"]),
                ready=sizes.ready,
                scheduled=sizes.scheduled,
                reserved=sizes.reserved,
                rate=None if not interval else round((counters["ack"] - before[link.source]) / elapsed_s, 1),
                done=counters["ack"],
                retried=counters["nack"],
                failed=counters["dead_letter"],
                dead=None if dead is None else dead[link.source],
                oldest=await _oldest(queue),
            )
        )
    return found


async def _done(queue: Queue) -> int:
    done: int = (await queue.stats())["ack"]
    return done


async def _oldest(queue: Queue) -> float | None:
    """Return the age of the ready job that is taken next."""
    if Capability.PEEK not in queue.store.capabilities:
        return None
    jobs = await queue.peek(1)
    since = (jobs[0].created or jobs[0].mature) if jobs else None
    return None if since is None else round(max(0.0, time.time() - since), 1)


async def _dead_of(store: Store, dead_letters: str) -> Counter[str] | None:
    """Return the number of dead letters by the queue that they came from."""
    if Capability.PEEK not in store.capabilities:
        return None
    found: Counter[str] = Counter()
    async for job in store.queue(dead_letters).jobs():
        found[str(job.headers.get(FROM_QUEUE))] += 1
        if found.total() >= DEAD_LETTERS_MAX:
            break
    return found
