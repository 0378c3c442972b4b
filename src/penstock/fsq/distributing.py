"""Distribution: each item of a queue goes into the queues of its hosts, then it is done."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence

from penstock.fsq import installing
from penstock.fsq.constants import number_of
from penstock.fsq.control import host_trigger_pull
from penstock.fsq.engine import Engine, ScanJob, to_stderr
from penstock.fsq.errors import FSQDownError, FSQError, FSQWorkItemError, describe
from penstock.fsq.items import FSQWorkItem
from penstock.fsq.reenqueueing import vreenqueue
from penstock.fsq.scanning import scan


def distribute(
    queue: str,
    hosts: Iterable[str] | None = None,
    *,
    link: bool = False,
    trigger: bool = False,
    ignore_down: bool = False,
    no_open: bool = False,
    no_done: bool = False,
    verbose: bool = False,
    lock: bool | None = None,
    ttl: int | None = None,
    max_tries: int | None = None,
    report: Callable[[str], None] = to_stderr,
) -> int:
    """Copy (or link) the waiting items to the named hosts, or to all; return the exit status."""
    names = installing.hosts(queue) if hosts is None else tuple(hosts)
    if not names:
        raise FSQError(errno.ENOENT, f"queue {queue} has no hosts")
    items = scan(queue, lock=lock, ttl=ttl, max_tries=max_tries, ignore_down=ignore_down, no_open=no_open, look=no_done)
    failed = False
    while True:
        try:
            item = next(items)
        except StopIteration:
            break
        except FSQDownError as error:
            report(describe(error))
            failed = True
            break
        except FSQError as error:
            report(describe(error))
            failed = failed or error.errno not in (errno.EINTR, errno.EINVAL)
            continue
        failed = not _pass_on(item, names, link, trigger, no_done, verbose, report) or failed
    return number_of("FSQ_FAIL_TMP") if failed else number_of("FSQ_SUCCESS")


def _pass_on(
    item: FSQWorkItem,
    hosts: tuple[str, ...],
    link: bool,
    trigger: bool,
    no_done: bool,
    verbose: bool,
    report: Callable[[str], None],
) -> bool:
    """Distribute one item to all hosts; return whether everything but the item itself worked."""
    try:
        vreenqueue(item, [item.queue], hosts=hosts, link=link)
    except FSQError as error:
        report(f"{item.id}: {describe(error)}")
        if not no_done:
            _put_back(item, report)
        return True
    if trigger:
        try:
            host_trigger_pull(item.queue, ignore_listener=True)
        except FSQError as error:
            report(describe(error))
    try:
        if not no_done:
            item.success()
    except FSQError as error:
        report(f"{item.id}: {describe(error)}")
        return False
    if verbose:
        report(f"{item.id}: passed on to {', '.join(hosts)}")
    return True


def _put_back(item: FSQWorkItem, report: Callable[[str], None]) -> None:
    try:
        item.fail_tmp()
    except FSQWorkItemError as error:
        report(describe(error))
    else:
        report(f"{item.id}: failed temporarily")


def fork_exec_items(
    queue: str,
    ignore_down: bool = False,
    no_open: bool = False,
    host: bool = False,
    hosts: Iterable[str] | None = None,
    no_done: bool = False,
    link: bool = False,
    trigger: bool = False,
    exec_args: Sequence[str] = (),
    set_env: bool = True,
    verbose: bool = False,
    empty_ok: bool = False,
    max_rate: float | None = None,
) -> int:
    """Run a program for each waiting item, or, without one, copy the items to the queue's hosts; return a status."""
    if not exec_args and not empty_ok:
        return distribute(
            queue,
            hosts,
            link=link,
            trigger=trigger,
            ignore_down=ignore_down,
            no_open=no_open,
            no_done=no_done,
            verbose=verbose,
        )
    job = ScanJob(
        queue=queue,
        command=tuple(exec_args),
        host=host,
        hosts=None if hosts is None else list(hosts),
        ignore_down=ignore_down,
        no_open=no_open,
        no_done=no_done,
        set_env=set_env,
        verbose=verbose,
        max_rate=max_rate or 0,
    )
    return Engine(job).run()
