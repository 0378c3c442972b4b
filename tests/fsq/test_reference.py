"""The reference names all there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock import fsq
from penstock.fsq import auditing, constants
from penstock.fsq.remote import v1

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "fsq.md").read_text("utf-8")


@pytest.mark.parametrize("name", [*constants.SETTINGS, *fsq.__all__, *v1.METHODS])
def test_a_name_is_in_the_reference(name: str) -> None:
    assert f"`{name}`" in PAGE or f"`{name}(" in PAGE


def test_the_kinds_of_findings_are_those_of_the_docstring() -> None:
    assert auditing.__doc__ is not None
    listed = re.findall(r"^    ([a-z-]+) ", auditing.__doc__, re.MULTILINE)
    assert tuple(listed) == auditing.KINDS


def test_the_tree_of_errors_is_drawn() -> None:
    from penstock.fsq import errors

    assert errors.__doc__ is not None
    for name in fsq.__all__:
        if name.endswith("Error"):
            assert f" {name} " in errors.__doc__
