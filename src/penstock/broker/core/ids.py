"""Job ids: `D-` + 8 characters of the creating node's id + `-` + 24 random characters + `-` + 4 hex digits.

The last field carries the time to live in minutes, made odd for jobs that are retried and even for jobs that are
delivered at most once, so that a node which doesn't know a job can still tell how to treat its acknowledgement.

Ids are cut from one block of random text made for 4,096 jobs at a time: a call for entropy a job would cost more than
the rest of the add.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Final

ID_BYTES: Final = 40
BLOCK_IDS: Final = 4096
RANDOM_BYTES: Final = 18  # 144 bits
ID_CHARACTERS: Final = 24  # the same in base64
MINUTES_MAX: Final = 0xFFFF

Entropy = Callable[[int], bytes]


def is_job_id(value: bytes) -> bool:
    """Tell whether a text has the form of a job id; nothing else of it is checked."""
    return len(value) == ID_BYTES and value.startswith(b"D-") and value[10] == 45 and value[35] == 45


def id_suffix(ttl_s: int, retry_s: int) -> bytes:
    """Give the last field of an id, with its dash."""
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

    __slots__ = ("_at", "_block", "_entropy", "_prefix")

    def __init__(self, node_id: bytes, entropy: Entropy) -> None:
        self._entropy = entropy
        self._prefix = b"D-" + node_id[:8] + b"-"
        self._block = b""
        self._at = 0

    def new(self, suffix: bytes, count: int) -> list[bytes]:
        """Make the next ids."""
        at, prefix = self._at, self._prefix
        end = at + ID_CHARACTERS * count
        if end > len(self._block):
            self._block = b64encode(self._entropy(RANDOM_BYTES * max(BLOCK_IDS, count)))
            at, end = 0, ID_CHARACTERS * count
        self._at = end
        block = self._block
        if count == 1:
            return [prefix + block[at:end] + suffix]
        return [prefix + block[i : i + ID_CHARACTERS] + suffix for i in range(at, end, ID_CHARACTERS)]
