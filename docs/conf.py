"""Settings of Sphinx for `make docs-site`: the pages of the repository, with their own links, as a site with search.

The site needs no network: the theme has its scripts and styles in its package, and text is set in fonts of the reader's
system. The tree of pages at the side is made from the lists in docs/README.md, so there is one index to keep.
"""

import re
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
INDEX = "docs/README"

project = "Penstock"
author = "The Penstock authors"
html_title = "Penstock"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "bench/README.md", "docs/**.md"]
exclude_patterns = [".*", "build", "dist", "examples", "node_modules", "scripts", "src", "tests"]
html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 4
nitpicky = True
SECTION = re.compile(r"^\*\*([\w-]+)\*\*,.*\n\n((?:- .*\n)+)", re.MULTILINE)
LINKED = re.compile(r"^- \[[^\]]+\]\(([\w/-]+)\.md\)", re.MULTILINE)
FOR_ALL = ("docs/compatibility", "docs/architecture", "docs/performance", "bench/README", "CONTRIBUTING", "CHANGELOG")


def tree_of_pages() -> str:
    """Return hidden tables of contents, one for each part of the index."""
    text = Path(ROOT, f"{INDEX}.md").read_text("utf-8")
    parts = {title: [f"docs/{name}" for name in LINKED.findall(rows)] for title, rows in SECTION.findall(text)}
    parts = {"Documentation": [INDEX], **parts, "More": list(FOR_ALL)}
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "".join(f"/{name}\n" for name in names) + "```\n"
        for title, names in parts.items()
    )


def add_tree(app: Sphinx, name: str, source: list[str]) -> None:
    if name == root_doc:
        source[0] += tree_of_pages()


def write_front_door(app: Sphinx, error: Exception | None) -> None:
    """A browser that is given the folder asks for index.html."""
    if error is None and app.builder.name == "html":
        page = f'<!doctype html><title>Penstock</title><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        Path(app.outdir, "index.html").write_text(page, "utf-8")


def setup(app: Sphinx) -> None:
    app.add_lexer("conf", TextLexer)
    app.connect("source-read", add_tree)
    app.connect("build-finished", write_front_door)
