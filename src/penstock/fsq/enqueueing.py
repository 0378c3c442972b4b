"""Enqueueing: an item appears in `queue` complete, at once, and stays there through a power failure.

It is written in `tmp` under its name, synced, linked into `queue`, taken out of `tmp`; then the directory `queue` is
synced and the name is returned. A crash before the end leaves at most a file in `tmp`, which nobody scans.

`NewItem` does this step by step, for data that comes bit by bit; `enqueue_many` makes one sync of the directory do for
many items.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import IO, Any, Protocol

from penstock.fsq import files, path
from penstock.fsq.constants import coerce_text, text_of
from penstock.fsq.directory import DirectorySession
from penstock.fsq.errors import FSQCoerceError, FSQEncodeError, FSQEnqueueError, as_error
from penstock.fsq.names import fresh_name
from penstock.fsq.owners import Who, mode, owner

CHUNK_BYTES = 1 << 16
NAME_TRIES_MAX = 10_000  # taken names before we give up: more than one process makes in a second


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


class _HasLines(Protocol):
    def readline(self) -> bytes | str: ...


Source = str | os.PathLike[str] | int | IO[Any] | _HasDescriptor | _HasLines


def check_writable(name: str) -> str:
    """Return the name if every reader can read it: no NUL, and text through and through."""
    try:
        name.encode("utf-8")
    except UnicodeError as error:
        raise FSQEncodeError(errno.EINVAL, f"a name must be text that can be encoded, got {name!r}") from error
    if "\0" in name:
        raise FSQEncodeError(errno.EINVAL, f"a name must be without NUL characters, got {name!r}")
    return name


class NewItem:
    """An item that is being written: `write` to it, then `commit` it or `abort`. In `with`, an error aborts it.

    `namer` returns the names to try, if not the usual ones; `target` is the directory that it goes to, if not `queue`.
    """

    def __init__(
        self,
        queue: str,
        args: Iterable[object] = (),
        user: Who = None,
        group: Who = None,
        mode: int | str | None = None,
        host: str | None = None,
        *,
        namer: Callable[[], str] | None = None,
        target: str | None = None,
    ) -> None:
        self._fd: int | None = None
        self._target = path.queue(queue, host) if target is None else target
        self._queue = queue
        if isinstance(args, str | bytes):
            raise TypeError(f"the arguments of an item must be a list, got {type(args).__name__}")
        self._namer = partial(fresh_name, tuple(args)) if namer is None else namer
        self._fd, self.name = self._create(path.tmp(queue, host), _item_mode(mode))
        self._draft: str | None = f"{path.tmp(queue, host)}/{self.name}"
        try:
            with self._errors():
                files.own(self._fd, owner(user, group, "ITEM"))
        except BaseException:
            self.abort()
            raise

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return as_error(FSQEnqueueError, f"cannot enqueue into {self._queue}")

    def _create(self, directory: str, item_mode: int) -> tuple[int, str]:
        for _ in range(NAME_TRIES_MAX):
            name = check_writable(self._namer())
            try:
                with self._errors():
                    return files.disk.create(f"{directory}/{name}", item_mode), name
            except FSQEnqueueError as error:
                if error.errno != errno.EEXIST:
                    raise
            except UnicodeError as error:
                raise FSQEncodeError(errno.EINVAL, f"this system can't write the name {name!r}") from error
        raise FSQEnqueueError(errno.EEXIST, f"cannot enqueue into {self._queue}: all names of this second are taken")

    def write(self, data: bytes) -> None:
        """Append to the item's data."""
        if self._fd is None:
            raise ValueError("the item is finished")
        with self._errors():
            files.disk.write(self._fd, data)

    def seal(self) -> None:
        """Bring the data onto the disk; nothing can be written any more, and nobody sees the item yet."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                with self._errors():
                    files.disk.sync(fd)
            finally:
                files.disk.close(fd)

    def publish(self) -> str:
        """Make the sealed item visible. It is safe once the directory `queue` is synced."""
        if self._fd is not None or self._draft is None:
            raise ValueError("only an item that is sealed, and not published yet, can be published")
        with self._errors():
            self._link(self._draft)
            # It is in the queue whatever happens now; what stays in `tmp` is found by `fsq audit`.
            with contextlib.suppress(OSError):
                files.disk.unlink(self._draft)
        self._draft = None
        return self.name

    def _link(self, draft: str) -> None:
        for _ in range(NAME_TRIES_MAX):
            try:
                files.disk.link(draft, f"{self._target}/{self.name}")
            except FileExistsError:
                self.name = check_writable(self._namer())
            else:
                return
        raise FSQEnqueueError(errno.EEXIST, f"cannot enqueue into {self._queue}: all names of this second are taken")

    def commit(self) -> str:
        """Put the item into the queue, safely, and return its name."""
        try:
            self.seal()
            self.publish()
        except BaseException:
            self.abort()
            raise
        sync_queue(self._queue, self._target)
        return self.name

    def abort(self) -> None:
        """Leave nothing behind; does nothing after a commit."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            files.disk.close(fd)
        if self._draft is not None:
            with contextlib.suppress(OSError):
                files.disk.unlink(self._draft)
            self._draft = None

    def __enter__(self) -> NewItem:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None or self._fd is not None:
            self.abort()


def sync_queue(queue: str, directory: str) -> None:
    """Make the names in `queue` safe; if that fails, say that the item is there all the same."""
    with as_error(FSQEnqueueError, f"an item is in {queue}, but a power failure may take it away again"):
        files.disk.sync_directory(directory)


def _item_mode(value: int | str | None) -> int:
    return mode(value, "ITEM")


def venqueue(
    queue: str,
    source: Source,
    args: Iterable[object],
    user: Who = None,
    group: Who = None,
    mode: int | str | None = None,
) -> str:
    """Put the content of a file, a descriptor or a stream into a queue, with a list of arguments; return the name."""
    # The source first: if it can't be had, nothing is to be cleaned up.
    with (
        contextlib.closing(Pieces(source)) as data,
        NewItem(queue, args, user=user, group=group, mode=mode) as item,
    ):
        for piece in data:
            item.write(piece)
        return item.commit()


def enqueue(
    queue: str,
    source: Source,
    *args: object,
    user: Who = None,
    group: Who = None,
    mode: int | str | None = None,
) -> str:
    """Put the content of a file, a descriptor or a stream into a queue; return the item's name."""
    return venqueue(queue, source, args, user=user, group=group, mode=mode)


def vsenqueue(
    queue: str,
    string: str | bytes,
    args: Iterable[object],
    user: Who = None,
    group: Who = None,
    mode: int | str | None = None,
    charset: str | None = None,
) -> str:
    """Put a text or bytes into a queue, with a list of arguments; return the item's name."""
    data = data_of(string, charset)
    with DirectorySession(), NewItem(queue, args, user=user, group=group, mode=mode) as item:
        item.write(data)
        return item.commit()


def senqueue(
    queue: str,
    string: str | bytes,
    *args: object,
    user: Who = None,
    group: Who = None,
    mode: int | str | None = None,
    charset: str | None = None,
) -> str:
    """Put a text or bytes into a queue; return the item's name."""
    return vsenqueue(queue, string, args, user=user, group=group, mode=mode, charset=charset)


def enqueue_many(
    queue: str,
    items: Iterable[tuple[str | bytes, Iterable[object]]],
    user: Who = None,
    group: Who = None,
    mode: int | str | None = None,
) -> list[str]:
    """Put many items of (data, arguments) into a queue, for one sync of its directory; return their names in order.

    If one can't be written, none is enqueued.
    """
    drafts: list[NewItem] = []
    try:
        for string, args in items:
            draft = NewItem(queue, args, user=user, group=group, mode=mode)
            drafts.append(draft)
            draft.write(data_of(string))
            draft.seal()
        with DirectorySession():
            names = [draft.publish() for draft in drafts]
    except BaseException:
        for draft in drafts:
            draft.abort()
        raise
    if names:
        sync_queue(queue, path.queue(queue))
    return names


def data_of(string: str | bytes, charset: str | None = None) -> bytes:
    """Return the bytes of an item's data."""
    if isinstance(string, bytes | bytearray | memoryview):
        return bytes(string)
    if not isinstance(string, str):
        raise TypeError(f"the data of an item must be a str or bytes, got {type(string).__name__}")
    name = charset or text_of("FSQ_CHARSET")
    try:
        return string.encode(name)
    except (UnicodeError, LookupError) as error:
        raise FSQCoerceError(errno.EINVAL, f"cannot write the data as {name}") from error


class Pieces:
    """The bytes of a source. It is opened at once, so that a bad one is noticed before anything is written."""

    def __init__(self, source: Source) -> None:
        self._fd: int | None = None
        self._lines: _HasLines | None = None
        if isinstance(source, str | bytes | os.PathLike):
            with as_error(FSQEnqueueError, f"cannot read {coerce_text(os.fspath(source))}"):
                self._fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        elif isinstance(source, int):
            with as_error(FSQEnqueueError, f"cannot read descriptor {source}"):
                self._fd = os.dup(source)
        else:
            self._open(source)

    def _open(self, source: Any) -> None:
        if hasattr(source, "fileno"):
            self._fd = _duplicate(source)
        if self._fd is None:
            if not hasattr(source, "readline"):
                raise TypeError(f"cannot read data from {type(source).__name__}")
            self._lines = source

    def __iter__(self) -> Iterator[bytes]:
        if self._lines is not None:
            while line := self._lines.readline():
                yield data_of(line)
            return
        while self._fd is not None:
            try:
                with as_error(FSQEnqueueError, "cannot read the data"):
                    piece = os.read(self._fd, CHUNK_BYTES)
            except FSQEnqueueError as error:
                if error.errno != errno.EAGAIN:
                    raise
                select.select([self._fd], [], [])
                continue
            if not piece:
                return
            yield piece

    def close(self) -> None:
        """Let go of the descriptor; the caller's own stays open."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _duplicate(source: _HasDescriptor) -> int | None:
    """Return a descriptor of our own, or nothing where there is no real one, as in io.BytesIO."""
    try:
        return os.dup(source.fileno())
    except (ValueError, OSError) as error:
        number = getattr(error, "errno", None)
        if number is None and hasattr(source, "readline"):
            return None
        number = number or errno.EBADF
        raise FSQEnqueueError(number, f"cannot read {source!r}: {os.strerror(number)}") from error
