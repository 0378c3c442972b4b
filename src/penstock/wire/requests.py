r"""Requests: what a client sends, cut out of a stream of bytes.

A request comes in one of two forms, and a client may mix them:

    *2\r\n$4\r\nQLEN\r\n$5\r\nmails\r\n        an array of bulks, each with its length in front
    QLEN mails\n                              inline: a line of words, as typed into a terminal (see `words`)

Two parsers read them, and they agree on what a stream means:

- `PureParser` is the definition. It takes bytes cut anywhere, remembers what is unfinished, and says what
  is wrong in the words of the original. It never looks at a byte twice: a bulk of 64 MB in 16,000 pieces
  costs 16,000 appends and one join. What is only announced costs nothing.
- `RequestReader` is what connections use. Nearly every chunk from a socket holds whole arrays, and the C
  parser of hiredis takes these about ten times faster. The rule that keeps two parsers safe in one stream:
  **hiredis stands at the beginning of a request whenever a chunk begins.** If a chunk ends inside a
  request, or holds anything that hiredis refuses or that isn't a request, then the bytes from the beginning
  of that request go to the pure parser, and hiredis starts afresh behind it.

hiredis reads replies, not requests, so three things need care:

- It makes room for an array when its count is announced. `*2000000000` alone would cost six seconds to
  clean up, and `>100000000` 800 MB. A chunk with such a count never reaches it.
- It takes a simple string (`+x`), a verbatim string (`=`) or a big number (`(`) as an element of an array.
  No client sends them; if one does and they lie whole in a chunk, they count as bulks. The pure parser
  refuses them.
- It copies all that is left each time it has consumed a kilobyte, so it gets a large chunk in slices.
"""

import re
from typing import NoReturn

import hiredis

from penstock.wire.words import split_words

ARGUMENTS_MAX = 1048576
"""Arguments of a request. The original's limit; a client that needs more splits its request."""

BULK_BYTES_MAX = 512 * 1024 * 1024
"""Bytes of one argument. The original's limit; a job's body is one argument."""

INLINE_BYTES_MAX = 64 * 1024
"""Bytes of a line: an inline request or the header of an array or a bulk. The original's limit. People type
far less; a peer that sends more without a line end speaks another protocol."""

REQUEST_BYTES = 100
"""A parsed request without its arguments: the list."""

ARGUMENT_BYTES = 56
"""A parsed argument without its bytes: the object and its place in the list. One of two bytes takes eight in
the stream and seven times that in memory."""

_HEADER_BYTES_MAX = len(b"$536870912\r\n")
"""A well-formed header of a bulk is at most this long. The quick path looks no further for its end."""

_SMALL_PIECE_BYTES = 16 * 1024
"""Pieces of a bulk are collected up to this size before they count as one. A client that sends 2 bytes at a
time would make us keep 50 bytes for each of its pieces; this way the overhead of a bulk is at most a few
percent."""

_SLICE_BYTES = 16 * 1024
"""hiredis gets this much at once. Measured: from 4 to 16 KB a request costs the same, at 256 KB about twice
as much."""

# Counts of 10,000 and more: the pure parser takes those, since it makes room only for what has arrived.
# Smaller ones cost hiredis microseconds. hiredis would also read sets, pushes and attributes as arrays, but
# they are not requests.
_large_array = re.compile(rb"\*[0-9]{5,}\r\n").search
_set = re.compile(rb"~[0-9]+\r\n").search
_push = re.compile(rb">[0-9]+\r\n").search
_attribute = re.compile(rb"\|[0-9]+\r\n").search

_MORE = object()
_CR = 0x0D
_DOLLAR = 0x24
_STAR = 0x2A
_ZERO = 0x30
_EQUALS = 0x3D
_GREATER = 0x3E
_BAR = 0x7C
_TILDE = 0x7E
_join = b"".join


class ProtocolError(Exception):
    """The stream holds something that is not a request. What follows can't be parsed: answer, then close."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Protocol error: {reason}")


def _length(header: bytes) -> int | None:
    """The number in a header line, or None: digits without leading zeros, maybe a minus, CR LF."""
    text = header[1:-2]
    digits = text[1:] if text[:1] == b"-" else text
    # 19 digits hold any 64-bit number; all the limits are smaller.
    if header[-2:] != b"\r\n" or not digits.isdigit() or len(digits) > 19:
        return None
    if digits[0] == _ZERO and text != b"0":
        return None
    return int(text)


class PureParser:
    """Requests from bytes that are cut anywhere. See the module's docstring.

    `error` is set when the stream is broken; `pending_bytes` counts what has arrived of the unfinished
    request. `arguments_max` and `bulk_bytes_max` can be set to less, for a client that has not authenticated.
    """

    __slots__ = (
        "_arguments",
        "_arguments_missing",
        "_bulk_missing",
        "_line",
        "_pieces",
        "_small",
        "arguments_max",
        "bulk_bytes_max",
        "error",
        "pending_bytes",
    )

    def __init__(self) -> None:
        self.error: ProtocolError | None = None
        self.pending_bytes = 0
        self.arguments_max = ARGUMENTS_MAX
        self.bulk_bytes_max = BULK_BYTES_MAX
        self._line = bytearray()  # the unfinished line
        self._arguments: list[bytes] = []
        self._arguments_missing = 0  # of the array; 0 outside of one
        self._bulk_missing = 0  # bytes of the bulk, with its line end; 0 outside of one
        self._pieces: list[bytes | bytearray] = []  # of the unfinished bulk
        self._small = bytearray()  # small pieces, which follow those

    @property
    def held_bytes(self) -> int:
        """What the unfinished request takes in memory."""
        return self.pending_bytes + ARGUMENT_BYTES * len(self._arguments)

    def feed(self, data: bytes, start: int = 0) -> list[list[bytes]]:
        """The requests that `data` completes from `start` on, in order. After an error: none."""
        requests: list[list[bytes]] = []
        position = start
        size = len(data)
        while position < size and self.error is None:
            request, position = self.take(data, position)
            if request is not None:
                requests.append(request)
        return requests

    def take(self, data: bytes, start: int = 0) -> tuple[list[bytes] | None, int]:
        """Read `data` from `start` until one request is complete: the request, and where it ends.

        Without a complete request: None and the end of `data`. A broken stream gives the same, and sets
        `error`.
        """
        try:
            position = start
            while position < len(data):
                position = self._step(data, position)
                if self._arguments and not self._arguments_missing:
                    request = self._arguments
                    self._arguments = []
                    self.pending_bytes = 0
                    return request, position
                if not self._arguments_missing and not self._line:
                    # An empty request (a blank line, *0) has just been skipped.
                    self.pending_bytes = 0
                    start = position
        except ProtocolError as error:
            self._break(error)
            return None, len(data)
        self.pending_bytes += position - start
        return None, position

    def _break(self, error: ProtocolError) -> None:
        """Keep the error, and let go of what was pending (only a line can break a stream: no bulk is)."""
        self.error = error
        # Its traceback would keep the whole chunk alive, and this parser in a cycle.
        error.__traceback__ = error.__context__ = None
        self.pending_bytes = 0
        self._line.clear()
        self._arguments.clear()

    def _step(self, data: bytes, position: int) -> int:
        """Take a piece of a bulk, or a line, or all the bulks that lie whole in `data`. Gives its end."""
        if self._bulk_missing:
            return self._take_bulk_piece(data, position)
        if self._arguments_missing and not self._line:
            after = self._take_whole_bulks(data, position)
            if after > position:
                return after
        line, position = self._take_line(data, position)
        if line is None:
            return position
        if self._arguments_missing:
            self._begin_bulk(line)
        elif line[0] == _STAR:
            count = _length(line)
            if count is None or count > ARGUMENTS_MAX:
                raise ProtocolError("invalid multibulk length")
            if count > self.arguments_max:
                raise ProtocolError(f"multibulk length must be at most {self.arguments_max} before AUTH, got {count}")
            self._arguments_missing = max(count, 0)
        else:
            try:
                words = split_words(line)
            except ValueError:
                raise ProtocolError("unbalanced quotes in request") from None
            self._arguments = [word for word in words if word]
        return position

    def _take_whole_bulks(self, data: bytes, position: int) -> int:
        """The quick path: well-formed bulks that lie whole in `data`. It stops where anything else comes."""
        find = data.find
        size = len(data)
        arguments = self._arguments
        missing = self._arguments_missing
        while missing and position < size and data[position] == _DOLLAR:
            line_end = find(b"\r\n", position, position + _HEADER_BYTES_MAX)
            digits = data[position + 1 : line_end]
            if line_end < 0 or not digits.isdigit() or (digits[0] == _ZERO and len(digits) > 1):
                break
            start = line_end + 2
            end = start + int(digits)
            if end + 2 > size or end - start > self.bulk_bytes_max:
                break
            arguments.append(data[start:end])
            position = end + 2
            missing -= 1
        self._arguments_missing = missing
        return position

    def _take_line(self, data: bytes, position: int) -> tuple[bytes | None, int]:
        """A line with its line end, or None if that has yet to arrive."""
        room = INLINE_BYTES_MAX + 1 - len(self._line)
        newline = data.find(b"\n", position, position + room)
        if newline < 0:
            piece = data[position : position + room]
            if len(piece) == room:
                self._refuse_line((self._line or piece)[0])
            self._line += piece
            return None, len(data)
        line = data[position : newline + 1]
        if self._line:
            line = bytes(self._line + line)
            self._line = bytearray()
        return line, newline + 1

    def _refuse_line(self, first_byte: int) -> NoReturn:
        if self._arguments_missing:
            raise ProtocolError("too big bulk count string")
        if first_byte == _STAR:
            raise ProtocolError("too big mbulk count string")
        raise ProtocolError("too big inline request")

    def _begin_bulk(self, header: bytes) -> None:
        if header[0] != _DOLLAR:
            byte = header[0]
            shown = chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"
            raise ProtocolError(f"expected '$', got '{shown}'")
        size = _length(header)
        if size is None or not 0 <= size <= BULK_BYTES_MAX:
            raise ProtocolError("invalid bulk length")
        if size > self.bulk_bytes_max:
            raise ProtocolError(f"bulk length must be at most {self.bulk_bytes_max} before AUTH, got {size}")
        self._bulk_missing = size + 2

    def _take_bulk_piece(self, data: bytes, position: int) -> int:
        """What `data` has of the bulk. The two bytes behind it are not looked at, here as in the original."""
        end = min(position + self._bulk_missing, len(data))
        body_end = min(position + self._bulk_missing - 2, end)
        if body_end > position:
            self._keep_piece(data[position:body_end])
        self._bulk_missing -= end - position
        if not self._bulk_missing:
            self._pieces.append(self._small)
            self._arguments.append(_join(self._pieces))
            self._pieces = []
            self._small = bytearray()
            self._arguments_missing -= 1
        return end

    def _keep_piece(self, piece: bytes) -> None:
        if len(piece) < _SMALL_PIECE_BYTES:
            self._small += piece
            if len(self._small) < _SMALL_PIECE_BYTES:
                return
            self._pieces.append(self._small)
            self._small = bytearray()
            return
        if self._small:
            self._pieces.append(self._small)
            self._small = bytearray()
        self._pieces.append(piece)


# hiredis must not see some chunks. Two tests of a chunk: the first is quick and passes the most common one,
# the other is exact. In both, an integer on the left of `in` is one memchr; a byte string there costs ten.


def _is_one_array(data: bytes) -> bool:
    """Whether `data` has at most one array header, in front and of a small count, and no other aggregate."""
    return (
        len(data) <= _SLICE_BYTES
        and _CR in data[2:6]  # *9999 and less
        and _STAR not in data[1:]
        and _TILDE not in data
        and _GREATER not in data
        and _BAR not in data
    )


def _is_for_hiredis(data: bytes, start: int) -> bool:
    """Whether `data` is free of what hiredis must not see. A body may look like it: that only costs time."""
    return not (
        len(data) > BULK_BYTES_MAX
        or _large_array(data, start)
        or (_TILDE in data and _set(data, start))
        or (_GREATER in data and _push(data, start))
        or (_BAR in data and _attribute(data, start))
    )


def _skip(data: bytes, position: int, taken: list[list[bytes]]) -> int:
    """Where the requests `taken` by hiredis end, if the first of them begins at `position`.

    hiredis takes numbers only in their shortest form, so the length of an argument gives the length of its
    header.
    """
    for arguments in taken:
        position += 3 + len(str(len(arguments)))
        for argument in arguments:
            if data[position] == _DOLLAR:
                size = len(argument)
                position += size + (6 if size < 10 else 7 if size < 100 else 5 + len(str(size)))
                continue
            line_end = data.find(b"\r\n", position)
            if data[position] == _EQUALS:
                line_end += 2 + int(data[position + 1 : line_end])
            position = line_end + 2
    return position


class RequestReader:
    """Requests of one connection, at speed: hiredis where it can, the pure parser where it must.

    `error` is set when the stream is broken, behind the requests that `feed` gave last; from then on `feed`
    gives none. `held_bytes` is what the unfinished request takes in memory.
    """

    __slots__ = ("_feed", "_gets", "_has_data", "_interrupted", "_pure", "error", "held_bytes")

    def __init__(self) -> None:
        self.error: ProtocolError | None = None
        self.held_bytes = 0
        self._pure = PureParser()
        self._interrupted = False  # the pure parser holds a part of a request, or the stream is broken
        self._renew()

    def _renew(self) -> None:
        """A fresh hiredis reader, at the beginning of a request."""
        reader = hiredis.Reader(notEnoughData=_MORE)
        self._feed = reader.feed
        self._gets = reader.gets
        self._has_data = reader.has_data

    @property
    def pending_bytes(self) -> int:
        """Bytes that have arrived of the unfinished request."""
        return self._pure.pending_bytes

    def restrict(self, arguments_max: int, bulk_bytes_max: int) -> None:
        """Take only small requests, with `take`, until `restrict` says otherwise."""
        self._pure.arguments_max = arguments_max
        self._pure.bulk_bytes_max = bulk_bytes_max

    def take(self, data: bytes, start: int) -> tuple[list[bytes] | None, int]:
        """Read `data` from `start` until one request is complete, as `PureParser.take`.

        For a client whose next request may change what it is allowed to send.
        """
        request, position = self._pure.take(data, start)
        self.error = self._pure.error
        self.held_bytes = self._pure.held_bytes
        self._interrupted = self.error is not None or self._pure.pending_bytes > 0
        return request, position

    def clear(self) -> None:
        """Let go of the unfinished request: nothing more is read."""
        self._pure = PureParser()
        self._interrupted = False
        self.held_bytes = 0

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The requests that `data` completes, in order."""
        requests: list[list[bytes]] = []
        start = 0
        if self._interrupted:
            start = self._finish_request(data, requests)
        size = len(data)
        if start == size:
            return requests
        if not _is_one_array(data) and not _is_for_hiredis(data, start):
            return self._feed_pure(data, start, requests)
        if size - start <= _SLICE_BYTES:
            fed = size
            self._feed(data, start)
        else:
            fed = start + _SLICE_BYTES
            self._feed(data, start, _SLICE_BYTES)
        gets = self._gets
        has_data = self._has_data
        append = requests.append
        try:
            while True:
                arguments = gets()
                if type(arguments) is list and arguments:
                    # The cheapest way to see that all of them are bytes: anything else is a TypeError.
                    _join(arguments)
                    append(arguments)
                    if has_data():
                        continue
                elif arguments is not _MORE or fed == size:
                    break
                if fed == size:
                    return requests
                slice_start = fed
                fed = min(fed + _SLICE_BYTES, size)
                self._feed(data, slice_start, fed - slice_start)
        except Exception:  # Whatever hiredis could not read: the pure parser has the last word on it.
            pass
        self._renew()
        # Where hiredis began inside the chunk, the first request is the one that was pending before.
        taken = requests[1:] if start else requests
        return self._feed_pure(data, _skip(data, start, taken), requests)

    def _finish_request(self, data: bytes, requests: list[list[bytes]]) -> int:
        """Complete the pending request. Gives where it ends: hiredis may go on from there."""
        if self.error is not None:
            return len(data)
        request, position = self.take(data, 0)
        if request is not None:
            requests.append(request)
        return position

    def _feed_pure(self, data: bytes, start: int, requests: list[list[bytes]]) -> list[list[bytes]]:
        """Pass the rest of a chunk to the pure parser."""
        pure = self._pure
        requests += pure.feed(data, start)
        self.error = pure.error
        self._interrupted = pure.error is not None or pure.pending_bytes > 0
        self.held_bytes = pure.held_bytes
        return requests
