"""What is wrong with runs."""

from collections.abc import Iterator

from ...operate.advice import advise, start_worker
from ...operate.doctor.finding import Check, Finding, Patient
from ...operate.wording import listed, several
from .ends import OLDEST, troubled


def check_runs(p: Patient) -> Iterator[Finding]:
    found = p.probe.look(troubled())
    if lost := [run for run in found if run.trouble == "lost"]:
        what = f"{several(len(lost), 'open run')} without a job, among the oldest {OLDEST:,}"
        yield Finding("lost_run", "error", what, [start_worker()], listed([str(run) for run in lost]))
    if stuck := [run for run in found if run.trouble != "lost"]:
        what = f"{several(len(stuck), 'run')} that nothing can wake, among the oldest {OLDEST:,}"
        fix = [advise("retry_jobs", ids=[run.id for run in stuck])]
        yield Finding("stuck_run", "error", what, fix, listed([str(run) for run in stuck]))


CHECKS = (
    Check(
        "runs",
        "every open run of a workflow has a job, and something can wake each that sleeps",
        ("lost_run", "stuck_run"),
        check_runs,
    ),
)
