"""Contracts: the schemas of event types, as they are stored."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ....store.arrays import int_array, text_array
from ....store.statement import Row, Statement, named


class Contract(NamedTuple):
    """One version of an event type."""

    name: str
    version: int
    reader: dict[str, Any]  # JSON Schema of what its code takes
    writer: dict[str, Any]  # of what its code writes
    digest: str  # of both, in hexadecimal digits
    compatibility: str
    release: str | None = None


def event_types() -> Statement[list[Contract]]:
    """Every contract that is stored."""

    def decode(rows: Sequence[Row]) -> list[Contract]:
        return [
            Contract(r[0], int(r[1]), json.loads(r[2]), json.loads(r[3]), r[4].removeprefix("\\x"), *r[5:])
            for (r,) in rows
        ]

    return named("event_types", (), decode)


def store_event_types(contracts: Sequence[Contract], release: str | None) -> Statement[int]:
    """Store contracts, except existing ones; returns how many were written."""
    columns = (
        text_array([c.name for c in contracts]),
        int_array([c.version for c in contracts]),
        text_array([json.dumps(c.reader) for c in contracts]),
        text_array([json.dumps(c.writer) for c in contracts]),
        text_array([f"\\x{c.digest}" for c in contracts]),
        text_array([c.compatibility for c in contracts]),
    )
    return named("store_event_types", (*columns, release), len)
