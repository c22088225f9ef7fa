"""Why is it not running, what happened, and how to make it run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.model import state
from holdfast.operate.copy import COPIED_FROM
from holdfast.operate.explain import Explanation
from holdfast.operate.jobs import JobReport
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Link, Offer, Page, PageRequest, View
from holdfast.shapes import MEANS
from holdfast.web.filters import job_id
from holdfast.web.findings import Todo, todo_of
from holdfast.web.life import life_of
from holdfast.web.views.audit import entries_of
from holdfast.web.views.drawn import Drawn, job_state
from holdfast.web.views.jobs import lines_of

if TYPE_CHECKING:
    from holdfast.web.site import Site

_AT_REST = (state.PENDING, state.SCHEDULED, state.HELD, state.BLOCKED, state.QUARANTINED)
# Reasons of the explanation against another try now.
_NO_USE = frozenset(("breaker_open", "task_paused", "queue_paused", "no_workers", "unknown_task", "held"))


def page(site: "Site") -> Page:
    def load(asked: PageRequest) -> Procedure[View]:
        wanted = job_id(asked.path["id"])
        report = yield from Operator.find_job.procedure(wanted)
        why = yield from Operator.explain.procedure(wanted, site.knows, MEANS)
        now = site.now()
        context = {
            "report": report,
            "job": report.job,
            "state": job_state(report.job),
            "why": why,
            "todo": _todo(why, wanted, site),
            "life": life_of(report, now),
            "sentence": spent(report),
            "now": now,
            "facts": facts(report),
            "trace": site.trace_of(report.job.metadata),
            "masked": site.masked_of(report.job.task),
            "was": site.baselines.keep(lines_of([report.job]), now),
        }
        return Drawn(
            (),
            {"report": report, "explanation": why},
            ("jobs", "show", str(wanted)),
            report.job.task,
            (Link("Jobs", "jobs"),),
            offers=offers(report, why),
            template="job.html",
            context=context,
        )

    return Page("jobs/{id}", "Job", load)


def _todo(why: Explanation, wanted: UUID, site: "Site") -> list[Todo]:
    """The advice of the decisive reason; a link to this very page is none."""
    found = [todo_of(one, site.shell) for one in why.advice]
    return [todo for todo in found if todo.link is None or todo.link.page != f"jobs/{wanted}"]


@dataclass(frozen=True, slots=True)
class JobOffer(Offer):
    primary: bool = False


def offers(report: JobReport, why: Explanation) -> list[Offer]:
    job = report.job
    given = {"ids": str(job.id)}
    found: list[Offer] = []
    if job.state in (state.SCHEDULED, state.QUARANTINED, state.BLOCKED, state.CANCELLED):
        helps = why.code not in _NO_USE
        label = "Run again" if job.state == state.CANCELLED else "Retry now"
        found.append(JobOffer("jobs retry", given, label, helps))
    if job.state == state.DEAD_LETTER:
        found.append(JobOffer("dead redrive", given, "Redrive…", True))
    if report.place == "queue":
        found.append(
            Offer("jobs cancel", given, "Ask it to stop…" if job.state == state.PROCESSING else "Cancel…")
        )
    if job.state in (*_AT_REST, state.DEAD_LETTER):
        found.append(Offer("jobs edit", {"id": str(job.id)}, "Edit…"))
        discard = "dead discard" if job.state == state.DEAD_LETTER else "jobs discard"
        found.append(Offer(discard, given, "Discard…"))
    if report.place != "queue":
        found.append(Offer("jobs copy", {"id": str(job.id)}, "Run a copy…"))
    return found


def facts(report: JobReport) -> list[tuple[str, object]]:
    job = report.job
    rows: list[tuple[str, object]] = [
        ("Queue", Link(job.queue, f"queues/{job.queue}")),
        ("Priority", job.priority),
        ("Attempts", f"{job.attempts} of {job.max_attempts}"),
        ("Crashes", job.crashes or None),
        ("Claimed", _times(job.generation)),
        ("Sequence", job.sequence),
        ("Fence", job.fence),
        ("Version", job.version),
        ("Owner" if job.state == state.PROCESSING else "Ran on", job.claimed_by),
        ("Created", job.created_at),
        ("Due", job.available_at if job.available_at.year < state.NEVER else None),
        ("Claimed at", job.claimed_at),
        ("Lease until", job.lease_expires_at),
        ("Gives up at", job.gives_up_at),
        ("Asked to stop", job.cancel_requested_at),
        ("Copy of", _copied_from(job.metadata)),
        ("What was done to it", entries_of(str(job.id))),
        ("Finished", job.finished_at),
    ]
    return [(name, value) for name, value in rows if value not in (None, "")]


def _copied_from(metadata: object) -> Link | None:
    """Metadata is whatever somebody wrote."""
    said = metadata.get(COPIED_FROM) if isinstance(metadata, Mapping) else None
    try:
        return None if said is None else Link(str(UUID(said)), f"jobs/{UUID(said)}")
    except (ValueError, AttributeError, TypeError):
        return None


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count:,} times")


def spent(report: JobReport) -> str:
    job = report.job
    return f"{job.attempts} of {job.max_attempts} attempts spent, claimed {_times(job.generation)}"
