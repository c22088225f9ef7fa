"""The queues: what they hold, making one, and making those an app declares."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..errors import ConfigurationError
from ..model.actor import Actor
from ..model.duration import Duration, seconds
from ..model.queue import OnDeadLetter, Ordering, QueueRules
from ..store import jobs, keys, queue_load
from ..store.audit import audit
from ..store.queue_load import CAP, QueueLoad
from ..store.queues import create_queue as store_create_queue
from ..store.queues import queue_rules
from ..store.statement import Flow
from ..tasks.checks import queue_name
from ..tasks.queueing import check_rules_together
from ..tasks.writer import check_rules
from .limits import Changes, change_limits, differences, preview
from .procedure import Procedure, actor, run
from .refusal import Refused
from .search import check_queue

_PLAIN = QueueRules()


@dataclass(frozen=True, slots=True)
class QueueMade:
    name: str
    created: bool  # False: it existed
    lease: float | None  # None: what the worker is set to
    ordering: str = "none"
    on_dead_letter: str = "skip"


def create_queue(
    name: str, lease: Duration | None = None, rules: QueueRules = _PLAIN
) -> Procedure[QueueMade]:
    """Create a queue. An existing one is left as it is; asking for another lease than it has is an error."""
    queue_name(name, ConfigurationError)
    wanted = None if lease is None else _lease(lease)
    who = yield from actor()
    made = yield from run(lambda: _create({name: rules}, wanted, "queue create", who))
    created = made == [name]
    has = (yield from run(queue_load.queue_leases)).get(name)
    if not created and wanted is not None and wanted != has:
        now = "the worker's own lease" if has is None else f"a lease of {has:g} s"
        raise ConfigurationError(
            f"queue {name!r} exists already, with {now}. To change it, update the column lease of holdfast.queues"
        )
    found = (yield from run(lambda: queue_rules([name])))[name]
    if rules != _PLAIN:
        check_rules(name, rules, found)
    return QueueMade(name, created, has, found.ordering, found.on_dead_letter)


def _lease(value: Duration) -> float:
    try:
        lease = seconds(value, "a lease")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error)) from None
    if not 1 <= lease <= 86_400:
        raise ConfigurationError(f"a lease must be between 1 second and a day (86400), not {lease:g} seconds")
    return lease


def _create(
    wanted: Mapping[str, QueueRules], lease: float | None, action: str, who: Actor
) -> Flow[list[str]]:
    """Creates the queues that do not exist, and returns them."""
    made: list[str] = []
    for name, rules in wanted.items():
        created = yield from store_create_queue(name, lease, rules)
        made += [name] if created else []
    if made:
        given = {name: asdict(wanted[name]) for name in made if wanted[name] != _PLAIN}
        selection = {"queues": made, "lease": lease, **({"rules": given} if given else {})}
        yield from audit(who, action, selection, len(made))
    return made


@dataclass(frozen=True, slots=True)
class QueueSet:
    name: str
    changed: bool  # False: it was so already
    ordering: str
    on_dead_letter: str
    changes: Changes = field(default_factory=dict)  # of limits


def set_queue(
    name: str,
    *,
    ordering: Ordering | None = None,
    on_dead_letter: OnDeadLetter | None = None,
    limits: Mapping[str, Any] | None = None,
) -> Procedure[QueueSet]:
    """Change the rules of a queue. None keeps a rule.

    The rule for dead letters is applied by the database when a job fails: a change counts at once, also for
    running workers. Workers and producers rely on the order: it changes only while the queue is empty and no worker
    serves it. Each of `limits` that is named changes, and None removes it; a changed limit counts
    from the next claim on, a new one within seconds, and until then workers that do not know it take nothing.
    """
    yield from check_queue(name)
    who = yield from actor()

    def change() -> Flow[QueueSet]:
        changes = (yield from change_limits(name, limits, who, "queue set")) if limits else {}
        if ordering is None and on_dead_letter is None:
            has = (yield from queue_rules([name]))[name]
            return QueueSet(name, bool(changes), has.ordering, has.on_dead_letter, changes)
        done = yield from _set(name, ordering, on_dead_letter, who)
        return replace(done, changed=done.changed or bool(changes), changes=changes)

    return (yield from run(change))


def _set(
    name: str, ordering: Ordering | None, on_dead_letter: OnDeadLetter | None, who: Actor
) -> Flow[QueueSet]:
    has = (yield from queue_rules([name]))[name]
    wanted = ordering or has.ordering
    policy = on_dead_letter or (has.on_dead_letter if wanted == "key" else "skip")
    if wanted != "key" and policy != "skip":
        text = f"queue {name!r} is not ordered by key: there a dead letter is in nobody's way, and on_dead_letter is 'skip'"
        raise Refused("no_policy", text, queue=name, on_dead_letter=policy)
    if wanted != has.ordering:
        check_rules_together(replace(has, ordering=wanted, on_dead_letter=policy), ConfigurationError)
        if why := (yield from keys.order_queue(name, wanted, policy)):
            code, text = _IN_THE_WAY.get(why, ("no_order", why))
            raise Refused(code, text.format(name=name), queue=name)
        changed = True
    else:
        changed = yield from keys.set_on_dead_letter(name, policy)
    if changed:
        before = {"ordering": has.ordering, "on_dead_letter": has.on_dead_letter}
        after = {"ordering": wanted, "on_dead_letter": policy}
        yield from audit(who, "queue set", {"queue": name, **after}, 1, before, after)
    return QueueSet(name, changed, wanted, policy)


_IN_THE_WAY = {
    "jobs": (
        "has_jobs",
        (
            "queue {name!r} has jobs, which were enqueued without this order. Let them run first, "
            "or make a queue of another name and enqueue there"
        ),
    ),
    "workers": (
        "has_workers",
        "queue {name!r} is served by workers, which read its order when they start. Stop them first",
    ),
    "queue": ("no_queue_now", "queue {name!r} does not exist any more"),
}


def queue_names() -> Procedure[list[str]]:
    return (yield from run(jobs.queue_names))


@dataclass(frozen=True, slots=True)
class QueueSync:
    created: list[str]  # with a dry run: the plan
    existing: list[str]
    unknown: list[str]  # in the database, and not declared by the app
    changed: dict[str, Changes] = field(default_factory=dict)  # existing queues, and their differences


def sync_queues(declared: Mapping[str, QueueRules], *, dry_run: bool = False) -> Procedure[QueueSync]:
    """Create the queues that an app declares and the database lacks, and change the others to match.

    `inbox` belongs to all apps. A queue that the app only names keeps its rules."""
    rules = {"inbox": _PLAIN, **declared}
    wanted = sorted(rules)
    there = yield from run(jobs.queue_names)
    missing = [name for name in wanted if name not in there]
    who = yield from actor()
    found = yield from run(lambda: queue_rules([name for name in wanted if name in there]))
    differ = {
        name: differences(has, rules[name])
        for name, has in found.items()
        if check_rules(name, rules[name], has)
    }
    if dry_run:
        changed = {name: preview(found[name], wishes) for name, wishes in differ.items()}
    else:
        if missing:
            missing = yield from run(lambda: _create({n: rules[n] for n in missing}, None, "queue sync", who))
        changed = yield from run(lambda: _bring(differ, who))
    existing = [name for name in wanted if name not in missing]
    return QueueSync(missing, existing, [name for name in there if name not in wanted], changed)


def _bring(differ: Mapping[str, Mapping[str, Any]], who: Actor) -> Flow[dict[str, Changes]]:
    changed = {}
    for name, wishes in differ.items():
        if changes := (yield from change_limits(name, wishes, who, "queue sync")):
            changed[name] = changes
    return changed


def list_queues() -> Procedure[list[QueueLoad]]:
    return (yield from run(queue_loads))


def queue_loads(
    cap: int = CAP, later: int | None = None, known: Mapping[str, QueueLoad] | None = None
) -> Flow[list[QueueLoad]]:
    """`known`: these queues are not asked about again."""
    yield from queue_load.prefer_kept_plans()
    loads = []
    for name in (yield from jobs.queue_names()):
        load = known.get(name) if known else None
        if load is None:
            load = yield from queue_load.queue_load(name, cap, later)
        if load is not None:
            loads.append(load)
    return loads
