"""Arguments that can't be are refused with an error that says so, and nothing is changed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

import penstock
import penstock.blocking
from penstock import Capability, Push
from penstock.errors import BadUrl, CallerError, Unsupported
from tests.stores.harness import PATIENCE, Place, needs

BAD_PUSHES: list[tuple[Capability | None, dict[str, Any]]] = [
    (None, {"tries": -1}),
    (Capability.DELAY, {"delay": float("nan")}),
    (Capability.DELAY, {"delay": float("inf")}),
    (Capability.DELAY, {"delay": 1e15}),
    (Capability.DELAY, {"delay": -0.001}),
    (Capability.DELAY, {"delay": timedelta(seconds=-1)}),
    (Capability.DELAY, {"delay": "soon"}),
    (Capability.DELAY, {"at": -5}),
    (Capability.DELAY, {"at": datetime(2030, 1, 1)}),  # noqa: DTZ001 - what is refused is that it has no zone
    (Capability.HEADERS, {"headers": {1: 2}}),
    (Capability.UNIQUE, {"unique": 17}),
    (Capability.UNIQUE, {"unique": 0}),
    (Capability.UNIQUE, {"unique": b"key"}),
    (Capability.UNIQUE, {"unique": ""}),
    (Capability.UNIQUE, {"unique": "\ud800"}),
    (Capability.UNIQUE, {"unique": "with a \0 byte"}),
    (Capability.UNIQUE, {"unique": "ü" * 513}),
    (Capability.UNIQUE, {"unique": "key", "unique_for": -1}),
    (Capability.UNIQUE, {"unique": "key", "unique_for": float("nan")}),
    (Capability.TTL, {"ttl": -1}),
    (Capability.TTL, {"ttl": timedelta(-1)}),
    (Capability.TTL, {"ttl": "a day"}),
    (Capability.RETRY, {"retry": -1}),
]
BAD_TAKES: list[tuple[str, dict[str, Any]]] = [
    ("pop", {"timeout": -1}),
    ("pop", {"timeout": float("nan")}),
    ("pop_many", {"count": 0}),
    ("reserve", {"timeout": -0.1}),
    ("reserve", {"lease": 0}),
    ("reserve", {"lease": -1}),
    ("reserve", {"lease": float("nan")}),
    ("reserve", {"lease": 1e9}),
    ("reserve", {"lease": timedelta(0)}),
    ("reserve", {"lease": "long"}),
    ("reserve_many", {"count": -3}),
]
BAD_OPTIONS: list[dict[str, Any]] = [
    {"lease": 0},
    {"lease": "soon"},
    {"poll": -1},
    {"namespace": "with:colon"},
    {"namespace": ""},
    {"dead_letter": "many"},
]
# What asks for a capability, beside pushes.
ASKING: list[tuple[Capability, Any]] = [
    (Capability.RESERVE, lambda queue: queue.reserve(timeout=0)),
    (Capability.RESERVE, lambda queue: queue.ack_many([])),
    (Capability.RESERVE, lambda queue: queue.nack_many([])),
    (Capability.RESERVE, lambda queue: queue.fail_many([], [])),
    (Capability.EXTEND, lambda queue: queue.extend_many([])),
    (Capability.CLAIM, lambda queue: queue.claim("key", 1)),
    (Capability.CLAIM, lambda queue: queue.extend_claim("key")),
    (Capability.CLAIM, lambda queue: queue.ack_claim("key")),
    (Capability.CLAIM, lambda queue: queue.nack_claim("key")),
    (Capability.PEEK, lambda queue: queue.peek()),
    (Capability.PEEK, lambda queue: queue.redrive()),
    (Capability.REMOVE, lambda queue: queue.remove("id")),
    (Capability.DELAY, lambda queue: queue.push(1, delay=1)),
    (Capability.DELAY, lambda queue: queue.push(1, at=2e9)),
    (Capability.HEADERS, lambda queue: queue.push(1, headers={"a": 1})),
    (Capability.UNIQUE, lambda queue: queue.push(1, unique="key")),
    (Capability.TTL, lambda queue: queue.push(1, ttl=1000)),
    (Capability.RETRY, lambda queue: queue.push(1, retry=1000)),
    (Capability.REPLICATE, lambda queue: queue.push(1, replicate=1)),
    (Capability.TRANSACTION, lambda queue: queue.push(1, connection=object())),
]


@pytest.mark.parametrize(("capability", "options"), BAD_PUSHES, ids=lambda value: str(value)[:30])
async def test_a_push_with_options_that_can_not_be(
    place: Place, capability: Capability | None, options: dict[str, Any]
) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        with pytest.raises(CallerError) as refused:
            await queue.push("work", **options)
        if isinstance(refused.value, Unsupported):
            assert refused.value.capability == capability
        with pytest.raises(CallerError):
            await queue.push_many(["fine", Push("not fine", **options)])
        assert await queue.total() == 0


@needs(Capability.UNIQUE)
async def test_a_unique_key_that_can_not_be_is_refused_with_what_it_must_be(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work", unique="key")
        for key in ("", 17, b"key", "\ud800", "\0", "ü" * 513):
            with pytest.raises(CallerError, match="a unique key must be 1 to 1024 bytes of text"):
                await queue.push("work", unique=key)
        first = await queue.push("work", unique="ü" * 512)
        assert await queue.push("work", unique="ü" * 512) == first


BAD_TEXTS = (17, 1.5, b"key", ["key"], None, "\ud800")


@needs(Capability.CLAIM)
async def test_a_claim_key_that_can_not_be_is_refused_with_what_it_must_be(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        assert await queue.claim("key", 0) == []
        for key in ("", *BAD_TEXTS):
            for call in (
                lambda key=key: queue.claim(key, 1),
                lambda key=key: queue.claim_unread(key, 1),
                lambda key=key: queue.extend_claim(key),
                lambda key=key: queue.ack_claim(key),
                lambda key=key: queue.nack_claim(key),
            ):
                with pytest.raises(CallerError, match="a claim key must be text"):
                    await call()
        assert len(await queue.claim("ü", 1)) == 1


@needs(Capability.RESERVE)
async def test_an_id_a_token_and_an_error_that_can_not_be_are_refused_with_what_they_must_be(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE)
        for wrong in BAD_TEXTS:
            for call in (
                lambda wrong=wrong: queue.ack_by_token(wrong, "1"),
                lambda wrong=wrong: queue.nack_by_token(wrong, "1"),
            ):
                with pytest.raises(CallerError, match="a job id must be text"):
                    await call()
            for call in (
                lambda wrong=wrong: queue.ack_by_token(job.id, wrong),
                lambda wrong=wrong: queue.nack_by_token(job.id, wrong),
            ):
                with pytest.raises(CallerError, match="a token must be text"):
                    await call()
        for by_id in (queue.ack, queue.nack):
            with pytest.raises(CallerError, match="a job id must be text"):
                await by_id("\ud800")
        for wrong in (17, b"error", None):
            for call in (
                lambda wrong=wrong: job.nack(error=wrong),
                lambda wrong=wrong: queue.nack_many([job], error=wrong),
                lambda wrong=wrong: queue.nack_by_token(job.id, job.token or "1", error=wrong),
                lambda wrong=wrong: job.fail(wrong),
                lambda wrong=wrong: queue.fail_many([job], [wrong]),
            ):
                with pytest.raises(CallerError, match="error must be text or an exception"):
                    await call()
        await job.ack()


@needs(Capability.REMOVE)
async def test_an_id_that_can_not_be_removes_nothing(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        job_id = await queue.push("work")
        assert await queue.remove() == []
        for wrong in BAD_TEXTS:
            with pytest.raises(CallerError, match="a job id must be text"):
                await queue.remove(job_id, wrong)
        assert await queue.remove(job_id) == [True]


@needs(Capability.DELAY)
async def test_a_delay_that_can_not_be_is_refused_with_what_it_must_be(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work", delay=1)
        with pytest.raises(CallerError, match="delay must be 0 to 3153600000 seconds, got -1"):
            await queue.push("work", delay=-1)


@pytest.mark.parametrize(("verb", "options"), BAD_TAKES, ids=lambda value: str(value)[:30])
async def test_a_take_with_options_that_can_not_be(place: Place, verb: str, options: dict[str, Any]) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        with pytest.raises(CallerError):
            await getattr(queue, verb)(**options)
        job = await queue.pop(timeout=PATIENCE)
        assert (job.payload, job.tries) == ("work", 0)


@needs(Capability.RESERVE, Capability.EXTEND)
async def test_an_end_with_options_that_can_not_be(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE)
        for call in (
            lambda: job.nack(delay=float("nan")),
            lambda: job.nack(delay=1e15),
            lambda: job.nack(delay=-1),
            lambda: job.nack(delay=timedelta(seconds=-1)),
            lambda: job.nack(delay="later"),
            lambda: job.extend(0),
            lambda: job.extend(float("inf")),
        ):
            with pytest.raises(CallerError):
                await call()
        await job.ack()


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
async def test_options_of_a_store_that_can_not_be(place: Place, options: dict[str, Any]) -> None:
    with pytest.raises(CallerError):
        place.connect(**options)


async def test_an_option_that_nobody_knows_is_refused(place: Place) -> None:
    with pytest.raises(CallerError, match="leese"):
        async with place.connect(leese=3):
            pass


def test_a_store_opened_in_the_other_form_names_the_right_one() -> None:
    store: Any = penstock.connect("memory:")
    with pytest.raises(TypeError, match=r"`async with`.*penstock\.blocking\.connect"), store:
        pass


async def test_a_blocking_store_opened_with_async_with_names_the_right_form() -> None:
    store: Any = penstock.blocking.connect("memory:")
    with pytest.raises(TypeError, match=r"`with`.*penstock\.connect"):
        async with store:
            pass


async def test_options_of_a_queue_that_can_not_be(place: Place) -> None:
    async with place.connect() as store:
        for options in ({"lease": -1}, {"codec": "xml"}, {"poll": 0}, {"dead_letter": -1}, {"dead_letter": "many"}):
            with pytest.raises(CallerError):
                store.queue(place.new_name(), **options)


@pytest.mark.parametrize(("capability", "ask"), ASKING, ids=lambda value: str(value) if isinstance(value, str) else "")
async def test_what_a_store_lacks_is_refused_by_its_name(place: Place, capability: Capability, ask: Any) -> None:
    if capability in await place.capabilities():
        pytest.skip(f"{place.name} can do it")
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        with pytest.raises(Unsupported, match=capability.value) as refused:
            await ask(queue)
        assert refused.value.capability == capability
        assert await queue.total() == 0


async def test_a_url_of_no_store_is_refused(place: Place) -> None:
    place.url = f"no-such-{place.url}"
    with pytest.raises(BadUrl, match="known are"):
        place.connect()
