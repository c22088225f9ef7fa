"""Change a job that waits, is held or is dead: its arguments, priority, attempts, time and tags."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ..errors import ConfigurationError, InvalidPayload
from ..model import exact
from ..model.actor import Actor
from ..model.masking import masked
from ..model.state import BLOCKED, CANCELLED
from ..runtime.handler import PayloadError
from ..store import acts as store
from ..store.acts import Edit, Editable, Locked
from ..store.audit import audit
from ..store.statement import Flow
from ..store.wake import wake
from ..tasks.definition import Definition
from ..tasks.options import enqueue_values
from ..tasks.payload import PAYLOAD_BYTES, dump
from .bulk import Busy, patiently
from .job_acts import stranded
from .jobs import no_such_job
from .procedure import Procedure, actor
from .refusal import Refused
from .search import check_texts

_NONE = object()
Known = Callable[[str], Definition | None]


@dataclass(frozen=True, slots=True)
class Changes:
    """What to change; omitted fields stay as they are."""

    arguments: Mapping[str, object] = field(default_factory=dict)  # added, by name
    unset: Sequence[str] = ()  # removed
    priority: int | None = None
    max_attempts: int | None = None
    run_after: datetime | timedelta | None = None
    tags: Sequence[str] | None = None  # all of them; empty: none

    def options(self) -> dict[str, Any]:
        named = {
            "priority": self.priority,
            "max_attempts": self.max_attempts,
            "run_after": self.run_after,
            "tags": self.tags,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Edited:
    id: UUID
    task: str
    state: str
    before: dict[str, Any]  # what was changed, as it was
    after: dict[str, Any]
    checked: bool  # against the handler's signature


def edit_job(job_id: UUID, changes: Changes, known: Known | None = None) -> Procedure[Edited]:
    """Change one job, or say why not and change nothing. `known` finds the task whose signature the arguments must fit."""
    values = enqueue_values(changes.options())
    check_changes(changes)
    if not values and not changes.arguments and not changes.unset:
        raise Refused("no_change", "say what to change: arguments, or an option such as priority")
    who = yield from actor()
    return (yield from patiently(lambda: _edit(job_id, changes, values, known, who)))


def check_changes(changes: Changes) -> None:
    dump(dict(changes.arguments))
    check_texts({f"argument {n}": name for n, name in enumerate(changes.unset, 1)})
    if both := sorted(set(changes.unset) & set(changes.arguments)):
        raise ConfigurationError(f"argument {both[0]!r} is both set and unset. Say one of them")


def locked_job(job_id: UUID) -> Flow[Locked]:
    """The named job, locked until the commit; ConfigurationError if there is none, Busy if another session has it."""
    places = yield from store.locate_jobs([job_id])
    if not places:
        raise ConfigurationError(no_such_job(job_id))
    locked = yield from store.lock(places)
    if not locked:
        raise Busy([job_id])
    return locked[0]


def _edit(
    job_id: UUID, changes: Changes, values: Mapping[str, Any], known: Known | None, who: Actor
) -> Flow[Edited]:
    job = yield from locked_job(job_id)
    _check_state(job, "run_after" in values)
    yield from store.take_back([job])
    old = yield from store.look_at_edit(job, changes.unset, changes.arguments)
    check_payload(job, old, changes)
    checked = check_signature(job, old, known) if old.edited != old.payload else False
    if not (yield from store.edit(job, _change(old, values))):
        raise Busy([job_id])
    if job.table == "work":
        yield from wake([job.queue])  # it may be due earlier than before
    new = yield from store.look_at_edit(job, (), {})
    before, after = _difference(old, new)
    if after:
        which = {"id": str(job_id), "changed": sorted(after)}
        yield from audit(who, "jobs edit", which, 1, *noted(before, after, masked_of(job.task, known)))
    return Edited(job_id, job.task, job.state, before, after, checked)


def _check_state(job: Locked, moved: bool) -> None:
    if reason := stranded(job):
        raise Refused(reason.code, f"job {job.id} {reason.text}", id=job.id)
    if job.running:
        raise ConfigurationError(
            f"job {job.id} is running: its handler has its arguments already. Wait for it, or cancel it"
        )
    if job.table == "archive":
        how = "was cancelled" if job.state == CANCELLED else "completed"
        raise Refused("edit_finished", f"job {job.id} is finished: it {how}", id=job.id, task=job.task)
    if moved and job.state == BLOCKED:
        raise Refused("edit_blocked", f"job {job.id} is blocked: it waits for no time", id=job.id)
    if moved and job.table == "dead_letters":
        raise Refused("edit_dead_letter", f"job {job.id} is a dead letter: it waits for no time", id=job.id)


def check_payload(job: Locked, old: Editable, changes: Changes) -> None:
    has = exact.loads(old.payload)
    if unknown := [name for name in changes.unset if name not in has]:
        raise ConfigurationError(
            f"job {job.id} has no argument {unknown[0]!r} to unset (it has: {', '.join(has) or 'none'})"
        )
    size = len(old.edited.encode())
    if size > PAYLOAD_BYTES:
        raise InvalidPayload(
            f"payload would be {size:,} bytes of JSON, more than the limit of {PAYLOAD_BYTES:,}. "
            "Store it elsewhere and pass a reference"
        )


def check_signature(job: Locked, old: Editable, known: Known | None, done: str = "changed") -> bool:
    """Whether it was checked: not without an app, nor for a task that the app does not know."""
    definition = known(job.task) if known else None
    if definition is None:
        return False
    try:
        definition.codec.decode(old.version, old.edited)
    except PayloadError as error:
        raise ConfigurationError(f"job {job.id} was not {done}: {error}") from None
    return True


def _change(old: Editable, values: Mapping[str, Any]) -> Edit:
    after = values.get("run_after")
    tags = values.get("tags")
    return Edit(
        payload=old.edited if old.edited != old.payload else None,
        priority=values.get("priority"),
        max_attempts=values.get("max_attempts"),
        run_at=after if isinstance(after, datetime) else None,
        delay=after if isinstance(after, float) else None,
        tags=None if tags is None else list(tags),
    )


def masked_of(task: str, known: Known | None) -> tuple[str, ...]:
    """The names that the task masks as secrets, if its code is available."""
    definition = known(task) if known is not None else None
    return () if definition is None else definition.settings.masked


def noted(
    before: Mapping[str, Any], after: Mapping[str, Any], secrets: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """For the audit: the arguments of the payload that differ, without those that the task masks."""
    was, now = (dict(side) for side in (before, after))
    if "payload" in after:
        old, new = was["payload"], now["payload"]
        names = [name for name in {**old, **new} if old.get(name, _NONE) != new.get(name, _NONE)]
        changed = ({n: side[n] for n in names if n in side} for side in (old, new))
        was["payload"], now["payload"] = (masked(side, names=secrets) for side in changed)
    return was, now


def _difference(old: Editable, new: Editable) -> tuple[dict[str, Any], dict[str, Any]]:
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for name in ("priority", "max_attempts", "available_at", "tags"):
        if getattr(old, name) != getattr(new, name):
            before[name], after[name] = getattr(old, name), getattr(new, name)
    if old.payload != new.payload:
        before["payload"], after["payload"] = exact.loads(old.payload), exact.loads(new.payload)
    return before, after
