"""The source files of an application, for `penstock worker --reload`: which of them have changed since the last look.

They are the Python files below the current folder, and those of modules that the application has imported from
elsewhere, apart from installed packages. Hidden folders are left out, and those of packages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

NOT_SOURCES = {"__pycache__", "node_modules", "site-packages", "dist-packages"}

Stamp = tuple[int, int]  # time of the last change in nanoseconds, and the size


def imported_files() -> set[Path]:
    """Return the files of modules that are imported and not installed."""
    installed = Path(os.__file__).parent
    files = {Path(file) for module in tuple(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    return {
        file
        for file in files
        if file.suffix == ".py" and not NOT_SOURCES & set(file.parts) and not file.is_relative_to(installed)
    }


class WatchedFiles:
    """The files as they were at the last look."""

    def __init__(self, folder: Path, others: set[Path]) -> None:
        self._folder = folder
        self._others = others
        self._stamps = self._look()

    def changed(self) -> list[Path]:
        """Return the files that have changed since the last call, were added or are gone."""
        before, self._stamps = self._stamps, self._look()
        both = before.keys() | self._stamps.keys()
        return sorted(file for file in both if before.get(file) != self._stamps.get(file))

    def _look(self) -> dict[Path, Stamp]:
        found = {}
        for file in (*self._below(), *self._others):
            try:
                facts = file.stat()
            except OSError:
                continue  # it is gone meanwhile
            found[file] = (facts.st_mtime_ns, facts.st_size)
        return found

    def _below(self) -> Iterator[Path]:
        for folder, inner, files in os.walk(self._folder):
            inner[:] = [name for name in inner if not name.startswith(".") and name not in NOT_SOURCES]
            yield from (Path(folder, name) for name in files if name.endswith(".py"))
