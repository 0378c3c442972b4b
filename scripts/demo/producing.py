"""Producers: they push numbered orders, and note which were acknowledged.

A push whose answer never came may have been done or not. The producer pushes again, since an order too many does less
harm than one too few.
"""

from __future__ import annotations

import threading
import time

from penstock.blocking import Queue, connect
from penstock.errors import OutcomeUnknown, PeerError, StoreError

PRODUCERS = 2
BATCH = 10
PAUSE_S = 0.2  # before an order is pushed again


class Producers:
    """A few threads that push orders 1 to `jobs`, together `rate` a second."""

    def __init__(self, url: str, jobs: int, rate: float) -> None:
        self.acknowledged: set[int] = set()
        self.doubtful = 0  # pushed again, since the first answer was lost
        self.problem: BaseException | None = None
        self._url, self._jobs, self._rate = url, jobs, rate
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(PRODUCERS)]

    @property
    def is_done(self) -> bool:
        """Whether all orders are acknowledged."""
        return len(self.acknowledged) == self._jobs

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, also in the middle."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self, number: int) -> None:
        try:
            with connect(self._url) as store:
                self._produce(store.queue("orders"), range(1 + number, self._jobs + 1, PRODUCERS))
        except Exception as problem:  # the tour asks for it, and ends
            self.problem = problem

    def _produce(self, orders: Queue, numbers: range) -> None:
        began = time.monotonic()
        for first in range(0, len(numbers), BATCH):
            due = began + first * PRODUCERS / self._rate
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                return
            self._push(orders, list(numbers[first : first + BATCH]))

    def _push(self, orders: Queue, numbers: list[int]) -> None:
        """Push until it is acknowledged."""
        while not self._stopping.is_set():
            try:
                orders.push_many([{"order": number} for number in numbers])
            except OutcomeUnknown:
                with self._lock:
                    self.doubtful += len(numbers)
            except (PeerError, StoreError):
                pass  # no node took it
            else:
                with self._lock:
                    self.acknowledged.update(numbers)
                return
            self._stopping.wait(PAUSE_S)
