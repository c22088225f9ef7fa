"""Hooks: what users put around every call of a handler, in the handler's own thread or task.

Middleware runs in the event loop, so it cannot close what belongs to a thread, such as a connection. A hook is entered
and left where the function runs: in the thread of a sync handler, in the task of an async one, in the child process of one
with process=True, and inside of the transaction of one that has a Transaction.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import ConfigurationError, HookFailed, LeaseLost
from ..model.shown import name_of, shown
from ..model.signals import HandlerSignal
from ..model.text import describe

T = TypeVar("T")
Hook = Callable[[], AbstractContextManager[object]]
AsyncHook = Callable[[], AbstractAsyncContextManager[object]]

_HOW = {
    "__enter__": "Put @contextlib.contextmanager above it",
    "__aenter__": "Put @contextlib.asynccontextmanager above it",
}


@dataclass(frozen=True, slots=True)
class _Pair:
    """One hook, in the form for plain functions and in that for `async def`."""

    hook: Hook
    in_async: AsyncHook | None

    def call(self, function: Callable[[], T]) -> T:
        manager = _made(self.hook, "__enter__")
        try:
            manager.__enter__()
        except BaseException as error:
            raise _before(self.hook, error) from error
        value, raised = _outcome(function)
        try:
            manager.__exit__(*_details(raised))
        except BaseException as error:  # noqa: BLE001 as above
            raised = _after(self.hook, error, raised)
        if raised is not None:
            raise raised
        return value  # type: ignore[return-value]

    async def acall(self, function: Callable[[], Awaitable[T]]) -> T:
        hook = self.in_async or self.hook
        manager = (
            _made(self.in_async, "__aenter__")
            if self.in_async is not None
            else _InTask(_made(self.hook, "__enter__"))
        )
        try:
            await manager.__aenter__()
        except BaseException as error:
            raise _before(hook, error) from error
        value, raised = await _aoutcome(function)
        try:
            await manager.__aexit__(*_details(raised))
        except BaseException as error:  # noqa: BLE001 as above
            raised = _after(hook, error, raised)
        if raised is not None:
            raise raised
        return value  # type: ignore[return-value]


class _InTask:
    """A plain context manager around an async function, in its task."""

    def __init__(self, manager: AbstractContextManager[object]) -> None:
        self._manager = manager

    async def __aenter__(self) -> None:
        self._manager.__enter__()

    async def __aexit__(self, *details: Any) -> None:
        self._manager.__exit__(*details)


class Around:
    """The hooks of an app, the first one outermost. Without any, functions stay as they are."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: tuple[_Pair, ...] = ()) -> None:
        self._pairs = pairs

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def and_then(self, hook: Hook, in_async: AsyncHook | None) -> "Around":
        return Around((*self._pairs, _Pair(hook, in_async)))

    def wrap(self, function: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
        """The function with the hooks around each call of it."""
        for pair in reversed(self._pairs):
            function = _wrapped(pair, function) if not is_async else _awrapped(pair, function)
        return function


def check_hook(hook: object, what: str = "around()") -> None:
    """Refuse what can be seen to be no hook."""
    if not callable(hook):
        raise ConfigurationError(f"{what} takes a function that returns a context manager, not {shown(hook)}")
    if inspect.isgeneratorfunction(hook):
        raise ConfigurationError(f"{what}: {_name(hook)} is a generator. {_HOW['__enter__']}")
    if inspect.isasyncgenfunction(hook):
        raise ConfigurationError(f"{what}: {_name(hook)} is an async generator. {_HOW['__aenter__']}")


def _wrapped(pair: _Pair, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return pair.call(lambda: function(*args, **kwargs))

    return call


def _awrapped(pair: _Pair, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await pair.acall(lambda: function(*args, **kwargs))

    return call


current: ContextVar[Around] = ContextVar("holdfast_around", default=Around())  # noqa: B039 it is never changed


def _made(hook: Callable[[], Any], enter: str) -> Any:
    try:
        manager = hook()
    except BaseException as error:
        raise _before(hook, error) from error
    if not hasattr(type(manager), enter):
        raise HookFailed(
            f"hook {_name(hook)} returned {name_of(type(manager))} instead of a context manager. {_HOW[enter]}"
        )
    return manager


def _outcome(function: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 whatever a handler raises, the hook is left
        return None, error


async def _aoutcome(function: Callable[[], Awaitable[T]]) -> tuple[T | None, BaseException | None]:
    try:
        return await function(), None
    except BaseException as error:  # noqa: BLE001 as above
        return None, error


def _details(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def _before(hook: Callable[..., Any], error: BaseException) -> BaseException:
    return error if _passes(error) else HookFailed(f"{_said(hook, error)}, before the handler was called")


def _after(hook: Callable[..., Any], error: BaseException, raised: BaseException | None) -> BaseException:
    """The attempt's outcome. An error of the handler goes out even where a hook would have swallowed it."""
    if error is raised or _passes(error):
        return error
    when = "after the handler had returned"
    if raised is not None:
        when = f"after the handler had raised {describe(raised).summary}"
    failed = HookFailed(f"{_said(hook, error)}, {when}")
    failed.__cause__ = error
    return failed


def _passes(error: BaseException) -> bool:
    """A hook may return an outcome of its own, and a cancel may interrupt it."""
    return issubclass(type(error), HandlerSignal | HookFailed | LeaseLost | asyncio.CancelledError)


def _name(hook: Callable[..., Any]) -> str:
    return str(getattr(hook, "__qualname__", name_of(type(hook))))


def _said(hook: Callable[..., Any], error: BaseException) -> str:
    return f"hook {_name(hook)} raised {describe(error).summary}"
