"""`memory:` is a store of its own; `memory:NAME` is shared by all of this process that name it."""

from typing import Any, ClassVar

from penstock.queues.aio.threaded import EngineDriver
from penstock.queues.capabilities import Capability
from penstock.queues.options import Address, Options
from penstock.queues.rooms import room
from penstock.queues.stores.memory.engine import MemoryEngine


class MemoryDriver(EngineDriver):
    """Jobs in this process."""

    type: ClassVar[str] = "memory"
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
        }
    )

    own_options: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(self, address: Address, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        name = address.netloc or address.path
        self.engine = room(name) if name else MemoryEngine()
        self._place = address.url if name else f"memory:{id(self)}"

    @property
    def place(self) -> str:
        return self._place
