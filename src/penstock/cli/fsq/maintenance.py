"""The commands of `fsq` to inspect and maintain queues: list, show, stats, redrive, purge, audit, repair."""

import json
import os
import re
import shutil
import sys
from itertools import islice
from typing import Any

from penstock import fsq
from penstock.cli.fsq.call import TMP, BadValue, CommandCall, UsageError
from penstock.errors import printable
from penstock.fsq import auditing, inspecting
from penstock.fsq import redrive as redriving

AGE = re.compile(r"([0-9]+)([smhd]?)")
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
PREVIEW_BYTES = 1024


def _dump(value: Any) -> None:
    print(json.dumps(value))


def _age(call: CommandCall, default: float | None) -> float:
    text = call.value("older-than")
    if text is None:
        if default is None:
            raise BadValue("say how old items must be: --older-than 7d, or 0 for all of them")
        return default
    found = AGE.fullmatch(text)
    if found is None:
        raise BadValue(f"invalid argument for flag: --older-than: {text} (like 90s, 30m, 12h, 7d)")
    return int(found[1]) * SECONDS[found[2]]


class Counting:
    """On a terminal, a line that counts, and makes room for whatever else is printed."""

    def __init__(self, call: CommandCall) -> None:
        self._program = call.program
        self._is_there = False

    def __call__(self, count: int) -> None:
        if sys.stderr.isatty():
            self._is_there = True
            print(f"\r{self._program}: {count} items", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        if self._is_there:
            self._is_there = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def list_items(call: CommandCall) -> int:
    """List queues, or the items of queues."""
    if not call.words:
        for queue in fsq.queues():
            _dump({"queue": queue}) if call.has("json") else print(printable(queue))
        return 0
    for queue in call.words:
        items = inspecting.entries(queue, call.value("place") or "queue", call.value("host"))
        for item in islice(items, call.number("limit")):
            if call.has("json"):
                _dump({"queue": queue, **item.as_dict()})
            else:
                problem = f"  ({item.error})" if item.error else ""
                print(printable(item.id) + problem)
    return 0


def show(call: CommandCall) -> int:
    """Show items."""
    if len(call.words) < 2:
        raise UsageError
    queue = call.words[0]
    for item_id in call.words[1:]:
        item = inspecting.find(queue, item_id, call.value("host"))
        if call.has("data"):
            with inspecting.content(queue, item) as data:
                shutil.copyfileobj(data, sys.stdout.buffer)
        elif call.has("json"):
            _dump({"queue": queue, **item.as_dict()})
        else:
            _show(queue, item)
    return 0


def _show(queue: str, item: inspecting.Entry) -> None:
    for name, value in item.as_dict().items():
        if value is not None and value != []:
            text = " ".join(map(repr, value)) if isinstance(value, list) else printable(str(value))
            print(f"{name.replace('_', ' ') + ':':<14}{text}")
    if item.size and not item.error:
        with inspecting.content(queue, item) as data:
            start = data.read(PREVIEW_BYTES)
        print(f"{'data:':<14}{printable(os.fsdecode(start))}{' ...' if item.size > PREVIEW_BYTES else ''}")


def stats(call: CommandCall) -> int:
    """Count the items of queues."""
    rows = []
    for queue in call.words or fsq.queues():
        hosts: list[str | None] = [call.value("host")] if call.has("host") else [None, *inspecting.host_names(queue)]
        rows += [inspecting.stats(queue, host) for host in hosts]
    if call.has("json"):
        for row in rows:
            _dump(row)
        return 0
    print(f"{'queue':<24}{'waiting':>9}{'oldest':>9}{'done':>9}{'failed':>9}{'tmp':>6}  state")
    for row in rows:
        label = row["queue"] if row["host"] is None else f"{row['queue']} @{row['host']}"
        oldest = "-" if row["oldest_seconds"] is None else f"{row['oldest_seconds']} s"
        counts = f"{row['queue_items']:>9}{oldest:>9}{row['done_items']:>9}{row['fail_items']:>9}{row['tmp_items']:>6}"
        aside = f", {row['aside_items']} set aside" if row["aside_items"] else ""
        print(f"{printable(label):<24}{counts}  {'down' if row['down'] else 'up'}{aside}")
    return 0


def redrive(call: CommandCall) -> int:
    """Put failed items back."""
    if not call.words or (len(call.words) == 1) != call.has("all"):
        raise UsageError
    counting = Counting(call)
    new_ids = redriving.redrive(
        call.words[0],
        call.words[1:] or None,
        place=call.value("place") or "fail",
        host=call.value("host"),
        keep_tries=call.has("keep-tries"),
        progress=counting,
    )
    counting.clear()
    if call.has("json"):
        _dump({"queue": call.words[0], "redriven": len(new_ids), "ids": new_ids})
    else:
        for new_id in new_ids if call.has("verbose") else ():
            print(printable(new_id))
        print(f"{len(new_ids)} put back")
    return 0


def purge(call: CommandCall) -> int:
    """Remove old items."""
    if not call.words:
        raise UsageError
    age = _age(call, None)
    place = call.value("place") or "done"
    counting = Counting(call)
    for queue in call.words:
        count = redriving.purge(queue, place, age, call.value("host"), call.has("dry-run"), counting)
        counting.clear()
        if call.has("json"):
            _dump({"queue": queue, "place": place, "removed": count, "dry_run": call.has("dry-run")})
        else:
            print(f"{printable(queue)}: {count} {'would be ' if call.has('dry-run') else ''}removed from {place}")
    return 0


def audit(call: CommandCall) -> int:
    """Find what crashes have left behind."""
    age = _age(call, auditing.OLD_SECONDS)
    found = 0
    counting = Counting(call)
    for queue in call.words or fsq.queues():
        for finding in auditing.audit(queue, age, counting):
            counting.clear()
            found += 1
            if call.has("json"):
                _dump({"queue": queue, **finding.as_dict()})
            else:
                print(f"{finding.kind}: {printable(finding.where)}: {printable(finding.text)}")
    counting.clear()
    if not found and not call.has("json"):
        print("nothing found")
    return TMP if found else 0


def repair(call: CommandCall) -> int:
    """Put right what audit finds."""
    if not call.words:
        raise UsageError
    age = _age(call, auditing.OLD_SECONDS)
    left = done = 0
    counting = Counting(call)
    for queue in call.words:
        for finding, reason in auditing.repair(queue, age, counting):
            counting.clear()
            left += reason is not None
            done += reason is None
            if call.has("json"):
                _dump({"queue": queue, **finding.as_dict(), "repaired": reason is None, "reason": reason})
            else:
                outcome = "repaired" if reason is None else f"left: {reason}"
                print(f"{finding.kind}: {printable(finding.where)}: {outcome}")
    counting.clear()
    if not call.has("json"):
        print(f"{done} repaired, {left} left")
    return TMP if left else 0
