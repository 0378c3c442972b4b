"""Replies as text: for people, for pipes, as CSV, as JSON. A pure module: values in, bytes out.

The human and raw forms are those of the original `disque` tool. All forms end with one line end. They are bytes,
because a job's body in raw form must be printed exactly as it is.
"""

import base64
import json
import math
from collections.abc import Callable
from typing import Any

from penstock.errors import ReplyError
from penstock.wire import quote_word
from penstock.wire.reply_reader import Pairs, SimpleString

_RED, _CYAN, _DIM, _PLAIN = "\x1b[31m", "\x1b[36m", "\x1b[2m", "\x1b[0m"


def human(value: object, *, color: bool = False) -> bytes:
    """Return the form for terminals: `(integer) 1`, `"text"`, `(nil)`, `1) ...`."""
    return _human(value, "", _paint if color else _leave).encode()


def _human(value: object, prefix: str, paint: Callable[[str, str], str]) -> str:
    if isinstance(value, list):
        return _human_list(value, prefix, paint)
    return _human_scalar(value, paint) + "\n"


def _human_scalar(value: object, paint: Callable[[str, str], str]) -> str:
    if value is None:
        return paint(_DIM, "(nil)")
    if isinstance(value, ReplyError):
        return paint(_RED, f"(error) {printable(str(value))}")
    if isinstance(value, SimpleString):
        return printable(value.decode("utf-8", "replace"))
    if isinstance(value, bytes):
        return _quoted(value)
    if isinstance(value, bool):
        return paint(_CYAN, "(true)" if value else "(false)")
    if isinstance(value, float):
        return paint(_CYAN, f"(double) {value:.17g}")
    return paint(_CYAN, f"(integer) {value}")


def _human_list(value: list[Any], prefix: str, paint: Callable[[str, str], str]) -> str:
    if not value:
        return "(empty list or set)\n"
    width = len(str(len(value)))
    inner = prefix + " " * (width + 2)
    parts = []
    for number, item in enumerate(value, 1):
        # The first item is on its parent's line, behind the parent's number.
        indent = prefix if number > 1 else ""
        if isinstance(value, Pairs):
            key = _human_scalar(item[0], paint) if not isinstance(item[0], list) else "(list)"
            parts.append(f"{indent}{number:>{width}}# {key} => {_human(item[1], inner, paint)}")
        else:
            parts.append(f"{indent}{number:>{width}}) {_human(item, inner, paint)}")
    return "".join(parts)


def _quoted(text: bytes) -> str:
    """Return a quoted text. All but printable ASCII is escaped, so that no reply can control the terminal."""
    return quote_word(text).decode()


def printable(text: str) -> str:
    """Return a server's text without control characters, except for line ends."""
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in text)


def _paint(color: str, text: str) -> str:
    return f"{color}{text}{_PLAIN}"


def _leave(_color: str, text: str) -> str:
    return text


def raw(value: object, delimiter: bytes = b"\n") -> bytes:
    """Return the form for pipes: an item on each line, arrays flattened, nil empty, an empty line after an error."""
    return delimiter.join(_raw_items(value)) + b"\n"


def _raw_items(value: object) -> list[bytes]:
    if isinstance(value, Pairs):
        return [item for pair in value for side in pair for item in _raw_items(side)]
    if isinstance(value, list):
        return [item for element in value for item in _raw_items(element)] if value else [b""]
    if value is None:
        return [b""]
    if isinstance(value, ReplyError):
        return [str(value).encode() + b"\n"]
    if isinstance(value, bytes):
        return [bytes(value)]
    return [_number(value).encode()]


def csv(value: object) -> bytes:
    """Return one line of CSV: texts quoted, arrays flattened, nil as NIL, an error as ERROR and its text."""
    return ",".join(_csv_items(value)).encode() + b"\n"


def _csv_items(value: object) -> list[str]:
    if isinstance(value, Pairs):
        return [item for pair in value for side in pair for item in _csv_items(side)]
    if isinstance(value, list):
        return [item for element in value for item in _csv_items(element)] if value else [""]
    if value is None:
        return ["NIL"]
    if isinstance(value, ReplyError):
        return ["ERROR", _quoted(str(value).encode())]
    return [_quoted(value) if isinstance(value, bytes) else _number(value)]


def as_json(value: object) -> bytes:
    """Return one line of JSON: texts as UTF-8, other bytes as {"base64": ...}, an error as {"error": ...}."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, Pairs):
        return {_key(key): _plain(item) for key, item in value}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, ReplyError):
        return {"error": str(value)}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return value


def _key(value: object) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _number(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.17g}" if isinstance(value, float) else str(value)
