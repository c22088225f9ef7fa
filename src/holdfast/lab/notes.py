"""Notes of a process: one JSON line each, whole or not at all, also when the process is killed the next moment."""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from holdfast.store.arrays import UuidArray, plain_array
from holdfast.store.statement import Row, Statement

_LONG = 200  # characters of one parameter
FOLDER = "_HOLDFAST_LAB_FOLDER"
UNSAFE = "_HOLDFAST_LAB_UNSAFE"


@dataclass(frozen=True, slots=True)
class Note:
    at: float  # time.time()
    pid: int
    kind: str  # `ran`, `said` by the engine, `did` by a handler
    name: str
    fields: dict[str, Any] = field(default_factory=dict)


class Pen:
    """Writes the notes of this process."""

    def __init__(self, folder: Path, pid: int | None = None) -> None:
        self._path = folder / f"notes-{pid or os.getpid()}"

    def write(self, kind: str, name: str, **fields: Any) -> None:
        note = {"at": time.time(), "pid": os.getpid(), "kind": kind, "name": name, "fields": fields}
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, (json.dumps(note, default=str) + "\n").encode())
        finally:
            os.close(file)

    def ran(self, statement: Statement[Any], rows: list[Row], seconds: float) -> None:
        self.write(
            "ran",
            statement.name,
            text=statement.text,
            params=[_short(readable(value)) for value in statement.params],
            rows=len(rows),
            answer=[_short(value) for value in rows[0][:3]] if rows else [],
            changed=changed(statement, rows),
            ms=round(seconds * 1000, 2),
        )


def changed(statement: Statement[Any], rows: list[Row]) -> int:
    """How many jobs it took or settled. A settle says so in its answer; others return a row for each."""
    if statement.name not in ("settle_done", "settle_finish") or not rows:
        return len(rows)
    first = rows[0][0]
    return int(first[0] if isinstance(first, list) else first)


def readable(parameter: object) -> object:
    """As psql would show it: an array that goes as bytes is one of uuids."""
    if isinstance(parameter, UuidArray):  # a header, then a length before each
        return plain_array(str(UUID(bytes=parameter[at : at + 16])) for at in range(24, len(parameter), 20))
    return "NULL" if parameter is None else parameter


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"


class Reader:
    """Reads what is new in the notes of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> list[Note]:
        found: list[Note] = []
        for file in sorted(self._folder.glob("notes-*")):
            found += self._lines(file)
        return sorted(found, key=lambda note: note.at)

    def _lines(self, file: Path) -> Iterable[Note]:
        with file.open("rb") as opened:
            opened.seek(self._read.get(file, 0))
            whole, _, _ = opened.read().rpartition(b"\n")
        if whole:
            self._read[file] = self._read.get(file, 0) + len(whole) + 1
        return [Note(**json.loads(line)) for line in whole.splitlines()]
