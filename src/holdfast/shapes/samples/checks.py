"""Unusual load: much more is due than at this time on other days."""

from collections.abc import Iterator

from ...operate.advice import start_worker
from ...operate.doctor.finding import Check, Finding, Patient
from ...operate.wording import listed, several, span
from ...store.samples import Usual, usual_load

DAYS = 3  # to compare with, at least
TIMES = 5  # as much as on most days
LEAST = 100  # jobs
CAP = 10_000  # jobs that a sample counts
OLD = 60.0  # seconds, at least, that the oldest one usually waits


def is_unusual(found: Usual) -> bool:
    """Jobs behind a key that waits for an operator are reported elsewhere."""
    if found.due_now is None or found.most_due is None or found.days < DAYS:
        return False
    able = found.due_now - (found.behind_now or 0)
    if able < LEAST:
        return False
    if able > TIMES * max(found.most_due, 1):
        return True
    # Counts stop at the cap. At the cap, the age of the oldest job shows how far behind the queue is.
    usual = max(found.most_oldest or 0.0, OLD)
    return found.due_now >= CAP and (found.oldest_now or 0.0) > TIMES * usual


def check_usual(p: Patient) -> Iterator[Finding]:
    found = [one for one in p.probe.look(usual_load()) if is_unusual(one)]
    if found:
        what = f"{several(len(found), 'queue')} with many more due jobs than usual at this time"
        details = [_said(one) for one in found]
        fix = [start_worker(one.queue) for one in found]
        yield Finding("unusual_backlog", "warning", what, fix, listed(details))


def _said(one: Usual) -> str:
    due = f"{one.due_now:,}{'+' if (one.due_now or 0) >= CAP else ''} due"
    oldest = f", the oldest for {span(one.oldest_now)}" if one.oldest_now is not None else ""
    usual = f"usually {one.due:,}, rarely more than {one.most_due:,} (of {several(one.days, 'day')})"
    if one.oldest_now is not None and (one.due_now or 0) >= CAP:
        usual += f", and the oldest rarely for more than {span(one.most_oldest or 0.0)}"
    return f"{one.queue}: {due}{oldest}, on {several(one.workers_now or 0, 'worker')}; {usual}"


CHECKS = (
    Check(
        "usual",
        "no queue has many more due jobs than at this time on other days",
        ("unusual_backlog",),
        check_usual,
    ),
)
