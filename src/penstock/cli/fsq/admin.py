"""The commands of `fsq` that make, remove, open and close queues and hosts."""

import errno
from typing import Any

from penstock import fsq
from penstock.cli.fsq.call import PERM, BadValue, CommandCall, UsageError


def mode_of(call: CommandCall, status: int) -> int | None:
    """Return the mode of the flag; an invalid one ends the command with this status."""
    text = call.value("mode")
    if text is None:
        return None
    try:
        mode = int(text, 8)
    except ValueError:
        raise BadValue(f"invalid argument for flag: -m: {text}", status) from None
    if not 0 <= mode <= 0o7777:
        raise BadValue(f"invalid argument for flag: -m: {text}", status)
    return mode


def _owner(call: CommandCall, name: str, group: str = "group") -> dict[str, Any]:
    """The owner that was asked for; one that doesn't exist is a mistake of the command line."""
    from penstock.fsq.owners import gid_of, uid_of

    try:
        uid_of(call.value(name))
        gid_of(call.value(group))
    except fsq.FSQEnvError as error:
        raise BadValue(f"invalid argument for flag: {error.strerror}", PERM) from None
    return {"user": call.value(name), "group": call.value(group)}


def _looks(call: CommandCall) -> dict[str, Any]:
    """Owner and mode of everything that install or add-host makes."""
    who = _owner(call, "owner")
    mode = mode_of(call, PERM)
    return {**who, "mode": mode, "item_user": who["user"], "item_group": who["group"], "item_mode": mode}


def install(call: CommandCall) -> int:
    """Make queues."""
    if not call.words:
        raise UsageError
    hosts = call.options.get("add-host")
    options = {
        "is_down": call.has("down"),
        "is_triggered": call.has("trigger"),
        "hosts": hosts,
        "is_host_triggered": call.has("trigger") and hosts is not None,
        **_looks(call),
    }
    for queue in call.words:
        call.tell(f"installing {queue}")
        _make(
            call,
            queue,
            queue,
            lambda queue=queue: fsq.install(queue, **options),
            lambda queue=queue: fsq.uninstall(queue),
        )
    return 0


def _make(call: CommandCall, queue: str, label: str, make: Any, remove: Any) -> None:
    """Make a queue or host; -f removes what is there first, -i leaves it."""
    try:
        make()
    except fsq.FSQInstallError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        if call.has("ignore-exists"):
            call.tell(f"{label} is there")
            return
        if not call.has("force") or error.errno == errno.ENOTDIR:
            raise BadValue(f"queue exists: {queue}") from None
        call.tell(f"removing {label}")
        remove()
        make()


def uninstall(call: CommandCall) -> int:
    """Remove queues."""
    if not call.words:
        raise UsageError
    for queue in call.words:
        call.tell(f"removing {queue}")
        try:
            fsq.uninstall(queue)
        except fsq.FSQInstallError as error:
            if not (call.has("force") and error.errno == errno.ENOENT):
                raise
    return 0


def down(call: CommandCall) -> int:
    """Stop the scanning of queues."""
    mode = mode_of(call, 111)
    for queue in call.words:
        call.tell(f"taking {queue} down")
        fsq.down(queue, user=call.value("user"), group=call.value("group"), mode=mode)
    return 0


def up(call: CommandCall) -> int:
    """Let queues be scanned again."""
    for queue in call.words:
        call.tell(f"bringing {queue} up")
        fsq.up(queue)
    return 0


def _host_and_queues(call: CommandCall) -> tuple[str, list[str]]:
    if len(call.words) < 2:
        raise UsageError
    return call.words[0], call.words[1:]


def add_host(call: CommandCall) -> int:
    """Add a host to queues."""
    host, queues = _host_and_queues(call)
    options = _looks(call)
    for queue in queues:
        call.tell(f"adding host {host} to {queue}")
        _make(
            call,
            queue,
            f"host {host} of {queue}",
            lambda queue=queue: fsq.install_host(queue, host, **options),
            lambda queue=queue: fsq.uninstall_host(queue, host),
        )
    return 0


def rm_host(call: CommandCall) -> int:
    """Remove a host from queues."""
    host, queues = _host_and_queues(call)
    for queue in queues:
        call.tell(f"removing host {host} from {queue}")
        try:
            fsq.uninstall_host(queue, host)
        except fsq.FSQError as error:
            if not call.has("force"):
                raise
            call.tell(str(error.strerror))
    return 0


def down_host(call: CommandCall) -> int:
    """Stop the scanning of a host."""
    host, queues = _host_and_queues(call)
    options = {**_owner(call, "owner"), "mode": mode_of(call, PERM)}
    for queue in queues:
        call.tell(f"taking host {host} of {queue} down")
        fsq.down_host(queue, host, **options)
    return 0


def up_host(call: CommandCall) -> int:
    """Let a host be scanned again."""
    host, queues = _host_and_queues(call)
    for queue in queues:
        call.tell(f"bringing host {host} of {queue} up")
        fsq.up_host(queue, host)
    return 0
