"""How much gets done: by queue and by task over the last minutes, and what takes the space."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ..errors import ConfigurationError
from ..store import jobs
from ..store import stats as store
from ..store.statement import Flow
from ..store.stats import Done, Marked, Minute, Relation, Waited, Window
from .procedure import Procedure, run
from .refusal import NoQueue

MOST_MINUTES = 24 * 60
_LINES = 1000
_TABLES = 10
_MARKS = 5


@dataclass(frozen=True, slots=True)
class Stats:
    window: Window
    queues: list[Done]
    tasks: list[Done]
    tables: list[Relation]  # the largest
    archive_rows: int  # about
    archive_bytes: int


def stats(
    *, minutes: int = 60, queue: str | None = None, task: str | None = None, storage: bool = True
) -> Procedure[Stats]:
    """The last minutes, of one queue or task or of all. It reads sums by minute and, for `storage`, the catalogue: no job is
    counted."""
    if not 1 <= minutes <= MOST_MINUTES:
        raise ConfigurationError(f"minutes must be between 1 and {MOST_MINUTES}, not {minutes}")
    return (yield from run(lambda: _stats(minutes, queue, task, storage)))


def minutes(*, back: int = 60) -> Procedure[list[Minute]]:
    """Each of the last minutes, the oldest first, none left out."""
    if not 1 <= back <= MOST_MINUTES:
        raise ConfigurationError(f"back must be between 1 and {MOST_MINUTES}, not {back}")

    def look() -> Flow[tuple[Window, list[Minute]]]:
        window = yield from store.stats_window(back)
        return window, (yield from store.stats_minutes(window.since))

    window, found = yield from run(look)
    by = {minute.at: minute for minute in found}
    times = [window.since + timedelta(minutes=n) for n in range(back + 1)]
    return [by.get(at, Minute(at, 0, 0, 0)) for at in times]


@dataclass(frozen=True, slots=True)
class Waits:
    since: datetime
    waited: list[Waited]  # by minute and queue, the oldest first
    marks: list[Marked]  # what happened meanwhile, the newest first


def waits(*, back: int = 60) -> Procedure[Waits]:
    """How long jobs had waited when they began, and events that may explain a change of it."""
    if not 1 <= back <= MOST_MINUTES:
        raise ConfigurationError(f"back must be between 1 and {MOST_MINUTES}, not {back}")

    def look() -> Flow[Waits]:
        window = yield from store.stats_window(back)
        waited = yield from store.stats_waits(window.since)
        return Waits(window.since, waited, (yield from store.stats_marks(window.since, _MARKS)))

    return (yield from run(look))


def _stats(minutes: int, queue: str | None, task: str | None, storage: bool = True) -> Flow[Stats]:
    window = yield from store.stats_window(minutes)
    queues = yield from store.stats_queues(window, queue, task, _LINES)
    if queue is not None and not queues:
        known = yield from jobs.queue_names()
        if queue not in known:
            raise NoQueue(queue, known)
    tasks = yield from store.stats(window, queue, task, _LINES)
    if not storage:
        return Stats(window, queues, tasks, [], 0, 0)
    tables = yield from store.storage(_TABLES)
    rows, size = yield from store.archive_rows()
    return Stats(window, queues, tasks, tables, rows, size)
