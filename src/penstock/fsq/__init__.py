"""Directories as queues, by the FSQ standard: an item is a file, its name holds the metadata, a queue is a directory.

Any program that follows the standard can share a queue: the original `fsq` and this package work on one directory at
the same time. The names are the original's; `import fsq` has the same ones.

    from penstock import fsq

    fsq.install("mail")
    fsq.senqueue("mail", "Dear Ann, ...", "ann@example.com")
    for item in fsq.scan("mail"):
        send(item.item.read(), to=item.arguments[0])
        fsq.success(item)

Read in this order: names, path, files, items, enqueueing, scanning. What may happen to a directory at a power failure
stands in files.py, what to a worker in attempts.py.
"""

from penstock.fsq import constants, path, remote
from penstock.fsq.constants import const, set_const
from penstock.fsq.control import (
    down,
    down_host,
    host_is_down,
    host_trigger,
    host_trigger_pull,
    host_untrigger,
    is_down,
    trigger,
    trigger_pull,
    untrigger,
    up,
    up_host,
)
from penstock.fsq.distributing import distribute, fork_exec_items
from penstock.fsq.enqueueing import NewItem, enqueue, enqueue_many, senqueue, venqueue, vsenqueue
from penstock.fsq.errors import (
    FSQCannotLockError,
    FSQCoerceError,
    FSQConfigError,
    FSQDoneError,
    FSQDownError,
    FSQEncodeError,
    FSQEnqueueError,
    FSQEnvError,
    FSQError,
    FSQFailError,
    FSQHostsError,
    FSQInstallError,
    FSQMalformedEntryError,
    FSQMaxTriesError,
    FSQPathError,
    FSQPushError,
    FSQReenqueueError,
    FSQRemoteTriggerError,
    FSQScanError,
    FSQTimeFmtError,
    FSQTriggerPullError,
    FSQTTLExpiredError,
    FSQWorkItemError,
)
from penstock.fsq.installing import hosts, install, install_host, queues, uninstall, uninstall_host
from penstock.fsq.items import FSQWorkItem, done, fail, fail_perm, fail_tmp, retry, success
from penstock.fsq.names import construct, decode, deconstruct, encode
from penstock.fsq.ratelimit import RatelimitedIterator, ratelimited
from penstock.fsq.reenqueueing import reenqueue, sreenqueue, vreenqueue, vsreenqueue
from penstock.fsq.remote import push, remote_trigger_pull
from penstock.fsq.scanning import FSQScanGenerator, scan, scan_forever

__all__ = [
    "FSQCannotLockError",
    "FSQCoerceError",
    "FSQConfigError",
    "FSQDoneError",
    "FSQDownError",
    "FSQEncodeError",
    "FSQEnqueueError",
    "FSQEnvError",
    "FSQError",
    "FSQFailError",
    "FSQHostsError",
    "FSQInstallError",
    "FSQMalformedEntryError",
    "FSQMaxTriesError",
    "FSQPathError",
    "FSQPushError",
    "FSQReenqueueError",
    "FSQRemoteTriggerError",
    "FSQScanError",
    "FSQScanGenerator",
    "FSQTTLExpiredError",
    "FSQTimeFmtError",
    "FSQTriggerPullError",
    "FSQWorkItem",
    "FSQWorkItemError",
    "NewItem",
    "RatelimitedIterator",
    "const",
    "constants",
    "construct",
    "decode",
    "deconstruct",
    "distribute",
    "done",
    "down",
    "down_host",
    "encode",
    "enqueue",
    "enqueue_many",
    "fail",
    "fail_perm",
    "fail_tmp",
    "fork_exec_items",
    "host_is_down",
    "host_trigger",
    "host_trigger_pull",
    "host_untrigger",
    "hosts",
    "install",
    "install_host",
    "is_down",
    "path",
    "push",
    "queues",
    "ratelimited",
    "reenqueue",
    "remote",
    "remote_trigger_pull",
    "retry",
    "scan",
    "scan_forever",
    "senqueue",
    "set_const",
    "sreenqueue",
    "success",
    "trigger",
    "trigger_pull",
    "uninstall",
    "uninstall_host",
    "untrigger",
    "up",
    "up_host",
    "venqueue",
    "vreenqueue",
    "vsenqueue",
    "vsreenqueue",
]
