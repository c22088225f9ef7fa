"""The calls of a run: steps, transactions, jobs of other queues and child runs."""

import inspect
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload
from uuid import uuid5

from ... import telemetry
from ...db.transaction import AsyncTransaction, Transaction
from ...errors import InvalidOption
from ...model.backoff import Backoff
from ...runtime.handler import PayloadError
from ...store.chains import specs
from ...tasks import checks
from ...tasks.convert import Misfit
from ...tasks.group import MOST_MEMBERS
from ...tasks.newjob import NewJob
from ...tasks.payload import shown
from ...tasks.task import Task
from .bodies import Options, Result, begin, call, fingerprint, mistaken, named_result
from .core import Core, Scope
from .faults import EXITS, left
from .journal import Kind, NewChild, NewJobs, Record, Stored, Wait
from .messages import Message
from .replay import CallPlace
from .steps import Attempts, Body, Step, idempotency_key
from .workflow_type import WorkflowType

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
T_co = TypeVar("T_co", covariant=True)
_MOST_BYTES = 512  # of the id of a run


class Steps:
    """wf.using(...): options of the next calls. It is not shared, and not recorded."""

    def __init__(self, core: Core, options: Options) -> None:
        self._core = core
        self._options = options

    @overload
    def step(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Step[T]: ...
    @overload
    def step(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Step[T]: ...
    def step(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Step[Any]:
        """Run a function once: `await wf.step(charge, order_id, cents)`. Every replay is given its recorded result."""
        scope = self._core.scope("step")
        name, result = named_result(fn, self._options.name, "step")
        place, found, input_hash = self._take(scope, name, "step", args, kwargs)

        body = Body(fn, args, kwargs, result)
        attempts = Attempts(
            self._core, scope, place, "step", self._options, body.attempt, input_hash, result.is_async
        )
        return Step(self._core, place, found, attempts.run, body.decode)

    def transact(
        self,
        fn: Callable[Concatenate[AsyncTransaction, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Step[T]:
        """fn's writes and the record commit together, exactly once: `await wf.transact(reserve_stock, order_id)`."""
        core = self._core

        async def attempt(attempts: Attempts, result: Result, number: int) -> Stored:
            async def body(tx: AsyncTransaction) -> str:
                info = (attempts.info, number)
                return result.encode(await call(fn, (tx, *args), kwargs, info, result.is_async))

            return await core.transact(body, lambda text: attempts.done(number, text))

        return self._transaction(fn, args, kwargs, attempt)

    def _transact_blocking(
        self, fn: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Step[T]:
        """The same with a plain function: of a SyncWorkflow."""
        core = self._core
        if inspect.iscoroutinefunction(fn):
            raise TypeError(
                f"wf.transact() of a plain workflow takes a plain function, and {shown(fn)} is async. Write "
                f"def {fn.__name__}(tx: Transaction, ...), or make the workflow an async def"
            )

        async def attempt(attempts: Attempts, result: Result, number: int) -> Stored:
            def body(tx: Transaction) -> str:
                made = begin(fn, (attempts.info, number))
                try:
                    return result.encode(made(tx, *args, **kwargs))
                except EXITS as error:
                    raise left("the step", error) from error
                except GeneratorExit as error:
                    raise RuntimeError("the step raised GeneratorExit") from error
                except TypeError as error:
                    raise mistaken(made, (tx, *args), kwargs, error) from error.__cause__

            return await core.transact_blocking(body, lambda text: attempts.done(number, text))

        return self._transaction(fn, args, kwargs, attempt)

    def _transaction(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        make: Callable[[Attempts, Result, int], Coroutine[Any, Any, Stored]],
    ) -> Step[Any]:
        core = self._core
        scope = core.scope("transact")
        name, result = named_result(fn, self._options.name, "transact")
        place, found, input_hash = self._take(scope, name, "transaction", args, kwargs)

        async def attempt(attempts: Attempts, number: int) -> Stored:
            await core.flush()
            return await make(attempts, result, number)

        attempts = Attempts(core, scope, place, "transaction", self._options, attempt, input_hash)
        return Step(core, place, found, attempts.run, lambda row: result.decode(row.record.result))

    def call(self, task: Task[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Step[T]:
        """A job of the task's own queue, with its pool, limits, rate and breaker: `await wf.call(thumbnail, path)`. The run
        waits without a worker."""
        scope = self._core.scope("call")
        self._unshielded("call")
        jobs = self._members("call", [self._job(task, "call").job(*args, **kwargs)])
        place, found, input_hash = self._take(scope, self._options.name or task.name, "call", args, kwargs)
        act = self._jobs(scope, place, jobs, False, None, input_hash)
        return Step(self._core, place, found, act, lambda row: _loaded(jobs[0], row.record.result))

    def map(self, task: Task[[A], T], items: Iterable[A], /, *, limit: int | None = None) -> Step[list[T]]:
        """A job for each item, at most `limit` of them at once, and one wake-up when the last has ended:
        `await wf.map(thumbnail, paths, limit=100)`. Results are in the order of the items."""
        scope = self._core.scope("map")
        self._unshielded("map")
        if limit is not None:
            checks.integer(limit, "limit", 1, 1_000_000, InvalidOption)
        made = self._job(task, "map")
        jobs = self._members("map", [made.job(item) for item in items])
        place, found, input_hash = self._take(
            scope, self._options.name or task.name, "call", (len(jobs),), {}
        )
        act = self._jobs(scope, place, jobs, True, limit, input_hash)

        def decode(row: Stored) -> list[T]:
            results = json.loads(row.record.result or "[]")
            if len(results) != len(jobs):
                raise Misfit(f"it has {len(results):,} results, and the code now gives {len(jobs):,} items")
            return [_loaded(job, json.dumps(one)) for job, one in zip(jobs, results, strict=True)]

        return Step(self._core, place, found, act, decode)

    def start(self, workflow: WorkflowType[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Step[Child[T]]":
        """Start a run of another workflow: `child = await wf.start(ship, order_id)`, then `await child.result()`."""
        core, options = self._core, self._options
        scope = core.scope("start")
        self._unshielded("start")
        if not isinstance(workflow, WorkflowType):
            raise TypeError(
                f"wf.start() takes a workflow, not {shown(workflow)}. "
                "For a function there is wf.step(), for a task wf.call()"
            )
        payload = workflow._encode(args, kwargs)
        place, found, input_hash = self._take(scope, options.name or workflow.name, "child", args, kwargs)
        child_id = options.id or _child_id(core, place.key)
        checks.key(child_id, "id", InvalidOption, empty=False)

        async def act(_: Stored | None) -> Stored:
            began = core.journal.time()
            if core.may_cancel(scope) and core.journal.cancelled.is_set():
                return await core.record(Record(place.key, "child", "cancelled", place.ordinal, began=began))
            await core.flush()
            new = NewChild(
                workflow.name,
                child_id,
                workflow.version,
                payload,
                options.queue or workflow.queue,
                "abandon" if options.on_cancel == "abandon" else "cancel",
            )
            row = Record(
                place.key,
                "child",
                "done",
                place.ordinal,
                json.dumps(child_id),
                began=began,
                input_hash=input_hash,
            )
            return await core.start(new, row)

        return Step(core, place, found, act, lambda row: Child(core, workflow, place.key, child_id))

    def _take(
        self, scope: Scope, name: str, kind: Kind, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[CallPlace, Stored | None, bytes | None]:
        """Key, place and record of a call that begins here."""
        core = self._core
        place = core.replay.take(scope.name, name)
        found = core.find(scope, place, kind, later=True)
        now = fingerprint(args, kwargs)
        before = found.record.input_hash if found is not None else None
        if before is not None and now is not None and before != now:
            telemetry.emit("workflow.changed_input", run_id=str(core.history.run_id), key=place.key)
        return place, found, now

    def _unshielded(self, verb: str) -> None:
        if self._options.on_cancel == "shield":
            raise InvalidOption(
                f'wf.{verb}() cannot have on_cancel="shield", which is for steps: what it starts is not in this worker. '
                'A child continues alone with on_cancel="abandon"'
            )

    def _job(self, task: Task[P, T], verb: str) -> Task[P, T]:
        if not isinstance(task, Task):
            raise TypeError(f"wf.{verb}() takes a task, not {shown(task)}. For a function there is wf.step()")
        return task.using(queue=self._options.queue) if self._options.queue is not None else task

    @staticmethod
    def _members(verb: str, jobs: "list[NewJob[Any]]") -> "list[NewJob[Any]]":
        """Jobs that the database takes as those of one call. Another try would be refused too."""
        if len(jobs) > MOST_MEMBERS:
            raise InvalidOption(
                f"wf.{verb}() was given {len(jobs):,} items, more than the limit of {MOST_MEMBERS:,}. "
                "Call it several times, with a part of them each"
            )
        for row in [job.row for job in jobs[:1]]:  # the others have the same options
            name = "idempotency_key" if row.idempotency_key is not None else "replace_key"
            if row.idempotency_key is not None or row.replace_key is not None:
                raise InvalidOption(
                    f"wf.{verb}() takes a task without {name}: it might be a job that exists already, whose end the run "
                    "would not hear of. Each call of a run makes its jobs once. Leave the key out"
                )
        return jobs

    def _jobs(
        self,
        scope: Scope,
        place: CallPlace,
        jobs: "list[NewJob[Any]]",
        many: bool,
        limit: int | None,
        input_hash: bytes | None,
    ) -> Callable[[Stored | None], Coroutine[Any, Any, Stored]]:
        core = self._core

        async def act(found: Stored | None) -> Stored:
            cancellable = core.may_cancel(scope)
            began = core.journal.time()
            if found is None:
                if cancellable and core.journal.cancelled.is_set():
                    return await core.record(
                        Record(place.key, "call", "cancelled", place.ordinal, began=began)
                    )
                if not jobs:
                    return await core.record(
                        Record(place.key, "call", "done", place.ordinal, "[]", began=began)
                    )
                await core.flush()
                made = specs([job.row for job in jobs]) or "[]"
                row = Record(place.key, "call", "calling", place.ordinal, began=began, input_hash=input_hash)
                await core.call(NewJobs(made, many, limit), row)
            wait = Wait(
                place.key, place.ordinal, "call", f"call:{place.key}", began=began, cancellable=cancellable
            )
            return await core.waits.until_decided(wait)

        return act


class Child(Generic[T_co]):
    """A run started by this one: `child = await wf.start(ship, order_id)`. result() is a durable wait."""

    __slots__ = ("_core", "_key", "_workflow", "id")

    def __init__(self, core: Core, workflow: WorkflowType[Any, T_co], key: str, child_id: str) -> None:
        self._core = core
        self._workflow = workflow
        self._key = key
        self.id = child_id

    def result(self) -> Step[T_co]:
        """Its result: `await child.result()`. Raises StepFailed if it failed or was cancelled."""
        core = self._core
        scope = core.scope("result")
        place = core.replay.take(scope.name, f"{self._workflow.name}.result")
        found = core.find(scope, place, "child", later=True)
        message = f"child:{self._key}"
        core.handed.ask(message)

        async def act(_: Stored | None) -> Stored:
            wait = Wait(
                place.key,
                place.ordinal,
                "child",
                message,
                began=core.journal.time(),
                cancellable=core.may_cancel(scope),
            )
            return await core.waits.until_decided(wait)

        return Step(core, place, found, act, lambda row: _fitting(self._workflow._decode, row.record.result))

    def signal(self, message: Message) -> Step[None]:
        """Send it a signal, once: `await child.signal(STOP("now"))`."""
        core = self._core
        run = self._workflow.get(self.id)

        async def send() -> None:
            await run.asignal(message, idempotency_key=idempotency_key(core, step.key)[-512:])

        step = Steps(core, Options(name=f"{self._workflow.name}.signal")).step(send)
        return step

    def cancel(self) -> Step[None]:
        """Request its cancellation: `await child.cancel()`."""
        run = self._workflow.get(self.id)

        async def cancel() -> None:
            await run.acancel()

        return Steps(self._core, Options(name=f"{self._workflow.name}.cancel")).step(cancel)


def _child_id(core: Core, key: str) -> str:
    """Of a child that was given none: readable, or, deep in a family, of the run and the place alone."""
    text = f"{core.history.id}/{_era(core)}{key}"
    if len(text.encode()) <= _MOST_BYTES:
        return text
    return str(uuid5(core.history.run_id, f"{_era(core)}{key}"))


def _era(core: Core) -> str:
    return f"{core.history.era}/" if core.history.era else ""


def _loaded(job: NewJob[Any], text: str | None) -> Any:
    return _fitting(job.decode, text)


def _fitting(decode: Callable[[str | None], Any], text: str | None) -> Any:
    try:
        return decode(text)
    except PayloadError as error:
        raise Misfit(str(error)) from None


def using(options: Options, given: Mapping[str, Any]) -> Options:
    """The options with what was given, checked."""
    fail = InvalidOption
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in ("timeout", "deadline"):
            checked[name] = checks.period(value, name, fail)
            continue
        if name == "max_attempts":
            checks.integer(value, name, 1, 2**31 - 1, fail)
        elif name == "queue":
            checks.queue_name(value, fail)
        elif name == "name":
            checks.task_name(value, "the step's name", fail)
        elif name == "id":
            checks.key(value, name, fail, empty=False)
        elif name == "retry" and not isinstance(value, Backoff):
            raise fail(f"retry must be a Backoff, not {shown(value)}. Write retry=Backoff(first=2, cap=600)")
        elif name == "on_cancel" and value not in ("cancel", "abandon", "shield"):
            raise fail(f'on_cancel must be "cancel", "abandon" or "shield", not {shown(value)}')
        checked[name] = value
    return replace(options, **checked)
