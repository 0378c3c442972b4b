"""The reference of the client names all there is: settings, methods, values, and what is asked again."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass

import pytest

import penstock.client
from penstock.client import ClusterClient
from penstock.client.requests import REPEATS, Repeat
from tests.docs.examples import ROOT

PAGE = (ROOT / "docs" / "reference" / "client.md").read_text("utf-8")
SETTINGS = [name for name in inspect.signature(ClusterClient.__init__).parameters if name != "self"]
METHODS = [name for name, _ in inspect.getmembers(ClusterClient, inspect.isfunction) if name[0] != "_"]
VALUES = [name for name in penstock.client.__all__ if is_dataclass(getattr(penstock.client, name))]


def rows(heading: str) -> dict[str, str]:
    """First and last cell of each row under a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = re.findall(r"^\| (`.*?|all others.*?) \| (?:.* \| )?(.*) \|$", section, re.MULTILINE)
    return dict(table)


def test_every_setting_is_in_the_reference() -> None:
    named = {name for cell in rows("Settings") for name in re.findall(r"`(\w+)`", cell)}
    assert named == set(SETTINGS)


def test_every_method_is_in_the_reference() -> None:
    named = {name for cell in rows("Methods") for name in re.findall(r"`(\w+)\(", cell)}
    assert named == set(METHODS)


@pytest.mark.parametrize("name", VALUES)
def test_every_field_of_a_value_is_in_the_reference(name: str) -> None:
    named = set(re.findall(r"`(\w+)`", rows("Values")[f"`{name}`"]))
    assert {field.name for field in fields(getattr(penstock.client, name))} <= named


def test_what_is_asked_again_is_as_the_table_has_it() -> None:
    told = {
        name: text for cell, text in rows("What is asked again").items() for name in re.findall(r"`([A-Z]+)`", cell)
    }
    assert set(told) == set(REPEATS)
    for name, repeat in REPEATS.items():
        assert ("OutcomeUnknown" in told[name]) is (repeat in {Repeat.ALLOWED, Repeat.NEVER}), name
        assert ("fetched again" in told[name]) is (repeat is Repeat.FETCH), name
