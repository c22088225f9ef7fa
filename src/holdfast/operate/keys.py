"""Keys of ordered queues: which do not move and what blocks them, which are hot, and their release.

A question costs the same with ten jobs and with ten million: it reads set-aside jobs, parked keys, and a bounded number of
jobs from either end of a queue. A release locks what it changes and checks it again under the lock, so it may run beside
workers and other operators.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from ..model.state import BLOCKED, HELD, PARKED, QUARANTINED, SCHEDULED
from ..store import acts as store_acts
from ..store import dead, keys
from ..store.acts import JobLocation, Locked
from ..store.holds import Hold, list_holds
from ..store.keys import KeyLine, StreamJob, StuckKey, Target
from ..store.queue_load import Count, prefer_indexes
from ..store.statement import Flow
from ..store.wake import wake
from .bulk import Busy, Done, Reasons, Results, Selection, Tell, do_named, do_selected, patiently
from .job_acts import MOVED_ON
from .procedure import Procedure, run
from .refusal import Refused, Why, why
from .search import check_limit, check_queue, check_texts

FRONT = 20  # jobs of a key that are shown
HOT = 0.2  # of the jobs read: a key with more is called hot
MANY = 100  # jobs, below which nothing is hot
_SHOWN = 10


# Questions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StuckKeys:
    keys: list[StuckKey]
    more: bool  # there are others, or may be


def stuck_keys(
    queue: str | None = None,
    *,
    waiting: bool = False,
    later: float = 0.0,
    limit: int = 50,
) -> Procedure[StuckKeys]:
    """Keys that do not move until somebody acts. With `waiting`, also those whose first job is due later than that."""
    check_limit(limit)
    if queue is not None:
        yield from check_ordered(queue)
    return (yield from run(lambda: stuck(queue, waiting, later, limit)))


def stuck(queue: str | None, waiting: bool, later: float, limit: int) -> Flow[StuckKeys]:
    yield from prefer_indexes()
    found = yield from keys.parked_heads(queue, limit + 1)
    found += yield from keys.quarantined_heads(queue, limit + 1)
    found += yield from keys.aside_heads(queue, limit + 1)
    if waiting:
        for name in [queue] if queue else (yield from keys.ordered_queues()):
            found += yield from keys.waiting_heads(name, later, limit + 1)
    found.sort(key=lambda k: _WHY.index(k.why))
    more = len(found) > limit or (yield from keys.aside_more(queue))
    return StuckKeys(found[:limit], more)


_WHY = (BLOCKED, PARKED, QUARANTINED, HELD, "backing off", SCHEDULED)


@dataclass(frozen=True, slots=True)
class KeyPage:
    queue: str
    keys: list[KeyLine]
    next: str | None  # pass it as `after` to continue; None: there are no more


def list_keys(queue: str, *, after: str | None = None, limit: int = 50) -> Procedure[KeyPage]:
    """The keys of a queue that have live jobs, in the order of their buckets."""
    check_limit(limit)
    yield from check_ordered(queue)
    check_texts({"after": after})
    found = yield from run(lambda: _list(queue, after, limit + 1))
    return KeyPage(queue, found[:limit], found[limit - 1].key if len(found) > limit else None)


def _list(queue: str, after: str | None, limit: int) -> Flow[list[KeyLine]]:
    yield from prefer_indexes()
    return (yield from keys.list_keys(queue, after, limit))


@dataclass(frozen=True, slots=True)
class Stream:
    queue: str
    key: str
    jobs: Count
    parked: StuckKey | None
    hold: Hold | None
    front: list[StreamJob]  # the first jobs, in their order


def show_key(queue: str, key: str, *, limit: int = FRONT) -> Procedure[Stream]:
    check_limit(limit)
    yield from check_ordered(queue)
    check_texts({"key": key})
    return (yield from run(lambda: _show(queue, key, limit)))


def _show(queue: str, key: str, limit: int) -> Flow[Stream]:
    yield from prefer_indexes()
    depth = yield from keys.stream_depth(queue, key)
    front = yield from keys.stream_front(queue, key, limit)
    parked = yield from keys.parked_heads(queue, 1, key)
    held = yield from list_holds(queue, key, limit=1)
    return Stream(queue, key, depth, parked[0] if parked else None, held[0] if held else None, front)


@dataclass(frozen=True, slots=True)
class HotKey:
    queue: str
    key: str
    share: float  # of the due jobs that were read
    seen: int  # jobs of it among them
    jobs: Count | None  # all its live jobs; None: not known, the queue has no index by key
    finished: int  # in the last minute, as far as the end of the archive shows
    finished_share: float | None  # of what its queue finished; None: nothing
    hot: bool


def hot_keys(queue: str | None = None, *, limit: int = 10) -> Procedure[list[HotKey]]:
    """The keys that most of the due jobs belong to, among the oldest and the newest jobs of each queue."""
    check_limit(limit)
    yield from check_queue(queue)
    return (yield from run(lambda: _hot(queue, limit)))


def _hot(queue: str | None, limit: int) -> Flow[list[HotKey]]:
    yield from prefer_indexes()
    finished = yield from keys.finished_keys(10 * limit)
    found: list[HotKey] = []
    for name in [queue] if queue else (yield from keys.ordered_queues()):
        for hot in (yield from keys.hot_keys(name, limit)):
            share = hot.seen / hot.looked_at
            jobs = hot.jobs.count if hot.jobs else hot.seen
            done = finished.get((name, hot.key))
            found.append(
                HotKey(
                    name,
                    hot.key,
                    share,
                    hot.seen,
                    hot.jobs,
                    done.jobs if done else 0,
                    done.jobs / done.of if done and done.of else None,
                    share >= HOT and jobs >= MANY,
                )
            )
    return sorted(found, key=lambda k: (-(k.jobs.count if k.jobs else k.seen), k.queue, k.key))[:limit]


def check_ordered(queue: str) -> Procedure[None]:
    yield from check_queue(queue)
    ordered = yield from run(keys.ordered_queues)
    if queue not in ordered:
        known = f"ordered are: {', '.join(ordered)}" if ordered else "no queue is"
        text = f"queue {queue!r} is not ordered by key ({known}): there no job waits for another"
        raise Refused("not_ordered", text, queue=queue)


# Release ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Released:
    """The result of a release, or with a dry run its plan."""

    count: int  # keys
    results: dict[str, int]  # how, and how many: retried, skipped or released
    left: dict[Why, int]  # why not, and how many
    audit: int | None
    targets: list[Target]  # some of them
    dry_run: bool = False


ACTION = "keys release"
How = str | None  # 'retry', 'skip', or None: the obvious one


def release_keys(
    queue: str, wanted: Sequence[str], how: How = None, *, dry_run: bool = False
) -> Procedure[Released]:
    """Release named keys, all of them, or none with an error that says why."""
    yield from check_ordered(queue)
    names = sorted(set(wanted))
    check_texts({f"key {n}": name for n, name in enumerate(names, 1)})
    targets: list[Target] = []

    def apply() -> Flow[Results]:
        targets[:] = yield from _named(queue, names, how)
        results, left = yield from _apply(targets, how)
        if left:
            raise Busy([t.job_id for t in targets])
        return results

    if dry_run:
        return _expected((yield from patiently(lambda: _named(queue, names, how))), how)
    done = yield from do_named(ACTION, {"queue": queue, "keys": names, "how": how}, apply)
    return _released(done, targets)


def _named(queue: str, names: Sequence[str], how: How) -> Flow[list[Target]]:
    yield from prefer_indexes()
    parked = yield from keys.lock_parked([(queue, name) for name in names])
    blocked = yield from keys.blocked_of(queue, names)
    targets = [*parked, *blocked]
    if free := [name for name in names if name not in {t.key for t in targets}]:
        text = f"nothing was released: key {free[0]!r} of queue {queue!r} is neither blocked nor parked"
        raise Refused("not_stuck", text, queue=queue, key=free[0])
    _must_choose(blocked, how)
    return targets


def release_all(
    queue: str | None = None,
    how: How = None,
    *,
    dry_run: bool = False,
    on_batch: Tell = lambda _: None,
) -> Procedure[Released]:
    """Release every blocked and parked key, in batches, each with its count in the audit. Keys blocked later stay."""
    if queue is not None:
        yield from check_ordered(queue)
    targets = yield from run(lambda: _all(queue))
    _must_choose([t for t in targets if t.why == BLOCKED], how)
    if dry_run:
        return _expected(targets, how)
    selection = _select(targets, {"all": True, "queue": queue, "how": how})
    done = yield from do_selected(ACTION, selection, lambda batch, _: _apply(batch, how), on_batch)
    return _released(done, targets)


def _all(queue: str | None) -> Flow[list[Target]]:
    yield from prefer_indexes()
    blocked = yield from keys.all_blocked(queue)
    return blocked + (yield from keys.all_parked(queue))


def _select(targets: list[Target], given: Mapping[str, object]) -> Selection[Target]:
    def batch(place: int | None, limit: int) -> Procedure[tuple[list[Target], int | None]]:
        yield from ()
        start = place or 0
        end = start + limit
        return targets[start:end], end if end < len(targets) else None

    return Selection((BLOCKED, PARKED), batch, given)


def _released(done: Done, targets: Sequence[Target]) -> Released:
    return Released(done.count, done.results, done.left, done.audit, list(targets[:_SHOWN]))


def _must_choose(blocked: Sequence[Target], how: How) -> None:
    if blocked and how is None:
        first = blocked[0]
        others = f", and {len(blocked) - 1:,} more keys are blocked" if len(blocked) > 1 else ""
        held = f"key {first.key!r} of queue {first.queue!r} is blocked by job {first.job_id}{others}"
        text = f"{held}: choose what happens to the blocking job"
        raise Refused("choose", text, queue=first.queue, key=first.key, id=first.job_id)


def _expected(targets: Sequence[Target], how: How) -> Released:
    results = dict(Counter("released" if how is None else _DONE[how] for _ in targets))
    return Released(len(targets), results, {}, None, list(targets[:_SHOWN]), dry_run=True)


_CHANGED = why("moved_on", "changed meanwhile")
_IN_USE = why("moved_on", "in use by somebody else")
_DONE = {"retry": "retried", "skip": "skipped"}


def _apply(targets: Sequence[Target], how: How) -> Flow[tuple[Results, Reasons]]:
    """Parked keys first, then dead letters, then live jobs: always in this order, and only rows nobody else has locked."""
    results, left = Counter[str](), Reasons()
    asked = [(t.queue, t.key) for t in targets if t.why == PARKED]
    parked = (yield from keys.lock_parked(asked)) if asked else []
    left[_CHANGED] += len(asked) - len(parked)
    if how == "retry":
        yield from _redrive(parked, results, left)
    elif parked:
        results[_DONE.get(how or "", "released")] += len((yield from keys.unpark(parked)))
    blocked = [t for t in targets if t.why == BLOCKED]
    locked = yield from store_acts.lock([JobLocation(t.job_id, t.queue, "work") for t in blocked])
    able: list[Locked] = [job for job in locked if job.state == BLOCKED]
    left[MOVED_ON] += len(blocked) - len(able)
    if able:
        act = keys.unblock if how == "retry" else keys.bury
        results[_DONE[how or "skip"]] += yield from act(able)
    if results:
        yield from wake(sorted({t.queue for t in targets}))
    return dict(+results), +left


def _redrive(parked: Sequence[Target], results: Counter[str], left: Reasons) -> Flow[None]:
    """Dead letters back in their old places; a key whose dead letter is gone is only released."""
    places = [
        place
        for place in (yield from store_acts.locate_jobs([t.job_id for t in parked]))
        if place.table == "dead_letters"
    ]
    locked = yield from store_acts.lock(places)
    left[_IN_USE] += len(places) - len(locked)
    if locked:
        moved = yield from dead.redrive([job.id for job in locked], [0.0] * len(locked))
        results["retried"] += len(moved)
    there: set[UUID] = {place.id for place in places}
    if gone := [t for t in parked if t.job_id not in there]:
        results["released"] += len((yield from keys.unpark(gone)))
