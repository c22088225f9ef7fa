"""The options of a projection, and the verbs of a declared one."""

import fnmatch
import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import (
    Any,
    Literal,
    Protocol,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    get_origin,
    overload,
)

from ...errors import TaskDefinitionError
from ...model.backoff import Backoff
from ...model.duration import Duration, seconds
from ...model.queue import Rate
from ...tasks.definition import Binding
from ...tasks.payload import shown
from ...tasks.signature import HandlerSignature
from .apply import Apply, Poison, Using
from .builds import Rebuild, drop_old, start
from .contract import type_of
from .event import Event, EventConverter
from .lookups import per_second
from .retry import Retried, Retrying, in_a_loop
from .store import Failure
from .verbs import Subscription

MOST_SHARDS = 8
BATCH = 500
TIMEOUT = 60.0

T_co = TypeVar("T_co", covariant=True)
Start = Literal["now", "start"] | int | datetime


class Projection(Subscription):
    """The result of `@app.projection(...)`."""

    def __init__(
        self, name: str, binding: Binding, func: Callable[..., Any], apply: Apply, patterns: Sequence[str]
    ) -> None:
        super().__init__(name, binding)
        self.func = func
        self.apply = apply
        self.patterns = tuple(patterns)

    def failures(self, key: str | None = None) -> list[Failure]:
        """Events that it did not apply, in order: skipped ones, and those that wait for a parked key."""
        return self._verbs.failures(self.name, key)

    async def afailures(self, key: str | None = None) -> list[Failure]:
        return await self._verbs.failures.arun(self.name, key)

    def retry_failures(self, key: str | None = None) -> Retried:
        """Apply them now, in order, in this process. A key whose events are all applied is no longer parked."""
        return in_a_loop(self._verbs.database, lambda: self.aretry_failures(key))

    def forget_failures(self, key: str | None = None, *, position: int | None = None) -> int:
        """Give them up: those of a key, the one at a position, or all; returns how many. A key without failures continues
        with its next event."""
        return self._verbs.forget_failures(self.name, key, position)

    async def aforget_failures(self, key: str | None = None, *, position: int | None = None) -> int:
        return await self._verbs.forget_failures.arun(self.name, key, position)

    def rebuild(
        self,
        *,
        version: int | None = None,
        seed: str | None = None,
        since: int | None = None,
        rate: Rate | None = None,
    ) -> Rebuild:
        """Build its tables again beside the live ones, in workers whose code has this `version`, and swap them when they are
        up to date. With `seed`, a schema with tables of the same names that contain all events up to the position `since`,
        it begins there. `rate`: events per second, at most."""
        verbs, which = self._verbs, version or self.apply.version
        name = verbs.run(
            start(self.name, self.apply.tables, self.patterns, which, seed, since, per_second(rate))
        )
        return Rebuild(name, self.name, verbs)

    async def arebuild(
        self,
        *,
        version: int | None = None,
        seed: str | None = None,
        since: int | None = None,
        rate: Rate | None = None,
    ) -> Rebuild:
        verbs, which = self._verbs, version or self.apply.version
        begun = start(self.name, self.apply.tables, self.patterns, which, seed, since, per_second(rate))
        return Rebuild(await verbs.arun(begun), self.name, verbs)

    def drop_old(self) -> list[str]:
        """Drop the tables that the last rebuild has replaced; returns their names."""
        return self._verbs.run(drop_old(self.name))

    async def adrop_old(self) -> list[str]:
        return await self._verbs.arun(drop_old(self.name))

    async def aretry_failures(self, key: str | None = None) -> Retried:
        verbs = self._verbs
        await verbs.find.arun(self.name)
        return await Retrying(verbs.database, self.apply, self.name, key, verbs.actor).run()


class ProjectionDecorator(Protocol[T_co]):
    """The decorator of `@app.projection(...)`: the transaction first, then the event or a sequence of events."""

    @overload
    def __call__(self, fn: Callable[[Any, Event[T_co]], object], /) -> Projection: ...
    @overload
    def __call__(self, fn: Callable[[Any, Sequence[Event[T_co]]], object], /) -> Projection: ...
    @overload
    def __call__(self, fn: Callable[[Any, list[Event[Any]]], object], /) -> Projection: ...


class ProjectionOptions(TypedDict, total=False):
    """The options of `@app.projection(...)` apart from its name and its event types."""

    tables: Sequence[str]  # the tables that it writes: `holdfast projection rebuild` builds them again
    version: int
    start: Start
    shards: int  # shards that work side by side, each on its own keys
    batch: int  # events in one transaction, at most
    poison: Poison  # how an event is treated that fails again and again
    max_attempts: int  # before that
    retry: Backoff
    timeout: Duration  # of one call, and of its transaction
    using: Using  # opens a transaction of your own: a SQLAlchemy session, a Django connection


def whole(name: str, what: str, value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise TaskDefinitionError(
            f"projection {name!r}: {what} must be between 1 and {most}, not {shown(value)}"
        )
    return value


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


def check_options(name: str, options: Mapping[str, Any]) -> None:
    known = ProjectionOptions.__annotations__
    if unknown := [option for option in options if option not in known]:
        raise TaskDefinitionError(
            f"projection {name!r} has no option {unknown[0]!r}. It takes {', '.join(sorted(known))}"
        )


def apply_of(
    name: str, signature: HandlerSignature, patterns: Sequence[str], options: Mapping[str, Any]
) -> Apply:
    function, params = signature.func.__name__, list(signature.params)
    using = options.get("using")
    if using is not None and not callable(using):
        raise TaskDefinitionError(
            f"projection {name!r}: using must be a function that opens a transaction, not {shown(using)}"
        )
    wanted = 1 if using is None else 2
    hint = signature.hint(params[-1]) if params else None
    many = get_origin(hint) in (list, Sequence, tuple, get_origin(Sequence[int]))
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
    if retry.deadline is not None:
        raise TaskDefinitionError(
            f"projection {name!r}: Backoff(deadline=) is for jobs. An event of a projection is tried max_attempts times: "
            "leave deadline out"
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
        whole(name, "batch", options.get("batch", BATCH), 10_000),
        cast(Poison, poison),
        retry,
        whole(name, "max_attempts", options.get("max_attempts", 5), 1000),
        _timeout(name, options.get("timeout", TIMEOUT)),
        cast(Using | None, using),
        _tables(name, options.get("tables", ())),
        whole(name, "version", options.get("version", 1), 2**31 - 1),
    )
