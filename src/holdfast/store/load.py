"""Load: the lines that COPY takes, for jobs that need no look at what is there already."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ..model.job import NewRow
from ..sql import query
from .literal import text_array
from .statement import Row, Statement, ids, nothing

_AT_ONCE = 4096  # ids of one millisecond
_EPOCH = datetime.fromtimestamp(0, UTC)
_TEN_YEARS = timedelta(days=3650)


class Loadable(NamedTuple):
    """What the lines need to know: the database's clock, the queues, and which are claimed key by key or in order."""

    now: datetime
    queues: frozenset[str]
    keyed: frozenset[str]
    ordered: frozenset[str]


def load_begin() -> Statement[Loadable]:
    def decode(rows: Sequence[Row]) -> Loadable:
        now, queues, keyed, ordered = rows[0]
        return Loadable(now, frozenset(queues), frozenset(keyed), frozenset(ordered))

    return Statement("load_begin", query("load_begin"), (), decode)


def load_changed(queues: Sequence[str], fault: Callable[[str], Exception]) -> Statement[None]:
    """Raises if one of these queues is ordered by now. After the rows: from the first of them on nobody can change that."""

    def decode(rows: Sequence[Row]) -> None:
        for queue in ids(rows):
            raise fault(queue)

    return Statement("load_changed", query("load_changed"), (list(queues),), decode)


def load_wake(first: dict[str, datetime]) -> Statement[None]:
    return Statement("load_wake", query("load_wake"), (list(first), list(first.values())), nothing)


@dataclass(slots=True)
class Lines:
    """Rows as lines of COPY, in order; counts them, and remembers when the first of each queue is due."""

    known: Loadable
    count: int = 0
    first: dict[str, datetime] = field(default_factory=dict)
    _tails: dict[tuple[object, ...], str] = field(default_factory=dict)

    def of(self, rows: Iterable[NewRow]) -> Iterator[str]:
        made = _ids(self.known.now)
        tails = self._tails
        for row in rows:
            kind = (row[0], row[2:])  # all but the payload
            tail = tails.get(kind)
            if tail is None:
                if len(tails) >= _AT_ONCE:  # each has a key of its own
                    tails.clear()
                tail = tails[kind] = self._tail(row)
            self.count += 1
            yield f"{next(made)}\t{row.payload.replace(_BACKSLASH, _TWO)}\t{tail}"

    def _tail(self, row: NewRow) -> str:
        """All but the id and the payload."""
        now = self.known.now
        due = now + timedelta(seconds=row.delay) if row.run_at is None else row.run_at
        due = min(max(due, _EPOCH), now + _TEN_YEARS)
        if row.queue not in self.first or due < self.first[row.queue]:
            self.first[row.queue] = due
        tags = text_array(row.tags) if row.tags else None
        columns = (
            row.queue,
            row.task,
            str(row.version),
            row.partition_key,
            str(row.priority),
            str(row.max_attempts),
            due.isoformat(),
            now.isoformat(),
            now.isoformat(),
            tags,
            row.metadata,
            None if row.parent is None else str(row.parent),
        )
        return "\t".join(["\\N" if text is None else _escaped(text) for text in columns]) + "\n"


_BACKSLASH, _TWO = "\\", "\\\\"


def _escaped(text: str) -> str:
    """As COPY reads it."""
    return (
        text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
        if "\\" in text or not text.isprintable()
        else text
    )


def _ids(now: datetime) -> Iterator[str]:
    """UUIDs of version 7 by the database's clock, each greater than the one before."""
    began, last = time.monotonic(), 0
    start = int(now.timestamp() * 1000)
    while True:
        last = max(last + 1, start + int((time.monotonic() - began) * 1000))
        moment, noise = f"{last:012x}7", os.urandom(8 * _AT_ONCE).hex()
        for n in range(_AT_ONCE):
            at = 16 * n
            yield f"{moment}{n:03x}{_VARIANT[noise[at]]}{noise[at + 1 : at + 16]}"


_VARIANT = {digit: "89ab"[n % 4] for n, digit in enumerate("0123456789abcdef")}

COPY = (
    "COPY holdfast.work (id, payload, queue, task, version, partition_key, priority, max_attempts, available_at,"
    " created_at, claimed_at, tags, metadata, parent_id) FROM STDIN"
)
