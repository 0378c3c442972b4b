"""Recipes: what is accepted, and what is said of mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import Exponential, Fixed
from penstock.errors import BadRecipe
from penstock.pipelines import Recipe
from penstock.pipelines.link import LinkKind
from penstock.pipelines.recipe import in_order

TOML = """
name = "photos"
store = "sqlite:///photos.db"
queues = ["incoming", "resized", "small", "large"]
dead_letters = "broken"

[links.resize]
from = "incoming"
to = "resized"
function = "photos:resize"
takes = "payload"
concurrency = 4
processes = 2
max_tries = 3
backoff = "1..600"
time_limit = 30
lease = 60
max_waiting = 1000

[links.sort]
from = "resized"
to = ["small", "large"]
function = "photos:sort"
backoff = 5
paused = true

[links.publish]
from = "small"
function = "photos:publish"
engine = "worker"
"""


def link(**changed: Any) -> dict[str, Any]:
    row = {"from": "a", "to": "b", "function": "steps:run", **changed}
    return {"links": {"first": {key: value for key, value in row.items() if value is not None}}}


def problems(data: Any) -> list[str]:
    with pytest.raises(BadRecipe) as refused:
        Recipe.read(data)
    return refused.value.problems


def test_a_recipe_in_toml_has_links_of_each_kind(tmp_path: Path) -> None:
    path = tmp_path / "whatever.toml"
    path.write_text(TOML)
    recipe = Recipe.read(path)
    assert (recipe.name, recipe.store, recipe.dead_letters) == ("photos", "sqlite:///photos.db", "broken")
    resize, sort, publish = recipe.links.values()
    assert [one.kind for one in (resize, sort, publish)] == [LinkKind.DIRECT, LinkKind.CHOICE, LinkKind.SINK]
    assert (resize.source, resize.targets, resize.function, resize.takes) == (
        "incoming",
        ("resized",),
        "photos:resize",
        "payload",
    )
    assert (resize.concurrency, resize.processes, resize.max_tries, resize.max_waiting) == (4, 2, 3, 1000)
    assert (resize.time_limit, resize.lease, resize.backoff) == (30.0, 60.0, Exponential(1, 2, 600))
    assert (sort.backoff, sort.paused, sort.targets) == (Fixed(5), True, ("small", "large"))


def test_json_and_plain_data_mean_the_same_as_toml(tmp_path: Path) -> None:
    toml, as_json = tmp_path / "same.toml", tmp_path / "same.json"
    data = {"store": "memory:", **link(concurrency=3)}
    toml.write_text('store = "memory:"\n[links.first]\nfrom = "a"\nto = "b"\nfunction = "steps:run"\nconcurrency = 3\n')
    as_json.write_text(json.dumps(data))
    assert Recipe.read(toml) == Recipe.read(as_json)
    assert Recipe.read(toml).links == Recipe.read(data).links
    assert Recipe.read(toml).name == "same"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"to": 3}, "links.first.to: must be a queue or a list of queues, got 3"),
        ({"to": []}, "links.first.to: must be a queue or a list of queues, got []"),
        ({"to": ["b", "b"]}, "links.first.to: must name each queue once, got ['b', 'b']"),
        ({"to": "a"}, "links.first.to: must not be the queue that the link reads, got 'a'"),
        ({"from": None}, "links.first.from: is missing"),
        ({"from": ""}, "links.first.from: must be a queue, 1 to 1024 bytes of text that can be printed, got ''"),
        (
            {"from": "a\x1b[2J"},
            "links.first.from: must be a queue, 1 to 1024 bytes of text that can be printed, got 'a\\x1b[2J'",
        ),
        ({"to": ["b", "c\n"]}, "links.first.to: must be a queue or a list of queues, got ['b', 'c\\n']"),
        ({"function": None}, "links.first.function: is missing"),
        ({"function": "steps"}, "links.first.function: must be module:function, such as photos:resize, got 'steps'"),
        ({"takes": "body"}, "links.first.takes: must be job, payload, pandas or arrow, got 'body'"),
        ({"concurrency": 0}, "links.first.concurrency: must be a whole number, 1 to 10000, got 0"),
        ({"concurrency": True}, "links.first.concurrency: must be a whole number, 1 to 10000, got True"),
        ({"processes": 1000}, "links.first.processes: must be a whole number, 0 to 512, got 1000"),
        ({"max_tries": -1}, "links.first.max_tries: must be a whole number, 0 to 1000000, got -1"),
        (
            {"backoff": "soon"},
            "links.first.backoff: must be seconds, such as 5, or a range that doubles, such as '1..600', got 'soon'",
        ),
        ({"time_limit": 0}, "links.first.time_limit: must be above 0 seconds, got 0"),
        ({"lease": -1}, "links.first.lease: must be above 0 and at most 2592000 seconds, got -1"),
        ({"lease": "1"}, "links.first.lease: must be a number of seconds, got '1'"),
        ({"max_waiting": 0}, "links.first.max_waiting: must be a whole number, 1 to 1000000000, got 0"),
        ({"paused": 1}, "links.first.paused: must be true or false, got 1"),
        ({"engine": "flink"}, "links.first.engine: must be worker or spark, got 'flink'"),
        ({"concurency": 4}, "links.first.concurency: unknown key; did you mean concurrency?"),
    ],
)
def test_a_mistake_in_a_link_is_named_with_its_path(changed: dict[str, Any], said: str) -> None:
    assert problems(link(**changed)) == [said]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "a recipe must be a table, got []"),
        ({}, "links: is missing"),
        ({"links": {}}, "links: must be a table of 1 to 1000 links, got a table"),
        ({"links": {"first": 3}}, "links.first: must be a table, got 3"),
        ({**link(), "name": "a\tb"}, "name: must be a text that can be printed, got 'a\\tb'"),
        ({**link(), "store": "jobs.db"}, "store: must be the URL of a store, such as sqlite:///jobs.db, got 'jobs.db'"),
        ({**link(), "queues": ["a"]}, "links.first.to: must be one of the queues of the recipe (a), got 'b'"),
        ({**link(), "queues": "a"}, "queues: must be a list of queues, got 'a'"),
        ({**link(), "colour": 1}, "colour: unknown key; there are name, store, queues, dead_letters, links"),
    ],
)
def test_a_mistake_in_a_recipe_is_named_with_its_path(data: Any, said: str) -> None:
    assert problems(data) == [said]


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"store": 1, "links": {"one": {"from": "a", "to": 3}, "two": 4}}))
    with pytest.raises(BadRecipe) as refused:
        Recipe.read(path)
    assert str(refused.value).splitlines() == [
        f"{path}: store: must be the URL of a store, such as sqlite:///jobs.db, got 1",
        f"{path}: links.one.to: must be a queue or a list of queues, got 3",
        f"{path}: links.one.function: is missing",
        f"{path}: links.two: must be a table, got 4",
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("bad.toml", "[links\n", "must be valid TOML: .*line 1"),
        ("bad.json", '{\n"links": ', "must be valid JSON: .*line 2"),
        ("bad.json", "[" * 100_000, "must be valid JSON"),
        ("bad.yaml", "", "must be a file that ends in .toml or .json"),
    ],
)
def test_a_mistake_of_the_syntax_has_its_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadRecipe, match=said):
        Recipe.read(tmp_path / name)


@pytest.mark.parametrize(
    "data",
    [
        {**link(), "store": "mongdb:tom:SEKRET@h/db"},
        {**link(), "store": ["redis://tom:SEKRET@h"]},
        link(function="redis://tom:SEKRET@h"),
        {**link(), "queues": "redis://h/0?password=SEKRET"},
    ],
)
def test_a_password_in_a_recipe_is_not_shown(data: Any) -> None:
    (problem,) = problems(data)
    assert "SEKRET" not in problem


def test_no_more_than_a_recipe_may_have_is_read(tmp_path: Path) -> None:
    path = tmp_path / "endless.toml"
    path.symlink_to("/dev/zero")
    with pytest.raises(BadRecipe, match="a recipe must have at most 1048576 bytes, got more"):
        Recipe.read(path)


def test_not_every_mistake_of_a_nonsensical_recipe_is_reported() -> None:
    assert len(problems({**link(), **{f"key{number}": 1 for number in range(10_000)}})) == 100


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match=r"nowhere.toml: can't be read: No such file"):
        Recipe.read(tmp_path / "nowhere.toml")


def test_queues_come_in_the_order_of_their_jobs() -> None:
    rows = {"last": ("c", ["d"]), "first": ("a", ["b", "c"]), "middle": ("b", ["c"])}
    data = {name: {"from": source, "to": to, "function": "m:f"} for name, (source, to) in rows.items()}
    queues = in_order(Recipe.read({"links": data}).links)
    assert [queues.index(name) for name in "abcd"] == [0, 1, 2, 3]


def test_a_cycle_has_an_order_too() -> None:
    rows = {"there": ("a", "b"), "back": ("b", "a")}
    data = {name: {"from": source, "to": to, "function": "m:f"} for name, (source, to) in rows.items()}
    assert sorted(Recipe.read({"links": data}).queues) == ["a", "b"]
