"""Batch tasks: their `def` line and their options."""

import inspect
import re
import typing
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn, Protocol, TypeVar, overload

from ..errors import TaskDefinitionError
from ..runtime.batch.items import Batch
from ..runtime.handler import Gather
from ..runtime.job import Job
from . import checks
from .signature import HandlerSignature, Unresolved, analyse
from .task import Task

T = TypeVar("T")
SIZE = 1000
WAIT = 60.0
_WRITTEN = re.compile(r"\s*(?:\w+\.)*Batch\s*(?:\[(?P<item>.*)\])?\s*", re.DOTALL)


class BatchDecorator(Protocol):
    """`@app.batch_task(size=100, wait=0.2)` over a function of one `Batch`."""

    @overload
    def __call__(self, fn: Callable[[Batch[T]], Coroutine[Any, Any, None]], /) -> Task[[T], Any]: ...
    @overload
    def __call__(self, fn: Callable[[Batch[T]], None], /) -> Task[[T], Any]: ...


def gather(size: object, wait: Any, options: Mapping[str, Any]) -> Gather:
    """Checked size and wait; TaskDefinitionError says what to do."""
    most = checks.integer(size, "size", 1, SIZE, TaskDefinitionError)
    patience = checks.period(wait, "wait", TaskDefinitionError)
    if patience > WAIT:
        raise TaskDefinitionError(f"wait must be at most {WAIT:g} seconds, not {patience:g}")
    if options.get("process"):
        raise TaskDefinitionError(
            "a batch task cannot have process=True: a child process runs one job at a time. Leave process out"
        )
    return Gather(most, patience)


def analyse_batch(func: Callable[..., Any], local: Mapping[str, Any]) -> HandlerSignature:
    """Read the signature of a batch handler: one parameter, `batch: Batch[T]`. Its jobs have one argument, `item: T`."""
    whole = analyse(func, local)
    label = whole.func.__name__
    if whole.injected:
        if whole.transaction != "none":
            kind = next(kind.__name__ for kind in whole.injected.values() if kind is not Job)
            why = "which a batch does not have: its jobs are settled one by one"
            _refuse(whole, f"{label} takes an injected {kind}, {why}")
        _refuse(whole, f"{label} takes an injected Job; each item of a batch has its own: item.job")
    if len(whole.params) != 1:
        _refuse(whole, f"{label} must take one parameter, the batch")
    (hint,) = (whole._hints[name] for name in whole.params)
    found, item = _item(hint)
    if not found:
        _refuse(whole, f"{label} must take a Batch")
    returns = whole._hints.get("return", Any)
    if returns not in (None, type(None), Any, typing.NoReturn) and not isinstance(returns, Unresolved):
        _refuse(whole, f"{label} must return None; a job gets its result from item.complete(result)")
    parameter = inspect.Parameter("item", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=item)
    return HandlerSignature(func, inspect.Signature([parameter]), {}, {"item": item}, whole._globals)


def _item(hint: Any) -> tuple[bool, Any]:
    """Whether the annotation is a Batch, and its item type."""
    if isinstance(hint, Unresolved):  # a type that is defined further down, or only for type checkers
        source = getattr(hint.source, "__forward_arg__", hint.source)
        written = _WRITTEN.fullmatch(source) if isinstance(source, str) else None
        if written is None:
            return False, None
        return True, Unresolved(written["item"], hint.reason) if written["item"] else Any
    if hint is Batch:
        return True, Any
    return typing.get_origin(hint) is Batch, next(iter(typing.get_args(hint)), Any)


def _refuse(signature: HandlerSignature, problem: str) -> NoReturn:
    kind = "async def" if signature.is_async else "def"
    raise TaskDefinitionError(
        f"{problem}. Write: {kind} {signature.func.__name__}(batch: Batch[...]) -> None"
    )
