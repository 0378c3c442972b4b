"""The engine of `fsq scan`: a child for each item, several at a time, and completion by its exit code.

A child has the item open on its standard input, and with it the lock: even if this process is killed, nobody else runs
the item before the child has ended.

    exit code FSQ_SUCCESS     the item is done
    exit code FSQ_FAIL_TMP    it is put back, with one try more
    any other exit code       it has failed for good
    killed by a signal        it has failed for good, and no further item is begun
    could not be started      as FSQ_FAIL_TMP
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.fsq import installing
from penstock.fsq.constants import const, number_of, text_of
from penstock.fsq.errors import FSQDownError, FSQError, FSQScanError, FSQWorkItemError, describe
from penstock.fsq.items import FSQWorkItem
from penstock.fsq.scanning import FSQScanGenerator, scan
from penstock.fsq.waiting import POLL_SECONDS, RESCAN_SECONDS, QueueWatch

JOBS_MAX = 1024  # children at a time: each costs a process and a descriptor
CHILD_POLL_SECONDS = 0.02  # where the system can't wait for a child and other things at once

Report = Callable[[str], None]


class Stop(Protocol):
    """Says that no further item is to be begun; its descriptor becomes readable then."""

    is_set: bool

    def fileno(self) -> int:
        """Return what to wait for."""


@dataclass
class ScanJob:
    """What is done with the items of a queue."""

    queue: str
    command: Sequence[str] = ()
    host: bool = False
    hosts: Sequence[str] | None = None
    ignore_down: bool = False
    no_open: bool = False
    no_done: bool = False
    set_env: bool = True
    verbose: bool = False
    max_rate: float = 0
    jobs: int = 1
    wait: bool = False
    rescan_seconds: float = RESCAN_SECONDS
    lock: bool | None = None
    ttl: int | None = None
    max_tries: int | None = None


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    item: FSQWorkItem
    fd: int | None = field(default=None)  # readable once the child has ended, where the system has that


def to_stderr(message: str) -> None:
    """Write a message for people."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


class Engine:
    """Runs the items of one queue."""

    def __init__(self, job: ScanJob, report: Report = to_stderr, stop: Stop | None = None) -> None:
        if not 1 <= job.jobs <= JOBS_MAX:
            raise ValueError(f"jobs must be 1 to {JOBS_MAX}, got {job.jobs}")
        self._job = job
        self._report = report
        self._stop = stop
        self._children: list[_Child] = []
        self._items: FSQScanGenerator | None = None
        self._waiter: QueueWatch | None = None
        self._next_scan_at = 0.0
        self._aborted = False
        self._failed = False  # something went wrong that is not an item's own failure
        self._said: set[str] = set()
        self._slot_at = 0.0  # no item is begun before; as in ratelimit.py, lost time is caught up

    def run(self) -> int:
        """Work until nothing is left, or, if that is the job, until it is stopped; return the exit status."""
        job = self._job
        try:
            if job.wait:
                watched = installing.hosts(job.queue) if job.host and job.hosts is None else job.hosts
                self._waiter = QueueWatch(job.queue, watched)
            self._begin_scan()
            while self._step():
                pass
        finally:
            if self._items is not None:
                self._items.close()
            if self._waiter is not None:
                self._waiter.close()
        stopped = self._stopping and not job.wait
        return number_of("FSQ_FAIL_TMP") if self._failed or self._aborted or stopped else number_of("FSQ_SUCCESS")

    @property
    def _stopping(self) -> bool:
        return self._stop is not None and self._stop.is_set

    def _begin_scan(self) -> None:
        job = self._job
        self._items = scan(
            job.queue,
            lock=job.lock,
            ttl=job.ttl,
            max_tries=job.max_tries,
            ignore_down=job.ignore_down,
            no_open=job.no_open,
            host=job.host,
            hosts=job.hosts,
            look=job.no_done,
        )
        self._next_scan_at = time.monotonic() + job.rescan_seconds

    def _step(self) -> bool:
        """Do one thing; return whether there is more to do."""
        may_begin = not (self._aborted or self._stopping)
        if may_begin and self._items is not None and len(self._children) < self._job.jobs:
            if time.monotonic() >= self._slot_at:
                self._begin_next(self._items)
            elif self._items.has_more():
                self._sleep(None, self._slot_at)
            else:
                self._items = None
            return True
        if self._children:
            self._sleep(self._waiter if may_begin and self._items is None else None)
            return True
        if self._waiter is None or not may_begin:
            return False
        self._sleep(self._waiter)
        return True

    # Beginning with items.

    def _begin_next(self, items: FSQScanGenerator) -> None:
        try:
            item = next(items)
        except StopIteration:
            self._items = None
            return
        except FSQDownError as error:
            self._note_down(error)
            return
        except FSQWorkItemError as error:
            # It was moved to `fail`, or it can't be opened: then it is for a person to look at.
            self._failed = self._failed or error.errno != errno.EINTR
            self._report(describe(error))
            return
        except FSQScanError:
            raise
        except FSQError as error:
            self._failed = self._failed or error.errno != errno.EINVAL
            self._report(describe(error))
            return
        items.release()
        self._start(item)

    def _note_down(self, error: FSQDownError) -> None:
        text = describe(error)
        if text not in self._said:
            self._said.add(text)
            self._report(text)
        if self._waiter is None:
            self._failed = True
        if not (self._job.host or self._job.hosts is not None):
            self._items = None

    def _start(self, item: FSQWorkItem) -> None:
        self._said.clear()
        if self._job.max_rate > 0:
            self._slot_at = (self._slot_at or time.monotonic()) + 1 / self._job.max_rate
        if self._job.verbose:
            self._report(f"working on {item.id} ...")
        words = [*self._job.command, *item.arguments]
        if not words:
            self._report(f"{item.id}: there is no program to run")
            self._complete(item, number_of("FSQ_FAIL_TMP"))
            return
        try:
            process = subprocess.Popen(words, stdin=item.item, env=self._environment(item))
        except (OSError, ValueError) as error:
            self._report(f"{item.id}: cannot run {words[0]}: {describe(error)}")
            self._complete(item, number_of("FSQ_FAIL_TMP"))
            return
        self._children.append(_Child(process, item, _wait_descriptor(process.pid)))

    def _environment(self, item: FSQWorkItem) -> dict[str, str] | None:
        if not self._job.set_env:
            return None
        values = {
            "FSQ_ITEM_ID": item.id,
            "FSQ_ITEM_ENTROPY": item.entropy,
            "FSQ_ITEM_PID": item.pid,
            "FSQ_ITEM_HOSTNAME": item.hostname,
            "FSQ_ITEM_TRIES": str(item.tries),
            "FSQ_ITEM_ENQUEUED_AT": item.enqueued_at.strftime(text_of("FSQ_TIMEFMT")),
        }
        if item.host is not None:
            values["FSQ_ITEM_HOST"] = item.host
        return {**os.environ, **values}

    # Waiting, for children, for the end and for new work.

    def _sleep(self, waiter: QueueWatch | None, until: float | None = None) -> None:
        poller = select.poll()
        seconds: list[float] = [] if until is None else [max(0.0, until - time.monotonic())]
        for child in self._children:
            if child.fd is None:
                seconds.append(CHILD_POLL_SECONDS)
            else:
                poller.register(child.fd, select.POLLIN)
        if self._stop is not None and not self._stop.is_set:
            poller.register(self._stop.fileno(), select.POLLIN)
        if waiter is not None:
            for fd in waiter.descriptors():
                poller.register(fd, select.POLLIN)
            seconds.append(max(0.0, self._next_scan_at - time.monotonic()))
            if waiter.polls:
                seconds.append(POLL_SECONDS)
        poller.poll(min(seconds) * 1000 if seconds else None)
        for child in list(self._children):
            if child.process.poll() is not None:
                self._finish(child)
        if waiter is not None and (waiter.check() or time.monotonic() >= self._next_scan_at):
            self._begin_scan()

    # Completing items.

    def _finish(self, child: _Child) -> None:
        self._children.remove(child)
        if child.fd is not None:
            os.close(child.fd)
        code = child.process.returncode
        if code >= 0:
            self._complete(child.item, code)
            return
        self._aborted = True
        self._report(f"{child.item.id}: processing terminated by signal {-code}; aborting")
        self._complete(child.item, number_of("FSQ_FAIL_PERM"))

    def _complete(self, item: FSQWorkItem, code: int) -> None:
        try:
            with item:
                if not self._job.no_done:
                    item.done(code)
        except FSQWorkItemError as error:
            self._report(describe(error))
        except FSQError as error:
            self._failed = True
            self._report(f"{item.id}: {describe(error)}")
            # If outcomes can't be written down, running more items only makes more to be repeated.
            self._aborted = self._aborted or error.errno != errno.ENOENT
        else:
            self._tell(item, code)

    def _tell(self, item: FSQWorkItem, code: int) -> None:
        if code == const("FSQ_SUCCESS"):
            if self._job.verbose:
                self._report(f"{item.id}: succeeded")
        elif code == const("FSQ_FAIL_TMP"):
            self._report(f"{item.id}: failed temporarily")
        else:
            self._report(f"{item.id}: failed permanently")


def _wait_descriptor(pid: int) -> int | None:
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    return None
