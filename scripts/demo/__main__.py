"""`make demo`: a tour of Penstock, with real processes on free ports of this machine, in a temporary directory.

    __main__.py    the options, and how it ends
    tour.py        what is shown, in order
    cluster.py     the nodes         shop.py        what workers do      producing.py  the producers
    draining.py    where it ends up: Spark and Parquet, or SQLite        books.py      whether all of it has arrived
    lake.py        tables, a report and a story of what happened         parts.py      processes, and their end
    screen.py      what one sees

However it ends, its processes are stopped and the directory is gone; the lake stays, where it was made. The exit code
is 1 if a job was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from parts import DemoFailed, Parts, heed_interruptions
from screen import Screen
from tour import Summary, Tour

from penstock.errors import PenstockError

JOBS_MAX = 1_000_000


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="demo", description="A tour of Penstock: cluster, workers, Spark, producers, and a node that dies."
    )
    parser.add_argument("--jobs", type=int, default=12_000, metavar="N", help="number of orders (default %(default)s)")
    parser.add_argument("--rate", type=float, default=600, metavar="N", help="orders a second (default %(default)s)")
    parser.add_argument("--port", type=int, default=7711, help="the first port to try for a node (default %(default)s)")
    parser.add_argument("--no-spark", action="store_true", help="without Spark: results go to SQLite")
    parser.add_argument(
        "--lake",
        type=Path,
        metavar="DIR",
        default=Path("build/demo"),
        help="where the lake stays (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the summary, as JSON")
    parser.add_argument(
        "--patience", type=float, default=60, metavar="SECONDS", help="seconds without progress until the tour ends"
    )
    options = parser.parse_args()
    if not 1 <= options.jobs <= JOBS_MAX:
        parser.error(f"--jobs must be 1 to {JOBS_MAX}, got {options.jobs}")
    if not options.rate > 0:
        parser.error(f"--rate must be above 0 jobs a second, got {options.rate}")
    return options


def run(options: argparse.Namespace) -> Summary:
    """The tour, and the tidying up behind it."""
    screen = Screen(is_silent=options.json)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        parts = Parts(Path(folder))
        try:
            summary = Tour(options, parts, screen).run()
        finally:
            parts.end()
    left = "nothing is left behind" if summary.lake is None else f"nothing is left behind but {options.lake}"
    screen.say(f"All processes are stopped, and {left}. README.md shows how to go on.")
    return summary


def main() -> int:
    """Run it, and return the exit code."""
    options = arguments()
    heed_interruptions()
    try:
        summary = run(options)
        if options.json:
            print(json.dumps(summary.as_json()), flush=True)
        return 0 if summary.is_good else 1
    except KeyboardInterrupt:
        failure = "interrupted; everything is stopped, and nothing is left behind"
    except BrokenPipeError:
        # Whoever read this has had enough (`| head`). Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (DemoFailed, PenstockError, OSError) as error:
        failure = f"failed: {error}"
    print(f"demo: {failure}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
