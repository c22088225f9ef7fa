"""Jobs: a list with filters, newest first, and everything about one."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from ..db.database import Database
from ..errors import ConfigurationError
from ..store import operate
from ..store.operate import Attempt, Found, JobDetail, JobFilter, JobLine, Progress, Step
from ..store.statement import Flow

MOST = 1000  # lines in one page
PATIENCE = 2.0  # seconds a search goes on when its filters fit few jobs

_Search = Callable[[JobFilter], Flow[Found]]
_SEARCHES: dict[str, _Search] = {
    "pending": operate.search_live,
    "scheduled": operate.search_live,
    "processing": operate.search_running,
    "held": operate.search_held,
    "quarantined": operate.search_quarantined,
    "completed": operate.search_archive,
    "cancelled": operate.search_archive,
    "dead_letter": operate.search_dead,
}
STATES = tuple(_SEARCHES)
_EVERYWHERE: tuple[_Search, ...] = (operate.search_live, operate.search_archive, operate.search_dead)


@dataclass(frozen=True, slots=True)
class JobPage:
    jobs: list[JobLine]
    next: UUID | None  # pass it as `after` to go on; None: there is no more
    cut: bool = False  # fewer than asked for because the search stopped early, not because there are no more


@dataclass(frozen=True, slots=True)
class JobReport:
    """Everything there is about one job."""

    job: JobDetail
    errors: list[Attempt]
    progress: Progress | None
    steps: list[Step]


def list_jobs(
    database: Database,
    *,
    state: str | None = None,
    queue: str | None = None,
    task: str | None = None,
    after: UUID | None = None,
    limit: int = 50,
) -> JobPage:
    """Jobs by id from the newest back. A search that finds few gives up after a while and says where to go on."""
    if state is not None and state not in _SEARCHES:
        raise ConfigurationError(f"there is no state {state!r} (known: {', '.join(STATES)})")
    if not 1 <= limit <= MOST:
        raise ConfigurationError(f"limit must be between 1 and {MOST}, not {limit}")
    wanted = JobFilter(queue, task, (state,) if state else None, after, limit)
    searches = (_SEARCHES[state],) if state else _EVERYWHERE
    lines: list[JobLine] = []
    deadline = time.monotonic() + PATIENCE
    while True:
        page = database.run(functools.partial(_page, wanted, searches))
        lines += page.jobs
        if not page.cut or time.monotonic() > deadline:
            return JobPage(lines, page.next, page.cut)
        wanted = wanted._replace(before=page.next, limit=limit - len(lines))


def _page(wanted: JobFilter, searches: Sequence[_Search]) -> Flow[JobPage]:
    """Merge what each search found, down to where all of them have looked."""
    yield from operate.prefer_indexes()
    found: list[UUID] = []
    reached: list[UUID] = []
    for search in searches:
        ids, reach = yield from search(wanted)
        found += ids
        if reach is not None:
            reached.append(reach)
    horizon = max(reached, default=None)
    seen = sorted({i for i in found if horizon is None or i >= horizon}, reverse=True)
    page = seen[: wanted.limit]
    more = page[-1] if len(seen) > wanted.limit else horizon
    lines = (yield from operate.summarize_jobs(page)) if page else []
    # A job may have moved on between the search and here; one that left the asked-for state is not shown.
    kept = [line for line in lines if wanted.states is None or line.state in wanted.states]
    return JobPage(kept, more, cut=more is not None and len(page) < wanted.limit)


def show_job(database: Database, job_id: UUID) -> JobReport | None:
    """None: there is no such job, or it is finished and no longer kept."""
    return database.run(lambda: _report(job_id))


def _report(job_id: UUID) -> Flow[JobReport | None]:
    job = yield from operate.show_job(job_id)
    if job is None:
        return None
    errors = yield from operate.show_errors(job_id)
    progress = yield from operate.show_progress(job_id)
    steps = yield from operate.show_steps(job_id)
    return JobReport(job, errors, progress, steps)
