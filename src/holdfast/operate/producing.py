"""Enqueue by hand: with an app the arguments are checked and encoded by its task, without one they go as they are."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from ..db.database import Database
from ..errors import EnqueueError, InvalidArguments, InvalidMessage, InvalidOption
from ..model.actor import Actor
from ..model.job import Enqueued, NewRow
from ..model.queue import QueueRules
from ..model.strict_json import parse_json
from ..runtime.handler import PayloadError
from ..store import jobs
from ..store.audit import audit
from ..store.statement import Flow
from ..tasks.checks import integer
from ..tasks.definition import Definition
from ..tasks.handle import JobHandle
from ..tasks.newjob import NewJob
from ..tasks.options import EnqueueOptions, enqueue_values
from ..tasks.payload import dump
from ..tasks.task import enqueue_all, raw_job
from ..tasks.taskset import TaskSet
from ..tasks.writer import Writer, queues_of
from .procedure import Procedure, Runner, actor, block
from .queues import create_queue


def make_job(
    tasks: TaskSet | None,
    task: str,
    arguments: Mapping[str, object],
    options: EnqueueOptions,
    version: int | None = None,
) -> NewJob[Any]:
    """The requested job. Arguments are JSON values. A text is read as its parameter's type wants it: `order_id=1`
    is a number where the task takes one."""
    if version is not None:
        integer(version, "version", 1, 2**31 - 1, InvalidOption)
    if tasks is None:
        made = raw_job(task, arguments, options)
        return NewJob(made.row._replace(version=version or 1))
    definition = _find(tasks, task)
    if version is not None and version != definition.settings.version:
        return NewJob(_older(definition, version, arguments, options)._replace(version=version))
    known = definition.signature.params
    loaded = {k: _load(definition, k, v) if k in known else v for k, v in arguments.items()}
    return NewJob(definition.row(definition.codec.encode((), loaded), enqueue_values(options)))


def _find(tasks: TaskSet, task: str) -> Definition:
    found = tasks.definition(task)
    if found is not None:
        return found
    names = sorted({name for name, _ in tasks.known()})
    close = difflib.get_close_matches(task, names, 1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    raise EnqueueError(f"the app has no task {task!r} (known: {', '.join(names) or 'none'}).{guess}")


def _load(definition: Definition, name: str, value: object) -> object:
    try:
        return definition.codec.load_argument(name, value)
    except InvalidArguments as error:
        if not isinstance(value, str):
            raise
        said = str(error)
    try:
        return definition.codec.load_argument(name, parse_json(value.encode()))
    except (InvalidMessage, UnicodeEncodeError, InvalidArguments):
        raise InvalidArguments(f"{said}. For a value that is no text, use {name}:=JSON") from None


def _older(
    definition: Definition, version: int, arguments: Mapping[str, object], options: EnqueueOptions
) -> NewRow:
    """A payload of another version: checked by upgrading it, stored as it is."""
    try:
        definition.codec.decode(version, dump(dict(arguments)))
    except PayloadError as error:
        raise InvalidArguments(str(error)) from None
    return raw_job(definition.name, arguments, options, definition.settings).row


def enqueue(job: NewJob[Any], declared: Mapping[str, QueueRules] | None = None) -> Procedure[JobHandle[Any]]:
    """Write it. On an embedded server a queue that the app declares is made, as the app's own enqueue does."""
    who = yield from actor()
    handles = yield from block(lambda db: enqueue_all(_Audited(db, declared or {}, who), [job], None))
    return handles[0]


class _Audited(Writer):
    """Writes the job and the row that names its producer in one transaction."""

    def __init__(self, database: Database, declared: Mapping[str, QueueRules], who: Actor) -> None:
        super().__init__(lambda: database, lambda: declared)
        self._who = who

    def enqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        database = self._database()
        for name, rules in self._missing(queues_of(rows), database.run(jobs.queue_names)):
            Runner(database, self._who).run(create_queue(name, rules=rules))
        return self._checked(rows, database.run(lambda: _write(rows, self._who)))


def _write(rows: Sequence[NewRow], who: Actor) -> Flow[list[Enqueued]]:
    answers = yield from jobs.enqueue(rows)
    for row, answer in zip(rows, answers, strict=True):
        if answer.created or (row.replace_key is not None and answer.conflict is None):
            more = {} if answer.created else {"replaced": True}
            yield from audit(
                who, "enqueue", {"task": row.task, "queue": row.queue, "id": answer.id, **more}, 1
            )
    return answers
