"""What a batch of runs tells a person, or, as JSON, a program."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from penstock.sim.batch import Totals
from penstock.sim.plan import Plan, plan_text
from penstock.sim.run import Result

VIOLATIONS_SHOWN = 3


def replay_command(seed: int, plan: Plan | None) -> str:
    """Give the command that replays a run."""
    words = f"python -m penstock.sim --replay {seed}"
    return words if plan is None else f"{words} --plan '{plan_text(plan)}'"


def failure_text(result: Result) -> str:
    """Tell what a run did wrong, and how to see it again."""
    lines = [f"seed {result.seed} fails:"]
    lines += [f"  {violation}" for violation in result.violations[:VIOLATIONS_SHOWN]]
    if len(result.violations) > VIOLATIONS_SHOWN:
        lines.append(f"  and {len(result.violations) - VIOLATIONS_SHOWN} more")
    lines.append(f"  {replay_command(result.seed, result.plan)}")
    return "\n".join(lines)


def run_text(result: Result) -> str:
    """Tell about a single run."""
    verdict = "fails" if result.violations else "holds"
    counts = f"{result.jobs} jobs, {result.deliveries} deliveries, {result.events} events"
    lines = [f"seed {result.seed} {verdict}: {counts}, hash {result.digest}", f"  plan {plan_text(result.plan)}"]
    lines += [f"  {violation}" for violation in result.violations]
    lines += _table("duplicates", Counter(result.causes))
    lines += _table("never delivered", Counter(result.excuses))
    return "\n".join(lines)


def totals_text(totals: Totals, seconds: float) -> str:
    """Tell about a batch."""
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
    """Give a batch as JSON."""
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
    """Give a run as plain values."""
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
