"""The tour: a cluster, workers, Spark and producers, a node that is killed on the way; then the books and the lake."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import shop
from books import CAUSES, Balance, Meter, balance
from cluster import Cluster
from draining import CopyDrain, Drain, SparkDrain, spark_variables, why_no_spark
from lake import DemoLake, why_no_lake
from parts import DemoFailed, Part, Parts
from producing import PRODUCERS, Producers
from screen import Figures, Screen

from penstock.blocking import connect
from penstock.errors import PenstockError

PROCESSES = 2
LOOK_S = 0.25  # between two looks at how things stand
DOWN_S = 6.0  # longer than the nodes' timeout of 5 s, so that the others know that it is gone
# The node is killed when this share of the orders is out and results arrive at the other end, at the latest when the
# second share is out.
KILL_AFTER, KILL_AT_LATEST = 0.4, 0.7
EMPTY_S_MAX = 30.0  # for queues to be empty once all is there: a job that came back once more is counted too


@dataclass
class Summary:
    """What is printed in the end."""

    drained_by: str = ""
    killed: str = ""
    node_down_seconds: float = 0.0
    acknowledged: int = 0
    pushed_in_doubt: int = 0
    runs: int = 0
    rows: int = 0
    orders: int = 0
    lost: int = 0
    unknown: int = 0
    left_in_queues: int = 0
    duplicates: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    lake: str | None = None
    report: str | None = None

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, and nothing came out of thin air."""
        return not self.lost and not self.unknown

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"ok": self.is_good, **asdict(self)}


class Tour:
    """One way through everything."""

    def __init__(self, options: Namespace, parts: Parts, screen: Screen) -> None:
        self._options, self._parts, self._screen = options, parts, screen
        self._began = time.monotonic()
        self._meters = {"producers": Meter(), "workers": Meter(), "drain": Meter()}
        self._moved_at = self._began  # when a figure last changed
        self._rows_read = 0  # how many there were when they were last held against the producers' book
        self.summary = Summary()
        self._cluster: Cluster
        self._drain: Drain
        self._workers: Part
        self._runs: Path = parts.folder / "runs"
        self._events: Path = parts.folder / "events"
        self._producers: Producers

    def run(self) -> Summary:
        """All of it."""
        self._screen.title("Penstock, a tour: a cluster, workers, Spark, producers, and a node that dies on the way")
        self._make_cluster()
        self._start_workers()
        self._start_drain()
        self._screen.title("4. Producers")
        self._screen.command("""penstock push $JOBS orders --json '{"order": 1}'""")
        self._screen.say(
            f"{PRODUCERS} producers push {self._options.jobs:,} orders, {self._options.rate:,.0f} a second; "
            "what was acknowledged to them must not get lost."
        )
        self._producers = Producers(self._cluster.url, self._options.jobs, self._options.rate)
        try:
            self._producers.start()
            with self._screen.watching():
                self._watch(self._is_time_to_kill)
                self._kill_a_node()
                self._watch(self._is_all_there)
                self._watch(self._are_queues_empty, EMPTY_S_MAX)
        finally:
            self._producers.stop()
        self._drain.stop()
        self._workers.stop()
        self._sum_up()
        self._make_lake()
        return self.summary

    def _make_cluster(self) -> None:
        self._screen.title("1. A cluster of three nodes")
        self._screen.command("penstock cluster create 3 --events events")
        self._events.mkdir()
        self._cluster = Cluster(self._parts, self._options.port, self._events)
        for node in self._cluster.nodes:
            self._screen.say(f"{node.name} listens at {node.address}, process {node.pid}")
        self._screen.say("Each writes a journal. They are one store, and a job is on two of them before its producer")
        self._screen.say("hears of it:")
        self._screen.command(f"JOBS='{self._cluster.url}'")

    def _start_workers(self) -> None:
        self._screen.title("2. Workers")
        self._screen.command(f"penstock worker $JOBS orders shop:ship --processes {PROCESSES} --events events")
        self._screen.say("They wait for orders, and put a job into the queue 'shipped' for each.")
        self._runs.mkdir()
        words = ("worker", self._cluster.url, "orders", "shop:ship", "--processes", str(PROCESSES))
        words = (*words, "--events", str(self._events))
        here = Path(__file__).parent
        self._workers = self._parts.start(*words, cwd=here, variables={shop.RUNS_VARIABLE: str(self._runs)})

    def _start_drain(self) -> None:
        self._screen.title("3. A streaming query")
        lack = "it is left out, as told" if self._options.no_spark else why_no_spark(self._parts.folder)
        if lack:
            self._drain_without_spark(lack)
            return
        self._drain = SparkDrain(self._parts, self._cluster.url)
        self._screen.command(self._drain.command)
        self._screen.say("Spark moves what is shipped into Parquet files, batch by batch. It takes a moment to start:")
        began = time.monotonic()
        while not self._drain.is_ready() and time.monotonic() - began < self._options.patience:
            self._workers.check()
            self._check_drain()
            time.sleep(LOOK_S)
        self._screen.say(f"{time.monotonic() - began:.0f} s.")

    def _drain_without_spark(self, reason: str) -> None:
        self._screen.say(f"There is no Spark for this: {reason}", "yellow")
        self._screen.say("The results go to a file of SQLite instead:")
        self._drain = CopyDrain(self._parts, self._cluster.url)
        self._screen.command(self._drain.command)

    # While it runs.

    def _watch(self, is_over: Callable[[], bool], seconds_max: float | None = None) -> None:
        """Show how things stand until something is so; no longer than anything moves."""
        until = None if seconds_max is None else time.monotonic() + seconds_max
        while True:
            self._look()
            if is_over():
                return
            now = time.monotonic()
            if now - self._moved_at > self._options.patience or (until is not None and now > until):
                return
            time.sleep(LOOK_S)

    def _look(self) -> None:
        """Take all figures, show them, and see that everybody is at work."""
        self._workers.check()
        self._check_drain()
        if self._producers.problem is not None:
            raise DemoFailed(f"a producer gave up: {self._producers.problem}") from self._producers.problem
        counts = {
            "producers": len(self._producers.acknowledged),
            "workers": shop.runs_in(self._runs),
            "drain": self._drain.count(),
        }
        for name, count in counts.items():
            if count != self._meters[name].count:
                self._moved_at = time.monotonic()
            self._meters[name].note(count)
        nodes = {node.name: node.is_up() for node in self._cluster.nodes}
        seconds = time.monotonic() - self._began
        produced, done, stored = counts.values()
        self._screen.show(Figures(seconds, nodes, self._options.jobs, produced, done, stored, self._drain.place))

    def _check_drain(self) -> None:
        try:
            self._drain.check()
        except DemoFailed as problem:
            if self._drain.count():
                raise
            self._drain.stop()
            self._drain_without_spark(str(problem))  # it could not even begin

    def _is_time_to_kill(self) -> bool:
        share = len(self._producers.acknowledged) / self._options.jobs
        return share >= KILL_AT_LATEST or (share >= KILL_AFTER and self._meters["drain"].count > 0)

    def _kill_a_node(self) -> None:
        node = self._cluster.busiest()
        self._screen.title("5. A node dies")
        self._screen.command(f"kill -9 {node.pid}", "red")
        self._screen.say(f"{node.name}, which most clients were on, is gone. They go to the others.")
        self._cluster.kill(node)
        self.summary.killed = node.name
        killed_at = time.monotonic()
        self._watch(lambda: False, DOWN_S)
        self._screen.command("penstock cluster start")
        self._cluster.start(meanwhile=self._look)
        self.summary.node_down_seconds = time.monotonic() - killed_at
        self._screen.say(f"It is back after {self.summary.node_down_seconds:.1f} s, with the jobs of its journal.")

    def _is_all_there(self) -> bool:
        rows = self._meters["drain"].count
        if not self._producers.is_done or rows < self._options.jobs or rows == self._rows_read:
            return False
        self._rows_read = rows
        return not self._balance().lost

    def _are_queues_empty(self) -> bool:
        self.summary.left_in_queues = self._left()
        return not self.summary.left_in_queues

    def _left(self) -> int:
        try:
            with connect(self._cluster.url) as store:
                return sum(store.queue(name).total() for name in ("orders", "shipped"))
        except PenstockError as problem:
            raise DemoFailed(f"the cluster can't be asked: {problem}") from problem

    # In the end.

    def _balance(self) -> Balance:
        orders = range(1, self._options.jobs + 1)
        return balance(self._producers.acknowledged, orders, self._drain.rows())

    def _sum_up(self) -> None:
        found = self._balance()
        told = self.summary
        told.drained_by = self._drain.name
        told.acknowledged = len(self._producers.acknowledged)
        told.pushed_in_doubt = self._producers.doubtful
        told.runs = shop.runs_in(self._runs)
        told.duplicates = found.duplicates
        told.orders, told.lost, told.unknown = found.orders, len(found.lost), len(found.unknown)
        told.rows = found.orders + sum(found.duplicates.values())
        told.seconds = round(time.monotonic() - self._began, 1)
        told.node_down_seconds = round(told.node_down_seconds, 1)
        told.rates = {name: round(meter.rate, 1) for name, meter in self._meters.items()}
        self._show_summary()

    def _make_lake(self) -> None:
        self._screen.title("7. What happened to each of them")
        self._screen.say("The nodes and workers wrote down what they did. Spark makes tables of it:")
        lack = (
            "it is left out, as told" if self._options.no_spark else why_no_spark(self._parts.folder) or why_no_lake()
        )
        if lack:
            self._screen.say(f"There is no lake: {lack}", "yellow")
            return
        lake = DemoLake(self._options.lake, self._events)
        lake.clear()
        lake.build(self._parts, self._screen, spark_variables(self._parts.folder))
        self.summary.lake, self.summary.report = str(lake.lake), str(lake.report)

    def _show_summary(self) -> None:
        told, place = self.summary, self._drain.place
        self._screen.title("6. What became of the orders")
        meters = self._meters
        rows = [
            ("acknowledged to producers", f"{told.acknowledged:,}", _pace(meters["producers"])),
            ("runs of workers", f"{told.runs:,}", _pace(meters["workers"])),
            (f"rows in {place}", f"{told.rows:,}", _pace(meters["drain"])),
            (f"orders in {place}", f"{told.orders:,}", ""),
            ("lost", f"{told.lost:,}", "acknowledged, and not there"),
            ("left in the queues", f"{told.left_in_queues:,}", ""),
            ("duplicates", f"{sum(told.duplicates.values()):,}", ""),
        ]
        rows += [(f"  {cause}", f"{count:,}", CAUSES[cause]) for cause, count in told.duplicates.items() if count]
        if told.unknown:
            rows.append(("out of thin air", f"{told.unknown:,}", "nobody has pushed them"))
        self._screen.rows(rows)
        verdict = "Nothing was lost." if told.is_good else "This should not be."
        self._screen.say(f"{verdict} It took {told.seconds:.0f} s.", "bold green" if told.is_good else "bold red")


def _pace(meter: Meter) -> str:
    return f"in {meter.seconds:.0f} s, {meter.rate:,.0f} a second"
