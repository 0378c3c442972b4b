"""Replies as bytes (RESP2 and RESP3), and requests as a client writes them.

Each encoder gives the bytes of one whole reply; arrays and maps take items that are encoded already, so
that a hot path can build its items as it likes. `encode_value` does the same for nested Python values, for
replies where speed doesn't matter:

    int -> :5    bytes -> $bulk    str -> +simple    None -> $-1 (RESP3 _)    list, tuple -> *array
    dict -> an array of key, value, key, value (RESP3 %map)

A simple string or an error is one line. CR and LF in it are replaced by blanks: text that came from outside
(a command's name in an error) can't end the reply early and forge the next one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = int | bytes | str | Sequence["Value"] | Mapping["Value", "Value"] | None

OK = b"+OK\r\n"
NULL_BULK = b"$-1\r\n"
NULL_ARRAY = b"*-1\r\n"
NULL3 = b"_\r\n"
EMPTY_ARRAY = b"*0\r\n"

_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


def _line(text: bytes | str) -> bytes:
    # surrogateescape: bytes of a client that were decoded that way to be put into a message leave as they
    # came.
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return raw.translate(_ONE_LINE)


def simple(text: bytes | str) -> bytes:
    """A simple string: one line."""
    return b"+%b\r\n" % _line(text)


def error(text: bytes | str) -> bytes:
    """An error. `text` begins with its code: `ERR syntax error`."""
    return b"-%b\r\n" % _line(text)


def integer(value: int) -> bytes:
    return b":%d\r\n" % value


def bulk(value: bytes) -> bytes:
    """A string of any bytes."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def array(items: Iterable[bytes]) -> bytes:
    """An array of items that are encoded already."""
    encoded = [b"", *items]
    encoded[0] = b"*%d\r\n" % (len(encoded) - 1)
    return b"".join(encoded)


def map3(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A RESP3 map of keys and values that are encoded already."""
    encoded = [key + value for key, value in pairs]
    return b"%%%d\r\n%b" % (len(encoded), b"".join(encoded))


def encode_value(value: Value, protocol: int = 2) -> bytes:
    """Any nesting of Python values as a reply in RESP `protocol` (2 or 3)."""
    if isinstance(value, bytes):
        return bulk(value)
    if isinstance(value, str):
        return simple(value)
    if isinstance(value, int):
        return integer(value)
    if value is None:
        return NULL3 if protocol == 3 else NULL_BULK
    if isinstance(value, Mapping):
        pairs = [(encode_value(key, protocol), encode_value(item, protocol)) for key, item in value.items()]
        if protocol == 3:
            return map3(pairs)
        return array([encoded for pair in pairs for encoded in pair])
    if isinstance(value, list | tuple):
        return array([encode_value(item, protocol) for item in value])
    raise TypeError(f"no reply can hold a {type(value).__name__}")


def encode_request(*arguments: bytes | str | int) -> bytes:
    """A request as clients send it: an array of bulks. Strings are sent as UTF-8, integers in decimal."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        if isinstance(argument, bytes):
            parts.append(bulk(argument))
        else:
            parts.append(bulk(str(argument).encode()))
    return b"".join(parts)
