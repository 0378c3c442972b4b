"""What a run or a batch tells a person, or, as JSON, a program; and messages as text, for the trace of a run."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.sim.batch import Totals
from penstock.sim.plan import Plan, plan_text
from penstock.sim.run import Result
from penstock.wire import bus

if TYPE_CHECKING:
    from penstock.sim.world import World

VIOLATIONS_SHOWN = 3
FLAGS = ((bus.NOREPLY, "noreply"), (bus.INCR_NACKS, "+nack"), (bus.INCR_DELIVERIES, "+delivery"), (256, "queue-it"))


def replay_command(seed: int, plan: Plan | None, movers: int = 0, retry_s: int = 0) -> str:
    """Return the command that replays a run."""
    words = f"python -m penstock.sim --replay {seed}" + (f" --movers {movers}" if movers else "")
    words += f" --retry {retry_s}" if retry_s else ""
    return words if plan is None else f"{words} --plan '{plan_text(plan)}'"


def failure_text(result: Result, movers: int = 0, retry_s: int = 0) -> str:
    """Return the violations of a run, and the command that replays it."""
    lines = [f"seed {result.seed} fails:"]
    lines += [f"  {violation}" for violation in result.violations[:VIOLATIONS_SHOWN]]
    if len(result.violations) > VIOLATIONS_SHOWN:
        lines.append(f"  and {len(result.violations) - VIOLATIONS_SHOWN} more")
    lines.append(f"  {replay_command(result.seed, result.plan, movers, retry_s)}")
    return "\n".join(lines)


def run_text(result: Result) -> str:
    """Return the result of a single run as text."""
    verdict = "fails" if result.violations else "holds"
    counts = f"{result.jobs} jobs, {result.deliveries} deliveries, {result.events} events"
    lines = [f"seed {result.seed} {verdict}: {counts}, hash {result.digest}", f"  plan {plan_text(result.plan)}"]
    lines += [f"  {violation}" for violation in result.violations]
    lines += _table("duplicates", Counter(result.causes))
    lines += _table("never delivered", Counter(result.excuses))
    return "\n".join(lines)


def totals_text(totals: Totals, seconds: float) -> str:
    """Return the result of a batch as text."""
    counts = f"{totals.jobs} jobs, {totals.deliveries} deliveries, {totals.events} events"
    lines = [f"{totals.seeds} runs in {seconds:.0f} s: {totals.failed} failed; {counts}"]
    lines += _table("duplicates, by cause", totals.causes)
    lines += _table("told of and never delivered, by cause", totals.excuses)
    lines += _table("faults", _starting(totals.reached, "fault "))
    lines += _table("messages", _starting(totals.reached, "message "))
    lines += _table("changes of a job's state", _starting(totals.reached, "change "))
    pairs = sum(" with " in word for word in totals.reached)
    lines.append(f"pairs of a fault with a message or a change: {pairs} reached")
    lines += [f"never reached: {word}" for word in totals.missing()]
    return "\n".join(lines)


def _starting(counts: Counter[str], prefix: str) -> Counter[str]:
    return Counter({word[len(prefix) :]: count for word, count in counts.items() if word.startswith(prefix)})


def _table(title: str, counts: Counter[str]) -> list[str]:
    if not counts:
        return []
    return [title, *(f"  {count:9d}  {word}" for word, count in sorted(counts.items(), key=lambda row: (-row[1], row)))]


def totals_json(totals: Totals, seconds: float) -> str:
    """Return a batch as JSON."""
    facts: dict[str, Any] = {
        "seeds": totals.seeds,
        "seconds": round(seconds, 1),
        "failed": totals.failed,
        "events": totals.events,
        "jobs": totals.jobs,
        "deliveries": totals.deliveries,
        "causes": dict(sorted(totals.causes.items())),
        "excuses": dict(sorted(totals.excuses.items())),
        "reached": dict(sorted(totals.reached.items())),
        "missing": totals.missing(),
        "failures": [run_facts(result) for result in totals.failures],
    }
    return json.dumps(facts, indent=1)


def run_facts(result: Result) -> dict[str, Any]:
    """Return a run as plain values."""
    return {
        "seed": result.seed,
        "plan": plan_text(result.plan),
        "hash": result.digest,
        "events": result.events,
        "jobs": result.jobs,
        "deliveries": result.deliveries,
        "violations": [str(violation) for violation in result.violations],
        "command": replay_command(result.seed, result.plan),
    }


def describe(world: World, data: bytes) -> str:
    """Return a message as text."""
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
        for job_id, value in references:
            nacks, deliveries = value >> bus.NACKS_SHIFT & bus.NACKS_MASK, value & bus.DELIVERIES_MASK
            text = f"{nacks}/{deliveries}" if value & bus.HAS_COUNTERS else str(value)
            words.append(f"{job(job_id)}={text}")
        if nodes:
            words.append("held by " + "+".join(map(node, nodes)))
    words += [name for flag, name in FLAGS if message.flags & flag]
    return " ".join(words)
