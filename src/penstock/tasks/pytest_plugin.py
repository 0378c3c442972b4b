"""The pytest plugin: the fixture `penstock_app` is the app of the setting `penstock_app = shop:app`, under test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.errors import CallerError
from penstock.tasks.loading import load_app
from penstock.tasks.testing import Testing

SETTING = "penstock_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(SETTING, "the app of the fixture penstock_app, as module:app")


@pytest.fixture
def penstock_app(request: pytest.FixtureRequest) -> Iterator[Testing]:
    """The app under test: tasks run in memory, when the test says so; see `App.testing`."""
    name = str(request.config.getini(SETTING))
    if not name:
        raise CallerError(f"the fixture penstock_app needs the setting {SETTING} = module:app of pytest")
    with load_app(name).testing() as testing:
        yield testing
