"""Reading arguments: numbers as the original reads them, and words in any case."""

from __future__ import annotations

import re
from typing import Final

from penstock.broker.core.refusals import Refused

_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64: Final = 2**64
SYNTAX_ERROR: Final = ("ERR", "syntax error")
NOT_A_NUMBER: Final = ("ERR", "value is not an integer or out of range")
BAD_TIMEOUT: Final = ("ERR", "timeout is not an integer or out of range")
NEGATIVE_TIMEOUT: Final = ("ERR", "timeout is negative")


def to_integer(text: bytes) -> int | None:
    """Read a 64-bit number; None if it isn't one. An empty text is 0, and a NUL ends the text, as ever."""
    text = text.partition(b"\0")[0]
    if not text:
        return 0
    if len(text) > 40 or not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if INT64_MIN <= value <= INT64_MAX else None


def integer_argument(text: bytes) -> int:
    """Read a number or refuse."""
    value = to_integer(text)
    if value is None:
        raise Refused(*NOT_A_NUMBER)
    return value


def timeout_argument(text: bytes) -> int:
    """Read a time-out in milliseconds or refuse."""
    value = to_integer(text)
    if value is None:
        raise Refused(*BAD_TIMEOUT)
    if value < 0:
        raise Refused(*NEGATIVE_TIMEOUT)
    return value


def cursor_argument(text: bytes) -> int:
    """Read a scan's cursor: unsigned, so that -1 is the largest."""
    if not _INTEGER.fullmatch(text) or len(text) > 40:
        raise Refused("ERR", "invalid cursor or option name")
    return int(text) % UINT64


def duration_argument(text: bytes, name: str, most_ms: int) -> int:
    """Read one of our own times in milliseconds."""
    value = to_integer(text)
    if value is None or not 0 <= value <= most_ms:
        raise Refused("ERR", f"{name} must be a number of milliseconds between 0 and {most_ms}")
    return value
