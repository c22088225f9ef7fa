"""Ways to end a handler, and an app whose tasks end so. Child processes import it as this module.

A way is a function: what it returns the handler returns, what it raises the handler raises. `end` says what becomes
of the job:

completed   with a result
failed      the attempt is spent, and the next one is an hour away
spent       both attempts are
snoozed     again in an hour or more, and no attempt is spent
dead        given up
cancelled   as the handler said
"""

import asyncio
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import io
import itertools
import pathlib
import sys
import threading
import types
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import psycopg

from holdfast import (
    AsyncTransaction,
    Backoff,
    Batch,
    Cancel,
    DatabaseUnavailable,
    DeadLetter,
    HandlerSignal,
    Holdfast,
    InvalidPayload,
    JobSettled,
    LeaseLost,
    Retry,
    Snooze,
    Transaction,
)
from holdfast.model.outcome import Completed, Lost, SettledElsewhere

HOUR = 3600


class Way(NamedTuple):
    do: Callable[[], Any]
    end: str
    text: str = ""  # in the job's last error


def give(value: Any) -> Callable[[], Any]:
    return lambda: value


def throw(error: Any) -> Callable[[], NoReturn]:
    def throwing() -> NoReturn:
        raise error

    return throwing


def new(make: Callable[[], Any]) -> Callable[[], NoReturn]:
    """For what can be raised once, or must not be made before."""

    def throwing() -> NoReturn:
        raise make()

    return throwing


# Returned -----------------------------------------------------------------------------------------------------------

Boom = RuntimeError


def boom(*_: Any, **__: Any) -> NoReturn:
    raise Boom("boom")


def interrupt(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


def hostile(base: type, *methods: str, raising: Callable[..., Any] = boom) -> Any:
    """A class whose methods raise."""
    return type("Hostile", (base,), dict.fromkeys(methods, raising))


class Lazy:
    """Every attribute raises what no `except Exception` catches."""

    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt


class Plain(enum.Enum):
    A = "a"


class Number(enum.IntEnum):
    ONE = 1


class Words(str):
    __slots__ = ()


class Pair(NamedTuple):
    a: int
    b: str


@dataclasses.dataclass
class Point:
    x: int


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def ring() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def loop() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = {"again": [value]}
    return value


def closed_coroutine() -> Any:
    async def never() -> None: ...

    coroutine = never()
    coroutine.close()
    return coroutine


async def agenerator() -> Any:
    yield 1


def classless() -> Any:
    return type("Classless", (), {"__class__": property(boom)})()


REFUSED = "InvalidPayload"
RETURNED: dict[str, Way] = {
    "None": Way(give(None), "completed"),
    "True": Way(give(True), "completed"),
    "zero": Way(give(0), "completed"),
    "2**63": Way(give(2**63), "completed"),
    "1000 digits": Way(give(10**999), "completed"),
    "1001 digits": Way(give(10**1000), "failed", REFUSED),
    "10 million bits": Way(give(1 << 10_000_000), "failed", REFUSED),
    "a float": Way(give(1.5), "completed"),
    "1e16": Way(give(1e16), "completed"),
    "the largest float": Way(give(sys.float_info.max), "completed"),
    "the smallest float": Way(give(5e-324), "completed"),
    "-0.0": Way(give(-0.0), "failed", REFUSED),
    "nan": Way(give(float("nan")), "failed", REFUSED),
    "inf": Way(give(float("inf")), "failed", REFUSED),
    "-inf in a list": Way(give([float("-inf")]), "failed", REFUSED),
    "no text": Way(give(""), "completed"),
    "a text": Way(give("é😀"), "completed"),
    "a NUL": Way(give("a\x00b"), "failed", REFUSED),
    "half a character": Way(give("\ud800"), "failed", REFUSED),
    "a NUL in a key": Way(give({"a\x00b": 1}), "failed", REFUSED),
    "a megabyte": Way(give("x" * 2**20), "failed", REFUSED),
    "5 megabytes": Way(lambda: "x" * 5_000_000, "failed", REFUSED),
    "a list": Way(give([1, [2, {"a": None}]]), "completed"),
    "a tuple": Way(give((1, 2)), "completed"),
    "a named tuple": Way(give(Pair(1, "a")), "completed"),
    "nested 400 deep": Way(lambda: nested(400), "completed"),
    "nested 600 deep": Way(lambda: nested(600), "failed", REFUSED),
    "nested 100,000 deep": Way(lambda: nested(100_000), "failed", REFUSED),
    "a list in itself": Way(ring, "failed", REFUSED),
    "a dict in itself": Way(loop, "failed", REFUSED),
    "a number for a key": Way(give({1: "a"}), "failed", REFUSED),
    "None for a key": Way(give({None: "a"}), "failed", REFUSED),
    "a tuple for a key": Way(give({(1, 2): "a"}), "failed", REFUSED),
    "nan for a key": Way(give({float("nan"): "a"}), "failed", REFUSED),
    "a set": Way(give({1, 2}), "failed", REFUSED),
    "bytes": Way(give(b"a"), "failed", REFUSED),
    "a bytearray": Way(lambda: bytearray(3), "failed", REFUSED),
    "a memoryview": Way(lambda: memoryview(b"abc"), "failed", REFUSED),
    "complex": Way(give(1j), "failed", REFUSED),
    "a Decimal": Way(give(decimal.Decimal("1.1")), "failed", REFUSED),
    "a Fraction": Way(give(fractions.Fraction(1, 3)), "failed", REFUSED),
    "a datetime": Way(lambda: dt.datetime.now(dt.UTC), "failed", REFUSED),
    "a timedelta": Way(give(dt.timedelta(1)), "failed", REFUSED),
    "a UUID": Way(uuid.uuid4, "failed", REFUSED),
    "a Path": Way(give(pathlib.Path("/")), "failed", REFUSED),
    "an Enum": Way(give(Plain.A), "failed", REFUSED),
    "an IntEnum": Way(give(Number.ONE), "completed"),
    "a kind of str": Way(give(Words("a")), "completed"),
    "a kind of dict": Way(lambda: collections.OrderedDict(a=1), "completed"),
    "a deque": Way(lambda: collections.deque([1]), "failed", REFUSED),
    "a mapping proxy": Way(lambda: types.MappingProxyType({"a": 1}), "failed", REFUSED),
    "a namespace": Way(lambda: types.SimpleNamespace(a=1), "failed", REFUSED),
    "a dataclass": Way(lambda: Point(1), "failed", REFUSED),
    "a generator": Way(lambda: (i for i in range(3)), "failed", REFUSED),
    "an endless iterator": Way(itertools.count, "failed", REFUSED),
    "a coroutine": Way(closed_coroutine, "failed", REFUSED),
    "an async generator": Way(agenerator, "failed", REFUSED),
    "a function": Way(give(boom), "failed", REFUSED),
    "a class": Way(give(int), "failed", REFUSED),
    "a module": Way(give(sys), "failed", REFUSED),
    "Ellipsis": Way(give(...), "failed", REFUSED),
    "NotImplemented": Way(give(NotImplemented), "failed", REFUSED),
    "an object": Way(object, "failed", REFUSED),
    "a lock": Way(threading.Lock, "failed", REFUSED),
    "a file": Way(io.StringIO, "failed", REFUSED),
    "an exception": Way(give(ValueError("not raised")), "failed", REFUSED),
    "a signal": Way(lambda: Snooze(HOUR), "failed", REFUSED),
    "an outcome": Way(lambda: Completed('{"a": 1}'), "failed", REFUSED),
    "the outcome of a lost job": Way(Lost, "failed", REFUSED),
    "the outcome of a settled job": Way(SettledElsewhere, "failed", REFUSED),
    "__repr__ raises": Way(hostile(object, "__repr__"), "failed", REFUSED),
    "__repr__ interrupts": Way(hostile(object, "__repr__", raising=interrupt), "failed", REFUSED),
    "__class__ raises": Way(classless, "failed", "boom"),
    "__eq__ and __hash__ raise": Way(hostile(object, "__eq__", "__hash__"), "failed", REFUSED),
    "__bool__ raises": Way(hostile(object, "__bool__", "__len__"), "failed", REFUSED),
    "__iter__ of a list raises": Way(lambda: hostile(list, "__iter__", "__len__")([1]), "failed"),
    "items() of a dict raises": Way(lambda: hostile(dict, "items", "values")(a=1), "failed"),
    "encode() of a str raises": Way(lambda: hostile(str, "encode", "__str__")("a"), "completed"),
    "__repr__ of an int raises": Way(lambda: hostile(int, "__repr__", "__str__")(3), "completed"),
    "__float__ of a float raises": Way(lambda: hostile(float, "__repr__", "__float__")(3.5), "completed"),
    "everything raises": Way(Lazy, "failed"),
}


# Signals ------------------------------------------------------------------------------------------------------------


class Later(Snooze):
    """A signal of the user's own."""

    def __init__(self) -> None:
        super().__init__(HOUR)


class Mute(HandlerSignal):
    pass


class Broken(Snooze):
    """It forgot to call super().__init__()."""

    def __init__(self) -> None:
        pass


class Trap(Retry):
    @property
    def after(self) -> Any:
        raise Boom("boom")

    @after.setter
    def after(self, value: Any) -> None: ...


class Liar:
    def __str__(self) -> Any:
        return 7  # noqa: PLE0307


class Sly(str):
    """A str with methods of its own."""

    __slots__ = ()
    __len__ = __getitem__ = encode = __str__ = boom


class Masked:
    def __str__(self) -> str:
        return Sly("masked")


def without_after() -> NoReturn:
    signal = Snooze(HOUR)
    del signal.after
    raise signal


def changed_after() -> NoReturn:
    signal = Snooze(HOUR)
    signal.after = "soon"
    raise signal


Unspeakable = hostile(object, "__str__", "__repr__")
Surly = hostile(object, "__str__", "__repr__", raising=interrupt)
SAYS_SO = "no text: __str__ raised RuntimeError"
INTERRUPTS = "no text: __str__ raised KeyboardInterrupt"

WRONG_DELAYS: dict[str, Any] = {
    "soon": "soon",
    "no text": "",
    "a sign": "-5m",
    "an unknown unit": "10 parsecs",
    "a unit alone": "m",
    "a comma": "1,5h",
    "text of nan": "nan",
    "text of inf": "inf",
    "text of an exponent": "1e5",
    "a megabyte of text": "1" * 2**20,
    "a NUL": "10\x00m",
    "half a character": "\ud800",
    "a list": [],
    "a dict": {},
    "bytes": b"10m",
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "-1": -1,
    "10**400": 10**400,
    "-10**400": -(10**400),
    "True": True,
    "a Decimal": decimal.Decimal(10),
    "complex": 1j,
    "a datetime": dt.datetime(2030, 1, 1, tzinfo=dt.UTC),
    "a negative timedelta": dt.timedelta(seconds=-1),
    "the least timedelta": dt.timedelta.min,
    "an object": object(),
    "a class": float,
    "no repr": Unspeakable(),
    "interrupting repr": Surly(),
}
WRONG_DELAYS.update({"None": None})

SIGNALS: dict[str, Way] = {
    "Retry": Way(throw(Retry), "failed", "Retry"),
    "Retry with a reason": Way(throw(Retry("busy")), "failed", "Retry: busy"),
    "Retry in seconds": Way(throw(Retry(after=HOUR)), "failed", "Retry"),
    "Retry in text": Way(throw(Retry(after="1h")), "failed", "Retry"),
    "Retry in a timedelta": Way(throw(Retry(after=dt.timedelta(hours=1))), "failed", "Retry"),
    "Retry at once": Way(throw(Retry(after=0)), "spent", "Retry"),
    "Retry at once, in text": Way(throw(Retry(after="0s")), "spent", "Retry"),
    "Snooze in seconds": Way(throw(Snooze(HOUR)), "snoozed"),
    "Snooze in text": Way(throw(Snooze("60m")), "snoozed"),
    "Snooze in texts": Way(throw(Snooze("1h30m")), "snoozed"),
    "Snooze in spaced text": Way(throw(Snooze(" 1h 30m ")), "snoozed"),
    "Snooze in a plain text": Way(throw(Snooze("3600")), "snoozed"),
    "Snooze in a timedelta": Way(throw(Snooze(dt.timedelta(hours=1))), "snoozed"),
    "Snooze for ages": Way(throw(Snooze(1e300)), "snoozed"),
    "Snooze for the longest timedelta": Way(throw(Snooze(dt.timedelta.max)), "snoozed"),
    "Snooze for ages, in text": Way(throw(Snooze("999999999999999w")), "snoozed"),
    "Snooze in a sly text": Way(throw(Snooze(Sly("1h"))), "snoozed"),
    "Snooze in a hostile float": Way(
        throw(Snooze(hostile(float, "__float__", "__repr__", "__lt__", "__gt__")(HOUR))), "snoozed"
    ),
    "Snooze in a hostile int": Way(
        throw(Snooze(hostile(int, "__float__", "__gt__", "__lt__")(HOUR))), "snoozed"
    ),
    "Snooze in a hostile timedelta": Way(
        throw(Snooze(hostile(dt.timedelta, "total_seconds", "__repr__")(hours=1))), "snoozed"
    ),
    "Snooze without its argument": Way(throw(Snooze), "failed", "TypeError"),
    "Snooze of the user's own": Way(throw(Later), "snoozed"),
    "DeadLetter": Way(throw(DeadLetter("enough")), "dead", "DeadLetter: enough"),
    "DeadLetter of nothing": Way(throw(DeadLetter("")), "dead", "DeadLetter"),
    "DeadLetter without its argument": Way(throw(DeadLetter), "failed", "TypeError"),
    "Cancel": Way(throw(Cancel), "cancelled"),
    "Cancel with a reason": Way(throw(Cancel("never mind")), "cancelled", "never mind"),
    "a reason of None": Way(throw(Retry(None)), "failed", "Retry: None"),  # type: ignore[arg-type]
    "a reason of 7": Way(throw(DeadLetter(7)), "dead", "DeadLetter: 7"),  # type: ignore[arg-type]
    "a reason of bytes": Way(throw(DeadLetter(b"b")), "dead", "DeadLetter: b'b'"),  # type: ignore[arg-type]
    "a reason in itself": Way(throw(DeadLetter(ring())), "dead", "DeadLetter: [[...]]"),  # type: ignore[arg-type]
    "a reason of 5 MB": Way(throw(Retry("x" * 5_000_000)), "failed", "Retry: xxx"),
    "a reason with a NUL": Way(throw(Cancel("a\x00b")), "cancelled", "a\ufffdb"),
    "a reason of half a character": Way(throw(Retry("\ud800")), "failed", "Retry: \ufffd"),
    "Retry of no text": Way(throw(Retry(Unspeakable())), "failed", SAYS_SO),
    "DeadLetter of no text": Way(throw(DeadLetter(Unspeakable())), "dead", SAYS_SO),
    "Cancel of no text": Way(throw(Cancel(Unspeakable())), "cancelled", SAYS_SO),
    "Retry of a text that interrupts": Way(throw(Retry(Surly())), "failed", INTERRUPTS),
    "DeadLetter of a text that interrupts": Way(throw(DeadLetter(Surly())), "dead", INTERRUPTS),
    "Cancel of a text that is none": Way(throw(Cancel(Liar())), "cancelled", "TypeError"),  # type: ignore[arg-type]
    "DeadLetter of a sly text": Way(throw(DeadLetter(Sly("sly"))), "dead"),
    "Cancel of a masked text": Way(throw(Cancel(Masked())), "cancelled", "masked"),  # type: ignore[arg-type]
    "HandlerSignal itself": Way(throw(HandlerSignal("odd")), "failed", "HandlerSignal: odd"),
    "a signal of no kind": Way(throw(Mute), "failed", "Mute"),
    "a signal without super().__init__()": Way(throw(Broken), "failed", "Broken"),
    "a signal whose delay was deleted": Way(without_after, "failed", "Snooze"),
    "a signal whose delay was changed": Way(changed_after, "failed", "Snooze(after=) must be"),
    "a signal whose delay raises": Way(throw(Trap), "failed", "boom"),
    "a signal in a group": Way(
        throw(BaseExceptionGroup("g", [BaseExceptionGroup("h", [Snooze("1h")])])), "snoozed"
    ),
    "a wrong signal in a group": Way(
        throw(BaseExceptionGroup("g", [Snooze("soon")])), "failed", "Snooze(after=) must be"
    ),
    "two signals in a group": Way(
        throw(BaseExceptionGroup("g", [Retry(), DeadLetter("d")])), "failed", "BaseExceptionGroup"
    ),
    **{
        f"Snooze: {name}": Way(throw(Snooze(value)), "failed", "Snooze(after=)")
        for name, value in WRONG_DELAYS.items()
    },
    **{
        f"Retry(after=): {name}": Way(throw(Retry("x", after=value)), "failed", "Retry(after=)")
        for name, value in WRONG_DELAYS.items()
        if value is not None
    },
}

# Raised -------------------------------------------------------------------------------------------------------------


class _Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        return (
            boom() if name in ("__qualname__", "__name__", "__module__") else super().__getattribute__(name)
        )


class _Numbered(type):
    def __getattribute__(cls, name: str) -> Any:
        return 7 if name == "__qualname__" else super().__getattribute__(name)


class _Closed(type):
    def __getattribute__(cls, name: str) -> Any:
        raise KeyboardInterrupt

    def __instancecheck__(cls, other: Any) -> bool:
        raise KeyboardInterrupt


class Nameless(Exception, metaclass=_Nameless):
    pass


class Numbered(Exception, metaclass=_Numbered):
    pass


class Closed(Exception, metaclass=_Closed):
    pass


class Classless(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise Boom("boom")


class Untouchable(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt


class Splitter(ExceptionGroup[Any]):
    @property
    def exceptions(self) -> Any:
        raise Boom("boom")


class Odd(BaseException):
    pass


def circle(link: str) -> NoReturn:
    first, second = ValueError("first"), KeyError("second")
    setattr(first, link, second)
    setattr(second, link, first)
    raise first


def chain(length: int) -> NoReturn:
    last = ValueError("0")
    for n in range(length):
        last, before = ValueError(str(n)), last
        last.__cause__ = before
    raise last


def group_of(levels: int) -> BaseException:
    error: BaseException = Snooze(HOUR)
    for _ in range(levels):
        error = BaseExceptionGroup("g", [error])
    return error


def endless(n: int = 0) -> NoReturn:
    endless(n + 1)
    raise AssertionError


def noted(notes: Any) -> NoReturn:
    error = ValueError("noted")
    error.__notes__ = notes
    raise error


def half_done() -> NoReturn:
    try:
        boom()
    finally:
        raise KeyError("on the way out")


def nothing() -> NoReturn:
    raise None  # type: ignore[misc]  # noqa: B016


def a_number() -> NoReturn:
    raise 7  # type: ignore[misc]  # noqa: B016


def bad_text() -> Any:
    return b"\xff".decode()


RAISED: dict[str, Way] = {
    "ValueError": Way(throw(ValueError("wrong")), "failed", "ValueError: wrong"),
    "a bare class": Way(throw(ValueError), "failed", "ValueError"),
    "a number": Way(a_number, "failed", "TypeError"),
    "nothing": Way(nothing, "failed", "TypeError"),
    "KeyError": Way(throw(KeyError("k")), "failed", "KeyError: 'k'"),
    "OSError": Way(throw(OSError(28, "No space left")), "failed", "No space left"),
    "UnicodeDecodeError": Way(bad_text, "failed", "UnicodeDecodeError"),
    "SyntaxError": Way(throw(SyntaxError("bad", ("f", 1, 1, "x\x00"))), "failed", "SyntaxError: bad"),
    "SyntaxError with wrong details": Way(
        throw(SyntaxError("bad", (1, "x", None, 2))),  # type: ignore[arg-type]
        "failed",
        "SyntaxError",
    ),
    "AssertionError": Way(throw(AssertionError()), "failed", "AssertionError"),
    "MemoryError": Way(throw(MemoryError()), "failed", "MemoryError"),
    "RecursionError": Way(endless, "failed", "RecursionError"),
    "TimeoutError": Way(throw(TimeoutError()), "failed", "TimeoutError"),
    "CancelledError": Way(new(lambda: asyncio.CancelledError("mine")), "failed", "CancelledError"),
    "InvalidStateError": Way(throw(asyncio.InvalidStateError()), "failed", "InvalidStateError"),
    "StopIteration": Way(throw(StopIteration(7)), "failed"),
    "StopAsyncIteration": Way(throw(StopAsyncIteration()), "failed"),
    "GeneratorExit": Way(throw(GeneratorExit()), "failed", "GeneratorExit"),
    "SystemExit": Way(sys.exit, "failed", "SystemExit"),
    "SystemExit(3)": Way(lambda: sys.exit(3), "failed", "SystemExit: 3"),
    "SystemExit of a text": Way(throw(SystemExit("bye\x00")), "failed", "SystemExit: bye\ufffd"),
    "SystemExit of no text": Way(throw(SystemExit(Unspeakable())), "failed", "SystemExit"),
    "KeyboardInterrupt": Way(interrupt, "failed", "KeyboardInterrupt"),
    "BaseException": Way(throw(BaseException("base")), "failed", "BaseException: base"),
    "a BaseException of the user's": Way(throw(Odd("odd")), "failed", "Odd: odd"),
    "InvalidPayload": Way(throw(InvalidPayload("mine")), "failed", "InvalidPayload: mine"),
    "LeaseLost": Way(throw(LeaseLost()), "failed", "LeaseLost"),
    "JobSettled": Way(throw(JobSettled()), "failed", "JobSettled"),
    "DatabaseUnavailable": Way(throw(DatabaseUnavailable("mine")), "failed", "DatabaseUnavailable: mine"),
    "an error of the driver": Way(throw(psycopg.OperationalError("gone")), "failed", "gone"),
    "an error of the server": Way(throw(psycopg.errors.DivisionByZero("x / 0")), "failed", "x / 0"),
    "a NUL": Way(throw(ValueError("be\x00fore")), "failed", "ValueError: be\ufffdfore"),
    "half a character": Way(throw(ValueError("be\ud800fore")), "failed", "ValueError: be\ufffdfore"),
    "control characters": Way(throw(ValueError("\x1b[2J\x07\u202e")), "failed", "ValueError: "),
    "5 MB": Way(throw(ValueError("x" * 5_000_000)), "failed", "ValueError: xxx"),
    "5 MB of emoji": Way(throw(ValueError("\U0001f600" * 1_250_000)), "failed", "ValueError: "),
    "many arguments": Way(throw(ValueError(*range(10_000))), "failed", "ValueError: (0, 1, 2"),
    "an argument that raises": Way(throw(ValueError(Unspeakable())), "failed", "ValueError"),
    "__str__ raises": Way(new(hostile(Exception, "__str__", "__repr__")), "failed", "RuntimeError"),
    "__str__ interrupts": Way(
        new(hostile(Exception, "__str__", "__repr__", raising=interrupt)), "failed", "KeyboardInterrupt"
    ),
    "__str__ raises itself": Way(
        new(hostile(Exception, "__str__", raising=lambda self: throw(self)())), "failed", "Hostile"
    ),
    "__str__ gives no text": Way(new(hostile(Exception, "__str__", raising=give(7))), "failed", "TypeError"),
    "__str__ gives a sly text": Way(new(hostile(Exception, "__str__", raising=give(Sly("sly")))), "failed"),
    "__qualname__ raises": Way(throw(Nameless("who")), "failed", "who"),
    "__qualname__ is a number": Way(throw(Numbered("who")), "failed", "Numbered: who"),
    "the class lets nobody look": Way(throw(Closed("who")), "failed"),
    "__class__ raises": Way(throw(Classless("who")), "failed"),
    "no attribute can be read": Way(throw(Untouchable("who")), "failed"),
    "__eq__ and __hash__ raise": Way(new(hostile(Exception, "__eq__", "__hash__")), "failed", "Hostile"),
    "__bool__ raises": Way(new(hostile(Exception, "__bool__", "__len__")), "failed"),
    "a circle of causes": Way(lambda: circle("__cause__"), "failed", "ValueError: first"),
    "a circle of contexts": Way(lambda: circle("__context__"), "failed", "ValueError: first"),
    "a chain of 5000": Way(lambda: chain(5000), "failed", "ValueError: 4999"),
    "on the way out": Way(half_done, "failed", "KeyError: 'on the way out'"),
    "notes that are a number": Way(lambda: noted(7), "failed", "ValueError: noted"),
    "notes that raise": Way(lambda: noted([Unspeakable()]), "failed", "ValueError: noted"),
    "1,000 notes": Way(lambda: noted(["n" * 1000] * 1_000), "failed", "ValueError: noted"),
    "a group of two": Way(
        throw(ExceptionGroup("g", [ValueError("a"), KeyError("b")])), "failed", "ExceptionGroup: g"
    ),
    "a group of 1,000": Way(
        throw(ExceptionGroup("g", [ValueError(n) for n in range(1_000)])),
        "failed",
        "ExceptionGroup: g",
    ),
    "a group of the unspeakable": Way(
        throw(ExceptionGroup("g", [hostile(Exception, "__str__", "__repr__")()] * 3)),
        "failed",
        "g (3 sub",
    ),
    "a group of 100 levels": Way(throw(group_of(100)), "snoozed"),
    "a group of 3000 levels": Way(throw(group_of(3000)), "snoozed"),
    "a group that raises": Way(new(lambda: Splitter("g", [ValueError()])), "failed"),
    "an __init__ that raises": Way(new(hostile(Exception, "__init__")), "failed", "RuntimeError: boom"),
    "a __new__ of something else": Way(
        throw(type("Other", (Exception,), {"__new__": lambda cls: 7})), "failed", "TypeError"
    ),
}

WAYS: dict[str, Way] = {
    **{f"returns {name}": way for name, way in RETURNED.items()},
    **{f"signals {name}": way for name, way in SIGNALS.items()},
    **{f"raises {name}": way for name, way in RAISED.items()},
}

# The app ------------------------------------------------------------------------------------------------------------

app = Holdfast("postgresql://unused.invalid/none")
OPTIONS: Any = {"max_attempts": 2, "retry": Backoff(first=HOUR, jitter=False)}


@app.task(name="async", **OPTIONS)
async def end_async(way: str) -> Any:
    return WAYS[way].do()


@app.task(name="awaiting", timeout="10m", **OPTIONS)
async def end_awaiting(way: str) -> Any:
    await asyncio.sleep(0)
    return WAYS[way].do()


@app.task(name="sync", **OPTIONS)
def end_sync(way: str) -> Any:
    return WAYS[way].do()


@app.task(name="process", process=True, **OPTIONS)
def end_process(way: str) -> Any:
    return WAYS[way].do()


@app.task(name="transaction", **OPTIONS)
def end_transaction(tx: Transaction, way: str) -> Any:
    tx.execute("INSERT INTO seen VALUES (%s)", [way])
    return WAYS[way].do()


@app.task(name="async_transaction", **OPTIONS)
async def end_async_transaction(tx: AsyncTransaction, way: str) -> Any:
    await tx.execute("INSERT INTO seen VALUES (%s)", [way])
    return WAYS[way].do()


@app.batch_task(name="batch", size=1, wait="1ms", **OPTIONS)
async def end_batch(batch: Batch[str]) -> None:
    for item in batch:
        item.complete(WAYS[item.value].do())


@app.batch_task(name="sync_batch", size=1, wait="1ms", **OPTIONS)
def end_sync_batch(batch: Batch[str]) -> None:
    for item in batch:
        item.complete(WAYS[item.value].do())


FORMS: dict[str, Any] = {
    "async": end_async,
    "awaiting": end_awaiting,
    "sync": end_sync,
    "process": end_process,
    "transaction": end_transaction,
    "async_transaction": end_async_transaction,
    "batch": end_batch,
    "sync_batch": end_sync_batch,
}
