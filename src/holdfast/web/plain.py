"""Values for programs: plain dicts, lists, numbers and text, as JSON writes them."""

import dataclasses
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any
from uuid import UUID

from holdfast.model import exact
from holdfast.pages import Role
from holdfast.web.masking import for_role


def plain(value: Any) -> Any:
    """Dataclasses and named tuples by their fields, times as text, spans as seconds."""
    if value is None or isinstance(value, bool | int | float | str | exact.Number):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        named: Any = value
        return {name: plain(item) for name, item in named._asdict().items()}
    if isinstance(value, Mapping):
        return {_name(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, date):  # a datetime too
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, UUID) else None if callable(value) else str(value)


def _name(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "text", None) or str(value)


def as_json(value: Any, role: Role) -> bytes:
    """What this role sees of it."""
    return written(for_role(plain(value), role))


def written(seen: Any) -> bytes:
    """Only ASCII, and nothing that could end a script element."""
    text = exact.dumps(seen)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode("ascii")
