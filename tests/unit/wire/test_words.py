"""Quoting: lines to words, and a word to a quoted one."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire import quote_word, split_words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", []),
        (b" \t\r\n", []),
        (b"PING\r\n", [b"PING"]),
        (b"  a\tb \v c  ", [b"a", b"b", b"c"]),
        (b"a\vb", [b"a\vb"]),
        (b'requirepass ""', [b"requirepass", b""]),
        (b"''", [b""]),
        (b'"a b" c', [b"a b", b"c"]),
        (rb'"\x41\xfF\n\r\t\b\a\\\"\q\xZZ"', [b'A\xff\n\r\t\b\a\\"qxZZ']),
        (rb"'a\'b\n\x41'", [rb"a'b\n\x41"]),
        (rb"\x41 \n", [rb"\x41", rb"\n"]),
        (b"key=\"a b\" key=''", [b"key=a b", b"key="]),
        (b"nul\0byte", [b"nul\0byte"]),
    ],
)
def test_a_line_gives_its_words(line: bytes, words: list[bytes]) -> None:
    assert split_words(line) == words


@pytest.mark.parametrize("line", [b'"a', b"'a", b'"a"b', b"'a'b", b"\"a\"'b'", b'"a\\"', rb"'a\\'", b'"a\\', b'a"'])
def test_quotes_that_do_not_end_a_word_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="unbalanced quotes"):
        split_words(line)


def test_a_quoted_word_is_printable_and_in_one_line() -> None:
    assert quote_word(b'a "b" \\ \n\r\t\a\b\0\x7f\xff~') == rb'"a \"b\" \\ \n\r\t\a\b\x00\x7f\xff~"'


@given(st.lists(st.binary()))
def test_quoted_words_come_back_byte_for_byte(words: list[bytes]) -> None:
    assert split_words(b" ".join(map(quote_word, words))) == words


@given(st.text(alphabet="ab \\\"'nx4\n\v", max_size=30))
def test_any_line_gives_words_or_a_value_error(line: str) -> None:
    with contextlib.suppress(ValueError):
        words = split_words(line.encode())
        assert sum(map(len, words)) <= len(line)
