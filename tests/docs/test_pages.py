"""The documentation hangs together: links lead somewhere, and the reference names all there is."""

from __future__ import annotations

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from penstock import errors
from penstock.broker.commands.table import COMMANDS
from penstock.broker.directives import DIRECTIVES
from penstock.cli import cluster
from penstock.cli.main import GROUPS
from penstock.cli.shell.options import OPTIONS
from tests.docs.examples import PAGES, ROOT

REFERENCE = ROOT / "docs" / "reference"
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)`")
CODE = re.compile(r"^-?([A-Z]{3,})\b")


def generator() -> Any:
    """scripts/docs, as a module."""
    loader = SourceFileLoader("docs_script", str(ROOT / "scripts" / "docs"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    """What a link may name after `#`, by the rule of the usual hosts of code."""
    text = FENCED.sub("", page.read_text("utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(FENCED.sub("", page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        is_fine = there.exists()
        if is_fine and anchor and there.suffix == ".md" and there.exists():
            is_fine = anchor in anchors(there)
        if not is_fine:
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    """As `docs/explanation/security.md` does for each defence."""
    assert [name for name in TEST.findall(page.read_text("utf-8")) if not (ROOT / name).exists()] == []


def test_every_page_is_reached_from_the_index() -> None:
    linked = set()
    index = ROOT / "docs" / "README.md"
    for target in LINK.findall(index.read_text("utf-8")):
        linked.add((index.parent / target.partition("#")[0]).resolve())
    missing = [page for page in PAGES if page.is_relative_to(ROOT / "docs") and page not in linked | {index}]
    assert missing == []


def test_the_generated_pages_are_up_to_date() -> None:
    assert generator().outdated() == [], "run `make docs`"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_reference(name: str) -> None:
    text = (REFERENCE / "commands.md").read_text("utf-8")
    assert f"\n### {name.upper()}\n" in text
    assert f"\n{COMMANDS[name].syntax}\n" in text


@pytest.mark.parametrize("name", DIRECTIVES)
def test_every_directive_is_in_the_reference(name: str) -> None:
    assert f"\n### {name}\n" in (REFERENCE / "configuration.md").read_text("utf-8")


def test_every_error_code_of_the_commands_is_in_the_reference() -> None:
    text = (REFERENCE / "errors.md").read_text("utf-8")
    codes = {found[1] for row in COMMANDS.values() for error in row.errors if (found := CODE.match(error))}
    assert [code for code in sorted(codes) if f"`{code}`" not in text] == []


def test_every_error_of_the_package_is_in_the_reference() -> None:
    text = (REFERENCE / "errors.md").read_text("utf-8")
    names = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert [name for name in names if name not in text] == []


def test_every_command_group_and_option_is_in_the_reference() -> None:
    text = (REFERENCE / "cli.md").read_text("utf-8")
    words = [f"penstock {name}" for name in GROUPS] + [name for option in OPTIONS for name in option.names]
    assert [word for word in words if word not in text] == []


def test_every_command_and_option_of_cluster_is_in_the_reference() -> None:
    from typer.main import get_command

    text = (REFERENCE / "cli.md").read_text("utf-8").partition("## penstock cluster")[2].partition("\n## ")[0]
    words: set[str] = set()
    for name, command in vars(get_command(cluster.app))["commands"].items():
        words |= {f"\n  {name}", *(word for option in command.params for word in option.opts if word.startswith("-"))}
    assert len(words) > 20
    assert [word for word in sorted(words) if word not in text] == []
