"""Signals: messages to a run, checked when they are sent and typed when they are received."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from ...errors import InvalidPayload, TaskDefinitionError
from ...tasks import checks
from ...tasks.convert import Converter, Misfit, Unsupported, converter, type_name
from ...tasks.payload import dump, shown

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Message:
    """A signal with its payload, to be sent: `run.signal(CANCELLED({"by": "customer"}))`."""

    name: str
    payload: str  # JSON text


class Signal(Generic[T]):
    """A declared signal: `CANCELLED = Signal("cancelled", Cancellation)`. Its payload is checked when it is sent, and typed
    when it is received."""

    __slots__ = ("_converter", "_payload", "name")

    def __init__(self, name: str, payload: type[T]) -> None:
        self.name = checks.task_name(name, "the signal's name", TaskDefinitionError)
        self._payload = payload
        self._converter: Converter | None = None

    def __call__(self, payload: T) -> Message:
        """The message to send."""
        try:
            return Message(self.name, dump(self._types().dump(payload), "payload"))
        except Misfit as error:
            text = f", {error}" if str(error).startswith("not ") else f": {error}"
            raise InvalidPayload(
                f"the payload of signal {self.name!r} must be {type_name(self._payload)}{text}"
            ) from None

    def __repr__(self) -> str:
        return f"Signal({self.name!r}, {type_name(self._payload)})"

    @staticmethod
    def _check(given: object, verb: str) -> None:
        if not isinstance(given, Signal):
            raise TypeError(
                f'wf.{verb}() takes a Signal, not {shown(given)}. Declare it: CANCELLED = Signal("cancelled", Cancellation)'
            )

    def _load(self, value: Any) -> T:
        found: T = self._types().load(value)
        return found

    def _types(self) -> Converter:
        if self._converter is None:
            try:
                self._converter = converter(self._payload)
            except Unsupported as error:
                raise TaskDefinitionError(
                    f"the payload of signal {self.name!r} has type {type_name(self._payload)}, which has no JSON form: "
                    f"{error} Use a JSON type, a dataclass, a pydantic model or a msgspec.Struct"
                ) from error
        return self._converter


class Received(Generic[T_co]):
    """The result of a wait. Falsy if it timed out."""

    __slots__ = ("_value", "arrived", "key", "sent_at")

    def __init__(self, arrived: bool, value: Any, sent_at: datetime | None, key: str | None) -> None:
        self.arrived = arrived
        self._value = value
        self.sent_at = sent_at
        self.key = key

    @property
    def value(self) -> T_co:
        """The payload. Raises LookupError if the wait timed out."""
        if not self.arrived:
            raise LookupError("no signal came in time: ask `if received:` before received.value")
        found: T_co = self._value
        return found

    def __bool__(self) -> bool:
        return self.arrived

    def __repr__(self) -> str:
        return f"Received({shown(self._value)})" if self.arrived else "Received(nothing in time)"


class SignalMisfit(Misfit):
    """The payload of a received signal is not of its type: SQL and other languages may send anything."""

    def __init__(self, signal: Signal[Any], number: int, key: str, error: Misfit) -> None:
        super().__init__(
            f"the payload of signal {signal.name!r}, number {number} that {key!r} took, does not fit the code: {error}"
        )


# The kind of divergence may stand before it, in plain words: values that senders chose are in quotes, behind it.
_UNFIT = re.compile(
    "(?:[a-z, ]+: )?diverged: the payload of signal '[A-Za-z0-9_.-]+', number ([0-9]{1,9}) that '([A-Za-z0-9_./#-]+)' took, "
    "does not fit the code: "
)


def unfit(reason: str | None) -> tuple[str, int] | None:
    """For a run that was set aside for such a signal: the key of the call that took it, and its number in that call."""
    found = _UNFIT.match(reason or "")
    return (found[2], int(found[1])) if found else None


def taken(signal: Signal[T], key: str, result: str | None) -> Received[T]:
    """The message of a record; SignalMisfit when its payload is not of the signal's type."""
    found = json.loads(result or "{}")
    sent = found.get("sent_at")
    at = datetime.fromisoformat(sent) if sent else None
    (value,) = loaded(signal, key, [found.get("value")])
    return Received(True, value, at, found.get("key"))


def loaded(signal: Signal[T], key: str, values: Sequence[Any]) -> list[T]:
    made = []
    for number, value in enumerate(values, 1):
        try:
            made.append(signal._load(value))
        except Misfit as error:
            raise SignalMisfit(signal, number, key, error) from None
    return made
