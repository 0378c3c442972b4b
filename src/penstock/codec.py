"""From payloads, which are Python values, to bodies, which are bytes, and back.

Three codecs. A queue has one:

    json    the default: bytes are stored as they are, everything else as JSON. A value comes back as itself; bytes come
            back as JSON if they are JSON, else as a str if they are UTF-8, else as bytes
    text    a str, as UTF-8
    bytes   nothing is changed

A store of payloads (in a layout of Keuss) keeps the value, or marks bytes as such. A store of bodies keeps bytes, in
which the JSON of a value and the same bytes are one: that is why bytes are read as JSON everywhere.

JSON is strict here: no NaN or Infinity, no number that a float can't hold, no whole number of more digits than Python
reads (4,300), and no more than DEPTH_MAX containers within each other. A value beyond that is refused when it is
pushed; bytes that Python can't read as JSON are text.

On a store of bodies (the broker, directories) headers stand in front of the body, in a frame that no text begins with,
since 0xFF occurs nowhere in UTF-8:

    ff 50 4e 53 4b 01     the mark: 0xFF, `PNSK`, version 1
    4 bytes               the length of the headers, big-endian
    headers               a JSON object, UTF-8
    body                  the rest

A body without headers is stored raw, so that any client can read it; only one that happens to begin with the mark is
framed all the same.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import BadPayload, CallerError

CODECS = ("json", "text", "bytes")

MARK = b"\xffPNSK\x01"
_LENGTH = 4
HEADERS_BYTES_MAX = 64 * 1024  # they are read with every job; whoever needs more wants a body
# Python's parser gives up near 1,000, less the depth of its caller: what is pushed here must be readable anywhere.
DEPTH_MAX = 500


def _encoder() -> Callable[[Any], str]:
    """What JSONEncoder does, but with one encoder for all values: to make one takes longer than a small value."""
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # another Python than CPython
        return encoder.encode
    # Without a memory of what it is inside of: a value that holds itself is too deep, which is as good.
    chunks = make(None, encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)
    return lambda value: "".join(chunks(value, 0))


_compact = _encoder()
_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_LIKE_BYTES = (bytearray, memoryview)
_CONTAINERS = (dict, list, tuple)


def _fraction(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"a number must be within the range of a float, got {text}")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


_decoder = json.JSONDecoder(parse_float=_fraction, parse_constant=_constant)
_scan = _decoder.scan_once  # type: ignore[attr-defined]  # typeshed lacks it


def _parse(text: str) -> Any:
    try:
        value, end = _scan(text, 0)  # what `decode` does, less what it does for blanks around the value
    except StopIteration:
        return _decoder.decode(text)
    return value if end == len(text) else _decoder.decode(text)


def to_json(value: Any) -> str:
    """Return JSON without spaces, that every other language can read: no NaN, and no half of a surrogate pair."""
    try:
        text = _compact(value)
    except (TypeError, ValueError, RecursionError) as problem:
        raise BadPayload(f"this can't be written as JSON: {problem}. Push bytes, or values that JSON has.") from problem
    # A container takes two characters at least: most texts are too short to be too deep.
    if len(text) > 2 * DEPTH_MAX and text.count("[") + text.count("{") > DEPTH_MAX and is_deeper(value, DEPTH_MAX):
        raise BadPayload(f"a payload must have at most {DEPTH_MAX} lists and objects within each other, got more")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return _ascii(value)
    return text


def is_deeper(value: dict[Any, Any] | list[Any] | tuple[Any, ...], depth: int) -> bool:
    """Whether a value has more than `depth` containers within each other, itself included."""
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _CONTAINERS)
        ]
        if not level:
            return False
    return True


def from_json(text: str | bytes) -> Any:
    """Return the value; ValueError if the text is not JSON, RecursionError if it is too deep to be read."""
    if isinstance(text, bytes):
        text = text.decode()
    return _parse(text)


def check_codec(codec: str) -> str:
    if codec not in CODECS:
        raise CallerError(f"there is no codec {codec!r}; the codecs are {', '.join(CODECS)}")
    return codec


def encode(payload: Any, codec: str = "json") -> bytes:
    """The body of a payload."""
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, _LIKE_BYTES):
        return bytes(payload)
    if codec == "json":
        return to_json(payload).encode()
    if codec == "text" and isinstance(payload, str):
        try:
            return payload.encode()
        except UnicodeEncodeError as problem:
            raise BadPayload(f"this text can't be written as UTF-8: {problem}") from problem
    wanted = "str or bytes" if codec == "text" else "bytes"
    raise BadPayload(f"a queue with the codec {codec!r} takes {wanted}, not {type(payload).__name__}")


def decode(body: bytes, codec: str = "json") -> Any:
    """Return the payload of a body, or of bytes that a store of payloads keeps."""
    if codec == "bytes":
        return body
    if codec == "text":
        return body.decode(errors="replace")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    try:
        return _parse(text)
    except (ValueError, RecursionError):
        return text


def frame(body: bytes, headers: Mapping[str, Any]) -> bytes:
    """Body and headers as one, for stores that have only bodies."""
    if not headers and not body.startswith(MARK):
        return body
    text = to_json(dict(headers)).encode()
    if len(text) > HEADERS_BYTES_MAX:
        raise BadPayload(f"headers must be at most {HEADERS_BYTES_MAX} bytes of JSON, got {len(text)}")
    return b"".join((MARK, len(text).to_bytes(_LENGTH, "big"), text, body))


def unframe(stored: bytes) -> tuple[bytes, dict[str, Any]]:
    """What `frame` put together. Bytes that only look like a frame are a body."""
    if not stored.startswith(MARK):
        return stored, {}
    begin = len(MARK) + _LENGTH
    end = begin + int.from_bytes(stored[len(MARK) : begin], "big")
    try:
        headers = from_json(stored[begin:end])
    except (ValueError, RecursionError):
        return stored, {}
    if not isinstance(headers, dict) or end > len(stored):
        return stored, {}
    return stored[end:], headers
