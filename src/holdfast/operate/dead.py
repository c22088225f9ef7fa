"""Dead letters: by error or one at a time, put back to work or deleted.

A redriven job starts with a fresh set of attempts. Its generation and sequence stay, so that earlier writes to a
fenced store stay older than later ones. At a rate, the jobs become due one after the other from now on: no process
has to stay and feed them, and a redrive that is interrupted has spread out the jobs that it moved.
"""

import functools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID, uuid4

from ..errors import ConfigurationError
from ..model.state import BLOCKED, DEAD_LETTER, HELD, PENDING, SCHEDULED
from ..store import dead as store
from ..store.acts import Locked, by_queue
from ..store.dead import DeadFilter, DeadGroup, DeadLine, DeadWindow, Died, Facet
from ..store.queue_load import CAP, Count, prefer_indexes
from ..store.search import Found
from ..store.statement import Flow
from ..store.wake import wake
from .bulk import Results, Selection
from .job_acts import DISCARD, Verb, no_queue
from .preview import Preview, preview_found
from .procedure import Procedure, run
from .refusal import Refused, Why, why
from .search import check_ages, check_limit, check_texts

PATIENCE = 2.0  # seconds that a search continues when few match its filters
_GROUP = re.compile("[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class DeadPage:
    dead_letters: list[DeadLine]
    next: str | None  # pass it as `after` to continue; None: there are no more
    cut: bool = False  # fewer than asked for because the search stopped early


@dataclass(frozen=True, slots=True)
class DeadGroups:
    groups: list[DeadGroup]
    looked_at: int
    capped: bool  # there are more dead letters than were read, or may be


def check_dead(wanted: DeadFilter) -> None:
    check_texts({name: getattr(wanted, name) for name in ("queue", "task", "error", "key", "tag")})
    check_ages(wanted.older_than, wanted.newer_than)
    if wanted.group is not None and not _GROUP.fullmatch(wanted.group):
        raise Refused("no_group", f"{wanted.group!r} is no group", group=wanted.group)


# Questions ------------------------------------------------------------------------------------------------------------


def group_dead(wanted: DeadFilter | None = None, *, limit: int = 50) -> Procedure[DeadGroups]:
    """The newest dead letters by task and error, the largest group first."""
    wanted = wanted or DeadFilter()
    check_dead(wanted)
    check_limit(limit)
    return (yield from run(lambda: _groups(wanted, limit)))


def _groups(wanted: DeadFilter, limit: int) -> Flow[DeadGroups]:
    yield from prefer_indexes()
    _, window = yield from store.dead_times(wanted.older_than, wanted.newer_than)
    groups, looked_at = yield from store.group_dead(wanted, window, limit)
    capped = looked_at >= CAP or (yield from store.reach_list(None, window, wanted.rows())) is not None
    return DeadGroups(groups, looked_at, capped)


def dead_facets(group: str, task: str, *, limit: int = 3) -> Procedure[list[Facet]]:
    """The most frequent keys, tags and queues of a group's dead letters."""
    check_dead(DeadFilter(group=group, task=task))
    check_limit(limit)

    def look() -> Flow[list[Facet]]:
        yield from prefer_indexes()
        return (yield from store.dead_facets(group, task, limit))

    return (yield from run(look))


def list_dead(
    wanted: DeadFilter | None = None, *, after: str | None = None, limit: int = 50
) -> Procedure[DeadPage]:
    """The last to die first."""
    wanted = wanted or DeadFilter()
    check_dead(wanted)
    check_limit(limit)
    _, window = yield from run(lambda: store.dead_times(wanted.older_than, wanted.newer_than))
    place = _read_place(after) if after else None
    lines: list[DeadLine] = []
    deadline = time.monotonic() + PATIENCE
    while True:
        found, place = yield from run(functools.partial(_page, wanted, window, place, limit - len(lines)))
        lines += found
        cut = place is not None and len(lines) < limit
        if not cut or time.monotonic() > deadline:
            return DeadPage(lines, f"{place.at.isoformat()}/{place.id}" if place else None, cut)


def _page(
    wanted: DeadFilter, window: DeadWindow, before: Died | None, limit: int
) -> Flow[tuple[list[DeadLine], Died | None]]:
    yield from prefer_indexes()
    return (yield from store.list_dead(wanted, window, before, limit))


def _read_place(text: str) -> Died:
    at, slash, job_id = text.partition("/")
    try:
        if slash:
            return Died(datetime.fromisoformat(at), UUID(job_id))
    except ValueError:
        pass
    raise ConfigurationError(
        f"{text!r} is not a place in the list. Use the one that the page before it ended with"
    )


# Acts -------------------------------------------------------------------------------------------------------------


def no_dead_letter(job: Locked) -> Why | None:
    if job.table == "dead_letters":
        return None
    if job.state == BLOCKED:
        return why(BLOCKED, "is blocked: a dead letter that its key waits for", id=job.id)
    return why("not_dead", f"is no dead letter: it is {job.state}", state=job.state)


def redrive_verb(rate: float | None = None, act: str | None = None) -> Verb:
    """Back to work, all at once or at a rate. `act` names it for an undo; None: it is a new one."""
    mark = uuid4() if act is None else UUID(act)

    def apply(locked: Sequence[Locked], done: int) -> Flow[Results]:
        delays = [(done + n) / rate if rate else 0.0 for n in range(len(locked))]
        moved = yield from store.redrive([job.id for job in locked], delays, mark)
        yield from wake([job.queue for job in locked], delays)
        return {"redriven": len(moved)}

    def refuse(job: Locked) -> Why | None:
        return no_dead_letter(job) or no_queue(job)

    more = {"act": str(mark), **({"per_second": rate} if rate else {})}
    return Verb("dead redrive", "redriven", (DEAD_LETTER,), (DEAD_LETTER,), refuse, apply, more)


NOT_STARTED = (PENDING, SCHEDULED, HELD)


def bury_verb(act: UUID) -> Verb:
    """Jobs that an act put back and that have not started since are dead letters again."""

    def apply(locked: Sequence[Locked], done: int) -> Flow[Results]:
        count = 0
        for queue, job_ids in by_queue(locked):
            count += len((yield from store.bury_again(queue, job_ids, act)))
        return {"buried_again": count}

    return Verb("undo", "undone", NOT_STARTED, (), lambda job: None, apply)


def put_back(act: UUID, entry: int) -> Selection[Found]:
    """Jobs that an act put back, by its entry in the audit, and that have not started since."""

    def batch(place: UUID | None, limit: int) -> Procedure[tuple[list[Found], UUID | None]]:
        found = yield from run(functools.partial(store.redriven_of, act, place, limit))
        return found, found[-1].id if len(found) == limit else None

    return Selection(NOT_STARTED, batch, {"entry": entry, "undone": "dead redrive"})


DISCARD_DEAD = replace(
    DISCARD,
    action="dead discard",
    states=(DEAD_LETTER,),
    usual=(DEAD_LETTER,),
    refuse=no_dead_letter,
)


def select_dead(wanted: DeadFilter) -> Procedure[Selection[Found]]:
    """Those that are dead letters now, in the order in which they died."""
    check_dead(wanted)
    return dead_within(wanted, (yield from begin_dead(wanted)))


def dead_within(wanted: DeadFilter, window: DeadWindow) -> Selection[Found]:
    """Those that match and were dead letters when the window was made."""

    def batch(place: Died | None, limit: int) -> Procedure[tuple[list[Found], Died | None]]:
        return (yield from run(functools.partial(_next, wanted, window, place, limit)))

    return Selection((DEAD_LETTER,), batch, wanted.given() or {"all": True})


def begin_dead(wanted: DeadFilter) -> Procedure[DeadWindow]:
    """The window of an act: excludes jobs that die after this moment."""
    now, window = yield from run(lambda: store.dead_times(wanted.older_than, wanted.newer_than))
    return window._replace(until=window.until or now)


def _next(
    wanted: DeadFilter, window: DeadWindow, after: Died | None, limit: int
) -> Flow[tuple[list[Found], Died | None]]:
    yield from prefer_indexes()
    return (yield from store.next_dead(wanted, window, after, limit))


def preview_dead(verb: Verb, wanted: DeadFilter) -> Procedure[Preview]:
    """How many there are, up to a cap, and some of them."""
    check_dead(wanted)
    window = yield from begin_dead(wanted)
    found: list[Found] = []
    place: Died | None = None
    deadline = time.monotonic() + PATIENCE
    while True:
        step = functools.partial(_next, wanted, window, place, CAP + 1 - len(found))
        more, place = yield from run(step)
        found += more
        if place is None or len(found) > CAP or time.monotonic() > deadline:
            break
    count = Count(min(len(found), CAP), place is not None)
    return (yield from preview_found(verb.action, found, count))
