"""Several processes of a worker, and the supervisor that starts, replaces and stops them.

Each is the same command, started again: no memory, connection or lock is shared. A process that dies is replaced, after
a pause that grows while it keeps dying; its jobs come back when their leases end. The others are started only once the
first has begun, so that an error in the command is reported once.

SIGTERM and SIGINT are passed on: the first stops gracefully, the second at once, the third makes processes return their
jobs without waiting for handlers, and kills those that still run after GIVE_UP_S. Processes are not in the terminal's
foreground group, so that Ctrl-C reaches only the supervisor, which passes it on once.

A process and its supervisor share a socket with lines of JSON. A child sends `{"ready": true}` once it has begun, and
`{"counts": {...}}` every second and at its end. The supervisor sends a digit to stop it, one of the levels of
`Worker.stop_at`: signals that follow one another closely may arrive as one. When the supervisor is gone, the socket is
closed, and the child stops gracefully.

With `sources` all processes are replaced when a source file changes: new ones start at once, while the others finish
what they run. If the changed program can't begin, the supervisor waits for the next change.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from penstock.errors import CallerError
from penstock.worker.health import SILENT_S_MAX, reporting
from penstock.worker.reporting import Reporter, Summary, log_event
from penstock.worker.run import SETTLE_S, SUMMARY_S
from penstock.worker.runners import CANCEL_S
from penstock.worker.sources import WatchedFiles

CHANNEL_VARIABLE = "PENSTOCK_WORKER_CHANNEL"
NUMBER_VARIABLE = "PENSTOCK_WORKER_NUMBER"
REPORT_S = 1.0
LOOK_S = 0.5  # between two looks at the source files
PROCESSES_MAX = 512  # far more than cores: a larger number is a typing error
SIGNAL_EXIT = 128  # plus the signal's number: the exit code for a process that was killed, as shells have it
EXIT_REPLACE = 75  # of a process that must be replaced, since its handlers don't end
STOP_LEVELS = 3  # more signals than these are ignored
FIRST_PAUSE_S = 0.1
PAUSE_S_MAX = 30.0
STEADY_S = 10.0  # a process that lived this long started well: the next one is started at once
GIVE_UP_S = 5.0  # that processes get at the third signal, to return their jobs
KILL_AFTER_S = CANCEL_S + SETTLE_S + 5.0  # beyond the shutdown timeout: a process that still runs hangs


# In a child.


class ChildInfo(NamedTuple):
    """The number of a process among those of its supervisor, and the socket that they share."""

    number: int
    file: int


def child_info() -> ChildInfo | None:
    """Return the supervisor's instructions for this process; None without a supervisor. Child processes have none."""
    file, number = os.environ.pop(CHANNEL_VARIABLE, None), os.environ.pop(NUMBER_VARIABLE, None)
    return None if file is None or number is None else ChildInfo(int(number), int(file))


class SupervisorSocket:
    """The child's end of the socket."""

    def __init__(self, child: ChildInfo, summary: Callable[[], Summary], stop_at: Callable[[int], None]) -> None:
        self._summary = summary
        self._stop_at = stop_at
        self._socket = socket.socket(fileno=child.file)
        self._socket.set_inheritable(False)
        self._socket.setblocking(False)

    async def run(self) -> None:
        """Report that the worker has begun, and then its counts, until cancelled."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._on_readable)
        try:
            await self._send({"ready": True})
            while True:
                await asyncio.sleep(REPORT_S)
                await self.report()
        finally:
            loop.remove_reader(self._socket)

    async def report(self) -> None:
        """Report the counts."""
        await self._send({"counts": self._summary().counts()})

    async def _send(self, message: dict[str, object]) -> None:
        with suppress(OSError):  # a supervisor that is gone is noticed by the reader
            await asyncio.get_running_loop().sock_sendall(self._socket, json.dumps(message).encode() + b"\n")

    def _on_readable(self) -> None:
        try:
            received = self._socket.recv(64)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:  # the supervisor is gone
            asyncio.get_running_loop().remove_reader(self._socket)
        self._stop_at(max((int(digit) for digit in received.decode("ascii")), default=1))


# In the supervisor.


class Child:
    """A process, and those that replace it."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.is_ready = asyncio.Event()
        self.counts: dict[str, int] = {}  # of the present process
        self.command = list(command)
        self.is_retired = False  # it is to end, and not to be replaced
        self.heard_at = monotonic()  # when one of them last said something
        self._channel: socket.socket | None = None

    async def start(self) -> asyncio.Task[None]:
        """Start a process; returns the task that listens to it."""
        ours, theirs = socket.socketpair()
        variables = {**os.environ, CHANNEL_VARIABLE: str(theirs.fileno()), NUMBER_VARIABLE: str(self.number)}
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                env=variables,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        finally:
            theirs.close()
        self.counts = {}
        self._channel = ours
        return asyncio.get_running_loop().create_task(self._listen(ours))

    async def _listen(self, ours: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            # A process that is killed with something unread in its socket resets the connection.
            with suppress(ConnectionError):
                while (line := await reader.readline()).endswith(b"\n"):
                    message = json.loads(line)
                    self.heard_at = monotonic()
                    if message.get("ready"):
                        self.is_ready.set()
                    self.counts = message.get("counts", self.counts)
        finally:
            self._channel = None
            writer.close()

    @property
    def is_running(self) -> bool:
        """Whether it has a process."""
        return self.process is not None and self.process.returncode is None

    def stop_at(self, level: int) -> None:
        """Stop the process, as `Worker.stop_at` does it."""
        if level == 1:
            self.send_signal(signal.SIGTERM)  # also one that doesn't listen yet
        elif self._channel is not None:
            with suppress(OSError):
                self._channel.send(b"%d" % level)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """Keeps processes alive, one for each of its commands."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        shutdown_timeout: float,
        until_empty: bool,
        sources: WatchedFiles | None = None,
        health: tuple[str, int] | None = None,
    ) -> None:
        if not 1 <= len(commands) <= PROCESSES_MAX:
            raise CallerError(f"processes must be 1 to {PROCESSES_MAX}, got {len(commands)}")
        self._children = [Child(number, command) for number, command in enumerate(commands, 1)]
        self._last_number = len(commands)
        self._running: set[asyncio.Task[int]] = set()
        self._kill_after_s = shutdown_timeout + KILL_AFTER_S
        self._until_empty = until_empty
        self._sources = sources
        self._health = health
        self._past = Summary()  # of processes that have ended
        self._reporter = Reporter(None, None)
        self._stop_level = 0
        self._stopping = asyncio.Event()
        self._giving_up = asyncio.Event()

    async def run(self) -> int:
        """Run until stopped; returns the exit code."""
        async with reporting(self._health, self._report):
            return await self._run()

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        first, *others = self._children
        first_task = loop.create_task(self._keep_alive(first))
        self._running = {first_task}
        if self._sources is not None:
            self._running.add(loop.create_task(self._keep_current(self._sources)))
        begun = loop.create_task(first.is_ready.wait())
        try:
            await asyncio.wait({first_task, begun}, return_when=asyncio.FIRST_COMPLETED)
            if first.is_ready.is_set() and not self._stop_level:
                self._running |= {loop.create_task(self._keep_alive(child)) for child in others}
                count = len(self._children)
                log_event("start", f"Working with {count} process{'' if count == 1 else 'es'}.", processes=count)
            summing = loop.create_task(self._sum_up())
            while self._running:  # `change` adds to it
                ended, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                self._running -= ended
                for task in ended:
                    task.result()  # raises what ended it
            summing.cancel()
        finally:
            begun.cancel()
            for child in self._children:
                child.send_signal(signal.SIGKILL)
        code = first_task.result()
        if self._sources is None and not first.is_ready.is_set() and not (self._stop_level and code < 0):
            if code < 0:  # else it has said itself why it ends
                log_event("child", f"Process 1 was killed by signal {-code} before it began.", worker=1, code=code)
            return code if code >= 0 else SIGNAL_EXIT - code
        summary = self._summed()
        log_event("stop", f"All processes have stopped: {summary}.", **summary.counts())
        return 0

    def change(self, commands: Sequence[Sequence[str]]) -> None:
        """Have a process for each of these commands from now on: some are started, others stopped gracefully.

        Nothing changes before the first process has begun, nor once the supervisor stops.
        """
        if not 1 <= len(commands) <= PROCESSES_MAX:
            raise CallerError(f"processes must be 1 to {PROCESSES_MAX}, got {len(commands)}")
        if self._stop_level or not any(child.is_ready.is_set() for child in self._children):
            return
        missing = [list(command) for command in commands]
        for child in self._children:
            if child.is_retired:
                continue
            if child.command in missing:
                missing.remove(child.command)
            else:
                child.is_retired = True
                child.stop_at(1)
        for command in missing:
            self._add(command)

    async def _keep_current(self, sources: WatchedFiles) -> int:
        """Replace all processes whenever a source file changes, until stopped."""
        while not self._stop_level:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()
            changed = await asyncio.to_thread(sources.changed)
            if changed and not self._stop_level:
                log_event("reload", f"{changed[0].name} has changed: restarting.", file=str(changed[0]))
                self._replace_all()
        return 0

    def _replace_all(self) -> None:
        current = [child for child in self._children if not child.is_retired]
        for child in current:
            child.is_retired = True
            child.stop_at(1)
        # Those that have ended are forgotten, however often the files change.
        self._children = [child for child in self._children if child.is_running]
        for child in current:
            self._add(child.command)

    def _add(self, command: Sequence[str]) -> None:
        self._last_number += 1
        child = Child(self._last_number, command)
        self._children.append(child)
        self._running.add(asyncio.get_running_loop().create_task(self._keep_alive(child)))

    def _report(self) -> dict[str, Any]:
        """Return whether all processes live, for the health check."""
        now = monotonic()
        children = [child for child in self._children if not child.is_retired]
        silent = [child.number for child in children if now - child.heard_at > SILENT_S_MAX]
        has_begun = all(child.is_ready.is_set() for child in children)
        facts = {"processes": len(children), "stuck": silent, **self._summed().counts()}
        return {"healthy": has_begun and not silent, **facts}

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes."""
        for child in self._children:
            child.send_signal(number)

    async def _keep_alive(self, child: Child) -> int:
        """Keep one process alive; returns the exit code of the last one."""
        pause_s = 0.0
        while True:
            began = monotonic()
            code = await self._run_once(child)
            is_over = self._stop_level or child.is_retired or (code == 0 and self._until_empty)
            if is_over or not child.is_ready.is_set():
                if self._sources is not None and not is_over:
                    log_event("waiting", f"Process {child.number} did not begin; waiting for a change of the files.")
                return code
            if code == EXIT_REPLACE or monotonic() - began >= STEADY_S:
                pause_s = 0.0
            what = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
            again = f"starting another in {pause_s:g} s" if pause_s else "starting another"
            log_event(
                "child", f"Process {child.number} {what}; {again}.", worker=child.number, code=code, delay=pause_s
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
                    return code
            if child.is_retired:
                return code
            pause_s = min(PAUSE_S_MAX, 2 * pause_s or FIRST_PAUSE_S)

    async def _run_once(self, child: Child) -> int:
        """Run one process to its end; returns its exit code, below 0 for a signal."""
        listening = await child.start()
        if self._stop_level or child.is_retired:
            child.send_signal(signal.SIGTERM)  # asked to stop while it was being started
        process = child.process
        assert process is not None
        killing = asyncio.get_running_loop().create_task(self._kill_when_late(child))
        giving_up = asyncio.get_running_loop().create_task(self._kill_after_giving_up(child))
        try:
            code = await process.wait()
            await listening
        finally:
            killing.cancel()
            giving_up.cancel()
            listening.cancel()
        self._past.add(child.counts)
        child.counts = {}
        return code

    async def _kill_when_late(self, child: Child) -> None:
        await self._stopping.wait()
        await asyncio.sleep(self._kill_after_s)
        child.send_signal(signal.SIGKILL)

    async def _kill_after_giving_up(self, child: Child) -> None:
        await self._giving_up.wait()
        await asyncio.sleep(GIVE_UP_S)
        child.send_signal(signal.SIGKILL)

    def _signalled(self, number: signal.Signals) -> None:
        self._stop_level += 1
        self._stopping.set()
        if self._stop_level > STOP_LEVELS:
            return
        if self._stop_level == STOP_LEVELS:
            self._giving_up.set()
        kill = f"Killing all processes that have not returned their jobs within {GIVE_UP_S:g} s"
        what = {1: "Stopping", 2: "Stopping at once"}.get(self._stop_level, kill)
        log_event("stopping", f"{number.name}: {what}.", signal=number.name)
        for child in self._children:
            child.stop_at(self._stop_level)

    async def _sum_up(self) -> None:
        while True:
            await asyncio.sleep(SUMMARY_S)
            self._reporter.summary = self._summed()
            self._reporter.log_summary()

    def _summed(self) -> Summary:
        summary = Summary()
        for counts in (self._past.counts(), *(child.counts for child in self._children)):
            summary.add(counts)
        return summary
