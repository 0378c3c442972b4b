"""What goes wrong with directories as queues, under the names that programs written for FSQ catch.

    PenstockError, OSError
    └── FSQError                    never raised itself
        ├── FSQEnvError               a setting, a user or a group that can't be
        ├── FSQEncodeError            a delimiter, an escape or a name that can't be read or written
        ├── FSQTimeFmtError           the time or the tries in a name are not valid
        ├── FSQMalformedEntryError    a name without the five fields
        ├── FSQCoerceError            a value that has no text
        ├── FSQPathError              a name that would lead elsewhere
        ├── FSQInstallError           making or removing a queue or a host
        ├── FSQConfigError            down files and triggers
        ├── FSQTriggerPullError       nobody listens, or there is no trigger
        ├── FSQHostsError             listing the hosts of a queue
        ├── FSQEnqueueError           putting an item into a queue
        ├── FSQReenqueueError         putting an item into further queues
        ├── FSQScanError              listing a queue
        │   └── FSQDownError            it is down
        ├── FSQCannotLockError        somebody else has the lock
        ├── FSQWorkItemError          opening an item
        │   ├── FSQTTLExpiredError      it is too old
        │   └── FSQMaxTriesError        it was tried often enough
        ├── FSQDoneError              completing an item with success
        ├── FSQFailError              completing an item without
        ├── FSQPushError              sending an item to another machine
        └── FSQRemoteTriggerError     pulling a trigger on another machine

All are made from an errno and a text, as OSError is, except the last two, which have only a text. An errno doesn't
turn one into FileNotFoundError and the like: look at `errno`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError


class FSQError(PenstockError, OSError):
    """The root of this tree."""


class FSQEnvError(FSQError):
    """A setting that is unknown or has an invalid value; an unknown user or group."""


class FSQEncodeError(FSQError):
    """A delimiter or an escape that breaks the rules, or a name that can't be decoded."""


class FSQTimeFmtError(FSQError):
    """The time or the tries of an item can't be read."""


class FSQMalformedEntryError(FSQError):
    """A name that is empty, or has fewer than five fields."""


class FSQCoerceError(FSQError):
    """A value that can't be turned into text."""


class FSQPathError(FSQError):
    """A name that would lead out of its directory."""


class FSQInstallError(FSQError):
    """A queue or a host could not be installed or removed."""


class FSQConfigError(FSQError):
    """A down file or a trigger could not be made, removed or read."""


class FSQTriggerPullError(FSQError):
    """The trigger could not be pulled."""


class FSQHostsError(FSQError):
    """The hosts of a queue could not be listed."""


class FSQEnqueueError(FSQError):
    """The item is not in the queue; if the text says so, it may be there but not yet safe."""


class FSQReenqueueError(FSQError):
    """The item is not in all of the queues."""


class FSQScanError(FSQError):
    """The queue could not be listed."""


class FSQDownError(FSQScanError):
    """The queue is down."""


class FSQCannotLockError(FSQError):
    """Somebody else holds the lock."""


class FSQWorkItemError(FSQError):
    """The item could not be opened."""


class FSQTTLExpiredError(FSQWorkItemError):
    """The item is older than its time to live."""


class FSQMaxTriesError(FSQWorkItemError):
    """The item has been tried as often as it may."""


class FSQDoneError(FSQError):
    """The item could not be moved to `done`."""


class FSQFailError(FSQError):
    """The item could not be moved to `fail`, or be put back."""


class FSQPushError(FSQError):
    """The item did not reach the other machine, as far as we know."""


class FSQRemoteTriggerError(FSQError):
    """The trigger of the other machine was not pulled, as far as we know."""


class UnsafeFile(OSError):
    """Something in a queue that nobody should work on or through: a link, a file with other names, another owner's."""


@contextmanager
def as_error(kind: type[FSQError], what: str) -> Iterator[None]:
    """Turn the system's errors into one of ours that says what was tried; ours pass."""
    try:
        yield
    except FSQError:
        raise
    except OSError as error:
        number = error.errno or 0
        text = os.strerror(number) if number and not isinstance(error, UnsafeFile) else describe(error)
        raise kind(number, f"{what}: {text}") from error


def describe(error: BaseException) -> str:
    """Return the text of an error without the number in front."""
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    return str(error) or type(error).__name__
