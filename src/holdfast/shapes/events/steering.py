"""Acts on one subscription: pause, resume, reset, replay, skip, forget failures, remove. Each is in the audit.

With `conn`, pause, resume and reset are part of the caller's transaction. If another transaction has changed the
subscription and not yet committed, they wait for it.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar
from uuid import uuid4

from ...db.guests import async_guest, sync_guest
from ...errors import ConfigurationError, EventsGone
from ...model.queue import Rate
from ...operate.procedure import Procedure, Runner, Step, actor, run
from ...operate.refusal import Refused
from ...operate.wording import several
from ...store.audit import audit
from ...store.statement import Flow
from ...tasks.payload import shown
from . import store
from .lookups import To, check_to, find, per_second, turn, unknown
from .store import Failure, Listed, LogPosition

T = TypeVar("T")
_MOST_RETRIED = 100  # events at once: each may need a separate replay


def run_on(conn: object | None, verb: str, flow: Callable[[], Flow[T]]) -> Step[T]:
    """On our own connection, or in the caller's transaction."""
    if conn is None:
        return run(flow)

    async def arun(_: Runner) -> T:
        return await async_guest(conn, f"a{verb}", verb).arun(flow())

    return Step(lambda _: sync_guest(conn, verb, f"a{verb}").run(flow()), arun)


def pause(name: str, *, conn: object = None) -> Procedure[int]:
    """Stop delivering to it. The log is kept for it, up to the limits. Returns how many shards were not paused before."""
    who = yield from actor()

    def flow() -> Flow[int]:
        changed = yield from store.pause(name, who.name)
        if changed:
            yield from audit(who, "pause_subscription", {"subscription": name}, changed)
        return changed

    return (yield from _changed(name, (yield from run_on(conn, "pause", flow))))


def resume(name: str, *, conn: object = None) -> Procedure[int]:
    """Continue where it was paused. Returns how many shards were paused."""
    who = yield from actor()

    def flow() -> Flow[int]:
        changed = yield from store.resume(name)
        if changed:
            yield from audit(who, "resume_subscription", {"subscription": name}, changed)
        return changed

    return (yield from _changed(name, (yield from run_on(conn, "resume", flow))))


def _changed(name: str, changed: int) -> Procedure[int]:
    """Nothing changed: because it is already so, or for a reason that is reported."""
    if not changed:
        for listed in (yield from find(name)):
            if listed.status == "expired":
                raise _expired(listed)
    return changed


def _expired(listed: Listed) -> Refused:
    text = f"{listed.name} is expired: it missed {listed.missed} events"
    if listed.replay_of is None:
        return Refused("expired", text, subscription=listed.name)
    return _made_for(listed, text)


def _made_for(listed: Listed, text: str) -> Refused:
    """For a rebuild or a replay, which can only be abandoned."""
    code = "is_rebuild" if listed.is_rebuild else "is_replay"
    return Refused(code, text, subscription=listed.name, projection=listed.replay_of)


def reset(name: str, to: To, *, again: bool = False, conn: object = None) -> Procedure[int]:
    """Move it to a position, a time, the start or the end; returns the position. Events that became jobs do not become jobs
    again, unless `again`."""
    check_to(to)
    who = yield from actor()
    (listed, *_) = yield from find(name)
    check_reset(listed)
    place: LogPosition = yield from run(lambda: store.place_in_log(to))
    if place.seq is None:
        raise _not_in_log(place.position, place)

    def flow() -> Flow[store.Moved]:
        moved = yield from store.reset(name, place, again=again)
        if moved.shards:
            which = {"subscription": name, "position": place.position, "left_out": moved.left_out or None}
            yield from audit(who, "reset_subscription", {**which, "again": again or None}, moved.shards)
        return moved

    moved = yield from run_on(conn, "reset", flow)
    if not moved.shards:
        yield from find(name)
        raise _not_in_log(place.position, (yield from run(lambda: store.place_in_log(to))))
    return place.position


def check_reset(listed: Listed) -> None:
    """A rebuild that was moved would replace the live tables with events left out, or counted twice."""
    if listed.is_rebuild:
        text = f"{listed.name} is the rebuild of {listed.replay_of}: its tables would lack events, or count them twice"
        raise _made_for(listed, text)
    if listed.replay_of is not None:
        raise _made_for(listed, f"{listed.name} is a replay to {listed.replay_of}, of one range")


def effect_of_reset(listed: Sequence[Listed], target: int) -> str:
    """How a reset treats delivered and waiting events."""
    again = max(max(row.position - target, 0) for row in listed)
    passed = max(max(target - row.position, 0) for row in listed)
    parts = []
    if again:
        twice = ", on top of what was applied before" if listed[0].kind == "projection" else ""
        parts.append(f"{several(again, 'event')} of the log again{twice}")
    if passed:
        parts.append(f"{several(passed, 'event')} of the log not at all")
    return " and ".join(parts) or "it is there already"


def _not_in_log(position: int, place: LogPosition) -> EventsGone:
    return EventsGone(
        f"position {position} is not in the log, which has {place.start} to {place.last}. Choose one of these"
    )


class Begun(NamedTuple):
    """A started replay."""

    name: str
    since: int
    until: int
    left_out: int  # positions that became jobs before


def replay(
    name: str,
    since: int | datetime,
    until: int | datetime | None = None,
    *,
    again: bool = False,
    rate: Rate | None = None,
) -> Procedure[str]:
    """Deliver a range once more to one subscriber, beside its own position; returns the replay's name. Events that became
    jobs do not become jobs again, unless `again`."""
    begun = yield from begin_replay(name, since, until, again=again, rate=rate)
    return begun.name


def begin_replay(
    name: str,
    since: int | datetime,
    until: int | datetime | None = None,
    *,
    again: bool = False,
    rate: Rate | None = None,
) -> Procedure[Begun]:
    pace = per_second(rate)
    last = yield from turn()
    (listed, *_) = yield from find(name)
    check_replayed(listed)
    begin = yield from _position(since)
    end = last if until is None else (yield from _position(until))
    log = yield from run(store.log_state)
    if begin > end:
        raise ConfigurationError(f"a replay ends after it begins: from position {begin} to {end} is nothing")
    if not log.start <= begin <= end <= last:
        raise EventsGone(
            f"the log has positions {log.start} to {last}; a replay from {begin} to {end} is not in it"
        )
    replayed = _replay_name(name)
    who = yield from actor()

    def flow() -> Flow[int | None]:
        left = yield from store.add_replay(replayed, name, begin, end, again=again, rate=pace)
        if left is not None:
            which = {"subscription": name, "from": begin, "to": end, "left_out": left or None}
            yield from audit(who, "replay_events", {**which, "again": again or None}, end - begin)
        return left

    left_out: int | None = yield from run(flow)
    if left_out is None:
        yield from find(name)
    return Begun(replayed, begin, end, left_out or 0)


def _replay_name(name: str) -> str:
    return f"{name[:190]}@{uuid4().hex[:8]}"


def replay_failures(name: str, key: str | None = None) -> Procedure[int]:
    """Deliver skipped events once more, the first of them if there are many; returns how many. Events that fail
    again are recorded again."""
    who = yield from actor()
    log = yield from run(store.log_state)
    found: list[Failure] = yield from run(lambda: store.list_failures(name, key, _MOST_RETRIED))
    if found and found[0].position <= log.start:
        raise EventsGone(
            f"the log has no event {found[0].position}: it begins after position {log.start}. Give that one up"
        )

    def flow() -> Flow[int]:
        for since, until in _runs([failure.position for failure in found]):
            yield from store.add_replay(_replay_name(name), name, since, until, again=False, rate=None)
        if found:
            yield from audit(who, "retry_failures", {"subscription": name, "key": key}, len(found))
        return len(found)

    return (yield from run(flow))


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Each run of neighbours, as the position before its first and that of its last."""
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and found[-1][1] == position - 1:
            found[-1] = (found[-1][0], position)
        else:
            found.append((position - 1, position))
    return found


def check_replayed(listed: Listed) -> None:
    if listed.is_rebuild:
        raise _made_for(listed, f"{listed.name} is the rebuild of {listed.replay_of}, and reads all events")
    if listed.kind == "projection":
        text = f"{listed.name} is a projection: events that it applied would count twice"
        raise Refused("applied_twice", text, subscription=listed.name)
    if listed.kind == "relay":
        text = f"{listed.name} is a relay: a replay beside it would send events of a key from two places"
        raise Refused("sent_twice", text, subscription=listed.name)
    if listed.replay_of is not None:
        raise ConfigurationError(f"{listed.name} is a replay. Replay {listed.replay_of} instead")


def _position(at: int | datetime) -> Procedure[int]:
    if not isinstance(at, datetime) and (not isinstance(at, int) or isinstance(at, bool)):
        raise ConfigurationError(f"a replay goes from a position or a time to another one, not {shown(at)}")
    check_to(at)
    place: LogPosition = yield from run(lambda: store.place_in_log(at))
    return place.position


def stopped_shard(name: str) -> Procedure[Listed]:
    """The event that would be skipped next."""
    listed = yield from find(name)
    stopped = [row for row in listed if row.status == "paused"]
    if not stopped:
        if listed[0].status == "expired":
            raise _expired(listed[0])
        raise Refused("not_stopped", f"{name} is not stopped, so there is nothing to skip", subscription=name)
    return min(stopped, key=lambda row: row.position)


def skip(name: str, *, shard: int | None = None, position: int | None = None) -> Procedure[Failure]:
    """Pass the event at which a subscription stopped, and record it; returns it. `shard` and `position`: only
    if it still stops there."""
    found = yield from stopped_shard(name)
    if shard not in (None, found.shard) or position not in (None, found.position):
        raise Refused(
            "moved",
            f"{name} stands at position {found.position:,} of shard {found.shard} now, so nothing was skipped. "
            "Look at it again",
            subscription=name,
        )
    who = yield from actor()

    def flow() -> Flow[Failure | None]:
        page = yield from store.next_event(found)
        if not page.events:
            return None
        row = page.events[0]
        if not (yield from store.skip_event(found, row, found.problem or "skipped by an operator")):
            raise ConfigurationError(f"{name} has moved meanwhile, so nothing was skipped. Look at it again")
        yield from audit(who, "skip_event", {"subscription": name, "position": row.position}, 1)
        return Failure(
            row.position, row.seq, found.shard, "skipped", row.id, row.type, row.key, found.problem, row.time
        )

    skipped: Failure | None = yield from run(flow)
    if skipped is None:
        raise ConfigurationError(f"{name} has read all events, so there is nothing to skip")
    return skipped


def forget_failures(name: str, key: str | None = None, position: int | None = None) -> Procedure[int]:
    """Give up events that it skipped or parked: those of a key, the one at a position, or all; returns how many. A key with
    none left continues with its next event; those that are left still have to be applied; a relay sends them."""
    if position is not None and (not isinstance(position, int) or isinstance(position, bool)):
        raise ConfigurationError(f"position must be a number, not {shown(position)}")
    who = yield from actor()

    def flow() -> Flow[int | None]:
        if (yield from store.lock_positions(name)) is None:
            return None
        dropped, waiting = yield from store.drop_failures(name, key, position)
        if waiting:  # owners read again which keys are parked
            yield from store.send_behind(name)
            yield from store.fence(name)
        if dropped:
            which = {"subscription": name, "key": key, "position": position}
            chosen = {what: value for what, value in which.items() if value is not None}
            yield from audit(who, "forget_failures", chosen, dropped)
        return dropped

    dropped: int | None = yield from run(flow)
    if dropped is None:
        raise (yield from unknown(name))
    return dropped


def remove(name: str) -> Procedure[int]:
    """Forget a subscription that no code declares any more, its replays and its failures; or end a replay."""
    who = yield from actor()

    def flow() -> Flow[store.Removed]:
        removed = yield from store.remove(name)
        if removed.rows:
            yield from audit(who, "remove_subscription", {"subscription": name}, removed.rows)
        return removed

    removed: store.Removed = yield from run(flow)
    check_removed(name, removed)
    if not removed.rows:
        yield from find(name)
    return removed.rows


def check_removed(name: str, removed: store.Removed) -> None:
    """Refused: it is still in use, so nothing was removed."""
    if removed.owner is not None:
        text = f"{name} is run by worker {removed.owner}. Take it out of the code first, or pause it"
        raise Refused("is_run", text, subscription=name, worker=removed.owner)
    if removed.built is not None:
        which = "is being rebuilt" if name == removed.built else f"is the rebuild of {removed.built}"
        text = f"{name} {which}, and its new tables would stay behind. Give the rebuild up first"
        raise Refused("is_built", text, subscription=name, projection=removed.built)
