"""Replies from bytes: a reader in plain Python that keeps what hiredis drops, whether a text was a simple or a bulk
string.

`+OK` and `$2 OK` are the same to a program, but a person at the command line wants to see `OK` and `"OK"`. So only the
command line uses this reader, which is slower; everything else reads through hiredis. It has the same two methods
(`feed`, `gets`), so that a connection takes either. It keeps its position between calls: a reply that arrives in a
thousand pieces is parsed once. RESP3 types are read too, for users who type `HELLO 3`.
"""

from penstock.errors import BadReply, ReplyError


class SimpleString(bytes):
    """A simple string: `+OK`."""


class Nothing:
    """What `gets` returns while a reply isn't complete; None can't, for it is a value."""


NOTHING = Nothing()

# A header (`*3`, `:17`, `+OK`) longer than this is not from a node: the longest are error texts, which
# quote at most one inline request of 64 KB. Without it a peer that never ends its line would take all memory.
HEADER_BYTES_MAX = 128 * 1024
# Deeper nesting than any reply has, as a guard for the recursive formatters.
DEPTH_MAX = 64

_LINE_ENDS = b"\r\n"


class _Frame:
    """An array, set or map that is being filled."""

    __slots__ = ("items", "kind", "left")

    def __init__(self, kind: int, left: int) -> None:
        self.kind, self.left = kind, left
        self.items: list[object] = []

    def value(self) -> object:
        if self.kind != ord("%"):
            return self.items
        return Pairs(zip(self.items[::2], self.items[1::2], strict=True))


class Pairs(list[tuple[object, object]]):
    """A RESP3 map. Its keys may be of any type, so it is a list of pairs in the order they came."""


class ReplyReader:
    """Bytes in; int, bytes, Status, None, list, ReplyError out; of RESP3 also bool, float, Pairs."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._stack: list[_Frame] = []

    def feed(self, data: bytes) -> None:
        """Add what came from the socket."""
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def gets(self) -> object:
        """Return the next whole reply, or NOTHING."""
        while True:
            value = self._scalar_or_frame()
            if value is NOTHING:
                return NOTHING
            if isinstance(value, _Frame):
                if value.left:
                    if len(self._stack) == DEPTH_MAX:
                        raise BadReply(f"a reply nested more than {DEPTH_MAX} deep")
                    self._stack.append(value)
                    continue
                value = value.value()
            while self._stack:
                frame = self._stack[-1]
                frame.items.append(value)
                frame.left -= 1
                if frame.left:
                    break
                self._stack.pop()
                value = frame.value()
            else:
                return value

    def _scalar_or_frame(self) -> object:
        end = self._buffer.find(_LINE_ENDS, self._at, self._at + HEADER_BYTES_MAX)
        if end < 0:
            if len(self._buffer) - self._at >= HEADER_BYTES_MAX:
                raise BadReply("a reply whose first line does not end")
            return NOTHING
        if end == self._at:
            raise BadReply("an empty line where a reply should begin")
        kind = self._buffer[self._at]
        line = bytes(self._buffer[self._at + 1 : end])
        after = end + 2
        if kind in b"$=!":
            return self._bulk(kind, line, after)
        self._at = after
        if kind in b"*~>%":
            count = _integer(line)
            if count < 0:
                return None
            return _Frame(kind, count * 2 if kind == ord("%") else count)
        return _simple(kind, line)

    def _bulk(self, kind: int, line: bytes, start: int) -> object:
        size = _integer(line)
        if size < 0:
            self._at = start
            return None
        if len(self._buffer) < start + size + 2:
            return NOTHING
        body = bytes(self._buffer[start : start + size])
        self._at = start + size + 2
        if kind == ord("!"):
            return ReplyError(body.decode("utf-8", "replace"))
        # A verbatim string begins with its format, `txt:`.
        return SimpleString(body[4:]) if kind == ord("=") else body


def _integer(line: bytes) -> int:
    try:
        return int(line)
    except ValueError:
        raise BadReply(f"{line[:40]!r} where a number should be") from None


def _simple(kind: int, line: bytes) -> object:
    if kind == ord("+"):
        return SimpleString(line)
    if kind == ord("-"):
        return ReplyError(line.decode("utf-8", "replace"))
    if kind in b":(":
        return _integer(line)
    if kind == ord("_"):
        return None
    if kind == ord("#"):
        return line == b"t"
    if kind == ord(","):
        try:
            return float(line)
        except ValueError:
            raise BadReply(f"{line[:40]!r} where a number should be") from None
    raise BadReply(f"a reply that begins with {bytes([kind])!r}")
