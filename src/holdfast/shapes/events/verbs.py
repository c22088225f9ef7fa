"""What people do with the log and its subscriptions: behind `app.events`, a declared subscription, and the command line.

Every verb is a procedure, so that it runs sync and async. Changes are in the audit.
"""

import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast, overload
from uuid import UUID, uuid4

from ...db.database import Database
from ...errors import (
    ConfigurationError,
    EventsGone,
    ForeignLog,
    InvalidEvent,
    ResultTimeout,
    UnknownSubscription,
)
from ...operate.procedure import Method, Procedure, Runner, actor, run, wait
from ...settings import default_actor
from ...store.audit import audit
from ...store.statement import Flow
from ...tasks import checks
from ...tasks.definition import Binding
from ...tasks.payload import shown
from ...tasks.producer import AppProducer
from . import store
from .event import Event, EventConverter, EventRow
from .publish import Publisher, new_event, new_events
from .store import Failure, Listed, LogState, NewEvent, Published

To = int | datetime | Literal["start", "end"]
_CONVERTER = EventConverter(Any)


# Procedures ----------------------------------------------------------------------------------------------------------------


def turn() -> Procedure[int]:
    """Number what was committed; the last position."""
    last = yield from run(store.turn_page)
    if last is None:
        raise ForeignLog
    return last


def state() -> Procedure[LogState]:
    """How the log stands."""
    yield from turn()
    return (yield from run(store.log_state))


def read(
    position: int = 0, most: int = 100, patterns: Sequence[str] | None = None
) -> Procedure[list[Event[Any]]]:
    """Events after a position, in order."""
    last = yield from turn()
    log = yield from run(store.log_state)
    if position < log.start:
        raise EventsGone(f"the log begins after position {log.start}; events after {position} are gone")
    found: list[Event[Any]] = []
    seq = yield from run(lambda: store.event_seq_at(position))
    while len(found) < most and position < last:
        want = max(most - len(found), 100)
        page = yield from run(functools.partial(store.read_events, position, seq, want, patterns=patterns))
        found += [event_of(row, log.era) for row in page.events]
        if page.position == position:
            break
        position, seq = page.position, page.seq
    return found[:most]


def event_of(row: EventRow, era: int) -> Event[Any]:
    """An event for people: one whose data was erased is shown without it."""
    if row.data is None:
        return Event(row.id, row.position, era, row.type, row.version, row.key, row.time)
    return _CONVERTER.event(row, era)


def show(which: int | UUID) -> Procedure[Event[Any]]:
    """One event, by position or id."""
    yield from turn()
    position: int | None
    if isinstance(which, UUID):
        seq = yield from run(lambda: store.event_by_id(which))
        position = None if seq is None else (yield from run(lambda: store.event_positions([seq])))[0]
    else:
        position = which
    found = [] if position is None or position < 1 else (yield from read(position - 1, 1))
    if not found:
        raise EventsGone(f"the log has no event {which}")
    return found[0]


def list_all(name: str | None = None) -> Procedure[list[Listed]]:
    """Every subscription with its lag."""
    yield from turn()
    return (yield from run(lambda: store.list_subscriptions(name)))


def find(name: str) -> Procedure[list[Listed]]:
    """The shards of one; UnknownSubscription if there is none."""
    found = yield from list_all(name)
    if not found:
        raise (yield from _unknown(name))
    return found


def _unknown(name: str) -> Procedure[UnknownSubscription]:
    known = yield from run(store.list_subscriptions)
    names = ", ".join(dict.fromkeys(listed.name for listed in known))
    return UnknownSubscription(
        f"there is no subscription {name!r}"
        + (f" (known: {names})" if names else "")
        + ". A worker makes those that its code declares"
    )


def pause(name: str) -> Procedure[int]:
    """Stop delivering to it. The log is kept for it, up to the limits."""
    who = yield from actor()

    def flow() -> Flow[int]:
        changed = yield from store.pause(name, who)
        if changed:
            yield from audit(who, "pause_subscription", {"subscription": name}, changed)
        return changed

    return (yield from _changed(name, flow))


def resume(name: str) -> Procedure[int]:
    who = yield from actor()

    def flow() -> Flow[int]:
        changed = yield from store.resume(name)
        if changed:
            yield from audit(who, "resume_subscription", {"subscription": name}, changed)
        return changed

    return (yield from _changed(name, flow))


def _changed(name: str, flow: Any) -> Procedure[int]:
    changed: int = yield from run(flow)
    if not changed:
        yield from find(name)
    return changed


def reset(name: str, to: To) -> Procedure[int]:
    """Put it to a position, a time, the start or the end; returns the position."""
    check_to(to)
    who = yield from actor()
    yield from turn()

    def flow() -> Flow[store.Moved]:
        moved = yield from store.reset(name, to)
        if moved.shards:
            which = {"subscription": name, "position": moved.position}
            yield from audit(who, "reset_subscription", which, moved.shards)
        return moved

    moved: store.Moved = yield from run(flow)
    if not moved.shards:
        yield from find(name)
        raise EventsGone(
            f"position {moved.position} is not in the log, which has {moved.start} to {moved.last}. Choose one of these"
        )
    return moved.position


def check_to(to: object) -> None:
    fits = (isinstance(to, int) and not isinstance(to, bool)) or to in ("start", "end")
    if isinstance(to, datetime):
        fits = to.tzinfo is not None
    if not fits:
        raise ConfigurationError(
            f'a position is a number, a time with its zone, "start" or "end", not {shown(to)}'
        )


def replay(
    name: str, since: int | datetime, until: int | datetime | None = None, *, again: bool = False
) -> Procedure[str]:
    """Read a range once more to one subscriber, beside its own position; returns the name of the replay. What became a job
    is not made one again, unless `again`."""
    last = yield from turn()
    log = yield from run(store.log_state)
    listed = yield from find(name)
    begin = yield from _position(since, last)
    end = last if until is None else (yield from _position(until, last))
    if not log.start <= begin <= end <= last:
        raise EventsGone(
            f"the log has positions {log.start} to {last}; a replay from {begin} to {end} is not in it"
        )
    if listed[0].kind == "projection":
        raise ConfigurationError(
            f"{name} is a projection: events that it applied would count twice. Use: holdfast projection rebuild {name}"
        )
    replayed = f"{name}@{uuid4().hex[:8]}"
    who = yield from actor()

    def flow() -> Flow[None]:
        yield from store.add_replay(replayed, name, begin, end, again=again)
        yield from audit(who, "replay_events", {"subscription": name, "from": begin, "to": end}, end - begin)

    yield from run(flow)
    return replayed


def _position(at: int | datetime, last: int) -> Procedure[int]:
    if isinstance(at, int):
        return at
    check_to(at)
    found: int | None = yield from run(lambda: store.position_at(at))
    return last if found is None else found


def skip(name: str) -> Procedure[Failure]:
    """Pass the event at which a subscription stands, and note it; returns what was skipped."""
    listed = yield from find(name)
    stopped = [row for row in listed if row.status == "paused"]
    if not stopped:
        raise ConfigurationError(
            f"{name} is not stopped, so there is nothing to skip. Pause it first: holdfast subscriptions pause {name}"
        )
    who = yield from actor()
    shard = stopped[0]

    def flow() -> Flow[Failure | None]:
        page = yield from store.next_event(shard)
        if not page.events:
            return None
        row = page.events[0]
        yield from store.skip_event(shard, row, shard.problem or "skipped by an operator")
        yield from audit(who, "skip_event", {"subscription": name, "position": row.position}, 1)
        return Failure(
            row.position, row.seq, shard.shard, "skipped", row.id, row.type, row.key, shard.problem, row.time
        )

    skipped: Failure | None = yield from run(flow)
    if skipped is None:
        raise ConfigurationError(f"{name} has read all events, so there is nothing to skip")
    return skipped


def remove(name: str) -> Procedure[int]:
    """Forget a subscription that no code declares any more."""
    who = yield from actor()

    def flow() -> Flow[int]:
        gone = yield from store.remove(name)
        if gone:
            yield from audit(who, "remove_subscription", {"subscription": name}, gone)
        return gone

    return (yield from _changed(name, flow))


def failures(name: str, key: str | None = None) -> Procedure[list[Failure]]:
    """What a projection skipped or parked, in order."""
    yield from find(name)
    return (yield from run(lambda: store.list_failures(name, key)))


def rebase() -> Procedure[int]:
    """Take over a log that was restored from another server; returns how many events had no position."""
    who = yield from actor()

    def flow() -> Flow[int]:
        found = yield from store.rebase()
        yield from audit(who, "rebase_events", {}, found)
        return found

    return (yield from run(flow))


def retention(
    days: int | None = None, hold_days: int | None = None, hold_bytes: int | None = None
) -> Procedure[LogState]:
    """How long the log is kept: `days` always, and for a slow subscriber up to `hold_days` and `hold_bytes`."""
    for what, value, most in (
        ("days", days, 30),
        ("hold_days", hold_days, 30),
        ("hold_bytes", hold_bytes, 2**62),
    ):
        if value is not None and not 1 <= value <= most:
            raise ConfigurationError(f"{what} must be between 1 and {most}, not {value}")
    who = yield from actor()

    def flow() -> Flow[None]:
        kept = yield from store.set_retention(days, hold_days, hold_bytes)
        yield from audit(
            who, "event_retention", dict(zip(("days", "hold_days", "hold_bytes"), kept, strict=True)), 1
        )

    yield from run(flow)
    return (yield from run(store.log_state))


def await_position(name: str, what: Published | int, timeout: float) -> Procedure[int]:
    """Wait until a subscription has passed an event; returns its position. ResultTimeout when it does not in time."""
    deadline = time.monotonic() + timeout
    target = what if isinstance(what, int) else None
    pause_for = 0.002
    while True:
        if target is None and isinstance(what, Published):
            yield from turn()
            target = (yield from run(lambda: store.event_positions([what.seq])))[0]
        found = yield from run(lambda: store.position_of(name))
        if found is not None and target is not None and found[0] >= target:
            return found[0]
        if time.monotonic() >= deadline:
            if found is None:
                raise (yield from _unknown(name))
            position, status = found
            why = f"it is {status}" if status else f"it is at position {position}"
            missing = "an event that is not committed yet" if target is None else f"position {target}"
            raise ResultTimeout(f"{name} has not passed {missing} within {timeout:g} s: {why}")
        yield from wait(pause_for)
        pause_for = min(pause_for * 1.5, 0.05)


class Subscriptions(Runner):
    """Every verb on the log, for one actor: `Subscriptions(database, "ann").pause("send_receipt")`. On an event loop:
    `await subscriptions.pause.arun("send_receipt")`."""

    turn = Method(turn)
    state = Method(state)
    read = Method(read)
    show = Method(show)
    list = Method(list_all)
    find = Method(find)
    pause = Method(pause)
    resume = Method(resume)
    reset = Method(reset)
    replay = Method(replay)
    skip = Method(skip)
    remove = Method(remove)
    failures = Method(failures)
    rebase = Method(rebase)
    retention = Method(retention)
    await_position = Method(await_position)


# For users -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay that was begun."""

    name: str
    _verbs: Subscriptions
    _since: int
    _until: int

    def progress(self) -> tuple[int, int]:
        """Events that were read, and how many there are."""
        found = self._verbs.run(_listed(self.name))
        total = self._until - self._since
        return (total, total) if not found else (found[0].position - self._since, total)

    def cancel(self) -> None:
        """End it where it is."""
        self._verbs.remove(self.name)


def _listed(name: str) -> Procedure[list[Listed]]:
    return (yield from run(lambda: store.list_subscriptions(name)))


class Subscription:
    """A subscription that the code declares: `send_receipt.lag()`, `send_receipt.pause()`."""

    def __init__(self, name: str, binding: Binding) -> None:
        self.name = name
        self._binding = binding

    @property
    def _verbs(self) -> Subscriptions:
        producer = cast(AppProducer, self._binding.require(self.name))
        return Subscriptions(producer.database, default_actor())

    def lag(self) -> tuple[int, float]:
        """How far it is behind the log: events, seconds."""
        return _lag(self._verbs.find(self.name))

    async def alag(self) -> tuple[int, float]:
        return _lag(await self._verbs.find.arun(self.name))

    def pause(self) -> None:
        """Stop delivering to it, on all workers."""
        self._verbs.pause(self.name)

    async def apause(self) -> None:
        await self._verbs.pause.arun(self.name)

    def resume(self) -> None:
        """Go on where it was paused."""
        self._verbs.resume(self.name)

    async def aresume(self) -> None:
        await self._verbs.resume.arun(self.name)

    def reset(self, to: To) -> None:
        """Go on from a position, a time, the "start" or the "end"."""
        self._verbs.reset(self.name, to)

    async def areset(self, to: To) -> None:
        await self._verbs.reset.arun(self.name, to)

    def replay(
        self, since: int | datetime, until: int | datetime | None = None, *, again: bool = False
    ) -> Replay:
        """Deliver a range once more, beside its own position. Events that became jobs are left out, unless `again`."""
        verbs = self._verbs
        name = verbs.replay(self.name, since, until, again=again)
        listed = verbs.run(_listed(name))[0]
        return Replay(name, verbs, listed.position, listed.until or listed.position)

    def read_your_writes(self, what: Published | int, *, timeout: float = 5.0) -> int:
        """Wait until it has passed what was published, or a position: `totals.read_your_writes(app.publish(...))`."""
        return self._verbs.await_position(self.name, what, timeout)

    async def aread_your_writes(self, what: Published | int, *, timeout: float = 5.0) -> int:
        return await self._verbs.await_position.arun(self.name, what, timeout)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _lag(listed: Sequence[Listed]) -> tuple[int, float]:
    return max(row.lag_events for row in listed), max(row.lag_seconds for row in listed)


_Read = list[Event[Any]]


class Events:
    """The log: `app.events.append("order:9182", [...], expected_version=7)`, `app.events.read(position)`."""

    def __init__(self, database: Database) -> None:
        self._publisher = Publisher(database)
        self._verbs = Subscriptions(database, "app")

    def append(
        self,
        stream: str,
        events: Iterable[object],
        *,
        expected_version: int | None = None,
        conn: object = None,
    ) -> int:
        """Add events to a stream, whose key is `stream`; returns its new version. ConcurrencyConflict when it is not at
        `expected_version`: 0 is a stream that nobody has appended to."""
        made = _stream_events(stream, events, expected_version)
        return self._publisher.append(stream, made, expected_version, conn)[0]

    async def aappend(
        self,
        stream: str,
        events: Iterable[object],
        *,
        expected_version: int | None = None,
        conn: object = None,
    ) -> int:
        made = _stream_events(stream, events, expected_version)
        return (await self._publisher.aappend(stream, made, expected_version, conn))[0]

    def read(self, after: int = 0, most: int = 100, types: Sequence[str] | None = None) -> _Read:
        """Events after a position, in order."""
        return self._verbs.read(after, most, types)

    async def aread(self, after: int = 0, most: int = 100, types: Sequence[str] | None = None) -> _Read:
        return await self._verbs.read.arun(after, most, types)

    def last_position(self) -> int:
        """The position of the newest committed event."""
        return self._verbs.turn()

    async def alast_position(self) -> int:
        return await self._verbs.turn.arun()


def _stream_events(stream: str, events: Iterable[object], expected: int | None) -> list[NewEvent]:
    checks.key(stream, "the stream", InvalidEvent, empty=False)
    if expected is not None and (not isinstance(expected, int) or isinstance(expected, bool) or expected < 0):
        raise InvalidEvent(f"expected_version must be 0 or more, not {shown(expected)}")
    made = [event._replace(key=stream) for event in new_events(events)]
    if not made:
        raise InvalidEvent("append needs one event at least")
    return made


class HasEvents:
    """`app.publish(...)` and `app.events`."""

    if TYPE_CHECKING:

        @property
        def database(self) -> Database: ...

    @property
    def events(self) -> Events:
        """The log of this app's database."""
        return Events(self.database)

    @overload
    def publish(
        self,
        event: object,
        /,
        *,
        key: str | None = ...,
        id: UUID | None = ...,
        headers: Mapping[str, str] | None = ...,
        conn: object = ...,
    ) -> Published: ...
    @overload
    def publish(
        self,
        event: str | type,
        data: Mapping[str, Any],
        /,
        *,
        version: int | None = ...,
        key: str | None = ...,
        id: UUID | None = ...,
        headers: Mapping[str, str] | None = ...,
        conn: object = ...,
    ) -> Published: ...
    def publish(
        self,
        event: Any,
        data: Mapping[str, Any] | None = None,
        /,
        *,
        version: int | None = None,
        key: str | None = None,
        id: UUID | None = None,  # noqa: A002 the word of CloudEvents
        headers: Mapping[str, str] | None = None,
        conn: object = None,
    ) -> Published:
        """Append one event to the log: `app.publish(OrderPaid(9182, 995), conn=conn)`, or by name:
        `app.publish("order.paid", {"order_id": 9182}, key="order:9182")`. With `conn` it is part of the caller's
        transaction. An `id` that was published before is not published again."""
        made = new_event(event, data, version=version, key=key, event_id=id, headers=headers)
        return Publisher(self.database).publish([made], conn, "publish")[0]

    @overload
    async def apublish(
        self,
        event: object,
        /,
        *,
        key: str | None = ...,
        id: UUID | None = ...,
        headers: Mapping[str, str] | None = ...,
        conn: object = ...,
    ) -> Published: ...
    @overload
    async def apublish(
        self,
        event: str | type,
        data: Mapping[str, Any],
        /,
        *,
        version: int | None = ...,
        key: str | None = ...,
        id: UUID | None = ...,
        headers: Mapping[str, str] | None = ...,
        conn: object = ...,
    ) -> Published: ...
    async def apublish(
        self,
        event: Any,
        data: Mapping[str, Any] | None = None,
        /,
        *,
        version: int | None = None,
        key: str | None = None,
        id: UUID | None = None,  # noqa: A002
        headers: Mapping[str, str] | None = None,
        conn: object = None,
    ) -> Published:
        """`await app.apublish(OrderPaid(9182, 995), conn=conn)`: see publish()."""
        made = new_event(event, data, version=version, key=key, event_id=id, headers=headers)
        return (await Publisher(self.database).apublish([made], conn, "publish"))[0]

    def publish_many(self, events: Iterable[object], /, *, conn: object = None) -> list[Published]:
        """Append many events in one statement, all or none, in their order: instances, or tuples (type, data, key)."""
        return Publisher(self.database).publish(new_events(events), conn, "publish_many")

    async def apublish_many(self, events: Iterable[object], /, *, conn: object = None) -> list[Published]:
        """`await app.apublish_many([OrderPaid(1, 5), OrderPaid(2, 5)])`: see publish_many()."""
        return await Publisher(self.database).apublish(new_events(events), conn, "publish_many")
