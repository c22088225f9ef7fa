"""The limits of queues: changing them, and their current use."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ConfigurationError
from ..model.actor import Actor
from ..model.queue import PROMISED, QueueRules, Rate
from ..store import jobs
from ..store.audit import audit
from ..store.limits import LimitUse, limit_use, lock_queue
from ..store.queue_load import prefer_indexes
from ..store.queues import queue_rules, set_rules
from ..store.statement import Flow
from ..tasks.queueing import check_rules_together
from .procedure import Procedure, run
from .refusal import Refused
from .search import check_queue

OF_KEYS = ("weights", "key_concurrency", "key_rate")

Changes = dict[str, tuple[Any, Any]]  # rule -> (old, new), both as people read them


@dataclass(frozen=True, slots=True)
class QueueRulesSeen:
    """The rules of a queue, and how much of its limits is used."""

    name: str
    rules: dict[str, Any]  # those it has, as people read them
    running: int | None  # None: nothing counts them
    tokens: float | None  # left of the rate
    next_in: float | None  # seconds until the rate allows one; 0: it does now
    keys_full: int | None  # keys that run as many as they may


def shown(value: object) -> Any:
    """A rule as people write it."""
    if isinstance(value, Rate):
        return f"{value.text} burst {value.size}"
    return value if value or value == 0 else None


def change_limits(name: str, wanted: Mapping[str, Any], who: Actor, action: str) -> Flow[Changes]:
    """Change some rules of a queue; None removes one. Returns the changed ones."""
    made_by_key = yield from lock_queue(name)
    has = (yield from queue_rules([name]))[name]
    changed, changes = _changed(has, wanted)
    if not changes:
        return {}
    check_rules_together(changed, ConfigurationError)
    if not made_by_key:
        _needs_keys(name, changes, changed)
    yield from set_rules(name, changed)
    before, after = ({what: change[n] for what, change in changes.items()} for n in (0, 1))
    yield from audit(who, action, {"queue": name, "changed": changes}, 1, before, after)
    return changes


def differences(has: QueueRules, declared: QueueRules) -> dict[str, Any]:
    """The changes that `queue sync` makes to a queue, so that it matches the app's declaration."""
    names = [name for name in declared.differs(has) if name not in PROMISED]
    return {name: getattr(declared, name) for name in names}


def preview(has: QueueRules, wanted: Mapping[str, Any]) -> Changes:
    return _changed(has, wanted)[1]


def _changed(has: QueueRules, wanted: Mapping[str, Any]) -> tuple[QueueRules, Changes]:
    new = replace(has, **{name: _empty(name) if value is None else value for name, value in wanted.items()})
    names = new.differs(has)
    return new, {name: (shown(getattr(has, name)), shown(getattr(new, name))) for name in names}


def _empty(name: str) -> Any:
    return {"weights": {}, "affinity": "none"}.get(name)


def _needs_keys(name: str, changes: Changes, rules: QueueRules) -> None:
    for what in OF_KEYS:
        if what in changes and getattr(rules, what):
            text = (
                f"queue {name!r} was made without keys, so {what} cannot be set: not every job in it has a partition key, "
                "and nothing finds the next job of one"
            )
            raise Refused("no_keys", text, queue=name, rule=what)


def rules_of(name: str) -> Procedure[QueueRules]:
    yield from check_queue(name)
    return (yield from run(lambda: queue_rules([name])))[name]


def show_rules(name: str) -> Procedure[QueueRulesSeen]:
    yield from check_queue(name)
    return (yield from run(lambda: _seen(name)))


def list_rules() -> Procedure[dict[str, QueueRulesSeen]]:
    """For every queue that has more than the default rules."""
    return (yield from run(_all_seen))


def _all_seen() -> Flow[dict[str, QueueRulesSeen]]:
    yield from prefer_indexes()
    found = {}
    for name in (yield from jobs.queue_names()):
        seen = yield from _seen(name)
        if seen.rules:
            found[name] = seen
    return found


def _seen(name: str) -> Flow[QueueRulesSeen]:
    rules = (yield from queue_rules([name])).get(name, QueueRules())
    use: LimitUse | None = (yield from limit_use(name)) if rules.limited else None
    plain = QueueRules()
    had = {what: shown(getattr(rules, what)) for what in rules.differs(plain)}
    counted = rules.concurrency is not None or rules.key_concurrency is not None
    return QueueRulesSeen(
        name,
        had,
        use.running if use and counted else None,
        use.tokens if use else None,
        use.next_in if use and rules.rate else None,
        use.keys_full if use and rules.key_concurrency is not None else None,
    )
