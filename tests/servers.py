"""Real servers of others for tests: redis-server and PostgreSQL, as Debian ships them, and mongod from a wheel.

Each has a directory and a loopback port of its own, is ended by the ids of its own processes, and comes back on the
same port with the same directory, so that a test can kill it as a power cut would and look at what it kept. Redis
takes directives as keywords. PostgreSQL runs as a user of its own where we are root (see `bench.postgres`), and so in
a directory outside of pytest's, which others can't enter; a data directory is made once and then copied.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench import postgres
from bench.servers import NotRunError
from tests.processes import HOST, ServerProcess, lacking, need_module, need_program, wait_until


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
        """Return a redis.Redis; its replies are bytes unless told otherwise."""
        return need_module("redis").Redis(self.host, self.port, **{"socket_timeout": 30, **options})

    def is_ready(self) -> bool:
        # By hand, as a client tries again a few times before it says that nobody is there. -LOADING is not an answer.
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
        """Return a server, not started, with its own copy."""
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
        """Return a psycopg connection in which each statement is a transaction."""
        return need_module("psycopg").connect(self.url(database), **{"autocommit": True, **options})

    def create_database(self, name: str) -> str:
        """Make an empty database, and return its URL."""
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


class MongoServer(ServerProcess):
    """A mongod: a replica set of one member, or on its own. Options are keywords: `auth=None, tlsMode="requireTLS"`."""

    name = "mongod"
    database = "penstock_tests"

    def __init__(
        self, directory: Path, replica_set: str | None = "rs0", port: int | None = None, **options: object
    ) -> None:
        super().__init__(directory, port)
        self.replica_set = replica_set
        self.options: dict[str, object] = {
            "bind_ip": HOST,
            "port": self.port,
            "dbpath": directory,
            "wiredTigerCacheSizeGB": 0.25,
            "nounixsocket": None,
            **({} if replica_set is None else {"replSet": replica_set, "oplogSize": 16}),
            **options,
        }
        # What tests don't look at, and a shutdown that doesn't wait for elections.
        self.parameters: dict[str, object] = {
            "diagnosticDataCollectionEnabled": "false",
            "shutdownTimeoutMillisForSignaledShutdown": 0,
            "ttlMonitorSleepSecs": 1,
        }
        self.is_initiated = replica_set is None

    @property
    def argv(self) -> list[str]:
        words = [mongod_program()]
        for name, value in self.options.items():
            words += [f"--{name}"] if value is None else [f"--{name}", str(value)]
        for name, value in self.parameters.items():
            words += ["--setParameter", f"{name}={value}"]
        return words

    def url(self, scheme: str = "mongodb", database: str | None = None) -> str:
        """Where a database is."""
        return f"{scheme}://{self.host}:{self.port}/{database or self.database}"

    def client(self, **options: Any) -> Any:
        """Return a pymongo client of this one server."""
        given = {"directConnection": True, "serverSelectionTimeoutMS": 5000, **options}
        return need_module("pymongo").MongoClient(self.host, self.port, **given)

    def is_ready(self) -> bool:
        errors = need_module("pymongo").errors
        try:
            with self.client(serverSelectionTimeoutMS=3000) as client:  # a busy machine takes its time
                if not self.is_initiated:
                    members = [{"_id": 0, "host": f"{self.host}:{self.port}"}]
                    client.admin.command("replSetInitiate", {"_id": self.replica_set, "members": members})
                    self.is_initiated = True
                return bool(client.admin.command("hello")["isWritablePrimary"])
        except errors.PyMongoError:
            return False


def mongod_program() -> str:
    """Find a mongod: the one that PENSTOCK_MONGOD names, one on the PATH, or that of the wheel."""
    named = os.environ.get("PENSTOCK_MONGOD") or shutil.which("mongod")
    if named:
        return named
    spec = importlib.util.find_spec("fiftyone")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        program = Path(folder, "db", "bin", "mongod")
        if program.is_file():
            return str(program)
    return lacking("mongod")


def _children(parent: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _status(int(entry.name))[1:2] == [str(parent)]:
            yield int(entry.name)


def _is_alive(pid: int) -> bool:
    return _status(pid)[:1] not in ([], ["Z"], ["X"])


def _status(pid: int) -> list[str]:
    """Read the state, the parent and so on of a process; nothing if it is gone."""
    try:
        # The name in parentheses may hold blanks, so fields are counted from behind it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
