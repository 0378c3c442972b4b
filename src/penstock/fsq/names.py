"""Names of items: the metadata and the arguments of an item are its file name, its data is the file's content.

    D time D entropy D pid D host D tries [ D argument ]...

D is the delimiter, one ASCII character. It is the first character of the name, so every reader knows it; the escape
character is not in the name, so all must agree on it. In each field the delimiter, the escape character and `/` are
written as the escape character and two lower-case hexadecimal digits. Everything else stands there as it is.

Two rules hold here:
- Reading what was written returns the same fields, whatever is in them. Only NUL can't be in a name.
- A name that can't be read raises an FSQError, whatever bytes it is made of: one bad file stops no scanner.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from penstock.fsq.constants import coerce_text, text_of
from penstock.fsq.errors import FSQEncodeError, FSQMalformedEntryError, FSQTimeFmtError

FIELDS = 5  # time, entropy, pid, host, tries
DEFAULT_TIMEFMT = "%Y%m%d%H%M%S"
CHARACTERS_KEPT = 64  # pairs of delimiter and escape character that were checked: mostly there is one
TRIES_DIGITS_MAX = 18  # what fits into 64 bits; more can't be a count
_HEX = frozenset("0123456789abcdefABCDEF")
_BAD = errno.EINVAL

HOSTNAME = socket.gethostname()


def _single(what: str, text: str) -> None:
    """Check that a delimiter or an escape character is one ASCII character that can stand in a name."""
    if len(text) != 1 or not text.isascii():
        raise FSQEncodeError(_BAD, f"{what} must be one ASCII character, not {text!r}")
    if text in "/\0":
        raise FSQEncodeError(_BAD, f"{what} can't be {text!r}: it can't be in a file name")


def _separators(delimiter: object, encodeseq: object) -> tuple[str, str]:
    mark = text_of("FSQ_DELIMITER") if delimiter is None else coerce_text(delimiter)
    escape = text_of("FSQ_ENCODE") if encodeseq is None else coerce_text(encodeseq)
    return _checked(mark, escape)


@lru_cache(CHARACTERS_KEPT)
def _checked(mark: str, escape: str) -> tuple[str, str]:
    _single("the delimiter", mark)
    _single("the escape character", escape)
    if mark == escape:
        raise FSQEncodeError(_BAD, f"the delimiter and the escape character must differ, got {mark!r} for both")
    return mark, escape


@lru_cache(CHARACTERS_KEPT)
def _escape_table(mark: str, escape: str, more: tuple[str, ...]) -> dict[int, str]:
    characters = {mark, escape, "/"}
    for text in more:
        if len(text) != 1 or not text.isascii():
            raise FSQEncodeError(_BAD, f"a character to escape must be a single ASCII character, got {text!r}")
        characters.add(text)
    return {ord(character): f"{escape}{ord(character):02x}" for character in characters}


def encode(arg: object, delimiter: object = None, encodeseq: object = None, encoded: Iterable[object] = ()) -> str:
    """Escape one argument; `encoded` names further ASCII characters to escape."""
    mark, escape = _separators(delimiter, encodeseq)
    return coerce_text(arg).translate(_escape_table(mark, escape, tuple(map(coerce_text, encoded))))


def decode(arg: object, delimiter: object = None, encodeseq: object = None) -> str:
    """Take the escapes out of one argument."""
    _, escape = _separators(delimiter, encodeseq)
    return _unescape(coerce_text(arg), escape)


def _unescape(text: str, escape: str) -> str:
    if escape not in text:
        return text
    parts = []
    at = 0
    charset = text_of("FSQ_CHARSET")
    while (found := text.find(escape, at)) >= 0:
        digits = text[found + 1 : found + 3]
        if len(digits) < 2:
            raise FSQEncodeError(_BAD, f"the escape at the end of {text!r} is cut off")
        if not _HEX.issuperset(digits):
            raise FSQEncodeError(
                _BAD, f"an escape must be {escape!r} and two hexadecimal digits, got {escape + digits!r} in {text!r}"
            )
        try:
            parts += [text[at:found], bytes.fromhex(digits).decode(charset)]
        except (UnicodeError, LookupError) as error:
            raise FSQEncodeError(_BAD, f"{escape + digits!r} in {text!r} is not a character of {charset}") from error
        at = found + 3
    return "".join([*parts, text[at:]])


def construct(args: Iterable[object], delimiter: object = None, encodeseq: object = None) -> str:
    """Build a name from its fields."""
    mark, escape = _separators(delimiter, encodeseq)
    table = _escape_table(mark, escape, ())
    if isinstance(args, str | bytes):
        raise TypeError(f"the fields of a name must be a list, got {type(args).__name__}")
    return mark + mark.join([coerce_text(arg).translate(table) for arg in args])


def deconstruct(name: object, encodeseq: object = None) -> tuple[str, list[str]]:
    """Return the delimiter and the fields of a name."""
    text = coerce_text(name)
    if not text:
        raise FSQMalformedEntryError(_BAD, "an empty name has no delimiter")
    mark, escape = _separators(text[0], encodeseq)
    if len(text) == 1:
        return mark, []
    return mark, [_unescape(raw, escape) for raw in _split(text[1:], mark, escape)]


def _split(text: str, mark: str, escape: str) -> Iterator[str]:
    """Cut at the delimiters that are not part of an escape."""
    if escape not in text:
        yield from text.split(mark)
        return
    start = at = 0
    while at < len(text):
        if text[at] == escape:
            at += 3
            continue
        if text[at] == mark:
            yield text[start:at]
            start = at + 1
        at += 1
    yield text[start:]


class ItemName(NamedTuple):
    """A name, taken apart."""

    delimiter: str
    enqueued_at: datetime
    entropy: str
    pid: str
    hostname: str
    tries: int
    arguments: tuple[str, ...]
    time_text: str

    def with_tries(self, tries: int) -> str:
        """Build the name of the next try, with the delimiter that is in force now."""
        fields = (self.time_text, self.entropy, self.pid, self.hostname, tries)
        return _without_nul(construct((*fields, *self.arguments)))

    def __str__(self) -> str:
        return self.again(self.tries)

    def again(self, tries: int) -> str:
        """Build the name with another number of tries and its own delimiter, so that it stays the same job."""
        fields = (self.time_text, self.entropy, self.pid, self.hostname, tries)
        return _without_nul(construct((*fields, *self.arguments), self.delimiter))

    @property
    def job_id(self) -> str:
        """Name the item whatever its tries are."""
        fields = (self.time_text, self.entropy, self.pid, self.hostname)
        return _without_nul(construct((*fields, *self.arguments), self.delimiter))


def _without_nul(name: str) -> str:
    """Nobody writes a NUL, but a foreign name may hold the escape of one: it must be one again when it is rebuilt."""
    return name.replace("\0", f"{text_of('FSQ_ENCODE')}00")


def parse(name: str) -> ItemName:
    """Read the name of an item; an FSQError says what is wrong with it."""
    try:
        name.encode("utf-8")
    except UnicodeError as error:
        raise FSQEncodeError(_BAD, f"cannot decode the name {os.fsencode(name)!r}") from error
    mark, fields = deconstruct(name)
    if len(fields) < FIELDS:
        raise FSQMalformedEntryError(_BAD, f"the name of an item must have at least {FIELDS} fields, got {name!r}")
    time_text, entropy, pid, hostname, tries = fields[:FIELDS]
    return ItemName(
        mark, read_time(time_text), entropy, pid, hostname, _read_tries(tries), tuple(fields[FIELDS:]), time_text
    )


def parse_job_id(job_id: str) -> ItemName:
    """Read what `job_id` gave, as the name of its first try; an FSQError if it is not valid."""
    mark, fields = deconstruct(job_id)
    if len(fields) < FIELDS - 1:
        raise FSQMalformedEntryError(_BAD, f"the id of a job must have at least {FIELDS - 1} fields, got {job_id!r}")
    time_text, entropy, pid, hostname = fields[: FIELDS - 1]
    return ItemName(mark, read_time(time_text), entropy, pid, hostname, 0, tuple(fields[FIELDS - 1 :]), time_text)


def read_time(text: str) -> datetime:
    """Read the time of a name: local time, without a zone."""
    form = text_of("FSQ_TIMEFMT")
    try:
        if not text.isascii():
            raise ValueError(text)
        if form == DEFAULT_TIMEFMT and len(text) == 14 and text.isdigit():
            whole = (text[:4], text[4:6], text[6:8], text[8:10], text[10:12], text[12:])
            return datetime(*map(int, whole))  # type: ignore[arg-type]  # noqa: DTZ001 - local time by the standard
        return datetime.strptime(text, form)  # noqa: DTZ007 - names hold local time by the standard
    except ValueError as error:
        raise FSQTimeFmtError(_BAD, f"a time must have the form {form}, got {text!r}") from error


def _read_tries(text: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > TRIES_DIGITS_MAX:
        raise FSQTimeFmtError(_BAD, f"the tries must be a number, got {text!r}")
    return int(text)


class _Entropy:
    """Makes names unique that one process makes within one tick of its clock; safe with threads and after fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[str, int, str] | None = None
        self._count = 0

    def next(self, time_text: str, pid: int, host: str) -> int:
        with self._lock:
            now = (time_text, pid, host)
            self._count = self._count + 1 if now == self._last else 0
            self._last = now
            return self._count

    def renew_lock(self) -> None:
        """Forget a lock that another thread of the parent held while it forked."""
        self._lock = threading.Lock()


_entropy = _Entropy()
os.register_at_fork(after_in_child=_entropy.renew_lock)


def fresh_name(args: Iterable[object]) -> str:
    """Build the name of a new item; two calls never return the same."""
    if isinstance(args, str | bytes):
        raise TypeError(f"the arguments of an item must be a list, got {type(args).__name__}")
    time_text = datetime.now().strftime(text_of("FSQ_TIMEFMT"))  # noqa: DTZ005 - names hold local time
    pid = os.getpid()
    return construct((time_text, _entropy.next(time_text, pid, HOSTNAME), pid, HOSTNAME, 0, *args))
