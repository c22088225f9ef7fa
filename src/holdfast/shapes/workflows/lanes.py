"""What waits to be written, by run, so that runs take turns."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from ...model.job import Owned

T = TypeVar("T")
MOST_ROWS = 1000  # of a statement
MOST_BYTES = 1024 * 1024


@dataclass(slots=True, eq=False)
class Asked(Generic[T]):
    """What one run wants to have done, and whoever waits for that."""

    grant: Owned
    what: T
    size: int = 0
    rows: int = 1
    done: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def end(self, result: object) -> None:
        if not self.done.done():
            self.done.set_result(result)

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Lane(Generic[T]):
    """One kind of write: what waits for it, by run, so that runs take turns."""

    def __init__(self) -> None:
        self._runs: dict[str, deque[Asked[T]]] = {}

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, asked: Asked[T]) -> None:
        self._runs.setdefault(asked.grant.id_text, deque()).append(asked)

    def take(self, most_runs: int) -> list[Asked[T]]:
        """The next batch: one of each run, then another, up to its size, of at most `most_runs` runs. They leave."""
        batch: list[Asked[T]] = []
        rows = size = 0
        runs = list(islice(self._runs, most_runs))
        while runs:
            for run in runs:
                waiting = self._runs[run]
                if batch and (rows + waiting[0].rows > MOST_ROWS or size + waiting[0].size > MOST_BYTES):
                    return batch
                batch.append(waiting[0])
                rows += waiting[0].rows
                size += waiting[0].size
                waiting.popleft()
                del self._runs[run]
                if waiting:
                    self._runs[run] = waiting  # behind the others
            runs = [run for run in runs if run in self._runs]
        return batch
