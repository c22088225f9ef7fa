"""Records as JSON, for statements that take the rows of one run."""

import json
from collections.abc import Iterable

from .journal import Record


def plain_row(row: Record) -> dict[str, object]:
    """Results and errors, which are JSON text, stay text."""
    return {**_plain(row), "result": row.result, "error": row.error}


def row_json(row: Record) -> str:
    """Results and errors become a part of it."""
    tail = f', "result": {row.result}' if row.result is not None else ""
    tail += f', "error": {row.error}' if row.error is not None else ""
    return json.dumps(_plain(row))[:-1] + tail + "}"


def rows_json(rows: Iterable[Record]) -> str:
    return "[" + ",".join(map(row_json, rows)) + "]"


def _plain(row: Record) -> dict[str, object]:
    return {
        "key": row.key,
        "kind": row.kind,
        "outcome": row.outcome,
        "ordinal": row.ordinal,
        "attempts": row.attempts,
        "began": row.began,
        "ended": None if row.ended is None else row.ended.isoformat(),
        "input_hash": None if row.input_hash is None else row.input_hash.hex(),
        "linked": None if row.linked is None else str(row.linked),
    }
