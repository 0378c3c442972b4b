"""The processes of the demo: started as one would type it, ended without a trace.

Each command runs in a session of its own, so that Ctrl-C reaches only the demo, which decides how the others end. What
a command starts (the processes of a worker, Spark's Java and Python) is in its session, and ends with it. The nodes go
to the background, out of any session; `penstock cluster stop` ends those.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_S = 0.1
CALL_S_MAX = 120.0  # for a command that ends by itself, on a machine that is busy with other things
STOP_S_MAX = 30.0
PENSTOCK = (sys.executable, "-m", "penstock")


class DemoFailed(Exception):
    """Something was not as it should be; the text says what."""


def heed_interruptions() -> None:
    """Let Ctrl-C and the like raise once; what comes later must not disturb the tidying up."""

    def interrupted(_number: int, _frame: object) -> NoReturn:
        for number in INTERRUPTIONS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in INTERRUPTIONS:
        signal.signal(number, interrupted)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold interruptions back for a moment: a process that was started and not yet noted could not be ended."""
    held: list[int] = []
    before = {number: signal.signal(number, lambda number, _: held.append(number)) for number in INTERRUPTIONS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            os.kill(os.getpid(), held[0])


class Part:
    """A command in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, log: Path, *, ends_itself: bool) -> None:
        self.process, self.name, self.log = process, name, log
        self._ends_itself = ends_itself
        self._is_over = False

    @property
    def said(self) -> str:
        """What it has printed."""
        return self.log.read_text("utf-8", "replace")

    def failure(self) -> DemoFailed:
        """That it has ended, and its last words."""
        last = "\n".join(self.said.splitlines()[-5:])
        return DemoFailed(f"`{self.name}` ended with code {self.process.returncode}:\n{last}")

    def check(self) -> None:
        """Raise if it has ended."""
        if self.process.poll() is not None:
            raise self.failure()

    def stop(self) -> None:
        """End it in order, and its session by force."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S_MAX)
        self.end()

    def end(self) -> None:
        """End it and all that it has started; a command that ends by itself is let."""
        if self._is_over:
            return  # its number may be another's by now
        if self._ends_itself:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(CALL_S_MAX)
        self.process.kill()
        kill_all(lambda: session(self.process.pid))
        self.process.wait()
        self._is_over = True


class Parts:
    """All of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts: list[Part] = []

    def start(
        self,
        *words: str,
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
        ends_itself: bool = False,
    ) -> Part:
        """Start `penstock WORDS`."""
        log = self.folder / f"log-{len(self._parts)}"
        with log.open("wb") as out, held_back():
            process = subprocess.Popen(
                [*PENSTOCK, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=cwd or self.folder,
                env={**os.environ, **(variables or {})},
                start_new_session=True,
            )
            name = " ".join(["penstock", *takewhile(str.isalpha, words)])
            part = Part(process, name, log, ends_itself=ends_itself)
            self._parts.append(part)
        return part

    def call(
        self,
        *words: str,
        meanwhile: Callable[[], object] = lambda: None,
        codes: Collection[int] = (0,),
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run `penstock WORDS` to its end, and return what it printed."""
        part = self.start(*words, ends_itself=True, variables=variables)
        until = time.monotonic() + CALL_S_MAX
        while part.process.poll() is None:
            if time.monotonic() > until:
                raise DemoFailed(f"`{part.name}` takes longer than {CALL_S_MAX:.0f} s:\n{part.said}")
            meanwhile()
            time.sleep(POLL_S)
        if part.process.returncode not in codes:
            raise part.failure()
        return part.said

    def end(self) -> None:
        """End everything that was started."""
        for part in reversed(self._parts):
            part.end()
        cluster = self.folder / "cluster"
        if cluster.exists():
            words = [*PENSTOCK, "cluster", "stop", "--dir", str(cluster)]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(words, capture_output=True, cwd=self.folder, timeout=STOP_S_MAX, check=False)
        kill_all(lambda: mentioning(str(self.folder)))


def kill_all(find: Callable[[], list[int]]) -> None:
    """Kill processes until none is left to be found."""
    until = time.monotonic() + STOP_S_MAX
    while (found := find()) and time.monotonic() < until:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def session(leader: int) -> list[int]:
    """The processes of a session that still live."""
    return [pid for pid, stat in _processes("stat") if _state_and_session(stat) == (True, leader)]


def _state_and_session(stat: bytes) -> tuple[bool, int]:
    """Whether a process lives, and its session: the first and the fourth field behind its name."""
    state, _, _, number, *_ = stat.rpartition(b")")[2].split()
    return state not in (b"Z", b"X"), int(number)


def mentioning(text: str) -> list[int]:
    """The processes whose command lines mention a text."""
    return [pid for pid, line in _processes("cmdline") if os.fsencode(text) in line and pid != os.getpid()]


def _processes(what: str) -> Iterator[tuple[int, bytes]]:
    """All processes, as far as the system shows them."""
    for path in Path("/proc").glob(f"[0-9]*/{what}"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            yield int(path.parent.name), path.read_bytes()
