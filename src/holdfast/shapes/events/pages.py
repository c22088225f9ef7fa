"""Events, subscriptions and projections on the dashboard. Pages number no events: they read what workers have numbered."""

from collections.abc import Sequence
from typing import Any

from ...errors import ConfigurationError
from ...operate.procedure import Procedure, run
from ...operate.wording import several, span
from ...pages import (
    Alert,
    Block,
    Cell,
    Code,
    Facts,
    Field,
    Filter,
    Given,
    Link,
    Offer,
    Page,
    PageRequest,
    Pages,
    Problem,
    Reach,
    Reader,
    Row,
    Secret,
    Span,
    State,
    Table,
    Tone,
    Use,
    View,
)
from ...store.statement import Flow
from . import store
from .builds import progress
from .look import shown_event
from .lookups import unknown
from .page_acts import ACTS, coded_acts
from .store import Listed, LogState, Progress, Summary

LINES = 50
_READS = 64  # of a page: a log of quiet days has a few events in each
_FAR = 1000  # events that a reader may be behind without a colour
_NAME = Field("name")
_TONES: dict[str, Tone] = {
    "running": "done",
    "active": "done",
    "paused": "held",
    "expired": "dead",
    "stopped": "dead",
}
_BEGIN = "Publish one in your transaction: app.publish(OrderPaid(...), conn=conn), and read it: @app.on(OrderPaid)."


def _state_of(row: Listed) -> State:
    note: str | Problem = Problem(row.problem) if row.problem else ""
    if row.missed is not None:
        note = f"missed {several(row.missed, 'event')}"
    elif row.paused_seconds is not None:
        note = f"{span(row.paused_seconds)}, by {row.paused_by or 'somebody'}"
    return State(row.status, _TONES.get(row.status, "due"), note)


def _subscription(row: Listed) -> Row:
    name = row.name if row.shards == 1 else f"{row.name}, shard {row.shard} of {row.shards}"
    cells: tuple[Cell, ...] = (
        Link(name, f"events/subscriptions/{row.name}"),
        row.kind,
        ", ".join(row.patterns),
        _state_of(row),
        row.position,
        row.lag_events,
        Span(row.lag_seconds) if row.lag_events else None,
        row.failures,
        None if row.owner is None else Code(row.owner),
    )
    return Row(cells, (_turn(row),), f"{row.name}:{row.shard}")


def _turn(row: Listed) -> Offer:
    verb = "resume" if row.status in ("paused", "stopped") else "pause"
    return Offer(f"subscriptions {verb}", {"name": row.name})


_HEADS = ("Subscription", "Kind", "Reads~", "State", "Position#", "Behind#", "For#", "Not applied#", "Owner")


def _log(asked: PageRequest) -> Procedure[View]:
    log = yield from run(store.log_state)
    listed = yield from run(store.list_subscriptions)
    before = _number(asked.query, "before", log.last)
    pattern = asked.query.get("type") or None
    events = yield from run(lambda: _tail(log, before, pattern))
    rows = [
        Row(
            (e.position, e.time, Code(e.type), None if e.key is None else Code(e.key), Secret(e.data, 120)),
            key=str(e.position),
        )
        for e in events
    ]
    full = len(events) == LINES
    until = events[-1].position - 1 if full else _since(log, before, pattern)
    more = {"before": str(until), **({"type": pattern} if pattern else {})} if until > log.start else None
    facts = Facts(
        [
            ("Last position", log.last),
            ("Begins after", log.start),
            ("Not yet numbered", f"{log.unnumbered:,} at most"),
            ("Kept for", f"{log.retention_days} days"),
            ("Era", log.era),
        ],
        "The log",
    )
    heads = ("Position#", "When", "Type", "Key", "Data~")
    blocks: list[Block] = [
        *([_reach(log, listed)] if listed and log.last > log.start else []),
        Table(
            _HEADS,
            [_subscription(row) for row in listed],
            "Subscriptions",
            f"{len(listed)}",
            "Nobody reads the log.",
        ),
        Table(heads, rows, "Events", "the last first", "No event fits."),
        facts,
    ]
    data = {"log": log, "subscriptions": listed, "events": [_plain(e) for e in events]}
    return View(blocks, data, ("events", "tail", "--no-follow"), more=more)


def _reach(log: LogState, listed: Sequence[Listed]) -> Reach:
    readers = [
        Reader(
            row.name if row.shards == 1 else f"{row.name} {row.shard + 1}/{row.shards}",
            f"events/subscriptions/{row.name}",
            row.position,
            f"{row.kind}, {row.status}",
            f"{row.lag_events:,} behind" if row.lag_events else "at the end",
            "retry" if row.status == "active" and row.lag_events > _FAR else _TONES.get(row.status, "due"),
        )
        for row in listed
    ]
    note = "every reader has its own place; none holds up another"
    return Reach(log.start, log.last, readers, f"One log, {several(len(readers), 'reader')}", note)


def _plain(e: Any) -> dict[str, Any]:
    return {
        name: getattr(e, name)
        for name in ("position", "id", "type", "version", "key", "time", "headers", "data")
    }


def _tail(log: LogState, before: int, pattern: str | None) -> Flow[list[Any]]:
    """The last events up to a position, the newest first: of a type, among a bounded number."""
    since = _since(log, before, pattern)
    position, seq = since, (yield from store.event_seq_at(since))
    found: list[Any] = []
    for _ in range(_READS):  # a read ends with its day
        page = yield from store.read_events(
            position,
            seq,
            before - position,
            patterns=[pattern] if pattern else None,
            most_bytes=4 * 2**20,
            until=before,
        )
        found = [*found, *page.events][-LINES:]
        if page.position in (position, before):
            break
        position, seq = page.position, page.seq
    return [shown_event(row, log.era) for row in reversed(found)]


def _since(log: LogState, before: int, pattern: str | None) -> int:
    return max(log.start, before - (10_000 if pattern else LINES))


def _number(query: Given, name: str, otherwise: int) -> int:
    said = query.get(name, "")
    if not said:
        return otherwise
    if not (said.isascii() and said.isdigit() and len(said) < 19):
        raise ConfigurationError(f"{name} must be a position such as 17, not {said[:40]!r}")
    return min(int(said), otherwise)


def _one(asked: PageRequest) -> Procedure[View]:
    name = asked.path["name"]
    listed: Sequence[Listed] = yield from run(lambda: store.list_subscriptions(name))
    if not listed:
        raise (yield from unknown(name))
    failures = yield from run(lambda: store.list_failures(name))
    blocks: list[Any] = [
        Alert(Problem(row.problem), "dead", "It stopped", (Offer("subscriptions skip", {"name": name}),))
        for row in listed
        if row.problem
    ]
    blocks.append(
        Table(_HEADS, [_subscription(row) for row in listed], "Shards" if len(listed) > 1 else "Where it is")
    )
    rows = [
        Row((f.position, None if f.key is None else Code(f.key), Problem(f.error)), key=str(f.position))
        for f in failures[:100]
    ]
    blocks.append(
        Table(("Position#", "Key", "What happened~"), rows, "Events that were not applied", "", "None.")
    )
    offers = [_turn(listed[0]), *_more_offers(listed)]
    crumbs = (Link("Events", "events"),)
    data = {"shards": listed, "failures": failures}
    return View(blocks, data, ("subscriptions", "show", name), name, crumbs, offers=offers)


def _more_offers(listed: Sequence[Listed]) -> list[Offer]:
    """The acts for one of this kind."""
    one = listed[0]
    named = {"name": one.name}
    if one.replay_of is not None:
        return [Offer("subscriptions remove", named)]
    stands = any(row.status in ("paused", "stopped") for row in listed)  # nothing else can be skipped
    verbs = [
        *(["skip"] if stands else []),
        "reset",
        *(["replay"] if one.kind in ("jobs", "webhooks") else []),
    ]
    if one.failures and one.kind != "projection":
        verbs += ["retry", "forget-failures"]
    found = [Offer(f"subscriptions {verb}", named) for verb in verbs]
    return [*found, Offer("projection rebuild", named)] if one.kind == "projection" else found


def _projections(asked: PageRequest) -> Procedure[View]:
    found: Sequence[Summary] = yield from run(store.list_projections)
    built = {}
    for one in found:
        if one.rebuild is not None:
            built[one.name] = yield from progress(one.name)
    rows = [
        Row(
            (
                Link(one.name, f"events/subscriptions/{one.name}"),
                one.version,
                one.shards
                if one.wanted_shards in (None, one.shards)
                else f"{one.shards}, wants {one.wanted_shards}",
                one.position,
                one.lag_events,
                Span(one.lag_seconds) if one.lag_events else None,
                State(one.status, _TONES.get(one.status, "due"), Problem(one.problem) if one.problem else ""),
                one.failures,
                one.rebuild,
                _share(built.get(one.name)),
            ),
            (Offer("projection cancel" if one.rebuild else "projection rebuild", {"name": one.name}),),
            one.name,
        )
        for one in found
    ]
    heads = (
        "Projection",
        "Version#",
        "Shards",
        "Position#",
        "Behind#",
        "For#",
        "State~",
        "Skipped#",
        "Being built",
        "So far",
    )
    data = {"projections": found, "rebuilds": built}
    return View([Table(heads, rows, "Projections", f"{len(found)}")], data, ("projection", "list"))


def _share(found: Progress | None) -> Use | None:
    """How much of the log a rebuild has read, compared with the live one."""
    if found is None:
        return None
    return Use(found.position - found.since, max(found.live, found.position) - found.since)


def _has_log() -> Procedure[bool]:
    log = yield from run(store.log_state)
    return log.last > 0 or log.unnumbered > 0 or bool((yield from run(store.list_subscriptions)))


def _has_projections() -> Procedure[bool]:
    return bool((yield from run(store.list_projections)))


PAGES = Pages(
    [
        Page(
            "events",
            "Events",
            _log,
            "Flow",
            "events",
            f"Events are facts in one log, written in your own transaction and read by many. {_BEGIN}",
            _has_log,
            (Filter("type", "Type, such as order.*"),),
            takes=("before",),
            live=2,
        ),
        Page("events/subscriptions/{name}", "Subscription", _one, live=2),
        Page(
            "projections",
            "Projections",
            _projections,
            "Flow",
            "projections",
            "A projection keeps tables up to date from events, each exactly once. Declare one: @app.projection(...).",
            _has_projections,
            live=2,
        ),
    ],
    ACTS,
    coded_acts,
)
