"""The named stores in this process's memory, shared by both forms of the library."""

from penstock.queues.stores.memory.engine import MemoryEngine

_rooms: dict[str, MemoryEngine] = {}


def room(name: str) -> MemoryEngine:
    """The store of a name, made when it is first asked for."""
    return _rooms.setdefault(name, MemoryEngine())
