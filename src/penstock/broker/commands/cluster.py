"""CLUSTER: join, inspect and leave a cluster.

Every change of the members or of this node's id is written to nodes.conf at once. If that fails, the change still
holds, and the log says so; only SAVECONFIG, which does nothing else, fails.
"""

from __future__ import annotations

import logging
from ipaddress import ip_address
from typing import TYPE_CHECKING

from penstock.broker.clients import Client
from penstock.broker.commands.arguments import SYNTAX_ERROR, to_integer
from penstock.broker.commands.subcommands import Subcommand, find
from penstock.broker.core import inputs
from penstock.broker.core.membership import NODE_ID_BYTES, PORT_MAX
from penstock.broker.core.refusals import Refused
from penstock.wire.replies import OK, bulk, error, simple

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock")

BAD_CLUSTER = ("ERR", "Wrong CLUSTER subcommand or number of arguments")
BAD_NODE_ID = ("ERR", "Invalid node identifier")
FORGET_MYSELF = ("ERR", "I tried hard but I can't forget myself...")
BAD_LEAVING = ("ERR", "Wrong argument for CLUSTER LEAVING. Use 'yes' or 'no'")
LEAVING_WORDS = {b"YES": True, b"NO": False}
# What RESET may be told, and whether the node then takes a new id.
RESET_WORDS = {b"SOFT": False, b"HARD": True}


def cluster(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """CLUSTER subcommand ..."""
    run = find(CLUSTER_SUBCOMMANDS, args)
    if run is None:
        raise Refused(*BAD_CLUSTER)
    return run(broker, client, args)


def _save(broker: Broker) -> None:
    try:
        broker.shell.save_cluster()
        broker.node.cluster.unsaved = False
    except OSError as problem:
        log.error("can't write nodes.conf: %s", problem)


def _new_id(broker: Broker) -> bytes:
    return broker.node.entropy(NODE_ID_BYTES // 2).hex().encode()


def _meet(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """MEET ip port: begin a handshake; names are not looked up."""
    port = to_integer(args[3])
    if port is None:
        return error(b"ERR Invalid TCP port specified: %b" % args[3])
    ip = _literal_ip(args[2])
    if ip is None or not 1 <= port <= PORT_MAX:
        return error(b"ERR Invalid node address specified: %b:%b" % (args[2], args[3]))
    broker.node.cluster.meet(ip, port, _new_id(broker), broker.node.now_ms)
    return OK


def _literal_ip(word: bytes) -> str | None:
    """Read an IP address; one with a zone is refused, since it is valid on this machine only."""
    try:
        return str(ip_address(word.decode("ascii"))) if b"%" not in word else None
    except ValueError:
        return None


def _nodes(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    return bulk(broker.node.cluster.text(True, broker.node.wall_offset_ms).encode("latin-1"))


def _info(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    known = broker.node.cluster
    facts = {
        "state": "ok",
        "known_nodes": len(known.peers),
        "reachable_nodes": len(known.reachable),
        "size": known.size,
        "stats_messages_sent": known.messages_sent,
        "stats_messages_received": known.messages_received,
        "acked_jobs": len(broker.node.acked),
        "draining": "yes" if known.draining else "no",
        "drain_left": broker.node.jobs.count if known.draining else 0,
    }
    return bulk("".join(f"cluster_{key}:{value}\r\n" for key, value in facts.items()).encode())


def _my_id(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    return bulk(broker.node.cluster.my_id)


def _save_config(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    try:
        broker.shell.save_cluster()
    except OSError as problem:
        raise Refused("ERR", f"error saving the cluster node config: {problem.strerror}") from None
    return OK


def _forget(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    known, node_id = broker.node.cluster, args[2]
    if len(node_id) != NODE_ID_BYTES:
        raise Refused(*BAD_NODE_ID)
    if node_id not in known.peers:
        return error(b"ERR Unknown node %b" % node_id)
    if node_id == known.my_id:
        raise Refused(*FORGET_MYSELF)
    inputs.forget_node(broker.node, node_id)
    _save(broker)
    return OK


def _reset(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """RESET [SOFT|HARD]: remove all jobs and other nodes; HARD also takes a new id. LEAVING stays as it is."""
    word = args[2].upper() if len(args) == 3 else b"SOFT"
    if word not in RESET_WORDS:
        raise Refused(*SYNTAX_ERROR)
    inputs.remove_all(broker.node)
    inputs.forget_all_nodes(broker.node)
    if RESET_WORDS[word]:
        broker.node.adopt_id(_new_id(broker))
    _save(broker)
    return OK


def _leaving(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """LEAVING [yes|no]: set or show whether this node is leaving."""
    known = broker.node.cluster
    if len(args) == 2:
        return simple("yes" if known.leaving else "no")
    leaving = LEAVING_WORDS.get(args[2].upper())
    if leaving is None:
        raise Refused(*BAD_LEAVING)
    if not leaving:
        inputs.stop_draining(broker.node)
    known.leaving = leaving
    _save(broker)
    return OK


def _drain(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """DRAIN: leave, and hand over every job to other nodes; LEAVING no ends it."""
    if len(broker.node.cluster.others) == 0:
        raise Refused("ERR", "there is no other node to hand jobs over to")
    inputs.start_draining(broker.node)
    _save(broker)
    return OK


CLUSTER_SUBCOMMANDS = {
    b"MEET": Subcommand(4, 4, _meet),
    b"NODES": Subcommand(2, 2, _nodes),
    b"INFO": Subcommand(2, 2, _info),
    b"MYID": Subcommand(2, 2, _my_id),
    b"SAVECONFIG": Subcommand(2, 2, _save_config),
    b"FORGET": Subcommand(3, 3, _forget),
    b"RESET": Subcommand(2, 3, _reset),
    b"LEAVING": Subcommand(2, 3, _leaving),
    b"DRAIN": Subcommand(2, 2, _drain),
}
