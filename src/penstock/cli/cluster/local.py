"""Nodes of a cluster for trying out: processes on this machine, each with a directory of its own.

    DIR/cluster.json            which nodes there are, and their ports
    DIR/node-1/node.conf        the configuration of the first, made once; yours to change
    DIR/node-1/node.pid         its process, while it runs
    DIR/node-1/node.log         what it has to say
    DIR/node-1/nodes.conf.lock  held by the node while it runs: how we know that a process is really ours

A process id alone proves nothing: after a crash the file stays, and the number may be somebody else's by now. So a node
runs if somebody holds the lock of its directory, and it is ours to stop if that is the process of its pid file.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.client.addresses import Address
from penstock.errors import CallerError, OperatorError
from penstock.wire.words import quote_word

HOST = "127.0.0.1"
BUS_OFFSET = 10_000
NODES_MAX = 50  # processes of 30 MB and more, that all talk to each other: a machine has better things to do
EPHEMERAL_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
EPHEMERAL_DEFAULT = 32_768  # where the system can't be asked: the default of Linux, and below that of others
DEFAULT_DIRECTORY = Path("penstock-cluster")
NAME = re.compile(r"node-[0-9]{1,4}")
CONFIG = """\
# Written by `penstock cluster create`. Change what you like: `penstock cluster start` takes it as it is.
port {port}
bind 127.0.0.1
dir {directory}
daemonize yes
pidfile {pid_file}
logfile {log}
# A third of the default, so that one who tries what happens when a node dies need not wait long.
cluster-node-timeout 5000
"""


@contextmanager
def explained(directory: Path) -> Iterator[None]:
    """Errors of files as ours."""
    try:
        yield
    except OSError as error:
        raise OperatorError(f"Can't use {error.filename or directory}: {error.strerror}") from error


@dataclass(frozen=True)
class LocalNode:
    """One node of a cluster for trying out; it may or may not run."""

    directory: Path
    port: int

    @property
    def name(self) -> str:
        """`node-1`."""
        return self.directory.name

    @property
    def address(self) -> Address:
        """Where clients find it."""
        return Address(HOST, self.port)

    @property
    def config(self) -> Path:
        """Its configuration file."""
        return self.directory / "node.conf"

    @property
    def log(self) -> Path:
        """Its log."""
        return self.directory / "node.log"

    @property
    def pid_file(self) -> Path:
        """Where it writes its process id."""
        return self.directory / "node.pid"

    @property
    def lock(self) -> Path:
        """The file that it holds locked."""
        return self.directory / "nodes.conf.lock"

    def write(self) -> None:
        """Make the directory and the configuration."""
        self.directory.mkdir()
        where = {"directory": self.directory, "pid_file": self.pid_file, "log": self.log}
        quoted = {name: quote_word(os.fsencode(path.absolute())).decode() for name, path in where.items()}
        self.config.write_text(CONFIG.format(port=self.port, **quoted), "utf-8")

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it; the process that is given ends as soon as the node is ready, and in the background."""
        # -P: a folder of the user's that is called penstock is not taken for ours.
        words = [sys.executable, "-P", "-m", "penstock", "server", str(self.config.absolute())]
        # A session of its own from the start: Ctrl-C here doesn't reach it.
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )

    def last_words(self) -> str:
        """The last line of its log."""
        try:
            lines = self.log.read_text("utf-8", "replace").splitlines()
        except FileNotFoundError:
            lines = []
        return lines[-1] if lines else f"nothing is in {self.log}"

    def written_pid(self) -> int | None:
        """The process id in its pid file."""
        return _number_in(self.pid_file)

    def is_running(self) -> bool:
        """Whether a process holds the directory. Not to be asked while it starts: it would find its lock taken."""
        try:
            lock = self.lock.open("rb")
        except FileNotFoundError:
            return False
        with closing(lock):
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def pid(self) -> int | None:
        """The process to stop; None if it doesn't run. Raises OperatorError if a process runs that isn't ours."""
        with explained(self.directory):
            if not self.is_running():
                return None
            pid, holder = self.written_pid(), self.holder()
        if pid is None or pid != holder or not is_server(pid, self.config):
            raise OperatorError(
                f"{self.directory} is in use by process {holder or 'unknown'}, which `penstock cluster` has not "
                f"started: {self.pid_file} says {pid or 'nothing'}. It is left alone; stop it the way it was started."
            )
        return pid

    def clear(self) -> None:
        """Remove the pid file that a crash has left."""
        with explained(self.directory):
            self.pid_file.unlink(missing_ok=True)

    def holder(self) -> int | None:
        """The process that has written down that it holds the directory; it may be gone."""
        return _number_in(self.lock)

    def stop(self) -> bool:
        """Ask it to stop; False if it doesn't run."""
        pid = self.pid()
        if pid is None:
            self.clear()
            return False
        try:
            os.kill(pid, signal.SIGTERM)
        except PermissionError:
            raise OperatorError(
                f"{self.name} is process {pid}, which is another user's: stop it as that user, or as root."
            ) from None
        return True


def _number_in(path: Path) -> int | None:
    try:
        text = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdecimal() and int(text) > 1 else None


def is_server(pid: int, config: Path) -> bool:
    """Whether a process was started with this configuration, as far as the system tells."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return not Path("/proc/self/cmdline").exists()
    return os.fsencode(config.absolute()) in words


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and not only its remains that nobody has collected."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except (OSError, IndexError):
        return True
    return state not in {"Z", "X"}


# Ports.


def ephemeral_start() -> int:
    """The first port that the system gives to outgoing connections: any of those may be taken at any moment."""
    try:
        return int(EPHEMERAL_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return EPHEMERAL_DEFAULT


def is_free(port: int) -> bool:
    """Whether a node could listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the node does: old connections don't count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose_ports(base: int, count: int, end: int, free: Callable[[int], bool] = is_free) -> list[int]:
    """The first ports from `base` on that are free with the one of the bus, which must be below `end`."""
    chosen: list[int] = []
    for port in range(base, end - BUS_OFFSET):
        if len(chosen) == count:
            break
        if free(port) and free(port + BUS_OFFSET):
            chosen.append(port)
    if len(chosen) < count:
        raise CallerError(
            f"There are not {count} free ports from {base} on: a node needs a port and that port + {BUS_OFFSET}, below "
            f"{end}, where the ports of outgoing connections begin. Give a lower --base-port."
        )
    return chosen


# The directory of them all.


def _list_file(directory: Path) -> Path:
    return directory / "cluster.json"


def prepare(directory: Path, count: int, base: int) -> list[LocalNode]:
    """Make the directories of new nodes. Raises CallerError where something is in the way."""
    with explained(directory):
        return _prepare(directory, count, base)


def _prepare(directory: Path, count: int, base: int) -> list[LocalNode]:
    if _list_file(directory).exists():
        raise CallerError(
            f"There is a cluster in {directory} already. Start it with `penstock cluster start{option(directory)}`, "
            "or add --replace: that stops it, and deletes it with all its jobs."
        )
    ports = choose_ports(base, count, ephemeral_start())
    nodes = [LocalNode(directory / f"node-{number}", port) for number, port in enumerate(ports, 1)]
    for node in nodes:
        if node.directory.exists():
            raise CallerError(f"{node.directory} is there, and not of a cluster of ours: give another --dir.")
    directory.mkdir(parents=True, exist_ok=True)
    rows = [{"name": node.name, "port": node.port} for node in nodes]
    _list_file(directory).write_text(json.dumps({"nodes": rows}) + "\n", "utf-8")
    for node in nodes:
        node.write()
    return nodes


def load(directory: Path) -> list[LocalNode]:
    """The nodes that were made in a directory."""
    path = _list_file(directory)
    try:
        rows = json.loads(path.read_text("utf-8"))["nodes"]
        nodes = [LocalNode(directory / str(row["name"]), int(row["port"])) for row in rows]
    except FileNotFoundError:
        raise CallerError(
            f"There is no cluster in {directory}. `penstock cluster create 3{option(directory)}` makes one."
        ) from None
    except OSError as error:
        raise OperatorError(f"Can't read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        raise OperatorError(
            f"{path} is not what `penstock cluster create` wrote. Delete {directory} yourself."
        ) from None
    for node in nodes:
        if not NAME.fullmatch(node.name):
            raise OperatorError(f"{path} names {node.name!r}, which is no node of ours. Delete {directory} yourself.")
    return nodes


def address_of_any(directory: Path) -> Address | None:
    """Return the address of a node that was made in a directory, of one that runs if there is one; None if none was."""
    if not _list_file(directory).exists():
        return None
    nodes = load(directory)
    with explained(directory):
        running = [node for node in nodes if node.is_running()]
    return next((node.address for node in [*running, *nodes]), None)


def delete(directory: Path) -> None:
    """Delete the nodes of a directory, which must have stopped, with their jobs."""
    for node in load(directory):
        if node.is_running():
            raise OperatorError(f"{node.name} still runs: stop it with `penstock cluster stop{option(directory)}`.")
        with explained(directory):
            if node.directory.exists():
                shutil.rmtree(node.directory)
    with explained(directory):
        _list_file(directory).unlink()


def option(directory: Path) -> str:
    """What to add to a command so that it means this directory."""
    return "" if directory == DEFAULT_DIRECTORY else f" --dir {shlex.quote(str(directory))}"
