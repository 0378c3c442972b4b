"""Compiled or plain: which form of the hot modules this process uses.

`scripts/native` compiles the modules listed there with mypyc, in place. Python prefers a compiled module to its source,
also when the source was changed since, so that is looked at here, once, before any of them is imported.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).parent
FOLDERS = ("wire", "broker", "broker/core", "broker/commands", "sim")
PURE_VARIABLE = "PENSTOCK_PURE"


def compiled_modules() -> list[Path]:
    """Give the compiled modules that are there."""
    return [path for folder in FOLDERS for path in (ROOT / folder).glob("*.so")]


def stale_modules() -> list[Path]:
    """Give those of them that are older than their source."""
    stale = []
    for path in compiled_modules():
        source = path.with_name(path.name.partition(".")[0] + ".py")
        if not source.exists() or source.stat().st_mtime > path.stat().st_mtime:
            stale.append(path)
    return stale


def choose_modules() -> None:
    """Use the sources where they were asked for, or where a compiled module is out of date."""
    if os.environ.get(PURE_VARIABLE) != "1" and not stale_modules():
        return
    for folder in ("", *FOLDERS):
        path = str(ROOT / folder) if folder else str(ROOT)
        sys.path_importer_cache[path] = FileFinder(path, (SourceFileLoader, SOURCE_SUFFIXES))
