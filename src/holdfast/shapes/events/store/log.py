"""The log: pages, reading, and retention."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

from ....errors import EventsGone
from ....store.statement import Row, Statement, count, named
from ..event import EventRow

TOPIC = "+events"  # what sleeping workers are woken for; no queue can have this name
SETTLED = "settled_events"


def turn_page() -> Statement[int | None]:
    """The last position; None: the log is of another server."""
    return named("turn_page", (), lambda rows: rows[0][0])


def turn_or_look() -> Statement[int | None]:
    """The same for readers: a login that may not turn the page gets the last position as it is."""
    return named("turn_or_look", (), lambda rows: rows[0][0])


def hold_log_start() -> Statement[int]:
    """Events up to this position are gone, and no more go before the end of the transaction."""
    return named("hold_log_start", (), lambda rows: int(rows[0][0][0]))


@dataclass(frozen=True, slots=True)
class LogState:
    era: int
    start: int  # events up to this position are gone
    last: int
    unnumbered: int  # at most
    retention_days: int
    hold_days: int
    hold_bytes: int


def log_state() -> Statement[LogState]:
    return named("log_state", (), lambda rows: LogState(*rows[0]))


@dataclass(frozen=True, slots=True)
class Page:
    """The result of a read. `position` and `seq` say how far it read: there may be more events than matched."""

    events: list[EventRow]
    position: int
    seq: int
    last: int  # of the log


_row = partial(tuple.__new__, EventRow)  # as EventRow._make(), which counts the columns of each


def read_events(
    position: int,
    seq: int,
    most: int,
    *,
    patterns: Sequence[str] | None = None,
    most_bytes: int = 2**40,
    shard: int = 0,
    shards: int = 1,
    until: int | None = None,
) -> Statement[Page]:
    likes = None if patterns is None else [like(pattern) for pattern in patterns]
    params = (position, seq, most, most_bytes, likes, shard, shards, until)
    return named("read_events", params, lambda rows: _page(rows, position, seq), binary=True)


def _page(rows: Sequence[Row], position: int, seq: int) -> Page:
    *found, (looked, looked_seq, _, _, looked_at, _, _, _, last) = rows
    if looked is None:
        return Page([], position, seq, int(last or 0))
    if looked - position != looked_at:
        raise EventsGone(
            f"the log has {looked_at} events between positions {position} and {looked}, not {looked - position}: the "
            "others were removed"
        )
    return Page(list(map(_row, found)), looked, looked_seq, int(last))


@dataclass(frozen=True, slots=True)
class Tail:
    """The positions of readers that are at the end, and the rows they get."""

    position: int
    seq: int
    patterns: frozenset[str]


class Turned(NamedTuple):
    last: int | None  # None: the log is of another server
    is_free: bool  # one of the subscriptions has no owner
    page: Page | None = None  # what is new after the tail


def turn_and_look(names: Sequence[str], tail: Tail | None, most: int, most_bytes: int) -> Statement[Turned]:
    """Turn the page, and read what is new for those at the tail, up to `most` events."""

    def decode(rows: Sequence[Row]) -> Turned:
        last, is_free = rows[0][:2]
        if tail is None or last is None:
            return Turned(last, is_free)
        return Turned(last, is_free, _page([row[2:] for row in rows], tail.position, tail.seq))

    where: tuple[object, ...] = (None, None, most, most_bytes, None)
    if tail is not None:
        likes = [like(pattern) for pattern in sorted(tail.patterns)]
        where = (tail.position, tail.seq, most, most_bytes, likes)
    return named("turn_and_look", (list(names), *where), decode, binary=True)


def like(pattern: str) -> str:
    """A pattern of event types, where * stands for anything, as LIKE has it."""
    for special in ("\\", "%", "_"):
        pattern = pattern.replace(special, "\\" + special)
    return pattern.replace("*", "%")


def event_positions(seqs: Sequence[int]) -> Statement[list[int | None]]:
    return named("event_positions", (list(seqs),), lambda rows: [row[0] for row in rows])


def event_by_id(event_id: UUID) -> Statement[int | None]:
    return named("event_by_id", (event_id,), lambda rows: rows[0][0])


def erase_events(ids: Sequence[UUID], seqs: Sequence[int], blanks: str, *, dry_run: bool) -> Statement[int]:
    return named("erase_events", (list(ids), list(seqs), blanks, dry_run), count)


def erase_key(
    slot: int, after: int, most: int, key: str, blanks: str, *, dry_run: bool
) -> Statement[tuple[int | None, int]]:
    """The last seq that was read, None: there are no more in the slot; and how many events had data."""
    params = (slot, after, most, key, blanks, dry_run)
    return named("erase_event_key", params, lambda rows: (rows[0][0], rows[0][1]))


def rebase() -> Statement[int]:
    return named("rebase_events", (), count)


def set_retention(days: int | None, hold_days: int | None, hold_bytes: int | None) -> Statement[Row]:
    return named("set_event_retention", (days, hold_days, hold_bytes), lambda rows: rows[0])


def empty_slots(days: int, most: int) -> Statement[int]:
    return named("empty_event_slots", (most,), count)


@dataclass(frozen=True, slots=True)
class Pressure:
    """How much of the log a subscription keeps, and its limits."""

    name: str
    seconds: float  # age of its oldest unread event
    bytes: int  # of the days from there on
    hold_days: int
    hold_bytes: int

    @property
    def share(self) -> float:
        """Of the nearer limit; beyond 1 it expires, as soon as a whole day of the log can be deleted."""
        return max(self.seconds / (self.hold_days * 86400), self.bytes / self.hold_bytes)


def log_pressure() -> Statement[list[Pressure]]:
    return named("log_pressure", (), lambda rows: [Pressure(*row) for row in rows])


def prune_ids(days: int, most: int) -> Statement[int]:
    return named("prune_event_ids", (days, most), count)


def position_at(at: datetime) -> Statement[int | None]:
    """The position before the first event that was numbered then or later; None: there is none."""
    return named("position_at", (at,), lambda rows: rows[0][0])


def event_seq_at(position: int) -> Statement[int]:
    return named("event_seq_at", (position,), count)
