"""Fixtures of the suite: a test that takes `place` runs on every store, in both forms of the library.

Tests are async functions. One that is marked with `needs` on a store that lacks the capability has to be refused.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Unsupported
from penstock.fsq import constants
from tests.stores.harness import AIO, BLOCKING, SILENT, Place, is_wanted, places
from tests.stores.shifting_node import ShiftingNode


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): what a store must be able to do for this test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not is_wanted(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_wanted(item)]


@pytest.fixture(scope="session")
def disque_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShiftingNode]:
    """One node of our own for all tests."""
    node = ShiftingNode(tmp_path_factory.mktemp("disque"), appendonly="no")
    node.start()
    yield node
    node.kill()


@pytest.fixture
def disque_node(disque_process: ShiftingNode) -> ShiftingNode:
    """The node, empty: a store's sizes and scans go through every job of a node, also through those of other tests."""
    disque_process.call("DEBUG", "FLUSHALL")
    return disque_process


@pytest.fixture(params=places((AIO, BLOCKING)))
def place(request: pytest.FixtureRequest) -> Place:
    """A store, in either form."""
    return Place(*request.param, request)


@pytest.fixture(params=places((AIO,)))
def aio_place(request: pytest.FixtureRequest) -> Place:
    """A store, in the async form: for what only an event loop has."""
    return Place(*request.param, request)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(_run(pyfuncitem, arguments))
    return True


async def _run(item: pytest.Function, arguments: dict[str, Any]) -> None:
    place = arguments.get("place", arguments.get("aio_place"))
    needed = {capability for mark in item.iter_markers("needs") for capability in mark.args}
    missing = needed - await place.capabilities() if place is not None else set()
    if not missing:
        await item.obj(**arguments)
        return
    if missing <= SILENT:
        pytest.skip(f"{place.name} lacks {', '.join(sorted(missing))}")
    with pytest.raises(Unsupported) as refused:
        await item.obj(**arguments)
    assert refused.value.capability in missing


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """An empty root of directories, for the store `fsq:` and for `penstock.fsq`."""
    directory = tmp_path / "root"
    directory.mkdir()
    with constants.using(FSQ_ROOT=str(directory), FSQ_SYNC=0):
        yield directory
