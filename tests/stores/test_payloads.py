"""Payloads and headers come back as they went in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import Capability
from penstock.errors import BadPayload
from tests.stores.harness import PATIENCE, Differs, Place, needs

PAYLOADS: dict[str, Any] = {
    "text": "a text",
    "empty text": "",
    "text that looks like JSON": '{"a": [1, 2]}',
    "unicode": "Grüße, 世界, 🎉, e\u0301, \u2028, \ufeff",
    "control characters": '\x00\x01\x1f\x7f\t\r\n"\\/',
    "lone surrogates": "\ud800 and \udfff",
    "number": 42,
    "zero": 0,
    "negative": -17,
    "fraction": 3.141592653589793,
    "small fraction": 5e-324,
    "large fraction": 1.7976931348623157e308,
    "2**53 + 1": 2**53 + 1,
    "2**63": 2**63,
    "2**70": 2**70,
    "-2**70": -(2**70),
    "true": True,
    "false": False,
    "nothing": None,
    "empty list": [],
    "empty object": {},
    "nested": {"a": [1, [2, {"b": [], "c": {}, "d": None, "e": True}], "x"], "": "empty name", "ü": {"z": 0.5}},
    "deep": json.loads("[" * 50 + "]" * 50),
    "keys in their order": {"z": 1, "a": 2, "m": 3},
    "names that stores use": {"_id": 1, "payload": 2, "tries": "x", "hdrs": None, "type": "buffer", "reserved": True},
    "no bytes": b"",
    "every byte": bytes(range(256)) * 3,
    "bytes that are text": b"plain",
    "bytes that are no JSON": b"{not json",
    "bytes that look like a frame": b"\xffPNSK\x01\x00\x00\x00\x02{}x",
}


@pytest.mark.parametrize("name", PAYLOADS)
async def test_a_payload_comes_back_as_it_was(place: Place, name: str) -> None:
    payload = PAYLOADS[name]
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        if name in place.kind.refuses:
            with pytest.raises(BadPayload):
                await queue.push(payload)
            return
        await queue.push(payload)
        job = await queue.pop(timeout=PATIENCE)
        assert job.payload == payload
        assert type(job.payload) is type(payload)
        if isinstance(payload, dict) and not place.differs(Differs.KEY_ORDER):
            assert list(job.payload) == list(payload)


@needs(Capability.RESERVE)
@pytest.mark.parametrize("name", PAYLOADS)
async def test_a_payload_is_the_same_at_every_try(place: Place, name: str) -> None:
    if name in place.kind.refuses:
        pytest.skip(f"{place.name} refuses it")
    payload = PAYLOADS[name]
    async with place.connect(dead_letter=f"3,{place.new_name('dead')}") as store:
        queue = store.queue(place.new_name())
        await queue.push(payload)
        for _ in range(2):
            job = await queue.reserve(timeout=PATIENCE)
            assert job.payload == payload
            await job.extend()
            await job.nack()
        await (await queue.reserve(timeout=PATIENCE)).nack()
        assert (await store.dead_letters().pop(timeout=PATIENCE)).payload == payload


async def test_a_megabyte(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        payloads = [bytes(range(256)) * 4096, "ü" * 500_000, [{"n": n, "text": "x" * 50} for n in range(12_000)]]
        for payload in payloads:
            await queue.push(payload)
        assert [(await queue.pop(timeout=PATIENCE)).payload for _ in payloads] == payloads


@pytest.mark.parametrize("payload", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")])
async def test_bytes_of_every_kind_are_bytes(place: Place, payload: Any) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push(payload)
        job = await queue.pop(timeout=PATIENCE)
        assert (job.payload, job.body) == (b"\x00\xff", b"\x00\xff")


@pytest.mark.parametrize(
    ("codec", "payload", "body", "read"),
    [
        ("json", {"a": [1, 2]}, b'{"a":[1,2]}', {"a": [1, 2]}),
        ("json", "ü", '"ü"'.encode(), "ü"),
        ("json", b"\x80", b"\x80", b"\x80"),
        ("text", "ü", "ü".encode(), "ü"),
        ("text", "12", b"12", "12"),
        ("text", b"12", b"12", "12"),
        ("bytes", b"12", b"12", b"12"),
    ],
)
async def test_a_queues_codec_says_how_bodies_are_read(
    place: Place, codec: str, payload: Any, body: bytes, read: Any
) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), codec=codec)
        await queue.push(payload)
        job = await queue.pop(timeout=PATIENCE)
        assert job.payload == read
        assert type(job.payload) is type(read)
        if codec != "text":  # a store of payloads has text as JSON
            assert job.body == body


@pytest.mark.parametrize(
    ("codec", "payload"),
    [("json", {1, 2}), ("json", float("nan")), ("json", object()), ("text", 12), ("bytes", "text"), ("text", "\ud800")],
)
async def test_what_can_not_be_stored_is_refused_before_anything_is(place: Place, codec: str, payload: Any) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), codec=codec)
        with pytest.raises(BadPayload):
            await queue.push(payload)
        with pytest.raises(BadPayload):
            await queue.push_many([b"fine", payload])
        assert await queue.total() == 0


@needs(Capability.HEADERS, Capability.RESERVE)
async def test_headers_come_back_as_they_were_at_every_try(place: Place) -> None:
    zero = "" if "control characters" in place.kind.refuses else "\x00"
    headers = {
        "text": f'Grüße 🎉 {zero} " \\',
        "number": 42,
        "fraction": 0.1,
        "large": 2**70,
        "yes": True,
        "nothing": None,
        "list": [1, "two", []],
        "object": {"empty": {}, "inner": {"a": 1}},
        "": "empty name",
        "with space: and ü": 1,
    }
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push(b"\x00\xff body", headers=headers)
        for _ in range(3):
            job = await queue.reserve(timeout=PATIENCE)
            assert job.headers == headers
            assert job.payload == b"\x00\xff body"
            await job.nack()


@needs(Capability.HEADERS)
async def test_headers_of_the_wrong_kind_are_refused(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        for headers in ({1: "a"}, {"set": {1}}, {"nan": float("inf")}):
            with pytest.raises(BadPayload):
                await queue.push(1, headers=headers)
        assert await queue.total() == 0


async def test_a_job_without_headers_has_none(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push(1)
        assert (await queue.pop(timeout=PATIENCE)).headers == {}


async def test_what_was_pushed_is_not_what_the_caller_changes_later(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        payload = {"list": [1]}
        await queue.push(payload)
        payload["list"].append(2)
        assert (await queue.pop(timeout=PATIENCE)).payload == {"list": [1]}
