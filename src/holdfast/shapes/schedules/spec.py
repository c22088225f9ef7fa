"""A schedule as a value, and which of its slots are due."""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Literal, get_args
from uuid import UUID

from ...model.job import NewRow
from .timing import Timing

Missed = Literal["skip", "run_once", "run_all"]
Overlap = Literal["allow", "skip", "queue"]
Kind = Literal["slot", "run", "backfill", "skipped"]
MISSED: tuple[str, ...] = get_args(Missed)
OVERLAP: tuple[str, ...] = get_args(Overlap)
BATCH = 100  # slots of one schedule that one transaction fires

_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Spec:
    """A schedule: when, which job, and how missed and overlapping slots are treated."""

    name: str
    timing: Timing
    row: NewRow
    missed: Missed = "skip"
    overlap: Overlap = "allow"

    @property
    def fingerprint(self) -> str:
        """Equal for equal schedules: shows a worker that the stored one differs."""
        t, r = self.timing, self.row
        job = (r.task, json.loads(r.payload), r.queue, r.version, r.partition_key, r.priority, r.max_attempts)
        more = (r.tags, json.loads(r.metadata) if r.metadata else None, self.missed, self.overlap)
        text = json.dumps([t.cron, t.every, t.tz, *job, *more], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class State:
    """A stored schedule at one moment of the database's clock."""

    spec: Spec
    now: datetime
    decided_to: datetime  # no slot up to here fires by itself again
    kept_slot: datetime | None = None  # overlap="queue": waits until the job before it has ended


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one transaction for a schedule that is due."""

    decided_to: datetime
    fire: tuple[datetime, ...] = ()  # slots that get a job
    skip: tuple[datetime, ...] = ()  # recorded as skipped: a job of this schedule was live
    keep: datetime | None = None  # still waits
    passed: datetime | None = None  # slots from here on were missed, and are not made up for


@dataclass(frozen=True, slots=True)
class Fired:
    """The result of firing a schedule."""

    name: str
    task: str
    fired: tuple[tuple[datetime, UUID], ...] = ()
    skipped: tuple[datetime, ...] = ()
    kept: datetime | None = None  # it starts waiting
    passed: datetime | None = None
    more: bool = False  # further slots are due already


def plan(state: State, grace: float, live: bool) -> Plan:
    """The slots to fire now. `live`: a job of this schedule waits or runs. Slots older than `grace` are missed."""
    spec = state.spec
    if spec.overlap == "queue" and spec.missed == "run_all":
        return _one_by_one(state, live)
    slots, passed = _due(state, grace)
    full = spec.missed == "run_all" or len(slots) == BATCH
    to = slots[-1] if slots and full else max(state.decided_to, state.now)
    slots = (*([state.kept_slot] if state.kept_slot else ()), *slots)
    if spec.overlap == "allow":
        return Plan(to, slots, passed=passed)
    if spec.overlap == "skip":
        return Plan(to, (), slots, passed=passed) if live else Plan(to, slots[:1], slots[1:], passed=passed)
    if live:
        return Plan(to, (), slots[:-1], slots[-1] if slots else None, passed)
    return Plan(to, slots[-1:], slots[:-1], None, passed)


def _one_by_one(state: State, live: bool) -> Plan:
    """Every slot runs, each when the one before it has ended."""
    slot = state.kept_slot or state.spec.timing.after(state.decided_to)
    if live or slot is None or slot > state.now:
        return Plan(state.decided_to, keep=state.kept_slot)
    return Plan(max(slot, state.decided_to), (slot,))


def _due(state: State, grace: float) -> tuple[tuple[datetime, ...], datetime | None]:
    """The slots to fire, and the first missed one that is not made up for."""
    timing, since, now = state.spec.timing, state.decided_to, state.now
    if state.spec.missed == "run_all":
        return tuple(islice(timing.between(since, now), BATCH)), None
    on_time = max(since, now - timedelta(seconds=grace) - _TICK)
    slots = tuple(islice(timing.between(on_time, now), BATCH))
    first = timing.after(since)
    if first is None or first > on_time:
        return slots, None
    if slots or state.spec.missed == "skip":
        return slots, first
    newest = timing.last(since, on_time)
    assert newest is not None
    return (newest,), first if newest != first else None
