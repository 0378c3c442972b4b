"""The server process: sockets, signals, timers, and the broker between them.

The only file that knows the event loop. Clients are served in rounds (sockets.py): what has arrived is run at once,
replies collect, and at the end of the round `_turn` lets the broker write the journal and send them all. Events between
rounds, such as timers, schedule a turn with `soon`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import platform
import resource
import signal
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path

from penstock.broker import process
from penstock.broker.broker import Broker
from penstock.broker.bus_sockets import BusLinks
from penstock.broker.commands.information import release
from penstock.broker.config import Config, ConfigRefused, flags_from_argv, load, rewrite
from penstock.broker.connection import ClientConnection
from penstock.broker.core.membership import BUS_PORT_OFFSET, Cluster, cluster_from_text
from penstock.broker.disk import RealDisk, lock
from penstock.broker.events import open_events
from penstock.broker.sockets import Listener, SocketLoop
from penstock.errors import ConfigError, OperatorError, PenstockError
from penstock.native import modules_in_use

log = logging.getLogger("penstock")

REWRITE_SLICE_S = 0.002  # a rewrite works for this long, then pauses for as long
TIMER_S_MIN = 0.001  # a timer that is due now still lets the event loop run first


class Server:
    """Runs one broker in an event loop."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._loop = asyncio.get_running_loop()
        self._sockets = SocketLoop(self._begin_round, self._turn, self._loop.call_soon, self._loop.call_later)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._turn_planned = False
        self._stepping = False
        self._started = time.monotonic()
        self._stopped: asyncio.Future[int] = self._loop.create_future()
        disk = RealDisk(".")
        known = self._read_cluster()
        node_id = known.my_id if known is not None else os.urandom(20).hex().encode()
        self.broker = Broker(config, self, disk, time.monotonic, time.time, os.urandom, node_id)
        if known is not None:
            self.broker.node.take_cluster(known)
        port = self.broker.node.cluster.myself.port = config.port or config.tls_port
        self._bus: BusLinks | None = None
        if port:  # other nodes can't reach a node that has only a unix socket
            self._bus_tls = process.bus_tls(config)
            self._bus = BusLinks(
                self.broker, self._sockets, config.cluster_secret, self._bus_tls[1] if self._bus_tls else None
            )
            self.broker.use_bus(self._bus)
        events = open_events(config, self.broker.node)
        if events is not None:
            self.broker.use_events(events)
        self.save_cluster()

    # Start and stop

    async def serve(self) -> int:
        """Listen, load the journal, and run until told to stop; return the exit code."""
        log.info("penstock %s starting, %s", release(), modules_in_use())
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # Before anyone can connect: jobs that aren't loaded yet must not look as if they didn't exist.
        self.broker.persistence.loading = self.config.appendonly or self.config.aof_enqueue_jobs_once
        self.broker.refresh_checks()
        self._listen()
        process.write_pidfile(self.config)
        self._cron()
        loading = self._loop.create_task(self._load())
        loading.add_done_callback(self._load_ended)
        code = await self._stopped
        self._close_events()
        return code

    def _listen(self) -> None:
        config = self.config
        places: list[tuple[int, ssl.SSLContext | None]] = []
        if config.port:
            places.append((config.port, None))
        if config.tls_port:
            places.append((config.tls_port, process.tls_context(config)))
        if not places and not config.unixsocket:
            raise ConfigError("nothing to listen on: set port, tls-port or unixsocket")
        for port, tls in places:
            for sock in process.listening_sockets(config, port):
                self._sockets.listen(Listener(sock, lambda: ClientConnection(self.broker), tls))
        if config.unixsocket:
            sock = process.listening_unix_socket(config)
            self._sockets.listen(Listener(sock, lambda: ClientConnection(self.broker, is_unix=True), None))
        if self._bus is not None:
            self._listen_to_nodes(self._bus)
        self._loop.add_reader(self._sockets.fileno(), self._sockets.serve_once)

    def _listen_to_nodes(self, bus: BusLinks) -> None:
        config = self.config
        sockets = process.listening_sockets(config, (config.port or config.tls_port) + BUS_PORT_OFFSET)
        for sock in sockets:
            self._sockets.listen(Listener(sock, bus.accept, self._bus_tls[0] if self._bus_tls else None))
        if config.bind:
            bus.sources = [sock.getsockname()[0] for sock in sockets]
        process.warn_of_open_bus(config, sockets)

    async def _load(self) -> None:
        config, persistence = self.config, self.broker.persistence
        if persistence.loading:
            for _ in persistence.begin_load(process.journal_bytes(config)):
                await asyncio.sleep(0)  # clients get -LOADING meanwhile
                self.broker.set_clock()
            persistence.end_load()
            if config.aof_enqueue_jobs_once:
                config.aof_enqueue_jobs_once = False
                if config.file:
                    rewrite(config)
        if config.appendonly:
            persistence.open()
        gc.collect()
        gc.freeze()
        process.ready(config)
        self.soon()
        log.info("ready to accept connections on port %d", config.port or config.tls_port)

    def _load_ended(self, task: asyncio.Task[None]) -> None:
        problem = task.exception()
        if problem is None:
            return
        if not isinstance(problem, (PenstockError, OSError)):
            raise problem
        log.critical("can't start: %s", problem)
        self._end(1)

    def _on_signal(self) -> None:
        log.info("told to stop")
        self.broker.set_clock()
        if self.broker.persistence.loading or self.broker.persistence.close(rewrite=False):
            self.stop()
        else:
            log.error("not stopping: the journal could not be closed")

    def stop(self) -> None:
        """End the process cleanly; the journal is closed already."""
        self._end(0)

    def _end(self, code: int) -> None:
        self._sockets.close()
        process.clean_up(self.config)
        if not self._stopped.done():
            # The replies of this turn are sent first.
            self._loop.call_later(TIMER_S_MIN, self._stopped.set_result, code)

    def _close_events(self) -> None:
        if self.broker.events is not None:
            self.broker.events.close()

    def restart(self, crash: bool, delay_ms: int) -> None:
        """Restart this program in the same process."""
        if not crash:
            if self.config.file:
                rewrite(self.config)
            if not self.broker.persistence.close(rewrite=False):
                raise OperatorError("failed to restart the server. Check server logs.")
            self._close_events()
        time.sleep(delay_ms / 1000)
        os.chdir(self.config.started_in)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    # Turns and timers

    def soon(self) -> None:
        """Plan the end of this turn."""
        if not self._turn_planned:
            self._turn_planned = True
            self._loop.call_soon(self._turn)

    def _begin_round(self) -> None:
        """A round ends with a turn of its own, so none needs to be scheduled."""
        self._turn_planned = True

    def _turn(self) -> None:
        self._turn_planned = False
        self.broker.flush()
        if self._bus is not None:
            self._bus.flush()
        self._arm()

    def _arm(self) -> None:
        """Set the timer to the next time that is due."""
        next_ms = self.broker.node.timers.next_ms()
        if next_ms is None:
            return
        at = next_ms / 1000
        if self._timer is not None:
            if at >= self._timer_at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(TIMER_S_MIN, at - time.monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.broker.tick()
        self._arm()

    def _cron(self) -> None:
        self._loop.call_later(1 / self.config.hz, self._cron)
        try:
            self.broker.cron()
        finally:
            if self._bus is not None:
                self._bus.cron()
        if self.broker.persistence.rewriting and not self._stepping:
            self._stepping = True
            self._step()

    def _step(self) -> None:
        """Work on a rewrite for a little while."""
        until = time.monotonic() + REWRITE_SLICE_S
        self.broker.set_clock()
        while (more := self.broker.persistence.step()) and time.monotonic() < until:
            pass
        self._stepping = more
        if more:
            self._loop.call_later(REWRITE_SLICE_S, self._step)

    def sleep(self, seconds: float) -> None:
        """Block the process, for DEBUG SLEEP."""
        time.sleep(seconds)

    # The process

    def _read_cluster(self) -> Cluster | None:
        path = Path(self.config.cluster_config_file)
        if not path.exists() or not path.stat().st_size:
            return None
        return cluster_from_text(path.read_text("latin-1"), int(time.monotonic() * 1000), log.warning)

    def save_cluster(self) -> None:
        """Write nodes.conf."""
        text = self.broker.node.cluster.text(with_handshakes=False)
        process.replace_file(self.config.cluster_config_file, text.encode("latin-1"))

    def apply(self, directive: str, value: object) -> None:
        """Put a changed directive into effect where it concerns the process."""
        effects: dict[str, Callable[[], None]] = {
            "dir": lambda: self._move_to(str(value)),
            "maxclients": lambda: process.allow_clients(int(str(value))),
            "loglevel": lambda: log.setLevel(process.LOG_LEVELS[str(value)]),
        }
        effect = effects.get(directive)
        if effect is not None:
            effect()

    def _move_to(self, path: str) -> None:
        """CONFIG SET dir: nodes.conf moves too, and the new directory is locked against other nodes."""
        if Path(path).exists() and Path(path).samefile(Path.cwd()):
            return
        if self.config.appendonly:
            raise ConfigRefused(
                f"The journal is on, and in {Path.cwd()}: a node that is started there would not find what was written "
                "since. Turn it off first (CONFIG SET appendonly no), or stop the node and move its files"
            )
        before = Path.cwd()
        process.change_directory(path)
        try:
            take_locks(self.config, is_move=True)
            self.save_cluster()
        except (OSError, PenstockError) as problem:
            os.chdir(before)
            raise ConfigRefused(f"Changing directory: {problem}") from None

    def facts(self) -> dict[str, object]:
        """Return what INFO shows about the process."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "os": f"{platform.system()} {platform.release()} {platform.machine()}",
            "arch_bits": 64 if sys.maxsize > 2**32 else 32,
            "multiplexing_api": type(self._loop).__module__.partition(".")[0],
            "gcc_version": platform.python_compiler(),
            "process_id": os.getpid(),
            "uptime_in_seconds": int(time.monotonic() - self._started),
            "executable": sys.executable,
            "used_memory_rss": process.resident_bytes(),
            "used_cpu_sys": usage.ru_stime,
            "used_cpu_user": usage.ru_utime,
            "used_cpu_sys_children": children.ru_stime,
            "used_cpu_user_children": children.ru_utime,
        }


def take_locks(config: Config, is_move: bool = False) -> list[int]:
    """Lock our files against other nodes while this process lives; return the locks, to be closed at the end.

    In a move to another directory, only the files that move are locked.
    """
    names = ("appendfilename", "cluster_config_file")
    locks: list[int] = []
    try:
        locks.extend(
            _lock(config, name) for name in names if not (is_move and Path(getattr(config, name)).is_absolute())
        )
    except PenstockError:
        for held in locks:  # all locks, or none
            os.close(held)
        raise
    return locks


def run(argv: list[str]) -> int:
    """Run a server with these arguments until it is stopped; return the exit code."""
    try:
        path, flags = flags_from_argv(argv)
        config = load(path, flags, sys.stdin.read() if path == "-" else None)
        process.check(config)
        process.prepare(config)
        locks = take_locks(config)
        try:
            return _run_loop(config)
        finally:
            for held in locks:
                os.close(held)
    except (PenstockError, OSError) as problem:
        log.critical("%s", problem) if log.handlers else sys.stderr.write(f"penstock server: {problem}\n")
        return 1


def _lock(config: Config, name: str) -> int:
    """Lock a file that the node writes."""
    file = getattr(config, name)
    try:
        return lock(file + ".lock")
    except OSError as problem:
        raise ConfigError(
            f"can't write {Path(file).absolute()}.lock: {problem.strerror}. Is that the right place? See dir and "
            f"{name.replace('_', '-')}"
        ) from None


def _run_loop(config: Config) -> int:
    try:
        import uvloop  # noqa: PLC0415 - not to be had on every platform

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:  # not on this platform: slower, otherwise the same
        runner = asyncio.Runner()
    # Jobs form no cycles. A full collection over a million of them would stop the node for a third of a second.
    gc.disable()

    async def main() -> int:
        return await Server(config).serve()

    with runner:
        return runner.run(main())
