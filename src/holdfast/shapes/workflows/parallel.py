"""Branches: several lines of execution of one run. Each has a separate scope, so that its steps are counted separately."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from types import CodeType, CoroutineType
from typing import Any, Generic, TypeVar

from ...tasks.payload import shown
from .core import Core, Scope, current
from .faults import EXITS, left
from .journal import Record, Stored
from .messages import Signal
from .replay import CallPlace
from .steps import Step

PATIENCE = 5.0  # seconds that a branch that lost may run without a call of wf
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Branch(Generic[T_co]):
    """A named line of execution that has not begun: `wf.branch("pay", pay, order)`. Await it, or gather it."""

    def __init__(self, core: Core, scope: str, make: Callable[[], Coroutine[Any, Any, T_co]]) -> None:
        self._core = core
        self._scope = scope
        self._make = make
        self._begun = False

    def __await__(self) -> Generator[Any, None, T_co]:
        return self._alone().__await__()

    async def _alone(self) -> T_co:
        found: list[T_co] = await gather(self._core, "branch", [self])
        return found[0]


class _Family:
    """The branches of one parallel call. The caller does not count as busy until it can continue."""

    def __init__(self, core: Core, count: int, *, first: bool) -> None:
        self._core = core
        self._left = count
        self._first = first
        self._resumed = False
        core.busy(count)
        core.idle()

    def ended(self) -> None:
        self._left -= 1
        if self._first or self._left == 0:
            self.resume()
        self._core.idle()

    def resume(self) -> None:
        if not self._resumed:
            self._resumed = True
            self._core.busy()


def _check(calls: Sequence[object], verb: str) -> None:
    if verb == "first" and not calls:
        raise ValueError("wf.first() needs at least one call")
    for call in calls:
        if not isinstance(call, Step | Branch) and not inspect.iscoroutine(call):
            raise TypeError(
                f"wf.{verb}() takes steps, branches and coroutines, not {shown(call)}: what it waits for must be recorded"
            )


def _scopes(core: Core, scope: Scope, calls: Sequence[Any]) -> list[Scope]:
    for call in calls:
        if isinstance(call, Branch):
            if call._begun:
                raise TypeError(
                    "this branch was begun before: its steps have their keys. Call wf.branch() again"
                )
            call._begun = True
            core.made.discard(call._scope)
            if scope.lost:  # which asks for no record
                core.replay.drop(call._scope)
    number = core.replay.branches(scope.name)
    inside = f"{scope.name}/" if scope.name else ""
    return [
        Scope(
            core,
            call._scope if isinstance(call, Branch) else f"{inside}g{number}.{index}",
            scope.at,
            scope.cancellable,
            scope.cancel_raised,
            lost=scope.lost,
        )
        for index, call in enumerate(calls)
    ]


async def _branch(core: Core, call: Any, scope: Scope, family: _Family) -> Any:
    """One branch in a separate task."""
    try:
        if isinstance(call, Step):
            return await call._value(scope)
        scope.task = asyncio.current_task()
        current.set(scope)
        value = await (call._make() if isinstance(call, Branch) else call)
        core.end(scope)
        return value
    except EXITS as error:
        raise left("a branch", error) from error
    finally:
        scope.task = None  # whose context knows the scope
        family.ended()


async def gather(core: Core, verb: str, calls: Sequence[Awaitable[Any]]) -> list[Any]:
    """All of them, to the end. The error of the first failed argument is raised: which of them failed earlier
    is unknown in a replay."""
    scope = core.scope(verb)
    _check(calls, verb)
    scopes = _scopes(core, scope, calls)
    if not calls:
        return []
    family = _Family(core, len(calls), first=False)
    tasks = _start(core, calls, scopes, family)
    await _all(core, scope, tasks, scopes, family)
    scope.at = max([scope.at, *(branch.at for branch in scopes)])
    scope.cancel_raised = any(branch.cancel_raised for branch in scopes)
    if core.stopped is not None:
        raise core.stopped
    return [task.result() for task in tasks]


async def first(core: Core, calls: Sequence[Awaitable[T]], waits: CodeType) -> tuple[int, T]:
    """The winner is recorded; the others are cancelled, and their records stay. `waits`: the code of wf.signal()."""
    scope = core.scope("first")
    _check(calls, "first")
    scopes = _scopes(core, scope, calls)
    place = core.replay.take(scope.name, "first")
    signals = _signals_of(calls, scopes, waits)
    found = _decision(core, scope, place, calls)
    if found is None and scope.lost:
        await _pushed_before(core, calls, scopes, None)
        core.begins(scope)
    if found is not None:
        winner = int(found.record.result or 0)
        await _pushed_before(core, calls, scopes, winner)
        family = _Family(core, 1, first=True)
        tasks = _start(core, [calls[winner]], [scopes[winner]], family)
        await _all(core, scope, tasks, [scopes[winner]], family)
    else:
        family = _Family(core, len(calls), first=True)
        tasks = _start(core, calls, scopes, family)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            winner = next(n for n, task in enumerate(tasks) if task.done())
            if core.stopped is not None:
                raise core.stopped
            began = core.journal.time()
            found = await core.record(
                Record(place.key, "decision", "done", place.ordinal, str(winner), began=began)
            )
        except asyncio.CancelledError:
            core.cut(scope)
            raise
        finally:
            family.resume()
            await _cancel(tasks, scopes)
        tasks = [tasks[winner]]
    if core.stopped is not None:
        raise core.stopped
    core.handed.lose(signals, winner)
    scope.at = max(scope.at, scopes[winner].at, found.at)
    scope.cancel_raised = scopes[winner].cancel_raised
    return winner, tasks[0].result()


def _signals_of(
    calls: Sequence[object], scopes: Sequence[Scope], waits: CodeType
) -> list[tuple[str, str] | None]:
    """The signal, and the key of its record, of each call that is wf.signal() itself and has not begun."""
    found: list[tuple[str, str] | None] = []
    for call, scope in zip(calls, scopes, strict=True):
        frame = call.cr_frame if isinstance(call, CoroutineType) and call.cr_code is waits else None
        signal = None if frame is None else frame.f_locals.get("signal")
        found.append((signal.name, f"{scope.name}/{signal.name}") if isinstance(signal, Signal) else None)
    return found


def _decision(core: Core, scope: Scope, place: CallPlace, calls: Sequence[Any]) -> Stored | None:
    try:
        return core.find(scope, place, "decision")
    except BaseException:
        for call in calls:
            if inspect.iscoroutine(call):
                call.close()
        raise


async def _pushed_before(
    core: Core, calls: Sequence[Any], scopes: Sequence[Scope], winner: int | None
) -> None:
    """The others lost; all did if there is no winner. A branch that had pushed compensations replays its records, so
    that they are known again: its steps must be undone as if its owner was not lost. The records of the rest are not
    asked for."""
    again = []
    elsewhere = any(map(core.replay.has_records, core.made))  # a branch that one of these may have begun
    for index, (call, scope) in enumerate(zip(calls, scopes, strict=True)):
        if index == winner or isinstance(call, Step):
            continue
        core.replay.drop(scope.name)
        if core.replay.pushed(scope.name) or elsewhere:
            scope.lost = True
            again.append(index)
        elif inspect.iscoroutine(call):
            call.close()
    if again:
        family = _Family(core, len(again), first=False)
        tasks = _start(core, [calls[n] for n in again], [scopes[n] for n in again], family)
        try:
            await asyncio.wait(tasks, timeout=PATIENCE)
        finally:
            family.resume()
            await _cancel(tasks, scopes)


def _start(
    core: Core, calls: Sequence[Any], scopes: Sequence[Scope], family: _Family
) -> "list[asyncio.Task[Any]]":
    loop = asyncio.get_running_loop()
    return [
        loop.create_task(_branch(core, call, scope, family))
        for call, scope in zip(calls, scopes, strict=True)
    ]


async def _all(
    core: Core, scope: Scope, tasks: "list[asyncio.Task[Any]]", scopes: Sequence[Scope], family: _Family
) -> None:
    """Until each has ended; if the caller is to end, they are too."""
    try:
        await asyncio.wait(tasks)
        _noted(tasks)
    except asyncio.CancelledError:
        core.cut(scope)
        family.resume()
        await _cancel(tasks, scopes)
        raise


async def _cancel(tasks: "list[asyncio.Task[Any]]", scopes: Sequence[Scope]) -> None:
    for scope in scopes:
        scope.ending = True
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    _noted(tasks)


def _noted(tasks: "list[asyncio.Task[Any]]") -> None:
    """One failure is raised. asyncio would report the others as unhandled."""
    for task in tasks:
        if not task.cancelled():
            task.exception()
