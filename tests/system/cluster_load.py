"""Producers and workers on a real cluster, and the book that is kept of what they were told.

Everybody speaks to one node at a time and goes to another when it is gone or refuses. A job counts as added when its id
came back, as acked when the ack was answered; each delivery is counted, and those behind an answered ack on their own.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

from penstock.client import Connection
from penstock.errors import PenstockError
from tests.processes import NodeProcess

QUEUE = "work"
RETRY_S = 2


class Book:
    """What clients were told. One lock for all: it is not speed that is tested."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tried: set[bytes] = set()
        self.added: dict[bytes, bytes] = {}  # id: body
        self.deliveries: Counter[bytes] = Counter()
        self.ack_sent: set[bytes] = set()  # the answer may be lost with its node, and the ack be in force all the same
        self.acked: set[bytes] = set()
        self.after_ack = 0
        self.wrong: list[str] = []

    def deliver(self, job_id: bytes, body: bytes) -> None:
        with self.lock:
            self.deliveries[job_id] += 1
            self.after_ack += job_id in self.acked
            if body not in self.tried or self.added.get(job_id, body) != body:
                self.wrong.append(f"{job_id!r} came with {body!r}")

    @property
    def duplicates(self) -> int:
        return sum(count - 1 for count in self.deliveries.values())


class Load:
    """Producers and workers in threads, until stopped."""

    def __init__(self, nodes: list[NodeProcess], replicate: int, producers: int = 3, workers: int = 4) -> None:
        self.nodes = nodes
        self.replicate = replicate
        self.book = Book()
        self._producing = threading.Event()
        self._working = threading.Event()
        self._producing.set()
        self._working.set()
        self._producers = [threading.Thread(target=self._produce, args=(number,)) for number in range(producers)]
        self._workers = [threading.Thread(target=self._work, args=(number,)) for number in range(workers)]
        for thread in self._producers + self._workers:
            thread.start()

    def stop_producing(self) -> None:
        self._producing.clear()
        _join(self._producers)

    def stop(self) -> None:
        self._working.clear()
        self.stop_producing()
        _join(self._workers)

    def all_done(self) -> bool:
        with self.book.lock:
            return self.book.added.keys() <= self.book.ack_sent

    def _anywhere(self, number: int, goes_on: threading.Event, do: Callable[[Connection], None]) -> None:
        chance = random.Random(number)
        while goes_on.is_set():
            node = chance.choice(self.nodes)
            try:
                with Connection(node.host, node.port, timeout=10.0) as connection:
                    while goes_on.is_set():
                        do(connection)
            except PenstockError:
                time.sleep(0.05)  # down, leaving, or short of nodes: another one

    def _produce(self, number: int) -> None:
        book, bodies = self.book, iter(range(1_000_000))

        def add(connection: Connection) -> None:
            body = b"%d-%d" % (number, next(bodies))
            with book.lock:
                book.tried.add(body)
            words = ("ADDJOB", QUEUE, body, 3000, "REPLICATE", self.replicate, "RETRY", RETRY_S)
            job_id = connection.execute(*words)
            with book.lock:
                book.added[job_id] = body
            time.sleep(0.002)

        self._anywhere(number, self._producing, add)

    def _work(self, number: int) -> None:
        book = self.book

        def handle(connection: Connection) -> None:
            for _, job_id, body in connection.execute("GETJOB", "TIMEOUT", 500, "COUNT", 5, "FROM", QUEUE) or ():
                book.deliver(job_id, body)
                with book.lock:
                    book.ack_sent.add(job_id)
                connection.execute("ACKJOB", job_id)
                with book.lock:
                    book.acked.add(job_id)

        self._anywhere(100 + number, self._working, handle)


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a client hangs"
