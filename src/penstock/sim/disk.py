"""A disk in memory that loses what a real one may lose.

`SimDisk` stands behind the journal in place of `RealDisk`. What is written can be read; what is not synced is gone,
or torn, after `crash`. A test takes the disk that a crash leaves and starts a node on it:

    disk = SimDisk()
    ...                                     a node writes its journal
    left = disk.process_crash()             kill -9: every byte written is there
    left = disk.crash(random, keep="torn")  power loss: the synced bytes, and of the rest what `keep` says

keep     what is left of the bytes that were not synced, of each file for itself
none     nothing
some     the first few writes, whole
torn     up to any byte
zeros    all of them in length, but zeros from some byte on: the size reached the disk, the last block didn't
all      everything

Names are as durable as `RealDisk` makes them: creating and replacing survive a crash. The content behind a name is as
safe as its syncs made it, also after a rename.

A sync that fails has dropped what it should have saved, as on Linux: those bytes can be read, but no later sync
brings them to the disk, and after a crash zeros stand in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Literal

Keep = Literal["none", "some", "torn", "zeros", "all"]

READ_BYTES = 1 << 16
BLOCK_BYTES = 4096  # zeros begin at most this far before the end


class _Content:
    """What a file holds, and how much of it is safe."""

    def __init__(self, data: bytes | bytearray = b"", synced: int = 0) -> None:
        self.data = bytearray(data)
        self.synced = synced
        self.ends: list[int] = []  # of the writes that are not synced
        self.dropped: list[tuple[int, int]] = []  # from, to: lost in a failed sync

    def sync(self, up_to: int) -> None:
        self.synced = max(self.synced, up_to)
        self.ends = [end for end in self.ends if end > self.synced]

    def drop(self) -> None:
        """Forget what a failed sync was to save, as the kernel does."""
        if self.synced < len(self.data):
            self.dropped.append((self.synced, len(self.data)))
        self.sync(len(self.data))

    def copy(self) -> _Content:
        twin = _Content(self.data, self.synced)
        twin.ends = list(self.ends)
        twin.dropped = list(self.dropped)
        return twin

    def after_power_loss(self, random: Random, keep: Keep) -> bytes:
        data = bytearray(self.data)
        for start, end in self.dropped:
            data[start:end] = bytes(end - start)
        kept = len(data)
        if keep == "none":
            kept = self.synced
        elif keep == "some":
            kept = random.choice([self.synced, *self.ends])
        elif keep == "torn":
            kept = random.randint(self.synced, len(data))
        elif keep == "zeros":
            zeros_from = random.randint(max(self.synced, len(data) - BLOCK_BYTES), len(data))
            data[zeros_from:] = bytes(len(data) - zeros_from)
        return bytes(data[:kept])


class SimFile:
    """An append-only file on a simulated disk."""

    def __init__(self, disk: SimDisk, name: str, content: _Content) -> None:
        self._disk = disk
        self._name = name
        self._content = content
        self._sync_to: int | None = None  # of a sync under way
        self._closed = False
        self.size = len(content.data)

    def write(self, data: bytes) -> int:
        """Append what the disk has room for; raises OSError once it takes nothing."""
        assert not self._closed, f"{self._name}: written after it was closed"
        self._disk.before("write", self._name)
        taken = self._disk.take(len(data))
        self._content.data += data[:taken]
        self.size = len(self._content.data)
        self._content.ends.append(self.size)
        return taken

    def sync(self) -> None:
        """Make everything safe."""
        self._disk.before("sync", self._name)
        self._sync(len(self._content.data))

    def _sync(self, up_to: int) -> None:
        failure = self._disk.sync_failure()
        if failure is not None:
            self._content.drop()
            raise failure
        self._content.sync(up_to)

    def begin_sync(self) -> None:
        """Start to make safe what was written up to now; it is done when somebody asks the next time."""
        self._disk.before("begin_sync", self._name)
        if self._sync_to is None:
            self._sync_to = len(self._content.data)

    def sync_done(self) -> bool:
        """End the sync under way; raise its error if it failed."""
        if self._sync_to is not None:
            self._disk.before("sync_done", self._name)
            up_to, self._sync_to = self._sync_to, None
            self._sync(up_to)
        return True

    def close(self) -> None:
        """Let go of the file; what isn't synced stays so."""
        self._closed = True


class SimDisk:
    """One directory on a simulated disk.

    `before` is called with the kind of each operation and the file's name just before it happens. A test puts its own
    function there, to count operations or to raise something that ends the node at that point.
    """

    def __init__(self) -> None:
        self.before: Callable[[str, str], None] = _let_pass
        self._files: dict[str, _Content] = {}
        self._boot = 1
        self._write_errno = 0
        self._room_bytes = 0
        self._sync_errno = 0

    # What the journal uses.

    def read(self, name: str) -> Iterator[bytes]:
        """Return a file's bytes in pieces."""
        data = self.content(name)
        for at in range(0, len(data), READ_BYTES):
            yield data[at : at + READ_BYTES]

    def append(self, name: str, fresh: bool = False) -> SimFile:
        """Open a file at its end."""
        if fresh or name not in self._files:
            self.before("create", name)
            self._files[name] = _Content()
        return SimFile(self, name, self._files[name])

    def truncate(self, name: str, size: int) -> None:
        """Cut a file, and sync it."""
        self.before("truncate", name)
        self._files[name] = _Content(self.content(name)[:size], size)

    def replace(self, name: str, by: str) -> None:
        """Put one file in the place of another, atomically."""
        self.before("replace", name)
        self._files[name] = self._files.pop(by)

    def remove(self, name: str) -> None:
        """Delete a file if it is there."""
        self.before("remove", name)
        self._files.pop(name, None)

    def boot_id(self) -> bytes:
        """Name this run of the machine."""
        return b"boot-%d" % self._boot

    # What tests use.

    @property
    def names(self) -> list[str]:
        """The files in this directory."""
        return sorted(self._files)

    def content(self, name: str) -> bytes:
        """Return what can be read of a file; FileNotFoundError if there is none."""
        if name not in self._files:
            raise FileNotFoundError(name)
        return bytes(self._files[name].data)

    def put(self, name: str, data: bytes) -> None:
        """Put a file there, all of it safe."""
        self._files[name] = _Content(data, len(data))

    def holds(self, name: str, data: bytes, synced: bool) -> bool:
        """Whether some bytes are in a file, or even in the part of it that is safe."""
        content = self._files.get(name)
        if content is None:
            return False
        at = content.data.rfind(data)
        return at >= 0 and (not synced or at + len(data) <= content.synced)

    def process_crash(self) -> SimDisk:
        """Return the disk as a killed process leaves it."""
        left = SimDisk()
        left._boot = self._boot
        left._files = {name: content.copy() for name, content in self._files.items()}
        return left

    def crash(self, random: Random, keep: Keep = "none") -> SimDisk:
        """Return the disk as a power loss may leave it."""
        left = SimDisk()
        left._boot = self._boot + 1
        for name, content in self._files.items():
            left.put(name, content.after_power_loss(random, keep))
        return left

    def fail_writes(self, errno: int, after_bytes: int = 0) -> None:
        """Accept this number of bytes, then fail every write."""
        self._write_errno = errno
        self._room_bytes = after_bytes

    def fail_syncs(self, errno: int) -> None:
        """Fail every sync from now on."""
        self._sync_errno = errno

    def heal(self) -> None:
        """Let writes and syncs work again."""
        self._write_errno = self._sync_errno = 0

    # What its files use.

    def take(self, wanted: int) -> int:
        """Return how many bytes of a write there is room for; OSError if none."""
        if not self._write_errno:
            return wanted
        if not self._room_bytes:
            raise OSError(self._write_errno, "the simulated disk takes no more")
        taken = min(wanted, self._room_bytes)
        self._room_bytes -= taken
        return taken

    def sync_failure(self) -> OSError | None:
        """Return the error of a sync, if it is to fail."""
        return OSError(self._sync_errno, "the simulated disk can't sync") if self._sync_errno else None


def _let_pass(kind: str, name: str) -> None:
    """Do nothing before an operation."""
