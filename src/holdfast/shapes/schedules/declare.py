"""Declarations of users: `app.schedule(...)`, checked and turned into a Spec."""

import json
from datetime import timedelta
from typing import Any, cast

from ...errors import TaskDefinitionError
from ...model.duration import parse_duration
from ...tasks import checks
from ...tasks.checks import Fail
from ...tasks.newjob import NewJob
from ...tasks.payload import METADATA_BYTES, shown
from ...tasks.registry import TaskRegistry
from ...tasks.taskset import TaskSet
from .spec import MISSED, OVERLAP, Missed, Overlap, Spec
from .timing import Timing

KIND = "schedules"
_OWN_METADATA = ("schedule", "slot")
_ROOM = 600  # bytes of metadata that a firing adds at most


class Scheduling(TaskRegistry):
    """The part of a registry that declares schedules."""

    def schedule(
        self,
        cron: str | timedelta,
        job: NewJob[Any],
        *,
        tz: str = "UTC",
        missed: Missed = "skip",
        overlap: Overlap = "allow",
        name: str | None = None,
    ) -> None:
        """Enqueue a job repeatedly: `app.schedule("0 3 * * *", nightly.job(), tz="Europe/Berlin", missed="run_once")`.

        A timedelta, or text such as "90s", instead of a cron expression is an interval. `name` defaults to the task's name;
        two schedules of one task need names. Workers write the schedule to the database when they start, and fire it, once
        per slot however many workers there are.
        """
        spec = make_spec(name, cron, job, tz, missed, overlap, TaskDefinitionError)
        self._declare_thing(KIND, spec.name, spec, same=lambda other: other.fingerprint == spec.fingerprint)


def declared(tasks: TaskSet) -> list[Spec]:
    """Every schedule that the code declares."""
    return list(tasks.declared(KIND).values())


def check_declared(tasks: TaskSet) -> None:
    """A job that goes to a queue claimed key by key has a key."""
    rules = tasks.queue_rules()
    for spec in declared(tasks):
        row = spec.row
        if row.queue in rules and rules[row.queue].keyed and row.partition_key is None:
            raise TaskDefinitionError(
                f"schedule {spec.name!r}: queue {row.queue!r} is claimed key by key, and its job has no key. "
                'Write schedule(..., task.using(partition_key="...").job())'
            )


def make_spec(
    name: str | None, when: str | timedelta, job: NewJob[Any], tz: str, missed: str, overlap: str, fail: Fail
) -> Spec:
    """A checked schedule; `fail` is the class of the error that reports an invalid one."""
    if not isinstance(job, NewJob):
        raise fail(
            f"a schedule takes a job, not {shown(job)}. Write schedule(cron, nightly.job(...)), with the job's arguments"
        )
    for what, value, known in (("missed", missed, MISSED), ("overlap", overlap, OVERLAP)):
        if value not in known:
            raise fail(f"{what} must be one of {', '.join(known)}, not {shown(value)}")
    _check_job(job, fail)
    name = checks.task_name(job.task if name is None else name, "the schedule's name", fail)
    try:
        every = _interval(when)
        timing = Timing(when, tz=tz) if every is None else Timing(every=_seconds(every), tz=tz)  # type: ignore[arg-type]
    except ValueError as error:
        raise fail(f"schedule {name!r}: {error}") from None
    return Spec(name, timing, job.row, cast(Missed, missed), cast(Overlap, overlap))


def _interval(when: object) -> float | None:
    """Seconds between two slots; None: it is a cron expression, or invalid, which Timing reports."""
    if isinstance(when, timedelta):
        return when.total_seconds()
    return parse_duration(when) if isinstance(when, str) else None


def _seconds(every: float) -> Any:
    """Whole seconds; Timing reports anything else as it was written."""
    return int(every) if every == int(every) else every


def _check_job(job: NewJob[Any], fail: Fail) -> None:
    row = job.row
    given = {
        "conn": job.conn is not None,
        "run_after": row.run_at is not None or row.delay > 0,
        "idempotency_key": row.idempotency_key is not None,
        "replace_key": row.replace_key is not None,
        "parent": row.parent is not None,
    }
    if row.follow_ups:
        raise fail(
            f"the job of {row.task} was made with using(then=...), which a schedule does not keep. "
            "Enqueue what follows in the handler"
        )
    for option, there in given.items():
        if there:
            raise fail(
                f"the job of {row.task} was made with using({option}=...), which a schedule has no use for: "
                f"it enqueues one job per slot, at the slot. Leave {option} out"
            )
    metadata = json.loads(row.metadata) if row.metadata else {}
    for key in _OWN_METADATA:
        if key in metadata:
            raise fail(
                f"the job's metadata has a {key!r}, which the schedule sets itself. Give it another name"
            )
    if row.metadata and len(row.metadata.encode()) > METADATA_BYTES - _ROOM:
        raise fail(
            f"the job's metadata is {len(row.metadata.encode())} bytes; with what the schedule adds the limit is "
            f"{METADATA_BYTES - _ROOM}. Put less into it"
        )
