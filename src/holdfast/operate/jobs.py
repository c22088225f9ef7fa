"""Jobs: a list with filters, newest first, and everything about one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from ..errors import ConfigurationError
from ..model.state import CANCELLED, DEAD_LETTER, FINISHED
from ..store import chains, show
from ..store.chains import Child, GroupStatus
from ..store.queue_load import prefer_indexes
from ..store.search import JobFilter
from ..store.show import Attempt, JobDetail, JobLine, Progress, Step
from ..store.statement import Flow, Statement
from .procedure import Procedure, run
from .refusal import Refused
from .search import check_filter, check_limit, check_queue, find

_SHOWN = 3  # of the ids that begin alike
_ERROR = 8192  # characters that are kept of an error


@dataclass(frozen=True, slots=True)
class JobPage:
    jobs: list[JobLine]
    next: UUID | None  # pass it as `after` to continue; None: there are no more
    cut: bool = False  # fewer than asked for because the search stopped early, not because there are no more


@dataclass(frozen=True, slots=True)
class JobReport:
    """Everything that is known about one job."""

    job: JobDetail
    place: str  # queue, archive or dead_letters
    cancel_reason: str | None
    errors: list[Attempt]
    progress: Progress | None
    steps: list[Step]
    group: GroupStatus | None
    children: list[Child]  # some of them


def list_jobs(
    wanted: JobFilter | None = None,
    *,
    after: UUID | None = None,
    limit: int = 50,
    patience: float | None = None,
) -> Procedure[JobPage]:
    """Jobs by id from the newest back. A search that finds few gives up after a while and returns where to continue."""
    wanted = wanted or JobFilter()
    check_filter(wanted)
    check_limit(limit)
    yield from check_queue(wanted.queue)
    return (yield from _list(wanted, after, limit, patience))


def _list(wanted: JobFilter, after: UUID | None, limit: int, patience: float | None) -> Procedure[JobPage]:
    finding = yield from find(wanted, after=after, limit=limit, patience=patience)
    lines = yield from lines_of([job.id for job in finding.found])
    # A job may have moved on between the search and here; one that left the asked-for state is not shown.
    kept = [line for line in lines if wanted.states is None or line.state in wanted.states]
    return JobPage(kept, finding.next, finding.cut)


def lines_of(job_ids: Sequence[UUID]) -> Procedure[list[JobLine]]:
    """Named jobs, the newest first; a job that is gone is left out."""
    return (yield from run(lambda: _lines(job_ids))) if job_ids else []


def _lines(job_ids: Sequence[UUID]) -> Flow[list[JobLine]]:
    yield from prefer_indexes()
    return (yield from show.summarize_jobs(job_ids))


def search_archive(
    wanted: JobFilter | None = None,
    *,
    after: UUID | None = None,
    limit: int = 50,
    patience: float | None = None,
) -> Procedure[JobPage]:
    """Like list_jobs, among finished jobs, whose queue may be gone."""
    wanted = wanted or JobFilter()
    check_filter(wanted, FINISHED)
    check_limit(limit)
    return (yield from _list(_finished(wanted), after, limit, patience))


def _finished(wanted: JobFilter) -> JobFilter:
    return wanted if wanted.states else replace(wanted, states=FINISHED)


def show_job(job_id: UUID) -> Procedure[JobReport | None]:
    """None: there is no such job, or it is finished and no longer kept."""
    return (yield from run(lambda: _report(job_id)))


def find_job(job_id: UUID) -> Procedure[JobReport]:
    """Like show_job; refuses an id that is no job's."""
    report = yield from show_job(job_id)
    if report is None:
        raise ConfigurationError(no_such_job(job_id))
    return report


def id_by_start(
    start: str, kind: str, between: Callable[[UUID, UUID, int], Statement[list[UUID]]]
) -> Procedure[UUID]:
    """The id that begins with these hexadecimal digits; dashes do not count. Refuses what is nobody's of this kind, or fits
    several. `between` asks for some ids in a range."""
    digits = start.replace("-", "").lower()
    lowest, highest = (UUID(digits.ljust(32, fill)) for fill in "0f")
    found = yield from run(lambda: _first(between(lowest, highest, _SHOWN + 1)))
    if not found:
        ended = "finished and " if kind == "job" else ""
        raise ConfigurationError(
            f"there is no {kind} whose id begins with {start!r}, or it is {ended}no longer kept"
        )
    if len(found) > 1:
        several = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
        some = ", ".join(map(str, found[:_SHOWN]))
        more = " and more" if len(found) > _SHOWN else ""
        raise ConfigurationError(
            f"the ids of several {several} begin with {start!r}: {some}{more}. Write more of it"
        )
    return found[0]


def _first(asked: Statement[list[UUID]]) -> Flow[list[UUID]]:
    yield from prefer_indexes()
    return (yield from asked)


def no_such_job(job_id: UUID) -> str:
    return f"there is no job {job_id}, or it is finished and no longer kept"


def find_dead(job_id: UUID) -> Procedure[JobReport]:
    """Refuses a job that is no dead letter, and says what it is."""
    return _placed((yield from find_job(job_id)), "dead_letters", "no dead letter")


def find_archived(job_id: UUID) -> Procedure[JobReport]:
    return _placed((yield from find_job(job_id)), "archive", "not in the archive")


def _placed(report: JobReport, place: str, otherwise: str) -> JobReport:
    job = report.job
    if report.place != place:
        where = (
            f"in queue {job.queue}" if report.place == "queue" else f"in the {report.place.replace('_', ' ')}"
        )
        text = f"job {job.id} is {otherwise}: it is {job.state}, {where}"
        raise Refused("elsewhere", text, id=job.id, state=job.state, place=report.place)
    return report


def _report(job_id: UUID) -> Flow[JobReport | None]:
    job = yield from show.show_job(job_id)
    if job is None:
        return None
    errors = yield from show.show_errors(job_id)
    progress = yield from show.show_progress(job_id)
    steps = yield from show.show_steps(job_id)
    group = (yield from chains.group_status(job.group_id)) if job.group_id else None
    yield from prefer_indexes()
    children = yield from chains.show_children(job_id)
    reason = _cancel_reason(job, errors)
    return JobReport(job, _place(job), reason, errors, progress, steps, group, children)


def _place(job: JobDetail) -> str:
    if job.state in FINISHED:
        return "archive"
    return "dead_letters" if job.state == DEAD_LETTER else "queue"


def _cancel_reason(job: JobDetail, errors: list[Attempt]) -> str | None:
    """A reason is kept where the last error was. Without one, that error stays."""
    if job.state != CANCELLED or not job.last_error:
        return None
    failures = {f"{e.kind}: {e.message}" if e.message else e.kind for e in errors}
    return None if job.last_error in {text[:_ERROR] for text in failures} else job.last_error
