"""Real servers of others for tests: redis-server and PostgreSQL, as Debian ships them.

Each has a directory and a loopback port of its own, is ended by the ids of its own processes, and comes back on the
same port with the same directory, so that a test can kill it as a power cut would and look at what it kept. Redis
takes directives as keywords. PostgreSQL runs as a user of its own where we are root (see `bench.postgres`), and so in
a directory outside of pytest's, which others can't enter; a data directory is made once and then copied.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from bench import postgres
from bench.servers import NotRunError
from tests.processes import free_port, lacking, need_module, need_program, wait_until

HOST = "127.0.0.1"
STOP_SECONDS = 30.0


class ServerProcess:
    """A server of others: a process, its directory, its port and its log."""

    name = "server"
    stop_signal = signal.SIGTERM

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.directory = directory
        self.host = HOST
        self.port = free_port() if port is None else port
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def argv(self) -> list[str]:
        raise NotImplementedError

    @property
    def process_options(self) -> dict[str, Any]:
        """What Popen is told beside the command."""
        return {}

    def is_ready(self) -> bool:
        """Tell whether it answers."""
        raise NotImplementedError

    def start(self, wait: bool = True) -> Self:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self.process_options
            )
        if wait:
            self.wait_until_it_answers()
        return self

    def wait_until_it_answers(self) -> None:
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            text = self.log.read_text(errors="replace")
            raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{text}")
        return self.is_ready()

    def kill_hard(self) -> None:
        """kill -9, as a power cut would; what the system has not been told to sync may still be written."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """End it as its administrator would."""
        if self.process is None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill_hard()
            raise
        self.process = None

    def restart(self) -> Self:
        """Start it again on the same port and directory, after ending it if it still runs."""
        self.stop()
        return self.start()


class RedisServer(ServerProcess):
    """A redis-server. Directives are keywords: `appendonly="yes", appendfsync="always"`."""

    name = "redis-server"

    def __init__(self, directory: Path, port: int | None = None, **directives: object) -> None:
        super().__init__(directory, port)
        self.directives: dict[str, object] = {
            "bind": HOST,
            "port": self.port,
            "dir": directory,
            "save": "",
            **directives,
        }

    @property
    def argv(self) -> list[str]:
        words = [need_program("redis-server")]
        for name, value in self.directives.items():
            words += ["--" + name.replace("_", "-"), *str(value).split(" ")]
        return words

    @property
    def url(self) -> str:
        """Where the data is: database 0."""
        return f"redis://{self.host}:{self.port}/0"

    def client(self, **options: Any) -> Any:
        """Give a redis.Redis; its replies are bytes unless told otherwise."""
        return need_module("redis").Redis(self.host, self.port, **{"socket_timeout": 30, **options})

    def is_ready(self) -> bool:
        # By hand, as a client tries again a few times before it says that nobody is there. -LOADING is no answer yet.
        try:
            with socket.create_connection((self.host, self.port), 1.0) as link:
                link.sendall(b"PING\r\n")
                return link.recv(100).startswith(b"+PONG")
        except OSError:
            return False


class PostgresTemplate:
    """A data directory that has been made once, for all servers of a test session."""

    def __init__(self) -> None:
        try:
            postgres.programs()
        except NotRunError:
            lacking("PostgreSQL")
        self._servers = 0
        self.directory = postgres.make_directory()
        self.data = self.directory / "template"
        try:
            postgres.make_data(self.data)
        except NotRunError:
            self.remove()
            raise

    def new_server(self, **settings: Any) -> PostgresServer:
        """Give a server, not started, with its own copy."""
        directory = self.directory / f"server{self._servers}"
        self._servers += 1
        directory.mkdir(mode=0o700)
        postgres.give(directory)
        # cp keeps owners and modes, and takes a tenth of the time that initdb does.
        subprocess.run(["cp", "-a", str(self.data), str(directory / "data")], check=True)
        return PostgresServer(directory, **settings)

    def remove(self) -> None:
        # Hundreds of databases with hundreds of files each: on a busy machine that takes longer than a test may.
        subprocess.Popen(["rm", "-rf", str(self.directory)], start_new_session=True)


class PostgresServer(ServerProcess):
    """A PostgreSQL with its own data. Settings are keywords: `fsync="on", max_connections=200`."""

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": sessions are ended, and the end is clean
    user = postgres.USER
    database = postgres.DATABASE

    def __init__(self, directory: Path, port: int | None = None, **settings: object) -> None:
        super().__init__(directory, port)
        self.settings: dict[str, object] = {"fsync": "on", "shared_buffers": "16MB", **settings}

    @property
    def argv(self) -> list[str]:
        return postgres.command(self.directory / "data", self.port, self.settings)

    @property
    def process_options(self) -> dict[str, Any]:
        return postgres.process_options()

    def is_ready(self) -> bool:
        return postgres.answers(self.port)

    def url(self, database: str | None = None) -> str:
        """Where a database is, over TCP."""
        return f"postgresql://{self.user}@{self.host}:{self.port}/{quote(database or self.database)}"

    def socket_url(self, database: str | None = None) -> str:
        """Where a database is, over the socket in the server's directory."""
        place = quote(str(self.directory), safe="")
        return f"postgresql://{self.user}@{place}:{self.port}/{quote(database or self.database)}"

    def connect(self, database: str | None = None, **options: Any) -> Any:
        """Give a psycopg connection in which each statement is a transaction."""
        return need_module("psycopg").connect(self.url(database), **{"autocommit": True, **options})

    def create_database(self, name: str) -> str:
        """Make an empty database, and give its URL."""
        sql = need_module("psycopg").sql
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def kill_hard(self) -> None:
        """kill -9 of the server and of all its processes at once: none of them can tidy up after another."""
        if self.process is None:
            return
        # Held still first, so that it starts no other while its processes are counted.
        self.process.send_signal(signal.SIGSTOP)
        children = list(_children(self.process.pid))
        for pid in (self.process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None
        # The next server refuses to start while one of them holds the shared memory.
        wait_until(lambda: not any(_is_alive(pid) for pid in children))


def _children(parent: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _status(int(entry.name))[1:2] == [str(parent)]:
            yield int(entry.name)


def _is_alive(pid: int) -> bool:
    return _status(pid)[:1] not in ([], ["Z"], ["X"])


def _status(pid: int) -> list[str]:
    """Read the state, the parent and so on of a process; nothing if there is none."""
    try:
        # The name in parentheses may hold blanks, so fields are counted from behind it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
