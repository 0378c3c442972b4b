"""A real broker in the test's own process: clock, disk, shell and sockets are stand-ins that the test controls.

    server = LocalServer(requirepass=b"secret")  directives as attributes of Config
    client = server.client()
    client.call("PING")                        the parsed reply; an error reply is a hiredis.ReplyError
    client.raw("PING")                         the bytes
    client.pushed()                            what came without being asked for, parsed
    server.advance(30)                         time passes, in steps of the broker's cron; nothing sleeps

The clock stands still while commands run, but for DEBUG SLEEP, which moves it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import hiredis

from penstock.broker.broker import Broker
from penstock.broker.clients import Client
from penstock.broker.config import Config, ConfigRefused

NODE_ID = b"8ff1" * 10
STARTED_S = 1000.0  # of the monotonic clock
WALL_OFFSET_S = 1_700_000_000.0 - STARTED_S
CRON_S = 0.1

Word = bytes | str | int


class MemoryFile:
    """An append-only file in memory; everything is on the disk at once."""

    def __init__(self, disk: MemoryDisk, name: str) -> None:
        self._disk = disk
        self._data = disk.files[name]
        self.size = len(self._data)

    def write(self, data: bytes) -> int:
        if self._disk.failure is not None:
            raise self._disk.failure
        self._data += data
        self.size += len(data)
        return len(data)

    def sync(self) -> None: ...

    def begin_sync(self) -> None: ...

    def sync_done(self) -> bool:
        return True

    def close(self) -> None: ...


class MemoryDisk:
    """A directory in memory. While `failure` is set, writing raises it."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.failure: OSError | None = None

    def read(self, name: str) -> Iterator[bytes]:
        if name not in self.files:
            raise FileNotFoundError(name)
        yield bytes(self.files[name])

    def append(self, name: str, fresh: bool = False) -> MemoryFile:
        if self.failure is not None:
            raise self.failure
        if fresh or name not in self.files:
            self.files[name] = bytearray()
        return MemoryFile(self, name)

    def truncate(self, name: str, size: int) -> None:
        del self.files[name][size:]

    def replace(self, name: str, by: str) -> None:
        self.files[name] = self.files.pop(by)

    def remove(self, name: str) -> None:
        self.files.pop(name, None)

    def boot_id(self) -> bytes:
        return b"boot"


class LocalShell:
    """Does what a server would, or notes that it was asked to."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self.asked: list[tuple[Any, ...]] = []
        self.refuses: dict[str, str] = {}  # directive: why it can't be put into effect
        self.failure: Exception | None = None  # of the next restart or save_cluster
        self.turn_wanted = False
        self.process = {
            "os": "Linux 6.1 x86_64",
            "arch_bits": 64,
            "multiplexing_api": "uvloop",
            "gcc_version": "GCC 13",
            "process_id": 4711,
            "uptime_in_seconds": 200_000,
            "executable": "/usr/bin/python3",
            "used_memory_rss": 200_000,
            "used_cpu_sys": 1.5,
            "used_cpu_user": 2.25,
            "used_cpu_sys_children": 0.0,
            "used_cpu_user_children": 0.125,
        }

    def soon(self) -> None:
        self.turn_wanted = True

    def stop(self) -> None:
        self.asked.append(("stop",))

    def restart(self, crash: bool, delay_ms: int) -> None:
        self._fail()
        self.asked.append(("restart", crash, delay_ms))

    def apply(self, directive: str, value: object) -> None:
        if directive in self.refuses:
            raise ConfigRefused(self.refuses[directive])
        self.asked.append(("apply", directive, value))

    def facts(self) -> dict[str, object]:
        return dict(self.process)

    def sleep(self, seconds: float) -> None:
        self._server.now_s += seconds

    def save_cluster(self) -> None:
        self._fail()
        self.asked.append(("save_cluster",))

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


class LocalClient:
    """One client's end of a connection."""

    def __init__(self, server: LocalServer, address: str, is_unix: bool) -> None:
        self._server = server
        self._received = b""
        self._replies = hiredis.Reader()
        self.closed: str = ""  # "now" or "after replies" once the broker has closed it
        self.buffered = 0
        self.unread = 0
        self.takes = True  # False: what is sent to it can't leave the node
        self.client: Client = server.broker.connect(address, self, is_unix)

    # What the broker uses of it.

    def write(self, data: bytes) -> bool:
        assert not self.closed, "written after it was closed"
        if self.takes:
            self._received += data
        return self.takes

    def close(self, now: bool) -> None:
        if not self.closed:
            self.closed = "now" if now else "after replies"
            self._server.gone.append(self.client)  # as of a socket, the broker hears of it later

    def caught_up(self) -> None: ...

    def account(self) -> None: ...

    def buffered_bytes(self) -> int:
        return self.buffered

    def unread_bytes(self) -> int:
        return self.unread

    def describe(self) -> str:
        return f"fd={self.client.id + 7}"

    # What tests use of it.

    def post(self, *requests: list[Word]) -> None:
        """Send requests, all in one piece, in a turn that goes on."""
        self._server.broker.run(self.client, [[_word(word) for word in request] for request in requests])

    def send(self, *requests: list[Word]) -> None:
        """Send requests, all in one piece."""
        self.post(*requests)
        self._server.turn()

    def hang_up(self) -> None:
        """Be gone, in a turn that goes on."""
        self._server.broker.disconnect(self.client)

    def raw(self, *words: Word) -> bytes:
        """Send a request, and give the bytes that came since the last look."""
        self.send(list(words))
        received, self._received = self._received, b""
        return received

    def pushed(self) -> list[Any]:
        """Return the replies that came since the last look."""
        self._replies.feed(self._received)
        self._received = b""
        replies = []
        while (reply := self._replies.gets()) is not False:
            replies.append(reply)
        return replies

    def call(self, *words: Word) -> Any:
        """Send a request, and give its one reply."""
        self.send(list(words))
        (reply,) = self.pushed()
        return reply

    def flat_map(self, *words: Word) -> dict[bytes, Any]:
        """Send a request, and give its reply of names and values by turns as a dict."""
        reply = self.call(*words)
        return dict(zip(reply[::2], reply[1::2], strict=True))


class LocalServer:
    """A broker, and all that is around it."""

    def __init__(self, node_id: bytes = NODE_ID, **directives: object) -> None:
        config = Config()
        config.appendonly = False
        for name, value in directives.items():
            assert hasattr(config, name), name
            setattr(config, name, value)
        self.now_s = STARTED_S
        self.disk = MemoryDisk()
        self.shell = LocalShell(self)
        self.gone: list[Client] = []  # whose connections are closed, until the broker hears of it
        self._entropy_blocks = 0
        self._clients = 0
        self.broker = Broker(config, self.shell, self.disk, self._clock, self._wall, self._entropy, node_id)
        self.broker.node.cluster.myself.port = config.port
        if config.appendonly:
            self.broker.persistence.open()

    def _clock(self) -> float:
        return self.now_s

    def _wall(self) -> float:
        return self.now_s + WALL_OFFSET_S

    def _entropy(self, count: int) -> bytes:
        """Bytes that look random and are the same in every run."""
        self._entropy_blocks += 1
        return hashlib.shake_128(b"%d" % self._entropy_blocks).digest(count)

    def client(self, address: str = "", is_unix: bool = False) -> LocalClient:
        self._clients += 1
        return LocalClient(self, address or f"127.0.0.1:{50_000 + self._clients}", is_unix)

    def turn(self) -> None:
        """End the turn, and those that its end begins."""
        while self.shell.turn_wanted:
            self.shell.turn_wanted = False
            self.broker.flush()
        for client in self.gone:
            self.broker.disconnect(client)
        self.gone.clear()

    def advance(self, seconds: float) -> None:
        """Let time pass: crons and whatever is due happen on the way."""
        until = self.now_s + seconds
        while self.now_s < until:
            self.now_s = min(until, self.now_s + CRON_S)
            while self.broker.tick():
                pass
            self.broker.cron()
            self.turn()

    def finish_rewrite(self) -> None:
        while self.broker.persistence.step():
            pass


def _word(word: Word) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
