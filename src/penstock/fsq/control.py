"""Control of a queue: down files stop its scanning, triggers wake its scanners.

While the file `down` is there, a queue (or one of its hosts) is not scanned; enqueueing goes on. A trigger is a FIFO in
the queue's directory: a byte written into it makes scanners look.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from penstock.fsq import files, path
from penstock.fsq.constants import text_of
from penstock.fsq.directory import directory, parent
from penstock.fsq.errors import FSQConfigError, FSQTriggerPullError, as_error
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
    """Whether there is a down file. Without the right to read, that is an error, not "up"."""
    where = path.down(queue, host)
    with as_error(FSQConfigError, f"cannot check whether {_label(queue, host)} is down: {where}"):
        above, name = parent(where)
        try:
            os.stat(name, dir_fd=above.fd)
        except FileNotFoundError:
            return False
        return True


def is_withheld(queue: str, host: str | None) -> bool:
    """Whether items must wait: the queue is down, or the host is."""
    return is_down(queue) or (host is not None and is_down(queue, host))


def down_host(queue: str, host: str, user: Who = None, group: Who = None, mode: int | str | None = None) -> None:
    """Stop the scanning of a host."""
    down(queue, user=user, group=group, mode=mode, host=host)


def up_host(queue: str, host: str) -> None:
    """Let a host be scanned again."""
    up(queue, host=host)


def host_is_down(queue: str, host: str) -> bool:
    """Whether a host is down."""
    return is_down(queue, host=host)


def _label(queue: str, host: str | None) -> str:
    return queue if host is None else f"host {host} of {queue}"


PULL = b"\0"
PULL_FLAGS = os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def trigger(
    queue: str,
    user: Who = None,
    group: Who = None,
    mode: int | str | None = None,
    trigger: str | None = None,
) -> None:
    """Make the trigger of a queue, or set mode and owner of the one that is there."""
    who = owner(user, group, "ITEM")
    with as_error(FSQConfigError, f"cannot make a trigger for {queue}: {path.base(queue)}"):
        put_fifo(path.trigger(queue, trigger), who, mode_of(mode, "ITEM"))


def put_fifo(where: str, who: Owner, mode: int) -> None:
    """Make a FIFO with exactly this mode, or adjust the one that is there."""
    above, name = parent(where)
    made = True
    try:
        os.mkfifo(name, mode, dir_fd=above.fd)
    except FileExistsError:
        made = False
        if not stat.S_ISFIFO(files.status(where).st_mode):
            raise
    try:
        files.set_mode(where, mode, who)
    except BaseException:
        if made:
            files.disk.unlink(where)
        raise


def untrigger(queue: str, trigger: str | None = None) -> None:
    """Remove the trigger of a queue, if it has one."""
    with as_error(FSQConfigError, f"cannot remove the trigger of {queue}: {path.base(queue)}"):
        directory(path.base(queue))
        files.remove_if_there(path.trigger(queue, trigger))


def trigger_pull(queue: str, ignore_listener: bool = False, trigger: str | None = None) -> None:
    """Wake whoever waits for the queue. Nobody there: FSQTriggerPullError with ENXIO, unless that is to be ignored."""
    where = path.trigger(queue, trigger)
    with as_error(FSQConfigError, f"there is no queue {queue}: {path.base(queue)}"):
        directory(path.base(queue))
    with as_error(FSQTriggerPullError, f"cannot pull the trigger {where}"):
        try:
            above, name = parent(where)
            fd = os.open(name, PULL_FLAGS, dir_fd=above.fd)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if ignore_listener:
                return
            raise FSQTriggerPullError(errno.ENXIO, f"no listener for: {where}") from error
        try:
            _write(fd, where)
        finally:
            os.close(fd)


def _write(fd: int, where: str) -> None:
    # The name may come from another machine: it must not add a byte to an ordinary file.
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        raise FSQTriggerPullError(errno.EINVAL, f"{where} is not a trigger")
    try:
        os.write(fd, PULL)
    except BlockingIOError:
        return  # it is full of pulls that nobody has seen yet


def host_trigger(queue: str, user: Who = None, group: Who = None, mode: int | str | None = None) -> None:
    """Make the trigger of a queue's hosts."""
    trigger(queue, user=user, group=group, mode=mode, trigger=text_of("FSQ_HOSTS_TRIGGER"))


def host_untrigger(queue: str) -> None:
    """Remove the trigger of a queue's hosts."""
    untrigger(queue, trigger=text_of("FSQ_HOSTS_TRIGGER"))


def host_trigger_pull(queue: str, ignore_listener: bool = False) -> None:
    """Wake whoever waits for the hosts of a queue."""
    trigger_pull(queue, ignore_listener=ignore_listener, trigger=text_of("FSQ_HOSTS_TRIGGER"))
