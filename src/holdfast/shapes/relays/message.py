"""An event of the log becomes a message: its destination, bytes and headers."""

import json
import re
from collections.abc import Callable
from functools import lru_cache
from string import Formatter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...errors import TaskDefinitionError
from ...follow import Cursor, LogRow, OtherVersion
from ...tasks.payload import shown
from ...transport import OutMessage, Refused

if TYPE_CHECKING:
    from ..events.event import Event

FIELDS = ("type", "key", "version")
_KEYS = 4096  # whose escaped form is kept: events of few keys come again and again
_SAFE = ":@_-~+"  # characters of a key, besides letters and digits, that mean nothing to any broker
_TOKEN = re.compile("[A-Za-z0-9_-]{1,64}")
_PRINTABLE = re.compile("[\x20-\x7e]*")

Route = Callable[["Event[Any]"], str]


class Template:
    """`shop.{type}.{key}`. Parts of a key are escaped, so that no key can name another destination."""

    def __init__(self, text: str) -> None:
        try:
            parts = list(Formatter().parse(text))
        except ValueError:
            raise TaskDefinitionError(f"route {text!r} is no template: a brace has no partner") from None
        for _, name, spec, conversion in parts:
            if name is not None and (name not in FIELDS or spec or conversion):
                raise TaskDefinitionError(
                    f"route {text!r} has {{{name}}}; it may have {', '.join(f'{{{f}}}' for f in FIELDS)}"
                )
        if not text.strip():
            raise TaskDefinitionError("route must not be empty: it says where messages go")
        self._text = text
        self._has_key = any(name == "key" for _, name, _, _ in parts)

    def of(self, row: LogRow) -> str:
        key = escaped(row.key) if self._has_key else ""
        return self._text.format(type=row.type, key=key, version=row.version)


@lru_cache(_KEYS)
def escaped(key: str | None) -> str:
    """A key as a part of a destination's name: everything but letters, digits and : @ _ - ~ + is percent-encoded."""
    return "_" if key is None else quote(key, safe=_SAFE).replace(".", "%2E")


class Unsendable(Exception):
    """An event that cannot become a message."""

    def __init__(self, why: Refused) -> None:
        super().__init__(why.detail)
        self.why = why


class Maker:
    """`most_bytes` and `key_bytes` are the transport's. `sent` gives the version of an event that is sent."""

    def __init__(
        self,
        route: Template | Route,
        cursor: Cursor,
        most_bytes: int,
        key_bytes: int | None = None,
        sent: Callable[[LogRow], LogRow] | None = None,
    ) -> None:
        self._route = route
        self._sent = sent
        self._cursor = cursor
        self._most = most_bytes
        self._key_bytes = key_bytes

    def message(self, row: LogRow, *, late: bool = False) -> OutMessage:
        if row.data is None:
            raise Unsendable(Refused("malformed", "its data was erased"))
        if self._sent is not None:
            try:
                row = self._sent(row)
            except OtherVersion as error:
                raise Unsendable(Refused("malformed", str(error))) from error
        event_id = str(row.id)
        body = self._cursor.cloudevent(row, event_id).encode()
        if len(body) > self._most:
            raise Unsendable(Refused("too_large", f"{len(body)} bytes, and {self._most} may be sent"))
        if self._key_bytes is not None and row.key is not None and len(row.key.encode()) > self._key_bytes:
            raise Unsendable(Refused("malformed", f"its key has more than {self._key_bytes} bytes"))
        return OutMessage(
            event_id,
            row.position,
            row.type,
            row.key,
            self._destination(row),
            headers_of(row, event_id),
            body,
            era=self._cursor.era,
            late=late,
        )

    def _destination(self, row: LogRow) -> str:
        if isinstance(self._route, Template):
            return self._route.of(row)
        try:
            found: object = self._route(self._cursor.event(row))
        except Exception as error:
            raise Unsendable(
                Refused("malformed", f"its route failed: {type(error).__name__}: {error}")
            ) from error
        if not isinstance(found, str) or not found:
            raise Unsendable(Refused("unroutable", f"its route returned {shown(found)}, not a destination"))
        return found


def headers_of(row: LogRow, event_id: str) -> dict[str, str]:
    """CloudEvents attributes, and the event's own headers as far as any broker can carry them. None of those can imitate an
    attribute: a reader would take `ce-subject` for the key."""
    found: dict[str, str] = {}
    source = "holdfast"
    if row.headers:
        own: dict[str, str] = json.loads(row.headers)
        source = own.get("source", source)
        found = {
            name: value
            for name, value in own.items()
            if _TOKEN.fullmatch(name) and _PRINTABLE.fullmatch(value) and not _is_ours(name.lower())
        }
    found["ce-id"] = event_id
    found["ce-type"] = row.type
    found["ce-source"] = source
    if row.key is not None:
        found["ce-subject"] = _subject(row.key)
    return found


def _is_ours(name: str) -> bool:
    return name.startswith("ce-") or name == "content-type"


@lru_cache(_KEYS)
def _subject(key: str) -> str:
    return quote(key, safe=_SAFE + " !#$&'()*,./;=?[]")
