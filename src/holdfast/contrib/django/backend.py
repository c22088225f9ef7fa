"""The backend of django.tasks: TASKS = {"default": {"BACKEND": "holdfast.contrib.django.backend.HoldfastBackend"}}.

On Django 6 for `django.tasks`, below that for its backport `django-tasks`. A task there is a task here under its path, a
result is the job, and a job that is enqueued inside of atomic() commits with it.
"""

import re
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import connections
from django.utils import timezone
from django.utils.module_loading import import_string

from ...db.guests import sync_guest
from ...errors import ConfigurationError, TaskDefinitionError
from ...registry import Registry
from ...store.show import Attempt, JobDetail, show_errors, show_job
from ...store.statement import Statement
from ...tasks.task import Task as OurTask
from . import results
from .flavour import base, exceptions, signals, values
from .project import app

_OPTIONS = {"max_attempts": 1}
_registry = Registry()
_tasks: dict[str, OurTask[Any, Any]] = {}  # by path. Django has a backend per thread; a task is declared once


class HoldfastBackend(base.BaseTaskBackend):  # type: ignore[misc]
    """OPTIONS: {"max_attempts": 5} gives a task that raises more than one attempt."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        if unknown := sorted(set(self.options) - set(_OPTIONS)):
            raise ConfigurationError(
                f"TASKS[{alias!r}]: unknown option {unknown[0]!r} in OPTIONS (known: {', '.join(_OPTIONS)})"
            )
        self._max_attempts = self.options.get("max_attempts", _OPTIONS["max_attempts"])
        app._include(_registry)
        _declare(alias, self.queues)

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        _declared(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        result = results.new(task, "", args, kwargs, self.alias)
        ours = _declared(task).using(
            queue=task.queue_name,
            priority=task.priority,
            max_attempts=self._max_attempts,
            metadata={"django_backend": self.alias},
        )
        if task.run_after is not None:
            at = task.run_after
            ours = ours.using(run_after=at if timezone.is_aware(at) else timezone.make_aware(at))
        if (connection := _in_atomic()) is not None:
            ours = ours.using(conn=connection)
        handle = ours.enqueue(args=result.args, kwargs=result.kwargs)
        results.change(result, id=str(handle.id), enqueued_at=timezone.now())
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        job, errors = _found(result_id)
        try:
            task: Any = None if job is None else import_string(job.task)
        except ImportError:
            task = None
        if job is None or not isinstance(task, values.Task):
            raise exceptions.TaskResultDoesNotExist(result_id)
        alias = str((job.metadata or {}).get("django_backend", self.alias))
        return results.of_job(results.as_enqueued(task, job, alias), job, errors, alias)


def declare_queues(settings: Any) -> None:
    """The queues of each backend that is ours, before one of its tasks is used."""
    for alias, params in settings.items():
        if params.get("BACKEND") == f"{__name__}.{HoldfastBackend.__name__}":
            app._include(_registry)
            _declare(alias, params.get("QUEUES", [values.DEFAULT_TASK_QUEUE_NAME]))


def _declare(alias: str, queues: Iterable[str]) -> None:
    """A name that Django takes and we do not is refused with the place where it stands."""
    for name in queues:
        try:
            _registry.queue(name)
        except TaskDefinitionError as error:
            near = re.sub(r"\W+", "_", str(name).lower()).strip("_")
            raise ConfigurationError(
                f"TASKS[{alias!r}]: QUEUES has {name!r}. Call it {near!r}: {error}"
            ) from None


def _declared(task: Any) -> OurTask[Any, Any]:
    name = task.module_path
    if name not in _tasks:
        _tasks[name] = _registry.task(name=name)(results.handler(task, HoldfastBackend))
    return _tasks[name]


def _in_atomic() -> Any:
    connection = connections[app.options.database]
    return connection if connection.in_atomic_block else None


def _found(result_id: str) -> tuple[JobDetail | None, list[Attempt]]:
    """Also a job that this transaction has enqueued."""
    try:
        job_id = UUID(result_id)
    except (ValueError, AttributeError, TypeError):
        return None, []
    job = _run(show_job(job_id))
    return job, [] if job is None else _run(show_errors(job_id))


def _run(statement: Statement[Any]) -> Any:
    connection = _in_atomic()
    if connection is None:
        return app.database.run(lambda: statement)
    return sync_guest(connection, "get_result", "aget_result").run(statement)
