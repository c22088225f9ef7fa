"""Run a copy of a job that is finished or dead: a new job with its arguments, or with some of them changed.

The old one stays as it is. The copy is independent: it has no idempotency key, no group, and no follow-ups,
because those of the old one may have run already. Its metadata names the original.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from ..errors import ConfigurationError
from ..model import exact
from ..model.actor import Actor
from ..model.job import NewRow
from ..model.state import DEAD_LETTER, FINISHED
from ..store import acts as store
from ..store import jobs
from ..store.acts import Copyable, Locked
from ..store.audit import audit
from ..store.statement import Flow
from ..store.wake import wake
from ..tasks.options import enqueue_values
from .bulk import patiently
from .edit import Changes, Known, check_changes, check_payload, check_signature, locked_job, masked_of, noted
from .job_acts import no_queue, of_workflow
from .procedure import Procedure, actor
from .refusal import Refused

COPIED_FROM = "copied_from"  # in the metadata of a copy
_OF_THE_OLD = ("traceparent", "tracestate")  # metadata that names where a job was made
_OURS = "holdfast."  # tasks that belong to something else: a delivery, a run


@dataclass(frozen=True, slots=True)
class Copied:
    id: UUID
    copied_from: UUID
    task: str
    queue: str
    changed: dict[str, Any]  # the changed fields
    checked: bool  # against the handler's signature
    alone: bool  # the follow-ups of the old one do not follow the copy


def copy_job(
    job_id: UUID, changes: Changes | None = None, known: Known | None = None, *, dry_run: bool = False
) -> Procedure[Copied]:
    """Enqueue a copy, or say why not and change nothing. `known` finds the task whose signature the arguments must fit."""
    changes = changes or Changes()
    values = enqueue_values(changes.options())
    check_changes(changes)
    who = yield from actor()
    return (yield from patiently(lambda: _copy(job_id, changes, values, known, who, dry_run)))


def _copy(
    job_id: UUID,
    changes: Changes,
    values: Mapping[str, Any],
    known: Known | None,
    who: Actor,
    dry_run: bool,
) -> Flow[Copied]:
    job = yield from locked_job(job_id)
    _check_state(job)
    old = yield from store.look_at_copy(job, changes.unset, changes.arguments)
    if reason := of_workflow(replace(job, is_run=old.is_run), "fork"):
        raise Refused(reason.code, f"job {job.id} {reason.text}", **reason.data)
    check_payload(job, old, changes)
    checked = check_signature(job, old, known, "copied")
    changed = _changed(old, values)
    made = UUID(int=0)
    if not dry_run:
        (answer,) = yield from jobs.enqueue([_row(job, old, values)])
        if answer.id is None:
            raise ConfigurationError(f"job {job_id} was not copied: its queue {job.queue} refused it")
        made = answer.id
        yield from wake([job.queue])
        which = {"id": str(job_id), "copy": str(made), "changed": sorted(changed) or None}
        before = {
            name: exact.loads(old.payload) if name == "payload" else getattr(old, name) for name in changed
        }
        yield from audit(who, "jobs copy", which, 1, *noted(before, changed, masked_of(job.task, known)))
    return Copied(made, job_id, job.task, job.queue, changed, checked, old.is_followed)


def _check_state(job: Locked) -> None:
    if job.state not in (*FINISHED, DEAD_LETTER):
        raise Refused(
            "not_ended", f"job {job.id} is {job.state}: it runs once, and a copy of it would too", id=job.id
        )
    if job.task.startswith(_OURS):
        raise ConfigurationError(
            f"job {job.id} is of {job.task}, which belongs to something else. Redeliver or start that again"
        )
    if reason := no_queue(job):
        raise Refused(reason.code, f"job {job.id} {reason.text}", **reason.data)


def _row(job: Locked, old: Copyable, values: Mapping[str, Any]) -> NewRow:
    after = values.get("run_after", 0.0)
    is_delay = isinstance(after, float)
    said = None if old.metadata is None else exact.loads(old.metadata)
    items = said.items() if isinstance(said, dict) else ()  # from SQL it may be any JSON
    kept = {name: value for name, value in items if name not in _OF_THE_OLD}
    return NewRow(
        job.task,
        old.edited,
        job.queue,
        old.version,
        old.partition_key,
        values.get("priority", old.priority),
        values.get("max_attempts", old.max_attempts),
        None if is_delay else after,
        after if is_delay else 0.0,
        tags=tuple(values.get("tags", old.tags)),
        metadata=exact.dumps({**kept, COPIED_FROM: str(job.id)}),
    )


def _changed(old: Copyable, values: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: value
        for name, value in values.items()
        if name in ("priority", "max_attempts") and value != getattr(old, name)
    }
    if list(values.get("tags", old.tags)) != old.tags:
        found["tags"] = list(values["tags"])
    if old.edited != old.payload:
        found["payload"] = exact.loads(old.edited)
    return found
