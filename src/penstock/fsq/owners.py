"""Users and groups, by name or by number."""

from __future__ import annotations

import errno
import grp
import pwd
from typing import NamedTuple

from penstock.fsq.constants import const
from penstock.fsq.errors import FSQEnvError

LEAVE = -1  # what chown takes for: as it is
Who = str | int | None


class Owner(NamedTuple):
    """What chown gets."""

    uid: int
    gid: int

    @property
    def is_set(self) -> bool:
        """Whether there is something to change."""
        return (self.uid, self.gid) != (LEAVE, LEAVE)


def uid_of(user: object) -> int:
    """Return the number of a user; -1 for none."""
    if _is_number(user):
        return _number(user)
    try:
        return pwd.getpwnam(_name(user)).pw_uid if user not in (None, "") else LEAVE
    except KeyError as error:
        raise FSQEnvError(errno.EINVAL, f"there is no user {user}") from error


def gid_of(group: object) -> int:
    """Return the number of a group; -1 for none."""
    if _is_number(group):
        return _number(group)
    try:
        return grp.getgrnam(_name(group)).gr_gid if group not in (None, "") else LEAVE
    except KeyError as error:
        raise FSQEnvError(errno.EINVAL, f"there is no group {group}") from error


def owner(user: Who, group: Who, kind: str) -> Owner:
    """Return the owner for a new thing: as asked for, or by the settings of this kind (`ITEM` or `QUEUE`)."""
    user = const(f"FSQ_{kind}_USER") if user is None else user
    group = const(f"FSQ_{kind}_GROUP") if group is None else group
    return Owner(uid_of(user), gid_of(group))


def mode(value: int | str | None, kind: str) -> int:
    """Return the mode of a thing: as asked for, or by the setting of this kind."""
    if value is None:
        value = const(f"FSQ_{kind}_MODE")
    if isinstance(value, str):
        try:
            return int(value, 8)
        except ValueError as error:
            raise FSQEnvError(errno.EINVAL, f"a mode must be an octal number, got {value!r}") from error
    if not isinstance(value, int):
        raise TypeError(f"a mode must be a number, got {type(value).__name__}")
    return value


def _is_number(who: object) -> bool:
    if isinstance(who, str):
        return who.isascii() and who.isdigit()
    return isinstance(who, int)


def _number(who: object) -> int:
    assert isinstance(who, str | int)
    return int(who)


def _name(who: object) -> str:
    if not isinstance(who, str):
        raise TypeError(f"a user or group must be a name or a number, got {type(who).__name__}")
    return who
