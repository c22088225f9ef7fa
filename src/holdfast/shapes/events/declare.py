"""What users declare: `@app.on(OrderPaid)` and `@app.projection("order_totals", on=["order.*"])`."""

import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import (
    Any,
    Generic,
    Literal,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    get_origin,
    overload,
)

from ...db.transaction import AsyncTransaction, Transaction
from ...errors import TaskDefinitionError
from ...model.backoff import Backoff
from ...model.breaker import Breaker
from ...model.duration import Duration, seconds
from ...runtime.job import Job
from ...tasks import checks
from ...tasks.definition import Binding, Definition, Place
from ...tasks.payload import shown
from ...tasks.registry import TaskRegistry
from ...tasks.signature import HandlerSignature, analyse
from ...tasks.task import Task
from ...tasks.taskset import TaskSet
from .contract import type_of
from .event import Event, EventConverter
from .verbs import Subscription

KIND = "subscriptions"
MOST_SHARDS = 8
BATCH = 500
TIMEOUT = 60.0

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Start = Literal["now", "start"]
Poison = Literal["stop", "skip", "park_key"]
Using = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]


class ConsumerOptions(TypedDict, total=False):
    """What `@app.on(...)` takes beside its event types: the options of a task, and where the subscription starts."""

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
    """A subscription as the code has it."""

    name: str
    kind: str  # 'jobs' or 'projection'
    patterns: tuple[str, ...]
    start: Start
    place: Place
    task: Definition | None = None  # of a consumer
    parameter: str = ""  # of the event, in the consumer's payload
    apply: "Apply | None" = None  # of a projection
    shards: int = 1


@dataclass(frozen=True, slots=True)
class Apply:
    """How a projection is called."""

    func: Callable[..., Any]
    is_async: bool
    many: bool  # it takes a sequence of events
    converter: EventConverter
    batch: int
    poison: Poison
    retry: Backoff
    max_attempts: int
    timeout: float
    using: Using | None = None
    tables: tuple[str, ...] = ()
    version: int = 1


class Consumer(Subscription, Generic[T]):
    """What `@app.on(...)` makes: a subscription, and the task whose jobs carry its events."""

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


class Projection(Subscription):
    """What `@app.projection(...)` makes."""

    def __init__(self, name: str, binding: Binding, func: Callable[..., Any], apply: Apply) -> None:
        super().__init__(name, binding)
        self.func = func
        self.apply = apply


class OnDecorator(Protocol[T]):
    """The decorator of `@app.on(...)`: injected parameters come first, then the event."""

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


class ProjectionDecorator(Protocol[T_co]):
    """The decorator of `@app.projection(...)`: the transaction first, then the event or a sequence of events."""

    @overload
    def __call__(self, fn: Callable[[Any, Event[T_co]], object], /) -> Projection: ...
    @overload
    def __call__(self, fn: Callable[[Any, Sequence[Event[T_co]]], object], /) -> Projection: ...


class Subscribing(TaskRegistry):
    """The part of a registry that declares who reads the log."""

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

        Takes event classes, or names and patterns such as "order.*". The subscription has the function's name. It begins
        with events that are published from now on, or with `start="start"` at the beginning of the log."""
        patterns = patterns_of(what, "on")
        start = _start(options.pop("start", "now"))

        def declare(fn: Any, /) -> Consumer[Any]:
            signature = analyse(fn, sys._getframe(1).f_locals)
            parameter = _event_parameter(signature, patterns)
            task = self._declare(signature, options)
            name = task.name
            made = Declared(name, "jobs", patterns, start, Place.of(fn), task.definition, parameter)
            self._declare_thing(KIND, name, made, same=lambda other: _replace(self, made, other))
            return Consumer(task, self._binding)

        return declare

    @overload
    def projection(
        self, name: str, /, *, on: tuple[type[A]], **options: Unpack["ProjectionOptions"]
    ) -> ProjectionDecorator[A]: ...
    @overload
    def projection(
        self, name: str, /, *, on: tuple[type[A], type[B]], **options: Unpack["ProjectionOptions"]
    ) -> ProjectionDecorator[A | B]: ...
    @overload
    def projection(
        self, name: str, /, *, on: type[A], **options: Unpack["ProjectionOptions"]
    ) -> ProjectionDecorator[A]: ...
    @overload
    def projection(
        self, name: str, /, *, on: Sequence[str], **options: Unpack["ProjectionOptions"]
    ) -> ProjectionDecorator[Any]: ...
    def projection(self, name: str, /, *, on: Any, **options: Unpack["ProjectionOptions"]) -> Any:
        """Keep a table up to date from events: `@app.projection("order_totals", on=["order.*"])` over
        `async def totals(tx: AsyncTransaction, event: Event[Any])`, or `events: Sequence[Event[Any]]` for batches.

        What is written through `tx` commits together with the position: each event takes effect exactly once, in order."""
        checks.task_name(name, "the projection's name", TaskDefinitionError)
        patterns = patterns_of([on] if isinstance(on, str | type) else on, "projection")
        _check_options(name, options)

        def declare(fn: Any, /) -> Projection:
            apply = _apply(name, analyse(fn, sys._getframe(1).f_locals), patterns, options)
            made = Declared(
                name,
                "projection",
                patterns,
                _start(options.get("start", "start")),
                Place.of(fn),
                apply=apply,
                shards=_whole(name, "shards", options.get("shards", 1), MOST_SHARDS),
            )
            self._declare_thing(KIND, name, made, same=lambda other: _replace(self, made, other))
            return Projection(name, self._binding, fn, apply)

        return declare


class ProjectionOptions(TypedDict, total=False):
    """What `@app.projection(...)` takes beside its name and its event types."""

    tables: Sequence[str]  # those that it writes: `holdfast projection rebuild` makes them anew
    version: int
    start: Start
    shards: int  # that work side by side, each on its own keys
    batch: int  # events in one transaction, at most
    poison: Poison  # what becomes of an event that fails again and again
    max_attempts: int  # before that
    retry: Backoff
    timeout: Duration  # of one call, and of its transaction
    using: Using  # opens a transaction of your own: a SQLAlchemy session, a Django connection


def declared(tasks: TaskSet) -> list[Declared]:
    """Every subscription that the code declares."""
    return list(tasks.declared(KIND).values())


def _replace(registry: TaskRegistry, made: Declared, other: Declared) -> bool:
    """A module may be run again: the newer function of one place counts."""
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
    if start not in ("now", "start"):
        raise TaskDefinitionError(f'start must be "now" or "start", not {shown(start)}')
    return start


def _whole(name: str, what: str, value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise TaskDefinitionError(
            f"projection {name!r}: {what} must be between 1 and {most}, not {shown(value)}"
        )
    return value


def _event_parameter(signature: HandlerSignature, patterns: Sequence[str]) -> str:
    """The one parameter that is no Job and no transaction: the event."""
    function = signature.func.__name__
    params = list(signature.params)
    if len(params) != 1 or (
        get_origin(signature.hint(params[0])) is not Event and signature.hint(params[0]) is not Event
    ):
        raise TaskDefinitionError(
            f"{function}: a consumer takes injected parameters first and then one event. "
            f"Write: def {function}(event: Event[...])"
        )
    check_fits(function, signature.hint(params[0]), patterns)
    return params[0]


def check_fits(function: str, hint: Any, patterns: Sequence[str]) -> None:
    """The event class of the annotation is one of those that are subscribed to."""
    for part in get_args(hint):
        for member in get_args(part) or (part,):
            kind = type_of(member)
            if kind is not None and not any(_matches(pattern, kind.name) for pattern in patterns):
                raise TaskDefinitionError(
                    f"{function} takes {member.__qualname__}, which is {kind.name!r}, and subscribes to "
                    f"{', '.join(patterns)}. Subscribe to it too, or take Event[Any]"
                )


def _matches(pattern: str, name: str) -> bool:
    import fnmatch

    return fnmatch.fnmatchcase(name, pattern)


def _timeout(name: str, value: Any) -> float:
    try:
        found = seconds(value, "timeout")
    except (TypeError, ValueError) as error:
        raise TaskDefinitionError(f"projection {name!r}: {error}") from None
    if not 0 < found <= 3600:
        raise TaskDefinitionError(
            f"projection {name!r}: timeout must be between 1 ms and 1 h, not {shown(value)}"
        )
    return found


def _tables(name: str, tables: Any) -> tuple[str, ...]:
    """Names as SQL has them: order_totals, or sales.order_totals."""
    if isinstance(tables, str) or not all(isinstance(table, str) and table.strip() for table in tables):
        raise TaskDefinitionError(
            f'projection {name!r}: tables must be names of tables, such as ["order_totals"], not {shown(tables)}'
        )
    if len(set(tables)) < len(tables):
        raise TaskDefinitionError(f"projection {name!r}: tables names one twice: {', '.join(tables)}")
    return tuple(tables)


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    known = ProjectionOptions.__annotations__
    if unknown := [option for option in options if option not in known]:
        raise TaskDefinitionError(
            f"projection {name!r} has no option {unknown[0]!r}. It takes {', '.join(sorted(known))}"
        )


def _apply(
    name: str, signature: HandlerSignature, patterns: Sequence[str], options: Mapping[str, Any]
) -> Apply:
    function, params = signature.func.__name__, list(signature.params)
    using = options.get("using")
    wanted = 1 if using is None else 2
    hint = signature.hint(params[-1]) if params else None
    many = get_origin(hint) in (list, Sequence, tuple, typing.get_origin(Sequence[int]))
    inner = get_args(hint)[0] if many and get_args(hint) else hint
    is_event = inner is Event or get_origin(inner) is Event
    has_transaction = signature.transaction != "none" or using is not None
    if len(params) != wanted or not is_event or not has_transaction or signature.wants_job:
        tx = "AsyncTransaction" if signature.is_async else "Transaction"
        prefix = "async " if signature.is_async else ""
        raise TaskDefinitionError(
            f"{function}: a projection takes a transaction and then one event, or a sequence of events. "
            f"Write: {prefix}def {function}(tx: {tx}, event: Event[...])"
        )
    check_fits(function, inner, patterns)
    retry, poison = options.get("retry") or Backoff(), options.get("poison", "stop")
    if not isinstance(retry, Backoff):
        raise TaskDefinitionError(f"projection {name!r}: retry must be a Backoff, not {shown(retry)}")
    if using is not None and not callable(using):
        raise TaskDefinitionError(
            f"projection {name!r}: using must be a function that opens a transaction, such as Session.begin, not {shown(using)}"
        )
    if poison not in get_args(Poison):
        raise TaskDefinitionError(
            f"projection {name!r}: poison must be one of {', '.join(get_args(Poison))}, not {shown(poison)}"
        )
    return Apply(
        signature.func,
        inspect.iscoroutinefunction(signature.func),
        many,
        EventConverter(*(get_args(inner) or (Any,))),
        _whole(name, "batch", options.get("batch", BATCH), 10_000),
        cast(Poison, poison),
        retry,
        _whole(name, "max_attempts", options.get("max_attempts", 5), 1000),
        _timeout(name, options.get("timeout", TIMEOUT)),
        using,
        _tables(name, options.get("tables", ())),
        _whole(name, "version", options.get("version", 1), 2**31 - 1),
    )
