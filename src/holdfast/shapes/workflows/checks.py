"""Problems of runs."""

from collections.abc import Iterator

from ...operate.advice import advise, once, start_worker
from ...operate.doctor.finding import Check, Finding, Patient
from ...operate.wording import cut, listed, several, span
from ...store.doctor import CAP
from . import health
from .health import OLDEST, ProblemRun


def check_runs(p: Patient) -> Iterator[Finding]:
    if lost := p.probe.look(health.lost()):
        what = f"{several(len(lost), 'open run')} without a job, among the oldest {OLDEST:,}"
        yield Finding("lost_run", "error", what, [start_worker()], _all(lost))
    if stuck := p.probe.look(health.stuck()):
        what = f"{several(len(stuck), 'run')} that nothing can wake, among the oldest {OLDEST:,}"
        fix = [advise("retry_jobs", ids=[run.id for run in stuck])]
        yield Finding("stuck_run", "error", what, fix, _all(stuck))
    if orphans := p.probe.look(health.orphans()):
        what = (
            f"{several(len(orphans), 'open run')} that should have been cancelled when the run that started "
            f"{'it' if len(orphans) == 1 else 'them'} ended, among the oldest {OLDEST:,}"
        )
        fix = [advise("run", verb="cancel", id=run.id) for run in orphans]
        yield Finding("orphan_run", "error", what, fix, _all(orphans))
    if torn := p.probe.look(health.torn()):
        what = (
            f"{several(len(torn), 'run')} with rows that contradict each other, among the oldest {OLDEST:,}"
        )
        fix = [advise("run", verb="show", id=run.id) for run in torn]
        yield Finding("torn_run", "error", what, fix, _all(torn))


def _all(found: list[ProblemRun]) -> list[str]:
    return listed([str(run) for run in found])


def check_code(p: Patient) -> Iterator[Finding]:
    if parted := p.probe.look(health.parted()):
        runs = sum(one.runs for one in parted)
        whose = "its" if runs == 1 else "their"
        what = f"{several(runs, 'run')}{'+' if runs >= CAP else ''} set aside: {whose} code diverged from what was recorded"
        details = [
            f"{one.workflow} version {one.version}: {several(one.runs, 'run')}, such as {one.first[0]}: {cut(one.reason)}"
            for one in parted
        ]
        fix = [advise("run", verb="retry", id=run) for one in parted for run in one.first]
        accept = [advise("accept_run", id=one.first[0]) for one in parted]
        yield Finding("diverged_runs", "warning", what, fix, listed(details), accept)
    if unknown := p.probe.look(health.unknown(p.dead_after)):
        runs = sum(one.runs for one in unknown)
        what = (
            f"{several(runs, 'open run')} of {several(len(unknown), 'version')} that no live worker knows, among the "
            f"oldest {OLDEST:,}"
        )
        details = [
            f"{one.workflow} version {one.version}: {several(one.runs, 'run')} in queue {one.queue}, the oldest for "
            f"{span(one.seconds)}"
            for one in unknown
        ]
        fix = [start_worker(one.queue, p.knows(one.workflow, one.version)) for one in unknown]
        listing = [advise("list_runs", workflow=name) for name in sorted({one.workflow for one in unknown})]
        lasts = max(one.seconds for one in unknown)
        yield Finding("unknown_workflows", "warning", what, once(fix), listed(details), listing, lasts=lasts)


CHECKS = (
    Check(
        "runs",
        "every open run of a workflow has a job, something can wake each that sleeps, none outlives its parent, and its "
        "records fit together",
        ("lost_run", "stuck_run", "orphan_run", "torn_run"),
        check_runs,
    ),
    Check(
        "workflows",
        "open runs go together with the code of live workers",
        ("diverged_runs", "unknown_workflows"),
        check_code,
    ),
)
