"""What users declare: `@app.on(OrderPaid)` and `@app.projection("order_totals", on=["order.*"])`."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import (
    Any,
    Generic,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_origin,
    overload,
)

from ...db.transaction import AsyncTransaction, Transaction
from ...errors import TaskDefinitionError
from ...follow import Follower, LogRow
from ...model.backoff import Backoff
from ...model.breaker import Breaker
from ...model.duration import Duration
from ...runtime.job import Job
from ...tasks import checks
from ...tasks.definition import Binding, Definition, SourceLine
from ...tasks.payload import shown
from ...tasks.registry import TaskRegistry
from ...tasks.signature import HandlerSignature, analyse
from ...tasks.task import Task
from ...tasks.taskset import TaskSet
from .apply import Apply
from .as_version import row_maker
from .contract import type_of
from .event import Event
from .follow import cloudevent_of, event_of
from .projection import (
    MOST_SHARDS,
    Projection,
    ProjectionDecorator,
    ProjectionOptions,
    Start,
    apply_of,
    check_fits,
    check_options,
    whole,
)
from .verbs import Followed, Subscription

KIND = "subscriptions"

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
T = TypeVar("T")


class ConsumerOptions(TypedDict, total=False):
    """The options of `@app.on(...)` apart from its event types: those of a task, and where the subscription starts."""

    name: str
    queue: str
    priority: int
    max_attempts: int
    retry: Backoff
    lease: Duration
    timeout: Duration
    process: bool
    memory_limit: int
    breaker: Breaker
    start: Start


@dataclass(frozen=True, slots=True)
class Declared:
    """A subscription as the code declares it."""

    name: str
    kind: str  # 'jobs', 'projection', or a follower's kind
    patterns: tuple[str, ...]
    start: Start
    place: SourceLine
    task: Definition | None = None  # of a consumer
    parameter: str = ""  # of the event, in the consumer's payload
    apply: Apply | None = None  # of a projection
    shards: int = 1
    follower: Follower | None = None

    @property
    def version(self) -> int:
        """The version of its code: a projection is run by code of the version that its tables were built by."""
        return 1 if self.apply is None else self.apply.version


class Consumer(Subscription, Generic[T]):
    """The result of `@app.on(...)`: a subscription, and the task whose jobs carry its events."""

    def __init__(self, task: Task[Any, Any], binding: Binding) -> None:
        super().__init__(task.name, binding)
        self.task = task

    @property
    def func(self) -> Callable[..., object]:
        """The function as it was written."""
        return self.task.func

    def call(self, event: Event[T]) -> Any:
        """Run it here and now, without a database: `await send_receipt.call(event)` for an async one."""
        signature = self.task.definition.signature
        if signature.injected:
            kinds = " and ".join(kind.__name__ for kind in signature.injected.values())
            raise TypeError(
                f"{self.name} takes an injected {kinds}, which call() cannot supply. Call its func with your own"
            )
        return signature.func(event)


class OnDecorator(Protocol[T]):
    """The decorator of `@app.on(...)`: injected parameters before or after the event."""

    @overload
    def __call__(self, fn: Callable[[Event[T]], object], /) -> Consumer[T]: ...
    @overload
    def __call__(self, fn: Callable[[Job, Event[T]], object], /) -> Consumer[T]: ...
    @overload
    def __call__(self, fn: Callable[[AsyncTransaction, Event[T]], object], /) -> Consumer[T]: ...
    @overload
    def __call__(self, fn: Callable[[Transaction, Event[T]], object], /) -> Consumer[T]: ...
    @overload
    def __call__(self, fn: Callable[[Job, AsyncTransaction, Event[T]], object], /) -> Consumer[T]: ...
    @overload
    def __call__(self, fn: Callable[[Job, Transaction, Event[T]], object], /) -> Consumer[T]: ...
    @overload
    def __call__(self, fn: Callable[[Event[T], Job], object], /) -> Consumer[T]: ...
    @overload
    def __call__(self, fn: Callable[[Event[T], AsyncTransaction], object], /) -> Consumer[T]: ...
    @overload
    def __call__(self, fn: Callable[[Event[T], Transaction], object], /) -> Consumer[T]: ...
    @overload
    def __call__(self, fn: Callable[[Event[T], Job, AsyncTransaction], object], /) -> Consumer[T]: ...
    @overload
    def __call__(self, fn: Callable[[Event[T], Job, Transaction], object], /) -> Consumer[T]: ...


class Subscribing(TaskRegistry):
    """The part of a registry that declares subscribers of the log."""

    @overload
    def on(self, a: type[A], /, **options: Unpack[ConsumerOptions]) -> OnDecorator[A]: ...
    @overload
    def on(self, a: type[A], b: type[B], /, **options: Unpack[ConsumerOptions]) -> OnDecorator[A | B]: ...
    @overload
    def on(
        self, a: type[A], b: type[B], c: type[C], /, **options: Unpack[ConsumerOptions]
    ) -> OnDecorator[A | B | C]: ...
    @overload
    def on(self, /, *patterns: str, **options: Unpack[ConsumerOptions]) -> OnDecorator[Any]: ...
    def on(self, /, *what: Any, **options: Any) -> Any:
        """Run a job for every event: `@app.on(OrderPaid, queue="mail")` over `async def send(event: Event[OrderPaid])`.

        Takes event classes, or names and patterns such as "order.*". The subscription has the function's name. A new one
        begins with the events that are committed after a worker has registered it; with `start`, at the "start" of the log,
        after a position, or at a time.
        """
        patterns = patterns_of(what, "on")
        start = _start(options.pop("start", "now"))

        def declare(fn: Any, /) -> Consumer[Any]:
            signature = analyse(fn, sys._getframe(1).f_locals, subject_first=True)
            parameter = _event_parameter(signature, patterns)
            task = self._declare(signature, options)
            name = task.name
            made = Declared(name, "jobs", patterns, start, SourceLine.of(fn), task.definition, parameter)
            self._declare_thing(KIND, name, made, same=lambda other: _replace(self, made, other))
            return Consumer(task, self._binding)

        return declare

    @overload
    def projection(
        self, name: str, /, *, on: tuple[type[A]], **options: Unpack[ProjectionOptions]
    ) -> ProjectionDecorator[A]: ...
    @overload
    def projection(
        self, name: str, /, *, on: tuple[type[A], type[B]], **options: Unpack[ProjectionOptions]
    ) -> ProjectionDecorator[A | B]: ...
    @overload
    def projection(
        self, name: str, /, *, on: type[A], **options: Unpack[ProjectionOptions]
    ) -> ProjectionDecorator[A]: ...
    @overload
    def projection(
        self, name: str, /, *, on: Sequence[str], **options: Unpack[ProjectionOptions]
    ) -> ProjectionDecorator[Any]: ...
    def projection(self, name: str, /, *, on: Any, **options: Unpack[ProjectionOptions]) -> Any:
        """Keep a table up to date from events: `@app.projection("order_totals", on=["order.*"])` over
        `async def totals(tx: AsyncTransaction, event: Event[Any])`, or `events: Sequence[Event[Any]]` for batches.

        What is written through `tx` commits together with the position: each event takes effect exactly once, in order."""
        checks.task_name(name, "the projection's name", TaskDefinitionError)
        patterns = patterns_of([on] if isinstance(on, str | type) else on, "projection")
        check_options(name, options)

        def declare(fn: Any, /) -> Projection:
            apply = apply_of(name, analyse(fn, sys._getframe(1).f_locals), patterns, options)
            made = Declared(
                name,
                "projection",
                patterns,
                _start(options.get("start", "start")),
                SourceLine.of(fn),
                apply=apply,
                shards=whole(name, "shards", options.get("shards", 1), MOST_SHARDS),
            )
            self._declare_thing(KIND, name, made, same=lambda other: _replace(self, made, other))
            return Projection(name, self._binding, fn, apply, patterns)

        return declare

    def _follow(self, follower: Follower) -> Followed:
        """A follower of another shape (holdfast.follow) becomes a subscription."""
        name = checks.task_name(follower.name, f"the name of the {follower.kind}", TaskDefinitionError)
        patterns = patterns_of(follower.on, follower.kind)
        made = Declared(
            name, follower.kind, patterns, _start(follower.start), follower.place, follower=follower
        )
        self._declare_thing(KIND, name, made, same=lambda other: _replace(self, made, other))
        return Followed(name, self._binding)

    def _event_of(self, row: LogRow, era: int) -> Event[Any]:
        """For such a shape: the event of a row of the log that it has read itself."""
        return event_of(row, era)

    def _cloudevent_of(self, row: LogRow) -> str:
        return cloudevent_of(row)

    def _rows_as(self, what: str, classes: Sequence[Any]) -> Callable[[LogRow], LogRow] | None:
        """For such a shape: the function from a row to the row that it sends. It raises OtherVersion if it cannot."""
        return row_maker(what, classes)


def declared(tasks: TaskSet) -> list[Declared]:
    """Every subscription that the code declares, with the app's hooks around the functions of projections."""
    found: list[Declared] = list(tasks.declared(KIND).values())
    _check_tables(found)
    return [_hooked(d, d.apply, tasks) for d in found] if tasks.around else found


def _hooked(d: Declared, apply: Apply | None, tasks: TaskSet) -> Declared:
    if apply is None:
        return d
    return replace(d, apply=replace(apply, func=tasks.around.wrap(apply.func, is_async=apply.is_async)))


def _check_tables(found: Sequence[Declared]) -> None:
    """A rebuild replaces a table that one projection wrote: another projection's writes to it would be lost."""
    owners: dict[str, str] = {}
    for d in found:
        for table in d.apply.tables if d.apply is not None else ():
            if (other := owners.setdefault(table, d.name)) != d.name:
                raise TaskDefinitionError(
                    f"projections {other!r} and {d.name!r} both name the table {table!r}: a rebuild or a reset of one would "
                    "lose what the other wrote. Let one projection write it"
                )


def _replace(registry: TaskRegistry, made: Declared, other: Declared) -> bool:
    """A module may run again: the newer function at one place counts."""
    same = (made.kind, made.place.file, made.place.qualname) == (
        other.kind,
        other.place.file,
        other.place.qualname,
    )
    if same:
        registry._things[KIND][made.name] = made
    return same


def patterns_of(what: Sequence[Any], verb: str) -> tuple[str, ...]:
    """Event classes, names and patterns, as names and patterns."""
    if not what:
        raise TaskDefinitionError(
            f'{verb} needs an event class, a name or a pattern: on(OrderPaid), or on("order.*")'
        )
    found = []
    for item in what:
        kind = type_of(item)
        if kind is not None:
            found.append(kind.name)
        elif isinstance(item, str):
            checks.task_name(item.replace("*", "x"), "the event's type", TaskDefinitionError)
            found.append(item)
        elif isinstance(item, type):
            raise TaskDefinitionError(f'{item.__qualname__} is no event. Write @event("...") above the class')
        else:
            raise TaskDefinitionError(f"{verb} takes event classes, names and patterns, not {shown(item)}")
    return tuple(dict.fromkeys(found))


def _start(start: object) -> Start:
    """Where a new subscription begins; an existing one continues where it is."""
    if start in ("now", "start") or (isinstance(start, datetime) and start.tzinfo is not None):
        return cast(Start, start)
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return start
    raise TaskDefinitionError(
        f'start must be "now", "start", a position or a time with its zone, not {shown(start)}'
    )


def _event_parameter(signature: HandlerSignature, patterns: Sequence[str]) -> str:
    """The one parameter that is no Job and no transaction: the event."""
    function = signature.func.__name__
    params = list(signature.params)
    if len(params) != 1 or (
        get_origin(signature.hint(params[0])) is not Event and signature.hint(params[0]) is not Event
    ):
        raise TaskDefinitionError(
            f"{function}: a consumer takes one event, and beside it only what is injected. "
            f"Write: def {function}(event: Event[...])"
        )
    check_fits(function, signature.hint(params[0]), patterns)
    return params[0]
