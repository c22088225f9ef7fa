"""Many plain jobs by COPY: which jobs can go that way, and what is said of those that cannot."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import InvalidOption
from ..model.job import NewRow
from ..store import copy as store
from ..store.statement import Statement
from .newjob import NewJob
from .payload import shown


class Load:
    """One load, from the first look at the queues to the wake-up. `unknown` and `keyless` make the errors."""

    def __init__(
        self,
        jobs: Iterable[NewJob[Any]],
        unknown: Callable[[str, list[str]], Exception],
        keyless: Callable[[NewRow], Exception],
    ) -> None:
        self._jobs = jobs
        self._unknown = unknown
        self._keyless = keyless
        self._packing: store.Packing | None = None

    @property
    def count(self) -> int:
        return self._packing.count if self._packing else 0

    def pieces(self, known: store.Loadable) -> Iterator[bytes]:
        self._packing = store.Packing(known, lambda row: self._check(row, known))
        return self._packing.of(self._rows())

    def _rows(self) -> Iterator[NewRow]:
        for job in self._jobs:
            if not isinstance(job, NewJob):
                raise TypeError(f"enqueue_copy takes what task.job(...) returns, not {shown(job)}")
            if job.conn is not None:
                raise _unfit(job.row, "conn")
            yield job.row

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
            raise in_order(row.queue)
        if row.queue in known.keyed and row.partition_key is None:
            raise self._keyless(row)

    def after(self) -> Iterator[Statement[Any]]:
        """What is left to do when every row is written."""
        if self._packing is not None and self._packing.first:
            yield store.load_changed(list(self._packing.first), in_order)
            yield store.load_wake(self._packing.first)


def in_order(queue: str) -> InvalidOption:
    return InvalidOption(
        f"queue {queue!r} is ordered by key, and COPY takes no lock on a key. Use enqueue_many for it"
    )


def _unfit(row: NewRow, what: str) -> InvalidOption:
    where = (
        "COPY runs on a connection of our own" if what == "conn" else "COPY looks at nothing that is there"
    )
    return InvalidOption(
        f"a job of {row.task} was made with using({what}=...), and {where}. Use enqueue_many for it"
    )
