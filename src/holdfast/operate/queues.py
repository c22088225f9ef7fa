"""The queues: what they hold, making one, and making those an app declares."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ..db.database import Database
from ..errors import ConfigurationError
from ..model.queue import OnDeadLetter, Ordering, QueueRules
from ..store import jobs, keys, operate
from ..store.audit import audit
from ..store.operate import QueueLoad
from ..store.queues import create_queue as store_create_queue
from ..store.queues import queue_rules
from ..store.statement import Flow
from ..tasks.checks import queue_name
from ..tasks.writer import check_rules
from .audit import actor
from .search import check_queue

_PLAIN = QueueRules()


@dataclass(frozen=True, slots=True)
class QueueMade:
    name: str
    created: bool  # False: it was there
    lease: float | None  # None: what the worker is set to
    ordering: str = "none"
    on_dead_letter: str = "skip"


def create_queue(
    database: Database, name: str, lease: float | None = None, rules: QueueRules = _PLAIN
) -> QueueMade:
    """Make a queue. One that is there is left as it is; to ask for another lease than it has is an error."""
    queue_name(name, ConfigurationError)
    if lease is not None and not 1 <= lease <= 86_400:
        raise ConfigurationError(f"a lease must be between 1 second and a day (86400), not {lease:g} seconds")
    who = actor()
    created = database.run(lambda: _create({name: rules}, lease, "queue create", who)) == [name]
    has = database.run(operate.queue_leases).get(name)
    if not created and lease is not None and lease != has:
        now = "the worker's own lease" if has is None else f"a lease of {has:g} s"
        raise ConfigurationError(
            f"queue {name!r} exists already, with {now}. To change it, update the column lease of holdfast.queues"
        )
    found = database.run(lambda: queue_rules([name]))[name]
    if rules != _PLAIN:
        check_rules(name, rules, found)
    return QueueMade(name, created, has, found.ordering, found.on_dead_letter)


def _create(wanted: Mapping[str, QueueRules], lease: float | None, action: str, who: str) -> Flow[list[str]]:
    """Those of the queues that were not there, made."""
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
    changed: bool  # False: it was like that
    ordering: str
    on_dead_letter: str


def set_queue(
    database: Database,
    name: str,
    *,
    ordering: Ordering | None = None,
    on_dead_letter: OnDeadLetter | None = None,
) -> QueueSet:
    """Change the rules of a queue. What is None stays.

    What a key does on a dead letter is decided by the database when a job fails: a change counts at once, also for
    workers that run. The order is what workers and producers rely on: it changes only while the queue is empty and nobody
    serves it.
    """
    check_queue(database, name)
    who = actor()
    return database.run(lambda: _set(name, ordering, on_dead_letter, who))


def _set(
    name: str, ordering: Ordering | None, on_dead_letter: OnDeadLetter | None, who: str
) -> Flow[QueueSet]:
    has = (yield from queue_rules([name]))[name]
    wanted = ordering or has.ordering
    policy = on_dead_letter or (has.on_dead_letter if wanted == "key" else "skip")
    if wanted != "key" and policy != "skip":
        raise ConfigurationError(
            f"queue {name!r} is not ordered by key: there a dead letter is in nobody's way, and on_dead_letter is 'skip'. "
            f"Order it: holdfast queue set {name} --ordering key --on-dead-letter {policy}"
        )
    if wanted != has.ordering:
        if why := (yield from keys.order_queue(name, wanted, policy)):
            raise ConfigurationError(_IN_THE_WAY.get(why, why).format(name=name))
        changed = True
    else:
        changed = yield from keys.set_on_dead_letter(name, policy)
    if changed:
        yield from audit(who, "queue set", {"queue": name, "ordering": wanted, "on_dead_letter": policy}, 1)
    return QueueSet(name, changed, wanted, policy)


_IN_THE_WAY = {
    "jobs": (
        "queue {name!r} has jobs, which were enqueued without this order. Let them run first, "
        "or make a queue of another name and enqueue there: holdfast queue create {name}_ordered --ordering key"
    ),
    "workers": (
        "queue {name!r} is served by workers, which read its order when they start. "
        "Stop them first: holdfast workers, then holdfast workers drain ID"
    ),
    "queue": "queue {name!r} does not exist any more",
}


def queue_names(database: Database) -> list[str]:
    return database.run(jobs.queue_names)


@dataclass(frozen=True, slots=True)
class QueueSync:
    created: list[str]  # with a dry run: what would be
    existing: list[str]
    unknown: list[str]  # in the database, and not declared by the app


def sync_queues(
    database: Database, declared: Mapping[str, QueueRules], *, dry_run: bool = False
) -> QueueSync:
    """Make the queues that an app declares and the database lacks. `inbox` is everybody's."""
    rules = {"inbox": _PLAIN, **declared}
    wanted = sorted(rules)
    there = database.run(jobs.queue_names)
    missing = [name for name in wanted if name not in there]
    if missing and not dry_run:
        who = actor()
        missing = database.run(lambda: _create({n: rules[n] for n in missing}, None, "queue sync", who))
    existing = [name for name in wanted if name not in missing]
    return QueueSync(missing, existing, [name for name in there if name not in wanted])


def list_queues(database: Database) -> list[QueueLoad]:
    return database.run(queue_loads)


def queue_loads() -> Flow[list[QueueLoad]]:
    yield from operate.prefer_indexes()
    loads = []
    for name in (yield from jobs.queue_names()):
        load = yield from operate.queue_load(name)
        if load is not None:
            loads.append(load)
    return loads
