"""Dead letters: list them, and put them back to work.

A redriven job starts with a fresh set of attempts. Its generation and sequence stay, so that whatever an earlier attempt
wrote to a fenced store stays older than what comes now.
"""

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from .. import telemetry
from ..db.database import Database
from ..errors import ConfigurationError, EnqueueError
from ..store import redrive as store
from ..store.operate import Count, prefer_indexes
from ..store.redrive import DeadLine, Died, Locked
from ..store.statement import Flow

MOST = 1000  # lines in one page
PATIENCE = 2.0  # seconds a search goes on when its filters fit few
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class DeadPage:
    dead_letters: list[DeadLine]
    next: str | None  # pass it as `after` to go on; None: there is no more
    cut: bool = False  # fewer than asked for because the search stopped early


@dataclass(slots=True)
class Redriven:
    ids: list[UUID] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)  # how many stay because their queue is no more


def list_dead(
    database: Database,
    *,
    queue: str | None = None,
    task: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> DeadPage:
    """The last to die first."""
    if not 1 <= limit <= MOST:
        raise ConfigurationError(f"limit must be between 1 and {MOST}, not {limit}")
    place = _read_place(after) if after else None
    lines: list[DeadLine] = []
    deadline = time.monotonic() + PATIENCE
    while True:
        found, place = database.run(functools.partial(_page, queue, task, place, limit - len(lines)))
        lines += found
        cut = place is not None and len(lines) < limit
        if not cut or time.monotonic() > deadline:
            return DeadPage(lines, f"{place.at.isoformat()}/{place.id}" if place else None, cut)


def _page(
    queue: str | None, task: str | None, before: Died | None, limit: int
) -> Flow[tuple[list[DeadLine], Died | None]]:
    yield from prefer_indexes()
    return (yield from store.list_dead(queue, task, before, limit))


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


def count_dead(database: Database, task: str | None = None) -> Count:
    return database.run(lambda: store.count_dead(task))


def redrive(database: Database, job_ids: Iterable[UUID]) -> Redriven:
    """Put these dead letters back to work, all of them or, with an EnqueueError that says why, none."""
    wanted = sorted(set(job_ids))
    moved = database.run(lambda: _redrive_these(wanted)) if wanted else []
    telemetry.emit("jobs.redriven", count=len(moved))
    return Redriven(moved)


def _redrive_these(wanted: Sequence[UUID]) -> Flow[list[UUID]]:
    locked = yield from store.lock_dead(wanted)
    missing = [str(i) for i in wanted if i not in {job.id for job in locked}]
    if missing:
        raise EnqueueError(
            f"nothing was redriven: {_some(missing)} {'is' if len(missing) == 1 else 'are'} no dead letter"
        )
    if lost := sorted({job.queue for job in locked if not job.has_queue}):
        raise EnqueueError(
            f"nothing was redriven: queue {_some(lost)} does not exist. Create it: holdfast queue create {lost[0]}"
        )
    return (yield from store.redrive(wanted))


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def redrive_all(
    database: Database, task: str | None = None, on_batch: Callable[[int], None] = lambda _: None
) -> Redriven:
    """Put back every dead letter there is now, or those of one task, in batches that commit one by one.

    What dies again meanwhile stays dead. What belongs to a queue that is no more is left and counted.
    """
    until = database.run(store.redrive_begin)
    result = Redriven()
    place: Died | None = None
    while True:
        locked, place = database.run(functools.partial(_redrive_batch, task, until, place))
        if place is None:
            break
        for job in locked:
            if job.has_queue:
                result.ids.append(job.id)
            else:
                result.left[job.queue] = result.left.get(job.queue, 0) + 1
        on_batch(len(result.ids))
    telemetry.emit("jobs.redriven", count=len(result.ids), task=task, left=sum(result.left.values()))
    return result


def _redrive_batch(
    task: str | None, until: datetime, after: Died | None
) -> Flow[tuple[list[Locked], Died | None]]:
    locked, last = yield from store.lock_dead_batch(task, until, after, _BATCH)
    able = [job.id for job in locked if job.has_queue]
    if able:
        yield from store.redrive(able)
    return locked, last
