"""Down files: while `down` is there, a queue (or one of its hosts) is not scanned. Enqueueing goes on."""

from __future__ import annotations

import contextlib
import os

from penstock.fsq import files, path
from penstock.fsq.directory import directory, parent
from penstock.fsq.errors import FSQConfigError, as_error
from penstock.fsq.owners import Owner, Who, owner
from penstock.fsq.owners import mode as mode_of


def down(
    queue: str,
    user: Who = None,
    group: Who = None,
    mode: int | str | None = None,
    host: str | None = None,
) -> None:
    """Stop the scanning of a queue or a host; on one that is down, set mode and owner of its down file."""
    where = path.down(queue, host)
    who = owner(user, group, "ITEM")
    with as_error(FSQConfigError, f"cannot take {_label(queue, host)} down: {where}"):
        put_down_file(where, who, mode_of(mode, "ITEM"))


def put_down_file(where: str, who: Owner, item_mode: int) -> None:
    """Make a down file, or adjust the one that is there."""
    try:
        fd = files.disk.create(where, item_mode)
    except FileExistsError:
        files.set_mode(where, item_mode, who)
        return
    try:
        files.own(fd, who)
    except BaseException:
        with contextlib.suppress(OSError):
            files.disk.unlink(where)
        raise
    finally:
        os.close(fd)


def up(queue: str, host: str | None = None) -> None:
    """Let a queue or a host be scanned again; nothing to do if it is."""
    with as_error(FSQConfigError, f"cannot bring {_label(queue, host)} up: {path.base(queue, host)}"):
        directory(path.base(queue, host))
        files.remove_if_there(path.down(queue, host))


def is_down(queue: str, host: str | None = None) -> bool:
    """Tell whether there is a down file. Not being allowed to look is an error, and no "up"."""
    where = path.down(queue, host)
    with as_error(FSQConfigError, f"cannot tell whether {_label(queue, host)} is down: {where}"):
        above, name = parent(where)
        try:
            os.stat(name, dir_fd=above.fd)
        except FileNotFoundError:
            return False
        return True


def is_withheld(queue: str, host: str | None) -> bool:
    """Tell whether items must wait: the queue is down, or the host is."""
    return is_down(queue) or (host is not None and is_down(queue, host))


def down_host(queue: str, host: str, user: Who = None, group: Who = None, mode: int | str | None = None) -> None:
    """Stop the scanning of a host."""
    down(queue, user=user, group=group, mode=mode, host=host)


def up_host(queue: str, host: str) -> None:
    """Let a host be scanned again."""
    up(queue, host=host)


def host_is_down(queue: str, host: str) -> bool:
    """Tell whether a host is down."""
    return is_down(queue, host=host)


def _label(queue: str, host: str | None) -> str:
    return queue if host is None else f"host {host} of {queue}"
