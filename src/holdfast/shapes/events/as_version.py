"""`as_version=[OrderPaid]`: relays and webhooks send an event in the version that its receivers know."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import InvalidEvent, TaskDefinitionError
from ...follow import LogRow, OtherVersion
from ...tasks.convert import Misfit
from ...tasks.payload import shown
from .contract import EventType, data_text, type_of


def row_maker(what: str, classes: Sequence[Any]) -> Callable[[LogRow], LogRow] | None:
    """A function from a row of the log to the row that is sent; None: each is sent as it was published."""
    if isinstance(classes, str | type) or not isinstance(classes, Sequence):
        raise TaskDefinitionError(f"{what}: as_version must be a list of event classes, not {shown(classes)}")
    kinds: dict[str, EventType] = {}
    for cls in classes:
        kind = type_of(cls)
        if kind is None:
            raise TaskDefinitionError(
                f'{what}: as_version takes event classes, and {shown(cls)} is none. Write @event("...") above it'
            )
        if kind.name in kinds:
            raise TaskDefinitionError(f"{what}: as_version has two versions of {kind.name}. Keep one")
        kinds[kind.name] = kind
    return (lambda row: _made(kinds, row)) if kinds else None


def _made(kinds: dict[str, EventType], row: Any) -> Any:
    kind = kinds.get(row.type)
    if kind is None or row.version == kind.version or row.data is None:
        return row
    what = f"version {row.version} of {row.type} is to be sent as version {kind.version}"
    if row.version > kind.version:
        raise OtherVersion(f"{what}, and nothing makes an older version of a newer one")
    try:
        text = data_text(kind.encode(kind.load(row.version, json.loads(row.data))), row.type)
    except (Misfit, InvalidEvent) as error:
        raise OtherVersion(f"{what}: {error}") from error
    return row._replace(version=kind.version, data=text)
