"""Statements of the log and its subscriptions; queries.sql beside it has the text."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ...errors import ConcurrencyConflict
from ...sql import query
from ...store.arrays import int_array, text_array
from ...store.statement import Flow, Row, Statement, count, nothing
from .event import EventRow

TOPIC = "+events"  # what sleeping workers are woken for; no queue can have this name
NEWEST = "newest_event"


def _named(name: str, params: tuple[Any, ...], decode: Any, *, binary: bool = False) -> Statement[Any]:
    return Statement(name, query(name), params, decode, binary=binary)


# Publish -----------------------------------------------------------------------------------------------------------------


class NewEvent(NamedTuple):
    """One event to publish, checked and encoded."""

    type: str
    data: str
    key: str | None = None
    headers: str | None = None
    id: UUID | None = None
    version: int = 1


class Published(NamedTuple):
    """What `app.publish()` returns."""

    id: UUID
    seq: int  # with which `read_your_writes()` finds it
    created: bool = True  # False: an event of this id was there


def _published(rows: Sequence[Row]) -> list[Published]:
    return [Published(UUID(r[0]), int(r[1]), r[2] == "true") for (r,) in rows]


def _all_published(rows: Sequence[Row]) -> list[Published]:
    texts = rows[0][0] or []
    n = len(texts) // 3
    columns = zip(texts[:n], texts[n : 2 * n], texts[2 * n :], strict=True)
    return [Published(UUID(text), int(seq), created == "true") for text, seq, created in columns]


def publish(events: Sequence[NewEvent]) -> Statement[list[Published]]:
    return _named("publish", tuple(events[0]), _published) if len(events) == 1 else publish_many(events)


def publish_many(events: Sequence[NewEvent]) -> Statement[list[Published]]:
    """Arrays go as text, which costs a tenth of handing the driver lists; a column without values is left out."""
    columns = list(zip(*events, strict=True))
    types, data, keys, headers, ids, versions = columns or [()] * len(NewEvent._fields)
    params = (
        text_array(types),
        text_array(data),
        text_array(keys) if any(key is not None for key in keys) else None,
        text_array(headers) if any(headers) else None,
        text_array([None if i is None else str(i) for i in ids]) if any(ids) else None,
        int_array(versions) if versions.count(1) != len(versions) else None,
    )
    return _named("publish_many", params, _all_published)


def append(
    stream: str, events: Sequence[NewEvent], expected: int | None
) -> Flow[tuple[int, list[Published]]]:
    """The stream's version after these events, which are its next ones."""

    def decode(rows: Sequence[Row]) -> int:
        return int(rows[0][0][0])

    version: int = yield from _named("append_events", (stream, expected, len(events)), decode)
    if version < 0:
        actual = -version - 1
        raise ConcurrencyConflict(
            f"stream {stream!r} is at version {actual}, not {expected}: somebody else wrote to it. "
            "Read it again and decide again",
            stream=stream,
            expected=expected or 0,
            actual=actual,
        )
    published = yield from publish_many(events)
    return version, published


# The log -----------------------------------------------------------------------------------------------------------------


def turn_page() -> Statement[int | None]:
    """The last position; None: the log is of another server."""
    return _named("turn_page", (), lambda rows: rows[0][0])


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
    return _named("log_state", (), lambda rows: LogState(*rows[0]))


@dataclass(frozen=True, slots=True)
class Page:
    """What a read found. `position` and `seq` say how far was looked: there may be more events than matched."""

    events: list[EventRow]
    position: int
    seq: int
    last: int  # of the log


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
    def decode(rows: Sequence[Row]) -> Page:
        *found, (looked, looked_seq, _, _, looked_at, _, _, _, last) = rows
        events = [EventRow(*row) for row in found]
        if looked is None:
            return Page([], position, seq, int(last or 0))
        if looked - position != looked_at:
            raise RuntimeError(
                f"the log has {looked_at} events between positions {position} and {looked}, not {looked - position}"
            )
        return Page(events, looked, looked_seq, int(last))

    likes = None if patterns is None else [like(pattern) for pattern in patterns]
    params = (position, seq, most, most_bytes, likes, shard, shards, until)
    return _named("read_events", params, decode)


def like(pattern: str) -> str:
    """A pattern of event types, where * stands for anything, as LIKE has it."""
    for special in ("\\", "%", "_"):
        pattern = pattern.replace(special, "\\" + special)
    return pattern.replace("*", "%")


def event_positions(seqs: Sequence[int]) -> Statement[list[int | None]]:
    return _named("event_positions", (list(seqs),), lambda rows: [row[0] for row in rows])


def event_by_id(event_id: UUID) -> Statement[int | None]:
    return _named("event_by_id", (event_id,), lambda rows: rows[0][0] if rows else None)


def rebase() -> Statement[int]:
    return _named("rebase_events", (), count)


def set_retention(days: int | None, hold_days: int | None, hold_bytes: int | None) -> Statement[Row]:
    return _named("set_event_retention", (days, hold_days, hold_bytes), lambda rows: rows[0])


def empty_slots(days: int, most: int) -> Statement[int]:
    return _named("empty_event_slots", (), count)


def prune_ids(days: int, most: int) -> Statement[int]:
    return _named("prune_event_ids", (days, most), count)


# Subscriptions -------------------------------------------------------------------------------------------------------------


def subscribe(
    name: str, kind: str, patterns: Sequence[str], start: str, shards: int = 1, *, hold: bool = True
) -> Statement[bool]:
    """True: it is new."""
    params = (name, kind, list(patterns), start, shards, hold)
    return _named("subscribe", params, lambda rows: bool(rows[0][0]))


@dataclass(slots=True)
class Owned:
    """A subscription, or a shard of one, as its owner has it. Every move of its position is guarded by this."""

    name: str
    shard: int
    shards: int
    kind: str
    patterns: list[str]
    position: int
    seq: int
    until: int | None
    replay_of: str | None
    status: str
    generation: int
    token: UUID
    barrier: int | None
    delivered: str  # positions that became jobs, as a multirange
    era: int

    @property
    def of(self) -> str:
        """The subscription whose code it runs."""
        return self.replay_of or self.name

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.name, self.shard, self.generation)


def own(names: Sequence[str], token: UUID, worker: str, lease: float) -> Statement[list[Owned]]:
    """Renew what is owned under the token, and take what is free. A row that somebody holds is left out."""
    params = (list(names), token, worker, lease)
    return _named("own_subscriptions", params, lambda rows: [Owned(*row) for row in rows])


def owned_keys(token: UUID) -> Statement[set[tuple[str, int, int]]]:
    """(name, shard, generation) of what is owned under the token."""
    return _named("locked_subscriptions", (token,), lambda rows: {tuple(row) for row in rows})


def release(token: UUID) -> Statement[None]:
    return _named("release_subscriptions", (token,), nothing)


def hold(o: Owned) -> Statement[bool]:
    """Lock the row, first in the transaction of an effect. False: fenced, paused or moved."""
    params = (o.name, o.shard, o.generation, o.token, o.position)
    return _named("hold_subscription", params, bool)


def advance(o: Owned, position: int, seq: int, lease: float, delivered: str | None = None) -> Statement[bool]:
    """Move the position. False: fenced, paused or moved by somebody else."""
    params = (o.name, o.shard, o.generation, o.token, o.position, position, seq, lease, delivered)
    return _named("advance", params, bool)


def end_replay(o: Owned) -> Statement[None]:
    return _named("end_replay", (o.name, o.token), nothing)


def stop_shard(o: Owned, why: str) -> Statement[bool]:
    return _named("stop_shard", (o.name, o.shard, o.generation, o.token, why), bool)


def note_trouble(o: Owned, what: str) -> Statement[None]:
    return _named("note_trouble", (o.name, o.shard, o.token, what), nothing)


@dataclass(frozen=True, slots=True)
class Listed:
    """A subscription, or a shard of one, as `holdfast subscriptions list` shows it."""

    name: str
    shard: int
    shards: int
    kind: str
    patterns: list[str]
    position: int
    status: str
    hold: bool
    owner: str | None
    lag_events: int
    lag_seconds: float
    missed: int | None
    problem: str | None
    paused_by: str | None
    paused_seconds: float | None
    until: int | None
    replay_of: str | None
    moved_seconds: float
    failures: int


def list_subscriptions(name: str | None = None) -> Statement[list[Listed]]:
    return _named("list_subscriptions", (name,), lambda rows: [Listed(*row) for row in rows])


def pause(name: str, by: str, why: str | None = None) -> Statement[int]:
    return _named("pause_subscription", (name, by, why), count)


def resume(name: str) -> Statement[int]:
    return _named("resume_subscription", (name,), count)


class Moved(NamedTuple):
    shards: int  # 0: it may not be put there, or there is none
    position: int
    start: int
    last: int


def reset(name: str, to: int | datetime | str) -> Statement[Moved]:
    position = to if isinstance(to, int) else None
    at = to if isinstance(to, datetime) else None
    word = to if isinstance(to, str) else "end"
    return _named("reset_subscription", (name, position, at, word), lambda rows: Moved(*rows[0]))


def add_replay(name: str, of: str, since: int, until: int, *, again: bool) -> Statement[bool]:
    return _named("add_replay", (name, of, since, until, again), bool)


def remove(name: str) -> Statement[int]:
    return _named("remove_subscription", (name,), count)


# What was not applied ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """An event that a projection passed without applying it."""

    position: int
    seq: int
    shard: int
    kind: str  # 'skipped', 'parked' or 'behind'
    event_id: UUID
    type: str
    key: str | None
    error: str | None
    at: datetime


def note_failures(o: Owned, failed: Sequence[tuple[EventRow, str, str | None]]) -> Statement[None]:
    """(event, kind, error) of each."""
    rows = [row for row, _, _ in failed]
    params = (
        o.name,
        o.shard,
        [row.position for row in rows],
        [row.seq for row in rows],
        [kind for _, kind, _ in failed],
        [row.id for row in rows],
        [row.type for row in rows],
        [row.key for row in rows],
        [error for _, _, error in failed],
    )
    return _named("note_failures", params, nothing)


def parked_keys(name: str) -> Statement[set[str]]:
    return _named("parked_event_keys", (name,), lambda rows: {row[0] for row in rows})


def list_failures(name: str, key: str | None = None, most: int = 1000) -> Statement[list[Failure]]:
    return _named("list_failures", (name, key, most), lambda rows: [Failure(*row) for row in rows])


def forget_failures(name: str, positions: Sequence[int]) -> Statement[None]:
    return _named("forget_failures", (name, list(positions)), nothing)


def position_of(name: str) -> Statement[tuple[int, str | None] | None]:
    """The lowest position over its shards, and a status that is not active; None: there is none."""
    return _named("projection_positions", (name,), lambda rows: rows[0] if rows else None)


def position_at(at: datetime) -> Statement[int | None]:
    """The position before the first event that was numbered then or later; None: there is none."""
    return _named("position_at", (at,), lambda rows: rows[0][0] if rows else None)


def event_seq_at(position: int) -> Statement[int]:
    return _named("event_seq_at", (position,), count)


def next_event(listed: Listed) -> Flow[Page]:
    """The event at which a subscription stands."""
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


def skip_event(listed: Listed, row: EventRow, why: str) -> Statement[None]:
    params = (listed.name, listed.shard, row.position, row.seq, row.id, row.type, row.key, why)
    return _named("skip_event", params, nothing)
