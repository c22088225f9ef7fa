"""The log for people: pages of it, with filters, and the position of a time."""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from ...errors import EventsGone
from ...model import exact
from ...operate.procedure import Method, Procedure, run
from ...operate.refusal import Refused
from . import procedures, store
from .event import Event, EventRow
from .lookups import To, check_to, turn
from .procedures import Subscriptions
from .store import LogState

MOST_EVENTS = 1000  # events of a page
_BATCH = 500
_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class EventPage:
    events: list[Event[Any]]
    position: int  # how far it has read
    next: int | None  # there may be more after this position
    cut: bool  # the search stopped because of its time limit


def page(
    after: To = "start",
    limit: int = 50,
    types: Sequence[str] = (),
    key: str | None = None,
    patience: float = 2.0,
) -> Procedure[EventPage]:
    """Events after a position or a time, in order; of `types`, which may be patterns, and with this key. It reads for
    `patience` seconds at most."""
    if not 1 <= limit <= MOST_EVENTS:
        raise Refused(
            "limit",
            f"limit must be between 1 and {MOST_EVENTS}, not {limit}",
            what="events",
            most=MOST_EVENTS,
            limit=limit,
        )
    deadline = time.monotonic() + patience
    yield from turn()
    log = yield from run(store.log_state)
    position = yield from place(after, log)
    seq = yield from run(functools.partial(store.event_seq_at, position))
    found: list[Event[Any]] = []
    while position < log.last and time.monotonic() < deadline:
        part = yield from run(
            functools.partial(
                store.read_events, position, seq, _BATCH, patterns=types or None, most_bytes=_BYTES
            )
        )
        for row in part.events:
            if key is None or row.key == key:
                found.append(shown_event(row, log.era))
                if len(found) == limit:
                    return EventPage(
                        found, row.position, row.position if row.position < log.last else None, False
                    )
        position, seq = part.position, part.seq
    return EventPage(found, position, position if position < log.last else None, position < log.last)


def shown_event(row: EventRow, era: int) -> Event[Any]:
    """With every number of its data exactly as written. An event whose data was erased is shown without it."""
    data = None if row.data is None else exact.loads(row.data)
    headers = exact.loads(row.headers) if row.headers else {}
    return Event(row.id, row.position, era, row.type, row.version, row.key, row.time, headers, data)


def show(which: int | UUID) -> Procedure[Event[Any]]:
    """One event, by position or id."""
    found = yield from procedures.show(which)
    again = yield from page(found.position - 1, 1)
    return again.events[0] if again.events else found


def place(at: To, log: LogState) -> Procedure[int]:
    """The position before the first event to read."""
    check_to(at)
    if isinstance(at, datetime):
        found = yield from run(functools.partial(store.position_at, at))
        return log.last if found is None else found
    if isinstance(at, str):
        return log.start if at == "start" else log.last
    if at < log.start:
        raise EventsGone(f"the log begins after position {log.start}; events after {at} are gone")
    return at


def place_of(at: To) -> Procedure[int]:
    """The same, as a verb."""
    yield from turn()
    return (yield from place(at, (yield from run(store.log_state))))


def is_foreign() -> Procedure[bool]:
    """Whether the log was restored from another server, so that new events cannot be numbered."""
    return (yield from run(store.turn_or_look)) is None


def count_failures(name: str, key: str | None = None, position: int | None = None) -> Procedure[int]:
    """How many events it skipped or parked."""
    return (yield from run(functools.partial(store.count_failures, name, key, position)))


def names() -> Procedure[list[tuple[str, str]]]:
    """Each subscription and its kind."""
    listed = yield from run(store.list_subscriptions)
    return list(dict.fromkeys((row.name, row.kind) for row in listed))


class Looks(Subscriptions):
    """The verbs of the log, and the queries of the command line."""

    page = Method(page)
    show = Method(show)
    place_of = Method(place_of)
    is_foreign = Method(is_foreign)
    count_failures = Method(count_failures)
    names = Method(names)
