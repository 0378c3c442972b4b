"""Nodes of a cluster on this machine, to try one: processes, each with a directory of its own.

    DIR/cluster.json            the nodes and their ports
    DIR/node-1/node.conf        the configuration of the first node, written once; it can be changed
    DIR/node-1/node.pid         its process id, while it runs
    DIR/node-1/node.log         its log
    DIR/node-1/nodes.conf.lock  locked by the node while it runs: this shows that a process is really ours

A process id alone proves nothing: after a crash the file stays, and another process may have the number by now. So a
node runs if its directory is locked, and we may stop it if the process of its pid file has the lock.
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
NODES_MAX = 50  # processes of 30 MB and more that all exchange messages
EPHEMERAL_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
EPHEMERAL_DEFAULT = 32_768  # if the system doesn't say: the default of Linux, and below that of others
DEFAULT_DIRECTORY = Path("penstock-cluster")
NAME = re.compile(r"node-[0-9]{1,4}")
CONFIG = """\
# Written by `penstock cluster create`. It can be changed: `penstock cluster start` uses it as it is.
port {port}
bind 127.0.0.1
dir {directory}
daemonize yes
pidfile {pid_file}
logfile {log}
# A third of the default, so that the failure of a node is noticed soon.
cluster-node-timeout 5000
"""


@contextmanager
def explained(directory: Path) -> Iterator[None]:
    """Raise errors of files as OperatorError."""
    try:
        yield
    except OSError as error:
        raise OperatorError(f"Can't use {error.filename or directory}: {error.strerror}") from error


@dataclass(frozen=True)
class LocalNode:
    """One node of a cluster on this machine; it may or may not run."""

    directory: Path
    port: int

    @property
    def name(self) -> str:
        """Return its name, such as `node-1`."""
        return self.directory.name

    @property
    def address(self) -> Address:
        """Return its address for clients."""
        return Address(HOST, self.port)

    @property
    def config(self) -> Path:
        """Return its configuration file."""
        return self.directory / "node.conf"

    @property
    def log(self) -> Path:
        """Return its log file."""
        return self.directory / "node.log"

    @property
    def pid_file(self) -> Path:
        """Return the file with its process id."""
        return self.directory / "node.pid"

    @property
    def lock(self) -> Path:
        """Return the file that it locks."""
        return self.directory / "nodes.conf.lock"

    def write(self, events: Path | None = None) -> None:
        """Create its directory and configuration; `events` is the directory that it writes events into."""
        self.directory.mkdir()
        where = {"directory": self.directory, "pid_file": self.pid_file, "log": self.log}
        quoted = {name: quote_word(os.fsencode(path.absolute())).decode() for name, path in where.items()}
        text = CONFIG.format(port=self.port, **quoted)
        if events is not None:
            text += f"events-dir {quote_word(os.fsencode(events.absolute())).decode()}\n"
        self.config.write_text(text, "utf-8")

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it; the returned process ends as soon as the node is ready and in the background."""
        # -P: a folder `penstock` in the current directory must not be imported.
        words = [sys.executable, "-P", "-m", "penstock", "server", str(self.config.absolute())]
        # In a session of its own, so that Ctrl-C here doesn't reach it.
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )

    def last_words(self) -> str:
        """Return the last line of its log."""
        try:
            lines = self.log.read_text("utf-8", "replace").splitlines()
        except FileNotFoundError:
            lines = []
        return lines[-1] if lines else f"{self.log} is empty"

    def written_pid(self) -> int | None:
        """Return the process id in its pid file."""
        return _number_in(self.pid_file)

    def is_running(self) -> bool:
        """Whether a process has locked the directory. Must not be called while one starts: it would find it locked."""
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
        """Return the process to stop; None if it doesn't run. Raises OperatorError if another process runs there."""
        with explained(self.directory):
            if not self.is_running():
                return None
            pid, holder = self.written_pid(), self.holder()
        if pid is None or pid != holder or not is_server(pid, self.config):
            raise OperatorError(
                f"{self.directory} is in use by process {holder or 'unknown'}, which `penstock cluster` has not "
                f"started: {self.pid_file} has {pid or 'nothing'}. It is not stopped; stop it the way it was started."
            )
        return pid

    def clear(self) -> None:
        """Remove the pid file that a crash has left behind."""
        with explained(self.directory):
            self.pid_file.unlink(missing_ok=True)

    def holder(self) -> int | None:
        """Return the process id in the lock file; the process may be gone."""
        return _number_in(self.lock)

    def stop(self) -> bool:
        """Ask it to stop; returns False if it doesn't run."""
        pid = self.pid()
        if pid is None:
            self.clear()
            return False
        try:
            os.kill(pid, signal.SIGTERM)
        except PermissionError:
            raise OperatorError(
                f"{self.name} is process {pid} of another user: stop it as that user, or as root."
            ) from None
        return True


def _number_in(path: Path) -> int | None:
    try:
        text = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdecimal() and int(text) > 1 else None


def is_server(pid: int, config: Path) -> bool:
    """Whether a process was started with this configuration, as far as the system shows it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return not Path("/proc/self/cmdline").exists()
    return os.fsencode(config.absolute()) in words


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
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
    """Return the first port that the system uses for outgoing connections: those may be taken at any moment."""
    try:
        return int(EPHEMERAL_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return EPHEMERAL_DEFAULT


def is_free(port: int) -> bool:
    """Whether a node could listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the node does: closed connections don't count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose_ports(base: int, count: int, end: int, free: Callable[[int], bool] = is_free) -> list[int]:
    """Return the first ports from `base` on that are free, with their bus ports, which must be below `end`."""
    chosen: list[int] = []
    for port in range(base, end - BUS_OFFSET):
        if len(chosen) == count:
            break
        if free(port) and free(port + BUS_OFFSET):
            chosen.append(port)
    if len(chosen) < count:
        raise CallerError(
            f"Fewer than {count} ports are free from {base} on: a node needs a port and that port + {BUS_OFFSET}, "
            f"below {end}, where ports of outgoing connections begin. Use a lower --base-port."
        )
    return chosen


# The directory of the cluster.


def _list_file(directory: Path) -> Path:
    return directory / "cluster.json"


def prepare(directory: Path, count: int, base: int, events: Path | None = None) -> list[LocalNode]:
    """Create the directories of new nodes. Raises CallerError if one exists already."""
    with explained(directory):
        return _prepare(directory, count, base, events)


def _prepare(directory: Path, count: int, base: int, events: Path | None) -> list[LocalNode]:
    if _list_file(directory).exists():
        raise CallerError(
            f"There is a cluster in {directory} already. Start it with `penstock cluster start{option(directory)}`, "
            "or add --replace, which stops it and deletes it with all its jobs."
        )
    ports = choose_ports(base, count, ephemeral_start())
    nodes = [LocalNode(directory / f"node-{number}", port) for number, port in enumerate(ports, 1)]
    for node in nodes:
        if node.directory.exists():
            raise CallerError(
                f"--dir must be a directory without {node.name}, got {directory}, where it exists already."
            )
    directory.mkdir(parents=True, exist_ok=True)
    rows = [{"name": node.name, "port": node.port} for node in nodes]
    _list_file(directory).write_text(json.dumps({"nodes": rows}) + "\n", "utf-8")
    for node in nodes:
        node.write(events)
    return nodes


def load(directory: Path) -> list[LocalNode]:
    """Return the nodes that were created in a directory."""
    path = _list_file(directory)
    try:
        rows = json.loads(path.read_text("utf-8"))["nodes"]
        nodes = [LocalNode(directory / str(row["name"]), int(row["port"])) for row in rows]
    except FileNotFoundError:
        raise CallerError(
            f"There is no cluster in {directory}. `penstock cluster create 3{option(directory)}` creates one."
        ) from None
    except OSError as error:
        raise OperatorError(f"Can't read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        raise OperatorError(
            f"{path} is not a file of `penstock cluster create`. Delete {directory} yourself."
        ) from None
    for node in nodes:
        if not NAME.fullmatch(node.name):
            raise OperatorError(
                f"{path} must name nodes such as node-1, got {node.name!r}. Delete {directory} yourself."
            )
    return nodes


def address_of_any(directory: Path) -> Address | None:
    """Return the address of a node of a directory, of a running one if possible; None if there is no cluster."""
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
    """Return the option --dir for this directory; empty for the default."""
    return "" if directory == DEFAULT_DIRECTORY else f" --dir {shlex.quote(str(directory))}"
