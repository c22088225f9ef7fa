"""Schedules that do not fire."""

from collections.abc import Iterator

from ...operate.advice import Advice, advise, once, start_worker
from ...operate.doctor.finding import Check, Finding, Patient
from ...operate.wording import cut, listed, several, span, them
from .store import Overdue, failed, overdue
from .verbs import ALIVE

_MOST = 100  # schedules that are named


def check_schedules(p: Patient) -> Iterator[Finding]:
    found = p.probe.look(overdue(p.limits.stuck, p.dead_after, ALIVE))
    gone = [s for s in found if not s.is_declared and s.workers]
    late = [s for s in found if s not in gone]
    if late:
        what = f"{several(len(late), 'schedule')} overdue: no worker has fired a slot that is past"
        fix = once([_fix(s) for s in late])
        drops = [advise("pause_schedule", name=s.name) for s in late]
        yield Finding("overdue_schedule", "error", what, fix, listed([_line(s) for s in late]), drops)
    if gone:
        what = f"{several(len(gone), 'schedule')} in no live worker's code: nobody fires {them(gone)}"
        fix = [advise("remove_schedule", name=s.name) for s in gone]
        starts = once([start_worker(s.queue) for s in gone])
        yield Finding("undeclared_schedule", "warning", what, fix, listed([_line(s) for s in gone]), starts)


def check_failed(p: Patient) -> Iterator[Finding]:
    """It fires, and what it does fails: no error of anybody who waits for it says so."""
    found = p.probe.look(failed(_MOST))
    if found:
        what = f"{several(len(found), 'schedule')} whose last job is a dead letter"
        details = [
            f"{cut(s.name)}: job {s.job} of {cut(s.task)}, {span(s.seconds)} ago, with {cut(s.error or 'no error')}"
            for s in found
        ]
        fix = [advise("redrive_dead", id=s.job) for s in found]
        looks = [advise("show_job", id=s.job) for s in found]
        yield Finding("failed_schedule", "warning", what, fix, listed(details), looks, len(found))


def _fix(s: Overdue) -> Advice:
    """Without a worker nothing fires it. With one: its queue is missing, it fails otherwise, or its row is locked."""
    if not s.workers:
        return start_worker(s.queue)
    if not s.has_queue:
        return advise("create_queue", queue=s.queue)
    if s.problem is not None:
        return advise("pause_schedule", name=s.name)
    return advise("check", name="horizon")


def _line(s: Overdue) -> str:
    problem = f": {cut(s.problem)}" if s.problem else ""
    return f"{cut(s.name)} (of {s.origin}, queue {s.queue}), overdue for {span(s.seconds)}{problem}"


CHECKS = (
    Check(
        "schedules",
        "every schedule fires at its slots",
        ("overdue_schedule", "undeclared_schedule"),
        check_schedules,
    ),
    Check(
        "schedule_jobs",
        "the last job of every schedule has not failed for good",
        ("failed_schedule",),
        check_failed,
    ),
)
