"""Find jobs, and act on many."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.model import state
from holdfast.operate.explain import Explanation
from holdfast.operate.jobs import JobReport
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Page, PageRequest, State, View
from holdfast.shapes import MEANS
from holdfast.store.queue_load import Count
from holdfast.store.show import JobLine
from holdfast.web.filters import BACKING_OFF, JOB_FIELDS, JOB_SEARCHES, job_filter, job_id, options, text
from holdfast.web.parts import Missing, in_time
from holdfast.web.views.drawn import Drawn, filters_for, job_state, later
from holdfast.web.views.overview import OLD, PATIENCE, Numbers, numbers_of

if TYPE_CHECKING:
    from holdfast.web.site import Site

LINES = 50
SOON = 0.03  # seconds of a search: it continues by a link, with more patience
FILTERS = (
    ("queue", "Queue", ""),
    ("task", "Task", ""),
    ("worker", "Worker", ""),
    ("key", "Key", ""),
    ("tag", "Tag", ""),
    ("min_attempts", "Attempts at least", ""),
    ("field", "In the payload", "customer.id=17"),
    ("error", "Text in the last error", ""),
    ("newer_than", "Created within", "15m, 2h, 3d"),
    ("older_than", "Created longer ago", "15m, 2h, 3d"),
)
SELDOM = ("worker", "tag", "min_attempts", "field", "older_than")
_TABS = (
    ("", "All", ""),
    (state.PROCESSING, "Running", "run"),
    (state.PENDING, "Due", "due"),
    (state.SCHEDULED, "Scheduled", "sched"),
    (BACKING_OFF, "Backing off", "retry"),
    (state.HELD, "Held", "held"),
    (state.BLOCKED, "Blocked", "block"),
    (state.QUARANTINED, "Quarantined", "dead"),
    (state.DEAD_LETTER, "Dead", "dead"),
    (state.COMPLETED, "Completed", "done"),
    (state.CANCELLED, "Cancelled", "cancel"),
)


def page(site: "Site") -> Page:
    def load(asked: PageRequest) -> Procedure[View]:
        seen = yield from later(lambda: in_time("The counts", lambda: numbers_of(site, OLD), PATIENCE))
        numbers = None if isinstance(seen, Missing) else seen
        after = text(asked.query, "after")
        found = yield from Operator.list_jobs.procedure(
            job_filter(asked.query, site.masked_of),
            after=None if after is None else job_id(after),
            limit=LINES,
            patience=SOON if after is None else None,
        )
        peek = text(asked.query, "peek")
        peeked = None if peek is None else (yield from _peek(site, peek))
        given = {name: said for name in JOB_FIELDS if (said := text(asked.query, name)) is not None}
        given_page = {**given, "after": after} if after is not None else given
        context = {
            "jobs": [(job, job_state(job)) for job in found.jobs],
            "tabs": [(word, label, tone, _count(numbers, word)) for word, label, tone in _TABS],
            "state": state.state_named(given.get("state", "")),
            **filters_for(asked, FILTERS, SELDOM, JOB_SEARCHES),
            "given": given,
            "after": after,
            "peek": peeked,
            "page_query": given_page,
            "was": site.baselines.keep(lines_of(found.jobs), site.now()),
            "queues": [load.name for load in numbers.found.queues] if numbers else [],
            "tasks": sorted({line.task for line in numbers.stats.tasks if line.task}) if numbers else [],
        }
        more = None if found.next is None else {**given, "after": str(found.next)}
        cut = (
            f"Searched back to {_time_of(found.next)}; there may be more." if found.cut and found.next else ""
        )
        command = ("jobs", "list", *options(given_page, (*JOB_FIELDS, "after")))
        return Drawn((), found, command, more=more, cut=cut, template="jobs.html", context=context)

    takes = (*JOB_FIELDS, "after", "peek")
    return Page("jobs", "Jobs", load, "Work", "jobs", searches=JOB_SEARCHES, takes=takes)


def lines_of(jobs: Sequence[JobLine]) -> Mapping[str, Sequence[object]]:
    """What makes a line of the list another one."""
    return {str(job.id): [job.state, job.attempts] for job in jobs}


@dataclass(frozen=True, slots=True)
class Peek:
    """One job beside the list: why it is not running, and what it is about."""

    report: JobReport
    state: State
    why: Explanation
    masked: Collection[str]


def _peek(site: "Site", said: str) -> Procedure[Peek | None]:
    """None: it is gone, and the list is still shown."""
    wanted = job_id(said)
    report = yield from Operator.show_job.procedure(wanted)
    if report is None:
        return None
    why = yield from Operator.explain.procedure(wanted, site.knows, MEANS)
    return Peek(report, job_state(report.job), why, site.masked_of(report.job.task))


def _time_of(place: UUID) -> str:
    """When a job of this id was made: ids begin with the time."""
    return f"{datetime.fromtimestamp((place.int >> 80) / 1000, UTC):%d %b %H:%M:%S} UTC"


def _count(numbers: Numbers | None, word: str) -> Count | None:
    """From the shared snapshot: never by a separate count."""
    if numbers is None:
        return None
    if word == state.DEAD_LETTER:
        return numbers.found.dead_letters
    if word in (state.COMPLETED, state.CANCELLED, BACKING_OFF, ""):
        return None
    found = [getattr(load, word) for load in numbers.found.queues]
    return Count(sum(one.count for one in found), any(one.capped for one in found))
