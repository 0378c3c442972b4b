"""`python -m penstock.sim`: run the simulated cluster, replay a run, or shrink one that fails."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Final

from penstock.sim.batch import Totals, add_up, quiet, run_all
from penstock.sim.fault_kinds import KINDS
from penstock.sim.plan import Plan, PlanError, plan_from_text
from penstock.sim.report import (
    failure_text,
    replay_command,
    run_facts,
    run_text,
    totals_json,
    totals_text,
)
from penstock.sim.run import Result, simulate
from penstock.sim.shrink import shrink_seed

USAGE_ERROR: Final = 2
FAILURES_SHOWN: Final = 10
EXAMPLES: Final = """\
examples:
  python -m penstock.sim --seeds 1-500            500 runs of six simulated minutes or more
  python -m penstock.sim --replay 42 --trace      one of them again, with every message as text
  python -m penstock.sim --replay 42 --shrink     the fewest of its faults with which it still fails
  python -m penstock.sim --replay 42 --plan 'kill@31.2+4.5:2,loss@50+20=30'
"""


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.sim",
        description="A cluster of real nodes in virtual time, with faults drawn from a seed, checked for its promises.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds", default="1-100", help="which seeds to run: 1-500, or 3,17,40-45; a number N means 1-N"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="number of processes; default: one for each core"
    )
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed")
    parser.add_argument("--plan", help="faults in place of those drawn from each seed")
    parser.add_argument("--movers", type=int, default=0, help="number of clients that move jobs from queue to queue")
    parser.add_argument("--retry", type=int, default=0, metavar="S", help="retry time of all jobs; default: drawn")
    parser.add_argument("--trace", action="store_true", help="with --replay: print what happens")
    parser.add_argument("--shrink", action="store_true", help="with --replay: look for the fewest faults that fail")
    parser.add_argument("--no-shrink", action="store_true", help="don't shrink the first failure of a batch")
    parser.add_argument("--stop", action="store_true", help="stop at the first promise that is broken")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args(argv)


def _seeds(text: str) -> list[int]:
    if text.isdigit():
        return list(range(1, int(text) + 1))
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def _plan(text: str | None) -> Plan | None:
    if text is None:
        return None
    plan = plan_from_text(text)
    for fault in plan:
        if fault.kind not in KINDS:
            raise PlanError(f"a fault must be one of {', '.join(sorted(KINDS))}, got {fault.kind!r}")
    return plan


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Progress:
    """A line of progress, on a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._began = time.monotonic()
        self._shown = 0.0
        self._is_on = sys.stderr.isatty()

    def __call__(self, done: int, failed: int) -> None:
        """Show it, a few times a second."""
        now = time.monotonic()
        if not self._is_on or (now - self._shown < 0.2 and done < self._total):
            return
        self._shown = now
        left = (now - self._began) / done * (self._total - done)
        end = "\n" if done == self._total else ""
        sys.stderr.write(f"\r{done}/{self._total} runs, {failed} failed, {left:.0f} s left   {end}")
        sys.stderr.flush()


def _show_shrunk(result: Result, movers: int, retry_s: int) -> None:
    promise = result.violations[0].promise
    plan = shrink_seed(result.seed, result.plan, promise, movers, retry_s)
    _say(f"{promise} still breaks with {len(plan)} of its {len(result.plan)} faults:")
    _say(f"  {replay_command(result.seed, plan, movers, retry_s)}")


def _replay(args: argparse.Namespace) -> int:
    result = simulate(args.replay, _plan(args.plan), args.trace, movers=args.movers, retry_s=args.retry)
    for line in result.trace:
        _say(line)
    _say(json.dumps(run_facts(result), indent=1) if args.json else run_text(result))
    if args.shrink and result.violations:
        _show_shrunk(result, args.movers, args.retry)
    return bool(result.violations)


def _batch(args: argparse.Namespace) -> int:
    seeds = _seeds(args.seeds)
    began = time.monotonic()
    results = run_all(seeds, args.jobs, args.stop, _plan(args.plan), args.movers, args.retry)
    totals: Totals = add_up(results, Progress(len(seeds)), args.stop)
    seconds = time.monotonic() - began
    if args.json:
        _say(totals_json(totals, seconds))
        return not totals.is_good
    _say(totals_text(totals, seconds))
    for result in totals.failures[:FAILURES_SHOWN]:
        _say(failure_text(result, args.movers, args.retry))
    if totals.failed > FAILURES_SHOWN:
        more = " ".join(str(result.seed) for result in totals.failures[FAILURES_SHOWN:])
        _say(f"more seeds that fail: {more}")
    if totals.failures and not args.no_shrink:
        _say(f"shrinking seed {totals.failures[0].seed} ...")
        _show_shrunk(totals.failures[0], args.movers, args.retry)
    return not totals.is_good


def main(argv: list[str]) -> int:
    """Run the command line; return the exit code: 0 all good, 1 a run failed, 2 wrong arguments."""
    args = _parse(argv)
    quiet()
    try:
        return _replay(args) if args.replay is not None else _batch(args)
    except (PlanError, ValueError) as problem:
        sys.stderr.write(f"penstock.sim: {problem}\n")
        return USAGE_ERROR
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
