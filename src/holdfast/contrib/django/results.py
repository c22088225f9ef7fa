"""A job as a TaskResult of django.tasks, and a task of django.tasks as a Holdfast handler."""

import builtins
import copy
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from ... import public
from ...errors import JobFailed
from ...model.signals import Cancel, DeadLetter, Snooze
from ...model.state import CANCELLED, COMPLETED, DEAD_LETTER, PROCESSING
from ...model.text import describe
from ...runtime.job import Job
from ...store.show import Attempt, JobDetail
from .flavour import signals, values

_STATUS = {COMPLETED: "SUCCESSFUL", DEAD_LETTER: "FAILED", CANCELLED: "FAILED", PROCESSING: "RUNNING"}


def new(task: Any, result_id: str, args: Any, kwargs: Any, alias: str) -> Any:
    """A result that is READY. Arguments without a JSON form are refused here, as by every backend."""
    return values.TaskResult(
        task=task,
        id=result_id,
        status=values.TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def change(result: Any, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(result, name, value)


def as_enqueued(task: Any, job: JobDetail, alias: str) -> Any:
    """The task as it was enqueued. It is not checked again: TASKS may have lost its queue since."""
    found = copy.copy(task)
    change(found, priority=job.priority, queue_name=job.queue, backend=alias)
    return found


def of_job(task: Any, job: JobDetail, errors: list[Attempt], alias: str) -> Any:
    """Jobs keep the time of their latest claim alone, so an attempt before that is known by its error."""
    failed = sorted(errors, key=lambda error: error.at)
    workers = [error.worker or "" for error in failed]
    if job.state in (PROCESSING, COMPLETED):
        workers.append(job.claimed_by or "")
    result = new(task, str(job.id), job.payload["args"], job.payload["kwargs"], alias)
    change(
        result,
        status=values.TaskResultStatus(_STATUS.get(job.state, "READY")),
        enqueued_at=_shown(job.created_at),
        started_at=_shown(failed[0].at if failed else job.claimed_at),
        last_attempted_at=_shown(job.claimed_at or (failed[-1].at if failed else None)),
        finished_at=_shown(job.finished_at),
        errors=[
            values.TaskError(
                exception_class_path=_path(error), traceback=error.trace or f"{error.kind}: {error.message}\n"
            )
            for error in failed
        ],
        worker_ids=workers,
        _return_value=job.result if job.state == COMPLETED else None,
    )
    return result


def _shown(at: datetime | None) -> datetime | None:
    """As Django has times: without a zone where USE_TZ is off."""
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)


def _path(error: Attempt) -> str:
    """The class of an error: the last line of a traceback names its module, except for Python's own. A text without
    traceback is Holdfast's, about a signal or a worker that died: not all of those have a class."""
    found = re.findall(rf"^((?:\w+\.)*){re.escape(error.kind)}(?::|$)", error.trace, re.MULTILINE)
    if found or hasattr(builtins, error.kind):
        return f"{(found[-1] if found else '') or 'builtins.'}{error.kind}"
    return f"holdfast.{error.kind if error.kind in public.__all__ else JobFailed.__name__}"


def handler(task: Any, backend: type) -> Callable[..., Any]:
    """The function that a worker calls. It sends the signals of django.tasks, in the thread or task of the function."""

    def run(job: Job, args: list[Any], kwargs: dict[str, Any]) -> Any:
        with _running(task, backend, job, args, kwargs) as call:
            return call.ended(task.func(*call.args, **kwargs))

    async def arun(job: Job, args: list[Any], kwargs: dict[str, Any]) -> Any:
        with _running(task, backend, job, args, kwargs) as call:
            return call.ended(await task.func(*call.args, **kwargs))

    return arun if inspect.iscoroutinefunction(task.func) else run


class _Call:
    def __init__(self, task: Any, result: Any) -> None:
        self.result = result
        context = [values.TaskContext(task_result=result)] if task.takes_context else []
        self.args = [*context, *result.args]

    def ended(self, value: Any) -> Any:
        """The value as JSON has it: what has none is an error of the task."""
        plain = new(self.result.task, "", [value], {}, "").args[0]
        change(self.result, _return_value=plain)
        return plain


@contextmanager
def _running(task: Any, backend: type, job: Job, args: list[Any], kwargs: dict[str, Any]) -> Iterator[_Call]:
    alias = job.metadata.get("django_backend", task.backend)
    result = new(task, str(job.id), args, kwargs, alias)
    now = timezone.now()
    change(
        result,
        status=values.TaskResultStatus.RUNNING,
        started_at=now,
        last_attempted_at=now,
        worker_ids=[job._worker] * job.attempt,
    )
    signals.task_started.send(backend, task_result=result)
    try:
        yield _Call(task, result)
    except BaseException as error:
        if _is_last(job, error):
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            failure = values.TaskError(exception_class_path=path, traceback=describe(error).trace)
            change(result, errors=[failure])
            _finish(backend, result, values.TaskResultStatus.FAILED)
        raise
    else:
        _finish(backend, result, values.TaskResultStatus.SUCCESSFUL)


def _is_last(job: Job, error: BaseException) -> bool:
    """Whether the job ends with this error. One that a stopping worker gives back, or has lost, runs again."""
    if job.lost or isinstance(error, Snooze):
        return False
    return job._cancelled or isinstance(error, DeadLetter | Cancel) or job.attempt >= job.max_attempts


def _finish(backend: type, result: Any, status: Any) -> None:
    change(result, status=status, finished_at=timezone.now())
    signals.task_finished.send(backend, task_result=result)
