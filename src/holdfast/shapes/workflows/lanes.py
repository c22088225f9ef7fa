"""Rows that wait to be written, by run, so that runs take turns."""

import asyncio
import math
from collections import deque
from itertools import islice
from typing import Any, Generic, TypeVar

from ...model.job import Owned

T = TypeVar("T")
MOST_ROWS = 1000  # of a statement
MOST_BYTES = 1024 * 1024
LEAST_RUNS = (
    100  # that are not split: two statements would cost the server and this worker nearly twice as much
)
_KEPT = 0.99  # of the runs at work as last counted, from one statement to the next


class Asked(Generic[T]):
    """A write that one run has requested, and its future."""

    __slots__ = ("done", "grant", "rows", "size", "what")

    def __init__(
        self,
        grant: Owned,
        what: T,
        done: "asyncio.Future[Any] | None" = None,
        size: int = 0,
        rows: int = 1,
    ) -> None:
        self.grant = grant
        self.what = what
        self.done = asyncio.get_running_loop().create_future() if done is None else done
        self.size = size
        self.rows = rows

    def end(self, result: object) -> None:
        if not self.done.done():
            self.done.set_result(result)

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Lane(Generic[T]):
    """One kind of write: the waiting entries, by run, so that runs take turns."""

    def __init__(self) -> None:
        self._runs: dict[str, deque[Asked[T]]] = {}

    def __len__(self) -> int:
        """How many runs wait."""
        return len(self._runs)

    def add(self, asked: Asked[T]) -> None:
        run = asked.grant.id_text
        waiting = self._runs.get(run)
        if waiting is None:
            self._runs[run] = deque((asked,))
        else:
            waiting.append(asked)

    def take(self, most_runs: int) -> list[Asked[T]]:
        """The next batch: one of each run, then another, up to its size, of at most `most_runs` runs. They leave."""
        batch: list[Asked[T]] = []
        rows = size = 0
        runs = list(islice(self._runs, most_runs))
        while runs:
            more: list[str] = []
            for run in runs:
                waiting = self._runs[run]
                asked = waiting[0]
                if batch and (rows + asked.rows > MOST_ROWS or size + asked.size > MOST_BYTES):
                    return batch
                batch.append(asked)
                rows += asked.rows
                size += asked.size
                del self._runs[run]
                if len(waiting) > 1:
                    waiting.popleft()
                    self._runs[run] = waiting  # behind the others
                    more.append(run)
            runs = more
        return batch


class Part:
    """How many runs go in one statement: of many half, so that the others continue in Python meanwhile.

    Counted are as many as were at work a moment ago. Runs that were started together end together, and are gone before the
    next ones come: half of what is there then would split the others, and they stay split.
    """

    def __init__(self) -> None:
        self._at_work = 0.0

    def of(self, at_work: int) -> int:
        self._at_work = max(float(at_work), self._at_work * _KEPT)
        return max(LEAST_RUNS, math.ceil(self._at_work / 2))
