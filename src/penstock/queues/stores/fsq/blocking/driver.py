# Written by scripts/blocking from ../aio/driver.py: change that, then run `make blocking`.
"""`fsq:///absolute/root`, `fsq:relative/root`, and `fsq:` for FSQ_ROOT: queues in directories, shared with FSQ.

Options of its own: `keep=1` moves ended jobs to `done`, as FSQ does; without it they are removed, as in every other
store: nobody empties `done`. `sync=0` leaves out all syncs: what was said to be done may then be undone by a power
failure.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar
from urllib.parse import unquote

from penstock.errors import BadUrl, CallerError
from penstock.fsq.constants import text_of
from penstock.job import Lease, Move, NewJob
from penstock.queues import hub
from penstock.queues.blocking.engine_stats import EngineStats
from penstock.queues.blocking.signals.base import Signal
from penstock.queues.blocking.stats.base import Stats
from penstock.queues.blocking.threaded import EngineDriver
from penstock.queues.blocking.threads import OneThread
from penstock.queues.capabilities import Capability
from penstock.queues.options import Address, Options
from penstock.queues.stores.fsq.blocking.watch import DirectorySignal
from penstock.queues.stores.fsq.engine import FsqEngine
from penstock.queues.stores.fsq.names import directory_of
from penstock.queues.stores.fsq.stats import Ledger

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_SWITCH = {"0": False, "1": True}


class FsqDriver(EngineDriver):
    """Jobs in directories that scanners may share."""

    type: ClassVar[str] = "fsq"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.DELAY,
            Capability.RESERVE,
            Capability.EXTEND,
            Capability.TOKEN,
            Capability.CLAIM,
            Capability.PEEK,
            Capability.REMOVE,
            Capability.HEADERS,
            Capability.UNIQUE,
            Capability.ATOMIC_MOVE,
            Capability.SHARED_PAUSE,
        }
    )
    own_options: ClassVar[frozenset[str] | None] = frozenset({"keep", "sync"})
    pauses_itself: ClassVar[bool] = True

    engine: FsqEngine

    def __init__(self, address: Address, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        self.engine = FsqEngine(_root(address), keep=self._switch("keep", "0"), sync=self._switch("sync", "1"))
        self.thread = OneThread("penstock-fsq")
        self._ledger = Ledger(self.engine.place, options.name)

    def _switch(self, option: str, default: str) -> bool:
        value = {**self.address.rest, **self.extra}.get(option, default)
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if text not in _SWITCH:
            raise CallerError(f"{option}={value!r}: it is 0 or 1")
        return _SWITCH[text]

    @property
    def place(self) -> str:
        return f"fsq:{Path(self.engine.root).resolve()}"

    def exists(self) -> bool:
        return self.run(Path(self.engine.root).is_dir)

    def check_queue(self, queue: str) -> None:
        directory_of(queue)

    def own_signal(self) -> Signal | None:
        return DirectorySignal(self.engine, self.place)

    def own_stats(self) -> Stats | None:
        return EngineStats(self, self._ledger)

    def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        return super().run(lambda: self.engine.guarded(call, *args, **named))

    def _tell(self, channel: str | None, time_ms: int) -> None:
        """Other processes hear of it by watching the directory; this one at once."""
        if channel is not None:
            hub.tell(self.place, channel, str(time_ms))

    def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        ids = super().push(queue, jobs, channel)
        if self._ledger.is_waiting_for(queue):
            self.run(self._ledger.settle, queue)
        self._tell(channel, self._now())
        return ids

    def nack(self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None) -> list[bool]:
        done = super().nack(queue, leases, delays_ms, channel)
        self._tell(channel, self._now())
        return done

    def move(
        self, queue: str, to: str, moves: Sequence[Move], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        moved = super().move(queue, to, moves, channel, counter)
        self._tell(channel, self._now())
        return moved

    def next_mature_ms(self, queue: str) -> int | None:
        return self.run(self.engine.next_mature_at_ms, queue, self._now())

    def set_paused(self, queue: str, paused: bool) -> None:
        self.run(self.engine.set_paused, queue, paused)

    def paused(self, queue: str) -> bool:
        return self.run(self.engine.paused, queue)


def _root(address: Address) -> str:
    """The directory of all queues."""
    path = unquote(address.path)
    if address.netloc or "#" in address.full or "\0" in path:
        raise BadUrl(
            f"{address.url} names no directory: write fsq:///var/fsq, fsq:relative/path, or fsq: for FSQ_ROOT "
            "(and %23 for a # in it)"
        )
    # A process may go elsewhere later on; its queues stay where they are.
    return str(Path(path or text_of("FSQ_ROOT")).absolute())
