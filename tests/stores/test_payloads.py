"""The same push gives the same payload on every store: a value as itself, bytes as JSON, else text, else bytes."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from types import NoneType
from typing import Any

import pytest

from penstock import Capability
from penstock.cli import queues as commands
from penstock.codec import DEPTH_MAX
from penstock.errors import BadPayload, CallerError
from penstock.queues import blocking
from penstock.queues.blocking.migration import move as move_jobs
from tests.stores.harness import PATIENCE, Differs, Place, needs

# They come back as themselves.
VALUES: dict[str, Any] = {
    "text": "a text",
    "empty text": "",
    "text that looks like a number": "1",
    "text that looks like JSON": '{"a": [1, 2]}',
    "text that looks like a JSON text": '"quoted"',
    "unicode": "Grüße, 世界, 🎉, e\u0301, \u2028, \ufeff",
    "control characters": '\x00\x01\x1f\x7f\t\r\n"\\/',
    "lone surrogates": "\ud800 and \udfff",
    "lone surrogates inside": {"\ud800": ["\udfff"]},
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
    "4,300 digits": 10**4299,
    "true": True,
    "false": False,
    "nothing": None,
    "empty list": [],
    "empty object": {},
    "nested": {"a": [1, [2, {"b": [], "c": {}, "d": None, "e": True}], "x"], "": "empty name", "ü": {"z": 0.5}},
    "deep": json.loads("[" * 50 + "]" * 50),
    "as deep as can be": json.loads('{"a":[' * (DEPTH_MAX // 2) + "]}" * (DEPTH_MAX // 2)),
    "keys in their order": {"z": 1, "a": 2, "m": 3},
    "names that stores use": {"_id": 1, "payload": 2, "tries": "x", "hdrs": None, "type": "buffer", "reserved": True},
}

# Bytes, and what they come back as.
BYTES: dict[str, tuple[bytes, Any]] = {
    "no bytes": (b"", ""),
    "every byte": (bytes(range(256)) * 3, bytes(range(256)) * 3),
    "a frame": (b"\xffPNSK\x01\x00\x00\x00\x02{}x", b"\xffPNSK\x01\x00\x00\x00\x02{}x"),
    "half a character": (b"\xc3", b"\xc3"),
    "a surrogate": (b"\xed\xa0\x80", b"\xed\xa0\x80"),
    "text": (b"plain", "plain"),
    "text with a mark": (b"\xef\xbb\xbf1", "\ufeff1"),
    "a zero byte": (b"\x00", "\x00"),
    "a number": (b"1", 1),
    "a number with zeros": (b"007", "007"),
    "an object": (b'{"to": "ann", "n": [1.50]}', {"to": "ann", "n": [1.5]}),
    "an object with spaces around": (b' {"to": "ann"}\n', {"to": "ann"}),
    "a JSON text": (b'"1"', "1"),
    "an escaped surrogate": (b'"\\ud800"', "\ud800"),
    "nothing": (b"null", None),
    "no JSON": (b"{not json", "{not json"),
    "no number of JSON": (b"NaN", "NaN"),
    "no number inside": (b"[1, -Infinity]", "[1, -Infinity]"),
    "a fraction too large": (b"[1e999]", "[1e999]"),
    "a number of too many digits": (b"1" * 5000, "1" * 5000),
    "too deep": (b"[" * 100_000 + b"]" * 100_000, "[" * 100_000 + "]" * 100_000),
}

PUSHES: dict[str, tuple[Any, Any]] = {name: (value, value) for name, value in VALUES.items()} | {
    f"bytes: {name}": pair for name, pair in BYTES.items()
}


def body_of(pushed: Any) -> bytes:
    """The body of what was pushed with the default codec."""
    if isinstance(pushed, bytes):
        return pushed
    try:
        return json.dumps(pushed, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(pushed, separators=(",", ":")).encode()


class Differences(dict[str, str]):
    """What came back other than it should, by name: all of it is told, not only the first."""

    def note(self, name: str, seen: Any, wanted: Any) -> None:
        if seen != wanted or type(seen) is not type(wanted):
            self[name] = f"{str(seen)[:60]} ({type(seen).__name__}) instead of {str(wanted)[:60]}"

    def note_job(self, place: Place, name: str, job: Any) -> None:
        pushed, payload = PUSHES[name]
        self.note(name, job.payload, payload)
        if not (place.differs(Differs.KEY_ORDER) and isinstance(pushed, dict)):
            self.note(f"body of {name}", job.body, body_of(pushed))
            self.note(f"order of {name}", str(job.payload)[:99], str(payload)[:99])


async def test_every_payload_comes_back_as_it_was(place: Place) -> None:
    wrong = Differences()
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        for name, (pushed, _) in PUSHES.items():
            await queue.push(pushed)
            wrong.note_job(place, name, await queue.pop(timeout=PATIENCE))
    assert wrong == {}


@needs(Capability.PEEK)
async def test_every_codec_reads_what_the_default_one_wrote(place: Place) -> None:
    wrong = Differences()
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        as_bytes, as_text = (store.queue(queue.name, codec=codec) for codec in ("bytes", "text"))
        for name, (pushed, _) in PUSHES.items():
            await queue.push(pushed)
            (job,) = await as_bytes.peek()
            if not (place.differs(Differs.KEY_ORDER) and isinstance(pushed, dict)):
                wrong.note(f"{name} as bytes", (job.payload, job.body), (body_of(pushed),) * 2)
            (job,) = await as_text.peek()
            wrong.note(f"type of {name} as text", type(job.payload), str)
            if isinstance(pushed, bytes):
                wrong.note(f"{name} as text", job.payload, pushed.decode(errors="replace"))
            await queue.purge()
    assert wrong == {}


@needs(Capability.RESERVE)
async def test_every_payload_is_the_same_through_tries_dead_letters_and_redrive(place: Place) -> None:
    wrong = Differences()
    async with place.connect(dead_letter=f"2,{place.new_name('dead')}") as store:
        queue, dead = store.queue(place.new_name()), store.dead_letters()
        for name, (pushed, _) in PUSHES.items():
            await queue.push(pushed)
            job = await queue.reserve(timeout=PATIENCE)
            await job.extend()
            await job.nack()
            job = await queue.reserve(timeout=PATIENCE)
            wrong.note_job(place, name, job)
            await job.nack()
            (job,) = await dead.peek()
            wrong.note_job(place, name, job)
            assert await dead.redrive() == 1
            wrong.note_job(place, name, await queue.pop(timeout=PATIENCE))
    assert wrong == {}


async def test_every_payload_is_the_same_after_a_move_to_another_store_and_back(place: Place) -> None:
    wrong = Differences()
    names = list(PUSHES)

    def move() -> None:
        options = {**place.kind.options, "namespace": place.namespace}
        with blocking.connect(place.url, **options) as store, blocking.connect(f"memory:{place.namespace}") as other:
            here, there = store.queue(place.new_name()), other.queue("there")
            here.push_many([pushed for pushed, _ in PUSHES.values()])
            assert move_jobs(here, there) == len(names)
            for name, job in zip(names, there.peek(len(names)), strict=True):
                wrong.note_job(place, f"{name}", job)
            assert move_jobs(there, here) == len(names)
            for name, job in zip(names, here.pop_many(len(names), PATIENCE), strict=True):
                wrong.note_job(place, name, job)

    await asyncio.to_thread(move)
    assert wrong == {}


# The command line


# What is stored as bytes, by the flag that says so.
AS_BYTES = {Differs.NO_NULL: NoneType, Differs.NO_FALSY: str | int}


def run_push(place: Place, body: bytes, *words: str) -> str:
    """Push standard input with `penstock push`; return the queue's name."""
    queue = place.new_name()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
        assert commands.run(["push", place.url, queue, "--quiet", *words]) == 0
    return queue


async def test_bodies_of_the_command_line_are_read_as_any_bytes_are(place: Place) -> None:
    wrong = Differences()
    async with place.connect() as store:
        for name, (body, payload) in BYTES.items():
            job = await store.queue(run_push(place, body)).pop(timeout=PATIENCE)
            wrong.note(name, job.payload, payload)
            if not store._driver.keeps_payloads:
                wrong.note(f"body of {name}", job.body, body)
            elif not payload and any(place.differs(how) for how, kind in AS_BYTES.items() if isinstance(payload, kind)):
                continue
            elif not isinstance(payload, bytes) and name not in {"a zero byte", "an escaped surrogate"}:
                # Peers of Keuss see a value, not a Buffer; but jsonb has no room for these two.
                wrong.note(f"value of {name}", job.stored.payload, payload)
    assert wrong == {}


async def test_what_must_be_json_is_refused_by_the_command_line_if_it_is_not(place: Place) -> None:
    async with place.connect() as store:
        for body, payload in ((b'{"to": "ann"}', {"to": "ann"}), (b'"1"', "1"), (b"null", None), (b" 1\n", 1)):
            job = await store.queue(run_push(place, body, "--json")).pop(timeout=PATIENCE)
            assert job.payload == payload
            if not store._driver.keeps_payloads:
                assert job.body == body
    for body in (b"hello", b"", b"[", b"NaN", b"1e999", b"\xff", b"1" * 5000, BYTES["too deep"][0]):
        with pytest.raises(BadPayload, match="body 1 is not valid JSON"):
            run_push(place, body, "--json")


async def test_a_text_of_the_command_line_is_a_text_on_every_store(place: Place) -> None:
    async with place.connect() as store:
        for text in ("hello", "", "1", '{"a": 1}', '"quoted"', "null", "Grüße"):
            job = await store.queue(run_push(place, text.encode(), "--text")).pop(timeout=PATIENCE)
            assert job.payload == text
            assert type(job.payload) is str


async def test_bytes_that_are_no_text_are_refused_as_text(place: Place) -> None:
    with pytest.raises(BadPayload, match="body 1 is not UTF-8 text"):
        run_push(place, b"\xff", "--text")
    with pytest.raises(CallerError, match="--json and --text can't be used together"):
        run_push(place, b"1", "--text", "--json")


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
        ("json", b"12", b"12", 12),
        ("json", "12", b'"12"', "12"),
        ("json", b"ann", b"ann", "ann"),
        ("text", "ü", "ü".encode(), "ü"),
        ("text", "12", b"12", "12"),
        ("text", b"12", b"12", "12"),
        ("text", b"\x80", b"\x80", "\ufffd"),
        ("text", "a\x00b", b"a\x00b", "a\x00b"),
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
        assert job.body == body


UNSTORABLE: dict[str, tuple[str, Any]] = {
    "a set": ("json", {1, 2}),
    "nan": ("json", float("nan")),
    "infinity": ("json", [float("inf")]),
    "too many digits": ("json", 10**5000),
    "too deep": ("json", {"list": json.loads("[" * DEPTH_MAX + "]" * DEPTH_MAX)}),
    "an object": ("json", object()),
    "a number as text": ("text", 12),
    "half a character as text": ("text", "\ud800"),
    "text as bytes": ("bytes", "text"),
}


@pytest.mark.parametrize("name", UNSTORABLE)
async def test_what_can_not_be_stored_is_refused_before_anything_is(place: Place, name: str) -> None:
    codec, payload = UNSTORABLE[name]
    async with place.connect() as store:
        queue = store.queue(place.new_name(), codec=codec)
        with pytest.raises(BadPayload):
            await queue.push(payload)
        with pytest.raises(BadPayload):
            await queue.push_many([b"fine", payload])
        assert await queue.total() == 0


@needs(Capability.HEADERS, Capability.RESERVE)
async def test_headers_come_back_as_they_were_at_every_try(place: Place) -> None:
    zero = "" if place.differs(Differs.PLAIN_HEADERS) else "\x00"
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
