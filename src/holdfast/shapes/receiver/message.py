"""ReceivedMessage: one message as a handler gets it, and its form in a job."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from ...model.text import ERROR_BYTES, storable
from ...tasks.convert import Converter, Misfit, converter

T_co = TypeVar("T_co", covariant=True)
HEADER_BYTES = 16 * 1024  # of all that are kept
_SECRET = frozenset(("authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key"))


@dataclass(frozen=True, slots=True)
class ReceivedMessage(Generic[T_co]):
    """One message as a handler gets it: `async def paid(message: ReceivedMessage[Invoice])`."""

    source: str
    id: str  # the sender's: the same however often it is sent
    received_at: datetime
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    data: T_co = None  # type: ignore[assignment]

    @classmethod
    def __holdfast_converter__(cls, arguments: tuple[Any, ...]) -> "MessageConverter":
        return MessageConverter(arguments[0] if arguments else Any)


class MessageConverter:
    """ReceivedMessage[T] <-> the JSON object that a job carries."""

    __slots__ = ("_data",)

    def __init__(self, data: Any) -> None:
        self._data: Converter = converter(data)

    def load_data(self, data: Any) -> Any:
        """The data as the type says; Misfit when it does not fit."""
        return self._data.load(data)

    def load(self, value: Any) -> ReceivedMessage[Any]:
        if not isinstance(value, dict):
            raise Misfit(f"a received message is a JSON object, not {type(value).__name__}")
        if "raw" in value:
            raise Misfit("its bytes could not be read; they are in `raw`, as base64")
        try:
            return ReceivedMessage(
                value["source"],
                value["id"],
                datetime.fromisoformat(value["received_at"]),
                value["headers"] or {},
                self._data.load(value["data"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise Misfit(f"it is no received message: {type(error).__name__}: {error}") from None

    def dump(self, value: Any) -> Any:
        if not isinstance(value, ReceivedMessage):
            raise Misfit(f"not {type(value).__name__}")
        data = self._data.dump(value.data)
        return envelope(value.source, value.id, value.received_at, value.headers, data)

    def schema(self) -> dict[str, Any]:
        """The accepted data, for the fingerprint of a handler's signature."""
        make = getattr(self._data, "schema", None)
        return {"received": make() if make is not None else None}


def envelope(
    source: str, message_id: str, at: datetime, headers: Mapping[str, str], data: Any
) -> dict[str, Any]:
    return {
        "source": source,
        "id": message_id,
        "received_at": at.astimezone(UTC).isoformat(),
        "headers": dict(headers),
        "data": data,
    }


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that a job carries: no credentials, and at most HEADER_BYTES."""
    kept = {name: value for name, value in headers.items() if name not in _SECRET}
    whole = "".join((*kept, *kept.values()))
    if len(whole) < ERROR_BYTES and whole.isascii() and "\0" not in whole:
        return kept
    found: dict[str, str] = {}
    left = HEADER_BYTES
    for name, value in kept.items():
        left -= len(name) + len(value)
        if left < 0:
            break
        found[storable(name)] = storable(value)
    return found
