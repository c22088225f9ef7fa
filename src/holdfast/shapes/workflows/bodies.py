"""The results of steps as they are recorded: encoded and decoded also on the first run, so that both runs see the
same value."""

import asyncio
import contextvars
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from ...errors import InvalidOption, InvalidPayload
from ...model.backoff import Backoff
from ...model.text import describe, storable
from ...runtime.around import current
from ...runtime.threads import Threads
from ...tasks.convert import Converter, Misfit, Raw, Scalar, Unsupported, converter, type_name
from ...tasks.payload import dump, scalar, shown, stored_order
from ...tasks.signature import Unresolved, resolve
from .faults import EXITS, NonRetryable, left

MAX_RESULT = 256 * 1024
_FREE = 1 << 40
_SAME = (str, int, bool, type(None))  # JSON gives them back as they were
_SORTED = json.JSONEncoder(sort_keys=True, allow_nan=False)
_DETAIL = 512  # bytes of a heartbeat's detail
_MOST_OVERDUE = (
    100  # threads of plain functions whose timeout is over; beyond it the next call waits for one to end
)
LOOK = 0.05  # seconds between two looks at them
threads = Threads()  # for steps that are plain functions


def _nobody(_: object) -> None:
    """A step without listeners."""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The step that runs in this context: `holdfast.current_step().idempotency_key`."""

    idempotency_key: str  # of the run and the step: the same in every attempt, on every worker
    attempt: int
    fence: str  # sortable text that rises with every owner of the run
    _beat: Callable[[object], None] = field(default=_nobody, repr=False, compare=False)

    def heartbeat(self, detail: object = None) -> None:
        """Report the progress of the step: `current_step().heartbeat("page 3 of 10")`. The detail is text, or anything that
        has a JSON form; `holdfast workflow show` prints the latest. It costs almost nothing: it is written with the next
        heartbeat of the worker. Leases are renewed without it.

        It raises Evicted if the run has another owner, WorkflowCancelled if it was cancelled, and StepTimeout if the
        attempt has timed out, which ends a plain function in a thread.
        """
        self._beat(detail)


Info = tuple[Callable[[int], StepInfo], int]  # what makes it, and of which attempt: most steps never ask
_step: ContextVar[Info | None] = ContextVar("holdfast_step", default=None)


def current_step() -> StepInfo:
    """The step that runs here: `charge(..., idempotency_key=current_step().idempotency_key)`."""
    found = _step.get()
    if found is None:
        raise LookupError(
            "current_step() was called outside of a step. Call it in a function given to wf.step()"
        )
    make, number = found
    return make(number)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of wf.using()."""

    name: str | None = None
    retry: Backoff = Backoff()  # noqa: RUF009 it is never changed
    max_attempts: int = 5
    timeout: float | None = None
    deadline: float | None = None
    queue: str | None = None
    id: str | None = None
    on_cancel: str = "cancel"


PLAIN = Options()


def detail_text(detail: object) -> str:
    """A heartbeat's detail, whatever it is: it must not fail the step."""
    if isinstance(detail, str):
        return storable(detail, _DETAIL)
    try:
        return storable(json.dumps(detail, ensure_ascii=False), _DETAIL)
    except Exception:  # noqa: BLE001 it may be anything
        return f"(a detail of type {type(detail).__name__} that has no JSON form)"


class TooLarge(Exception):
    """A result that is not recorded, because every replay would read it again."""


class BadStepCall(TypeError):
    """A step that was called with arguments that its function does not take."""


def name_of(fn: Callable[..., Any], given: str | None, verb: str) -> str:
    if not callable(fn):
        said = shown(fn)
        if inspect.iscoroutine(fn):
            fn.close()
        raise TypeError(
            f"wf.{verb}() takes a function and its arguments, not {said}. Write wf.{verb}(charge, 5)"
        )
    name = given or getattr(fn, "__qualname__", None)
    if name is None or (given is None and "<lambda>" in name):
        what = "a lambda" if name else f"an object of type {type(fn).__name__}"
        more = f', or wf.using(name="...").{verb}(...)' if verb != "on_failure" else ""
        raise InvalidOption(f"{what} has no name that stays the same. Write a def{more}")
    return str(name)


def fingerprint(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes | None:
    """Of a call's input; None: it has no JSON form."""
    plain = [scalar(value) for value in args] if not kwargs else [None]
    if None not in plain:
        text = f"[[{', '.join(plain)}], {{}}]"  # type: ignore[arg-type]
    else:
        try:
            text = _SORTED.encode([args, kwargs])
        except (TypeError, ValueError, RecursionError):
            return None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


class Result:
    """The return value of a function as JSON text, by its annotation."""

    __slots__ = ("_converter", "_hint", "_name", "is_async")

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        self._name = name
        self._hint, self._converter, self.is_async = _returns(fn)

    def encode(self, value: object) -> str:
        try:
            made = self._converter.dump(value)
        except Misfit as error:
            raise InvalidPayload(
                f"the result of {self._name} does not fit its return annotation {type_name(self._hint)}: {error}. "
                "Correct the annotation or the return value"
            ) from None
        if (short := scalar(made)) is not None:
            return short
        text = dump(stored_order(made), "result", _FREE)  # a replay reads it from jsonb
        if len(text) > MAX_RESULT // 4 and (size := len(text.encode())) > MAX_RESULT:
            raise TooLarge(
                f"the result of {self._name} is {size:,} bytes of JSON, more than the limit of {MAX_RESULT:,}. "
                "Store it elsewhere (a table, a file, object storage) and return a reference"
            )
        return text

    def decode(self, text: str | None) -> Any:
        return self._converter.load(None if text is None else json.loads(text))

    def keeps(self, value: object) -> bool:
        """Whether decoding the encoded value returns the value itself."""
        kind = type(value)
        return (
            kind in _SAME
            and isinstance(self._converter, Raw | Scalar)
            and self._converter.kind in (kind, object)
        )


_known: dict[tuple[Any, ...], tuple[Any, Converter, bool]] = {}
_named: dict[Callable[..., Any], tuple[str, Result]] = {}  # functions of a module: they stay


def named_result(fn: Callable[..., Any], given: str | None, verb: str) -> tuple[str, Result]:
    """What a step is called, and how its result is written."""
    if given is None and type(fn) is FunctionType:
        known = _named.get(fn)
        if known is not None and known[0] == fn.__qualname__:
            return known
    name = name_of(fn, given, verb)
    found = name, Result(fn, name)
    if given is None and type(fn) is FunctionType and "<" not in name and len(_named) < 10_000:
        _named[fn] = found
    return found


def _returns(fn: Callable[..., Any]) -> tuple[Any, Converter, bool]:
    """The result of a function, and whether it is awaited."""
    inner: Any = inspect.unwrap(fn) if hasattr(fn, "__wrapped__") else fn
    inner = inner.func if isinstance(inner, functools.partial) else inner
    code = getattr(inner, "__code__", None)
    annotation = getattr(inner, "__annotations__", {}).get("return", inspect.Signature.empty)
    # Functions that a factory makes share their code, and may return different types.
    place = (code, id(getattr(inner, "__globals__", None)), annotation)
    try:
        found = _known.get(place)
    except TypeError:  # an annotation that cannot be hashed
        found, code = None, None
    if found is None:
        hint = resolve(annotation, getattr(inner, "__globals__", {}), {})
        if isinstance(hint, Unresolved):
            hint = Any
        try:
            read = converter(hint)
        except Unsupported:
            read = Raw()
        found = (hint, read, inspect.iscoroutinefunction(inner))
        if code is not None and len(_known) < 10_000:
            _known[place] = found
    return found if inner is fn else (found[0], found[1], inspect.iscoroutinefunction(fn))


# Of the test kit.
replaced: list[tuple[Callable[..., Any], Callable[..., Any]]] = []  # a function, and its replacement
begun: list[Callable[[StepInfo], None]] = []  # called for each body that begins


def begin(fn: Callable[..., Any], info: Info) -> Callable[..., Any]:
    """From here on this is the context of a step. Returns the function to call."""
    _step.set(info)
    for old, new in replaced:
        fn = new if fn == old else fn
    for hear in begun:
        hear(current_step())
    hooks = current.get()
    return hooks.wrap(fn, is_async=inspect.iscoroutinefunction(fn)) if hooks else fn


def has_thread() -> bool:
    """Whether a plain function may begin."""
    return threads.abandoned < _MOST_OVERDUE


async def call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], info: Info, is_async: bool
) -> Any:
    """In the context of a step: an async function here, a plain one in a thread."""
    made = begin(fn, info)
    try:
        if is_async if made is fn else inspect.iscoroutinefunction(made):
            return await made(*args, **kwargs)
        value = await threads.run(functools.partial(made, *args, **kwargs))
        return await value if inspect.isawaitable(value) else value
    except EXITS as error:
        raise left("the step", error) from error
    except GeneratorExit as error:  # the code that awaits the step would close
        raise RuntimeError("the step raised GeneratorExit") from error
    except TypeError as error:
        raise mistaken(made, args, kwargs, error) from error.__cause__


def mistaken(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], error: TypeError
) -> TypeError:
    """The error, or one that another attempt would meet too: the call does not fit the function."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return error
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return BadStepCall(str(error))
    return error


def in_context(
    coroutine: Coroutine[Any, Any, Any], scope: ContextVar[Any], loop: asyncio.AbstractEventLoop
) -> "asyncio.Task[Any]":
    """A task in which the workflow itself cannot be called."""
    context = contextvars.copy_context()
    context.run(scope.set, None)
    return loop.create_task(coroutine, context=context)


def error_text(error: BaseException, attempts: int) -> str:
    """As it is recorded: kind, message, attempts, and the data of NonRetryable."""
    kind = (
        "ResultTooLarge"
        if isinstance(error, TooLarge)
        else "TypeError"
        if isinstance(error, BadStepCall)
        else None
    )
    said = describe(error)
    found: dict[str, Any] = {"kind": kind or said.kind, "message": said.message, "attempts": attempts}
    if isinstance(error, NonRetryable) and error.data is not None:
        try:
            found["data"] = json.loads(dump(stored_order(error.data), "data", MAX_RESULT))
        except InvalidPayload:
            found["data"] = storable(repr(error.data))
    return dump(found, "data", _FREE)
