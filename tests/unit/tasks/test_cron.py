"""Crons: when they run, also where clocks are set forward and back, and that each run is pushed once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest

from penstock import App
from penstock.errors import CallerError
from penstock.tasks.schedule import Schedule
from penstock.tasks.scheduler import Scheduler

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
YEAR = datetime(2026, 1, 1, tzinfo=UTC)
DAYS = 365


def runs(expression: str, zone: str, begin: datetime, end: datetime) -> list[str]:
    """The runs within a time, as local times with their offsets."""
    times = takewhile(lambda at: at < end.timestamp(), Schedule(expression, zone).after(begin.timestamp()))
    return [datetime.fromtimestamp(at, ZoneInfo(zone)).isoformat() for at in times]


SPRING = datetime(2026, 3, 29, 0, 30, tzinfo=UTC), datetime(2026, 3, 29, 3, 30, tzinfo=UTC)  # 01:30 to 05:30 in Berlin
AUTUMN = datetime(2026, 10, 24, 23, 30, tzinfo=UTC), datetime(2026, 10, 25, 3, 30, tzinfo=UTC)  # 01:30 to 04:30


@pytest.mark.parametrize(
    ("expression", "times"),
    [
        ("30 2 * * *", ["03:00:00+02:00"]),
        ("*/20 2 * * *", ["03:00:00+02:00"]),
        ("0,30 2-3 * * *", ["03:00:00+02:00", "03:30:00+02:00"]),
        ("15 30 2 * * *", ["03:00:00+02:00"]),
        ("0 3 * * *", ["03:00:00+02:00"]),
        ("0 * * * *", ["03:00:00+02:00", "04:00:00+02:00", "05:00:00+02:00"]),
    ],
)
def test_a_run_in_the_hour_that_is_skipped_comes_at_its_end(expression: str, times: list[str]) -> None:
    assert runs(expression, BERLIN, *SPRING) == [f"2026-03-29T{time}" for time in times]


@pytest.mark.parametrize(
    ("expression", "times"),
    [
        ("30 2 * * *", ["02:30:00+02:00"]),
        ("*/30 2 * * *", ["02:00:00+02:00", "02:30:00+02:00"]),
        ("5 30 2 * * *", ["02:30:05+02:00"]),
        ("30 3 * * *", ["03:30:00+01:00"]),
        ("0 * * * *", ["02:00:00+02:00", "02:00:00+01:00", "03:00:00+01:00", "04:00:00+01:00"]),
    ],
)
def test_a_run_in_the_hour_that_comes_twice_comes_once(expression: str, times: list[str]) -> None:
    assert runs(expression, BERLIN, *AUTUMN) == [f"2026-10-25T{time}" for time in times]
    # Also if the scheduler begins in the middle of it.
    for minutes in range(0, 240, 7):
        begin = AUTUMN[0] + timedelta(minutes=minutes)
        later = [f"2026-10-25T{time}" for time in times if datetime.fromisoformat(f"2026-10-25T{time}") > begin]
        assert runs(expression, BERLIN, begin, AUTUMN[1]) == later


@pytest.mark.parametrize(
    ("expression", "count"),
    [("0 3 * * *", 365), ("30 2 * * *", 365), ("30 1 * * *", 365), ("0 * * * *", 8760), ("0 9 * * MON-FRI", 261)],
)
@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
def test_a_year_has_its_runs_each_once_and_in_order(expression: str, count: int, zone: str) -> None:
    begin = datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)) - timedelta(seconds=1)
    end = datetime(2027, 1, 1, tzinfo=ZoneInfo(zone))
    found = list(takewhile(lambda at: at < end.timestamp(), Schedule(expression, zone).after(begin.timestamp())))
    assert found == sorted(set(found))
    assert len(found) == count


@pytest.mark.parametrize("expression", ["* * * *", "61 * * * *", "a b c d e", "", "0 0 30 2 *"])
def test_an_expression_that_cannot_be_is_refused(expression: str) -> None:
    with pytest.raises(CallerError, match="cron"):
        Schedule(expression)


def test_a_zone_that_is_not_there_is_refused() -> None:
    with pytest.raises(CallerError, match="timezone must be a name such as Europe/Berlin, got 'Mars'"):
        Schedule("* * * * *", "Mars")


@pytest.mark.slow
def test_the_crons_of_two_zones_on_the_clock_of_a_test() -> None:
    app = App("memory:")
    at: dict[str, list[datetime]] = {BERLIN: [], NEW_YORK: []}

    @app.cron("30 2 * * *", timezone=BERLIN, name="berlin")
    async def berlin() -> None:
        at[BERLIN].append(testing.clock.now)

    @app.cron("30 2 * * *", timezone=NEW_YORK, name="new_york")
    def new_york() -> None:
        at[NEW_YORK].append(testing.clock.now)

    with app.testing(start=YEAR) as testing:
        testing.run()
        testing.clock.advance(days=DAYS)
    for zone, times in at.items():
        expected = islice(Schedule("30 2 * * *", zone).after(YEAR.timestamp()), DAYS)
        assert [one.timestamp() for one in times] == list(expected)


@pytest.mark.parametrize(("missed", "hours"), [("once", [5]), ("all", [1, 2, 3, 4, 5]), ("skip", [])])
def test_what_becomes_of_runs_that_nobody_pushed(missed: str, hours: list[int]) -> None:
    app = App("memory:")
    pushed: list[float] = []

    @app.cron("0 * * * *", missed=missed, name="hourly")
    def hourly() -> None: ...

    class Note:
        def pushed(self, call: object) -> None:
            pushed.append(1)

    hourly.hooks = app.hooks.and_also([Note()])

    async def main() -> None:
        async with app.testing(start=YEAR) as testing:
            await testing.run()
            steps = testing._steps
            steps.time.seconds += 5.5 * 3600
            schedulers = [Scheduler(app) for _ in range(3)]
            await asyncio.gather(*(one.step() for one in schedulers))
            jobs = await app.client.queue("default").peek(100)
            assert len(jobs) == len(hours)
            await asyncio.gather(*(one.step() for one in schedulers))
            assert await app.client.queue("default").size() == len(hours)
            steps.time.seconds += 1800
            await schedulers[1].step()
            assert await app.client.queue("default").size() == len(hours) + 1

    asyncio.run(main())


def test_a_cron_may_be_pushed_and_called_as_any_task_and_needs_no_arguments() -> None:
    app = App("memory:")

    @app.cron("0 3 * * *", queue="night")
    async def nightly(force: bool = False) -> int:
        return 5

    assert app.tasks[nightly.name].settings.queue == "night"
    with app.testing() as testing:
        handle = nightly.blocking.push(force=True)
        testing.run()
        assert handle.result() == 5
    with pytest.raises(TypeError, match="missing a required argument: 'who'"):

        @app.cron("0 3 * * *")
        def wrong(who: str) -> None: ...

    with pytest.raises(CallerError, match="missed must be one of once, all, skip, got 'never'"):
        app.cron("0 3 * * *", missed="never")
