"""One HTML file with charts and tables of a lake. It opens offline: scripts and styles are in it.

    gather    asks the views (Spark)
    render    makes the file (bokeh)

Charts are of all queues together, but for the depth, which shows the queues that were deepest; the tables list all. The
page follows the reader's light or dark theme: charts have no background, and colours that can be read on both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import CallerError, MissingExtra
from penstock.lake.views import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINTS_MAX = 300  # of a chart: more can't be told apart on a screen
DEEPEST = 8  # queues in the chart of depths: as many colours as can be told apart
ROWS_MAX = 20  # of the tables of jobs and errors
QUEUES_MAX = 1000  # of the table of queues
BUCKETS_S = (60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400)

# Readable on white and on black: each has a contrast of at least 3 to both.
BLUE, ORANGE, GREEN, RED, GREY = "#3b82c4", "#d9822b", "#2e9e6b", "#d64545", "#888888"
COLOURS = (BLUE, ORANGE, GREEN, RED, "#9b6dd6", "#a3791f", "#d45fa0", "#2a9d9d")

Row = Mapping[str, Any]


@dataclass(slots=True)
class ReportData:
    """What a report shows. Times are in UTC."""

    first: datetime
    last: datetime
    bucket_s: int
    rates: Sequence[Row] = ()  # time, added, started, acked, retried, failed, expired, wait_p50 … run_p99
    depths: Sequence[Row] = ()  # time, queue, depth
    queues: Sequence[Row] = ()
    errors: Sequence[Row] = ()
    slowest: Sequence[Row] = ()
    stuck: Sequence[Row] = ()
    workers: Sequence[Row] = ()
    totals: Row = field(default_factory=dict)


def gather(spark: SparkSession, lake: str | Path) -> ReportData:
    """Return what a report shows of a lake."""
    register(spark, lake)

    def ask(text: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = spark.sql(text).toArrow().to_pylist()
        return rows

    (span,) = ask("select min(minute) as first, max(minute) as last from metric_parts")
    if span["first"] is None:
        raise CallerError(f"the lake must have jobs to report on, got none in {lake}: run `penstock lake build`")
    first, last = _utc(span["first"]), _utc(span["last"])
    size = bucket_s(last - first)
    time = f"timestamp_seconds(floor(unix_seconds(minute) / {size}) * {size})"
    counts = ", ".join(
        f"sum({name}) as {name}" for name in ("added", "started", "acked", "retried", "failed", "expired")
    )
    quantiles = ", ".join(
        f"kll_sketch_get_quantile_bigint({kind}s, {share}) as {kind}_p{share[2:].ljust(2, '0')}"
        for kind in ("wait", "run")
        for share in ("0.5", "0.95", "0.99")
    )
    # A merge of no sketches has no quantiles, and Spark refuses to be asked for them.
    sketches = ", ".join(
        f"case when count({kind}_sketch) > 0 then kll_merge_agg_bigint({kind}_sketch) end as {kind}s"
        for kind in ("wait", "run")
    )
    rates = ask(
        f"select *, {quantiles} from (select {time} as time, {counts}, {sketches} from metric_parts group by 1) "
        "order by 1"
    )
    depths = ask(
        f"with deepest as (select queue from metrics group by queue order by max(depth) desc, queue limit {DEEPEST}) "
        f"select {time} as time, queue, max_by(depth, minute) as depth from metrics join deepest using (queue) "
        "group by 1, 2 order by 2, 1"
    )
    return ReportData(
        first,
        last,
        size,
        rates=[{name: value for name, value in row.items() if name not in ("waits", "runs")} for row in rates],
        depths=depths,
        queues=ask(
            "select queue, count(*) as jobs, count_if(outcome = 'waiting') as waiting, "
            "count_if(outcome = 'running') as running, count_if(outcome = 'acked') as acked, "
            "count_if(outcome = 'failed') as failed, count_if(attempts > 1) as retried, "
            "percentile_approx(wait_ms, 0.95) as wait_p95, percentile_approx(run_ms, 0.95) as run_p95 "
            f"from jobs group by queue order by jobs desc, queue limit {QUEUES_MAX}"
        ),
        errors=ask(f"select * from errors order by attempts desc limit {ROWS_MAX}"),
        slowest=ask(
            "select job, queue, outcome, run_ms, attempts, last_worker from jobs where run_ms is not null "
            f"order by run_ms desc limit {ROWS_MAX}"
        ),
        stuck=ask(
            "select job, queue, outcome, last_kind, last_event, attempts, last_worker from stuck "
            f"order by last_event limit {ROWS_MAX}"
        ),
        workers=ask(
            "select worker, sum(jobs) as jobs, sum(failures) as failures, sum(busy_ms) as busy_ms, count(*) as hours, "
            f"avg(busy_share) as busy_share from workers group by worker order by jobs desc limit {QUEUES_MAX}"
        ),
        totals=ask(
            "select count(*) as jobs, sum(attempts) as attempts, count_if(outcome = 'acked') as acked, "
            "count_if(outcome = 'failed') as failed, count_if(outcome in ('waiting', 'running')) as open from jobs"
        )[0],
    )


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def bucket_s(span: timedelta) -> int:
    """Return the seconds that a point of a chart stands for."""
    wanted = span.total_seconds() / POINTS_MAX
    return next((size for size in BUCKETS_S if size >= wanted), BUCKETS_S[-1])


def write(data: ReportData, path: Path) -> None:
    """Write the report to a file, as a whole or not at all."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(render(data), "utf-8")
    new.replace(path)


def render(data: ReportData) -> str:
    """Return the report as HTML."""
    try:
        from bokeh.embed import components  # noqa: PLC0415 - only reports need it
        from bokeh.resources import Resources  # noqa: PLC0415 - only reports need it
    except ModuleNotFoundError as problem:
        raise MissingExtra("the report needs bokeh. Install it with: pip install 'penstock[lake]'") from problem
    charts = _charts(data)
    script, divs = components(charts)
    library = Resources(mode="inline", components=["bokeh"]).render()  # without widgets and formulas: a quarter of all
    figures = "".join(f"<figure><figcaption>{escape(name)}</figcaption>{divs[name]}</figure>" for name in charts)
    totals = "".join(
        f"<div><b>{_number(data.totals.get(name))}</b> {words}</div>"
        for name, words in (
            ("jobs", "jobs"),
            ("acked", "acknowledged"),
            ("open", "open"),
            ("failed", "dead"),
            ("attempts", "deliveries"),
        )
    )
    tables = "".join(_table(title, columns, getattr(data, name), empty) for name, title, columns, empty in TABLES)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Penstock: {data.first:%Y-%m-%d} to {data.last:%Y-%m-%d}</title>
<style>{STYLE}</style>{library}</head>
<body><header><h1>What happened to the jobs</h1>
<p>{data.first:%Y-%m-%d %H:%M} to {data.last + timedelta(minutes=1):%Y-%m-%d %H:%M} UTC;
a point is {_bucket_words(data.bucket_s)}</p><div class="totals">{totals}</div></header>
<main class="charts">{figures}</main>{tables}{script}</body></html>
"""


STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #777; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 1180px; padding: 1.5rem; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e4e4e4; } :root { --quiet: #aaa; } }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
header p, figcaption, .empty { color: var(--quiet); margin: .2rem 0; }
.totals { display: flex; flex-wrap: wrap; gap: .4rem 2rem; margin: .8rem 0 1.2rem; } .totals b { font-size: 1.3rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)); gap: 1.2rem 1.5rem; }
figure { margin: 0; min-width: 0; } figcaption { font-weight: 600; }
.scroll { max-height: 26rem; overflow: auto; border: 1px solid var(--line); border-radius: 4px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; } td, th { padding: .25rem .6rem; text-align: left; }
th { position: sticky; top: 0; background: Canvas; } tr + tr td { border-top: 1px solid var(--line); }
@media (prefers-color-scheme: dark) { th { background: #16181c; } }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } td { overflow-wrap: anywhere; min-width: 5.5rem; }
td.n { min-width: 0; }
"""

# Attribute of the data, title, columns as (name, title), what is said without rows.
TABLES = (
    (
        "queues",
        "Queues",
        (
            "queue:Queue jobs:Jobs waiting:Waiting running:Running acked:Acknowledged failed:Dead "
            "retried:Retried wait_p95:Wait_p95 run_p95:Run_p95"
        ),
        "No queues.",
    ),
    (
        "errors",
        "Errors",
        "queue:Queue error_class:Error attempts:Attempts jobs:Jobs last_seen:Last example:Example",
        "No worker reported an error.",
    ),
    (
        "stuck",
        "Open jobs without an event for an hour",
        "job:Job queue:Queue outcome:State last_kind:Last_event last_event:At attempts:Attempts last_worker:Worker",
        "None.",
    ),
    (
        "slowest",
        "Longest run times",
        "job:Job queue:Queue outcome:Outcome run_ms:Run attempts:Attempts last_worker:Worker",
        "No job has run.",
    ),
    (
        "workers",
        "Workers",
        "worker:Worker jobs:Jobs failures:Failures busy_ms:Busy busy_share:Busy_share hours:Hours_seen",
        "No worker is known by name.",
    ),
)
_DURATIONS = {"wait_p95", "run_p95", "run_ms", "busy_ms"}


def _table(title: str, columns: str, rows: Iterable[Row], empty: str) -> str:
    pairs = [column.split(":") for column in columns.split()]
    rows = list(rows)
    if not rows:
        return f'<h2>{escape(title)}</h2><p class="empty">{escape(empty)}</p>'
    numbers = {name for name, _ in pairs if any(isinstance(row.get(name), int | float) for row in rows)}

    def cell(tag: str, name: str, text: str) -> str:
        return f"<{tag}{' class=n' if name in numbers else ''}>{escape(text)}</{tag}>"

    head = "".join(cell("th", name, words.replace("_", " ")) for name, words in pairs)
    body = "".join(
        f"<tr>{''.join(cell('td', name, _shown(name, row.get(name))) for name, _ in pairs)}</tr>" for row in rows
    )
    return f'<h2>{escape(title)}</h2><div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in _DURATIONS:
        return _duration(value)
    if name == "busy_share":
        return f"{value:.0%}"
    if isinstance(value, datetime):
        return f"{_utc(value):%Y-%m-%d %H:%M:%S}"
    return _number(value) if isinstance(value, int) else str(value)


def _number(value: Any) -> str:
    return f"{value or 0:,}"


def _duration(ms: float) -> str:
    for size, unit in ((3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if abs(ms) >= size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms:.0f} ms"


def _bucket_words(seconds: int) -> str:
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = seconds // size
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{seconds} seconds"


# Charts.


def _charts(data: ReportData) -> dict[str, Any]:
    times = [_utc(row["time"]).replace(tzinfo=None) for row in data.rates]

    def lines(*names: tuple[str, str, str]) -> list[tuple[str, str, list[Any], list[Any]]]:
        return [(words, colour, times, [row.get(name) for row in data.rates]) for name, words, colour in names]

    def seconds(kind: str) -> list[tuple[str, str, list[Any], list[Any]]]:
        return [
            (f"p{share}", colour, times, [_seconds(row.get(f"{kind}_p{share}")) for row in data.rates])
            for share, colour in (("50", BLUE), ("95", ORANGE), ("99", RED))
        ]

    depths: dict[str, tuple[list[Any], list[Any]]] = {}
    for row in data.depths:
        xs, ys = depths.setdefault(row["queue"], ([], []))
        xs.append(_utc(row["time"]).replace(tzinfo=None))
        ys.append(row["depth"])
    deep = [(name, COLOURS[at % len(COLOURS)], *found) for at, (name, found) in enumerate(depths.items())]
    many = f", the {len(deep)} deepest queues" if len(data.queues) > len(deep) else ""
    unit = _bucket_words(data.bucket_s).removeprefix("1 ")
    return {
        f"Jobs per {unit}": _chart(lines(("added", "added", BLUE), ("acked", "acknowledged", GREEN)), "0,0"),
        f"Jobs that wait{many}": _chart(deep, "0,0", is_step=True),
        "Wait until a worker took the job, seconds": _chart(seconds("wait"), "0.[000]", has_points=True),
        "Run time of a delivery, seconds": _chart(seconds("run"), "0.[000]", has_points=True),
        f"Retried, dead and expired per {unit}": _chart(
            lines(("retried", "retried", ORANGE), ("failed", "dead", RED), ("expired", "expired", GREY)), "0,0"
        ),
        "Deliveries by error": _bars(data.errors),
    }


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _figure(**options: Any) -> Any:
    from bokeh.plotting import figure  # noqa: PLC0415 - only reports need it

    made = figure(height=240, sizing_mode="stretch_width", toolbar_location=None, **options)
    made.background_fill_alpha = made.border_fill_alpha = 0
    made.outline_line_color = None
    for axis in made.axis:
        axis.axis_line_color = axis.major_tick_line_color = axis.major_label_text_color = GREY
        axis.minor_tick_line_color = None
        axis.major_label_text_font_size = "12px"
    for grid in made.grid:
        grid.grid_line_color, grid.grid_line_alpha = GREY, 0.25
    made.xgrid.grid_line_color = None
    return made


def _chart(
    lines: Sequence[tuple[str, str, list[Any], list[Any]]],
    form: str,
    *,
    is_step: bool = False,
    has_points: bool = False,
) -> Any:
    from bokeh.models import HoverTool, NumeralTickFormatter  # noqa: PLC0415 - only reports need it

    made = _figure(x_axis_type="datetime", tools="")
    made.y_range.start = 0
    made.y_range.only_visible = True
    made.yaxis.formatter = NumeralTickFormatter(format=form)
    for words, colour, xs, ys in lines:
        pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None]
        data = {"x": [x for x, _ in pairs], "y": [y for _, y in pairs], "name": [words] * len(pairs)}
        label = words if len(words) <= 24 else f"{words[:23]}…"  # a legend beside the chart leaves room for the chart
        if is_step:
            made.step("x", "y", source=data, color=colour, line_width=2, mode="after", legend_label=label)
        else:
            made.line("x", "y", source=data, color=colour, line_width=2, legend_label=label)
        if has_points or len(pairs) < 2:
            made.scatter("x", "y", source=data, color=colour, size=4, legend_label=label)
    made.add_tools(
        HoverTool(tooltips=[("", "@name"), ("", "@x{%F %H:%M}"), ("", f"@y{{{form}}}")], formatters={"@x": "datetime"})
    )
    if lines:
        legend = made.legend[0]
        legend.background_fill_alpha = 0
        legend.border_line_color = None
        legend.label_text_color = GREY
        legend.label_text_font_size = "12px"
        legend.padding = legend.spacing = 0
        legend.orientation = "vertical"
        legend.click_policy = "hide"
        made.add_layout(legend, "right")
    return made


def _bars(errors: Sequence[Row]) -> Any:
    counts: dict[str, int] = {}
    for row in errors:
        counts[row["error_class"]] = counts.get(row["error_class"], 0) + row["attempts"]
    top = sorted(counts.items(), key=lambda pair: -pair[1])[:DEEPEST]
    names = [name if len(name) <= 24 else f"{name[:23]}…" for name, _ in reversed(top)]
    names = [name + " " * at for at, name in enumerate(names)]  # equal after the cut, they are still bars apart
    made = _figure(y_range=names or ["no errors"], tools="")
    made.x_range.start = 0
    made.hbar(y=names, right=[count for _, count in reversed(top)], height=0.6, color=RED)
    return made
