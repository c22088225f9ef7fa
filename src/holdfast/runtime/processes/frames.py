"""Frames between a worker and its child processes: JSON with its length in front, over a separate socket.

Never stdin or stdout, which belong to the user's code. Never pickle: reading a frame runs no code.
"""

import dataclasses
import json
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

from ...model.job import ClaimedJob
from ...model.outcome import ErrorText, Outcome, Recorded
from ...model.state import OUTCOMES

Frame = dict[str, Any]
_LENGTH = struct.Struct(">I")
_LARGEST = 16 * 1024 * 1024


class BadFrame(ValueError):
    """The bytes from the socket are not a frame of the other side."""


def pack(frame: Frame) -> bytes:
    """The frame as bytes; values without a JSON form go as their text."""
    body = json.dumps(frame, default=str).encode()
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Bytes in, frames out."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._rest += data
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > _LARGEST:
                raise BadFrame(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._rest) < end:
                return
            body = bytes(self._rest[_LENGTH.size : end])
            del self._rest[:end]
            yield _read(body)


def _read(body: bytes) -> Frame:
    try:
        frame = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"a frame that is no JSON: {type(error).__name__}") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("frame"), str):
        raise BadFrame("a frame without a name")
    return frame


def job_to_json(claimed: ClaimedJob) -> Frame:
    return claimed._asdict()


def job_from_json(data: Frame) -> ClaimedJob:
    return ClaimedJob(**data)


_KINDS: dict[str, type[Outcome]] = {kind.__name__: kind for kind in OUTCOMES}


def outcome_to_json(outcome: Outcome) -> Frame:
    fields = dataclasses.asdict(outcome)
    if not outcome.rows:
        del fields["rows"]
    return {"kind": type(outcome).__name__, **fields}


def outcome_from_json(data: object) -> Outcome:
    """The outcome, checked field by field: a child runs the user's code, and may send anything."""
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise BadFrame("an outcome without a kind")
    kind = _KINDS.get(data["kind"])
    if kind is None:
        raise BadFrame(f"an outcome of unknown kind {data['kind'][:60]!r}")
    values = {name: value for name, value in data.items() if name != "kind"}
    if values.keys() | {"rows"} != {field.name for field in dataclasses.fields(kind)}:
        raise BadFrame(f"{data['kind']} with the fields {sorted(values)}")
    return kind(**{name: _FIELDS[name](value) for name, value in values.items()})


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadFrame(f"{type(value).__name__} where a text belongs")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadFrame(f"{value!r} where seconds belong")
    return float(value)


def _error(value: object) -> ErrorText:
    if not isinstance(value, dict) or set(value) != {"kind", "message", "trace"}:
        raise BadFrame("an error without kind, message and trace")
    return ErrorText(_text(value["kind"]), _text(value["message"]), _text(value["trace"]))


def _rows(value: object) -> tuple[Recorded, ...]:
    if not isinstance(value, list) or not all(isinstance(row, list) and len(row) == 2 for row in value):
        raise BadFrame("rows that are no list of pairs")
    return tuple(Recorded(_text(table), _text(row)) for table, row in value)


_FIELDS: dict[str, Callable[[object], Any]] = {
    "beside": bool,
    "completed_itself": bool,
    "newer": bool,
    "result": lambda value: None if value is None else _text(value),
    "reason": _text,
    "signature": _text,
    "error": _error,
    "delay": _seconds,
    "deadline": lambda value: None if value is None else _seconds(value),
    "rows": _rows,
}
