"""The jobs themselves: stranded, stuck, deadly, quarantined, unknown, dead, or not tidied up."""

import functools
from collections.abc import Iterator, Sequence
from itertools import groupby
from uuid import UUID

from ...model.actor import Actor
from ...model.state import HELD, QUARANTINED
from ...store import doctor as store
from ...store import housekeeping
from ...store.audit import audit
from ...store.doctor import CAP, LISTED, LongHeld, Unswept
from ...store.statement import Flow
from ...store.wake import wake
from ..advice import Advice, advise, start_worker
from ..wording import cut, listed, several, some, span, them
from .finding import Check, Finding, Left, Level, Patient

_NAMED = 20  # jobs that a command names

# No worker -------------------------------------------------------------------------------------------------------


def check_workers(p: Patient) -> Iterator[Finding]:
    """Reported at once: no queue with due jobs may be without a worker. If it lasts, it is an error."""
    found = p.probe.look(store.unserved_queues(p.dead_after, 0.0))
    if found:
        level: Level = "error" if any(p.limits.is_late(u.seconds) for u in found) else "warning"
        what = f"{several(len(found), 'queue')} with due jobs and no live worker"
        details = [f"queue {u.queue}: due for {span(u.seconds)}, first {cut(u.task)}" for u in found]
        fix = [start_worker(u.queue) for u in found]
        lasts = max(u.seconds for u in found)
        yield Finding("unserved_queue", level, what, fix, listed(details), lasts=lasts)


# Processing without a claim -----------------------------------------------------------------------------------------


def check_stranded(p: Patient) -> Iterator[Finding]:
    found = p.probe.look(store.find_stranded())
    if found:
        what = f"{_count(len(found))} processing without a claim: nobody would ever take {them(found)} back"
        details = [f"{s.id} ({cut(s.task)}, queue {s.queue}), claimed {span(s.seconds)} ago" for s in found]
        yield Finding("stranded", "error", what, [p.fixing("stranded")], listed(details))


def fix_stranded(p: Patient) -> Iterator[str]:
    """Back to waiting, queue by queue, each with its entry in the audit."""
    found = p.probe.look(store.find_stranded())
    for queue, group in groupby(sorted(found, key=lambda s: s.queue), key=lambda s: s.queue):
        ids = [s.id for s in group]
        freed = p.database.run(functools.partial(_free, queue, ids, p.actor))
        yield f"back to waiting: {several(len(freed), 'job')} of queue {queue}"


def _free(queue: str, ids: list[UUID], who: Actor) -> Flow[list[UUID]]:
    freed = yield from store.free_stranded(queue, ids)
    if freed:
        shown = [str(i) for i in freed[:100]]
        yield from audit(who, "doctor fix", {"fix": "stranded", "queue": queue, "ids": shown}, len(freed))
        yield from wake([queue])
    return freed


# Stuck --------------------------------------------------------------------------------------------------------------


def check_stuck(p: Patient) -> Iterator[Finding]:
    live = p.probe.look(store.live_workers(p.dead_after))
    claims = p.probe.look(store.unswept_claims(p.limits.stuck, p.dead_after))
    if claims:
        jobs = sum(c.jobs for c in claims)
        what = f"{several(jobs, 'job')} of {several(len(claims), 'claim')} should have been taken back by a sweep"
        if not live:
            what += ", and no live worker is there to sweep"
        yield Finding("unswept_claims", "error", what, _sweep(p, claims, bool(live)), listed(_claims(claims)))
    held = p.probe.look(store.long_held(p.limits.running, p.limits.cancel, p.dead_after))
    deaf = [h for h in held if h.asked is not None and h.asked >= p.limits.cancel]
    if deaf:
        what = f"{several(len(deaf), 'job')} asked to stop long ago and still running"
        workers = sorted({h.worker for h in deaf})
        fix = [advise("drain_workers", workers=workers)]
        lasts = max(h.asked or 0.0 for h in deaf)
        yield Finding("cancel_ignored", "warning", what, fix, listed([_long(h) for h in deaf]), lasts=lasts)
    if slow := [h for h in held if h.asked is None and h.seconds >= p.limits.running]:
        what = f"{several(len(slow), 'job')} running for very long"
        fix = [advise("cancel_jobs", ids=[h.id for h in slow[:_NAMED]])]
        yield Finding("long_running", "info", what, fix, listed([_long(h) for h in slow]))


def _claims(claims: list[Unswept]) -> list[str]:
    return [
        f"queue {c.queue}: {several(c.jobs, 'job')} of worker {c.worker} ({_owner(c)}), such as {c.first}"
        for c in claims
    ]


def _owner(c: Unswept) -> str:
    heard = "not in the registry" if c.silent is None else f"{c.status}, last heard of {span(c.silent)} ago"
    return heard + (f", lease over for {span(c.expired)}" if c.expired > 0 else "")


def _sweep(p: Patient, claims: list[Unswept], live: bool) -> list[Advice]:
    """Without a worker nobody sweeps. With one, a claim that it cannot take is locked by a long transaction."""
    if not live:
        return [start_worker(queue) for queue in sorted({c.queue for c in claims})]
    queues, workers = sorted({c.queue for c in claims}), sorted({c.worker for c in claims})
    holders = p.probe.look(store.claim_holders(p.limits.stuck, queues, workers))
    limit = min(p.limits.stuck, p.limits.horizon)
    fix = [p.fixing(f"horizon:{pid}", horizon=limit) for pid in holders]
    return fix or [advise("check", name="horizon")]


def _long(h: LongHeld) -> str:
    asked = f", asked to stop {span(h.asked)} ago" if h.asked is not None else ""
    return f"{h.id} ({cut(h.task)}, queue {h.queue}), running for {span(h.seconds)} on {h.worker}{asked}"


def check_forgotten(p: Patient) -> Iterator[Finding]:
    """A worker that sent a heartbeat within dead_after has reported since the job was this old."""
    found = p.probe.look(store.forgotten_jobs(p.limits.usual, p.limits.stuck + p.dead_after, p.dead_after))
    if found:
        what = (
            f"{_count(len(found))} processing for {p.limits.usual:g} times the usual time, "
            f"on a live worker that does not run {them(found)}"
        )
        fix = [advise("drain_workers", workers=sorted({f.worker for f in found}))]
        details = [
            f"{f.id} ({cut(f.task)}, queue {f.queue}), claimed {span(f.seconds)} ago by {f.worker}, usually {span(f.usual)}"
            for f in found
        ]
        yield Finding("forgotten", "error", what, fix, listed(details))


# Deadly -------------------------------------------------------------------------------------------------------------


def check_deadly(p: Patient) -> Iterator[Finding]:
    found = p.probe.look(store.suspect_jobs())
    if found:
        what = f"{_count(len(found))} in two processes that died: {_they(found)} may be what kills workers"
        details = [
            f"{s.id} ({cut(s.task)}, queue {s.queue}), in {s.deaths} processes that died" for s in found
        ]
        named = found[:_NAMED]
        fix = [advise("cancel_jobs", ids=[s.id for s in named])]
        looks = [advise("show_job", id=found[0].id)]
        yield Finding("deadly_jobs", "warning", what, fix, listed(details), looks, len(found))


# Set aside ----------------------------------------------------------------------------------------------------------


def check_quarantine(p: Patient) -> Iterator[Finding]:
    found = p.probe.look(store.quarantined_jobs())
    if found:
        what = f"{_count(len(found))} in quarantine, because {_they(found)} made a claim or a sweep fail"
        which = {"ids": [q.id for q in found]} if len(found) <= _NAMED else {"state": QUARANTINED}
        details = [f"{q.id} ({cut(q.task)}, queue {q.queue}): {cut(q.reason)}" for q in found]
        fix, drop = advise("retry_jobs", **which), advise("discard_jobs", **which)
        yield Finding("quarantined", "error", what, [fix], listed(details), [drop])


def check_tasks(p: Patient) -> Iterator[Finding]:
    found = p.probe.look(store.unknown_tasks(p.dead_after))
    if found:
        jobs = sum(u.jobs for u in found)
        whose = "its" if jobs == 1 else "their"
        what = f"{several(jobs, 'job')}{'+' if jobs >= CAP else ''} set aside: no worker knew {whose} task or version"
        details = [
            f"queue {u.queue}: {several(u.jobs, 'job')} of {cut(u.task)} version {u.version}; "
            "live workers that know the task: " + (some(u.workers) or "none")
            for u in found
        ]
        able = {
            q: all(p.knows(u.task, u.version) for u in found if u.queue == q)
            for q in {u.queue for u in found}
        }
        fix = [start_worker(queue, able[queue]) for queue in sorted(able)]
        drops = [advise("discard_jobs", state=HELD, task=task) for task in sorted({u.task for u in found})]
        yield Finding("unknown_tasks", "warning", what, fix, listed(details), drops, jobs)


def check_misfits(p: Patient) -> Iterator[Finding]:
    found = p.probe.look(store.misfit_tasks())
    if found:
        jobs = sum(m.jobs for m in found)
        whose = "its payload does" if jobs == 1 else "their payloads do"
        what = f"{several(jobs, 'job')}{'+' if jobs >= CAP else ''} set aside: {whose} not fit the workers that tried"
        details = [
            f"queue {m.queue}: {several(m.jobs, 'job')} of {cut(m.task)} version {m.version}, refused by "
            f"{several(m.signatures, 'signature')}: {cut(m.reason)}"
            for m in found
        ]
        fix = [start_worker(queue) for queue in sorted({m.queue for m in found})]
        drops = [advise("discard_jobs", state=HELD, task=task) for task in sorted({m.task for m in found})]
        yield Finding("misfits", "warning", what, fix, listed(details), drops, jobs)


# Finished -----------------------------------------------------------------------------------------------------------


def check_dead(p: Patient) -> Iterator[Finding]:
    found = p.probe.look(store.recent_dead())
    total = sum(d.count for d in found)
    if found and total >= p.limits.dead:
        what = f"{several(total, 'dead letter')} in the last hour"
        fix = [advise("redrive_dead", task=d.task) for d in found]
        details = [f"{cut(d.task)}: {d.count:,}, the last with {cut(d.error)}" for d in found]
        yield Finding("dead_letters", "warning", what, fix, listed(details), [advise("list_dead")], total)


def check_archive(p: Patient) -> Iterator[Finding]:
    found = p.probe.look(store.overdue_slots())
    if found:
        what = f"{several(len(found), 'day')} of finished jobs kept past the {found[0].retention} days of retention"
        details = [f"slot {s.slot}: {s.day}" for s in found]
        details.append(f"nobody has tidied up for {span(found[0].untidied)}; a worker does it every minute")
        yield Finding("archive_overdue", "warning", what, [p.fixing("archive")], listed(details))


def fix_archive(p: Patient) -> Iterator[str]:
    for slot in p.probe.look(store.overdue_slots()):
        empty = p.database.run(functools.partial(housekeeping.empty_slot, slot.slot, slot.retention))
        named = f"slot {slot.slot}, {slot.day}"
        yield f"emptied: {named}" if empty else Left(f"left: {named}")


def _they(found: Sequence[object]) -> str:
    return "it" if len(found) == 1 else "they"


def _count(number: int) -> str:
    return f"{several(number, 'job')}{' or more' if number >= LISTED else ''}"


CHECKS = (
    Check("workers", "every queue with due jobs has a live worker", ("unserved_queue",), check_workers),
    Check("stranded", "every running job has a claim", ("stranded",), check_stranded),
    Check(
        "stuck",
        "sweeps take back what is over, and jobs obey",
        ("unswept_claims", "cancel_ignored", "long_running"),
        check_stuck,
    ),
    Check("forgotten", "workers run what they have claimed", ("forgotten",), check_forgotten),
    Check("deadly", "no job has been in two processes that died", ("deadly_jobs",), check_deadly),
    Check("quarantine", "no job is in quarantine", ("quarantined",), check_quarantine),
    Check("tasks", "no job is set aside because no worker knew its task", ("unknown_tasks",), check_tasks),
    Check("payloads", "no job is set aside because its payload does not fit", ("misfits",), check_misfits),
    Check("dead", "few dead letters in the last hour", ("dead_letters",), check_dead),
    Check("archive", "finished jobs are removed after their time", ("archive_overdue",), check_archive),
)
