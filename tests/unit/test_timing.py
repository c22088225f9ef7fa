"""The slots of cron expressions and intervals: one per local time, also when clocks are put forward or back."""

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.shapes.schedules.timing import Timing

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Australia/Lord_Howe",  # half an hour
    "America/Havana",  # at midnight
    "Asia/Beirut",  # back over midnight
    "Africa/Casablanca",  # back and forth in a month
)
DAY = timedelta(days=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(timing: Timing, start: str, end: str) -> list[str]:
    """The slots between two local times, in local time."""
    low, high = (datetime.fromisoformat(t).replace(tzinfo=timing.zone) for t in (start, end))
    return [s.astimezone(timing.zone).strftime("%d %H:%M %z") for s in timing.between(low, high)]


# Clocks that are put forward and back -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "start", "end", "slots"),
    [
        (
            "Europe/Berlin",
            "2026-03-28T12:00",
            "2026-03-30T12:00",
            ["29 03:00 +0200", "30 02:30 +0200"],
        ),
        (
            "Europe/Berlin",
            "2026-10-24T12:00",
            "2026-10-26T12:00",
            ["25 02:30 +0200", "26 02:30 +0100"],
        ),
        (
            "America/New_York",
            "2026-03-07T12:00",
            "2026-03-09T12:00",
            ["08 03:00 -0400", "09 02:30 -0400"],
        ),
    ],
)
def test_half_past_two_fires_once_on_every_day(zone: str, start: str, end: str, slots: list[str]) -> None:
    """A time that does not exist fires at the end of the gap; one that comes twice, in its first pass."""
    assert local(Timing("30 2 * * *", tz=zone), start, end) == slots


def test_half_past_one_in_new_york_fires_once_in_autumn() -> None:
    timing = Timing("30 1 * * *", tz="America/New_York")
    found = local(timing, "2026-10-31T12:00", "2026-11-02T12:00")
    assert found == ["01 01:30 -0400", "02 01:30 -0500"]


def test_an_hourly_schedule_fires_in_every_real_hour() -> None:
    for zone, start in (("Europe/Berlin", "2026-03-28"), ("America/New_York", "2026-10-31")):
        timing = Timing("0 * * * *", tz=zone)
        slots = timing.first(utc(start), 60)
        assert {b - a for a, b in pairwise(slots)} == {timedelta(hours=1)}


def test_quarters_go_on_through_the_hour_that_comes_twice() -> None:
    timing = Timing("*/15 * * * *", tz="Europe/Berlin")
    slots = list(timing.between(utc("2026-10-25T00:00"), utc("2026-10-25T02:00")))
    assert len(slots) == 8
    assert {b - a for a, b in pairwise(slots)} == {timedelta(minutes=15)}


def test_several_times_of_one_gap_are_one_slot() -> None:
    timing = Timing("*/15 2 * * *", tz="Europe/Berlin")
    assert local(timing, "2026-03-29T00:00", "2026-03-29T12:00") == ["29 03:00 +0200"]
    assert len(local(timing, "2026-10-25T00:00", "2026-10-25T12:00")) == 4


def test_every_second_hour_loses_none_and_doubles_none() -> None:
    timing = Timing("0 */2 * * *", tz="Europe/Berlin")
    assert local(timing, "2026-03-28T23:00", "2026-03-29T05:00")[:3] == [
        "29 00:00 +0100",
        "29 03:00 +0200",
        "29 04:00 +0200",
    ]
    assert len(local(timing, "2026-10-24T23:59", "2026-10-25T23:59")) == 12


def test_a_time_back_over_midnight_is_found_after_a_year() -> None:
    """In Beirut midnight is 23:00 again: the one day of the expression has an hour more."""
    day = utc("2026-10-24T20:30")  # 23:30, the first time
    timing = Timing("5 * 24 10 *", tz="Asia/Beirut")
    assert timing.after(day) == utc("2026-10-24T21:05")


@pytest.mark.parametrize(
    ("cron", "zone", "at", "said"),
    [
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-29T01:00",
            "02:30 does not exist on this day: the clock is put forward",
        ),
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-25T00:30",
            "02:30 comes twice on this day: this is the first time",
        ),
        (
            "0 * * * *",
            "Europe/Berlin",
            "2026-10-25T01:00",
            "02:00 comes twice on this day: this is the second time",
        ),
        ("0 3 * * *", "Europe/Berlin", "2026-03-29T01:00", None),
        ("0 3 * * *", "UTC", "2026-03-29T03:00", None),
    ],
)
def test_oddities_are_told(cron: str, zone: str, at: str, said: str | None) -> None:
    timing = Timing(cron, tz=zone)
    assert timing.after(utc(at) - timedelta(seconds=1)) == utc(at)
    assert timing.oddity(utc(at)) == said


# Properties ---------------------------------------------------------------------------------------------------------

moments = st.integers(631_152_000, 2_840_140_800).map(
    lambda s: datetime.fromtimestamp(s, UTC)
)  # 1990 to 2060
# Around the changes, where it is hard: the last Sundays of March and October, the first ones of November, midnights.
changes = st.builds(
    lambda base, seconds: utc(base) + timedelta(seconds=seconds),
    st.sampled_from(
        [
            "2026-03-29T01:00",
            "2026-10-25T01:00",
            "2026-03-08T07:00",
            "2026-11-01T06:00",
            "2026-04-04T15:00",
            "2026-10-03T15:30",
            "2026-10-24T21:00",
            "2026-02-15T02:00",
        ]
    ),
    st.integers(-7200, 7200),
)
field = st.sampled_from(["*", "0", "30", "59", "*/7", "*/15", "5,35", "10-20"])
hour = st.sampled_from(["*", "0", "2", "1-3", "23", "*/2", "*/24", "0-23", "1,2,3", "2-22/3"])
crons = st.one_of(
    st.builds(lambda m, h: f"{m} {h} * * *", field, hour),
    st.builds(lambda m, h, d: f"{m} {h} * * {d}", field, hour, st.sampled_from(["0", "SUN", "1-5", "SAT#1"])),
    st.builds(lambda m, h, d: f"{m} {h} {d} * *", field, hour, st.sampled_from(["1", "L", "*/2", "29"])),
    st.sampled_from(["*/20 * * * * *", "15 30 2 * * *", "@daily", "@hourly"]),
)
timings = st.one_of(
    st.builds(lambda c, z: Timing(c, tz=z), crons, st.sampled_from(ZONES)),
    st.builds(lambda s: Timing(every=s), st.integers(1, 100_000)),
)


@given(timings, st.one_of(moments, changes), st.integers(1, 40))
@settings(deadline=None, max_examples=150)
def test_slots_strictly_increase_and_lie_after_the_start(timing: Timing, start: datetime, count: int) -> None:
    slots = timing.first(start, count)
    assert len(slots) == count
    assert all(a < b for a, b in pairwise([start, *slots]))
    assert all(s.utcoffset() == timedelta() and s.microsecond == 0 for s in slots)


@given(timings, st.one_of(moments, changes), st.floats(0, 1), st.floats(0, 3))
@settings(deadline=None, max_examples=200)
def test_slots_do_not_depend_on_who_asks_when(
    timing: Timing, start: datetime, part: float, days: float
) -> None:
    """Cut anywhere: the pieces are the whole. So no worker ever sees another slot than the others."""
    whole = list(timing.between(start, start + days * DAY))[:500]
    end = whole[-1] if whole else start + days * DAY
    middle = start + part * (end - start)
    assert [*timing.between(start, middle), *timing.between(middle, end)] == whole
    assert timing.last(start, end) == (whole[-1] if whole else None)


@given(
    st.sampled_from([z for z in ZONES if z != "Asia/Kolkata"]),
    st.integers(0, 59),
    st.integers(0, 23),
    st.dates(date(2015, 1, 1), date(2040, 1, 1)),
)
@settings(deadline=None, max_examples=60)
def test_a_daily_schedule_fires_once_in_every_local_day(
    zone: str, minute: int, hour: int, first: date
) -> None:
    timing = Timing(f"{minute} {hour} * * *", tz=zone)
    start = datetime.combine(first, time(), ZoneInfo(zone))
    slots = timing.first(start.astimezone(UTC) - timedelta(seconds=1), 370)
    days = [s.astimezone(timing.zone).date() for s in slots]
    assert all(b - a == DAY for a, b in pairwise(days)), [s.isoformat() for s in slots]


@given(st.integers(1, 10**7), moments)
@settings(deadline=None)
def test_an_interval_is_counted_from_1970(every: int, start: datetime) -> None:
    slot = Timing(every=every).after(start)
    assert slot is not None
    assert int(slot.timestamp()) % every == 0
    assert start < slot <= start + timedelta(seconds=every)


# What cannot be ----------------------------------------------------------------------------------------------------

HOW = (
    'Write minute, hour, day of month, month and day of week, such as "0 3 * * *"; '
    "or @hourly, @daily, @weekly, @monthly, @yearly"
)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cron": "61 * * * *"}, f"cron '61 * * * *' cannot be read: Bad minute. {HOW}"),
        ({"cron": "0 3 * *"}, f"cron '0 3 * *' cannot be read: Wrong number of fields. {HOW}"),
        ({"cron": ""}, f"cron '' cannot be read: Wrong number of fields. {HOW}"),
        ({"cron": "0 0 30 2 *"}, f"cron '0 0 30 2 *' cannot be read: Bad day-of-month. {HOW}"),
        ({"cron": "9" * 300}, "cron is 300 characters long, more than the limit of 200"),
        ({"cron": 3}, 'cron must be a text like "0 3 * * *", not 3'),
        (
            {"cron": "0 3 * * *", "tz": "Europe/Berln"},
            "there is no time zone 'Europe/Berln'. Did you mean 'Europe/Berlin'? Write it like Europe/Berlin, or UTC",
        ),
        (
            {"cron": "0 3 * * *", "tz": "../etc"},
            "there is no time zone '../etc'. Write it like Europe/Berlin, or UTC",
        ),
        (
            {"cron": "0 3 * * *", "tz": "localtime"},
            "there is no time zone 'localtime'. Write it like Europe/Berlin, or UTC",
        ),
        (
            {"cron": "0 3 * * *", "tz": None},
            'tz must be the name of a time zone, not None. Write tz="Europe/Berlin"',
        ),
        (
            {"every": 0},
            (
                "an interval must be whole seconds, from 1 second to 366 days, not 0. "
                "For what happens at a time of day, write a cron expression"
            ),
        ),
        ({}, "a schedule is either a cron expression or an interval. Give one of the two"),
    ],
)
def test_bad_timings_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Timing(**given)  # type: ignore[arg-type]
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("timing", "said"),
    [
        (Timing("0 3 * * *", tz="Europe/Berlin"), "At 03:00 every day (Europe/Berlin)"),
        (Timing("@hourly"), "At the start of every hour (UTC)"),
        (Timing(every=90), "Every 90 seconds"),
        (Timing(every=7200), "Every 2 hours"),
        (Timing(every=1), "Every second"),
    ],
)
def test_timings_in_english(timing: Timing, said: str) -> None:
    assert timing.describe() == said
