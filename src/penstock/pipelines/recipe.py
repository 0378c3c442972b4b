"""Recipes: pipelines as plain data, from Python, TOML or JSON, checked before anything runs.

    store = "sqlite:///photos.db"

    [links.resize]
    from = "incoming"
    to = "resized"
    function = "photos:resize"

RECIPE_KEYS and LINK_KEYS are the tables of what a recipe may have. Every problem is reported, each with the path of its
key: `links.resize.to: must be a queue or a list of queues, got 3`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import BadRecipe, CallerError
from penstock.pipelines.link import BATCH_JOBS, CONCURRENCY, ENGINES, TAKES, Link
from penstock.queues.backoff import Backoff, Fixed, parse_backoff
from penstock.queues.options import checked_lease, without_password
from penstock.queues.registry import is_store_url
from penstock.worker.handlers import NAME as FUNCTION_NAME
from penstock.worker.supervisor import PROCESSES_MAX
from penstock.worker.worker import CONCURRENCY_MAX

BYTES_MAX = 1 << 20  # a recipe of a thousand links is a tenth of it
LINKS_MAX = 1000
PROBLEMS_MAX = 100  # reported: more help nobody, and looking for a similar key takes time
QUEUE_BYTES_MAX = 1024


@dataclass(frozen=True)
class Recipe:
    """A checked recipe."""

    name: str
    store: str | None  # None: to be given when it is run
    links: dict[str, Link]
    queues: tuple[str, ...]  # in the order in which jobs go through them, as far as there is one
    dead_letters: str | None = None
    path: Path | None = field(default=None, compare=False)

    def on(self, engine: str | None) -> Recipe:
        """Return the same recipe with all links on one engine; None leaves each on its own."""
        if engine is None:
            return self
        return replace(self, links={name: replace(link, engine=engine) for name, link in self.links.items()})

    @classmethod
    def read(cls, source: Recipe | Mapping[str, Any] | str | Path) -> Recipe:
        """Return the recipe of a file (.toml or .json) or of plain data; BadRecipe says what is wrong with it."""
        if isinstance(source, Recipe):
            return source
        if not isinstance(source, str | Path):
            return _checked(source, "pipeline", None)
        path = Path(source)
        return _checked(_parsed(path), path.stem, path)


def _parsed(path: Path) -> Any:
    """Return the data of a file. Errors of its syntax have the line."""
    parsers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}
    parse = parsers.get(path.suffix.lower())
    if parse is None:
        raise BadRecipe(f"a recipe must be a file that ends in .toml or .json, got {path}")
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise BadRecipe(f"{path}: a recipe must have at most {BYTES_MAX} bytes, got more")
        return parse(data.decode())
    except OSError as problem:
        raise BadRecipe(f"{path}: can't be read: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:  # with the line, and UnicodeDecodeError with the byte
        raise BadRecipe(f"{path}: must be valid {path.suffix[1:].upper()}: {problem}") from problem


class _Wrong(Exception):
    """What a value must be."""


class Key(NamedTuple):
    """A key of a recipe."""

    check: Callable[[Any], Any]  # returns the value to use, or raises _Wrong with what it must be
    meaning: str
    is_needed: bool = False


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise _Wrong("must be a text that can be printed")
    return value


def _is_queue(value: Any) -> bool:
    """Whether a value is the name of a queue, without characters that could control a terminal."""
    return isinstance(value, str) and value.isprintable() and 0 < len(value.encode()) <= QUEUE_BYTES_MAX


def _queue(value: Any) -> str:
    if not _is_queue(value):
        raise _Wrong(f"must be a queue, 1 to {QUEUE_BYTES_MAX} bytes of text that can be printed")
    return str(value)


def _targets(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(map(_is_queue, names)):
        raise _Wrong("must be a queue or a list of queues")
    if len(set(names)) < len(names):
        raise _Wrong("must name each queue once")
    return tuple(names)


def _queues(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(map(_is_queue, value)):
        raise _Wrong("must be a list of queues")
    return tuple(value)


def _url(value: Any) -> str:
    if not isinstance(value, str) or not is_store_url(value):
        raise _Wrong("must be the URL of a store, such as sqlite:///jobs.db")
    return value


def _function(value: Any) -> Any:
    if not callable(value) and not (isinstance(value, str) and FUNCTION_NAME.fullmatch(value)):
        raise _Wrong("must be module:function, such as photos:resize")
    return value


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise _Wrong(f"must be a whole number, {least} to {most}")
        return value

    return check


def _time_limit(value: Any) -> float:
    if not _is_number(value) or not 0 < value < float("inf"):
        raise _Wrong("must be above 0 seconds")
    return float(value)


def _lease(value: Any) -> float:
    if not _is_number(value):
        raise _Wrong("must be a number of seconds")
    try:
        return checked_lease(value)
    except CallerError as problem:
        raise _Wrong(str(problem).removeprefix("lease ").partition(", got ")[0]) from None


def _backoff(value: Any) -> Backoff:
    text = "must be seconds, such as 5, or a range that doubles, such as '1..600'"
    try:
        if _is_number(value):
            return Fixed(float(value))
        if isinstance(value, str):
            return parse_backoff(value)
    except CallerError:
        raise _Wrong(text) from None
    raise _Wrong(text)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Wrong("must be true or false")
    return value


def _one_of(*names: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in names:
            raise _Wrong(f"must be {', '.join(names[:-1])} or {names[-1]}")
        return str(value)

    return check


def _links(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not 0 < len(value) <= LINKS_MAX:
        raise _Wrong(f"must be a table of 1 to {LINKS_MAX} links")
    return dict(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


RECIPE_KEYS = {
    "name": Key(_text, "the name of the pipeline; by default that of the file"),
    "store": Key(_url, "the URL of the store; `--store` and the variable PENSTOCK_URL go before it"),
    "queues": Key(_queues, "all queues of the pipeline; then a link can't name another one by mistake"),
    "dead_letters": Key(_queue, "the queue of dead letters"),
    "links": Key(_links, "a table for each link, by its name", is_needed=True),
}

LINK_KEYS = {
    "from": Key(_queue, "the queue whose jobs the link takes", is_needed=True),
    "to": Key(_targets, "the queue that they go to, or a list to choose from; without it the link is a sink"),
    "function": Key(_function, "`module:function`", is_needed=True),
    "takes": Key(
        _one_of(*TAKES),
        "what the function is called with: `job`, `payload`, or many jobs at once as `pandas` or `arrow` "
        f"(default `{TAKES[0]}`)",
    ),
    "batch": Key(
        _whole(1, CONCURRENCY_MAX),
        f"maximum number of jobs in one call, with `pandas` and `arrow` (default {BATCH_JOBS})",
    ),
    "concurrency": Key(_whole(1, CONCURRENCY_MAX), f"calls at the same time, in each process (default {CONCURRENCY})"),
    "processes": Key(
        _whole(0, PROCESSES_MAX), "processes of the link's own (default 0: beside the other links); Spark has its own"
    ),
    "max_tries": Key(
        _whole(0, 1_000_000), "deliveries after which a job goes to the dead letters; 0 is without limit (default 25)"
    ),
    "backoff": Key(_backoff, "wait after an error: seconds, or a range such as `1..600` (default `1..3600`)"),
    "time_limit": Key(_time_limit, "maximum run time of the function in seconds"),
    "lease": Key(_lease, "seconds after which the jobs of a process that crashed come back; extended while they run"),
    "max_waiting": Key(
        _whole(1, 1_000_000_000), "the link waits while a queue that it moves jobs to has as many ready jobs as this"
    ),
    "paused": Key(_boolean, "the link takes no jobs"),
    "engine": Key(
        _one_of(*ENGINES), "what runs the link: `worker` or `spark` (default `worker`; `--engine` goes before it)"
    ),
}
# Keys whose names differ from those of a Link.
_FIELDS = {"from": "source", "to": "targets"}


def _checked(data: Any, name: str, path: Path | None) -> Recipe:
    problems: list[str] = []
    if not isinstance(data, Mapping):
        raise BadRecipe(f"a recipe must be a table, got {_shown(data)}")
    values = _values(data, RECIPE_KEYS, "", problems)
    links = {}
    for link_name, given in values.get("links", {}).items():
        if len(problems) >= PROBLEMS_MAX:
            break
        link = _link(link_name, given, problems)
        if link is not None:
            links[link.name] = link
    named = values.get("queues")
    for link in links.values():
        problems += _misplaced(link, named)
    if problems:
        front = "" if path is None else f"{path}: "
        raise BadRecipe("\n".join(front + problem for problem in problems), problems)
    return Recipe(
        name=values.get("name", name),
        store=values.get("store"),
        links=links,
        queues=in_order(links, named or ()),
        dead_letters=values.get("dead_letters"),
        path=path,
    )


def _link(name: Any, given: Any, problems: list[str]) -> Link | None:
    where = f"links.{name}"
    if not isinstance(name, str) or not name or not name.isprintable():
        problems.append(f"links: the name of a link must be a text, got {name!r}")
        return None
    if not isinstance(given, Mapping):
        problems.append(f"{where}: must be a table, got {_shown(given)}")
        return None
    before = len(problems)
    values = _values(given, LINK_KEYS, f"{where}.", problems)
    if len(problems) > before:
        return None
    named = {_FIELDS.get(key, key): value for key, value in values.items()}
    return Link(name, **{"targets": (), **named})


def _values(given: Mapping[Any, Any], keys: dict[str, Key], front: str, problems: list[str]) -> dict[str, Any]:
    """Return the checked values of a table."""
    values = {}
    for name, value in given.items():
        if len(problems) >= PROBLEMS_MAX:
            break
        key = keys.get(name) if isinstance(name, str) else None
        if key is None:
            near = get_close_matches(str(name), keys, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(keys)}"
            problems.append(f"{front}{str(name)[:60]}: unknown key; {hint}")
            continue
        try:
            values[name] = key.check(value)
        except _Wrong as wrong:
            problems.append(f"{front}{name}: {wrong}, got {_shown(value)}")
    problems += [f"{front}{name}: is missing" for name, key in keys.items() if key.is_needed and name not in given]
    return values


def _misplaced(link: Link, named: tuple[str, ...] | None) -> list[str]:
    """Return what is wrong with the queues of a link."""
    front = f"links.{link.name}"
    wrong = []
    if link.source in link.targets:
        wrong.append(f"{front}.to: must not be the queue that the link reads, got {_shown(link.source)}")
    if named is not None:
        rows = [("from", link.source), *(("to", target) for target in link.targets)]
        wrong += [
            f"{front}.{key}: must be one of the queues of the recipe ({', '.join(named)}), got {_shown(queue)}"
            for key, queue in rows
            if queue not in named
        ]
    return wrong


def in_order(links: Mapping[str, Link], named: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the queues of links, each before those that its jobs go to; within a cycle as they are written."""
    targets: dict[str, list[str]] = {}
    for link in links.values():
        targets.setdefault(link.source, []).extend(link.targets)
        for target in link.targets:
            targets.setdefault(target, [])
    for name in named:
        targets.setdefault(name, [])
    ordered: list[str] = []
    visited: set[str] = set()
    # Depth first, without recursion: a chain may be as long as a recipe can be.
    for start in reversed(targets):
        stack = [(start, iter(targets[start]))] if start not in visited else []
        visited.add(start)
        while stack:
            queue, rest = stack[-1]
            following = next((target for target in rest if target not in visited), None)
            if following is None:
                stack.pop()
                ordered.append(queue)
            else:
                visited.add(following)
                stack.append((following, iter(targets[following])))
    return tuple(reversed(ordered))


def _shown(value: Any) -> str:
    """Return a value as it is written in an error."""
    if isinstance(value, str):
        value = without_password(value)  # it may be the URL of the store, with a mistake or under a wrong key
    elif isinstance(value, list | tuple):
        value = [without_password(one) if isinstance(one, str) else one for one in value]
    text = repr(value) if not isinstance(value, Mapping) else "a table"
    return text if len(text) <= 60 else f"{text[:57]}..."
