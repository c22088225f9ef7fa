"""Schedules by hand, behind `app.schedules` and the command line: add, remove, pause, resume, run, look ahead, backfill."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ...db.database import Database
from ...errors import ConfigurationError
from ...model.actor import Actor
from ...operate.procedure import Method, Procedure, Runner, actor, run
from ...operate.refusal import Refused
from ...operate.wording import span
from ...settings import default_actor
from ...store import jobs
from ...store.audit import audit, audit_begin
from ...store.queues import queue_rules
from ...store.statement import Flow
from ...tasks.handle import JobHandle, raw_result
from ...tasks.newjob import NewJob
from ...tasks.producer import Producer
from ...tasks.writer import Writer, keyless, unknown_queue
from . import store
from .backfill import Backfill, backfill, find, find_schedule
from .declare import make_spec
from .spec import Kind, Missed, Overlap, Spec
from .store import Decided, Stored
from .timing import Timing

ALIVE = 120.0  # seconds since a worker last declared it: more, and no live worker has it


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as stored, as `app.schedules.list()` returns it."""

    name: str
    when: str  # in English
    cron: str | None
    every: int | None  # seconds
    tz: str
    missed: Missed
    overlap: Overlap
    task: str
    queue: str
    payload: dict[str, Any]
    origin: str  # 'code' or 'operator'
    declared_seconds: float | None  # since a worker last reported that its code has it
    is_declared: bool  # False: it belongs to code that no live worker has, so nothing fires it
    paused_seconds: float | None  # None: it is not paused
    paused_by: str | None
    next_at: datetime | None
    waiting_slot: datetime | None  # overlap="queue": fires when the job before it has ended
    last_slot: datetime | None
    last_kind: Kind | None
    last_job: UUID | None
    problem: str | None  # why it could not fire


@dataclass(frozen=True, slots=True)
class Slot:
    """A future slot: the moment, the local time, and the effect of daylight saving."""

    at: datetime  # UTC
    local: datetime
    note: str | None


_Listed = list[Schedule]
_Ahead = list[Slot]


# Each verb once -----------------------------------------------------------------------------------------------------


def list_schedules() -> Procedure[_Listed]:
    return [describe(s) for s in (yield from run(store.read_schedules))]


def get(name: str) -> Procedure[Schedule]:
    return describe((yield from run(lambda: find_schedule(name, held=False))))


def add(
    name: str,
    cron: str | timedelta,
    job: NewJob[Any],
    *,
    tz: str = "UTC",
    missed: Missed = "skip",
    overlap: Overlap = "allow",
) -> Procedure[bool]:
    return (yield from add_spec(make_spec(name, cron, job, tz, missed, overlap, ConfigurationError)))


def add_spec(spec: Spec) -> Procedure[bool]:
    who = yield from actor()
    return (yield from run(lambda: _add(spec, who)))


def remove(name: str) -> Procedure[None]:
    who = yield from actor()
    yield from run(lambda: _remove(name, who))


def pause(name: str) -> Procedure[bool]:
    who = yield from actor()
    return (yield from run(lambda: _pause(name, who)))


def resume(name: str) -> Procedure[bool]:
    who = yield from actor()
    return (yield from run(lambda: _resume(name, who)))


def run_now(name: str) -> Procedure[tuple[Stored, UUID]]:
    who = yield from actor()
    return (yield from run(lambda: _run(name, who)))


def next_slots(name: str, count: int = 5) -> Procedure[_Ahead]:
    return (yield from run(lambda: _next(name, count)))


def last_slots(name: str, count: int = 30) -> Procedure[list[Decided]]:
    yield from run(lambda: _found(name, count))
    return (yield from run(lambda: store.last_slots(name, count)))


def fill(
    name: str, start: datetime, end: datetime | None = None, *, dry_run: bool = False
) -> Procedure[Backfill]:
    who = yield from actor()
    found = yield from run(lambda: find(name, start, end))
    if dry_run or not found.slots:
        return found.answer()
    entry = yield from run(lambda: audit_begin(who, "schedule backfill", found.selection()))
    for batch in found.batches():
        found.jobs += yield from run(functools.partial(backfill, name, batch, entry))
    return found.answer()


class ScheduleVerbs(Runner):
    """For surfaces: `ScheduleVerbs(database, actor).pause(name)`; on an event loop `await ....pause.arun(name)`."""

    list_schedules = Method(list_schedules)
    get = Method(get)
    add = Method(add)
    remove = Method(remove)
    pause = Method(pause)
    resume = Method(resume)
    run_now = Method(run_now)
    next_slots = Method(next_slots)
    last_slots = Method(last_slots)
    backfill = Method(fill)


class Schedules:
    """Schedules in the database: `app.schedules.add("nightly", "0 3 * * *", nightly.job(), tz="Europe/Berlin")`.

    Each method has an async form with the prefix `a`. Every change is in the audit.
    """

    def __init__(
        self, database: Callable[[], Database], producer: Producer | None = None, actor: str | None = None
    ) -> None:
        """`actor` is the name for the audit; default: HOLDFAST_ACTOR, or the system's user and host."""
        self._database = database
        self._named = actor
        self._producer = producer or Writer(database, dict)

    @property
    def _verbs(self) -> ScheduleVerbs:
        return ScheduleVerbs(self._database, self._named or default_actor())

    def list(self) -> _Listed:
        """All of them, by name."""
        return self._verbs.list_schedules()

    async def alist(self) -> _Listed:
        return await self._verbs.list_schedules.arun()

    def get(self, name: str) -> Schedule:
        """One of them; UnknownSchedule if there is none."""
        return self._verbs.get(name)

    async def aget(self, name: str) -> Schedule:
        return await self._verbs.get.arun(name)

    def add(
        self,
        name: str,
        cron: str | timedelta,
        job: NewJob[Any],
        *,
        tz: str = "UTC",
        missed: Missed = "skip",
        overlap: Overlap = "allow",
    ) -> bool:
        """Add one that is not in the code; any worker fires it. False: exactly this one was there."""
        return self._verbs.add(name, cron, job, tz=tz, missed=missed, overlap=overlap)

    async def aadd(
        self,
        name: str,
        cron: str | timedelta,
        job: NewJob[Any],
        *,
        tz: str = "UTC",
        missed: Missed = "skip",
        overlap: Overlap = "allow",
    ) -> bool:
        return await self._verbs.add.arun(name, cron, job, tz=tz, missed=missed, overlap=overlap)

    def remove(self, name: str) -> None:
        """Remove one, and the record of its firings. A schedule in a live worker's code can only be paused."""
        self._verbs.remove(name)

    async def aremove(self, name: str) -> None:
        await self._verbs.remove.arun(name)

    def pause(self, name: str) -> bool:
        """Stop firing it until it is resumed. False: it was paused already."""
        return self._verbs.pause(name)

    async def apause(self, name: str) -> bool:
        return await self._verbs.pause.arun(name)

    def resume(self, name: str) -> bool:
        """Fire again, from the next slot on; slots during the pause are not fired. False: it was not paused."""
        return self._verbs.resume(name)

    async def aresume(self, name: str) -> bool:
        return await self._verbs.resume.arun(name)

    def run(self, name: str) -> JobHandle[Any]:
        """Enqueue its job now, beside its slots, also when it is paused."""
        return self._handle(*self._verbs.run_now(name))

    async def arun(self, name: str) -> JobHandle[Any]:
        return self._handle(*await self._verbs.run_now.arun(name))

    def next(self, name: str, count: int = 5) -> _Ahead:
        """The next slots."""
        return self._verbs.next_slots(name, count)

    async def anext(self, name: str, count: int = 5) -> _Ahead:
        return await self._verbs.next_slots.arun(name, count)

    def backfill(
        self, name: str, start: datetime, end: datetime | None = None, *, dry_run: bool = False
    ) -> Backfill:
        """Fire the slots from `start` on and before `end`, or until now, that have not fired. None fires twice."""
        return self._verbs.backfill(name, start, end, dry_run=dry_run)

    async def abackfill(
        self, name: str, start: datetime, end: datetime | None = None, *, dry_run: bool = False
    ) -> Backfill:
        return await self._verbs.backfill.arun(name, start, end, dry_run=dry_run)

    def _handle(self, stored: Stored, job: UUID) -> JobHandle[Any]:
        return JobHandle(
            job,
            created=True,
            task=stored.task,
            queue=stored.queue,
            producer=self._producer,
            decode=raw_result,
        )


class HasSchedules:
    """The part of an app that reaches its schedules."""

    if TYPE_CHECKING:
        _writer: Writer

        @property
        def database(self) -> Database: ...

    @property
    def schedules(self) -> Schedules:
        """Schedules in the database: `app.schedules.add("nightly", "0 3 * * *", nightly.job())`; those of the code too."""
        return Schedules(lambda: self.database, self._writer)


def describe(s: Stored) -> Schedule:
    try:
        when, problem = s.timing.describe(), s.problem
    except ConfigurationError as error:
        when, problem = s.cron or f"every {s.every} s", str(error)
    declared = None if s.declared_at is None else max(0.0, (s.now - s.declared_at).total_seconds())
    return Schedule(
        name=s.name,
        when=when,
        cron=s.cron,
        every=s.every,
        tz=s.tz,
        missed=s.missed,
        overlap=s.overlap,
        task=s.task,
        queue=s.queue,
        payload=json.loads(s.payload),
        origin=s.origin,
        declared_seconds=declared,
        is_declared=s.origin != "code" or (declared is not None and declared < ALIVE),
        paused_seconds=None if s.paused_at is None else (s.now - s.paused_at).total_seconds(),
        paused_by=s.paused_by,
        next_at=None if s.paused_at else s.next_at,
        waiting_slot=s.kept_slot,
        last_slot=s.last_slot,
        last_kind=s.last_kind,
        last_job=s.last_job,
        problem=problem,
    )


def _add(spec: Spec, who: Actor) -> Flow[bool]:
    queues = yield from jobs.queue_names()
    if spec.row.queue not in queues:
        raise unknown_queue(spec.row.queue, queues)
    rules = (yield from queue_rules([spec.row.queue]))[spec.row.queue]
    if rules.keyed and spec.row.partition_key is None:
        raise keyless(spec.row)
    there = yield from store.read_locked(spec.name)
    if there is not None and there.origin == "operator" and there.fingerprint == spec.fingerprint:
        return False
    now = yield from store.clock()
    if there is not None or not (yield from store.put(spec, "operator", [], now, spec.timing.after(now))):
        said = f": {describe(there).when}, {there.task}, from {there.origin}" if there else ""
        raise Refused(
            "schedule_exists",
            f"schedule {spec.name!r} exists already{said}. Choose another name, or first remove it",
            name=spec.name,
        )
    t = spec.timing
    timing = {"cron": t.cron, "every": t.every, "tz": t.tz, "task": spec.row.task}
    yield from audit(who, "schedule add", {"schedule": spec.name, **timing}, 1)
    return True


def _remove(name: str, who: Actor) -> Flow[None]:
    found = yield from find_schedule(name)
    if found.origin == "code" and describe(found).is_declared:
        ago = span((found.now - (found.declared_at or found.now)).total_seconds())
        raise Refused(
            "schedule_in_code",
            f"schedule {name!r} is in the code of a live worker (last heard of {ago} ago), which would bring it back. "
            "Take it out of the code, or pause it",
            name=name,
        )
    yield from store.remove(name)
    yield from audit(who, "schedule remove", {"schedule": name, "task": found.task}, 1)


def _pause(name: str, who: Actor) -> Flow[bool]:
    yield from find_schedule(name)
    changed = yield from store.pause(name, who.name)
    if changed:
        yield from audit(who, "schedule pause", {"schedule": name}, 1, {"paused": False}, {"paused": True})
    return changed


def _resume(name: str, who: Actor) -> Flow[bool]:
    found = yield from find_schedule(name)
    to = max(found.now, found.decided_to)
    changed = yield from store.resume(name, to, found.timing.after(to))
    if changed:
        yield from audit(who, "schedule resume", {"schedule": name}, 1, {"paused": True}, {"paused": False})
    return changed


def _run(name: str, who: Actor) -> Flow[tuple[Stored, UUID]]:
    found = yield from find_schedule(name)
    at = found.now.replace(
        microsecond=found.now.microsecond or 1
    )  # slots are whole seconds: never one of them
    ((_, job),) = yield from store.fire_slots(found, [at], "run")
    yield from audit(who, "schedule run", {"schedule": name, "task": found.task, "id": job}, 1)
    return found, job


def _found(name: str, count: int) -> Flow[Stored]:
    if not 1 <= count <= 1000:
        raise ConfigurationError(f"the number of slots must be from 1 to 1000, not {count}")
    return (yield from find_schedule(name, held=False))


def _next(name: str, count: int) -> Flow[list[Slot]]:
    found = yield from _found(name, count)
    return slots_ahead(found.timing, max(found.now, found.decided_to), count)


def slots_ahead(timing: Timing, now: datetime, count: int) -> list[Slot]:
    """The next slots of a timing, stored or not."""
    return [Slot(s, s.astimezone(timing.zone), timing.oddity(s)) for s in timing.first(now, count)]
