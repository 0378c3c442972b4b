"""The commands of `fsq` that put items into queues, run them, and pass them on."""

import math
import os
import signal
import sys
from types import FrameType
from typing import Any

from penstock import fsq
from penstock.cli.fsq.admin import mode_of
from penstock.cli.fsq.call import BadValue, CommandCall, UsageError
from penstock.fsq.engine import JOBS_MAX, Engine, ScanJob
from penstock.fsq.waiting import RESCAN_SECONDS


def enqueue(call: CommandCall) -> int:
    """Put an item into a queue."""
    if not call.words:
        raise UsageError
    queue, args = call.words[0], call.words[1:]
    options: dict[str, Any] = {"user": call.value("user"), "group": call.value("group"), "mode": mode_of(call, 111)}
    name = call.value("file")
    if name is not None:
        item_id = fsq.venqueue(queue, name, args, **options)
    elif call.has("empty"):
        item_id = fsq.vsenqueue(queue, b"", args, **options)
    else:
        if sys.stdin.isatty():
            call.say("reading the data from standard input, up to its end")
        item_id = fsq.venqueue(queue, sys.stdin.fileno(), args, **options)
    call.tell(f"enqueued {item_id} into {queue}")
    if call.has("id"):
        print(item_id)
    if call.has("trigger"):
        try:
            fsq.trigger_pull(queue)
        except fsq.FSQError as error:
            raise BadValue(f"{error.strerror} (the item is in the queue)") from error
    return 0


class StopOnSignal:
    """SIGTERM and SIGINT: what is begun is finished, nothing more is begun. A second signal ends at once."""

    def __init__(self) -> None:
        self.is_set = False
        self._read, self._write = os.pipe()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.is_set:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.is_set = True
        os.write(self._write, b"\0")

    def fileno(self) -> int:
        """Return the descriptor that becomes readable with the signal."""
        return self._read


def scan(call: CommandCall) -> int:
    """Run a program for each waiting item."""
    if not call.words or (len(call.words) < 2 and not call.has("empty-ok")):
        raise UsageError
    _set_codes(call)
    hosts = call.options.get("host")
    job = ScanJob(
        queue=call.words[0],
        command=call.words[1:],
        host=call.has("all-hosts") or hosts is not None,
        hosts=None if call.has("all-hosts") else hosts,
        ignore_down=call.has("ignore-down"),
        no_open=call.has("no-open"),
        no_done=call.has("no-done"),
        set_env=not call.has("no-env"),
        verbose=call.has("verbose"),
        max_rate=_seconds(call, "max-rate") or 0,
        jobs=call.number("jobs", 1) or 1,
        wait=call.has("wait"),
        rescan_seconds=_seconds(call, "rescan") or RESCAN_SECONDS,
        lock=_lock(call),
        ttl=call.number("ttl"),
        max_tries=call.number("max-tries"),
    )
    if job.jobs > JOBS_MAX:
        raise BadValue(f"invalid argument for flag: --jobs: at most {JOBS_MAX}")
    return Engine(job, stop=StopOnSignal()).run()


def host_dist(call: CommandCall) -> int:
    """Copy each waiting item to hosts."""
    if not call.words:
        raise UsageError
    _set_codes(call)
    return fsq.distribute(
        call.words[0],
        call.words[1:] or None,
        link=call.has("link"),
        trigger=call.has("trigger"),
        ignore_down=call.has("ignore-down"),
        no_open=call.has("no-open"),
        no_done=call.has("no-done"),
        verbose=call.has("verbose"),
        lock=_lock(call),
        ttl=call.number("ttl"),
        max_tries=call.number("max-tries"),
    )


def _set_codes(call: CommandCall) -> None:
    for flag, setting in (
        ("success-code", "FSQ_SUCCESS"),
        ("fail-tmp-code", "FSQ_FAIL_TMP"),
        ("fail-perm-code", "FSQ_FAIL_PERM"),
    ):
        number = call.number(flag)
        if number is not None:
            fsq.set_const(setting, number)


def _lock(call: CommandCall) -> bool | None:
    if not (call.has("lock") or call.has("no-lock")):
        return None
    return not call.has("no-lock")


def _seconds(call: CommandCall, name: str) -> float | None:
    text = call.value(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and value >= 0):
        raise BadValue(f"invalid argument for flag: --{name}: {text}")
    return value


def push(call: CommandCall) -> int:
    """Send items of a host to another machine."""
    if len(call.words) < 5:
        raise UsageError
    address, source, target, host = call.words[:4]
    protocol = call.value("protocol") or "jsonrpc"
    lock = False if call.has("no-lock") else None
    token = os.environ.get("FSQ_TOKEN")
    for item_id in call.words[4:]:
        with fsq.FSQWorkItem(source, item_id, max_tries=0, ttl=0, lock=lock, host=host, look=True) as item:
            fsq.push(item, address, target, protocol, token=token)
        call.tell(f"sent {item_id}")
        if call.has("trigger"):
            fsq.remote_trigger_pull(address, target, call.has("ignore-listener"), protocol, token=token)
    return 0
