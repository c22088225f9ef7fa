"""Which cells of the rows have changed: marked until something else changes."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

_TOGETHER = 1.2  # seconds within which changes count as one


class Marks:
    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] | None = None
        self._marks: dict[tuple[str, str, str], str] = {}  # table, row, column: what it was before
        self._at = 0.0

    def take(self, rows: Mapping[str, Sequence[dict[str, Any]]], quiet: Mapping[str, Sequence[str]]) -> None:
        before, self._rows = self._rows, {name: list(found) for name, found in rows.items()}
        if before is None:
            return
        fresh: dict[tuple[str, str, str], str] = {}
        for name, found in rows.items():
            old = {_key(row): row for row in before.get(name, [])}
            for row in found:
                for column, value in row.items():
                    was = old.get(_key(row), {}).get(column)
                    if column not in quiet[name] and value != was and not (value is None and was is None):
                        fresh[name, _key(row), column] = "" if was is None else str(was)
        gone = any(len(rows[name]) < len(before.get(name, [])) for name in rows)
        if fresh or gone:
            if time.monotonic() - self._at > _TOGETHER:
                self._marks.clear()
            self._marks |= fresh
            self._at = time.monotonic()

    def shown(self) -> list[dict[str, Any]]:
        """Each table: its columns, and rows of cells: a text, or [text before, text now] where it changed."""
        return [
            {
                "name": name,
                "columns": list(found[0]) if found else [],
                "rows": [[self._cell(name, row, column) for column in row] for row in found],
            }
            for name, found in (self._rows or {}).items()
        ]

    def _cell(self, table: str, row: dict[str, Any], column: str) -> str | list[str]:
        text = "" if row[column] is None else str(row[column])
        was = self._marks.get((table, _key(row), column))
        return text if was is None else [was, text]


def _key(row: dict[str, Any]) -> str:
    return str(next(iter(row.values())))
