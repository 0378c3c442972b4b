"""Texts under keys, beside the queues of a store."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Capability
from penstock.errors import CallerError
from tests.stores.harness import Place, needs

TEXT = '{"ok":"\u00e4\U0001f600","n":[1,2]}'
LONG = "x" * 300_000


@needs(Capability.VALUES)
async def test_a_value_is_there_for_its_time_and_for_every_program(place: Place) -> None:
    key = place.new_name("key")
    async with place.connect() as store, place.connect() as other:
        assert await store.value(key) is None
        await store.put_value(key, TEXT, ttl=1000)
        assert await other.value(key) == TEXT
        await other.put_value(key, LONG, ttl=1000)
        assert await store.value(key) == LONG
        await store.remove_value(key)
        assert await other.value(key) is None
        await store.remove_value(key)
        assert key not in await store.queues()


@needs(Capability.VALUES)
async def test_a_value_ends_with_its_time(place: Place) -> None:
    if place.name.startswith("redis"):
        pytest.skip("Redis ends it by its own clock, which tests can't shift")
    key, longer = place.new_name("key"), place.new_name("key")
    async with place.connect() as store:
        await store.put_value(key, "a", ttl=50)
        await store.put_value(longer, "b", ttl=5000)
        await place.advance(100)
        assert await store.value(key) is None
        assert await store.value(longer) == "b"


@needs(Capability.VALUES)
async def test_a_key_must_be_printable_text(place: Place) -> None:
    async with place.connect() as store:
        odd = place.new_name("a/b:c d%2F..")
        await store.put_value(odd, "1", ttl=60)
        assert await store.value(odd) == "1"
        # In directories keys are names of files: these would be too long, and the directory above.
        for key in ("\u00e4" * 100, "..", "."):
            await store.put_value(key, "2", ttl=60)
            assert await store.value(key) == "2"
            await store.remove_value(key)
        for key in ("", "a\nb", "x" * 201, "\ud800", 17, b"key", None):
            for call in (
                lambda key=key: store.put_value(key, "1", ttl=60),
                lambda key=key: store.value(key),
                lambda key=key: store.remove_value(key),
            ):
                with pytest.raises(CallerError, match="a key must be 1 to 200 bytes"):
                    await call()
        for value in (17, b"value", None, "\ud800"):
            with pytest.raises(CallerError, match="a value must be text"):
                await store.put_value(odd, value, ttl=60)
        assert await store.value(odd) == "1"


@needs(Capability.VALUES)
async def test_values_that_are_put_at_the_same_time_are_all_there(aio_place: Place) -> None:
    keys = [aio_place.new_name("key") for _ in range(20)]
    async with aio_place.connect() as store:
        await asyncio.gather(*(store.put_value(key, TEXT + key, ttl=60 + at) for at, key in enumerate(keys)))
        assert [await store.value(key) for key in keys] == [TEXT + key for key in keys]


@needs(Capability.VALUES)
async def test_of_values_under_one_key_that_are_put_together_the_last_is_kept(aio_place: Place) -> None:
    key, other = aio_place.new_name("key"), aio_place.new_name("other")
    async with aio_place.connect() as store:
        texts = [str(number) for number in range(5)]
        await asyncio.gather(*(store.put_value(one, text, ttl=60) for text in texts for one in (key, other)))
        assert {await store.value(key), await store.value(other)} == {"4"}
