"""A pipeline as a drawing: text, Mermaid (for Markdown pages), or SVG.

Queues are rounded, links are boxes. Each link says what its step is on the pipeline's store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape

from penstock.pipelines.link import Link, StepKind
from penstock.pipelines.recipe import in_order

# Of the SVG, in pixels.
BOX_WIDTH, BOX_HEIGHT = 150, 40
GAP_X, GAP_Y = 50, 24
MARGIN = 20
LETTERS_MAX = 20  # of a name in a box

_STYLE = (
    "text{font:13px sans-serif;fill:#222;text-anchor:middle}.note{font-size:10px;fill:#666}"
    ".queue{fill:#e8f1fb;stroke:#3b73af}.link{fill:#fff;stroke:#444}.paused{stroke-dasharray:4 3;fill:#f4f4f4}"
    ".edge{fill:none;stroke:#666;marker-end:url(#arrow)}.background{fill:#fff}"
)
_ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#666"/></marker></defs>'
)


@dataclass(frozen=True)
class Drawing:
    """What is drawn."""

    name: str
    store: str
    links: Mapping[str, Link]
    steps: Mapping[str, StepKind]  # by link; empty if the store wasn't asked

    def note(self, link: Link) -> str:
        """Return what is said of a link beside its name."""
        step = [str(self.steps[link.name])] if link.name in self.steps else []
        return ", ".join([str(link.kind), *step, *(["paused"] if link.paused else [])])


def text(drawing: Drawing) -> str:
    """Return lines for a terminal."""
    rows = []
    for link in drawing.links.values():
        function = link.function if isinstance(link.function, str) else getattr(link.function, "__name__", "function")
        places = f" in {link.processes} processes" if link.processes else ""
        targets = " | ".join(link.targets)
        path = f"{link.source} -> [{link.name}]" + (f" -> {targets}" if targets else "")
        rows.append((path, drawing.note(link), f"{function}, {link.concurrency} at a time{places}"))
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(2)]
    lines = [f"{drawing.name} on {drawing.store}"]
    lines += [f"  {path:<{widths[0]}}   {note:<{widths[1]}}   {how}" for path, note, how in rows]
    return "\n".join(lines) + "\n"


def mermaid(drawing: Drawing) -> str:
    """Return a flow chart in Mermaid."""
    queues = {queue: f"q{number}" for number, queue in enumerate(in_order(drawing.links))}
    lines = ["flowchart LR"]
    lines += [f'    {key}(["{_quoted(queue)}"])' for queue, key in queues.items()]
    for number, link in enumerate(drawing.links.values()):
        lines.append(f'    l{number}["{_quoted(link.name)}<br/><small>{_quoted(drawing.note(link))}</small>"]')
        lines.append(f"    {queues[link.source]} --> l{number}")
        lines += [f"    l{number} --> {queues[target]}" for target in link.targets]
    return "\n".join(lines) + "\n"


def _quoted(words: str) -> str:
    return words.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")


def svg(drawing: Drawing) -> str:
    """Return a picture: columns of queues and links from left to right."""
    columns = _columns(drawing.links)
    at: dict[tuple[str, str], tuple[float, float]] = {}  # the left upper corner of each box
    tallest = max(map(len, columns), default=0)
    for column, boxes in enumerate(columns):
        top = MARGIN + (tallest - len(boxes)) * (BOX_HEIGHT + GAP_Y) / 2
        for row, box in enumerate(boxes):
            at[box] = MARGIN + column * (BOX_WIDTH + GAP_X), top + row * (BOX_HEIGHT + GAP_Y)
    width = 2 * MARGIN + len(columns) * (BOX_WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + tallest * (BOX_HEIGHT + GAP_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(drawing.name)}</title><style>{_STYLE}</style>",
        _ARROW,
        f'<rect class="background" width="{width}" height="{height}"/>',
    ]
    for link in drawing.links.values():
        here = at["link", link.name]
        parts.append(_edge(at["queue", link.source], here))
        parts += [_edge(here, at["queue", target]) for target in link.targets]
    for (kind, name), corner in at.items():
        named = drawing.links.get(name) if kind == "link" else None
        parts.append(_box(kind, name, corner, "" if named is None else drawing.note(named), named))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _columns(links: Mapping[str, Link]) -> list[list[tuple[str, str]]]:
    """Return the boxes of each column. A queue is to the right of the links that move jobs to it, but for cycles."""
    order = {queue: number for number, queue in enumerate(in_order(links))}
    depth = dict.fromkeys(order, 0)
    for link in sorted(links.values(), key=lambda link: order[link.source]):
        for target in link.targets:
            if order[target] > order[link.source]:  # otherwise it closes a cycle
                depth[target] = max(depth[target], depth[link.source] + 2)
    boxes = [(depth[queue], ("queue", queue)) for queue in order]
    boxes += [(depth[link.source] + 1, ("link", link.name)) for link in links.values()]
    last = max((column for column, _ in boxes), default=-1)
    return [[box for column, box in boxes if column == number] for number in range(last + 1)]


def _edge(begin: tuple[float, float], end: tuple[float, float]) -> str:
    x1, y1 = begin[0] + BOX_WIDTH, begin[1] + BOX_HEIGHT / 2
    x2, y2 = end[0], end[1] + BOX_HEIGHT / 2
    bend = GAP_X if x2 > x1 else BOX_WIDTH  # one that goes back swings wide
    return f'<path class="edge" d="M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"/>'


def _box(kind: str, name: str, corner: tuple[float, float], note: str, link: Link | None) -> str:
    x, y = corner
    shown = name if len(name) <= LETTERS_MAX else name[: LETTERS_MAX - 1] + "…"
    classes = kind + (" paused" if link is not None and link.paused else "")
    rounding = BOX_HEIGHT / 2 if kind == "queue" else 3
    middle = x + BOX_WIDTH / 2
    baseline = y + BOX_HEIGHT / 2 + (0 if note else 5)
    lines = [
        f'<rect class="{classes}" x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="{rounding:g}"/>',
        f'<text x="{middle:g}" y="{baseline:g}">{escape(shown)}<title>{escape(name)}</title></text>',
    ]
    if note:
        lines.append(f'<text class="note" x="{middle:g}" y="{baseline + 13:g}">{escape(note)}</text>')
    return "".join(lines)


FORMATS: Mapping[str, Callable[[Drawing], str]] = {"text": text, "mermaid": mermaid, "svg": svg}
