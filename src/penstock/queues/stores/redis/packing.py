"""Commands as bytes. redis-py packs each argument by itself, which takes longer than all else for a thousand jobs."""

from collections.abc import Sequence

Word = bytes | str | int


def packed(words: Sequence[Word]) -> bytes:
    """A command in RESP."""
    # Ids that are no UTF-8 came as texts with escapes, and go back as they were.
    parts = [word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape") for word in words]
    return b"*%d\r\n%b" % (len(parts), b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]))
