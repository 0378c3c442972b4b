"""Fixtures for directories as queues: a root of its own for each test, and settings that are put back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import fsq
from penstock.fsq import constants


@pytest.fixture(autouse=True)
def root(tmp_path: Path) -> Iterator[Path]:
    """The root of all queues, empty. Nothing is synced unless a test asks for it: a killed process loses nothing."""
    directory = tmp_path / "root"
    directory.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FSQ_")}
    constants.load(clean)
    fsq.set_const("FSQ_ROOT", str(directory))
    fsq.set_const("FSQ_SYNC", 0)
    yield directory
    constants.load(clean)


@pytest.fixture
def queue(root: Path) -> str:
    """An installed queue."""
    fsq.install("mail")
    return "mail"
