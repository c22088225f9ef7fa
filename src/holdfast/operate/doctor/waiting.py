"""Pauses, open breakers and limits that due jobs wait for."""

from collections.abc import Iterator

from ...model.queue import QueueRules, Rate
from ...store import doctor as store
from ...store.breaker import BreakerSeen, list_breakers
from ...store.doctor import HeldBack, LongPaused
from ...store.limits import LimitUse, limit_use
from ...store.pause import held_of_task
from ...store.queue_load import Count, queue_load
from ...store.queues import queue_rules
from ..advice import Advice, advise
from ..wording import cut, listed, several, span
from .finding import Check, Finding, Patient

# Pauses -------------------------------------------------------------------------------------------------------------


def check_paused(p: Patient) -> Iterator[Finding]:
    """A pause that jobs wait for is more than a remark."""
    found = p.probe.look(store.long_paused(p.limits.paused, p.limits.stuck))
    for kind in ("queue", "task"):
        of_kind = [x for x in found if x.what == kind]
        if waiting := [(x, _behind_pause(p, x)) for x in of_kind if x.waits]:
            jobs = _sum([count for _, count in waiting])
            what = f"{several(len(waiting), kind)} paused while {_jobs(jobs)} wait behind"
            details = [f"{_pause(x)}, {_jobs(count)} due" for x, count in waiting]
            fix = [_resume(x) for x, _ in waiting]
            lasts = max(x.seconds for x, _ in waiting)
            yield Finding(
                f"paused_{kind}", "warning", what, fix, listed(details), jobs=jobs.count, lasts=lasts
            )
        if others := [x for x in of_kind if not x.waits]:
            what = f"{several(len(others), kind)} paused for more than {span(p.limits.paused)}"
            fix = [_resume(x) for x in others]
            lasts = max(x.seconds for x in others)
            yield Finding(
                f"paused_{kind}", "info", what, fix, listed([_pause(x) for x in others]), lasts=lasts
            )


def _behind_pause(p: Patient, x: LongPaused) -> Count:
    if x.what == "task":
        return p.probe.look(held_of_task(x.name))
    load = p.probe.look(queue_load(x.name))
    return Count(0) if load is None else load.pending


def _resume(x: LongPaused) -> Advice:
    return advise(f"resume_{x.what}", name=x.name)


def _pause(x: LongPaused) -> str:
    return f"{x.what} {cut(x.name)}: for {span(x.seconds)}, by {cut(x.by) or 'somebody'}"


# Breakers -----------------------------------------------------------------------------------------------------------


def check_breakers(p: Patient) -> Iterator[Finding]:
    """One that has just opened may close by its first trial."""
    found = [
        (b, p.probe.look(held_of_task(b.task)))
        for b in p.probe.look(list_breakers())
        if b.state != "closed" and p.limits.is_late(b.open_seconds)
    ]
    if found:
        jobs = _sum([count for _, count in found])
        what = f"{several(len(found), 'breaker')} open, {_jobs(jobs)} wait behind: what the task calls keeps failing"
        fix = [advise("resume_task", name=b.task) for b, _ in found]
        details = [_breaker(b, count) for b, count in found]
        lasts = max(b.open_seconds or 0.0 for b, _ in found)
        yield Finding(
            "open_breaker", "warning", what, fix, listed(details), [advise("list_tasks")], jobs.count, lasts
        )


def _breaker(b: BreakerSeen, behind: Count) -> str:
    trial = f"the next trial in {span(max(b.trial_in_seconds or 0.0, 0.0))}"
    trials = f"{several(b.trials, 'trial')} failed" if b.trials else "none tried yet"
    return (
        f"task {cut(b.task)} for {span(b.open_seconds or 0.0)}, {_jobs(behind)} behind it, {trials}, {trial}: "
        f"{cut(b.last_error) or 'no error is known'}"
    )


# Limits -------------------------------------------------------------------------------------------------------------


def check_limits(p: Patient) -> Iterator[Finding]:
    """A limit that is used up while jobs wait for long, and workers have free slots."""
    fix, details, jobs, waits = [], [], [], []
    late = p.probe.look(store.held_back(p.dead_after, p.limits.stuck))
    rules = p.probe.look(queue_rules([one.queue for one in late])) if late else {}
    for one in late:
        has = rules.get(one.queue, QueueRules())
        said = _in_the_way(one, has, p.probe.look(limit_use(one.queue)))
        if said is None:
            continue
        rule, value, why = said
        load = p.probe.look(queue_load(one.queue))
        jobs.append(Count(0) if load is None else load.pending)
        details.append(f"queue {one.queue}: {_jobs(jobs[-1])} due, the oldest for {span(one.seconds)}; {why}")
        waits.append(one.seconds)
        fix.append(advise("set_queue", queue=one.queue, rule=rule, value=value))
    if fix:
        total = _sum(jobs)
        what = f"{several(len(fix), 'queue')} held back by a limit while {_jobs(total)} wait"
        shows = [advise("show_queue", queue=a.data["queue"]) for a in fix]
        yield Finding("full_limit", "warning", what, fix, listed(details), shows, total.count, max(waits))


def _in_the_way(one: HeldBack, rules: QueueRules, use: LimitUse) -> tuple[str, object, str] | None:
    """The rule, twice its value, and its use."""
    limit = rules.concurrency
    if limit is not None and use.running >= limit and one.slots > limit:
        why = f"{use.running:,} of {limit:,} run, of {one.slots:,} slots of live workers"
        return "concurrency", 2 * limit, why
    if rules.rate is not None and use.next_in > 0:
        why = f"its rate, {rules.rate.text}, allows the next start in {span(use.next_in)}"
        return "rate", Rate(2 * rules.rate.per_second).text, why
    return None


def _sum(counts: list[Count]) -> Count:
    return Count(sum(one.count for one in counts), any(one.capped for one in counts))


def _jobs(count: Count) -> str:
    return f"{count.count:,}{'+' if count.capped else ''} job{'' if count.count == 1 else 's'}"


CHECKS = (
    Check(
        "paused",
        "nothing is paused that jobs wait for, nor for more than a day",
        ("paused_queue", "paused_task"),
        check_paused,
    ),
    Check("breakers", "no breaker is open for long", ("open_breaker",), check_breakers),
    Check("limits", "no limit holds jobs back for long", ("full_limit",), check_limits),
)
