"""Workflow: the argument of a run's function, through which it does everything durable."""

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID

from ...errors import ConfigurationError, InvalidOption
from ...model.backoff import Backoff
from ...model.duration import Duration, seconds
from ...tasks import checks
from ...tasks.payload import dump, shown
from . import parallel
from .bodies import PLAIN
from .calls import Steps, using
from .core import Core, Scope
from .faults import ContinueAsNew
from .journal import Kind, Record, Stored, Wait
from .messages import Received, Signal, SignalMisfit, loaded, taken
from .outgoing import Events, event_id
from .replay import marker
from .saga import Saga
from .steps import Step

P = ParamSpec("P")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
_OWN_SCOPES = ("saga", "undo", "patch")
_UNNAMED = re.compile(r"g[0-9]+\.[0-9]+")  # branches without a name


class Workflow(Steps):
    """A run, as its function sees it: `async def checkout(wf: Workflow, order_id: int) -> str`.

    The function may be called again from the top at any time, and replays what was recorded. Between its calls of `wf` it
    may only compute.
    """

    def __init__(
        self,
        core: Core,
        encode: Callable[[tuple[Any, ...], dict[str, Any]], str],
        events: Events | None = None,
    ) -> None:
        super().__init__(core, PLAIN)
        self._encode = encode
        self._events = events
        self._saga = Saga(core)

    @property
    def id(self) -> str:
        """What it was started with."""
        return self._core.history.id

    @property
    def run_id(self) -> UUID:
        """The id of its job."""
        return self._core.history.run_id

    @property
    def version(self) -> int:
        """Of the workflow, as the run was started."""
        return self._core.history.version

    @property
    def replaying(self) -> bool:
        """Whether the history has more than the code has asked for so far. What code logs meanwhile it has logged before:
        `holdfast worker` holds it back."""
        return self._core.replay.replaying

    @property
    def history_length(self) -> int:
        """How many records this era has: a reason for continue_as_new()."""
        return len(self._core.replay)

    def using(
        self,
        *,
        name: str | None = None,
        retry: Backoff | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        deadline: Duration | None = None,
        queue: str | None = None,
        id: str | None = None,  # noqa: A002 the word for it everywhere
        on_cancel: Literal["cancel", "abandon", "shield"] | None = None,
    ) -> Steps:
        """Options of the next calls: `wf.using(max_attempts=8, timeout=30).step(charge, order_id)`.

        `name` of the step, default: the function's qualified name. `timeout` of one attempt, `deadline` of all together.
        `queue` of a called job or a child, `id` of a child. `on_cancel`: what a cancel of this run does to a running step
        (`cancel` ends it, `shield` lets it end and records that) or to a child (`cancel`, or `abandon`: it continues).
        """
        given = {
            "name": name,
            "retry": retry,
            "max_attempts": max_attempts,
            "timeout": timeout,
            "deadline": deadline,
            "queue": queue,
            "id": id,
            "on_cancel": on_cancel,
        }
        return Steps(self._core, using(self._options, given))

    # Parallel: each branch has a scope of its own, so that its steps count by themselves

    @overload
    async def gather(self, a: Awaitable[T1], b: Awaitable[T2], /) -> tuple[T1, T2]: ...
    @overload
    async def gather(self, a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], /) -> tuple[T1, T2, T3]: ...
    @overload
    async def gather(self, *calls: Awaitable[T]) -> list[T]: ...
    async def gather(self, *calls: Awaitable[Any]) -> Any:
        """Run all of them together: `a, b = await wf.gather(wf.step(one), wf.step(two))`. It waits for each to end; then it
        raises the error of the first argument that failed."""
        return await parallel.gather(self._core, "gather", calls)

    @overload
    async def first(self, a: Awaitable[T1], b: Awaitable[T2], /) -> tuple[int, T1 | T2]: ...
    @overload
    async def first(
        self, a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], /
    ) -> tuple[int, T1 | T2 | T3]: ...
    @overload
    async def first(self, *calls: Awaitable[T]) -> tuple[int, T]: ...
    async def first(self, *calls: Awaitable[Any]) -> tuple[int, Any]:
        """The place and the result of the one that ends first: `n, value = await wf.first(wf.step(a), wf.sleep(60))`. The
        winner is recorded; the others are cancelled, and their records stay."""
        return await parallel.first(self._core, calls, Workflow.signal.__code__)

    def branch(
        self, name: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """A named branch, whose steps keep their keys when it moves: `await wf.gather(wf.branch("pay", pay, 1), ...)`."""
        core = self._core
        scope = core.scope("branch")
        checks.task_name(name, "the branch's name", InvalidOption)
        if name in _OWN_SCOPES or _UNNAMED.fullmatch(name):
            raise InvalidOption(f"a branch cannot be called {name!r}: that name is our own. Take another")
        key = core.replay.take_apart(scope.name, name).key
        core.made.add(key)
        return parallel.Branch(core, key, lambda: fn(*args, **kwargs))

    # Time and messages

    async def sleep(self, duration: Duration) -> None:
        """Durable: `await wf.sleep(timedelta(days=2))` holds no worker and survives every restart."""
        scope = self._core.scope("sleep")
        await self._wait(scope, "sleep", "sleep", until=_later(scope, seconds(duration, "sleep()")))

    async def sleep_until(self, at: datetime) -> None:
        """Until a time, with a time zone: `await wf.sleep_until(due)`."""
        scope = self._core.scope("sleep_until")
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise InvalidOption(f"sleep_until() takes a datetime with a time zone, not {shown(at)}")
        await self._wait(scope, "sleep", "sleep", until=at.astimezone(UTC))

    @overload
    async def signal(self, signal: Signal[T], *, timeout: None = None) -> T: ...
    @overload
    async def signal(self, signal: Signal[T], *, timeout: Duration) -> Received[T]: ...
    async def signal(self, signal: Signal[T], *, timeout: Duration | None = None) -> T | Received[T]:
        """The oldest signal of its name that was not taken yet; waits for one: `wanted = await wf.signal(CANCELLED,
        timeout=3600)` gives a Received, which is falsy when the time ran out. Without a timeout it gives the payload."""
        scope = self._core.scope("signal")
        Signal._check(signal, "signal")
        until = None if timeout is None else _later(scope, seconds(timeout, "timeout"))
        row = await self._wait(scope, signal.name, "signal", signal.name, until)
        found = self._taken(scope, signal, row)
        return found if timeout is not None else found.value

    def received(self, signal: Signal[T]) -> Step[list[T]]:
        """All signals of its name that have arrived, the oldest first, without waiting: `await wf.received(NOTE)`. Of many
        large ones as many as begin within 16 MiB; the next call returns the others."""
        core = self._core
        scope = core.scope("received")
        Signal._check(signal, "received")
        place = core.replay.take(scope.name, f"{signal.name}.received")
        found = core.find(scope, place, "signal", later=True)

        async def act(_: Stored | None) -> Stored:
            began = core.journal.time()
            return await core.receive(Wait(place.key, place.ordinal, "signal", signal.name, began=began))

        def decode(row: Stored) -> list[T]:
            found = json.loads(row.record.result or "[]")
            return loaded(signal, place.key, found["values"] if isinstance(found, dict) else found)

        return Step(core, place, found, act, decode)

    # Saga

    def on_failure(
        self, fn: Callable[P, Coroutine[Any, Any, object]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Push a compensation, before the step that it undoes: `wf.on_failure(refund, order_id)`. It is tried until it
        succeeds, or raises NonRetryable."""
        self._saga.push(self._core.scope("on_failure"), fn, args, kwargs)

    async def compensate(self) -> None:
        """Run and empty the stack, last first. Happens automatically when the run fails or is cancelled."""
        await self._saga.compensate(self._core.scope("compensate"), goes_on=True)

    # Deterministic helpers

    def now(self) -> datetime:
        """The time of the last record that this branch has seen: the same in every replay."""
        return self._core.scope("now").at

    def random(self) -> Random:
        """A random generator, seeded by the run and the place of this call."""
        return Random(self._seed("random"))  # noqa: S311 it must be the same in every replay

    def uuid(self) -> UUID:
        """A UUID made from the run and the place of this call."""
        return UUID(bytes=self._seed("uuid")[:16], version=4)

    def patched(self, name: str) -> bool:
        """Whether this run takes the new path: `if wf.patched("grace"): ... else: ...`. False for runs that had passed this
        place before the new code was deployed; the first call decides for the whole run."""
        core = self._core
        scope = core.scope("patched")
        checks.task_name(name, "the patch's name", InvalidOption)
        if scope.lost:
            return core.replay.marked(name)
        new_way, mark = core.replay.patched(name)
        if mark:
            core.later(Record(marker(name), "patch", "done", None))
            if (
                scope.name
            ):  # what other branches record would make a replay take the old way: the marker goes first
                core.behind = True
        return new_way

    def set_state(self, state: object) -> None:
        """The value that run.state() returns: `wf.set_state({"paid": True})`. Written with the next record, at the latest
        when the run waits or ends."""
        scope = self._core.scope("set_state")
        text = dump(state, "state")
        if not scope.lost:
            self._core.show(text)

    @overload
    def publish(
        self, event: object, /, *, key: str | None = ..., headers: Mapping[str, str] | None = ...
    ) -> Step[None]: ...
    @overload
    def publish(
        self,
        event: str | type,
        data: Mapping[str, Any],
        /,
        *,
        version: int | None = ...,
        key: str | None = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Step[None]: ...
    def publish(
        self,
        event: Any,
        data: Mapping[str, Any] | None = None,
        /,
        *,
        version: int | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Step[None]:
        """Append one event to the log, once: `wf.publish(OrderPaid(9182, 995))`, or by name as app.publish() takes it. It is
        written with the next record, at the latest when the run waits or ends; `await` it to have it written now."""
        core, events = self._core, self._events
        scope = core.scope("publish")
        if events is None:
            raise ConfigurationError("wf.publish() needs a workflow that an app or a Registry declares")
        place = core.replay.take(scope.name, f"{events.name(event)}.published")
        found = core.find(scope, place, "event")
        if found is None and not scope.lost:
            history = core.history
            new_id = event_id(history.run_id, history.era, place.key)
            made = events.encode(event, data, version=version, key=key, event_id=new_id, headers=headers)
            row = Record(place.key, "event", "done", place.ordinal, linked=new_id)
            core.publish_later(row, made)
        return Step(core, place, found, lambda _: core.published(place.key), lambda _: None)

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Start again from the top with these arguments and an empty history: `wf.continue_as_new(customer, period=period)`.
        The id stays, and so do signals that were not received. If a cancel was requested, that is raised instead."""
        core = self._core
        scope = core.scope("continue_as_new")
        if core.journal.cancelled.is_set() and core.may_cancel(scope):
            raise core.cancels(scope)  # not recorded: who asked stays, and a replay raises it too
        raise ContinueAsNew(self._encode(args, kwargs))

    def _seed(self, what: str) -> bytes:
        scope = self._core.scope(what)
        number = scope.seeds[what] = scope.seeds.get(what, 0) + 1
        history = self._core.history
        text = f"{history.seed or history.run_id}\n{history.era}\n{scope.name}\n{what}\n{number}"
        return hashlib.sha256(text.encode()).digest()

    async def _wait(
        self, scope: Scope, name: str, kind: Kind, signal: str = "", until: datetime | None = None
    ) -> Stored:
        core = self._core
        place = core.replay.take(scope.name, name)
        row = core.find(scope, place, kind)
        if row is None:
            core.begins(scope)
            core.check_length(place.key)
            began = core.journal.time()
            wait_kind: Literal["sleep", "signal"] = "signal" if kind == "signal" else "sleep"
            cancellable = core.may_cancel(scope)
            try:
                row = await core.waits.until_decided(
                    Wait(place.key, place.ordinal, wait_kind, signal, until, began, cancellable)
                )
            except asyncio.CancelledError:
                core.cut(scope)
                raise
        return core.seen(scope, row)

    def _taken(self, scope: Scope, signal: Signal[T], row: Stored) -> Received[T]:
        if row.record.outcome == "timed_out":
            return Received(False, None, None, None)
        try:
            return taken(signal, row.record.key, row.record.result)
        except SignalMisfit as error:
            self._core.misfit(scope, error)


def _later(scope: Scope, span: float) -> datetime:
    """From the last record on, so that a replay computes the same time."""
    try:
        return scope.at + timedelta(seconds=span)
    except OverflowError:
        raise InvalidOption(f"a wait of {span:g} seconds ends after the year 9999") from None
