"""Runs plain functions: in threads, so that they may block while leases are made longer and results are told.

To go through the event loop for each job would cost more than a short function does. So jobs lie in an inbox that the
threads take from, one after the other, and results lie in an outbox; the loop is woken for the first of them, and takes
all that have come by then.

A thread can't be stopped from outside. A function that overruns its time limit is given up: its job counts as failed,
`job.lost` tells the function, should it look, and a new thread takes the old one's place. When more than `stuck_max`
are given up and still run, the worker must be replaced as a whole: it is told through `on_stuck`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

from penstock.worker.choices import Overran
from penstock.worker.held import Held
from penstock.worker.running import Finished, OnStart, Runner, undone
from penstock.worker.thread_jobs import ThreadJob

LOOKS_A_LIMIT = 10  # how often overruns are looked for within a time limit: one is found at most a tenth too late


class Threads(Runner):
    """Up to `concurrency` threads, made when they are needed."""

    def __init__(
        self,
        handler: Callable[[Any], Any],  # of a ThreadJob
        concurrency: int,
        time_limit: float | None,
        finished: Finished,
        on_start: OnStart | None,
        stuck_max: int,
        on_stuck: Callable[[], None],
    ) -> None:
        super().__init__(concurrency, finished)
        self._handler = handler
        self._limit = time_limit
        self._on_start = on_start
        self._stuck_max = stuck_max
        self._on_stuck = on_stuck
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Held | None] = SimpleQueue()
        self._outbox: deque[tuple[Held, BaseException | None]] = deque()
        self._lock = threading.Lock()  # a job is given up before its result is in the outbox, or not at all
        self._is_woken = False
        self._threads = 0
        self._stuck = 0
        self._look: asyncio.TimerHandle | None = None
        if time_limit is not None:
            self._look_later(time_limit)

    @property
    def has_room(self) -> bool:
        # What is in the inbox waits there just as well as elsewhere, and a thread that is done finds it without delay.
        return True

    @property
    def busy(self) -> int:
        return min(len(self.running), self.concurrency)

    def start(self, held: Held) -> None:
        self.running.add(held)
        self._inbox.put(held)
        if self._threads < self.concurrency and self._threads < len(self.running):
            self._add_thread()

    def _add_thread(self) -> None:
        self._threads += 1
        # A daemon: a function that never ends must not keep the process from ending.
        threading.Thread(target=self._work, name=f"penstock-worker-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        """A thread's life."""
        while (held := self._inbox.get()) is not None:
            # One whose lease was lost while it waited is nobody's to run.
            problem = None if held.job.lost else self._call(held)
            with self._lock:
                self._outbox.append((held, problem))
                was_given_up = held.cut is not None
            if not self._is_woken:
                self._is_woken = True
                with suppress(RuntimeError):  # the loop was closed: nobody is left who wants to know
                    self._loop.call_soon_threadsafe(self._take_results)
            if was_given_up:
                return  # another thread has this one's place

    def _call(self, held: Held) -> BaseException | None:
        held.began = began = perf_counter()
        if not held.job.stored.has_begun:
            held.settler.begun_since.append(held)
        try:
            if self._on_start is not None and (rest := self._on_start(held.job)) is not None:
                asyncio.run_coroutine_threadsafe(rest, self._loop).result()
            result = self._handler(ThreadJob(held.job, self._loop))
        except BaseException as error:  # whatever a function raises is its job's problem
            return error
        finally:
            held.seconds = perf_counter() - began
        return None if result is None else undone(result)

    def _take_results(self) -> None:
        self._is_woken = False  # first: what comes from now on wakes the loop again
        while self._outbox:
            held, problem = self._outbox.popleft()
            if isinstance(held.cut, Overran):
                self._stuck -= 1
            elif held in self.running:
                self.running.discard(held)
                self._finished(held, problem)

    def _look_later(self, limit_s: float) -> None:
        self._look = self._loop.call_later(limit_s / LOOKS_A_LIMIT, self._look_for_overruns, limit_s)

    def _look_for_overruns(self, limit_s: float) -> None:
        now = perf_counter()
        for held in list(self.running):
            if held.began is None or now - held.began <= limit_s:
                continue
            if self._give_up(held, Overran(f"it took longer than its time limit of {limit_s:g} s")):
                self._stuck += 1
                if self._stuck <= self._stuck_max:
                    self._add_thread()
                else:
                    self._on_stuck()
        self._look_later(limit_s)

    def _give_up(self, held: Held, why: BaseException) -> bool:
        """Whether the job was given up: not if its result is there already."""
        with self._lock:
            if any(held is done for done, _ in self._outbox):
                return False
            held.cut = why
        held.job.lost = True
        held.seconds = perf_counter() - (held.began or perf_counter())
        self.running.discard(held)
        self._finished(held, why)
        return True

    def cut(self, held: Held, why: BaseException) -> bool:
        self._give_up(held, why)
        return False

    def lose(self, held: Held) -> bool:
        return False  # it has been told through `job.lost`

    def take_back(self) -> list[Held]:
        waiting: list[Held] = []
        with suppress(Empty):
            while True:
                held = self._inbox.get_nowait()
                if held is not None:
                    waiting.append(held)
                    self.running.discard(held)
        return waiting

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
        for _ in range(self._threads):
            self._inbox.put(None)
