"""Many plain jobs by COPY: which jobs can go that way, and what is said of those that cannot."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import InvalidOption
from ..model.job import NewRow
from ..store import load as store
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
        self._lines: store.Lines | None = None

    @property
    def count(self) -> int:
        return self._lines.count if self._lines else 0

    def lines(self, known: store.Loadable) -> Iterator[str]:
        self._lines = store.Lines(known)
        return self._lines.of(self._rows(known))

    def _rows(self, known: store.Loadable) -> Iterator[NewRow]:
        free = known.queues - known.keyed
        for job in self._jobs:
            if not isinstance(job, NewJob):
                raise TypeError(f"enqueue_copy takes what task.job(...) returns, not {shown(job)}")
            row = job.row
            if (
                job.conn is not None
                or row.idempotency_key is not None
                or row.replace_key is not None
                or row.follow_ups
            ):
                raise _unfit(job)
            if row.queue not in free:
                self._check_queue(row, known)
            yield row

    def _check_queue(self, row: NewRow, known: store.Loadable) -> None:
        if row.queue not in known.queues:
            raise self._unknown(row.queue, sorted(known.queues))
        if row.queue in known.ordered:
            raise in_order(row.queue)
        if row.partition_key is None:
            raise self._keyless(row)

    def after(self) -> Iterator[Statement[Any]]:
        """What is left to do when every row is written."""
        if self._lines is not None and self._lines.first:
            yield store.load_changed(list(self._lines.first), in_order)
            yield store.load_wake(self._lines.first)


def in_order(queue: str) -> InvalidOption:
    return InvalidOption(
        f"queue {queue!r} is ordered by key, and COPY takes no lock on a key. Use enqueue_many for it"
    )


def _unfit(job: NewJob[Any]) -> InvalidOption:
    row = job.row
    what = (
        "conn"
        if job.conn is not None
        else "idempotency_key"
        if row.idempotency_key is not None
        else "replace_key"
        if row.replace_key is not None
        else "then"
    )
    where = (
        "COPY runs on a connection of our own" if what == "conn" else "COPY looks at nothing that is there"
    )
    return InvalidOption(
        f"a job of {row.task} was made with using({what}=...), and {where}. Use enqueue_many for it"
    )
