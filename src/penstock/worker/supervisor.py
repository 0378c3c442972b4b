"""Several processes of a worker, and somebody who sees to them.

Each is the same command, started anew: no memory, connection or lock is shared, so nothing can go wrong with those. A
process that dies is replaced after a pause that grows while it keeps dying; its jobs come back when their leases end.
The first process must begin well before others are started, so that a mistake in the command is told once.

SIGTERM and SIGINT are passed on: the first stops gracefully, the second at once, the third lets them give back what
they have without waiting for handlers, and kills what is still there after GIVE_UP_S. Processes are out of the
terminal's foreground group, so that Ctrl-C reaches only the supervisor, which passes it on once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from penstock.errors import CallerError
from penstock.worker.channel import CHANNEL_VARIABLE, NUMBER_VARIABLE
from penstock.worker.events import say
from penstock.worker.reporting import Reporter, Summary
from penstock.worker.running import CANCEL_S
from penstock.worker.shift import GIVE_BACK_S, SUMMARY_S

PROCESSES_MAX = 512  # far more than cores: a number beyond is a slip
EXIT_REPLACE = 75  # of a process that must be replaced, since functions in it can't be ended
LEVELS = 3  # of stopping: as many signals mean something
FIRST_PAUSE_S = 0.1
PAUSE_S_MAX = 30.0
STEADY_S = 10.0  # a process that lived so long had a good start: the next one is started at once
GIVE_UP_S = 5.0  # what processes get at the third signal, to give their jobs back
KILL_AFTER_S = CANCEL_S + GIVE_BACK_S + 5.0  # beyond what running jobs get: a process that is still there hangs


class Child:
    """A process, and those that take its place."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.is_ready = asyncio.Event()
        self.counts: dict[str, int] = {}  # of the present process
        self._command = command
        self._channel: socket.socket | None = None

    async def start(self) -> asyncio.Task[None]:
        """Start a process; gives the task that listens to it."""
        ours, theirs = socket.socketpair()
        variables = {**os.environ, CHANNEL_VARIABLE: str(theirs.fileno()), NUMBER_VARIABLE: str(self.number)}
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self._command,
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
            while line := await reader.readline():
                message = json.loads(line)
                if message.get("ready"):
                    self.is_ready.set()
                self.counts = message.get("counts", self.counts)
        finally:
            self._channel = None
            writer.close()

    def stop_at(self, level: int) -> None:
        """Stop the process, as `Worker.stop_at` does it."""
        if level == 1:
            self.send_signal(signal.SIGTERM)  # also one that doesn't listen yet
        elif self._channel is not None:
            with suppress(OSError):
                self._channel.send(b"%d" % level)

    def send_signal(self, number: signal.Signals) -> None:
        """Pass a signal on, if the process is there."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """Keeps so many processes of a command alive."""

    def __init__(self, command: Sequence[str], processes: int, *, stop_within: float, until_empty: bool) -> None:
        if not 1 <= processes <= PROCESSES_MAX:
            raise CallerError(f"{processes} processes: give 1 to {PROCESSES_MAX}")
        self._children = [Child(number, command) for number in range(1, processes + 1)]
        self._kill_after_s = stop_within + KILL_AFTER_S
        self._until_empty = until_empty
        self._past = Summary()  # what processes had done that are gone
        self._reporter = Reporter(None, None)
        self._stops = 0
        self._stopping = asyncio.Event()
        self._giving_up = asyncio.Event()

    async def run(self) -> int:
        """Run until stopped; gives the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        first, *others = self._children
        tending = {loop.create_task(self._tend(first))}
        begun = loop.create_task(first.is_ready.wait())
        try:
            await asyncio.wait({*tending, begun}, return_when=asyncio.FIRST_COMPLETED)
            if first.is_ready.is_set() and not self._stops:
                tending |= {loop.create_task(self._tend(child)) for child in others}
                say("start", f"Working with {len(self._children)} processes.", processes=len(self._children))
            summing = loop.create_task(self._sum_up())
            codes = await asyncio.gather(*tending)
            summing.cancel()
        finally:
            begun.cancel()
            for child in self._children:
                child.send_signal(signal.SIGKILL)
        if not first.is_ready.is_set():
            return codes[0]
        summary = self._summed()
        say("stop", f"All processes have stopped: {summary}.", **summary.counts())
        return 0

    async def _tend(self, child: Child) -> int:
        """Keep one process alive; gives the exit code of the last."""
        pause_s = 0.0
        while True:
            began = monotonic()
            code = await self._live(child)
            if self._stops or (code == 0 and self._until_empty) or not child.is_ready.is_set():
                return code
            if code == EXIT_REPLACE or monotonic() - began >= STEADY_S:
                pause_s = 0.0
            what = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
            again = f"starting another in {pause_s:g} s" if pause_s else "starting another"
            say("child", f"Process {child.number} {what}; {again}.", worker=child.number, code=code, delay=pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
                    return code
            pause_s = min(PAUSE_S_MAX, 2 * pause_s or FIRST_PAUSE_S)

    async def _live(self, child: Child) -> int:
        """One process, from start to end; gives its exit code, below 0 for a signal."""
        listening = await child.start()
        if self._stops:
            child.send_signal(signal.SIGTERM)  # told to stop while it was being started
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
        self._stops += 1
        self._stopping.set()
        if self._stops > LEVELS:
            return
        if self._stops == LEVELS:
            self._giving_up.set()
        kill = f"Killing all processes that have not given back their jobs within {GIVE_UP_S:g} s"
        what = {1: "Stopping", 2: "Stopping at once"}.get(self._stops, kill)
        say("stopping", f"{number.name}: {what}.", signal=number.name)
        for child in self._children:
            child.stop_at(self._stops)

    async def _sum_up(self) -> None:
        while True:
            await asyncio.sleep(SUMMARY_S)
            self._reporter.summary = self._summed()
            self._reporter.say_summary()

    def _summed(self) -> Summary:
        summary = Summary()
        for counts in (self._past.counts(), *(child.counts for child in self._children)):
            summary.add(counts)
        return summary
