"""When a cron runs: five fields (minute hour day month weekday), or six with seconds in front, in a time zone.

Where the clock is set forward, a run in the hour that is skipped comes at the end of that hour, once. Where it is set
back, a run in the hour that comes twice comes at the first of the two. If the hour is `*`, runs come at each real hour
instead: those of a skipped hour don't exist, those of the other come twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from penstock.errors import CallerError


class Schedule:
    """A cron expression in a time zone."""

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        try:
            self._zone = ZoneInfo(timezone)
        except (OSError, ValueError, LookupError):
            raise CallerError(f"timezone must be a name such as Europe/Berlin, got {timezone!r}") from None
        try:
            CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC))
        except (CronSimError, AttributeError) as problem:
            raise CallerError(
                f"a cron must have five fields (minute hour day month weekday), or six with seconds in front, got "
                f"{expression!r}: {problem}"
            ) from None
        self.expression = expression
        self.timezone = timezone
        fields = expression.split()
        self._is_hourly = fields[-4] == "*"
        if next(self.after(0.0), None) is None:
            raise CallerError(f"the cron {expression!r} never comes: there is no such day")

    def __repr__(self) -> str:
        return f"<Schedule {self.expression} in {self.timezone}>"

    def after(self, when: float) -> Iterator[float]:
        """Yield the unix times of the runs after a point in time."""
        begin = datetime.fromtimestamp(when, UTC).astimezone(self._zone)
        last = when
        for run in CronSim(self.expression, begin if self._is_hourly else begin.replace(tzinfo=None)):
            at = run.timestamp() if self._is_hourly else self._real(run).timestamp()
            if at > last:  # several runs in a skipped hour are one; an hour that comes twice was there already
                yield at
                last = at

    def _real(self, local: datetime) -> datetime:
        """Return the moment of a local time: the end of the gap if it is skipped, the first one if it comes twice."""
        at = local.replace(tzinfo=self._zone, fold=0)
        if at.astimezone(UTC).astimezone(self._zone).replace(tzinfo=None) == local:
            return at
        # In a gap: with the offset from before it, the moment lies past the gap by what the time lies past its begin.
        begin = local.replace(second=0, microsecond=0)
        while not self._exists(begin):
            begin += timedelta(minutes=1)
        return begin.replace(tzinfo=self._zone)

    def _exists(self, local: datetime) -> bool:
        at = local.replace(tzinfo=self._zone)
        return at.astimezone(UTC).astimezone(self._zone).replace(tzinfo=None) == local
