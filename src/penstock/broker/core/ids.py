"""Job ids: `D-` + 8 characters of the creating node's id + `-` + 24 random characters + `-` + 4 hex digits.

The last field carries the time to live in minutes, made odd for jobs that are retried and even for jobs that are
delivered at most once, so that a node which doesn't know a job still knows how to treat its ack.

Ids are cut from blocks of random text, made for 256 jobs at a time: a call for entropy a job would cost more than the
rest of the add. The first two random characters are the same for a block. They choose the page of the job table, so
jobs that are added together stand together there, which saves a cache miss each; the other 22 characters have 132 bits.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Final

ID_BYTES: Final = 40
SHARED_CHARACTERS: Final = 2
OWN_CHARACTERS: Final = 22
BLOCK_IDS: Final = 256
BLOCK_BYTES: Final = (SHARED_CHARACTERS + OWN_CHARACTERS * BLOCK_IDS) * 3 // 4 + 3  # three bytes are four characters
MINUTES_MAX: Final = 0xFFFF

Entropy = Callable[[int], bytes]


def is_job_id(value: bytes) -> bool:
    """Whether a value has the form of a job id; nothing else is checked."""
    return len(value) == ID_BYTES and value.startswith(b"D-") and value[10] == 45 and value[35] == 45


def id_suffix(ttl_s: int, retry_s: int) -> bytes:
    """Return the last field of an id, with its dash."""
    minutes = min(ttl_s // 60, MINUTES_MAX)
    minutes = minutes | 1 if retry_s > 0 else minutes & ~1
    return b"-%04x" % minutes


def ttl_from_id(job_id: bytes) -> tuple[int, bool]:
    """Read the last field of an id: seconds to live, and whether the job is retried."""
    minutes = 0
    for digit in job_id[36:40]:
        minutes = minutes * 16 + (int(chr(digit), 16) if chr(digit) in "0123456789abcdefABCDEF" else 0)
    return minutes * 60, bool(minutes & 1)


class IdSource:
    """Makes the ids of one node."""

    __slots__ = ("_at", "_block", "_entropy", "_prefix", "_stem")

    def __init__(self, node_id: bytes, entropy: Entropy) -> None:
        self._entropy = entropy
        self._prefix = b"D-" + node_id[:8] + b"-"
        self._stem = b""  # the prefix and what all ids of this block begin with
        self._block = b""
        self._at = 0

    def new(self, suffix: bytes, count: int) -> list[bytes]:
        """Make the next ids."""
        ids: list[bytes] = []
        while len(ids) < count:
            if self._at == len(self._block):
                self._renew()
            at, block, stem = self._at, self._block, self._stem
            end = min(at + OWN_CHARACTERS * (count - len(ids)), len(block))
            ids += [stem + block[i : i + OWN_CHARACTERS] + suffix for i in range(at, end, OWN_CHARACTERS)]
            self._at = end
        return ids

    def _renew(self) -> None:
        text = b64encode(self._entropy(BLOCK_BYTES))
        self._stem = self._prefix + text[:SHARED_CHARACTERS]
        self._block = text[SHARED_CHARACTERS : SHARED_CHARACTERS + OWN_CHARACTERS * BLOCK_IDS]
        self._at = 0
