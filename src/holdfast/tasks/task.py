"""Task: a declared handler that can be enqueued, and the jobs it makes."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)
from uuid import UUID

from ..db.transaction import AsyncTransaction, Transaction
from ..errors import InvalidOption, InvalidPayload
from ..model.job import Enqueued, NewRow
from ..runtime.handler import Handler
from ..runtime.job import Job
from ..store.show import Look
from . import checks
from .definition import Definition, new_row
from .found import FoundJob, job_id_of
from .handle import JobHandle, handle_of
from .newjob import NewJob
from .options import EnqueueOptions, TaskOptions, TaskSettings, enqueue_values
from .payload import dump, shown
from .producer import Producer
from .tracing import sending, traces

P = ParamSpec("P")
R = TypeVar("R")
_ELSEWHERE = (
    "delay",
    "apply_async",
    "send",
    "send_with_options",
    "defer",
    "defer_async",
    "kiq",
    "schedule",
)  # in subclasses


class Task(Generic[P, R]):
    """A declared handler: `send_receipt.enqueue(order_id=1)`. Made by `@app.task` or `@registry.task`."""

    __slots__ = ("_rest", "_values", "definition")

    def __init__(self, definition: Definition, values: Mapping[str, Any] | None = None) -> None:
        self.definition = definition
        self._values = dict(values or {})
        self._rest: tuple[Any, ...] | None = None  # the fields of a row that are the same for all of its jobs

    @property
    def name(self) -> str:
        """The task's name in the database: `billing.send_receipt`."""
        return self.definition.name

    @property
    def func(self) -> Callable[..., object]:
        """The function as it was written: `send_receipt.func(job, order_id=1)`."""
        return self.definition.signature.func

    def using(self, **options: Unpack[EnqueueOptions]) -> "Task[P, R]":
        """The same task with options; later ones win: `send_receipt.using(queue="bulk", run_after=30)`."""
        made: Task[P, R] = Task(self.definition, {**self._values, **enqueue_values(options)})
        if len(options) == 1 and "conn" in options:  # which is not in the row
            if not self._values and self._rest is None:
                self._rest = self.definition.row("", self._values)[2:]
            made._rest = self._rest
        return made

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob[R]:
        """A job to enqueue later or in bulk: `app.enqueue_many([send_receipt.job(order_id=1)])`."""
        return NewJob(self._row(args, kwargs), self._values.get("conn"), self.definition.codec.decode_result)

    def _row(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewRow:
        definition = self.definition
        payload = definition.codec.encode(args, kwargs)
        if self._rest is None:
            self._rest = definition.row(payload, self._values)[2:]
        return tuple.__new__(NewRow, (definition.name, payload) + self._rest)  # noqa: RUF005 NewRow(...) takes twice as long

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Write one job: `send_receipt.using(conn=conn).enqueue(order_id=1)`."""
        producer, conn = self.definition.binding.require(self.definition.name), self._values.get("conn")
        row = self._row(args, kwargs)
        if traces():
            return enqueue_all(producer, [NewJob(row, conn, self.definition.codec.decode_result)], conn)[0]
        return self._handle(producer, row, producer.enqueue((row,), conn)[0])

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Write one job: `await send_receipt.using(conn=tx).aenqueue(order_id=1)`."""
        producer, conn = self.definition.binding.require(self.definition.name), self._values.get("conn")
        row = self._row(args, kwargs)
        if traces():
            new: NewJob[R] = NewJob(row, conn, self.definition.codec.decode_result)
            return (await aenqueue_all(producer, [new], conn))[0]
        return self._handle(producer, row, (await producer.aenqueue((row,), conn))[0])

    def _handle(self, producer: Producer, row: NewRow, written: Enqueued) -> JobHandle[R]:
        assert written.id_text is not None
        decode = self.definition.codec.decode_result
        return handle_of(written.id_text, written.created, row.task, row.queue, producer, decode)

    def get(self, job_id: UUID | str) -> FoundJob[R] | None:
        """A job of this task by its id, with its result typed: `send_receipt.get(job_id)`. None: there is no such job of
        this task, or it is finished and no longer kept."""
        return self._found(self.definition.binding.require(self.name).look(job_id_of(job_id)))

    async def aget(self, job_id: UUID | str) -> FoundJob[R] | None:
        """A job of this task by its id: `await send_receipt.aget(job_id)`, see get()."""
        return self._found(await self.definition.binding.require(self.name).alook(job_id_of(job_id)))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a sync handler here and now, without a database: `assert add.call(1, 2) == 3`."""
        self._check_call("call", is_async=False)
        return cast(R, self.func(*args, **kwargs))

    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an async handler here and now, without a database: `assert await add.acall(1, 2) == 3`."""
        self._check_call("acall", is_async=True)
        return await cast(Coroutine[Any, Any, R], self.func(*args, **kwargs))

    if not TYPE_CHECKING:  # a type checker refuses both by itself

        def __call__(self, *args, **kwargs):
            raise TypeError(f"{self.name} is a task, and a call of it does nothing. {self._how()}")

        def __getattr__(self, name):
            if name in _ELSEWHERE:
                raise AttributeError(f"a task has no {name}(). {self._how()}")
            raise AttributeError(f"'Task' object has no attribute {name!r}")

    def _how(self) -> str:
        """The line to write to enqueue it, or to run it here."""
        function, signature = self.func.__name__, self.definition.signature
        here = f"await {function}.acall(...)" if signature.is_async else f"{function}.call(...)"
        run = "" if signature.injected or self.definition.gather else f"; to run it here and now: {here}"
        return f"To enqueue a job: {function}.enqueue(...), or in async code: await {function}.aenqueue(...){run}"

    def handler(self) -> Handler:
        """The task as the runtime calls it."""
        return self.definition.handler()

    def __repr__(self) -> str:
        return f"Task({self.name!r})"

    def _found(self, look: Look | None) -> FoundJob[R] | None:
        if look is None or look.task not in self.definition.names:
            return None
        definition = self.definition
        return FoundJob(look, definition.binding.require(self.name), definition.codec.decode_result)

    def _check_call(self, verb: str, *, is_async: bool) -> None:
        signature = self.definition.signature
        function = signature.func.__name__
        if self.definition.gather:
            raise TypeError(
                f"{self.name} takes a batch of jobs, which {verb}() cannot supply. Run it with holdfast.testing"
            )
        if signature.injected:
            kinds = " and ".join(kind.__name__ for kind in signature.injected.values())
            raise TypeError(
                f"{self.name} takes an injected {kinds}, which {verb}() cannot supply. "
                "Run it with holdfast.testing, or call its func with your own"
            )
        if signature.is_async and not is_async:
            raise TypeError(f"{self.name} is async. Use: await {function}.acall(...)")
        if is_async and not signature.is_async:
            raise TypeError(f"{self.name} is sync. Use: {function}.call(...)")


class TaskDecorator(Protocol):
    """`@app.task`, bare or with options: `@app.task(queue="mail")`."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[Job, AsyncTransaction, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Job, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[AsyncTransaction, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Job, Transaction, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Job, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Transaction, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, /, **options: Unpack[TaskOptions]) -> "TaskDecorator": ...


def raw_job(
    task: str, payload: Mapping[str, object], options: Mapping[str, Any], settings: TaskSettings | None = None
) -> NewJob[Any]:
    """A job by task name, for producers without the handler's code; `settings` are the task's, if known."""
    checks.task_name(task, "task", InvalidOption)
    if not isinstance(payload, Mapping):
        raise InvalidPayload(
            f"payload must be a mapping of parameter names to JSON values, not {shown(payload)}"
        )
    values = enqueue_values(options)
    return NewJob(new_row(task, dump(dict(payload)), values, settings or TaskSettings()), values.get("conn"))


def enqueue_all(producer: Producer, jobs: Iterable[NewJob[R]], conn: object | None) -> list[JobHandle[R]]:
    """Write the jobs in one call, in order."""
    new = listed(jobs, conn)
    if not new:
        return []
    with sending([job.row for job in new]) as batch:
        return handles_of(producer, new, batch.sent(producer.enqueue(batch.rows, conn)))


async def aenqueue_all(
    producer: Producer, jobs: Iterable[NewJob[R]], conn: object | None
) -> list[JobHandle[R]]:
    """Write the jobs in one call, in order."""
    new = listed(jobs, conn)
    if not new:
        return []
    with sending([job.row for job in new]) as batch:
        return handles_of(producer, new, batch.sent(await producer.aenqueue(batch.rows, conn)))


def listed(jobs: Iterable[NewJob[R]], conn: object | None, verb: str = "enqueue_many") -> list[NewJob[R]]:
    """The jobs, checked: all of them go over the one connection."""
    new = list(jobs)
    for job in new:
        if not isinstance(job, NewJob):
            raise TypeError(f"{verb} takes what task.job(...) returns, not {shown(job)}")
        if job.conn is not None and job.conn is not conn:
            raise InvalidOption(
                f"a job of {job.task} was made with using(conn=...), which {verb} does not read. "
                f"Pass it there: {verb}(jobs, conn=conn)"
            )
    return new


def handles_of(
    producer: Producer, jobs: Sequence[NewJob[R]], written: Sequence[Enqueued]
) -> list[JobHandle[R]]:
    made = []
    for job, (id_text, created, _) in zip(jobs, written, strict=True):
        assert id_text is not None
        row = job.row
        made.append(handle_of(id_text, created, row.task, row.queue, producer, job.decode))
    return made
