"""Problems of the log and its readers."""

from collections.abc import Iterator, Sequence

from ...operate.advice import Advice, advise, once, run_sql, start_worker
from ...operate.doctor.finding import Check, Finding, Patient
from ...operate.doctor.statements import literal
from ...operate.wording import cut, listed, several, span
from .store import Pressure, log_pressure
from .store.health import (
    Health,
    SetAside,
    log_health,
    open_publishers,
    set_aside,
    subscription_health,
)

POISON = "poison"  # the actor of the pause: an event that failed for good
_HALF = 0.5  # share of a limit above which it is reported
_MOST_DAYS = 30


def check_log(p: Patient) -> Iterator[Finding]:
    health = p.probe.look(log_health(p.limits.stuck))
    if health.foreign:
        what = "the log was restored from another server: new events get no position, and nobody is delivered any"
        yield Finding("foreign_log", "error", what, [advise("rebase_events")])
    elif health.waiting:
        more = "at least " if health.waiting >= 1000 else ""
        what = (
            f"{more}{several(health.waiting, 'event')} without a position for up to {span(health.seconds)}: "
            "no worker turns the pages of the log"
        )
        yield Finding("unnumbered_events", "warning", what, [start_worker()])
    held = p.probe.look(open_publishers(p.limits.horizon))
    means = "others wait for its keys, and its days of the log cannot be emptied"
    if sessions := [h for h in held if h.pid is not None]:
        what = f"{several(len(sessions), 'transaction')} that published and is still open: {means}"
        fix = [p.fixing(f"horizon:{h.pid}") for h in sessions]
        details = [
            f"pid {h.pid} ({cut(', '.join(filter(None, (h.role, h.application))))}), {span(h.seconds)} in a transaction"
            for h in sessions
        ]
        yield Finding("open_publisher", "warning", what, fix, listed(details))
    if prepared := [h for h in held if h.gid is not None]:
        what = f"{several(len(prepared), 'prepared transaction')} that published and nobody ends: {means}"
        fix = [run_sql(f"ROLLBACK PREPARED {literal(h.gid or '')}") for h in prepared]
        details = [f"{cut(h.gid)} of {h.role}, prepared {span(h.seconds)} ago" for h in prepared]
        otherwise = [run_sql(f"COMMIT PREPARED {literal(h.gid or '')}") for h in prepared]
        yield Finding("prepared_publisher", "error", what, fix, listed(details), otherwise)


def _verb(verb: str, name: str, **more: object) -> Advice:
    return advise("subscription", verb=verb, name=name, **more)


def check_subscriptions(p: Patient) -> Iterator[Finding]:
    found = p.probe.look(subscription_health(p.dead_after))
    yield from _stopped(found)
    yield from _expired(found)
    yield from _behind(p, found)
    yield from _paused(p, found)
    yield from check_set_aside(p)
    pressed = [x for x in p.probe.look(log_pressure()) if x.share >= _HALF]
    if pressed:
        what = f"{several(len(pressed), 'subscription')} near the limit up to which the log is kept for it"
        fix = once([_relief(x, [h for h in found if h.name == x.name]) for x in pressed])
        drops = once([_give_up(h) for x in pressed for h in found if h.name == x.name])
        yield Finding("held_log", "warning", what, fix, listed([_pressure(x) for x in pressed]), drops)


def _each(name: str, *verbs: str) -> list[Advice]:
    return [_verb(verb, name) for verb in verbs]


def _give_up(h: Health) -> Advice:
    """It has no reader any more. A rebuild is dropped with its tables."""
    return _verb("remove", h.name) if h.rebuilds is None else advise("cancel_rebuild", name=h.rebuilds)


def _names(found: Sequence[Health]) -> list[str]:
    return list(dict.fromkeys(h.name for h in found))


def _stopped(found: Sequence[Health]) -> Iterator[Finding]:
    if stopped := [h for h in found if h.status == "paused" and h.paused_by == POISON]:
        what = f"{several(len(stopped), 'subscription')} stopped at an event that failed again and again"
        # In a rebuild the tables or the function may be at fault, and then a skip would lose an event.
        fix = once(
            [a for h in stopped for a in ([_give_up(h)] if h.rebuilds else _each(h.name, "skip", "resume"))]
        )
        tries = [_verb("resume", name) for name in _names(stopped)]
        yield Finding(
            "stopped_subscription",
            "error",
            what,
            fix,
            listed([_line(h) for h in stopped]),
            tries,
            lasts=max((h.paused_seconds or 0.0 for h in stopped), default=None),
        )


def _expired(found: Sequence[Health]) -> Iterator[Finding]:
    if expired := [h for h in found if h.status == "expired"]:
        missed = max(h.missed or 0 for h in expired)
        what = (
            f"{several(len(expired), 'subscription')} expired: the log was emptied before "
            f"{several(missed, 'event')} were read"
        )
        fix = once(
            [_verb("reset", h.name, to="start") if h.replay_of is None else _give_up(h) for h in expired]
        )
        drops = once([_give_up(h) for h in expired])
        yield Finding("expired_subscription", "error", what, fix, listed([_line(h) for h in expired]), drops)


def _behind(p: Patient, found: Sequence[Health]) -> Iterator[Finding]:
    active = [h for h in found if h.status == "active" and h.lag_events > 0]
    alone = [h for h in active if h.owner is None and h.lag_seconds >= p.limits.stuck]
    if alone:
        what = f"{several(len(alone), 'subscription')} with events to read in no live worker: nobody delivers them"
        drops = [_verb("remove", name) for name in _names(alone)]
        yield Finding(
            "unowned_subscription", "error", what, [start_worker()], listed([_line(h) for h in alone]), drops
        )
    blocked = [h for h in active if h not in alone and h.problem and h.lag_seconds >= p.limits.stuck]
    if blocked:
        what = f"{several(len(blocked), 'subscription')} that cannot continue for now: events wait in the log"
        fix = once([_look(h.name, h.kind) for h in blocked])
        lasts = max(h.lag_seconds for h in blocked)
        yield Finding(
            "blocked_subscription", "error", what, fix, listed([_line(h) for h in blocked]), lasts=lasts
        )
    late = [
        h
        for h in active
        if h not in alone + blocked and (h.lag_seconds >= p.limits.lag or h.lag_events >= p.limits.lag_events)
    ]
    if late:
        what = f"{several(len(late), 'subscription')} far behind the log"
        fix = [advise("events_lag")]
        lasts = max(h.lag_seconds for h in late)
        yield Finding(
            "lagging_subscription", "warning", what, fix, listed([_line(h) for h in late]), lasts=lasts
        )


def _paused(p: Patient, found: Sequence[Health]) -> Iterator[Finding]:
    paused = [
        h
        for h in found
        if h.status == "paused" and h.paused_by != POISON and (h.paused_seconds or 0) >= p.limits.paused
    ]
    if paused:
        what = f"{several(len(paused), 'subscription')} paused for more than {span(p.limits.paused)}"
        fix = [_verb("resume", name) for name in _names(paused)]
        yield Finding("paused_subscription", "info", what, fix, listed([_line(h) for h in paused]))


def check_set_aside(p: Patient) -> Iterator[Finding]:
    """Events that a relay or a projection passed without processing them."""
    found = p.probe.look(set_aside())
    if parked := [x for x in found if x.kind == "parked"]:
        keys = sum(x.keys for x in parked)
        waiting = sum(x.events for x in found if x.kind == "behind" and x.name in {y.name for y in parked})
        behind = f", with {several(waiting, 'event')} behind them" if waiting else ""
        what = (
            f"{several(keys, 'key')} of {several(len(parked), 'subscription')} parked at an event that was refused{behind}: "
            "a parked key waits until somebody decides"
        )
        drops = [_verb("forget-failures", x.name) for x in parked]
        fix = [_retry(x) for x in parked]
        yield Finding("parked_events", "warning", what, fix, listed([_aside(x) for x in parked]), drops)
    if skipped := [x for x in found if x.kind == "skipped"]:
        events = sum(x.events for x in skipped)
        what = f"{several(events, 'event')} skipped: nobody sends or applies them unless you say so"
        drops = [_verb("forget-failures", x.name) for x in skipped]
        fix = [_retry(x) for x in skipped]
        yield Finding("skipped_events", "warning", what, fix, listed([_aside(x) for x in skipped]), drops)
    if spilled := [x for x in found if x.kind == "spilled" and x.seconds >= p.limits.lag]:
        events = sum(x.events for x in spilled)
        what = f"{several(events, 'event')} set aside with failing keys, and retried without success for long"
        fix = once([_look(x.name, x.of) for x in spilled])
        yield Finding("failing_keys", "warning", what, fix, listed([_aside(x) for x in spilled]))


def _look(name: str, kind: str) -> Advice:
    return advise("check_relay", name=name) if kind == "relay" else advise("events_lag")


def _retry(x: SetAside) -> Advice:
    return advise("retry_projection", name=x.name) if x.of == "projection" else _verb("retry", x.name)


def _aside(x: SetAside) -> str:
    keys = f" of {several(x.keys, 'key')}" if x.keys else ""
    why = f": {cut(x.error)}" if x.error else ""
    return f"{x.name} ({x.of}), {several(x.events, 'event')}{keys}, the oldest {span(x.seconds)} ago{why}"


def _relief(x: Pressure, rows: Sequence[Health]) -> Advice:
    """What lets it continue; if it does so already, more room."""
    if any(h.status == "paused" for h in rows):
        return _verb("resume", x.name)
    if all(h.owner is None for h in rows):
        return start_worker()
    days, size = min(2 * x.hold_days, _MOST_DAYS), 2 * x.hold_bytes
    return advise("set_retention", days=days, bytes=size)


def _pressure(x: Pressure) -> str:
    return (
        f"{x.name}: its oldest event is {span(x.seconds)} old, of {several(x.hold_days, 'day')}; the log from there on "
        f"has {x.bytes / 2**20:,.1f} MiB, of {x.hold_bytes / 2**20:,.1f}"
    )


def _line(h: Health) -> str:
    name = h.name if h.shards == 1 else f"{h.name} {h.shard + 1}/{h.shards}"
    missed = f", missed {several(h.missed, 'event')}" if h.missed else ""
    problem = f": {cut(h.problem)}" if h.problem else ""
    behind = f"{several(h.lag_events, 'event')} behind, {span(h.lag_seconds)}"
    return f"{name} ({h.kind}), {behind}{missed}{problem}"


CHECKS = (
    Check(
        "events",
        "events get their positions, and nobody keeps the log from being emptied",
        ("foreign_log", "unnumbered_events", "open_publisher", "prepared_publisher"),
        check_log,
    ),
    Check(
        "subscriptions",
        "every subscription is read to",
        (
            "stopped_subscription",
            "expired_subscription",
            "unowned_subscription",
            "blocked_subscription",
            "lagging_subscription",
            "paused_subscription",
            "held_log",
            "parked_events",
            "skipped_events",
            "failing_keys",
        ),
        check_subscriptions,
    ),
)
