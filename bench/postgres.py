"""How a PostgreSQL is run from a directory, for benchmarks and tests alike.

Debian keeps the server's programs in a folder that is on nobody's PATH. The server refuses to run as root, and then
runs as its own user, in a directory that this user can enter.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.servers import HOST, START_TIMEOUT_S, STOP_TIMEOUT_S, NotRunError, free_port

USER = "penstock"  # the database's user, whom everybody is trusted to be
DATABASE = "postgres"


@functools.cache
def programs() -> Path:
    """The folder with the server's programs: the newest of Debian's, or the one that the PATH leads to."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise NotRunError("PostgreSQL is not installed")
    return Path(on_path).resolve().parent


@functools.cache
def _account() -> pwd.struct_passwd | None:
    """As whom it runs: ourselves (None), but for root its own user, or nobody where it has none."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise NotRunError("there is no user that PostgreSQL could run as")


def process_options() -> dict[str, Any]:
    """What subprocess is told, so that the process is the right user's; the root directory, as all can enter it."""
    account = _account()
    if account is None:
        return {"cwd": "/"}
    return {"cwd": "/", "user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def give(directory: Path) -> None:
    """Hand a directory over to the user that the server runs as."""
    account = _account()
    if account is not None:
        os.chown(directory, account.pw_uid, account.pw_gid)


def make_directory() -> Path:
    """A new directory that the server's user owns, with a path that is short enough for a socket."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    give(directory)
    return directory


def make_data(data: Path) -> None:
    """A new data directory, in a directory that the server's user owns. It takes half a second."""
    words = ["--no-sync", "--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C.UTF-8"]
    done = subprocess.run(
        [programs() / "initdb", "--pgdata", data, *words], capture_output=True, check=False, **process_options()
    )
    if done.returncode:
        raise NotRunError(f"initdb failed: {done.stderr.decode(errors='replace')}")


def command(data: Path, port: int, settings: Mapping[str, object]) -> list[str]:
    """The words that start a server in the foreground; its socket lies beside its data."""
    place = {"listen_addresses": HOST, "port": port, "unix_socket_directories": data.parent}
    words = [str(programs() / "postgres"), "-D", str(data)]
    for name, value in {**place, **settings}.items():
        words += ["-c", f"{name}={value}"]
    return words


def answers(port: int) -> bool:
    """Whether the server takes connections."""
    words = [programs() / "pg_isready", "-q", "-h", HOST, "-p", str(port), "-d", DATABASE]
    return subprocess.run(words, check=False).returncode == 0


@dataclass
class Postgres:
    """A running server."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Where its database is."""
        return f"postgresql://{USER}@{HOST}:{self.port}/{DATABASE}"


@contextlib.contextmanager
def running(**settings: object) -> Iterator[Postgres]:
    """A server with its defaults and these settings for the length of a block, in a directory that goes with it."""
    directory = make_directory()
    try:
        make_data(directory / "data")
        port = free_port()
        with (directory / "bench.log").open("wb") as log:
            words = command(directory / "data", port, settings)
            process = subprocess.Popen(words, stdout=log, stderr=log, **process_options())
        try:
            _await_answer(process, port, directory / "bench.log")
            yield Postgres(port, process)
        finally:
            _stop(process)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _await_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    limit_s = time.perf_counter() + START_TIMEOUT_S
    while not answers(port):
        if process.poll() is not None or time.perf_counter() > limit_s:
            raise NotRunError(f"PostgreSQL did not start: {log.read_text(errors='replace')[-300:]}")
        time.sleep(0.01)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)  # "fast": sessions are ended, and the end is clean
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGQUIT)  # it ends its processes at once, which a kill would not
        process.wait()
