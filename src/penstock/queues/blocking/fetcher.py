"""How a caller waits for jobs, without an event loop: ask, then wait on the queue's signal, then ask again.

Several threads may wait at the same queue, each with a subscription of its own.
"""

import math
import threading
import time
from contextlib import suppress

from penstock.errors import ConnectionLost, PenstockError, WaitCancelled
from penstock.job import Consumer, StoredJob
from penstock.queues.blocking.signal import SignalListener, Subscription
from penstock.queues.blocking.taker import Taker
from penstock.queues.polling import NAP_S, TROUBLE_S, watch_pause

WAIT_SLICE_S = 1.0  # of a store that can wait: a wait that another thread cancelled is noticed after this time at most


class _Request:
    """One caller that waits."""

    __slots__ = ("deadline", "label", "name", "since", "subscription", "version", "why")

    def __init__(self, deadline: float | None, label: object, name: str | None) -> None:
        self.name = name
        self.since = time.time()
        self.deadline = deadline
        self.label = label
        self.subscription: Subscription | None = None
        self.version: int | None = None  # of a store that sends no signals
        self.why = ""  # not empty: the wait was cancelled

    def left(self) -> float | None:
        return None if self.deadline is None else self.deadline - time.monotonic()


class Fetcher:
    """Waits for jobs of one queue, in one way: pop (`lease_ms` None), or reserve for `lease_ms`."""

    def __init__(self, taker: Taker, lease_ms: int | None, listener: SignalListener, poll_s: float) -> None:
        self._taker = taker
        self._lease_ms = lease_ms
        self._listener = listener
        self._poll_s = poll_s
        self._batch_max = taker.driver.batch_max
        self._requests: list[_Request] = []
        self._lock = threading.Lock()
        self._got_s = 0.0  # when the last job came

    @property
    def waiting(self) -> int:
        """How many callers wait."""
        return len(self._requests)

    def consumers(self) -> list[Consumer]:
        """Return the callers that wait."""
        is_reserving = self._lease_ms is not None
        return [Consumer(request.name, request.label, request.since, is_reserving) for request in list(self._requests)]

    def wake(self) -> None:
        """Nothing to do: each caller hears the signal itself."""

    def get(
        self,
        count: int,
        timeout: float | None,
        label: object = None,
        name: str | None = None,
        begin: int | None = None,
    ) -> list[StoredJob]:
        """One to `count` jobs, or none when the time is over."""
        request = _Request(None if timeout is None else time.monotonic() + timeout, label, name)
        with self._lock:
            self._requests.append(request)
        try:
            return self._wait(request, min(count, self._batch_max), begin)
        finally:
            with self._lock:
                self._requests.remove(request)
            if request.subscription is not None:
                self._listener.leave(request.subscription)

    def _wait(self, request: _Request, count: int, begin: int | None) -> list[StoredJob]:
        trouble: PenstockError | None = None
        while True:
            if request.why:
                raise WaitCancelled(request.why)
            left = request.left()
            wait_s = WAIT_SLICE_S if left is None else max(0.0, min(left, WAIT_SLICE_S))
            wait_ms = math.ceil(wait_s * 1000) if self._taker.driver.can_wait else 0
            try:
                if not self._taker.pause.holds_back():
                    jobs = self._taker.take(self._lease_ms, count, wait_ms, begin)
                    if jobs:
                        self._got_s = time.monotonic()
                        return jobs
                trouble = None
            except ConnectionLost as problem:
                trouble = problem
            left = request.left()
            if left is not None and left <= 0:
                if trouble is not None:
                    raise trouble
                return []
            self._nap(request, trouble)

    def _nap(self, request: _Request, trouble: PenstockError | None) -> None:
        left = request.left()
        delay = self._poll_s if left is None else min(left, self._poll_s)
        if trouble is not None:
            time.sleep(max(0.0, min(delay, TROUBLE_S)))
            return
        if self._taker.driver.can_wait:
            return
        if request.subscription is None:
            # The store is asked once more for what came before this moment.
            request.subscription = self._listener.listen()
            return
        try:
            due = self._taker.seconds_to_next()
        except ConnectionLost:
            due = TROUBLE_S
        text = self._listen(request, request.subscription, delay if due is None else min(delay, max(due, NAP_S)))
        if text is not None:
            self._listener.heard(text)

    def _listen(self, request: _Request, subscription: Subscription, delay: float) -> str | None:
        """Wait for a signal, or until a store that must be watched has changed."""
        watch_s = self._taker.driver.watch_s
        if watch_s is None:
            return subscription.wait(delay)
        while delay > 0 and not self._has_changed(request):
            idle_s = time.monotonic() - self._got_s
            step = min(delay, watch_pause(watch_s, idle_s))
            text = subscription.wait(step)
            if text is not None:
                return text
            delay -= step
        return None

    def _has_changed(self, request: _Request) -> bool:
        """Whether another process has changed the store since the last call for this caller."""
        with suppress(ConnectionLost):
            version = self._taker.driver.version()
            if version != request.version:
                request.version = version
                self._taker.pause.know(None)
                return True
        return False

    def cancel(self, label: object = None, why: str = "the wait was cancelled") -> int:
        """End waits of other threads: those with a label, or all. Return how many."""
        with self._lock:
            chosen = [request for request in self._requests if label is None or request.label == label]
            for request in chosen:
                request.why = why
                if request.subscription is not None:
                    request.subscription.wake()
        return len(chosen)

    def close(self, why: str = "the store was closed") -> None:
        """End all waits."""
        self.cancel(why=why)
