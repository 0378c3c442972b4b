"""Commands that watch a node at work: MONITOR, SLOWLOG and LATENCY."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from penstock.broker.clients import Client
from penstock.broker.commands.arguments import SYNTAX_ERROR, integer_argument
from penstock.broker.commands.subcommands import ANY, Subcommand, find
from penstock.broker.core.refusals import Refused
from penstock.wire.replies import OK, Value, bulk, encode_value, error, integer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

SLOW_SHOWN = 10  # entries that SLOWLOG GET gives if not told how many
GRAPH_COLUMNS = 60  # spikes drawn, the newest: with the scale that fits a terminal of 80
GRAPH_ROWS = 6

BAD_SLOWLOG = ("ERR", "Unknown SLOWLOG subcommand or wrong # of args. Try GET, RESET, LEN.")


def monitor(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """MONITOR: from now on a line for each command; asked again, nothing at all."""
    if client.is_monitor:
        return None
    client.is_monitor = True
    broker.monitors.append(client)
    broker.refresh_checks()
    return OK


# SLOWLOG


def slowlog(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """SLOWLOG GET [count] | LEN | RESET."""
    run = find(SLOWLOG_SUBCOMMANDS, args)
    if run is None:
        raise Refused(*BAD_SLOWLOG)
    return run(broker, client, args)


def _slow_get(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """A negative count means all."""
    count = integer_argument(args[2]) if len(args) == 3 else SLOW_SHOWN
    entries = list(broker.statistics.slow.entries)
    shown = entries[:count] if count >= 0 else entries
    return encode_value([[entry.number, entry.at_s, entry.microseconds, entry.arguments] for entry in shown])


def _slow_len(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    return integer(len(broker.statistics.slow.entries))


def _slow_reset(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    broker.statistics.slow.entries.clear()
    return OK


SLOWLOG_SUBCOMMANDS = {
    b"GET": Subcommand(2, 3, _slow_get),
    b"LEN": Subcommand(2, 2, _slow_len),
    b"RESET": Subcommand(2, 2, _slow_reset),
}


# LATENCY


def latency(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """LATENCY LATEST | HISTORY event | GRAPH event | DOCTOR | RESET [event ...]."""
    run = find(LATENCY_SUBCOMMANDS, args)
    if run is None:
        raise Refused(*SYNTAX_ERROR)
    return run(broker, client, args)


def _samples(broker: Broker, event: bytes) -> deque[tuple[int, int]] | None:
    return broker.statistics.latency.events.get(event.decode("utf-8", "replace"))


def _latest(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """Return for each event: its name, the time and length of its latest spike, and the longest ever."""
    spikes = broker.statistics.latency
    rows: list[Value] = [
        [event.encode(), samples[-1][0], samples[-1][1], spikes.worst[event]]
        for event, samples in spikes.events.items()
    ]
    return encode_value(rows)


def _history(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    return encode_value([list(sample) for sample in _samples(broker, args[2]) or ()])


def _graph(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    samples = _samples(broker, args[2])
    if samples is None:
        return error(b"ERR No samples available for event '%b'" % args[2])
    event = args[2].decode()
    worst_ms = broker.statistics.latency.worst[event]
    return bulk(draw(event, list(samples), worst_ms, int(broker.wall())).encode())


def draw(event: str, samples: list[tuple[int, int]], worst_ms: int, now_s: int) -> str:
    """Draw spikes as columns, oldest first. The scale begins at 0; each spike is at least one row high."""
    shown = samples[-GRAPH_COLUMNS:]
    lengths_ms = [milliseconds for _, milliseconds in shown]
    top_ms = max(1, *lengths_ms)
    heights = [max(1, -(-milliseconds * GRAPH_ROWS // top_ms)) for milliseconds in lengths_ms]
    lines = [
        f"{event} - {len(shown)} spikes, {min(lengths_ms)} to {max(lengths_ms)} ms; worst ever {worst_ms} ms",
        "-" * (GRAPH_COLUMNS + 14),
    ]
    for row in range(GRAPH_ROWS, 0, -1):
        columns = "".join("#" if height >= row else " " for height in heights)
        lines.append(f"{top_ms * row // GRAPH_ROWS:>8} ms | {columns}".rstrip())
    lines.append(f"from {_ago(now_s - shown[0][0])} (left) to {_ago(now_s - shown[-1][0])} (right)")
    return "\n".join(lines) + "\n"


def _ago(seconds: int) -> str:
    for unit_s, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit_s:
            return f"{seconds // unit_s}{letter} ago"
    return f"{max(0, seconds)}s ago"


# What helps against spikes of an event; others get the last one.
ADVICE = {
    "command": (
        "One request worked for this long and everybody else waited. SLOWLOG GET shows which ones they are: "
        "ask for less at a time (COUNT with QSCAN and JSCAN, a small count with QPEEK), and use no DEBUG in "
        "production."
    ),
    "fast-command": (
        "A request that takes microseconds took this long: most likely the process was not running. Look for "
        "other programs on this machine's CPUs, for swapping, and for the limits of a container or a virtual "
        "machine."
    ),
    "jobs-processing": (
        "Very many jobs were due at the same moment. Spread their delays and retry times, or spread the jobs "
        "over more nodes."
    ),
    "eviction-cycle": ("Memory is short and room had to be made. Raise maxmemory, or let workers acknowledge sooner."),
}
DISK_ADVICE = (
    "The disk was slow to take the journal. Give it a disk of its own, or use appendfsync everysec in place of always."
)
OTHER_ADVICE = "Nothing is known about events of this name."


def _doctor(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """LATENCY DOCTOR: what was slow, by how much, and what to do."""
    spikes = broker.statistics.latency
    if not spikes.threshold_ms and not spikes.events:
        text = (
            "Nothing is being watched. Tell me from how many milliseconds on a delay matters to you, and ask "
            "again after a while: CONFIG SET latency-monitor-threshold 100\n"
        )
    elif not spikes.events:
        text = f"All is well: nothing has taken {spikes.threshold_ms} ms or more since the watch began.\n"
    else:
        texts = [
            _diagnosis(number, event, list(samples), spikes.worst[event])
            for number, (event, samples) in enumerate(spikes.events.items(), 1)
        ]
        text = "What took longer than it should:\n\n" + "\n".join(texts)
    return bulk(text.encode())


def _diagnosis(number: int, event: str, samples: list[tuple[int, int]], worst_ms: int) -> str:
    lengths_ms = [milliseconds for _, milliseconds in samples]
    mean_ms = sum(lengths_ms) / len(lengths_ms)
    often = ""
    if len(samples) > 1:
        often = f", one every {(samples[-1][0] - samples[0][0]) / (len(samples) - 1):.0f} s"
    advice = ADVICE.get(event) or (DISK_ADVICE if event.startswith("aof-") else OTHER_ADVICE)
    plural = "spikes" if len(samples) > 1 else "spike"
    counts = f"{len(samples)} {plural}{often}; {mean_ms:.0f} ms on average, {worst_ms} ms at worst"
    return f"{number}. {event}: {counts}.\n   {advice}\n"


def _reset(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """Forget these events, or all; the reply is how many there were."""
    spikes = broker.statistics.latency
    asked = {word.decode("utf-8", "replace") for word in args[2:]} or set(spikes.events)
    known = asked & spikes.events.keys()
    for event in known:
        del spikes.events[event], spikes.worst[event]
    return integer(len(known))


LATENCY_SUBCOMMANDS = {
    b"LATEST": Subcommand(2, 2, _latest),
    b"HISTORY": Subcommand(3, 3, _history),
    b"GRAPH": Subcommand(3, 3, _graph),
    b"DOCTOR": Subcommand(2, 2, _doctor),
    b"RESET": Subcommand(2, ANY, _reset),
}
