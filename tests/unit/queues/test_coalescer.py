"""Calls that go to the store together."""

from __future__ import annotations

import asyncio

import pytest

from penstock.queues.aio.runtime import Coalescer


@pytest.mark.parametrize("first", [["a"], ["a", "b"]], ids=["one", "several"])
@pytest.mark.parametrize("in_turn", [True, False])
def test_what_comes_while_a_call_is_under_way_waits_for_its_turn(first: list[str], in_turn: bool) -> None:
    """If it is so wanted: it is sent together then. Else what comes in each turn of the event loop is sent."""
    sent: list[list[str]] = []

    async def run() -> None:
        may_end = asyncio.Event()

        async def send(items: list[str]) -> list[str]:
            sent.append(items)
            await may_end.wait()
            return [item.upper() for item in items]

        coalescer = Coalescer(send, 1000, in_turn=in_turn)
        adds = [asyncio.create_task(coalescer.add(item)) for item in first]
        for item in "xyz":
            for _ in range(5):
                await asyncio.sleep(0)
            adds.append(asyncio.create_task(coalescer.add(item)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert sent == ([first] if in_turn else [first, ["x"], ["y"], ["z"]])
        may_end.set()
        assert await asyncio.gather(*adds) == [item.upper() for item in [*first, *"xyz"]]
        await coalescer.finish()

    asyncio.run(run())
    assert sent == ([first, ["x", "y", "z"]] if in_turn else [first, ["x"], ["y"], ["z"]])


def test_a_call_that_fails_or_is_cancelled_lets_the_next_ones_go() -> None:
    async def run() -> None:
        may_end = asyncio.Event()

        async def send(items: list[str]) -> list[str]:
            await may_end.wait()
            if "bad" in items:
                raise ValueError(items)
            return items

        coalescer = Coalescer(send, 1000, in_turn=True)
        first = asyncio.create_task(coalescer.add("bad"))
        for _ in range(5):
            await asyncio.sleep(0)
        second, third = (asyncio.create_task(coalescer.add(item)) for item in ("b", "c"))
        for _ in range(5):
            await asyncio.sleep(0)
        third.cancel()
        may_end.set()
        with pytest.raises(ValueError, match="bad"):
            await first
        assert await second == "b"
        fourth = asyncio.create_task(coalescer.add("d"))
        await coalescer.finish()
        assert await fourth == "d"

    asyncio.run(asyncio.wait_for(run(), 30))
