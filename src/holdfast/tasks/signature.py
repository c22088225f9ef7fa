"""A handler's `def` line: which parameters are injected, which are the payload.

Injected parameters come first: Job, then Transaction or AsyncTransaction. They are known by annotation. Any
other order is refused at decoration with the corrected line. A handler of one event or message may take it first.
"""

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

from ..db.transaction import AsyncTransaction, Transaction
from ..errors import TaskDefinitionError
from ..runtime.job import Job
from .convert import type_name
from .payload import shown

_INJECTED: dict[str, type] = {"Job": Job, "Transaction": Transaction, "AsyncTransaction": AsyncTransaction}
_EMPTY = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
Transactional = Literal["none", "sync", "async"]


class Unresolved:
    """An annotation whose names are not known yet."""

    __slots__ = ("reason", "source")

    def __init__(self, source: object, reason: str) -> None:
        self.source = source
        self.reason = reason


class HandlerSignature:
    """The parts of a handler's signature that matter to enqueue and to the worker."""

    __slots__ = (
        "_globals",
        "_hints",
        "call",
        "called",
        "func",
        "injected",
        "is_async",
        "transaction",
        "wants_job",
    )

    def __init__(
        self,
        func: Callable[..., Any],
        call: inspect.Signature,
        injected: dict[str, type],
        hints: dict[str, Any],
        scope: dict[str, Any],
        called: Callable[..., Any] | None = None,
    ) -> None:
        kinds = set(injected.values())
        self.func = func
        self.called = (
            called or func
        )  # by the worker: injected parameters by position, then the payload by name
        self.call = call  # without the injected parameters: what enqueue binds
        self.injected = injected
        self.is_async = inspect.iscoroutinefunction(func)
        self.wants_job = Job in kinds
        self.transaction: Transactional = (
            "sync" if Transaction in kinds else "async" if AsyncTransaction in kinds else "none"
        )
        self._hints = hints
        self._globals = scope

    @property
    def params(self) -> Mapping[str, inspect.Parameter]:
        """The payload parameters by name."""
        return self.call.parameters

    def hint(self, name: str) -> Any:
        """The resolved annotation of a payload parameter, or of "return"; Any without one."""
        found = self._hints.get(name, Any)
        if isinstance(found, Unresolved):
            found = resolve(found.source, self._globals, {})
            if isinstance(found, Unresolved):
                which = "its return value" if name == "return" else f"parameter {name!r}"
                raise TaskDefinitionError(
                    f"the annotation {type_name(found.source)!r} of {which} is unknown: {found.reason}. "
                    "Import or define the name at module level, outside `if TYPE_CHECKING`"
                )
            self._hints[name] = found
        return found


def resolve(annotation: Any, scope: dict[str, Any], local: Mapping[str, Any]) -> Any:
    """The annotation with its names looked up, or Unresolved."""
    if annotation is _EMPTY:
        return Any
    holder: Any = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, scope, dict(local) or None, include_extras=True)["it"]
    except Exception as error:  # noqa: BLE001 annotations are the user's code
        return Unresolved(annotation, f"{type(error).__name__}: {error}")


def analyse(
    func: Callable[..., Any], local: Mapping[str, Any] | None = None, *, subject_first: bool = False
) -> HandlerSignature:
    """Read a handler's signature; TaskDefinitionError prints the corrected `def` line. `subject_first`: it takes one event
    or message, which may come before the injected parameters too."""
    _check_kind(func)
    signature = _signature(func)
    scope = getattr(inspect.unwrap(func), "__globals__", {})
    hints = {
        name: resolve(parameter.annotation, scope, local or {})
        for name, parameter in signature.parameters.items()
    }
    if signature.return_annotation is not _EMPTY:
        hints["return"] = resolve(signature.return_annotation, scope, local or {})
    injected = {
        name: kind
        for name in signature.parameters
        if (kind := _injected(hints[name], func, name)) is not None
    }
    called = None
    if subject_first and _subject_is_first(signature, injected):
        first, *others = signature.parameters.values()
        signature, called = signature.replace(parameters=[*others, first]), _by_name(func, list(injected))
    _check_shape(func, signature, injected)
    payload = [p for name, p in signature.parameters.items() if name not in injected]
    for name in injected:
        hints.pop(name)
    return HandlerSignature(func, signature.replace(parameters=payload), injected, hints, scope, called)


def _subject_is_first(signature: inspect.Signature, injected: Mapping[str, type]) -> bool:
    """Whether it takes one parameter of the payload, and after it the injected ones."""
    names = list(signature.parameters)
    return (
        len(names) > 1
        and names[1:] == list(injected)
        and all(
            p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and p.default is _EMPTY
            for p in signature.parameters.values()
        )
    )


def _by_name(func: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """The function, with injected parameters by name where the worker gives them by position."""

    @functools.wraps(func)
    def call(*injected: Any, **payload: Any) -> Any:
        return func(**dict(zip(names, injected, strict=True)), **payload)

    return call


def _signature(func: Callable[..., Any]) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            return inspect.signature(func, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(func)
    except (TypeError, ValueError) as error:
        raise TaskDefinitionError(
            f"{_label(func)} has no readable signature: {error}. Wrap it in a def"
        ) from error


def _injected(hint: Any, func: Callable[..., Any], name: str) -> type | None:
    if isinstance(hint, Unresolved):  # `if TYPE_CHECKING: from holdfast import Job` never resolves
        source = getattr(hint.source, "__forward_arg__", hint.source)
        return _INJECTED.get(source.strip("'\"").rpartition(".")[2]) if isinstance(source, str) else None
    if isinstance(hint, type) and issubclass(hint, tuple(_INJECTED.values())):
        return next(kind for kind in _INJECTED.values() if issubclass(hint, kind))
    for part in typing.get_args(hint):
        if isinstance(part, type) and part in _INJECTED.values():
            raise TaskDefinitionError(
                f"{_label(func)}: parameter {name!r} is annotated {type_name(hint)}; "
                f"an injected parameter is annotated plainly: {name}: {part.__name__}"
            )
    return None


def _check_kind(func: Any) -> None:
    if inspect.isclass(func):
        _refuse(
            f"{func.__qualname__} is a class; a task is a function. Write: def {func.__name__.lower()}(...)"
        )
    if not callable(func):
        _refuse(f"a task is a function, not {shown(func)}. Write @registry.task or @registry.task(name=...)")
    if not isinstance(getattr(func, "__name__", None), str):
        _refuse(f"a task is a function, not a {type(func).__name__} object. Write a def that calls it")
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        _refuse(f"{_label(func)} is a generator; a task returns its result once. Replace yield by return")


def _check_shape(func: Callable[..., Any], signature: inspect.Signature, injected: dict[str, type]) -> None:
    problem = _problem(inspect.iscoroutinefunction(func), signature, injected)
    if problem:
        _refuse(f"{_label(func)}: {problem}: {corrected(func, signature, injected)}")


def _problem(is_async: bool, signature: inspect.Signature, injected: dict[str, type]) -> str | None:
    kinds = list(injected.values())
    payload = [p for name, p in signature.parameters.items() if name not in injected]
    transactions = [kind for kind in kinds if kind is not Job]
    if kinds.count(Job) > 1 or len(transactions) > 1:
        return "take one Job and one transaction at most"
    if any(p.kind in _VARIADIC for p in payload):
        return "payloads are stored by name, so name every parameter instead of *args and **kwargs"
    if any(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in payload):
        return "payloads are stored by name, so remove the '/'"
    if is_async and Transaction in kinds:
        return "an async handler takes AsyncTransaction"
    if not is_async and AsyncTransaction in kinds:
        return "a sync handler takes Transaction"
    if list(signature.parameters)[: len(injected)] != list(injected) or any(
        signature.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in injected
    ):
        return "put injected parameters first"
    if Job in kinds[1:]:
        return "put Job before the transaction"
    return None


def corrected(func: Callable[..., Any], signature: inspect.Signature, injected: Mapping[str, type]) -> str:
    """The `def` line as it should be."""
    is_async = inspect.iscoroutinefunction(func)
    transaction = "AsyncTransaction" if is_async else "Transaction"
    jobs = [f"{name}: Job" for name, kind in injected.items() if kind is Job][:1]
    transactions = [f"{name}: {transaction}" for name, kind in injected.items() if kind is not Job][:1]
    parts = jobs + transactions
    keyword_only = False
    for name, p in signature.parameters.items():
        if name in injected or p.kind in _VARIADIC:
            continue
        if p.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        parts.append(_written(name, p))
    return f"{'async ' if is_async else ''}def {func.__name__}({', '.join(parts)})"


def _written(name: str, p: inspect.Parameter) -> str:
    annotation = "" if p.annotation is _EMPTY else f": {type_name(p.annotation)}"
    if p.default is _EMPTY:
        return name + annotation
    return f"{name}{annotation} = {p.default!r}" if annotation else f"{name}={p.default!r}"


def call_line(name: str, signature: inspect.Signature) -> str:
    """How a task is called, for messages: `send_receipt(order_id: int, note: str = '')`."""
    return f"{name}({', '.join(_written(key, p) for key, p in signature.parameters.items())})"


def _label(func: Any) -> str:
    return str(getattr(func, "__name__", func))


def _refuse(message: str) -> NoReturn:
    raise TaskDefinitionError(message)
