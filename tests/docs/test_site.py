"""`make docs-site` builds every page, with links that lead somewhere, and the site needs no network."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.examples import PAGES, ROOT
from tests.processes import need_module

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
# Attributes by which a browser fetches something when it opens a page.
FETCHED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Fetches(HTMLParser):
    """Collect the addresses that a page fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for name, value in attrs if value and (tag, name) in FETCHED]


def build(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    for name in ("sphinx", "myst_parser", "furo"):
        need_module(name)
    sphinx = [sys.executable, "-m", "sphinx", "-q", "--fail-on-warning", "--keep-going", "-c", str(source / "docs")]
    words = [*sphinx, "-d", str(folder / "doctrees"), str(source), str(folder / "site")]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def test_the_site_has_every_page_and_a_search(site: Path) -> None:
    names = [page.relative_to(ROOT).with_suffix(".html") for page in PAGES]
    assert [name for name in names if not (site / name).is_file()] == []
    front = (site / "README.html").read_text("utf-8")
    assert [name for name in names if name.parts[0] == "docs" and f'href="{name}"' not in front] == []
    index = (site / "searchindex.js").read_text("utf-8")
    assert "getjob" in index
    assert "README.html" in (site / "index.html").read_text("utf-8")


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    strange = []
    for page in site.rglob("*.html"):
        parser = Fetches()
        parser.feed(page.read_text("utf-8"))
        strange += [(page.name, address) for address in parser.addresses if re.match(r"(?:[a-z]+:)?//", address)]
    for style in site.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", style.read_text("utf-8"))
        strange += [(style.name, address) for address in found]
    assert strange == []


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "tree"
    (source / "docs").mkdir(parents=True)
    (source / "docs" / "conf.py").write_bytes((ROOT / "docs" / "conf.py").read_bytes())
    (source / "docs" / "README.md").write_text("# Index\n")
    for name in ("compatibility", "architecture", "performance"):
        (source / "docs" / f"{name}.md").write_text(f"# {name}\n")
    (source / "bench").mkdir()
    for name in ("CHANGELOG", "CONTRIBUTING", "bench/README"):
        (source / f"{name}.md").write_text("# Page\n")
    (source / "README.md").write_text("# Front\n")
    done = build(source, tmp_path)
    assert done.returncode == 0, done.stderr
    (source / "README.md").write_text("# Front\n\n[nowhere](docs/missing.md)\n")
    done = build(source, tmp_path)
    assert done.returncode != 0
    assert "docs/missing.md" in done.stderr
