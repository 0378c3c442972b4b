"""What tests of the Redis stores share: a store in either form on a server, and a client to read what it stores."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import count
from typing import Any

from penstock.queues import aio, blocking
from tests.servers import RedisServer
from tests.stores.facade import Facade

FORMS = ("aio", "blocking")
NAMESPACE = "T"
INDEX = "keuss:q:ordered_queue:index:"
HASH = "keuss:q:ordered_queue:hash:"

Connect = Callable[..., Any]

_numbers = count(1)


def new_name(stem: str = "q") -> str:
    """A name that no other test uses."""
    return f"{stem}-{os.getpid()}-{next(_numbers)}"


def connect(form: str, url: str, **options: Any) -> Any:
    """A store, to be opened with `async with` in either form."""
    options = {"namespace": NAMESPACE, "poll": 300, **options}
    return aio.connect(url, **options) if form == "aio" else Facade(blocking.connect(url, **options))


def oq_url(server: RedisServer) -> str:
    return f"redis+oq://{server.host}:{server.port}/0"


class Raw:
    """One queue as it lies in Redis."""

    def __init__(self, client: Any, queue: str) -> None:
        self.client = client
        self.queue = queue

    def put(self, job_id: str, value: str | bytes, score: float | str) -> None:
        """Store what a peer might have stored."""
        self.client.hset(HASH + self.queue, job_id, value)
        self.client.execute_command("ZADD", INDEX + self.queue, score, job_id)

    def put_element(self, job_id: str, score: float | str, **fields: Any) -> None:
        """Store an element as Node writes them."""
        element = {"_id": job_id, "payload": job_id, "tries": 0, "hdrs": {}, "mature": score, **fields}
        self.put(job_id, json.dumps(element, separators=(",", ":")), score)

    def value(self, job_id: str) -> bytes:
        return self.client.hget(HASH + self.queue, job_id)

    def element(self, job_id: str) -> dict[str, Any]:
        return json.loads(self.value(job_id))

    def score(self, job_id: str) -> float:
        return self.client.zscore(INDEX + self.queue, job_id)

    def remove(self, job_id: str) -> None:
        """End a job as a Node peer does."""
        self.client.zrem(INDEX + self.queue, job_id)
        self.client.hdel(HASH + self.queue, job_id)

    def now_ms(self) -> int:
        seconds, micros = self.client.time()
        return seconds * 1000 + micros // 1000
