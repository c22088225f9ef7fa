"""Why a job is not running: every reason that applies, the decisive one first, each with the next step."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ..db import migrate
from ..model import state
from ..settings import Settings
from ..store import explain as store
from ..store.explain import AHEAD, Seen, StreamSeen, WorkerSeen
from .advice import Advice, Knows, advise, start_worker
from .affinity_reason import with_owner
from .limit_reasons import backs_off, hold_reason, limit_reasons, misfit_reason, past_deadline
from .procedure import Procedure, block, run, settings
from .reason import Means, Reason, meant, with_meanings
from .wording import SUSPENDED, cut, moment, several, some, span

NO_SUCH_JOB = "no_such_job"
SCHEMA = ("migrations_missing", "schema_newer")


@dataclass(frozen=True, slots=True)
class Explanation:
    job_id: UUID
    state: str | None  # None: it cannot be read, or there is no such job
    reasons: list[Reason]  # the decisive one first
    facts: dict[str, Any]

    @property
    def code(self) -> str:
        return self.reasons[0].code

    @property
    def sentence(self) -> str:
        return self.reasons[0].sentence

    @property
    def advice(self) -> list[Advice]:
        return self.reasons[0].advice


def explain(
    job_id: UUID, knows: Knows = lambda task, version: True, means: Sequence[Means] = ()
) -> Procedure[Explanation]:
    """`knows` says what the app can run, `means` what shapes know about their own jobs."""
    found = yield from block(lambda database: migrate.status(database.dsn))
    if problem := schema_problem(found):
        facts = {"schema_version": found.current, "needed_version": found.known}
        return Explanation(job_id, None, [problem], facts)
    seen, meanings = yield from run(lambda: with_meanings(store.explain(job_id), job_id, means))
    if seen is None:
        said = f"There is no job {job_id}, or it is finished and no longer kept."
        return Explanation(job_id, None, [Reason(NO_SUCH_JOB, said, [advise("list_jobs")])], {})
    view = View(job_id, seen, (yield from settings()), knows)
    return Explanation(job_id, seen.job.state, meant(view.reasons(), meanings), view.facts())


def schema_problem(found: migrate.MigrationStatus) -> Reason | None:
    if found.needs_code is not None and found.needs_code > found.known:
        said = (
            f"The database is at {found.current} and needs code that knows migration {found.needs_code}, "
            f"this release knows up to {found.known}: no worker of this release starts."
        )
        return Reason("schema_newer", said, [advise("upgrade")])
    if found.pending:
        has = "no schema of Holdfast" if found.current is None else f"the schema {found.current}"
        said = f"The database has {has}, this release needs {found.known}: no worker of this release starts."
        return Reason("migrations_missing", said, [advise("migrate")])
    return None


class View:
    """One job and everything around it, read in one snapshot."""

    def __init__(self, job_id: UUID, seen: Seen, settings: Settings, knows: Knows) -> None:
        self.id = job_id
        self.seen = seen
        self.job = seen.job
        self.settings = settings
        serving = [w for w in seen.workers if seen.job.queue in w.queues]
        self.live = [w for w in serving if self.is_live(w)]
        self.late = [w for w in serving if w.silent > settings.dead_after]
        self.able = [w for w in self.live if w.knows]
        self.slots = sum(w.concurrency for w in self.able)
        self.free = sum(max(w.concurrency - w.running, 0) for w in self.able)
        self.retry, self.show = advise("retry_jobs", ids=[job_id]), advise("show_job", id=job_id)
        self.start = start_worker(seen.job.queue, knows(seen.job.task, seen.job.version))

    def is_live(self, worker: WorkerSeen) -> bool:
        return worker.status == "alive" and worker.silent <= self.settings.dead_after

    @property
    def is_held(self) -> bool:
        rules = self.seen.rules
        return self.job.status == state.HELD and rules.task_paused_at is None and rules.breaker is None

    def facts(self) -> dict[str, Any]:
        job = {name: value for name, value in asdict(self.job).items() if name != "now"}
        return {
            **job,
            "at": self.job.now,
            "jobs_ahead": self.seen.ahead,
            "jobs_ahead_capped": self.seen.ahead >= AHEAD,
            "slots": self.slots,
            "free_slots": self.free,
            "limits": None if self.seen.limits is None else asdict(self.seen.limits),
            "stream": None if self.seen.stream is None else asdict(self.seen.stream),
            "affinity": None if self.seen.affinity is None else asdict(self.seen.affinity),
            "hold": None if self.seen.hold is None else asdict(self.seen.hold),
            "workers": [{**asdict(w), "live": self.is_live(w)} for w in self.seen.workers],
        }

    def reasons(self) -> Iterator[Reason]:
        if self.job.status is None:
            yield self._finished()
            return
        if self.job.state == state.QUARANTINED:
            yield self._quarantined()
        if self.job.status == state.PROCESSING:
            yield from self._processing()
            return
        aside = [*self._paused(), *self._set_aside()]
        if self.job.status == state.BLOCKED:
            own = [self._blocked(), *aside]
        else:
            later = list(self._not_yet())
            own = aside + later if self.job.state == state.HELD else later + aside
        found = [*self._key(), *own, *self._nobody(), *self._suspect(), *self._limits()]
        yield from found
        if not found and self.job.state == state.PENDING:
            yield with_owner(self._turn(), self.seen, self.live, self.settings.takeover)

    # Its key --------------------------------------------------------------------------------------------------------

    def _key(self) -> Iterator[Reason]:
        """What blocks the whole key, or its first job, and so this one."""
        if self.seen.hold is not None:
            yield Reason(*hold_reason(self.job.queue, self.seen.hold))
        seen = self.seen.stream
        if seen is None:
            return
        if seen.parked_at is not None:
            said = f"Its key {cut(seen.key)} is parked since {moment(seen.parked_at)}, for dead letter {seen.parked_for}."
            yield Reason("key_parked", said, [self._release("retry"), self._release()])
        if seen.before:
            yield from self._behind(seen)

    def _behind(self, seen: StreamSeen) -> Iterator[Reason]:
        """By the state of the key's first job. One that only waits its turn is no reason yet: see _turn()."""
        what, show = self._first(seen), advise("show_key", queue=self.job.queue, key=seen.key)
        retry, why = advise("retry_jobs", ids=[seen.first]), advise("explain_job", id=seen.first)
        match seen.state:
            case state.BLOCKED:
                said = f"{what} is blocked since {moment(seen.since)}: {cut(seen.last_error)}"
                yield Reason("behind_blocked", said, [retry, self._release("skip")])
            case state.HELD | state.QUARANTINED:
                aside = "set aside" if seen.state == state.HELD else "quarantined"
                yield Reason("behind_held", f"{what} is {aside}: {cut(seen.hold_reason)}", [why, show])
            case state.SCHEDULED:
                ahead = (seen.due_at - self.job.now).total_seconds()
                said = f"{what} waits until {moment(seen.due_at)} (in {span(ahead)})."
                yield Reason("behind_scheduled", said, [retry, why])
            case state.PROCESSING:
                said = f"{what} runs since {moment(seen.since)} on worker {seen.worker}."
                yield Reason("behind_running", said, [why, show])

    def _first(self, seen: StreamSeen) -> str:
        others = seen.before - 1
        more = f" and {others:,}{'+' if seen.before >= AHEAD else ''} more of it" if others else ""
        return f"It waits behind job {seen.first} of its key {cut(seen.key)}{more}, which"

    def _release(self, how: str | None = None) -> Advice:
        assert self.seen.stream is not None
        return advise("release_keys", queue=self.job.queue, keys=[self.seen.stream.key], how=how)

    def _blocked(self) -> Reason:
        job = self.job
        said = (
            f"It failed for good in attempt {job.attempts} of {job.max_attempts}{past_deadline(job)}, "
            f"and its key waits for it: {cut(job.last_error)}"
        )
        advice = [self.retry]
        if self.seen.stream:
            advice.append(self._release("skip"))
        return Reason("blocked", said, advice)

    # Finished -------------------------------------------------------------------------------------------------------

    def _finished(self) -> Reason:
        job = self.job
        at = moment(job.finished_at) if job.finished_at else "a time not known"
        by = f" by worker {job.worker}" if job.worker else ""
        if job.state == state.COMPLETED:
            return Reason("completed", f"It was completed at {at}{by}.", [self.show])
        why = f": {cut(job.last_error)}" if job.last_error else "."
        if job.state == state.CANCELLED:
            return Reason("cancelled", f"It was cancelled at {at}{by}{why}", [self.show])
        said = f"It is a dead letter since {at}, after attempt {job.attempts} of {job.max_attempts}{past_deadline(job)}{why}"
        return Reason("dead", said, [advise("redrive_dead", id=self.id), self.show])

    # Running --------------------------------------------------------------------------------------------------------

    def _processing(self) -> Iterator[Reason]:
        job = self.job
        if not job.claimed:
            if job.state != state.QUARANTINED:
                said = "It says that it runs, but no claim holds it, so nobody would take it back."
                yield Reason("stranded", said, [advise("fix", name="stranded", limits={})])
            return
        if job.cancel_requested_at:
            yield self._cancel_requested()
        owner = next((w for w in self.seen.workers if w.id == job.worker), None)
        gone = owner is None or owner.silent > self.settings.dead_after
        left = (job.lease_expires_at - job.now).total_seconds() if job.lease_expires_at else 0.0
        heard = "is gone" if owner is None else f"was last heard of {span(owner.silent)} ago"
        if not (gone or job.revoked or left < 0):
            until = moment(job.now + timedelta(seconds=left))
            said = (
                f"It is running: worker {job.worker} holds it until {until} ({span(left)} left) and {heard}."
            )
            yield Reason("claimed", said, [self.show])
            return
        overdue = max(-left, owner.silent - self.settings.dead_after if owner else 0.0)
        yield self._lost(heard, left, overdue)
        if not any(self.is_live(w) for w in self.seen.workers):
            yield self._no_worker()

    def _cancel_requested(self) -> Reason:
        at = self.job.cancel_requested_at
        assert at is not None
        said = (
            f"It was asked to stop at {moment(at)} and has not yet: an async handler is cancelled at the next heartbeat, "
            "a plain one must call job.check()."
        )
        return Reason("cancel_requested", said, [advise("drain_workers", workers=[self.job.worker or ""])])

    def _lost(self, heard: str, left: float, overdue: float) -> Reason:
        """`overdue`: for how long a sweep could have taken it, were there no grace after an outage."""
        job, wait = self.job, self.settings.sweep
        lease = f"its lease ran out {span(-left)} ago" if left < 0 else f"its lease has {span(left)} left"
        said = f"Worker {job.worker} holds it and {heard}; {lease}."
        grace_until = self.seen.rules.grace_until
        grace = (grace_until - job.now).total_seconds() if grace_until else -overdue
        if min(overdue, -grace) > wait:
            said += f" No sweep has taken it back, for {span(min(overdue, -grace))} now."
            return Reason("taken_back", said, [advise("check", name="stuck"), advise("list_workers")])
        said += f" A sweep of any live worker takes it back within {span(wait + max(grace, 0.0))}."
        return Reason("taken_back", said, [advise("list_workers")])

    # Waiting --------------------------------------------------------------------------------------------------------

    def _quarantined(self) -> Reason:
        said = f"It is quarantined, because it made a claim or a sweep fail: {cut(self.job.hold_reason)}"
        return Reason("quarantined", said, [self.retry, advise("discard_jobs", ids=[self.id])])

    def _not_yet(self) -> Iterator[Reason]:
        job, error = self.job, self.seen.error
        ahead = (job.available_at - job.now).total_seconds()
        if ahead <= 0:
            return
        if job.available_at.year == state.NEVER:
            return (yield Reason("suspended", SUSPENDED, [self.show]))
        until = f"until {moment(job.available_at)} (in {span(ahead)})"
        advice = [self.show] if job.state == state.HELD else [self.retry, self.show]
        failed = error is not None and error.generation == job.generation
        fresh = error is not None and error.attempt != job.attempts
        if self.seen.moved or (failed and fresh):  # an operator set the time: an edit, or a redrive at a rate
            yield Reason("waits", f"It waits {until}.", advice)
        elif job.generation == 0:
            yield Reason("scheduled", f"It was enqueued to run later: it waits {until}.", advice)
        elif failed:
            yield Reason("backing_off", backs_off(job, until), advice)
        else:
            yield Reason("snoozed", f"Its handler asked for a pause: it waits {until}.", advice)

    def _paused(self) -> Iterator[Reason]:
        rules, job = self.seen.rules, self.job
        if rules.queue_paused_at:
            since = _since(rules.queue_paused_at, rules.queue_paused_by)
            advice = advise("resume_queue", name=job.queue)
            yield Reason("queue_paused", f"Queue {job.queue} is paused {since}.", [advice])
        if rules.task_paused_at:
            since = _since(rules.task_paused_at, rules.task_paused_by)
            advice = advise("resume_task", name=job.task)
            yield Reason("task_paused", f"Task {job.task} is paused {since}.", [advice])
        if rules.breaker:
            yield self._breaker()

    def _breaker(self) -> Reason:
        rules, job = self.seen.rules, self.job
        since = moment(rules.breaker_opened_at) if rules.breaker_opened_at else "a time not known"
        said = f"Its task's breaker is open since {since}"
        left = (rules.breaker_retry_at - job.now).total_seconds() if rules.breaker_retry_at else 0.0
        if rules.breaker == "half_open":
            said += "; one job of the task is tried right now"
        elif rules.breaker_retry_at and left > 0:
            said += f"; next trial at {moment(rules.breaker_retry_at)} (in {span(left)})"
        else:
            said += "; the next trial is due, by the first worker that has a free slot"
        said += f": {cut(rules.breaker_error)}" if rules.breaker_error else "."
        advice = [advise("resume_task", name=job.task), advise("list_tasks")]
        return Reason("breaker_open", said, advice)

    def _set_aside(self) -> Iterator[Reason]:
        if self.is_held:
            said = misfit_reason(self.seen, self.able, self.settings.misfit_wait, self.start)
            yield Reason(*said) if said else self._held()

    def _nobody(self) -> Iterator[Reason]:
        """No worker can run it: there is none at all, or none that knows the task."""
        if not self.live:
            yield self._no_worker()
        elif not self.able and not self.is_held:
            said = (
                f"No live worker of queue {self.job.queue} knows the task {self.job.task}: {self._known()}."
            )
            yield Reason("unknown_task", said, [self.start])

    def _held(self) -> Reason:
        job = self.job
        said = f"It is set aside: {cut(job.hold_reason)}."
        if self.able:
            names = some(f"{w.id} (release {w.release})" for w in self.able)
            said += (
                f" These live workers know the task: {names}. It stays so unless one of them knows version "
                f"{job.version} of it; then it is taken within a second or two."
            )
        elif self.live:
            said += f" The live workers of queue {job.queue}: {self._known()}."
        said += f" Start a worker that knows {job.task} version {job.version}."
        return Reason("held", said, [self.start])

    def _known(self) -> str:
        return some((f"{w.id} (release {w.release}) knows {_tasks(w)}" for w in self.live), 3)

    def _no_worker(self) -> Reason:
        queue = self.job.queue
        said = f"No live worker serves queue {queue}."
        if self.late:
            said += f" Not heard of: {some(f'{w.id} for {span(w.silent)}' for w in self.late)}."
        draining = [w.id for w in self.seen.workers if queue in w.queues and w.status == "draining"]
        if draining:
            said += f" Draining: {some(draining)}."
        others = [w for w in self.seen.workers if queue not in w.queues and self.is_live(w)]
        if others:
            said += f" Live workers of other queues: {some(f'{w.id} ({some(w.queues)})' for w in others)}."
        return Reason("no_worker", said, [self.start])

    def _suspect(self) -> Iterator[Reason]:
        if self.job.suspect and self.job.status == state.PENDING:
            said = (
                "It was in two processes that died or fell silent, so it runs apart from other jobs: in a process of its "
                "own, or where that cannot import the app, when no other such job runs in the worker."
            )
            yield Reason("suspect", said, [self.show])

    def _limits(self) -> Iterator[Reason]:
        if self.seen.limits is not None:
            yield from (Reason(*said) for said in limit_reasons(self.job.queue, self.seen.limits))

    def _slots(self) -> str:
        return "The only slot" if self.slots == 1 else f"All {self.slots:,} slots"

    def _turn(self) -> Reason:
        """It is due, and a worker can run it: it waits its turn."""
        if self.seen.stream and self.seen.stream.before:
            said = f"{self._first(self.seen.stream)} waits its turn too: a key runs one job at a time."
            show = advise("show_key", queue=self.job.queue, key=self.seen.stream.key)
            return Reason("behind_key", said, [advise("explain_job", id=self.seen.stream.first), show])
        ahead = f"{self.seen.ahead:,}{'+' if self.seen.ahead >= AHEAD else ''}"
        before = f"{ahead} due job{'' if self.seen.ahead == 1 else 's'} of the queue before it"
        workers = several(len(self.able), "live worker")
        if self.free == 0:
            said = (
                f"{self._slots()} of the {workers} that {'knows' if len(self.able) == 1 else 'know'} the task"
            )
            said += f" {'is' if self.slots == 1 else 'are'} busy, with {before}."
            return Reason("slots_busy", said, [self.start, advise("list_workers")])
        if self.seen.ahead >= self.free:
            said = f"It waits its turn: {before}, {self.free} of {self.slots} slots free."
            return Reason("jobs_ahead", said, [self.start, advise("overview")])
        poll = span(self.settings.poll)
        said = f"Nothing is wrong: it is due, and a free slot of {self.slots} takes it within the poll interval of {poll}."
        return Reason("nothing_wrong", said, [advise("explain_job", id=self.id)])


def _since(at: datetime, by: str | None) -> str:
    return f"since {moment(at)} by {cut(by) or 'somebody'}"


def _tasks(worker: WorkerSeen) -> str:
    rest = worker.task_count - len(worker.tasks)
    return (some(worker.tasks, 20) or "no task") + (f" and {rest} more" if rest > 0 else "")
