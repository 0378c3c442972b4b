"""Waiting for work: by inotify, by trigger, and by looking where there is neither."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import fsq
from penstock.fsq import waiting
from penstock.fsq.waiting import QueueWatch
from tests.fsq import programs
from tests.processes import need_module, wait_until

FOR_EVER = 60.0  # no test waits that long unless it fails


@pytest.fixture(params=["inotify", "polling"])
def waiter(request: pytest.FixtureRequest, queue: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueWatch]:
    if request.param == "inotify":
        if sys.platform != "linux":
            pytest.skip("there is no inotify here")
        need_module("inotify_simple")
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.02)
    fsq.trigger(queue)
    made = QueueWatch(queue, use_inotify=request.param == "inotify")
    assert made.polls == (request.param == "polling")
    yield made
    made.close()


def after_a_moment(action: object) -> threading.Timer:
    timer = threading.Timer(0.05, action)  # type: ignore[arg-type]  # a function without arguments
    timer.start()
    return timer


def test_a_new_item_ends_a_wait(waiter: QueueWatch, queue: str) -> None:
    timer = after_a_moment(lambda: fsq.senqueue(queue, ""))
    assert waiter.wait(FOR_EVER)
    timer.join()


def test_an_item_that_came_before_the_wait_ends_it_at_once(waiter: QueueWatch, queue: str) -> None:
    fsq.senqueue(queue, "")
    assert waiter.check()
    assert not waiter.wait(0)


def test_a_pull_ends_a_wait_once(waiter: QueueWatch, queue: str) -> None:
    fsq.trigger_pull(queue)
    fsq.trigger_pull(queue)
    assert waiter.wait(FOR_EVER)
    assert not waiter.wait(0)


def test_a_pull_that_was_seen_leaves_nothing_to_wake_up_for(waiter: QueueWatch, queue: str) -> None:
    fsq.trigger_pull(queue)
    assert waiter.check()
    poller = select.poll()
    for fd in waiter.descriptors():
        poller.register(fd)
    assert [event for _, event in poller.poll(0) if event & (select.POLLIN | select.POLLHUP)] == []


def test_a_trigger_that_is_made_again_is_found(waiter: QueueWatch, queue: str) -> None:
    fsq.untrigger(queue)
    fsq.trigger(queue)
    waiter.check()
    assert waiter.descriptors()
    fsq.trigger_pull(queue)
    assert waiter.wait(FOR_EVER)


def test_an_up_ends_a_wait(waiter: QueueWatch, queue: str) -> None:
    fsq.down(queue)
    waiter.check()
    timer = after_a_moment(lambda: fsq.up(queue))
    assert waiter.wait(FOR_EVER)
    timer.join()


def test_a_redriven_item_ends_a_wait(waiter: QueueWatch, root: Path, queue: str) -> None:
    from penstock.fsq.redrive import redrive

    name = fsq.senqueue(queue, "")
    with fsq.FSQWorkItem(queue, name) as item:
        item.fail_perm()
    waiter.check()
    redrive(queue, [name])
    assert waiter.wait(FOR_EVER)


def test_completions_and_retries_are_no_new_work(queue: str) -> None:
    need_module("inotify_simple")
    names = [fsq.senqueue(queue, "") for _ in range(3)]
    with QueueWatch(queue) as watching:
        if watching.polls:
            pytest.skip("there is no inotify here")
        for name, code in zip(names, (0, 100, 111), strict=True):
            with fsq.FSQWorkItem(queue, name, max_tries=5) as item:
                item.done(code)
        assert not watching.wait(0)


def test_waiting_takes_no_time_of_the_processor(waiter: QueueWatch) -> None:
    before = os.times()
    assert not waiter.wait(0.5)
    after = os.times()
    assert after.user + after.system - before.user - before.system < 0.4


def test_without_the_package_directories_are_checked(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inotify_simple", None)
    with QueueWatch(queue) as looking:
        assert looking.polls


def test_scan_forever_returns_what_is_there_and_what_comes(queue: str) -> None:
    first = fsq.senqueue(queue, "")
    items = fsq.scan_forever(queue)
    assert next(items).id == first
    fsq.success(_current(items))
    second: list[str] = []
    timer = after_a_moment(lambda: second.append(fsq.senqueue(queue, "")))
    item = next(items)
    timer.join()
    assert [item.id] == second
    item.close()
    items.close()


def _current(items: object) -> fsq.FSQWorkItem:
    return items._items.item  # type: ignore[attr-defined,no-any-return]  # the one that was just given


def test_scan_forever_can_wait_first(queue: str) -> None:
    name = fsq.senqueue(queue, "")
    items = fsq.scan_forever(queue, process_once_now=False, rescan_seconds=0.05)
    assert next(items).id == name
    items.close()


@pytest.mark.system
def test_a_waiting_scan_runs_what_comes_and_ends_when_stopped(root: Path, queue: str) -> None:
    first = fsq.senqueue(queue, "")
    scan = programs.start("scan", "-w", "-j", "2", "mail", "true")
    try:
        wait_until(lambda: os.listdir(root / "mail/done") == [first])
        second = fsq.senqueue(queue, "")
        wait_until(lambda: second in os.listdir(root / "mail/done"))
        fsq.down(queue)
        third = fsq.senqueue(queue, "")
        fsq.up(queue)
        wait_until(lambda: third in os.listdir(root / "mail/done"))
        scan.send_signal(signal.SIGTERM)
        assert scan.wait(programs.SECONDS_MAX) == 0
    finally:
        if scan.poll() is None:
            scan.kill()
            scan.wait()


@pytest.mark.system
def test_a_waiting_scan_sleeps_between_items(root: Path, queue: str) -> None:
    fsq.senqueue(queue, "", "retried forever")
    scan = programs.start("scan", "-w", "-m", "0", "mail", "sh", "-c", "exit 111", stderr=-3)
    try:
        wait_until(lambda: any("_1_retried" in name for name in os.listdir(root / "mail/queue")))
        poller = select.poll()
        poller.poll(500)
        (name,) = os.listdir(root / "mail/queue")
        if need_module("inotify_simple"):
            assert "_1_retried" in name, "a failing item is not run again and again"
    finally:
        scan.kill()
        scan.wait()
