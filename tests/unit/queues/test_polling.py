"""How often a store that sends no signals is asked."""

from __future__ import annotations

import pytest

from penstock.queues.polling import watch_pause


@pytest.mark.parametrize(
    ("idle_s", "pause_s"),
    [(0, 0.001), (0.03, 0.001), (0.1, 0.002), (0.5, 0.01), (1, 0.02), (3600, 0.02)],
)
def test_the_longer_nothing_came_the_less_often_a_store_is_asked(idle_s: float, pause_s: float) -> None:
    assert watch_pause(0.02, idle_s) == pytest.approx(pause_s)
