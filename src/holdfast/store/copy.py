"""Load: the rows as COPY takes them, for jobs that need no check against existing rows."""

import itertools
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ..model.bucket import bucket
from ..model.job import NewRow
from .statement import Row, Statement, ids, named, nothing

_AT_ONCE = 4096  # ids of one millisecond
_PIECE = 32 * 1024  # bytes: the server begins early, and has little left to do when the last has come
_EPOCH, _2000 = datetime.fromtimestamp(0, UTC), datetime(2000, 1, 1, tzinfo=UTC)
_TEN_YEARS = timedelta(days=3650)
Id = tuple[int, int]  # the halves of a UUID


class Loadable(NamedTuple):
    """What the rows depend on: the database's clock, the queues, and which are claimed key by key or in order."""

    now: datetime
    queues: frozenset[str]
    keyed: frozenset[str]
    ordered: frozenset[str]


def load_begin() -> Statement[Loadable]:
    return named("load_begin", (), _loadable, binary=True)  # the clock, whatever the session's DateStyle is


def bulk_begin(fault: type[Exception]) -> Statement[Loadable]:
    """Like load_begin(); raises where the function decides who may enqueue into which queue."""

    def decode(rows: Sequence[Row]) -> Loadable:
        if not rows:
            raise fault
        return _loadable(rows)

    return named("bulk_begin", (), decode, binary=True)


def _loadable(rows: Sequence[Row]) -> Loadable:
    now, queues, keyed, ordered = rows[0]
    return Loadable(now, frozenset(queues), frozenset(keyed), frozenset(ordered))


def load_changed(queues: Sequence[str], fault: Callable[[str], Exception]) -> Statement[None]:
    """Raises if one of these queues is ordered by now. Called after the rows: from the first on nobody can change that."""

    def decode(rows: Sequence[Row]) -> None:
        for queue in ids(rows):
            raise fault(queue)

    return named("load_changed", (list(queues),), decode)


def load_wake(first: dict[str, datetime]) -> Statement[None]:
    return named("load_wake", (list(first), list(first.values())), nothing)


@dataclass(slots=True)
class Packing:
    """Rows in the binary form of COPY, in order, in pieces to send: as text, the server takes a fifth longer to read them.
    Counts them, and remembers when the first of each queue is due. `check` sees one row of each kind."""

    known: Loadable
    check: Callable[[NewRow], None]
    count: int = 0
    first: dict[str, datetime] = field(default_factory=dict)
    _tails: dict[tuple[object, ...], bytes] = field(default_factory=dict)

    def of(self, rows: Iterable[NewRow], ids: Iterable[Id]) -> Iterator[bytes]:
        task, tail = "", b""
        kind: tuple[object, ...] = ()
        held, size = [_SIGNATURE], 0
        for row, (high, low) in zip(rows, ids, strict=False):
            if row[2:] != kind or row[0] != task:
                task, kind = row[0], row[2:]  # all but the payload
                tail = self._tails.get((task, kind)) or self._tail(row)
            payload = row[1].encode()
            line = _head(_COLUMNS, 16, high, low, len(payload) + 1, 1) + payload + tail
            held.append(line)
            size += len(line)
            self.count += 1
            if size >= _PIECE:
                yield b"".join(held)
                held, size = [], 0
        yield b"".join([*held, _END])

    def _tail(self, row: NewRow) -> bytes:
        """All but the id and the payload."""
        self.check(row)
        now = self.known.now
        due = now + timedelta(seconds=row.delay) if row.run_at is None else row.run_at
        due = min(max(due, _EPOCH), now + _TEN_YEARS)
        if row.queue not in self.first or due < self.first[row.queue]:
            self.first[row.queue] = due
        began = _moment(now)
        columns = (
            row.queue.encode(),
            row.task.encode(),
            _int(row.version),
            None if row.partition_key is None else row.partition_key.encode(),
            _int(0 if row.partition_key is None else bucket(row.partition_key)),
            _smallint(row.priority),
            _int(row.max_attempts),
            _moment(due),
            began,
            began,
            _texts(row.tags) if row.tags else None,
            None if row.metadata is None else b"\x01" + row.metadata.encode(),
            None if row.parent is None else row.parent.bytes,
        )
        if len(self._tails) >= _AT_ONCE:  # each has a separate key
            self._tails.clear()
        tail = self._tails[row[0], row[2:]] = b"".join(map(_sized, columns))
        return tail


_SIGNATURE, _END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
_COLUMNS = 15
_head = struct.Struct("!hiQQiB").pack  # columns, a uuid, and the length and version of a jsonb
_int, _smallint, _long = struct.Struct("!i").pack, struct.Struct("!h").pack, struct.Struct("!q").pack
_NULL = _int(-1)
_TEXT = 25  # the type, as the server numbers it


def _sized(value: bytes | None) -> bytes:
    return _NULL if value is None else _int(len(value)) + value


def _moment(at: datetime) -> bytes:
    return _long((at - _2000) // timedelta(microseconds=1))


def _texts(values: Sequence[str]) -> bytes:
    header = struct.pack("!iiiii", 1, 0, _TEXT, len(values), 1)
    return header + b"".join([_sized(value.encode()) for value in values])


def new_ids(now: datetime) -> Iterator[Id]:
    """UUIDs of version 7 by the database's clock, each greater than the one before: their halves."""
    return itertools.chain.from_iterable(_id_blocks(now))


def id_texts(made: Sequence[Id]) -> list[str]:
    """Without dashes: one at a time, with them, they take ten times as long."""
    text = struct.pack(f"!{2 * len(made)}Q", *itertools.chain.from_iterable(made)).hex()
    return [text[place : place + 32] for place in range(0, len(text), 32)]


def _id_blocks(now: datetime) -> Iterator[Iterator[Id]]:
    began, last = time.monotonic(), 0
    start = int(now.timestamp() * 1000)
    while True:
        last = max(last + 1, start + int((time.monotonic() - began) * 1000))
        first = last << 16 | 0x7000
        noise = struct.unpack(f"!{_AT_ONCE}Q", os.urandom(8 * _AT_ONCE))
        yield zip(range(first, first + _AT_ONCE), [n & _NOISE | _VARIANT for n in noise], strict=True)


_NOISE, _VARIANT = (1 << 62) - 1, 1 << 63

COPY = (
    "COPY holdfast.work (id, payload, queue, task, version, partition_key, partition_bucket, priority, max_attempts,"
    " available_at, created_at, claimed_at, tags, metadata, parent_id) FROM STDIN (FORMAT binary)"
)
