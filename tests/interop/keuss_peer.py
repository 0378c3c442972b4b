"""Node Keuss as a peer: a process of its own that tests tell what to do, call by call.

    with KeussPeer() as keuss:
        factory = keuss.open("redis-oq", redis_options(server), signaller=redis_pubsub(server))
        mail = factory.queue("mail")
        mail.push({"to": "tom"}, delay=1.5, hdrs={"h": 1})
        element = mail.reserve(timeout_ms=5000)
        mail.ok(element)

Calls block until Keuss has called back; `begin_pop` does not, and what it gives is asked for its `result()`. Names and
units are Keuss' own: `delay` and `mature` of a push in seconds, `next_t` and timeouts in milliseconds. A pop whose time
is over gives None; every other error is a KeussError. A Keuss that has died shows its last words in that error.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.processes import lacking, need_program
from tests.servers import MongoServer, PostgresServer, RedisServer

NEW, OLD = "2.0.6", "1.6.1"
PROGRAM = Path(__file__).parent / "node" / "keuss.js"
PACKAGES = {NEW: "keuss", OLD: "keuss-1.6"}
ANSWER_SECONDS = 40.0  # less than pytest's limit for a test, so that the call that hangs is seen

Options = Mapping[str, Any]


class KeussError(Exception):
    """What Keuss called back as its error; `details` is all of it."""

    def __init__(self, details: dict[str, Any]) -> None:
        super().__init__(details["message"])
        self.details = details


@dataclass(frozen=True)
class KeussElement:
    """An element as Keuss hands it out. `raw` is all that it carried, and goes back to Keuss as it came."""

    id: str | None
    payload: Any
    tries: int
    mature_ms: int
    hdrs: dict[str, Any] | None
    raw: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, raw: dict[str, Any]) -> KeussElement:
        text = raw.get("payload_base64")
        payload = raw.get("payload") if text is None else base64.b64decode(text)
        return cls(raw.get("_id"), payload, raw["tries"], raw["mature"], raw.get("hdrs"), raw)


def redis_options(server: RedisServer, **more: object) -> Options:
    """How Keuss connects to a Redis; also the options of its redis signaller and stats."""
    return {"host": server.host, "port": server.port, **more}


def postgres_options(server: PostgresServer, database: str | None = None, **more: object) -> Options:
    """How Keuss connects to a PostgreSQL."""
    place = {"host": server.host, "port": server.port}
    return {**place, "user": server.user, "database": database or server.database, **more}


def mongo_options(server: MongoServer, database: str) -> Options:
    """How Keuss connects to a MongoDB."""
    return {"url": server.url(database=database)}


def mongo_capped(server: MongoServer, database: str, channel: str) -> Options:
    """Its signaller in MongoDB. On MongoDB 6 the channel's name must end in `collection`: see `signals`."""
    return {
        "provider": "mongo-capped",
        "opts": {"url": server.url(database=f"{database}_signal"), "channel": channel},
    }


def redis_pubsub(server: RedisServer, **more: object) -> Options:
    """The signaller that wakes other processes."""
    return {"provider": "redis-pubsub", "opts": redis_options(server, **more)}


def redis_stats(server: RedisServer, **more: object) -> Options:
    """The stats that other processes share."""
    return {"provider": "redis", "opts": redis_options(server, **more)}


class KeussPeer:
    """The Node process. Any number of factories, of both versions, live in it."""

    def __init__(self) -> None:
        program = need_program("node")
        for package in PACKAGES.values():
            if not (PROGRAM.parent / "node_modules" / package).is_dir():
                lacking(f"the npm package {package}")
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the process, in stop()
        self.process = subprocess.Popen(
            [program, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words, text=True
        )
        self._pending: dict[int, Future[Any]] = {}
        self._last_n = 0
        self._is_over = False
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def open(
        self,
        backend: str,
        connection: Options,
        *,
        version: str = NEW,
        name: str = "N",
        signaller: Options | None = None,
        stats: Options | None = None,
        **options: object,
    ) -> KeussFactory:
        """Make a factory: backend is redis-list, redis-oq, postgres, mongo, pl-mongo and so on, options are Keuss'
        (reserve_delay, pollInterval, deadletter). Without a signaller it wakes only itself, without stats it counts for
        itself; on MongoDB both are there by default.
        """
        place = "postgres" if backend == "postgres" else "redis"
        where = connection if "url" in connection else {place: dict(connection)}
        given = {**where, "name": name, **options}
        given |= {key: part for key, part in (("signaller", signaller), ("stats", stats)) if part is not None}
        return KeussFactory(self, self.call("open", version=version, backend=backend, options=given))

    def signals(self) -> list[dict[str, Any]]:
        """Return what came in on the channels of all queues since the last call: factory, channel, message, at."""
        return self.call("signals")

    def strays(self) -> list[dict[str, Any]]:
        """Return what pops delivered after their time was over, since the last call."""
        return self.call("strays")

    def call(self, request: str, /, **fields: object) -> Any:
        return self.begin(request, **fields).result(ANSWER_SECONDS)

    def begin(self, name: str, /, **fields: object) -> Future[Any]:
        """Send a request, and return its answer to come."""
        answer: Future[Any] = Future()
        with self._lock:
            if self._is_over:
                raise KeussError({"message": self._last_words()})
            self._last_n += 1
            self._pending[self._last_n] = answer
            line = json.dumps({"n": self._last_n, "do": name, **fields})
            assert self.process.stdin is not None
            try:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            except OSError as error:
                raise KeussError({"message": self._last_words()}) from error
        return answer

    def kill_hard(self) -> None:
        """kill -9: calls under way fail."""
        self.process.kill()
        self.stop()

    def stop(self) -> None:
        """End the process; what waits in it is given up."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._words.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            with self._lock:
                answer = self._pending.pop(said["n"])
            if "error" in said:
                answer.set_exception(KeussError(said["error"]))
            else:
                answer.set_result(said["result"])
        self.process.wait()
        with self._lock:
            self._is_over = True
            left, self._pending = self._pending, {}
        for answer in left.values():
            answer.set_exception(KeussError({"message": self._last_words()}))

    def _last_words(self) -> str:
        if self._words.closed:
            return "Keuss was stopped"
        self._words.seek(0)
        words = self._words.read().decode(errors="replace").strip()
        return f"Keuss ended with {self.process.poll()}: {words[:2000]}"


class KeussFactory:
    """A factory of Keuss."""

    def __init__(self, peer: KeussPeer, number: int) -> None:
        self.peer = peer
        self.number = number

    def queue(self, name: str, **options: object) -> KeussQueue:
        """Make a queue object, which listens to its signals by the time this returns; each call makes another."""
        made = self.peer.call("queue", factory=self.number, name=name, options=options)
        return KeussQueue(self.peer, made, name)

    def list(self, full: bool = False) -> Any:
        """Return the names of the queues that stats know; if full, a dict with their options, counters and paused."""
        return self.peer.call("list", factory=self.number, options={"full": full})

    def link(self, source: KeussQueue, *targets: KeussQueue, name: str) -> None:
        """Start a link of a pipeline, which adds its name to `passed` in payloads; a choice goes by `n` there."""
        numbers = [target.number for target in targets]
        self.peer.call("link", source=source.number, targets=numbers, name=name)

    def stop_links(self) -> None:
        """Stop all links, which must be waiting: otherwise Keuss' links spin on a factory that is closed."""
        self.peer.call("unlink")

    def close(self) -> None:
        """Write counters that wait, and end its connections."""
        self.peer.call("close", factory=self.number)


class KeussQueue:
    """A queue object of Keuss."""

    def __init__(self, peer: KeussPeer, number: int, name: str) -> None:
        self.peer = peer
        self.number = number
        self.name = name

    def push(self, payload: Any, **options: object) -> Any:
        """Push JSON or bytes, and return what Keuss calls the id. Options: delay, mature (s), tries, hdrs."""
        if isinstance(payload, bytes):
            body = {"payload_base64": base64.b64encode(payload).decode()}
        else:
            body = {"payload": payload}
        return self._call("push", options=options, **body)

    def pop(self, timeout_ms: int | None = None) -> KeussElement | None:
        """Take an element away, or give None once the time is over."""
        return self._popped(self.begin_pop(timeout_ms).result(ANSWER_SECONDS))

    def reserve(self, timeout_ms: int | None = None) -> KeussElement | None:
        """Reserve an element, or give None once the time is over."""
        return self._popped(self.begin_pop(timeout_ms, reserve=True).result(ANSWER_SECONDS))

    def begin_pop(
        self, timeout_ms: int | None = None, reserve: bool = False, tid: str | None = None
    ) -> Future[dict[str, Any] | None]:
        """Begin to wait, under a name that `cancel` takes; `KeussElement.of` reads the dict that comes."""
        options = {"timeout": timeout_ms, "reserve": reserve, "tid": tid}
        given = {key: value for key, value in options.items() if value}
        return self.peer.begin("pop", queue=self.number, options=given)

    @staticmethod
    def _popped(raw: dict[str, Any] | None) -> KeussElement | None:
        return None if raw is None else KeussElement.of(raw)

    def ok(self, element: KeussElement | str) -> bool:
        return self._call("ok", element=self._given(element))

    def ko(self, element: KeussElement | str, next_t: int | None = None) -> Any:
        """Return it to its queue until next_t (unix ms): True, False or "deadletter". An id alone never goes there."""
        return self._call("ko", element=self._given(element), next_t=next_t)

    @staticmethod
    def _given(element: KeussElement | str) -> dict[str, Any] | str:
        return element if isinstance(element, str) else element.raw

    def remove(self, element_id: str) -> Any:
        return self._call("remove", id=element_id)

    def pause(self, value: bool = True) -> bool:
        """Pause or resume, and return what the stats say then; the signal has been sent."""
        return self._call("pause", value=value)

    def paused(self) -> bool:
        return self._ask("paused")

    def size(self) -> int:
        return self._ask("size")

    def total_size(self) -> int:
        return self._ask("totalSize")

    def sched_size(self) -> int:
        return self._ask("schedSize")

    def resv_size(self) -> int | None:
        return self._ask("resvSize")

    def next_t(self) -> int | None:
        """Return when the next element matures, in unix ms."""
        return self._ask("next_t")

    def stats(self) -> dict[str, int]:
        return self._ask("stats")

    def status(self) -> dict[str, Any]:
        return self._ask("status")

    def consumers(self) -> int:
        """Count the pops that wait."""
        return self._call("consumers")

    def cancel(self, tid: str | None = None) -> None:
        """Cancel one waiting pop, or all."""
        self._call("cancel", **({} if tid is None else {"tid": tid}))

    def drain(self) -> None:
        self._call("drain")

    def _ask(self, what: str) -> Any:
        return self._call("ask", what=what)

    def _call(self, name: str, /, **fields: object) -> Any:
        return self.peer.call(name, queue=self.number, **fields)
