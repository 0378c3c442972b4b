"""Starting, watching and stopping the servers that are measured.

Every server gets a free loopback port, a fresh directory and its own process, and is stopped by its process
id. Ports are taken below the kernel's ephemeral range, so that no outgoing connection of a load can sit on
them; a Penstock node also needs port + 10000 for its bus, which has to stay below that range as well.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
BUS_OFFSET = 10_000
PORT_MIN, PORT_MAX = 20_000, 22_700
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 30.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

EVERYSEC, ALWAYS = "everysec", "always"

KINDS = ("penstock", "redis", "beanstalkd")

PENSTOCK = Path(sys.executable).parent / "penstock"


class NotRunError(Exception):
    """A server could not be started, or a load could not run against it; the text says why."""


def free_port() -> int:
    """A port that is free now, with its bus port; a server that loses the race is started on another."""
    for _ in range(200):
        port = random.randint(PORT_MIN, PORT_MAX)
        if _bindable(port) and _bindable(port + BUS_OFFSET):
            return port
    raise NotRunError(f"no free port between {PORT_MIN} and {PORT_MAX}")


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def command_line(
    kind: str, port: int, directory: Path, journal: bool, program: Path = PENSTOCK, fsync: str = EVERYSEC
) -> list[str]:
    """The command that starts a server of this kind in the foreground."""
    if kind == "beanstalkd":
        return ["beanstalkd", "-l", HOST, "-p", str(port)]
    place = ["--port", str(port), "--dir", str(directory), "--bind", HOST]
    persistence = ["--appendonly", "yes" if journal else "no", "--appendfsync", fsync]
    shared = [*place, *persistence, "--loglevel", "warning", "--daemonize", "no", "--protected-mode", "no"]
    if kind == "redis":
        return ["redis-server", *shared, "--save", ""]
    return [str(program), "server", *shared, "--maxmemory", "8gb"]


@dataclass
class Server:
    """A running server: where it listens, its process, and how long it took to answer."""

    kind: str
    port: int
    directory: Path
    process: subprocess.Popen[bytes]
    start_s: float

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self.process.pid

    def rss_bytes(self) -> int:
        """Resident memory, from /proc."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise NotRunError(f"{self.kind} has no VmRSS: it has ended")

    def cpu_s(self) -> float:
        """Processor seconds used so far by all threads of the process."""
        try:
            # The name in parentheses may hold blanks, so fields are counted from behind it.
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError as error:
            raise NotRunError(f"{self.kind} has ended: {self.last_words()}") from error
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def last_words(self) -> str:
        """The end of the server's output, to explain a failure."""
        lines = (self.directory / "bench.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it printed nothing"

    def command(self, *words: str | bytes, timeout_s: float = 60.0) -> bytes:
        """One RESP command on a connection of its own; the raw reply of at least one line."""
        with socket.create_connection((HOST, self.port), timeout_s) as link:
            link.sendall(encode(*words))
            return _read_reply(link)

    def info(self, field: str) -> str | None:
        """One field of INFO, or None if the server does not have it."""
        for line in self.command("INFO").decode(errors="replace").splitlines():
            if line.startswith(field + ":"):
                return line.partition(":")[2].strip()
        return None

    def stop(self) -> None:
        """Ends the process: politely, then not."""
        if self.process.poll() is None:
            self.process.terminate()
        self.wait()

    def wait(self) -> None:
        """Waits for the process to end by itself, and kills it when it does not."""
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def encode(*words: str | bytes) -> bytes:
    """A request as RESP sends it."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word.encode() if isinstance(word, str) else word
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


def _read_reply(link: socket.socket) -> bytes:
    """Reads one status, error, integer or bulk reply; all that the benchmarks ask for outside their loads."""
    data = b""
    while b"\r\n" not in data:
        data += _receive(link)
    head, _, body = data.partition(b"\r\n")
    if not head.startswith(b"$") or head == b"$-1":
        return head
    length = int(head[1:])
    while len(body) < length:
        body += _receive(link)
    return body[:length]


def _receive(link: socket.socket) -> bytes:
    data = link.recv(1 << 16)
    if not data:
        raise NotRunError("the server closed the connection")
    return data


def _answers(kind: str, port: int) -> bool:
    """Whether the server answers a first harmless request; -LOADING is not yet an answer."""
    ask, wanted = (b"list-tube-used\r\n", b"USING") if kind == "beanstalkd" else (encode("PING"), b"+PONG")
    try:
        with socket.create_connection((HOST, port), 1.0) as link:
            link.sendall(ask)
            return link.recv(100).startswith(wanted)
    except OSError:
        return False


def start(
    kind: str,
    journal: bool,
    directory: Path,
    program: Path = PENSTOCK,
    timeout_s: float = START_TIMEOUT_S,
    fsync: str = EVERYSEC,
    more: Sequence[str] = (),
) -> Server:
    """Starts a server and waits until it answers; the time from the fork to the first PONG is kept."""
    port = free_port()
    command = [*command_line(kind, port, directory, journal, program, fsync), *more]
    if shutil.which(command[0]) is None:
        raise NotRunError(f"{command[0]} is not installed")
    with (directory / "bench.log").open("wb") as log:
        begin_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=directory)
    server = Server(kind, port, directory, process, 0.0)
    try:
        _await_answer(server, begin_s + timeout_s)
    except BaseException:
        server.stop()
        raise
    server.start_s = time.perf_counter() - begin_s
    return server


def _await_answer(server: Server, limit_s: float) -> None:
    while not _answers(server.kind, server.port):
        if (code := server.process.poll()) is not None:
            raise NotRunError(f"{server.kind} ended with code {code}: {server.last_words()}")
        if time.perf_counter() > limit_s:
            raise NotRunError(f"{server.kind} did not answer in time: {server.last_words()}")
        time.sleep(0.002)


def stop_on_sigterm() -> None:
    """Turns SIGTERM into an exception, so that a benchmark that is ended takes its servers with it."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


@contextlib.contextmanager
def running(
    kind: str, journal: bool = False, program: Path = PENSTOCK, fsync: str = EVERYSEC, more: Sequence[str] = ()
) -> Iterator[Server]:
    """A server for the length of a block, in a directory that goes away with it; `more` are words of its command."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{kind}-") as name:
        server = start(kind, journal, Path(name), program, fsync=fsync, more=more)
        try:
            yield server
        finally:
            server.stop()


def version(kind: str, program: Path = PENSTOCK) -> str:
    """What the server says about its version, on one line."""
    commands = {
        "penstock": [str(program), "--version"],
        "redis": ["redis-server", "--version"],
        "beanstalkd": ["beanstalkd", "-v"],
    }
    try:
        done = subprocess.run(commands[kind], capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return "not installed"
    return (done.stdout or done.stderr).strip().partition("\n")[0][:60] or "unknown"
