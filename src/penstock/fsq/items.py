"""Work items: a file of `queue`, open, locked, and its name read.

The lock is flock on the file itself, exclusive and never waited for. Whoever has it checks once more whether the name
still leads to the file: another worker may have finished the item between our open and our lock. From then on nobody
else runs it, until the file is closed here and in every child that has inherited it.

An item is completed by a rename while it is still locked, so that whoever gets the lock next finds the name gone: to
`done`, to `fail`, or within `queue` with one try more. The target directory is synced before the source directory:
whatever a power failure leaves, the item is in one of them.
"""

from __future__ import annotations

import errno
import fcntl
import os
from datetime import datetime, timedelta
from typing import IO

from penstock.fsq import attempts, files, path
from penstock.fsq.constants import const, number_of
from penstock.fsq.directory import DirectorySession
from penstock.fsq.errors import (
    FSQCannotLockError,
    FSQDoneError,
    FSQError,
    FSQFailError,
    FSQMaxTriesError,
    FSQTTLExpiredError,
    FSQWorkItemError,
    UnsafeFile,
    as_error,
)
from penstock.fsq.names import ItemName, parse


def open_item(where: str, is_locked: bool) -> files.OpenFile:
    """Open the file of an item, and lock it.

    FSQWorkItemError if it isn't a regular file, FSQCannotLockError if somebody else has the lock. What is known of the
    file is from after the lock.
    """
    try:
        fd = files.open_unchecked(where, os.O_RDONLY)
        try:
            if is_locked:
                lock(fd)
            status = os.fstat(fd)
            files.check_regular(where, status)
        except BaseException:
            os.close(fd)
            raise
    except UnsafeFile as error:
        raise FSQWorkItemError(error.errno, error.strerror) from error
    return files.OpenFile(fd, status)


class FSQWorkItem:
    """An item of a queue, to be worked on and then completed. Use it in `with`, or close it.

    A name that can't be read, too many tries or too great an age: the item is moved to `fail`, and the error raised.
    With `look` nothing is moved and no try is counted.
    """

    def __init__(
        self,
        queue: str,
        id: str,  # noqa: A002 - the original's name
        max_tries: int | None = None,
        ttl: int | None = None,
        lock: bool | None = None,
        no_open: bool = False,
        host: str | None = None,
        *,
        look: bool = False,
    ) -> None:
        self.item: IO[bytes] | None = None
        self.queue = path.valid_name(queue)
        self.host = None if host is None else path.valid_name(host)
        self.id = path.valid_name(id)
        self.max_tries = number_of("FSQ_MAX_TRIES") if max_tries is None else int(max_tries)
        self.ttl = number_of("FSQ_TTL") if ttl is None else int(ttl)
        self.lock = bool(number_of("FSQ_LOCK") if lock is None else lock)
        self.no_open = no_open
        self._look = look
        self._begun = False
        self._lost = 0
        if not no_open:
            self.open()
        try:
            self._read()
        except FSQError as error:
            self._refuse(error)
            raise

    def _read(self) -> None:
        name = parse(self.id)
        self.name: ItemName = name
        self.delimiter, self.enqueued_at, self.entropy, self.pid, self.hostname = name[:5]
        self.tries = name.tries
        self.arguments = name.arguments
        if self.item is not None and self.lock and not self._look:
            with as_error(FSQWorkItemError, f"cannot note the attempt at {self.id}"):
                self._lost = attempts.begin(self.queue, self.id, self.host)
            self._begun = True
            self.tries += self._lost
        self._check_limits(self.tries, self.max_tries, self.ttl)

    def _refuse(self, error: FSQError) -> None:
        """Get an item out of the way that can't be run."""
        try:
            if not self._look:
                self.fail_perm()
                error.strerror = f"{error.strerror}: for item {self.id}; failed permanently"
        except FSQFailError as gone:
            if gone.errno != errno.ENOENT:
                raise
        finally:
            self.close()

    def _check_limits(self, tries: int, max_tries: int, ttl: int) -> None:
        """Raise the error of an item that was tried often enough or is too old."""
        if 0 < max_tries <= tries:
            raise FSQMaxTriesError(errno.EINTR, f"max tries exceeded: {max_tries} ({tries})")
        now = datetime.now()  # noqa: DTZ005 - names hold local time
        if ttl > 0 and now - self.enqueued_at >= timedelta(seconds=ttl):
            raise FSQTTLExpiredError(errno.EINTR, f"TTL expired: {ttl}")

    def open(self) -> None:
        """Open the file, and lock it; FSQWorkItemError with EAGAIN if somebody has it, with ENOENT if it is gone."""
        if self.item is not None:
            return
        where = path.item(self.queue, self.id, self.host)
        with as_error(FSQWorkItemError, f"cannot open item {self.id} of {self.queue}"):
            try:
                fd, status = open_item(where, self.lock)
            except FSQCannotLockError as error:
                raise FSQWorkItemError(error.errno, error.strerror) from error
            try:
                self._check(where, status)
                fcntl.fcntl(fd, fcntl.F_SETFL, 0)  # reads may wait again
            except BaseException:
                os.close(fd)
                raise
        self.item = os.fdopen(fd, "rb")

    def _check(self, where: str, status: os.stat_result) -> None:
        """Whether a locked file is still the item: somebody may have completed it before we had the lock."""
        if not self.lock:
            return
        own = status.st_dev, status.st_ino
        if files.identity(where) != own:
            raise FSQWorkItemError(errno.ENOENT, f"item {self.id} of {self.queue} is finished")
        if status.st_nlink > 1 and not self._look:
            self._drop_if_completed(where, own)

    def _drop_if_completed(self, where: str, own: tuple[int, int]) -> None:
        """Finish what a power failure cut in two: the item is in `done` or `fail` under the same name already."""
        for directory in (path.done(self.queue, self.host), path.fail(self.queue, self.host)):
            if files.identity(f"{directory}/{self.id}") == own:
                files.disk.sync_directory(directory)
                files.disk.unlink(where)
                files.disk.sync_directory(path.queue(self.queue, self.host))
                raise FSQWorkItemError(errno.ENOENT, f"item {self.id} of {self.queue} is completed already")

    def _forget_attempt(self, has_outcome: bool = True) -> None:
        """With an outcome the name has all; without, tries of killed workers stay noted."""
        if self._begun:
            self._begun = False
            attempts.end(self.queue, self.id, self.host, 0 if has_outcome else self._lost)

    def close(self) -> None:
        """Let go of the file and its lock. An item that was not completed waits for the next scanner."""
        if self.item is not None:
            self._forget_attempt(has_outcome=False)
            self.item.close()
            self.item = None

    def __enter__(self) -> FSQWorkItem:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "item", None) is not None:
            self.close()

    def __repr__(self) -> str:
        return f"<FSQWorkItem {self.queue}/{self.id}>"

    def success(self) -> None:
        """Move it to `done`."""
        with as_error(FSQDoneError, f"cannot move item {self.id} of {self.queue} to {const('FSQ_DONE')}"):
            self._move(path.done(self.queue, self.host))

    def fail_perm(self) -> str:
        """Move it to `fail`, and return its id."""
        with as_error(FSQFailError, f"cannot move item {self.id} of {self.queue} to {const('FSQ_FAIL')}"):
            self._move(path.fail(self.queue, self.host))
        return self.id

    def _move(self, directory: str) -> None:
        with DirectorySession():
            files.move(path.item(self.queue, self.id, self.host), f"{directory}/{self.id}")
            files.disk.sync_directory(directory)
            files.disk.sync_directory(path.queue(self.queue, self.host))
            self._forget_attempt()

    def fail_tmp(self, max_tries: int | None = None, ttl: int | None = None) -> str:
        """Put it back with one try more, and return its new id.

        If it was tried as often as it may, or is too old, it is failed for good, and the error is raised.
        """
        tries = self.tries + 1
        try:
            self._check_limits(
                tries, self.max_tries if max_tries is None else max_tries, self.ttl if ttl is None else ttl
            )
            with as_error(FSQFailError, f"cannot put item {self.id} back into {self.queue}"):
                return self._put_back(tries)
        except FSQWorkItemError as error:
            self.fail_perm()
            error.strerror = f"{error.strerror}: for item {self.id}; failed permanently"
            raise

    def _put_back(self, tries: int) -> str:
        directory = path.queue(self.queue, self.host)
        new_id = self.name.with_tries(tries)
        try:
            files.move(f"{directory}/{self.id}", f"{directory}/{new_id}")
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            # It would be run again and again, and nothing after it.
            raise FSQMaxTriesError(errno.EINTR, f"no name has room for {tries} tries") from error
        files.disk.sync_directory(directory)
        self._forget_attempt()
        self.tries = tries
        return new_id

    def fail(self, fail_type: object = None, max_tries: int | None = None, ttl: int | None = None) -> str:
        """Complete it as failed: for now if the type is FSQ_FAIL_TMP, else for good."""
        if fail_type is not None and fail_type == const("FSQ_FAIL_TMP"):
            return self.fail_tmp(max_tries, ttl)
        return self.fail_perm()

    def done(self, done_type: object = None, max_tries: int | None = None, ttl: int | None = None) -> str | None:
        """Complete it: with success if the type is none or FSQ_SUCCESS, else as `fail` does."""
        if done_type is None or done_type == const("FSQ_SUCCESS"):
            self.success()
            return None
        return self.fail(done_type, max_tries, ttl)


def lock(fd: int) -> None:
    """Lock an open file, at once or not at all."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FSQCannotLockError(errno.EAGAIN, "another process has it") from error


# Completing an item as functions: programs written for FSQ call these.


def success(item: FSQWorkItem) -> None:
    """Move an item to `done`."""
    _checked(item).success()


def fail_perm(item: FSQWorkItem) -> str:
    """Move an item to `fail`, and return its id."""
    return _checked(item).fail_perm()


def fail_tmp(item: FSQWorkItem, max_tries: int | None = None, ttl: int | None = None) -> str:
    """Put an item back with one try more, and return its new id."""
    return _checked(item).fail_tmp(max_tries, ttl)


def fail(item: FSQWorkItem, fail_type: object = None, max_tries: int | None = None, ttl: int | None = None) -> str:
    """Complete an item as failed: for now if the type is FSQ_FAIL_TMP, else for good."""
    return _checked(item).fail(fail_type, max_tries, ttl)


def done(
    item: FSQWorkItem, done_type: object = None, max_tries: int | None = None, ttl: int | None = None
) -> str | None:
    """Complete an item: with success if the type is none or FSQ_SUCCESS, else as `fail` does."""
    return _checked(item).done(done_type, max_tries, ttl)


retry = fail_tmp


def _checked(item: FSQWorkItem) -> FSQWorkItem:
    if not isinstance(item, FSQWorkItem):
        raise TypeError(f"the item must be an FSQWorkItem, got {type(item).__name__}")
    return item
