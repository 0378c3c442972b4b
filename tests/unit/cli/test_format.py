"""How replies are printed. The human, raw and CSV forms are what the original tool's users know."""

import json

import pytest

from penstock.cli.shell import formats
from penstock.errors import ReplyError
from penstock.wire.reply_reader import Pairs, SimpleString

NESTED = [1, [b"a", [], None, [b"x", b"y"]], b'q"\\\r\n\t\x01\xc3\xa9', ReplyError("ERR boo"), SimpleString(b"OK")]

HUMAN = r"""
1) (integer) 1
2) 1) "a"
   2) (empty list or set)
   3) (nil)
   4) 1) "x"
      2) "y"
3) "q\"\\\r\n\t\x01\xc3\xa9"
4) (error) ERR boo
5) OK
""".lstrip("\n")


def test_human_form_of_a_nested_reply() -> None:
    assert formats.human(NESTED).decode() == HUMAN


def test_human_form_aligns_numbers_of_different_width() -> None:
    lines = formats.human([[1, 2], *range(9)]).decode().splitlines()
    assert lines[:3] == [" 1) 1) (integer) 1", "    2) (integer) 2", " 2) (integer) 0"]
    assert lines[-1] == "10) (integer) 8"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "(integer) 7"),
        (-1, "(integer) -1"),
        (None, "(nil)"),
        (b"", '""'),
        (b"OK", '"OK"'),
        (SimpleString(b"OK"), "OK"),
        ([], "(empty list or set)"),
        (ReplyError("NOJOB Job not known"), "(error) NOJOB Job not known"),
        (True, "(true)"),
        (1.5, "(double) 1.5"),
        (Pairs([(b"a", [1, 2])]), '1# "a" => 1) (integer) 1\n   2) (integer) 2'),
    ],
)
def test_human_form(value: object, text: str) -> None:
    assert formats.human(value).decode() == text + "\n"


def test_no_reply_can_send_control_codes_to_the_terminal() -> None:
    evil = "\x1b]0;title\x07"
    for value in (evil.encode(), SimpleString(evil.encode()), ReplyError(evil)):
        assert b"\x1b" not in formats.human(value)


def test_colours_wrap_the_text_and_change_nothing_else() -> None:
    assert formats.human(ReplyError("ERR x"), color=True) == b"\x1b[31m(error) ERR x\x1b[0m\n"
    assert formats.human(b"x", color=True) == formats.human(b"x")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, b"7\n"),
        (None, b"\n"),
        ([], b"\n"),
        (b"\x00\xff\r\n", b"\x00\xff\r\n\n"),
        (ReplyError("ERR x"), b"ERR x\n\n"),
        ([b"a", [b"b", None, [1]]], b"a\nb\n\n1\n"),
        (Pairs([(b"a", 1)]), b"a\n1\n"),
    ],
)
def test_raw_form(value: object, text: bytes) -> None:
    assert formats.raw(value) == text


def test_raw_form_with_another_delimiter() -> None:
    assert formats.raw([b"a", b"b"], b"; ") == b"a; b\n"


def test_csv_form() -> None:
    expected = '1,"a",,NIL,"x","y","q\\"\\\\\\r\\n\\t\\x01\\xc3\\xa9",ERROR,"ERR boo","OK"\n'
    assert formats.csv(NESTED).decode() == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"caf\xc3\xa9", "café"),
        (b"\xff", {"base64": "/w=="}),
        (ReplyError("ERR x"), {"error": "ERR x"}),
        (None, None),
        ([1, [b"a"]], [1, ["a"]]),
        (Pairs([(b"a", 1), (2, True)]), {"a": 1, "2": True}),
        (float("inf"), "inf"),
    ],
)
def test_json_form(value: object, expected: object) -> None:
    text = formats.as_json(value)
    assert json.loads(text) == expected
    assert text.count(b"\n") == 1
