"""When a schedule is due: the slots of a cron expression in a time zone, or of an interval.

A slot is a moment in UTC, in whole seconds, that depends on the expression and the zone alone, never on the caller or the
time of the call. So every worker computes the same slots, and a slot can be a key.

Daylight saving:

* An expression that names every hour (`0 * * * *`, `*/15 * * * *`) follows real time: it fires whenever the local clock
  shows such a time, also in both passes through an hour that comes twice.
* Any other fires each local time once: a time that comes twice in its first pass, one that is skipped at the first moment
  after the gap. `30 2 * * *` fires once on every day of the year. Several skipped times of one gap are one slot.
* An interval counts real seconds from 1970-01-01 UTC and knows no zones.
"""

import difflib
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

LONGEST = 366 * 86_400  # seconds of an interval
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_SPANS = (
    60,
    3600,
    86_400,
    32 * 86_400,
    366 * 86_400,
    1500 * 86_400,
)  # how far to look back for the last slot
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True)
class Timing:
    """`Timing("0 3 * * *", tz="Europe/Berlin")` or `Timing(every=90)`. ValueError names the invalid part."""

    cron: str | None = None
    every: int | None = None  # seconds
    tz: str = "UTC"

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every is None):
            raise ValueError("a schedule is either a cron expression or an interval. Give one of the two")
        _check_zone(self.tz)
        if self.every is not None:
            _check_every(self.every)
            return
        _check_cron(self.cron)
        if self.after(_EPOCH.replace(year=2024)) is None:
            raise ValueError(f"cron {self.cron!r} never fires. Correct its day and month")

    @cached_property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.tz)

    @cached_property
    def _fields(self) -> str:
        assert self.cron is not None
        return _NAMED.get(self.cron.strip().lower(), self.cron)

    @cached_property
    def follows_real_time(self) -> bool:
        """It names every hour, or is an interval."""
        return self.cron is None or len(CronSim(self._fields, datetime(2024, 1, 1)).hours) == 24  # noqa: DTZ001

    def after(self, moment: datetime) -> datetime | None:
        """The first slot after a moment; None: there is none before the end of the calendar."""
        at = moment.astimezone(UTC)
        try:
            if self.every is not None:
                return _EPOCH + timedelta(seconds=((at - _EPOCH) // _SECOND // self.every + 1) * self.every)
            return self._real(at) if self.follows_real_time else self._local(at)
        except OverflowError:
            return None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The slots after `start`, up to and including `end`."""
        slot = self.after(start)
        while slot is not None and slot <= end:
            yield slot
            slot = self.after(slot)

    def last(self, start: datetime, end: datetime) -> datetime | None:
        """The last slot after `start`, up to and including `end`, without walking through all of them."""
        for seconds in _SPANS:
            since = max(start, end - timedelta(seconds=seconds))
            found = None
            for found in self.between(since, end):  # noqa: B007 the last one is meant
                pass
            if found is not None or since == start:
                return found
        return max(self.between(start, end), default=None)

    def first(self, moment: datetime, count: int) -> list[datetime]:
        """The next `count` slots after a moment."""
        return list(islice(self.between(moment, datetime.max.replace(tzinfo=UTC)), count))

    def describe(self) -> str:
        """In English: `At 03:00 (Europe/Berlin)`."""
        if self.every is not None:
            return f"Every {_span(self.every)}"
        said = CronSim(self._fields, datetime(2024, 1, 1)).explain()  # noqa: DTZ001
        return f"{said} ({self.tz})"

    def oddity(self, slot: datetime) -> str | None:
        """How daylight saving changes a slot; None: not at all."""
        if self.every is not None:
            return None
        local = slot.astimezone(self.zone)
        before = (slot - _SECOND).astimezone(self.zone)
        gap = (local.utcoffset() or timedelta()) - (before.utcoffset() or timedelta())
        wall = local.replace(tzinfo=None, fold=0)
        if gap > timedelta() and not self.follows_real_time:
            sim = CronSim(self._fields, wall - gap - _SECOND)
            if (asked := next(sim, None)) is not None and asked < wall:
                return f"{asked:%H:%M} does not exist on this day: the clock is put forward"
        twice = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
        if twice and self._local_instant(wall) <= slot:
            which = "second" if local.fold else "first"
            return f"{local:%H:%M} comes twice on this day: this is the {which} time"
        return None

    def _local(self, at: datetime) -> datetime | None:
        """Each local time once. Local times in order give moments in order, so the walk may begin at the time of `at`."""
        for wall in CronSim(self._fields, at.astimezone(self.zone).replace(tzinfo=None, fold=0)):
            if (slot := self._local_instant(wall)) > at:
                return slot
        return None

    def _local_instant(self, wall: datetime) -> datetime:
        """The moment of a local time: the first of two, or the end of the gap that swallows it."""
        before, behind = (
            wall.replace(tzinfo=self.zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1)
        )
        moment = (wall - before).replace(tzinfo=UTC)
        if behind <= before:
            return moment
        return self._change(moment - (behind - before), moment)

    def _real(self, at: datetime) -> datetime | None:
        """The first moment after `at` whose local time fits, stretch by stretch of one offset to UTC."""
        while True:
            offset = at.astimezone(self.zone).utcoffset() or timedelta()
            wall = next(CronSim(self._fields, (at + offset).replace(tzinfo=None)), None)
            if wall is None:
                return None
            slot = (wall - offset).replace(tzinfo=UTC)
            change = self._next_change(at, slot, offset)
            if change is None:
                return slot
            if self._matches(change):
                return change
            at = change

    def _matches(self, moment: datetime) -> bool:
        wall = moment.astimezone(self.zone).replace(tzinfo=None, fold=0)
        return next(CronSim(self._fields, wall - _SECOND), None) == wall

    def _next_change(self, start: datetime, end: datetime, offset: timedelta) -> datetime | None:
        """The first moment after `start`, up to `end`, at which the offset is another one."""
        low = start
        while low < end:
            high = min(low + timedelta(days=1), end)
            if (high.astimezone(self.zone).utcoffset() or timedelta()) != offset:
                return self._change(low, high)
            low = high
        return None

    def _change(self, low: datetime, high: datetime) -> datetime:
        """The second in (low, high] from which on the offset is that of `high`; at `low` it is another one."""
        offset = high.astimezone(self.zone).utcoffset()
        low = low.replace(microsecond=0)
        while high - low > _SECOND:
            middle = low + (high - low) // _SECOND // 2 * _SECOND
            if middle.astimezone(self.zone).utcoffset() == offset:
                high = middle
            else:
                low = middle
        return high


def _check_zone(name: object) -> None:
    if not isinstance(name, str):
        raise ValueError(  # noqa: TRY004 one error for any invalid value
            f'tz must be the name of a time zone, not {name!r}. Write tz="Europe/Berlin"'
        )
    try:
        ZoneInfo(name)
        if name != "localtime":  # another zone on every machine
            return
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        pass
    known = {zone.lower(): zone for zone in zoneinfo.available_timezones() if zone != name}
    parts = {zone.rpartition("/")[2]: known[zone] for zone in sorted(known)}
    near = difflib.get_close_matches(name.lower(), [*known, *parts], 1, 0.7)
    hint = f" Did you mean {known.get(near[0]) or parts[near[0]]!r}?" if near else ""
    raise ValueError(f"there is no time zone {name[:60]!r}.{hint} Write it like Europe/Berlin, or UTC")


def _check_every(seconds: object) -> None:
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not 1 <= seconds <= LONGEST:
        raise ValueError(
            f"an interval must be whole seconds, from 1 second to 366 days, not {seconds!r}. "
            "For what happens at a time of day, write a cron expression"
        )


def _check_cron(cron: object) -> None:
    if not isinstance(cron, str):
        raise ValueError(f'cron must be a text like "0 3 * * *", not {cron!r}')  # noqa: TRY004
    if len(cron) > 200:
        raise ValueError(f"cron is {len(cron)} characters long, more than the limit of 200")
    fields = _NAMED.get(cron.strip().lower(), cron)
    try:
        CronSim(fields, datetime(2024, 1, 1))  # noqa: DTZ001
    except (CronSimError, ValueError, TypeError, AssertionError) as error:
        raise ValueError(
            f"cron {cron!r} cannot be read: {str(error) or 'bad field'}. Write minute, hour, day of month, month and "
            'day of week, such as "0 3 * * *"; or @hourly, @daily, @weekly, @monthly, @yearly'
        ) from None


def _span(seconds: int) -> str:
    for size, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds % size == 0:
            number = seconds // size
            return unit if number == 1 else f"{number} {unit}s"
    return "second" if seconds == 1 else f"{seconds} seconds"
