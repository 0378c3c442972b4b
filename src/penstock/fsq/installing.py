"""Making and removing queues, and hosts in them.

A queue is built under a hidden name beside its place, and renamed when it is complete; it is removed the other way
round. So whoever lists the root may see a hidden name for a moment: ours are left out of our own listings.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.fsq import files, path
from penstock.fsq.constants import number_of, text_of
from penstock.fsq.control import down, put_down_file, put_fifo
from penstock.fsq.directory import listing_of, parent
from penstock.fsq.errors import FSQHostsError, FSQInstallError, FSQPathError, as_error
from penstock.fsq.owners import Owner, Who, mode, owner


class _Look(NamedTuple):
    """Owners and modes of what is made."""

    queue_owner: Owner
    queue_mode: int
    item_owner: Owner
    item_mode: int


def install(
    queue: str,
    is_down: bool = False,
    is_triggered: bool = False,
    user: Who = None,
    group: Who = None,
    mode: int | str | None = None,
    item_user: Who = None,
    item_group: Who = None,
    item_mode: int | str | None = None,
    hosts: Iterable[str] | None = None,
    is_host_triggered: bool = False,
) -> None:
    """Make a queue, all at once; then its hosts. One that is there: FSQInstallError with ENOTEMPTY."""
    name = path.valid_name(queue)
    host_names = _host_names(hosts)
    look = _look(user, group, mode, item_user, item_group, item_mode)
    is_triggered = is_triggered or bool(number_of("FSQ_USE_TRIGGER"))
    root = text_of("FSQ_ROOT")
    with _errors(f"cannot install {name} in {root}", name), _hidden(root, name) as draft:
        _furnish(draft, look)
        if is_down:
            put_down_file(f"{draft}/{path.valid_name(text_of('FSQ_DOWN'))}", look.item_owner, look.item_mode)
        if is_triggered:
            put_fifo(f"{draft}/{path.valid_name(text_of('FSQ_TRIGGER'))}", look.item_owner, look.item_mode)
        files.disk.rename(draft, path.base(name))
        files.disk.sync_directory(root)
    if host_names is not None:
        _install_hosts(name, host_names, look, is_down)
    if is_host_triggered:
        with _errors(f"cannot make the hosts' trigger of {name}", name):
            put_fifo(path.trigger(name, text_of("FSQ_HOSTS_TRIGGER")), look.queue_owner, look.queue_mode)


def install_host(
    queue: str,
    *hosts: str,
    user: Who = None,
    group: Who = None,
    mode: int | str | None = None,
    item_user: Who = None,
    item_group: Who = None,
    item_mode: int | str | None = None,
    is_down: bool = False,
) -> None:
    """Add hosts to a queue; without any, just the directory for them."""
    look = _look(user, group, mode, item_user, item_group, item_mode)
    _install_hosts(path.valid_name(queue), [path.valid_name(host) for host in hosts], look, is_down)


def _install_hosts(queue: str, hosts: list[str], look: _Look, is_down: bool) -> None:
    directory = path.hosts(queue)
    with _errors(f"cannot install hosts in {queue}", queue):
        try:
            files.disk.make_directory(directory, 0o700)
        except FileExistsError:
            pass
        else:
            _dress(directory, look)
            files.disk.sync_directory(path.base(queue))
    for host in hosts:
        with _errors(f"cannot install host {host} in {queue}", queue), _hidden(directory, host) as draft:
            _furnish(draft, look)
            if is_down:
                put_down_file(f"{draft}/{path.valid_name(text_of('FSQ_DOWN'))}", look.item_owner, look.item_mode)
            files.disk.rename(draft, path.base(queue, host))
            files.disk.sync_directory(directory)


def uninstall(queue: str, item_user: Who = None, item_group: Who = None, item_mode: int | str | None = None) -> None:
    """Remove a queue with all its items."""
    _remove(path.valid_name(queue), None, item_user, item_group, item_mode)


def uninstall_host(
    queue: str, *hosts: str, item_user: Who = None, item_group: Who = None, item_mode: int | str | None = None
) -> None:
    """Remove hosts of a queue with all their items."""
    for host in hosts:
        _remove(path.valid_name(queue), path.valid_name(host), item_user, item_group, item_mode)


def _remove(queue: str, host: str | None, user: Who, group: Who, item_mode: int | str | None) -> None:
    label = queue if host is None else f"host {host} of {queue}"
    where = path.base(queue, host)
    with _errors(f"cannot remove {label}", queue):
        if not files.is_directory(where):
            raise FSQInstallError(errno.ENOENT, f"no such {'queue' if host is None else 'host'}: {host or queue}")
        # Scanners must not begin with what is about to go.
        down(queue, user=user, group=group, mode=item_mode, host=host)
        above = os.path.dirname(where)
        hidden = _make_hidden(above, host or queue)
        try:
            files.disk.rename(where, hidden)
        except BaseException:
            files.disk.remove_directory(hidden)
            raise
        files.disk.sync_directory(above)
        _remove_tree(hidden)


def queues() -> tuple[str, ...]:
    """Return the names of all queues."""
    with as_error(FSQPathError, f"cannot list {text_of('FSQ_ROOT')}"):
        return tuple(_directories(text_of("FSQ_ROOT"), with_links=True))


def hosts(queue: str) -> tuple[str, ...]:
    """Return the names of a queue's hosts; FSQHostsError with ENOENT if it has no directory for them."""
    with as_error(FSQHostsError, f"cannot list the hosts of {queue}"):
        return tuple(_directories(path.hosts(queue), with_links=False))


def _directories(where: str, with_links: bool) -> list[str]:
    """What is there, without the hidden ones: those are being made or removed."""
    with files.entries(where) as entries:
        shown = (entry for entry in entries if not entry.name.startswith("."))
        return sorted(entry.name for entry in shown if entry.is_dir(follow_symlinks=with_links))


def _host_names(hosts: Iterable[str] | None) -> list[str] | None:
    if hosts is None:
        return None
    if isinstance(hosts, str | bytes):
        raise TypeError("hosts must be a list of names, got one name")
    return [path.valid_name(host) for host in hosts]


def _look(
    user: Who,
    group: Who,
    queue_mode: int | str | None,
    item_user: Who,
    item_group: Who,
    item_mode: int | str | None,
) -> _Look:
    return _Look(
        owner(user, group, "QUEUE"),
        mode(queue_mode, "QUEUE"),
        owner(item_user, item_group, "ITEM"),
        mode(item_mode, "ITEM"),
    )


@contextlib.contextmanager
def _hidden(parent: str, name: str) -> Iterator[str]:
    """A directory to build in; what is left of it at the end is removed."""
    draft = _make_hidden(parent, name)
    try:
        yield draft
    finally:
        with contextlib.suppress(OSError):
            _remove_tree(draft)


def _make_hidden(above: str, name: str) -> str:
    path = f"{above}/.{name[:40]}{files.temporary_name()[1:]}"
    files.disk.make_directory(path, 0o700)
    return path


def _remove_tree(path: str) -> None:
    """Remove a directory and all in it; a link in it is removed, and not followed."""
    where, name = parent(path)
    shutil.rmtree(name, dir_fd=where.fd)


def _furnish(directory: str, look: _Look) -> None:
    _dress(directory, look)
    for setting in ("FSQ_TMP", "FSQ_QUEUE", "FSQ_DONE", "FSQ_FAIL"):
        inner = f"{directory}/{path.valid_name(text_of(setting))}"
        files.disk.make_directory(inner, 0o700)
        _dress(inner, look)
    files.disk.sync_directory(directory)


def _dress(directory: str, look: _Look) -> None:
    """Set the owner, then the mode: a change of the owner takes the set-group-id bit away."""
    with listing_of(directory) as fd:
        files.own(fd, look.queue_owner)
        os.fchmod(fd, look.queue_mode)


@contextlib.contextmanager
def _errors(what: str, queue: str) -> Iterator[None]:
    """The system's errors as ours; a directory in the way means that the queue or host is there."""
    try:
        with as_error(FSQInstallError, what):
            yield
    except FSQInstallError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FSQInstallError(errno.ENOTEMPTY, f"queue exists: {queue}") from error
        raise
