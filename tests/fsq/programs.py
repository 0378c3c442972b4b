"""Starting `fsq` and small Python programs as real processes, on the root of the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock import fsq

SOURCE = Path(__file__).resolve().parents[2] / "src"
SECONDS_MAX = 60


def environment(**more: str) -> dict[str, str]:
    """The environment of a child: the test's root, no other settings, and the tree's own code."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FSQ_")}
    clean |= {"FSQ_ROOT": fsq.const("FSQ_ROOT"), "FSQ_SYNC": str(fsq.const("FSQ_SYNC")), "PYTHONPATH": str(SOURCE)}
    return {**clean, "PENSTOCK_PURE": "1", **more}


def run(
    *words: str | bytes, stdin: bytes = b"", settings: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run `fsq` with these words to its end."""
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.fsq", *words],
        input=stdin,
        env=environment(**(settings or {})),
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
        **options,
    )


def start(*words: str, settings: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """Start `fsq` with these words."""
    argv = [sys.executable, "-m", "penstock.cli.fsq", *words]
    return subprocess.Popen(argv, env=environment(**(settings or {})), **options)


def start_python(program: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a Python program that is given as text."""
    return subprocess.Popen([sys.executable, "-c", program, *words], env=environment(), **options)


def names(directory: str | Path) -> list[str]:
    """What is in a directory."""
    return sorted(os.listdir(directory))


def data_of(directory: str | Path) -> dict[str, bytes]:
    """The files of a directory and what is in them."""
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}
