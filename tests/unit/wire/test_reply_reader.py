"""The pure decoder: what each type becomes, and that it does not matter how the bytes were cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadReply, ReplyError
from penstock.wire.reply_reader import DEPTH_MAX, NOTHING, Pairs, ReplyReader, SimpleString


def decoded(data: bytes) -> object:
    decoder = ReplyReader()
    decoder.feed(data)
    value = decoder.gets()
    assert decoder.gets() is NOTHING
    return value


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b":-5\r\n", -5),
        (b"$0\r\n\r\n", b""),
        (b"$4\r\na\r\nb\r\n", b"a\r\nb"),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"*0\r\n", []),
        (b"*2\r\n*1\r\n:1\r\n*0\r\n", [[1], []]),
        (b"_\r\n", None),
        (b"#t\r\n", True),
        (b",1.5\r\n", 1.5),
        (b"(12345678901234567890123\r\n", 12345678901234567890123),
        (b"=7\r\ntxt:abc\r\n", b"abc"),
        (b"~1\r\n:1\r\n", [1]),
        (b"%1\r\n+a\r\n*1\r\n:1\r\n", Pairs([(b"a", [1])])),
    ],
)
def test_types(data: bytes, value: object) -> None:
    assert decoded(data) == value


def test_a_status_is_a_status_and_a_bulk_is_not() -> None:
    assert type(decoded(b"+OK\r\n")) is SimpleString
    assert type(decoded(b"$2\r\nOK\r\n")) is bytes


@pytest.mark.parametrize("data", [b"-ERR no\r\n", b"!6\r\nERR no\r\n"])
def test_an_error_is_a_value(data: bytes) -> None:
    value = decoded(data)
    assert isinstance(value, ReplyError)
    assert (value.code, value.message) == ("ERR", "no")


@given(st.lists(st.integers(min_value=1, max_value=60)))
def test_how_the_bytes_were_cut_does_not_matter(cuts: list[int]) -> None:
    stream = b"*3\r\n$5\r\na\r\nbc\r\n%1\r\n+k\r\n*2\r\n:1\r\n$-1\r\n-ERR x\r\n+next\r\n:12\r\n"
    decoder, values = ReplyReader(), []
    pieces = []
    for cut in cuts:
        pieces.append(stream[:cut])
        stream = stream[cut:]
    for piece in [*pieces, stream]:
        decoder.feed(piece)
        while (value := decoder.gets()) is not NOTHING:
            values.append(value)
    assert repr(values) == "[[b'a\\r\\nbc', [(b'k', [1, None])], ReplyError('ERR x')], b'next', 12]"


@pytest.mark.parametrize("data", [b"HTTP/1.1 400\r\n", b"$x\r\n", b"*1.5\r\n", b"\r\n", b":\r\n", b",x\r\n"])
def test_what_is_no_reply_is_refused(data: bytes) -> None:
    with pytest.raises(BadReply):
        decoded(data)


def test_a_line_that_never_ends_is_refused() -> None:
    decoder = ReplyReader()
    decoder.feed(b"+" + b"x" * 200_000)
    with pytest.raises(BadReply):
        decoder.gets()


def test_a_reply_nested_too_deep_is_refused() -> None:
    with pytest.raises(BadReply):
        decoded(b"*1\r\n" * (DEPTH_MAX + 1) + b":1\r\n")
