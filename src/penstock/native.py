"""Compiled or plain: which form of the hot modules this process uses.

A wheel has them compiled if it was built on a machine with a C compiler; in a clone, `scripts/native` compiles them in
place. Python prefers a compiled module to its source, also when the source was changed since. So in a clone the times
of the files are compared here, once, before any of them is imported. An installed package is not edited, and the times
of its files say nothing: an installer sets them in any order.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).parent
FOLDERS = ("wire", "broker", "broker/core", "broker/commands", "sim")
PURE_VARIABLE = "PENSTOCK_PURE"
COMPILER = ROOT.parents[1] / "scripts" / "native"  # there in a clone only
_plain_because = ""  # why this process uses the sources; empty if it uses the compiled modules


def compiled_modules() -> list[Path]:
    """Return the compiled modules that this Python can load."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).glob("*.so")]
    return [path for path in found if "." + path.name.partition(".")[2] in EXTENSION_SUFFIXES]


def stale_modules() -> list[Path]:
    """Return those of them that are older than their source, in a clone."""
    if not COMPILER.exists():
        return []
    stale = []
    for path in compiled_modules():
        source = path.with_name(path.name.partition(".")[0] + ".py")
        if not source.exists() or source.stat().st_mtime > path.stat().st_mtime:
            stale.append(path)
    return stale


def modules_in_use() -> str:
    """Return which form of the hot modules this process uses, and why if it is not the compiled one."""
    return f"plain modules: {_plain_because}" if _plain_because else "compiled modules"


def choose_modules() -> None:
    """Use the sources where they were asked for, or where a compiled module is out of date."""
    global _plain_because  # noqa: PLW0603 - chosen once, when the package is imported
    if os.environ.get(PURE_VARIABLE) == "1":
        _plain_because = f"{PURE_VARIABLE}=1 is set"
    elif stale_modules():
        _plain_because = "the compiled ones are older than their source"
    elif not compiled_modules():
        _plain_because = "nothing is compiled"
    if not _plain_because:
        return
    for folder in ("", *FOLDERS):
        path = str(ROOT / folder) if folder else str(ROOT)
        sys.path_importer_cache[path] = FileFinder(path, (SourceFileLoader, SOURCE_SUFFIXES))
