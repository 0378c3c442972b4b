"""Commands for whoever runs a node: CONFIG, DEBUG, SHUTDOWN, BGREWRITEAOF, COMMAND and TIME.

INFO is in `information`, MONITOR, SLOWLOG and LATENCY in `observing`; they are named here too, so that the
table of handlers finds all commands of the group `server` in one place.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from penstock.broker.clients import Client
from penstock.broker.commands.arguments import SYNTAX_ERROR, integer_argument
from penstock.broker.commands.information import info
from penstock.broker.commands.observing import latency, monitor, slowlog
from penstock.broker.commands.subcommands import ANY, Subcommand, find
from penstock.broker.config import ConfigSetError, config_get, config_set, rewrite
from penstock.broker.core import inputs
from penstock.broker.core.jobs import JOB_BYTES
from penstock.broker.core.queues import QUEUE_BYTES
from penstock.broker.core.refusals import Refused
from penstock.errors import ConfigError, PenstockError
from penstock.wire.replies import OK, Value, array, bulk, encode_value, error, integer, simple

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Command

__all__ = [
    "bgrewriteaof",
    "command",
    "config",
    "debug",
    "info",
    "latency",
    "monitor",
    "shutdown",
    "slowlog",
    "time",
]

log = logging.getLogger("penstock")

SLEEP_S_MAX = 3600.0  # nobody tests a node that stands still for longer
RESTART_MS_MAX = 3_600_000  # the same of one that is away

BAD_COMMAND = ("ERR", "Unknown subcommand or wrong number of arguments.")
SHUTDOWN_FAILED = ("ERR", "Errors trying to SHUTDOWN. Check logs.")
BAD_CONFIG = ("ERR", "CONFIG subcommand must be one of GET, SET, RESETSTAT, REWRITE")
RESTART_FAILED = ("ERR", "failed to restart the server. Check server logs.")
BAD_FLOAT = ("ERR", f"SLEEP takes a number of seconds between 0 and {SLEEP_S_MAX:.0f}")
NO_CRASH = (
    "ERR",
    "this node does not crash on purpose; to see how it comes back from a crash, use DEBUG CRASH-AND-RECOVER",
)


def time(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """TIME: seconds and microseconds of the wall clock."""
    seconds, microseconds = divmod(int(broker.wall() * 1e6), 1_000_000)
    return array([bulk(b"%d" % seconds), bulk(b"%d" % microseconds)])


# COMMAND


def command(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """COMMAND [COUNT | INFO name ... | DOCS ...]: the commands that can be called here, our own included."""
    if len(args) == 1:
        return _rows(_callable(broker), client)
    run = find(COMMAND_SUBCOMMANDS, args)
    if run is None:
        raise Refused(*BAD_COMMAND)
    return run(broker, client, args)


def _callable(broker: Broker) -> list[Command]:
    """Leave out what rename-command took away."""
    return list(dict.fromkeys(broker.commands.values()))


def _rows(commands: Iterable[Command | None], client: Client) -> bytes:
    return array(client.null if row is None else _row(row, client.protocol) for row in commands)


def _row(row: Command, protocol: int) -> bytes:
    facts: list[Value] = [row.name.encode(), row.info.arity, list(row.info.flags), 0, 0, 0]
    if protocol == 3:
        facts.append([])  # the seventh field, categories of users' rights: clients of RESP3 count on it
    return encode_value(facts, protocol)


def _command_count(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    return integer(len(_callable(broker)))


def _command_info(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    return _rows([broker.commands.get(name.lower()) for name in args[2:]], client)


def _command_docs(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """COMMAND: an empty map, which is enough for redis-cli at its start."""
    return encode_value({}, client.protocol)


COMMAND_SUBCOMMANDS = {
    b"COUNT": Subcommand(2, 2, _command_count),
    b"INFO": Subcommand(2, ANY, _command_info),
    b"DOCS": Subcommand(2, ANY, _command_docs),
}


# The journal, and the end


def bgrewriteaof(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """BGREWRITEAOF: begin a rewrite of the journal."""
    broker.persistence.begin_rewrite()
    return simple("Background append only file rewriting started")


def shutdown(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """SHUTDOWN [REWRITE-AOF]: no reply, the connection closes."""
    wants_rewrite = len(args) == 2 and args[1].upper() == b"REWRITE-AOF"
    if len(args) > 1 and not wants_rewrite:
        raise Refused(*SYNTAX_ERROR)
    if not broker.persistence.close(wants_rewrite):
        raise Refused(*SHUTDOWN_FAILED)
    log.info("client %s asked to shut down", client.address)
    client.closing = True
    broker.touch(client)
    broker.shell.stop()
    return None


# CONFIG


def config(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """CONFIG GET pattern | SET directive value | RESETSTAT | REWRITE."""
    if args[1].upper() not in CONFIG_SUBCOMMANDS:
        raise Refused(*BAD_CONFIG)
    run = find(CONFIG_SUBCOMMANDS, args)
    if run is None:
        return error(b"ERR Wrong number of arguments for CONFIG %b" % args[1])
    return run(broker, client, args)


def _config_get(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    pairs: dict[Value, Value] = dict(config_get(broker.config, args[2]))
    return encode_value(pairs, client.protocol)


def _config_set(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """Put a value into effect, then store it; what the effect refuses is not stored."""

    def apply(name: str, value: object) -> None:
        effect = EFFECTS.get(name)
        if effect is not None:
            effect(broker, value)
        elif name in OF_THE_SHELL:
            broker.shell.apply(name, value)

    try:
        config_set(broker.config, args[2], args[3], apply)
    except ConfigSetError as refused:
        return error(b"ERR " + refused.reply)
    # Passwords, slow commands and latency decide about checks that every command passes.
    broker.refresh_checks()
    return OK


def _limit_memory(broker: Broker, value: object) -> None:
    broker.node.memory.limit(cast(int, value))


def _limit_clients(broker: Broker, value: object) -> None:
    broker.node.memory.limit_clients(cast(int, value))


def _limit_unauthenticated(broker: Broker, value: object) -> None:
    broker.node.memory.unauthenticated.max_bytes = cast(int, value)


def _choose_eviction(broker: Broker, value: object) -> None:
    broker.node.memory.evict = value == "acks"


def _resize_slowlog(broker: Broker, value: object) -> None:
    broker.statistics.slow.resize(cast(int, value))


def _watch_latency(broker: Broker, value: object) -> None:
    broker.statistics.latency.threshold_ms = cast(int, value)


def _switch_journal(broker: Broker, value: object) -> None:
    if value:
        broker.persistence.turn_on()
    else:
        broker.persistence.turn_off()


def _choose_sync(broker: Broker, value: object) -> None:
    journal = broker.persistence.journal
    if journal is not None:
        journal.policy = cast(str, value)


# What must happen when a directive changes, beside its being stored: in the broker, and in the process around
# it. All others are read where they are used.
EFFECTS: dict[str, Callable[[Broker, object], None]] = {
    "maxmemory": _limit_memory,
    "maxmemory-clients": _limit_clients,
    "maxmemory-policy": _choose_eviction,
    "maxmemory-unauthenticated": _limit_unauthenticated,
    "slowlog-max-len": _resize_slowlog,
    "latency-monitor-threshold": _watch_latency,
    "appendonly": _switch_journal,
    "appendfsync": _choose_sync,
}
OF_THE_SHELL = frozenset(("dir", "hz", "loglevel", "maxclients", "tcp-keepalive"))


def _config_rewrite(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    if broker.config.file is None:
        raise Refused("ERR", "The server is running without a config file")
    try:
        rewrite(broker.config)
    except OSError as problem:
        raise Refused("ERR", f"Rewriting config file: {problem.strerror}") from None
    except ConfigError as problem:
        raise Refused("ERR", f"Rewriting config file: {problem}") from None
    return OK


def _config_resetstat(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    broker.statistics.reset()
    broker.node.expired_jobs = 0
    for known in broker.by_name.values():
        known.calls = 0
        known.seconds = 0.0
    return OK


CONFIG_SUBCOMMANDS = {
    b"GET": Subcommand(3, 3, _config_get),
    b"SET": Subcommand(4, 4, _config_set),
    b"REWRITE": Subcommand(2, 2, _config_rewrite),
    b"RESETSTAT": Subcommand(2, 2, _config_resetstat),
}


# DEBUG


def debug(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """DEBUG subcommand ...: tools for tests."""
    run = find(DEBUG_SUBCOMMANDS, args)
    if run is None:
        return error(b"ERR Unknown DEBUG subcommand or wrong number of arguments for '%b'" % args[1])
    return run(broker, client, args)


def _flush_all(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    inputs.remove_all(broker.node)
    return OK


def _load_journal(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """An empty file gives an error without a text, as in the original."""
    return OK if broker.persistence.reload() else error("ERR")


def _restart(broker: Broker, client: Client, args: list[bytes]) -> None:
    """RESTART and CRASH-AND-RECOVER, [delay-ms]: there is no reply unless it fails."""
    delay_ms = integer_argument(args[2]) if len(args) == 3 else 0
    crash = args[1].upper() == b"CRASH-AND-RECOVER"
    try:
        broker.shell.restart(crash, min(max(0, delay_ms), RESTART_MS_MAX))
    except (OSError, PenstockError) as problem:
        log.error("can't restart: %s", problem)
        raise Refused(*RESTART_FAILED) from None


def _sleep(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    try:
        seconds = float(args[2])
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= SLEEP_S_MAX:
        raise Refused(*BAD_FLOAT)
    broker.shell.sleep(seconds)
    return OK


def _error(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    return error(args[2])


def _struct_size(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """Return the accounted sizes of a job and a queue, in bytes, without their contents."""
    bits = str(broker.shell.facts()["arch_bits"])
    return bulk(f"bits:{bits} job:{JOB_BYTES} queue:{QUEUE_BYTES} base:{broker.node.memory.base_bytes}".encode())


def _no_crash(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """SEGFAULT, OOM and ASSERT end an original node, to test how it reports that; ours has no such report."""
    raise Refused(*NO_CRASH)


DEBUG_SUBCOMMANDS = {
    b"FLUSHALL": Subcommand(2, 2, _flush_all),
    b"LOADAOF": Subcommand(2, 2, _load_journal),
    b"RESTART": Subcommand(2, 3, _restart),
    b"CRASH-AND-RECOVER": Subcommand(2, 3, _restart),
    b"SLEEP": Subcommand(3, 3, _sleep),
    b"ERROR": Subcommand(3, 3, _error),
    b"STRUCTSIZE": Subcommand(2, 2, _struct_size),
    b"SEGFAULT": Subcommand(2, 2, _no_crash),
    b"OOM": Subcommand(2, 2, _no_crash),
    b"ASSERT": Subcommand(2, 2, _no_crash),
}
