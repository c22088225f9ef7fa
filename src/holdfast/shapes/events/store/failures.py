"""Events that a projection passed without applying them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ....errors import EventsGone
from ....store.statement import Flow, Statement, count, named, nothing
from ..event import EventRow
from .log import Page, event_seq_at, read_events
from .subscriptions import Listed, Owned


@dataclass(frozen=True, slots=True)
class Failure:
    """An event that a projection passed without applying it."""

    position: int
    seq: int
    shard: int
    kind: str  # 'skipped', 'parked', 'spilled' or 'behind'
    event_id: UUID
    type: str
    key: str | None
    error: str | None
    at: datetime


def note_failures(o: Owned, failed: Sequence[tuple[EventRow, str, str | None]]) -> Statement[None]:
    """(event, kind, error) of each."""
    rows = [row for row, _, _ in failed]
    params = (
        o.noted_as,
        o.shard,
        [row.position for row in rows],
        [row.seq for row in rows],
        [kind for _, kind, _ in failed],
        [row.id for row in rows],
        [row.type for row in rows],
        [row.key for row in rows],
        [error for _, _, error in failed],
    )
    return named("note_failures", params, nothing)


def parked_keys(name: str) -> Statement[set[str]]:
    return named("parked_event_keys", (name,), lambda rows: {row[0] for row in rows})


def list_failures(
    name: str, key: str | None = None, most: int = 1000, after: int = 0
) -> Statement[list[Failure]]:
    """Those after a position, in order."""
    return named("list_failures", (name, key, most, after), lambda rows: [Failure(*row) for row in rows])


def count_failures(name: str, key: str | None = None, position: int | None = None) -> Statement[int]:
    return named("count_failures", (name, key, position), count)


def drop_failures(name: str, key: str | None, position: int | None) -> Statement[tuple[int, int]]:
    """How many there were, and how many of them kept their key waiting."""
    return named("drop_failures", (name, key, position), lambda rows: (rows[0][0], rows[0][1]))


def waiting_keys(name: str) -> Statement[dict[str | None, bool]]:
    """Keys with events that wait in order, and whether they are tried again by themselves."""
    return named("waiting_event_keys", (name,), lambda rows: {row[0]: row[1] for row in rows})


def waiting_failures(name: str, key: str | None, most: int, after: int) -> Statement[list[Failure]]:
    return named("waiting_failures", (name, key, most, after), lambda rows: [Failure(*row) for row in rows])


def retry_failures(name: str, key: str | None) -> Statement[int]:
    return named("retry_failures", (name, key), count)


def send_behind(name: str) -> Statement[None]:
    """Send events of a relay that waited behind others and do no longer."""
    return named("send_behind", (name,), nothing)


def forget_failures(name: str, positions: Sequence[int]) -> Statement[None]:
    return named("forget_failures", (name, list(positions)), nothing)


def forget_skipped(o: Owned, position: int) -> Statement[None]:
    """Events that a replay passes, up to this position, are not skipped any more."""
    return named("forget_skipped", (o.noted_as, o.position, position), nothing)


def lock_failures(name: str, positions: Sequence[int]) -> Statement[int]:
    """How many of them still exist; nobody else applies them before the end of the transaction."""
    return named("lock_failures", (name, list(positions)), len)


def failed_again(name: str, position: int, error: str) -> Statement[None]:
    return named("failed_again", (name, position, error), nothing)


def failed_event(failure: Failure) -> Flow[EventRow]:
    """The event itself; EventsGone when the log no longer has it."""
    page = yield from read_events(failure.position - 1, failure.seq - 1, 1)
    if not page.events:
        raise EventsGone(f"the log has no event {failure.position}")
    return page.events[0]


def next_event(listed: Listed) -> Flow[Page]:
    """The event at which a subscription stopped."""
    position, last = listed.position, None
    seq = yield from event_seq_at(position)
    while True:
        page = yield from read_events(
            position,
            seq,
            1000,
            patterns=listed.patterns,
            most_bytes=1,
            shard=listed.shard,
            shards=listed.shards,
        )
        if page.events or page.position in (position, last):
            return page
        position, seq, last = page.position, page.seq, page.last


def skip_event(listed: Listed, row: EventRow, why: str) -> Statement[bool]:
    """False: it has moved meanwhile, or is not stopped any more."""
    params = (
        listed.name,
        listed.shard,
        row.position,
        row.seq,
        row.id,
        row.type,
        row.key,
        why,
        listed.position,
    )
    return named("skip_event", params, bool)
