"""The reference of the queue library names all there is."""

from __future__ import annotations

import inspect
import re

import pytest

from penstock.queues.aio import Job, Queue, Store
from tests.docs.examples import ROOT

PAGE = (ROOT / "docs" / "reference" / "queues.md").read_text("utf-8")


def named(heading: str) -> set[str]:
    """The names in the first cells of a heading's table."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)", cell)}


def public(kind: type) -> set[str]:
    instance_values = set(re.findall(r"self\.([a-z]\w*)(?:: .*)? = ", inspect.getsource(kind.__init__)))
    methods = {name for name in dir(kind) if not name.startswith("_")}
    return methods | (instance_values if kind is Job else set())


@pytest.mark.parametrize(("heading", "kind"), [("Store", Store), ("Queue", Queue), ("Job", Job)])
def test_every_call_is_in_the_reference(heading: str, kind: type) -> None:
    missing = public(kind) - named(heading)
    assert not missing
    assert named(heading) - public(kind) <= {"open"}
