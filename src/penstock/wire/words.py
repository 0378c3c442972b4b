r"""Words of a line, with quotes: how a person types a request, and how a config file is written.

    ADDJOB "my queue" 'it\'s' \x          four words; the last is a backslash and an x
    "caf\xc3\xa9\n"                       double quotes know \xHH \n \r \t \b \a, and \ before anything else
    'a\n'                                 single quotes know only \': this is a, backslash, n
    key=""                                quotes may open inside a word: this is `key=`
    "a"b                                  refused: a closing quote ends the word

`split_words` reads such a line and `quote_word` writes one word so that `split_words` gives it back.
"""

import re

_BLANKS = re.compile(rb"[ \t\n\v\f\r]*")
# A vertical tab or form feed parts words only before they begin: the clients' libraries split this way too.
_PLAIN = re.compile(rb"[^ \t\n\r\"']+")
# Possessive repeats: a line of many quotes and backslashes must not make the expression try again and again.
_DOUBLE = re.compile(rb'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_SINGLE = re.compile(rb"'((?:[^'\\]++|\\'|\\(?!'))*+)'")
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)

_ESCAPE_VALUES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}
_ENDS = b" \t\n\v\f\r"


def _quoted_bytes() -> tuple[bytes, ...]:
    """How each of the 256 bytes is written between double quotes."""
    written = [b"%c" % code if 0x20 <= code < 0x7F else b"\\x%02x" % code for code in range(256)]
    for letter, value in _ESCAPE_VALUES.items():
        written[value[0]] = b"\\" + letter
    for byte in b'\\"':
        written[byte] = b"\\%c" % byte
    return tuple(written)


_QUOTED = _quoted_bytes()


def _unescape(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    if len(escape) == 3:
        return bytes.fromhex(escape[1:].decode("ascii"))
    return _ESCAPE_VALUES.get(escape, escape)


def split_words(line: bytes) -> list[bytes]:
    """The words of `line`, empty ones ("") too. Raises ValueError where quotes don't close as they should."""
    words = []
    position = _skip_blanks(line, 0)
    while position < len(line):
        word, position = _take_word(line, position)
        words.append(word)
        position = _skip_blanks(line, position)
    return words


def _skip_blanks(line: bytes, position: int) -> int:
    match = _BLANKS.match(line, position)
    assert match is not None  # the expression matches the empty string, too
    return match.end()


def _take_word(line: bytes, position: int) -> tuple[bytes, int]:
    """The word that begins at `position`, and where it ends."""
    word = b""
    if plain := _PLAIN.match(line, position):
        word = plain[0]
        position = plain.end()
    opening = line[position : position + 1]
    if opening not in (b'"', b"'"):
        return word, position
    quoted = (_DOUBLE if opening == b'"' else _SINGLE).match(line, position)
    if quoted is None:
        raise ValueError(f"unbalanced quotes: the quote at byte {position} is never closed")
    after = quoted.end()
    if after < len(line) and line[after] not in _ENDS:
        raise ValueError(f"unbalanced quotes: the quote that closes at byte {after - 1} must end its word")
    if opening == b'"':
        return word + _ESCAPE.sub(_unescape, quoted[1]), after
    return word + quoted[1].replace(b"\\'", b"'"), after


def quote_word(value: bytes) -> bytes:
    """`value` in double quotes, printable, in one line. `split_words` gives it back byte for byte."""
    return b'"' + b"".join([_QUOTED[byte] for byte in value]) + b'"'
