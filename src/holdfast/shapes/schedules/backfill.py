"""Backfill: fire the slots of a past period that have not fired, and report those that were left out."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from uuid import UUID

from ...errors import ConfigurationError, UnknownSchedule
from ...operate.search import check_texts
from ...operate.wording import moment
from ...store.audit import audit_add
from ...store.statement import Flow
from . import store
from .store import Stored
from .timing import Timing

MOST_SLOTS = 10_000  # of one backfill
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Backfill:
    """What a backfill fired, or with a dry run would fire."""

    schedule: str
    fired: int
    decided: int  # slots left out: they fired or were skipped before
    unknown: int  # slots left out: it is no longer known whether they fired
    first: datetime | None
    last: datetime | None
    jobs: list[UUID]  # none with a dry run


def find_schedule(name: str, *, held: bool = True) -> Flow[Stored]:
    """The schedule, locked until the transaction ends, unless it is a dry run."""
    check_texts({"schedule": name})
    if held:
        found = yield from store.read_locked(name)
    else:
        found = next(iter((yield from store.read_schedules([name]))), None)
    if found is not None:
        return found
    known = [s.name for s in (yield from store.read_schedules())]
    close = difflib.get_close_matches(str(name), known, 1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    raise UnknownSchedule(f"schedule {name!r} does not exist (known: {', '.join(known) or 'none'}).{guess}")


@dataclass(slots=True)
class Found:
    """The slots of a backfill that may fire, and their jobs."""

    schedule: str
    start: datetime
    end: datetime
    slots: list[datetime]
    decided: int
    unknown: int
    jobs: list[UUID]

    def batches(self) -> list[list[datetime]]:
        return [self.slots[i : i + _BATCH] for i in range(0, len(self.slots), _BATCH)]

    def selection(self) -> dict[str, object]:
        return {"schedule": self.schedule, "from": self.start, "to": self.end}

    def answer(self) -> Backfill:
        first, last = (self.slots[0], self.slots[-1]) if self.slots else (None, None)
        fired = len(self.jobs) if self.jobs else len(self.slots)
        return Backfill(self.schedule, fired, self.decided, self.unknown, first, last, self.jobs)


def find(name: str, start: datetime, end: datetime | None) -> Flow[Found]:
    found = yield from find_schedule(name, held=False)
    end = found.now if end is None else end
    for what, value in (("start", start), ("end", end)):
        if not isinstance(value, datetime) or value.utcoffset() is None:
            raise ConfigurationError(f"the {what} of a backfill must be a time with a zone, not {value!r}")
    if start >= end:
        raise ConfigurationError(
            f"the backfill's start ({moment(start)}) must be before its end ({moment(end)})"
        )
    if end > found.now:
        raise ConfigurationError(
            f"the backfill's end ({moment(end)}) is still to come: such slots fire by themselves. It is {moment(found.now)}"
        )
    slots = _slots(found.timing, start, end)
    decided = set((yield from store.decided_slots(name, slots)))
    open_slots = [s for s in slots if s not in decided]
    left = [s for s in open_slots if not _is_forgotten(found, s)]
    return Found(name, start, end, left, len(decided), len(open_slots) - len(left), [])


def _slots(timing: Timing, start: datetime, end: datetime) -> list[datetime]:
    tick = timedelta(microseconds=1)
    between = timing.between(start.astimezone(UTC) - tick, end.astimezone(UTC) - tick)
    slots = list(islice(between, MOST_SLOTS + 1))
    if len(slots) > MOST_SLOTS:
        raise ConfigurationError(
            f"there are more than {MOST_SLOTS:,} slots from {moment(start)} to {moment(end)}. "
            "Backfill a shorter time at once"
        )
    return slots


def _is_forgotten(found: Stored, slot: datetime) -> bool:
    low, high = found.forgotten_from, found.forgotten_to
    return low is not None and high is not None and low <= slot <= high


def backfill(name: str, slots: Sequence[datetime], entry: int) -> Flow[list[UUID]]:
    found = yield from find_schedule(name)
    fired = yield from store.fire_slots(found, slots, "backfill")
    yield from audit_add(entry, len(fired))
    return [job for _, job in fired]
