"""Schedules: due ones, firing them, and the changes that code and operators make.

Firing is one flow: the schedule is locked, its slots become rows of `firings`, those that are new become jobs, and the
schedule moves on. Either all of that commits, or nothing.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from ... import failpoints
from ...errors import ConfigurationError, UnknownQueue
from ...model.job import NewRow
from ...model.text import command
from ...store.jobs import enqueue
from ...store.statement import Flow, Statement, count, ids, named, nothing
from .spec import Fired, Kind, Missed, Overlap, Spec, State, plan
from .timing import Timing

DUE_IN = "schedule_due_in"  # the question of the pulse
_RETIRED = 20  # fingerprints that are remembered


@dataclass(frozen=True, slots=True)
class Stored:
    """A schedule as stored."""

    name: str
    origin: Literal["code", "operator"]
    cron: str | None
    every: int | None
    tz: str
    missed: Missed
    overlap: Overlap
    task: str
    version: int
    queue: str
    payload: str  # JSON text
    partition_key: str | None
    priority: int
    max_attempts: int
    tags: list[str] | None
    metadata: str | None
    fingerprint: str
    retired: list[str]
    declared_at: datetime | None
    created_at: datetime
    paused_at: datetime | None
    paused_by: str | None
    decided_to: datetime
    next_at: datetime | None
    kept_slot: datetime | None
    problem: str | None
    forgotten_from: datetime | None
    forgotten_to: datetime | None
    last_slot: datetime | None  # of the newest firing
    last_kind: Kind | None
    last_job: UUID | None
    now: datetime

    @property
    def timing(self) -> Timing:
        try:
            return Timing(self.cron, self.every, self.tz)
        except ValueError as error:  # zones differ from machine to machine, and people edit tables
            raise ConfigurationError(f"schedule {self.name!r} cannot be used here: {error}") from None

    @property
    def row(self) -> NewRow:
        return NewRow(
            self.task,
            self.payload,
            self.queue,
            self.version,
            self.partition_key,
            self.priority,
            self.max_attempts,
            tags=tuple(self.tags or ()),
            metadata=self.metadata,
        )

    @property
    def spec(self) -> Spec:
        return Spec(self.name, self.timing, self.row, self.missed, self.overlap)


def read_schedules(names: Sequence[str] | None = None) -> Statement[list[Stored]]:
    given = None if names is None else list(names)
    return named("schedule_read", (given,), lambda rows: [Stored(*r) for r in rows])


def clock() -> Statement[datetime]:
    return named("clock", (), lambda rows: rows[0][0])


def _lock(name: str) -> Statement[bool]:
    return named("schedule_lock", (name,), bool)


def read_locked(name: str) -> Flow[Stored | None]:
    """The schedule as stored, locked until the transaction ends."""
    yield from _lock(name)
    return next(iter((yield from read_schedules([name]))), None)


# Firing -------------------------------------------------------------------------------------------------------------


def due(declared: Sequence[str], without: Sequence[str], limit: int) -> Statement[list[str]]:
    return named("schedule_due", (list(declared), list(without), limit), ids)


def wait(declared: Sequence[str]) -> Statement[float | None]:
    return named("schedule_wait", (list(declared),), lambda rows: rows[0][0])


def fire(name: str, grace: float) -> Flow[Fired | None]:
    """Fire the due slots of one schedule. None: there are none, or another worker fires them."""
    if not (yield from named("schedule_take", (name,), bool)):
        return None
    (stored,) = yield from read_schedules([name])
    spec = stored.spec
    live = spec.overlap != "allow" and (yield from _live(name))
    made = plan(State(spec, stored.now, stored.decided_to, stored.kept_slot), grace, live)
    fired = yield from fire_slots(stored, made.fire, "slot")
    skipped = yield from _claim_slots(name, made.skip, "skipped")
    following = spec.timing.after(made.decided_to)
    yield from _move(name, made.decided_to, following, made.keep)
    kept = made.keep if made.keep != stored.kept_slot else None
    more = following is not None and following <= stored.now and bool(made.fire)
    return Fired(name, spec.row.task, tuple(fired), tuple(skipped), kept, made.passed, more)


def fire_slots(stored: Stored, slots: Sequence[datetime], kind: Kind) -> Flow[list[tuple[datetime, UUID]]]:
    """A job for each of the slots that are not decided yet."""
    if not slots:
        return []
    new = yield from _claim_slots(stored.name, slots, kind)
    if not new:
        return []
    answers = yield from enqueue([_row(stored, slot) for slot in new])
    fired = [(slot, a.id) for slot, a in zip(new, answers, strict=True) if a.id is not None]
    if any(answer.conflict == "key" for answer in answers):
        raise ConfigurationError(
            f"schedule {stored.name!r}: queue {stored.queue!r} is claimed key by key, and its job has no key. "
            "Make it with a partition_key"
        )
    if len(fired) < len(new):
        raise UnknownQueue(
            f"schedule {stored.name!r}: queue {stored.queue!r} does not exist. "
            f"Create it: {command('holdfast', 'queue', 'create', stored.queue)}"
        )
    params = (stored.name, [slot for slot, _ in fired], [job for _, job in fired], stored.queue)
    yield from named("firing_jobs", params, nothing)
    failpoints.point("schedules.enqueued")
    return fired


def _row(stored: Stored, slot: datetime) -> NewRow:
    """The job of a slot. Its handler reads the slot in `job.metadata`."""
    metadata = {**(json.loads(stored.metadata) if stored.metadata else {})}
    metadata |= {"schedule": stored.name, "slot": slot.isoformat()}
    return stored.row._replace(metadata=json.dumps(metadata))


def _claim_slots(name: str, slots: Sequence[datetime], kind: Kind) -> Flow[list[datetime]]:
    if not slots:
        return []
    new = yield from named("claim_slots", (name, list(slots), kind), ids)
    return sorted(slot.astimezone(UTC) for slot in new)  # a session may be in any zone


def _live(name: str) -> Statement[bool]:
    return named("schedule_live", (name,), lambda rows: bool(rows[0][0]))


def _move(name: str, to: datetime, following: datetime | None, kept: datetime | None) -> Statement[None]:
    return named("schedule_move", (name, to, following, kept), nothing)


def note_problem(name: str, problem: str) -> Statement[None]:
    return named("schedule_problem", (name, problem), nothing)


# Declarations -------------------------------------------------------------------------------------------------

Declared = Literal["same", "created", "changed", "older", "taken"]


def touch(specs: Sequence[Spec], every: float) -> Flow[list[str]]:
    """Report that this code is alive; returns the names of schedules whose stored form differs."""
    names, prints = [s.name for s in specs], [s.fingerprint for s in specs]
    yield from named("schedule_touch", (names, prints, every), nothing)
    differs = yield from named("schedule_differs", (names, prints), ids)
    return differs


def declare(spec: Spec, stale_after: float) -> Flow[Declared]:
    """Store a schedule as this worker's code has it.

    A form that was never seen before is new code, and wins at once. The schedule's previous form is old code, or a
    rollback: it wins when no live worker has declared the stored one for `stale_after` seconds. So a worker of the old
    release that starts while a new one is rolled out changes nothing.
    """
    stored = yield from read_locked(spec.name)
    if stored is None:
        now = yield from clock()
        new = yield from put(spec, "code", [], now, spec.timing.after(now))
        return "created" if new else "taken"
    if stored.origin != "code":
        return "taken"
    if stored.fingerprint == spec.fingerprint:
        return "same"
    quiet = (stored.now - stored.declared_at).total_seconds() if stored.declared_at else stale_after
    if spec.fingerprint in stored.retired and 0 <= quiet < stale_after:
        return "older"
    same_timing = (stored.cron, stored.every, stored.tz) == (
        spec.timing.cron,
        spec.timing.every,
        spec.timing.tz,
    )
    to = stored.decided_to if same_timing else max(stored.now, stored.decided_to)
    retired = [p for p in (*stored.retired, stored.fingerprint) if p != spec.fingerprint][-_RETIRED:]
    yield from put(spec, "code", retired, to, spec.timing.after(to))
    return "changed"


def put(
    spec: Spec,
    origin: Literal["code", "operator"],
    retired: Sequence[str],
    decided_to: datetime,
    next_at: datetime | None,
) -> Statement[bool]:
    """Write it, new or replacing one of the same origin."""
    t, r = spec.timing, spec.row
    when = (t.cron, t.every, t.tz, spec.missed, spec.overlap)
    job = (r.task, r.version, r.queue, r.payload, r.partition_key, r.priority, r.max_attempts)
    more = (list(r.tags) or None, r.metadata, spec.fingerprint, list(retired))
    params = (spec.name, origin, *when, *job, *more, decided_to, next_at)
    return named("schedule_put", params, bool)


def prune_firings(days: int, limit: int) -> Statement[int]:
    return named("prune_firings", (days, limit), count)


# Acts --------------------------------------------------------------------------------------------------


def pause(name: str, by: str) -> Statement[bool]:
    return named("schedule_pause", (name, by), bool)


def resume(name: str, decided_to: datetime, next_at: datetime | None) -> Statement[bool]:
    return named("schedule_resume", (name, decided_to, next_at), bool)


def remove(name: str) -> Statement[bool]:
    return named("schedule_remove", (name,), bool)


def decided_slots(name: str, slots: Sequence[datetime]) -> Statement[list[datetime]]:
    return named("decided_slots", (name, list(slots)), ids)


@dataclass(frozen=True, slots=True)
class Decided:
    """A slot that is over, and what became of it."""

    slot: datetime
    kind: Kind
    at: datetime  # when that was decided
    job: UUID | None


def last_slots(name: str, count: int) -> Statement[list[Decided]]:
    return named("last_slots", (name, count), lambda rows: [Decided(*r) for r in rows])


@dataclass(frozen=True, slots=True)
class Overdue:
    """A schedule whose slot is long past."""

    name: str
    queue: str
    origin: str
    seconds: float
    problem: str | None
    has_queue: bool
    is_declared: bool  # or an operator's
    workers: int  # live ones, of any code


@dataclass(frozen=True, slots=True)
class Failed:
    """A schedule whose last job is a dead letter."""

    name: str
    task: str
    job: UUID
    seconds: float  # since it died
    error: str | None


def failed(limit: int) -> Statement[list[Failed]]:
    return named("schedules_failed", (limit,), lambda rows: [Failed(*r) for r in rows])


def overdue(seconds: float, late_after: float, stale_after: float) -> Statement[list[Overdue]]:
    params = (seconds, late_after, stale_after)
    return named("schedules_overdue", params, lambda rows: [Overdue(*r) for r in rows])
