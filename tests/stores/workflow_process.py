"""Workers that are killed within workflows: `python -m tests.stores.workflow_process ROLE URL OPTIONS LOG`.

    kills    runs three workers, of which one is killed and replaced all the time, until its input ends
    step N   runs a worker that kills itself at the Nth of its calls to the store: before it if N is even, after it if
             it is odd. Then one that lives, when the leases of the first are over. Prints `died` or `lived`

What is imported once is shared by all workers: they are forked. A call that runs writes a line into the log.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from penstock import App, chain, current_job, group
from penstock.queues import registry
from penstock.tasks import Chain

LEASE_S = 1.0
LATER_S = 100.0  # all leases are over by then
CALLS = ("push", "ack", "nack", "move", "put_value", "extend")


class Shop:
    """An app whose tasks note that they run."""

    def __init__(self, url: str, options: dict[str, Any], log: str) -> None:
        self.app = app = App(url, queue="members", **options)

        def note(what: str) -> None:
            with Path(log).open("a") as file:
                file.write(f"{what} {current_job().job_id}\n")

        @app.task(name="member", max_tries=0)
        async def member(n: int) -> int:
            return n

        @app.task(name="double", queue="doubles", max_tries=0)
        async def double(n: int) -> int:
            return 2 * n

        @app.task(name="callback", queue="callbacks", max_tries=0)
        async def callback(numbers: list[int], which: int) -> int:
            note(f"callback {which}")
            return sum(numbers)

        self.member, self.double, self.callback = member, double, callback

    def work(self, which: int, size: int = 4) -> Chain[object, int]:
        """Return a workflow with a chain, a group within a group, and what follows them; its result is `expected`."""
        inner = group([self.member.call(1), self.member.call(2)])
        members = [chain(self.member.call(n), self.double.call(), self.double.call()) for n in range(size)]
        first = group([*members, inner.then(self.callback.step(which=-which - 1))])
        return first.then(self.callback.step(which=which)).then(self.double.call())


def expected(size: int = 4) -> int:
    """Return the result of `work`."""
    return 2 * (4 * sum(range(size)) + 3)


def forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(0)


def kills(*where: Any) -> None:
    def work() -> None:
        async def run() -> None:
            shop = Shop(*where)
            async with shop.app:
                await shop.app.worker(concurrency=4, lease=LEASE_S).run()

        asyncio.run(run())

    chance = random.Random()
    children = [forked(work) for _ in range(3)]
    while not select.select([sys.stdin], [], [], chance.uniform(0.02, 0.4))[0]:
        victim = children.pop(0)
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        children.append(forked(work))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _points() -> Iterator[int]:
    """Count the points at which a worker could die."""
    number = 0
    while True:
        yield number
        number += 1


def step(at: int, *where: Any) -> None:
    async def run(shop: Shop, later: bool) -> None:
        async with shop.app:
            store = shop.app.client.store
            if later:
                store.shift_clock(LATER_S)
            else:
                _die_at(store._driver, at)
            await shop.app.worker(concurrency=1, lease=30).run(until_empty=True)

    _, status = os.waitpid(forked(lambda: asyncio.run(run(Shop(*where), later=False))), 0)
    os.waitpid(forked(lambda: asyncio.run(run(Shop(*where), later=True))), 0)
    sys.stdout.write("died\n" if os.WIFSIGNALED(status) else "lived\n")


def _die_at(driver: Any, at: int) -> None:
    points = _points()

    def point() -> None:
        if next(points) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **named: Any) -> Any:
            point()
            result = await real(*args, **named)
            point()
            return result

        return call

    for name in CALLS:
        setattr(driver, name, dying(getattr(driver, name)))


def main(role: str, url: str, options: str, log: str, *numbers: str) -> None:
    where = url, json.loads(options), log
    registry.find("stores", url.partition(":")[0], "aio")  # so that no worker needs to import it
    if role == "kills":
        kills(*where)
    else:
        for line in sys.stdin:
            step(int(line), *where)
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
