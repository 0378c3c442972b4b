"""Replies and requests as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import wire
from penstock.wire import RequestReader, encode_request, encode_value


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (wire.simple("OK"), b"+OK\r\n"),
        (wire.simple(b"\xff"), b"+\xff\r\n"),
        (wire.error("ERR no"), b"-ERR no\r\n"),
        (wire.integer(-5), b":-5\r\n"),
        (wire.bulk(b""), b"$0\r\n\r\n"),
        (wire.bulk(b"a\r\nb"), b"$4\r\na\r\nb\r\n"),
        (wire.array([]), wire.EMPTY_ARRAY),
        (wire.array(iter([b":1\r\n", b"+a\r\n"])), b"*2\r\n:1\r\n+a\r\n"),
        (wire.map3([(b"+a\r\n", b":1\r\n")]), b"%1\r\n+a\r\n:1\r\n"),
        (wire.OK, b"+OK\r\n"),
        (wire.NULL_BULK, b"$-1\r\n"),
        (wire.NULL_ARRAY, b"*-1\r\n"),
        (wire.NULL3, b"_\r\n"),
    ],
)
def test_a_reply_has_its_bytes(encoded: bytes, expected: bytes) -> None:
    assert encoded == expected


def test_text_from_outside_cannot_end_a_line() -> None:
    assert wire.error("ERR unknown command 'a\r\n+OK'") == b"-ERR unknown command 'a  +OK'\r\n"
    assert wire.simple(b"a\rb\nc") == b"+a b c\r\n"


def test_bytes_that_were_decoded_with_escapes_leave_as_they_came() -> None:
    assert wire.error(b"ERR \xff".decode("utf-8", "surrogateescape")) == b"-ERR \xff\r\n"


NESTED: wire.Value = [1, b"b", "s", None, (b"x", []), {"k": None}]


def test_nested_values_in_protocol_2() -> None:
    assert encode_value(NESTED, 2) == (
        b"*6\r\n:1\r\n$1\r\nb\r\n+s\r\n$-1\r\n*2\r\n$1\r\nx\r\n*0\r\n*2\r\n+k\r\n$-1\r\n"
    )


def test_nested_values_in_protocol_3() -> None:
    assert encode_value(NESTED, 3) == (b"*6\r\n:1\r\n$1\r\nb\r\n+s\r\n_\r\n*2\r\n$1\r\nx\r\n*0\r\n%1\r\n+k\r\n_\r\n")


def test_a_value_without_a_form_is_refused() -> None:
    with pytest.raises(TypeError, match="float"):
        encode_value(1.5)  # type: ignore[arg-type]  # the wrong type is the point


def test_a_request_holds_bytes_text_and_integers() -> None:
    assert encode_request(b"\xff", "é", -7) == b"*3\r\n$1\r\n\xff\r\n$2\r\n\xc3\xa9\r\n$2\r\n-7\r\n"


@given(st.lists(st.binary(), min_size=1))
def test_a_request_is_read_back(arguments: list[bytes]) -> None:
    assert RequestReader().feed(encode_request(*arguments)) == [arguments]
