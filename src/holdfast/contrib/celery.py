"""Celery tasks, moved one at a time: `send_receipt = adopt(app, send_receipt)`. Needs Celery, which their code has.

The function stays as it is. Its callers keep using `delay()` and `apply_async()`, which write a job in place of a message; a
Holdfast worker runs it. `self.request`, `self.retry()`, `autoretry_for`, `Ignore` and `Reject` mean what they meant; so do
`__call__` and the handlers (`on_failure()` and others) of a task class.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

from holdfast import (
    DeadLetter,
    Duration,
    Holdfast,
    Job,
    JobHandle,
    Registry,
    Retry,
    Task,
    TaskDecorator,
    TaskOptions,
)

from ..errors import ConfigurationError, InvalidPayload

_LOGGER = logging.getLogger("celery.app.trace")  # where Celery logs such errors
_WITHOUT_END = 1000  # attempts, where Celery's own count of retries says when it is enough
_CANVAS = ("s", "si", "signature", "subtask", "chunks", "map", "starmap")
_MEANT = {  # what apply_async() knows there, and what to say here
    "link": "then= of using()",
    "link_error": "a dead letter: holdfast dead list",
    "expires": "Backoff(deadline=...)",
    "retry_policy": "no policy: an enqueue is a statement in your database",
    "task_id": "using(idempotency_key=...)",
    "group_id": "app.group()",
    "chord": "app.group() with a callback",
    "time_limit": "timeout= of adopt()",
    "headers": "metadata= of using() on .job_task",
}


class Adopted:
    """A Celery task whose calls are jobs. `job_task` is the Holdfast task, with everything that one has."""

    def __init__(self, celery_task: Any, job_task: Task[Any, Any]) -> None:
        self.celery_task = celery_task
        self.job_task = job_task
        self.name: str = celery_task.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, at once and here."""
        return self.celery_task(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """`request`, `retry()` and all else that the function uses by the name of its task."""
        if name in _CANVAS:
            raise AttributeError(
                f"{self.name}.{name}() has no meaning here. Use then= of using(), or app.group()"
            )
        return getattr(self.celery_task, name)

    def delay(self, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Enqueue it with these arguments: `send_receipt.delay(17)`."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        conn: object = None,
        **others: Any,
    ) -> JobHandle[Any]:
        """Enqueue it: later with `countdown` or `eta`, in your transaction with `conn`."""
        for name in others:
            instead = f"Use {_MEANT[name]}" if name in _MEANT else "See docs/from-celery.md"
            raise ConfigurationError(f"apply_async({name}=) of {self.name} has no meaning here. {instead}")
        if countdown is not None and eta is not None:
            raise ConfigurationError(
                f"{self.name}: countdown={countdown!r} and eta={eta!r}: give one of them"
            )
        chosen: dict[str, Any] = {"queue": queue, "priority": priority, "conn": conn}
        if eta is not None and eta.tzinfo is None:  # Celery reads it in the time zone of its app
            eta = eta.replace(tzinfo=self.celery_task.app.timezone)
        chosen["run_after"] = eta if countdown is None else max(countdown, 0)
        given = {name: value for name, value in chosen.items() if value is not None}
        task = self.job_task.using(**given) if given else self.job_task
        return task.enqueue(args=list(args or ()), kwargs=dict(kwargs or {}))

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """As `delay()`, after the commit of Django's transaction. `apply_async(conn=connection)` is part of it instead."""
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """As `apply_async()`, after the commit of Django's transaction."""
        from django.db import transaction

        transaction.on_commit(functools.partial(self.apply_async, *args, **kwargs))


def adopt(app: Holdfast | Registry, celery_task: Any, **options: Unpack[TaskOptions]) -> Adopted:
    """Run the jobs of a Celery task with Holdfast: `send_receipt = adopt(app, send_receipt, queue="mail")`.

    Its name, its retries and `time_limit` are taken over; `options` replace them. As with Celery, an error that the task
    does not retry itself is final: it makes a dead letter. With `max_attempts` or `retry` every error is retried by them;
    a result without a JSON form is final there too.
    """
    if not hasattr(celery_task, "push_request"):
        raise ConfigurationError(
            f"adopt() takes a Celery task, not {type(celery_task).__name__}: what @celery_app.task returns"
        )
    by_holdfast = "max_attempts" in options or "retry" in options
    taken: TaskOptions = {"name": celery_task.name, "max_attempts": _WITHOUT_END}
    if celery_task.time_limit:
        taken["timeout"] = celery_task.time_limit
    if "timeout" in {**taken, **options}:  # an attempt may end in another way than by retry(), which counts
        taken["max_attempts"] = _attempts(celery_task)
    _hear_retries(celery_task)
    _hear_calls(celery_task)
    body = _body(celery_task)

    task: Any = app.task  # what it takes is checked where it is called
    declare: TaskDecorator = task(**{**taken, **options})

    @declare
    def run(job: Job, args: list[Any], kwargs: dict[str, Any]) -> Any:
        with _request(celery_task, job, args, kwargs, adopted) as request:
            asked: list[Any] = request.holdfast_asked
            try:
                celery_task.before_start(request.id, args, kwargs)
                value = body(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 whatever it is means something for the job
                return _end(celery_task, job, asked[-1] if asked else error, by_holdfast)
            if asked:
                return _end(celery_task, job, asked[-1], by_holdfast)
            try:
                result = _stored(adopted, value)
            except InvalidPayload as error:  # final: it ran, and would return the same again
                return _end(celery_task, job, error, by_holdfast=False)
            _call(celery_task.on_success, value, request.id, args, kwargs)
            _call(celery_task.after_return, "SUCCESS", value, request.id, args, kwargs, None)
            return result

    adopted = Adopted(celery_task, run)
    return adopted


@contextmanager
def _request(
    celery_task: Any, job: Job, args: list[Any], kwargs: dict[str, Any], adopted: Adopted
) -> Iterator[Any]:
    """`self.request` of this execution, and `celery.current_task`."""
    from celery._state import _task_stack  # type: ignore[import-untyped]

    celery_task.push_request(
        id=str(job.id), root_id=str(job.id), task=celery_task.name, args=args, kwargs=kwargs, retries=job.attempt - 1,
        hostname="holdfast", delivery_info={"exchange": "", "routing_key": job.queue, "redelivered": job.crashes > 0},
        called_directly=False, is_eager=True,  # so that retry() raises, and sends no message
        holdfast_asked=[], holdfast_adopted=adopted,
    )  # fmt: skip
    _task_stack.push(celery_task)
    try:
        yield celery_task.request
    finally:
        _task_stack.pop()
        celery_task.pop_request()
        vars(celery_task).pop("override_max_retries", None)  # retry(max_retries=) is for one execution


def _body(celery_task: Any) -> Callable[..., Any]:
    """The function that a worker of Celery calls: `__call__` of a task class that has one, such as for Flask's context."""
    from celery.app import trace  # type: ignore[import-untyped]

    own = trace.task_has_custom(celery_task, "__call__")
    return celery_task if own else celery_task.run  # type: ignore[no-any-return]


def _stored(adopted: Adopted, value: Any) -> Any:
    """The value as the result of the job. Where Celery stores none, one without a JSON form is no error."""
    from celery.backends.base import DisabledBackend  # type: ignore[import-untyped]

    if adopted.celery_task.ignore_result:
        return None
    try:
        adopted.job_task.definition.codec.encode_result(value)
    except InvalidPayload:
        if isinstance(adopted.celery_task.backend, DisabledBackend):
            return None
        raise
    return value


def _attempts(celery_task: Any) -> int:
    """As many as the task itself asks for, by its max_retries or those of its autoretry."""
    said = [celery_task.max_retries, getattr(celery_task, "retry_kwargs", {}).get("max_retries", 0)]
    return _WITHOUT_END if None in said else min(_WITHOUT_END, max(said) + 1)


def _hear_retries(celery_task: Any) -> None:
    """retry(throw=False) returns, so it is noted for the end of the function: the job is tried again whatever that does."""
    retry = celery_task.retry
    if hasattr(retry, "holdfast"):
        return

    @functools.wraps(retry)
    def heard(*args: Any, throw: bool = True, **kwargs: Any) -> Any:
        wanted = retry(*args, throw=throw, **kwargs)
        if (asked := getattr(celery_task.request, "holdfast_asked", None)) is not None:
            asked.append(wanted)
        return wanted

    heard.holdfast = True  # type: ignore[attr-defined]
    celery_task.retry = heard


def _hear_calls(celery_task: Any) -> None:
    """`self.delay()` and `self.apply_async()` in the function of a job write a job too."""
    send = celery_task.apply_async
    if hasattr(send, "holdfast"):
        return

    @functools.wraps(send)
    def heard(*args: Any, **kwargs: Any) -> Any:
        adopted = getattr(celery_task.request, "holdfast_adopted", None)
        return (send if adopted is None else adopted.apply_async)(*args, **kwargs)

    heard.holdfast = True  # type: ignore[attr-defined]
    celery_task.apply_async = heard


def _end(celery_task: Any, job: Job, error: Exception, by_holdfast: bool) -> None:
    """The end of an attempt that raised, or called retry(): first for the handlers of the task class, then for the job."""
    from celery import exceptions  # type: ignore[import-untyped]

    info = _info(error)
    request = celery_task.request
    task_id, args, kwargs = request.id, request.args, request.kwargs
    try:
        return _meant(error, args, kwargs, by_holdfast)
    except BaseException as meant:
        if not isinstance(error, exceptions.Ignore | exceptions.Reject):
            again = not isinstance(meant, DeadLetter) and job.attempt < job.max_attempts
            cause = error.exc if isinstance(error, exceptions.Retry) else error
            handler = celery_task.on_retry if again else celery_task.on_failure
            _call(handler, cause, task_id, args, kwargs, info)
            _call(
                celery_task.after_return, "RETRY" if again else "FAILURE", cause, task_id, args, kwargs, info
            )
        raise


def _info(error: Exception) -> Any:
    """What a handler of the task class is given. It needs a traceback, which the error of retry(throw=False) has not."""
    from billiard.einfo import ExceptionInfo  # type: ignore[import-untyped]

    try:
        raise error
    except Exception:  # noqa: BLE001 it is this one
        return ExceptionInfo()


def _call(handler: Callable[..., Any], *args: Any) -> None:
    """A handler of the task class. As with Celery, an error of it changes nothing about the task."""
    try:
        handler(*args)
    except Exception:
        _LOGGER.exception("%s of a task class raised", getattr(handler, "__qualname__", repr(handler)))


def _meant(error: Exception, args: list[Any], kwargs: dict[str, Any], by_holdfast: bool) -> None:
    """What an error of a Celery task means for its job. Returning completes it."""
    from celery import exceptions  # Celery's errors are known by their class

    if isinstance(error, exceptions.Retry):
        again = error.sig
        if again is not None and (list(again.args) != args or dict(again.kwargs) != kwargs):
            raise DeadLetter(
                "retry(args=, kwargs=) changes the arguments, which a job keeps: enqueue another one"
            ) from error
        raise Retry(str(error.exc or "retry()"), after=_delay(error.when)) from error
    if isinstance(error, exceptions.Reject):
        if error.requeue:
            raise Retry(f"rejected: {error.reason}") from error
        raise DeadLetter(f"rejected: {error.reason}") from error
    if isinstance(error, exceptions.Ignore):
        return
    if by_holdfast:
        raise error
    raise DeadLetter(f"{type(error).__name__}: {error}") from error


def _delay(when: Any) -> Duration:
    """Celery's `when`: seconds, or a moment."""
    if isinstance(when, datetime):
        moment = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max(timedelta(0), moment - datetime.now(UTC))
    return float(when or 0)
