"""Fixtures for tests of the cluster client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.client.nodes import FORMS


@pytest.fixture(params=FORMS)
def open_client(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Make a cluster client, of one form and then of the other; its methods are awaited in both."""
    return FORMS[request.param]


@pytest.fixture
def open_async() -> Callable[..., Any]:
    """Make a cluster client for asyncio."""
    return FORMS["async"]
