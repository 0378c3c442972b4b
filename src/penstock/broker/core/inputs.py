"""Everything that can happen to a node, by where it comes from.

A shell (the server, the simulator, a test) sets `node.now_ms` and `node.wall_offset_ms`, then calls one of the
functions listed here. The input changes the node's state at once. What it causes outside the node collects until the
turn ends (`Broker.flush`), and then leaves in this order:

1. journal   what must survive a crash is written, and synced as `appendfsync` says
2. bus       messages to other nodes: a copy is confirmed only after the journal has it
3. replies   clients come last: a reply promises what steps 1 and 2 have made true

If the journal can't be written, the messages about jobs and the replies of that turn are dropped: other nodes and
clients then know as much as after a lost connection.

Callers import these functions from here, so that this file is the whole list; `tests/unit/test_tidy.py` checks it.
Three inputs have other forms: `Node.take_cluster` and `Node.adopt_id` give the node its identity, `Cluster.meet` and
`Cluster.leaving` are CLUSTER MEET and LEAVING, and `restoring.Restorer` brings the jobs of a journal back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.core import acks, federation, gossip, places, replication, requeueing, waiters
from penstock.broker.core.acks import ack, ack_unknown, delete, delete_elsewhere, drop_all, remove_all
from penstock.broker.core.adding import add
from penstock.broker.core.delivery import dequeue, enqueue_now, fetch, nack_after, wake, working
from penstock.broker.core.draining import drain, start_draining, stop_draining
from penstock.broker.core.eviction import drop_idle_queues, make_room, need_queues
from penstock.broker.core.federation import SLICE_MS, Exchange, tell_waits, wake_exchange
from penstock.broker.core.gossip import LinkInfo, cron, forget_all_nodes, forget_node, link_lost, link_opened
from penstock.broker.core.jobs import Job
from penstock.broker.core.leases import (
    ack_claim,
    ack_lease,
    begin_lease,
    claim,
    extend_claim,
    extend_lease,
    is_waiting,
    lease_one,
    nack_claim,
    nack_lease,
    release_lease,
)
from penstock.broker.core.membership import HANDSHAKE, MYSELF, Peer
from penstock.broker.core.moving import move
from penstock.broker.core.node import Node
from penstock.broker.core.owners import away, is_away, is_scheduled
from penstock.broker.core.replication import Addition, wake_addition
from penstock.broker.core.takeover import hold
from penstock.broker.core.telling import Telling
from penstock.broker.core.waiters import (
    Waiter,
    ask_others,
    fetch_many,
    give_up_waiting,
    leave,
    refuse_waiters,
    send_pause,
    serve_ready,
    set_pause,
    take_back,
    wait,
)
from penstock.wire import bus
from penstock.wire.bus import BusMessage

__all__ = [  # noqa: RUF022 - in the order of the comments
    # Client commands (broker.commands): jobs,
    "add",  # ADDJOB, ADDJOBS
    "fetch",  # GETJOB of one queue that has jobs
    "fetch_many",  # GETJOB
    "ask_others",  # GETJOB NOHANG and CLAIM, if this node has no job
    "wait",  # GETJOB, if it has none
    "ack",  # ACKJOB
    "ack_unknown",  # ACKJOB of a job that this node doesn't know
    "delete_elsewhere",  # FASTACK
    "delete",  # DELJOB, FASTACK
    "enqueue_now",  # ENQUEUE
    "dequeue",  # DEQUEUE
    "nack_after",  # NACK
    "working",  # WORKING
    # leases and claims,
    "ack_lease",  # ACKLEASE
    "begin_lease",  # BEGIN, ACKLEASE ... BEGIN
    "nack_lease",  # NACKLEASE
    "release_lease",  # RELEASE
    "is_waiting",  # LEASE: was the job in its queue?
    "lease_one",  # LEASE
    "extend_lease",  # EXTEND
    "claim",  # CLAIM
    "ack_claim",  # ACKCLAIM
    "nack_claim",  # NACKCLAIM
    "extend_claim",  # EXTENDCLAIM
    "move",  # MOVEJOBS
    # queues, the cluster, the node.
    "is_scheduled",  # JSCAN
    "is_away",  # JSCAN ... AWAY
    "away",  # QSIZE
    "need_queues",  # PAUSE of a queue that doesn't exist yet
    "set_pause",  # PAUSE
    "send_pause",  # PAUSE ... BCAST
    "forget_node",  # CLUSTER FORGET
    "forget_all_nodes",  # CLUSTER RESET
    "start_draining",  # CLUSTER DRAIN
    "stop_draining",  # CLUSTER LEAVING no
    "remove_all",  # DEBUG FLUSHALL, CLUSTER RESET
    "drop_all",  # DEBUG LOADAOF, before the journal is loaded
    "make_room",  # before any command, above 95 % of maxmemory
    # A client's connection is gone: it waited, or its reply could not be sent.
    "give_up_waiting",
    "take_back",
    # Other nodes: our link to one, and messages on any link.
    "link_opened",
    "link_lost",
    "receive",
    # Time: the process stood still; timers that are due, and the cron, ten times a second.
    "hold",
    "tick",
    "cron",
    "drop_idle_queues",
    "refuse_waiters",
    "drain",
    # After each input: jobs go to clients that wait. At the end of the turn: other nodes are told who waits here.
    "serve_ready",
    "tell_waits",
]

TIMERS_A_TICK_MAX: Final = 1000  # a few milliseconds of work, then clients are served again

References = list[tuple[bytes, int]]

# Messages about jobs. A handler gets the flags, the holders if the message names them, and pairs of job id and value.
ABOUT_JOBS: Final[dict[int, Callable[[Node, Peer, int, list[bytes] | None, References], None]]] = {
    bus.GOTJOB: replication.on_gotjob,
    bus.ENQUEUE: replication.on_enqueue,
    bus.DELJOB: replication.on_deljob,
    bus.SETACK: acks.on_setack,
    bus.GOTACK: acks.on_gotack,
    bus.WILLQUEUE: requeueing.on_willqueue,
    bus.QUEUED: requeueing.on_queued,
    bus.WORKING: requeueing.on_working,
    bus.HAVEJOB: places.on_havejob,
}
OTHERS: Final[dict[int, Callable[[Node, Peer, BusMessage], None]]] = {
    bus.FAIL: gossip.on_fail,
    bus.REPLJOB: replication.on_repljob,
    bus.NEEDJOBS: federation.on_needjobs,
    bus.YOURJOBS: federation.on_yourjobs,
    bus.PAUSE: waiters.on_pause,
}


def receive(node: Node, link: LinkInfo, data: bytes) -> None:
    """Handle one whole message. Except for gossip, messages from nodes outside the cluster are ignored."""
    message = bus.decode(data)
    if message is None:
        return
    node.cluster.messages_received += 1
    if message.type in bus.GOSSIP_TYPES:
        gossip.on_gossip(node, link, message)
        return
    peer = node.cluster.peers.get(message.sender)
    if peer is None or peer.flags & (HANDSHAKE | MYSELF):
        return
    if message.type in OTHERS:
        OTHERS[message.type](node, peer, message)
        return
    message_type, nodes, refs = bus.references(message)
    ABOUT_JOBS[message_type](node, peer, message.flags, nodes, refs)


def tick(node: Node) -> bool:
    """Handle the timers that are due. True if more are due, so that the shell calls again soon."""
    handled = 0
    for item in node.timers.pop_due(node.now_ms, TIMERS_A_TICK_MAX):
        handled += 1
        if isinstance(item, Job):
            wake(node, item)
        elif isinstance(item, Waiter):
            leave(node, item, SLICE_MS)
            node.port.answer(item, None)
        elif isinstance(item, Addition):
            wake_addition(node, item)
        elif isinstance(item, Telling):
            places.tell_changes(node)
        else:
            assert isinstance(item, Exchange)
            wake_exchange(node, item)
    serve_ready(node)
    return handled == TIMERS_A_TICK_MAX
