"""Many plain jobs by COPY: which jobs can go that way, and the errors of those that cannot."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from ..errors import InvalidOption
from ..model.job import Enqueued, NewRow, enqueued_of
from ..store import copy as store
from ..store.statement import Statement
from .newjob import NewJob
from .payload import shown

_KEYS: Sequence[Callable[[NewRow], str | None]] = (attrgetter("idempotency_key"), attrgetter("replace_key"))
_follow_ups: Callable[[NewRow], Sequence[NewRow]] = attrgetter("follow_ups")
LEAST = 500  # jobs of an enqueue_many from which COPY is used; for fewer, its messages take longer than the function


class Load:
    """One load, from its first question about the queues to the wake-up. `unknown` and `keyless` make the errors."""

    def __init__(
        self,
        rows: Iterable[NewRow],
        unknown: Callable[[str, list[str]], Exception],
        keyless: Callable[[NewRow], Exception],
    ) -> None:
        self._rows = rows
        self._unknown = unknown
        self._keyless = keyless
        self._packing: store.Packing | None = None

    @property
    def count(self) -> int:
        return self._packing.count if self._packing else 0

    def pieces(self, known: store.Loadable) -> Iterator[bytes]:
        self._packing = store.Packing(known, lambda row: self._check(row, known))
        return self._packing.of(self._rows, self._ids(known))

    def _ids(self, known: store.Loadable) -> Iterator[store.Id]:
        return store.new_ids(known.now)

    def _check(self, row: NewRow, known: store.Loadable) -> None:
        for what, unfit in (
            ("idempotency_key", row.idempotency_key is not None),
            ("replace_key", row.replace_key is not None),
            ("then", bool(row.follow_ups)),
        ):
            if unfit:
                raise _unfit(row, what)
        if row.queue not in known.queues:
            raise self._unknown(row.queue, sorted(known.queues))
        if row.queue in known.ordered:
            raise self._in_order(row.queue)
        if row.queue in known.keyed and row.partition_key is None:
            raise self._keyless(row)

    def _in_order(self, queue: str) -> Exception:
        return InvalidOption(
            f"queue {queue!r} is ordered by key, and COPY takes no lock on a key. Use enqueue_many for it"
        )

    def after(self) -> Iterator[Statement[Any]]:
        """The statements after the last row."""
        if self._packing is not None and self._packing.first:
            yield store.load_changed(list(self._packing.first), self._in_order)
            yield store.load_wake(self._packing.first)


class NotByCopy(Exception):
    """These jobs go by the function, which also reports what is wrong with them. Nothing is written yet."""


class Bulk(Load):
    """The jobs of an enqueue_many, and the id of each. Raises NotByCopy where the function decides what happens."""

    def __init__(self, rows: Sequence[NewRow]) -> None:
        super().__init__(rows, lambda *_: NotByCopy(), lambda _: NotByCopy())
        self._size = len(rows)
        self._made: list[store.Id] = []

    def _ids(self, known: store.Loadable) -> Iterator[store.Id]:
        self._made = list(itertools.islice(super()._ids(known), self._size))
        return iter(self._made)

    def _in_order(self, queue: str) -> Exception:
        return NotByCopy()

    def written(self) -> list[Enqueued]:
        return [enqueued_of((text, True, None)) for text in store.id_texts(self._made)]


def bulk_of(rows: Sequence[NewRow], conn: object | None) -> Bulk | None:
    """None: too few, or one of them depends on existing rows, or they belong to the caller's transaction."""
    if conn is not None or len(rows) < LEAST:
        return None
    if any(map(_follow_ups, rows)) or any(list(map(key, rows)).count(None) < len(rows) for key in _KEYS):
        return None
    return Bulk(rows)


def rows_of(jobs: Iterable[NewJob[Any]]) -> Iterator[NewRow]:
    """For jobs that are made while they are loaded."""
    for job in jobs:
        if not isinstance(job, NewJob):
            raise TypeError(f"enqueue_copy takes what task.job(...) returns, not {shown(job)}")
        if job.conn is not None:
            raise _unfit(job.row, "conn")
        yield job.row


def _unfit(row: NewRow, what: str) -> InvalidOption:
    where = (
        "COPY runs on a connection of our own" if what == "conn" else "COPY looks at nothing that is there"
    )
    return InvalidOption(
        f"a job of {row.task} was made with using({what}=...), and {where}. Use enqueue_many for it"
    )
