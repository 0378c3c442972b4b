"""INFO: what a node tells about itself, as sections of `key:value` lines.

A section is a function that gives its pairs; the table at the end names them in the order in which they are
shown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from penstock.broker.clients import Client
from penstock.broker.commands.arguments import SYNTAX_ERROR
from penstock.broker.core.refusals import Refused
from penstock.native import modules_in_use
from penstock.wire.replies import bulk

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Pairs = list[tuple[str, object]]

DISQUE_VERSION = "1.0-rc1"  # clients look at it to know what they may ask for
BUILD_ID_CHARACTERS = 16
DAY_S = 24 * 60 * 60


@cache
def release() -> str:
    """Return the version of the installed package."""
    try:
        return version("penstock")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


def info(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """INFO [section]: the default ones, `all`, or one by its name; an unknown one is empty."""
    if len(args) > 2:
        raise Refused(*SYNTAX_ERROR)
    wanted = args[1].lower() if len(args) == 2 else b"default"
    names = SETS.get(wanted, (wanted,))
    texts = [_section(broker, name) for name in names if name in SECTIONS]
    # A path may hold bytes that are not text; they are sent unchanged.
    return bulk("\r\n".join(texts).encode("utf-8", "surrogateescape"))


def _section(broker: Broker, name: bytes) -> str:
    title, pairs = SECTIONS[name]
    return f"# {title}\r\n" + "".join(f"{key}:{_shown(value)}\r\n" for key, value in pairs(broker))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _server(broker: Broker) -> Pairs:
    facts, config = broker.shell.facts(), broker.config
    run_id = broker.run_id.decode()
    uptime_s = _number(facts["uptime_in_seconds"])
    return [
        ("disque_version", DISQUE_VERSION),
        ("disque_git_sha1", "00000000"),
        ("disque_git_dirty", 0),
        ("disque_build_id", run_id[:BUILD_ID_CHARACTERS]),
        ("os", facts["os"]),
        ("arch_bits", facts["arch_bits"]),
        ("multiplexing_api", facts["multiplexing_api"]),
        ("gcc_version", facts["gcc_version"]),
        ("process_id", facts["process_id"]),
        ("run_id", run_id),
        ("tcp_port", config.port),
        ("uptime_in_seconds", int(uptime_s)),
        ("uptime_in_days", int(uptime_s) // DAY_S),
        ("hz", config.hz),
        ("executable", facts["executable"]),
        ("config_file", config.file or ""),
        ("penstock_version", release()),
        ("penstock_modules", modules_in_use()),
    ]


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value


def _clients(broker: Broker) -> Pairs:
    clients = broker.clients.values()
    return [
        ("connected_clients", len(clients)),
        ("client_longest_output_list", max((len(client.out) for client in clients), default=0)),
        ("client_biggest_input_buf", max((client.sink.unread_bytes() for client in clients), default=0)),
        ("blocked_clients", sum(client.waiter is not None for client in clients)),
    ]


def _memory(broker: Broker) -> Pairs:
    memory = broker.node.memory
    resident_bytes = _number(broker.shell.facts()["used_memory_rss"])
    peak_bytes = max(memory.peak_bytes, memory.used_bytes)
    return [
        ("used_memory", memory.used_bytes),
        ("used_memory_human", human_bytes(memory.used_bytes)),
        ("used_memory_rss", int(resident_bytes)),
        ("used_memory_peak", peak_bytes),
        ("used_memory_peak_human", human_bytes(peak_bytes)),
        ("mem_fragmentation_ratio", resident_bytes / max(1, memory.used_bytes)),
        ("mem_allocator", "python"),
        ("mem_clients_normal", memory.connection_bytes + memory.clients.bytes),
        ("mem_clients_unauthenticated", memory.unauthenticated.bytes),
    ]


def human_bytes(size: int) -> str:
    """Return a size as people read it: 1.50M."""
    if size < 1 << 10:
        return f"{size}B"
    unit, letter = next((unit, letter) for unit, letter in UNITS if size < unit << 10 or letter == "G")
    return f"{size / unit:.2f}{letter}"


UNITS = ((1 << 10, "K"), (1 << 20, "M"), (1 << 30, "G"))


def _jobs(broker: Broker) -> Pairs:
    return [("registered_jobs", broker.node.jobs.count)]


def _queues(broker: Broker) -> Pairs:
    return [("registered_queues", len(broker.node.queues))]


def _persistence(broker: Broker) -> Pairs:
    state = broker.persistence
    rewrite_s = (broker.node.now_ms - state.rewrite_started_ms) // 1000 if state.rewriting else -1
    pairs: Pairs = [
        ("loading", state.loading),
        ("aof_enabled", state.state != "off"),
        ("aof_state", state.state),
        ("aof_rewrite_in_progress", state.rewriting),
        ("aof_rewrite_scheduled", state.rewrite_scheduled),
        ("aof_last_rewrite_time_sec", state.last_rewrite_s),
        ("aof_current_rewrite_time_sec", rewrite_s),
        ("aof_last_bgrewrite_status", "ok" if state.last_rewrite_ok else "err"),
        ("aof_last_write_status", "err" if state.failure else "ok"),
    ]
    journal = state.journal
    if journal is not None:
        pairs += [
            ("aof_current_size", journal.size),
            ("aof_base_size", journal.base_bytes),
            ("aof_pending_rewrite", state.rewrite_scheduled),
            ("aof_buffer_length", journal.pending_bytes),
            ("aof_rewrite_buffer_length", 0),  # what comes meanwhile goes straight into the new file
            ("aof_pending_bio_fsync", journal.syncing),
            ("aof_delayed_fsync", journal.delayed_syncs),
        ]
    return pairs + (_loading(broker) if state.loading else [])


def _loading(broker: Broker) -> Pairs:
    state = broker.persistence
    total, done = state.loading_total_bytes, state.loading_read_bytes
    elapsed_s = int(broker.wall()) - state.loading_started_s
    return [
        ("loading_start_time", state.loading_started_s),
        ("loading_total_bytes", total),
        ("loading_loaded_bytes", done),
        ("loading_loaded_perc", 100.0 * done / max(1, total)),
        ("loading_eta_seconds", elapsed_s * max(0, total - done) // done if elapsed_s and done else -1),
    ]


def _stats(broker: Broker) -> Pairs:
    stats = broker.statistics
    return [
        ("total_connections_received", stats.connections),
        ("total_commands_processed", stats.commands),
        ("instantaneous_ops_per_sec", int(stats.commands_rate.value())),
        ("total_net_input_bytes", stats.input_bytes),
        ("total_net_output_bytes", stats.output_bytes),
        ("instantaneous_input_kbps", stats.input_rate.value() / 1024),
        ("instantaneous_output_kbps", stats.output_rate.value() / 1024),
        ("rejected_connections", stats.rejected),
        ("expired_jobs", broker.node.expired_jobs),
        ("latest_fork_usec", 0),  # nothing here forks: rewrites go in steps
    ]


def _cpu(broker: Broker) -> Pairs:
    facts = broker.shell.facts()
    keys = ("used_cpu_sys", "used_cpu_user", "used_cpu_sys_children", "used_cpu_user_children")
    return [(key, float(_number(facts[key]))) for key in keys]


def _command_stats(broker: Broker) -> Pairs:
    pairs: Pairs = []
    for command in broker.by_name.values():
        if command.calls:
            usec = command.seconds * 1e6
            text = f"calls={command.calls},usec={int(usec)},usec_per_call={usec / command.calls:.2f}"
            pairs.append((f"cmdstat_{command.name}", text))
    return pairs


SECTIONS: dict[bytes, tuple[str, Callable[[Broker], Pairs]]] = {
    b"server": ("Server", _server),
    b"clients": ("Clients", _clients),
    b"memory": ("Memory", _memory),
    b"jobs": ("Jobs", _jobs),
    b"queues": ("Queues", _queues),
    b"persistence": ("Persistence", _persistence),
    b"stats": ("Stats", _stats),
    b"cpu": ("CPU", _cpu),
    b"commandstats": ("Commandstats", _command_stats),
}
SETS = {
    b"default": tuple(name for name in SECTIONS if name != b"commandstats"),
    b"all": tuple(SECTIONS),
}
