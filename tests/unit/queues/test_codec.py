"""Payloads become bodies and come back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec import DEPTH_MAX, MARK, check_codec, decode, encode, frame, to_json, unframe
from penstock.errors import BadPayload, CallerError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
HEADERS = st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.booleans(), max_size=4)


@given(JSON)
def test_what_json_has_comes_back(payload: Any) -> None:
    assert decode(encode(payload)) == payload


@given(st.text(alphabet=st.characters()))
def test_any_text_becomes_json_that_is_utf8(text: str) -> None:
    written = to_json(text + "\ud800")
    assert json.loads(written.encode().decode()) == text + "\ud800"


@given(st.binary())
def test_bytes_go_as_they_are(body: bytes) -> None:
    assert encode(body) == body
    assert decode(body, "bytes") == body


@pytest.mark.parametrize(
    "body", [b"not json", b"{", b"", b"[" * 100_000, b"NaN", b"[-Infinity]", b"1e400", b"9" * 5000]
)
def test_a_body_that_is_not_json_is_text(body: bytes) -> None:
    assert decode(body) == body.decode()


def test_a_body_that_is_neither_json_nor_text_is_bytes() -> None:
    assert decode(b"\xff\x00") == b"\xff\x00"


def test_a_payload_as_deep_as_may_be_is_read_far_down_the_stack() -> None:
    body = encode(json.loads("[" * DEPTH_MAX + "]" * DEPTH_MAX))

    def read(frames: int) -> Any:
        return read(frames - 1) if frames else decode(body)

    assert encode(read(300)) == body


@pytest.mark.parametrize("payload", [float("nan"), {"a": float("inf")}, {1, 2}, object(), {b"x": 1}])
def test_what_json_lacks_is_refused(payload: Any) -> None:
    with pytest.raises(BadPayload, match="JSON"):
        encode(payload)


def test_a_list_in_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(BadPayload):
        encode(circle)


def test_text_is_utf8_and_nothing_more() -> None:
    assert encode("grün", "text") == "grün".encode()
    assert decode("grün".encode(), "text") == "grün"
    assert encode(b"raw", "text") == b"raw"
    with pytest.raises(BadPayload, match="str or bytes, not int"):
        encode(1, "text")
    with pytest.raises(BadPayload, match="UTF-8"):
        encode("\ud800", "text")


def test_bytes_take_only_bytes() -> None:
    assert encode(bytearray(b"x"), "bytes") == b"x"
    with pytest.raises(BadPayload, match="bytes, not str"):
        encode("x", "bytes")


def test_a_codec_that_does_not_exist_is_named() -> None:
    with pytest.raises(CallerError, match=r"no codec 'xml'; the codecs are json, text, bytes"):
        check_codec("xml")


@given(st.binary(), HEADERS)
def test_body_and_headers_come_out_of_their_frame(body: bytes, headers: dict[str, Any]) -> None:
    assert unframe(frame(body, headers)) == (body, headers)
    assert unframe(frame(MARK + body, headers)) == (MARK + body, headers)


@given(st.binary(min_size=1))
def test_a_body_without_headers_is_stored_raw(body: bytes) -> None:
    assert frame(body, {}) == body or body.startswith(MARK)


@given(st.binary())
def test_bytes_that_only_look_framed_are_a_body(rest: bytes) -> None:
    stored = MARK + rest
    body, headers = unframe(stored)
    assert (body, headers) == (stored, {}) or frame(body, headers)[: len(MARK)] == MARK


def test_the_frame_is_as_the_docs_have_it() -> None:
    assert frame(b"body", {"a": 1}) == b'\xffPNSK\x01\x00\x00\x00\x07{"a":1}body'


def test_huge_headers_are_refused() -> None:
    with pytest.raises(BadPayload, match=r"headers must be at most 65536 bytes of JSON, got 70"):
        frame(b"", {"a": "x" * 70_000})
