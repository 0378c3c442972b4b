"""Messages in words, for the trace of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire import bus

if TYPE_CHECKING:
    from penstock.sim.world import World

FLAGS = ((bus.NOREPLY, "noreply"), (bus.INCR_NACKS, "+nack"), (bus.INCR_DELIVERIES, "+delivery"), (256, "queue-it"))


def describe(world: World, data: bytes) -> str:
    """Tell what a message says."""
    message = bus.decode(data)
    if message is None:
        return f"unreadable {data[:40]!r}"
    names = {machine.node_id: f"n{machine.index}" for machine in world.machines}
    history = world.promises.history

    def job(job_id: bytes) -> str:
        known = history.by_id.get(job_id)
        return f"job{known.number}" if known is not None else job_id.decode("latin-1")

    def node(node_id: bytes) -> str:
        return names.get(node_id, node_id[:8].decode("latin-1"))

    words = [bus.TYPE_NAMES[message.type]]
    if message.type in bus.GOSSIP_TYPES:
        words += [f"{node(entry.id)}/{entry.flags}" for entry in bus.decode_gossip(message)]
    elif message.type == bus.FAIL:
        words.append(node(message.payload))
    elif message.type in bus.RECORD_TYPES:
        for record in bus.records(message):
            known = history.by_body.get(record.body)
            name = f"job{known.number}" if known is not None else record.id.decode("latin-1")
            words.append(f"{name}({'+'.join(map(node, record.nodes))})")
    elif message.type in bus.NAME_TYPES:
        value, name_bytes = bus.name_of(message)
        words.append(f"{name_bytes!r} {value} waiters={message.flags >> bus.WAITERS_SHIFT}")
    else:
        kind, nodes, references = bus.references(message)
        if message.type == bus.MANY:
            words.append(bus.TYPE_NAMES[kind])
        words += [f"{job(job_id)}={value}" for job_id, value in references]
        if nodes:
            words.append("held by " + "+".join(map(node, nodes)))
    words += [name for flag, name in FLAGS if message.flags & flag]
    return " ".join(words)
