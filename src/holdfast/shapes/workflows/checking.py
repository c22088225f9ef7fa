"""Whether open runs fit the code. Their histories are replayed against it: no body runs, and nothing is written."""

import asyncio
import functools
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn
from uuid import UUID

from ...db.database import Database
from ...model.outcome import ErrorText
from ...tasks.taskset import TaskSet
from . import runs, store
from .declare import KIND
from .drive import Code, replay
from .faults import Diverged, Evicted
from .journal import CancelAsked, History, Kind, Stored

PAGE = 200


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the code of a run diverges from its history."""

    scope: str
    n: int | None  # the place in its scope; None: it has no order
    recorded: str | None
    asked: str | None
    message: str
    unasked: tuple[str, ...] = ()  # records from before this place that were not asked for


@dataclass(frozen=True, slots=True)
class Broken:
    """A run that the code would set aside."""

    run_id: UUID
    workflow: str
    id: str
    version: int
    divergence: Divergence


@dataclass(frozen=True, slots=True)
class Unknown:
    """Runs whose version is not in the code: they wait until a worker has it."""

    workflow: str
    version: int
    runs: int


@dataclass(frozen=True, slots=True)
class Checked:
    runs: int  # that were replayed
    broken: list[Broken]
    unknown: list[Unknown]


class HistoryJournal:
    """A journal that has a history and accepts no writes."""

    paused = False

    def __init__(self, history: History) -> None:
        self._history = history
        self.cancelled = CancelAsked()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def time(self) -> float:
        return self.now().timestamp()

    def lost(self) -> bool:
        return False

    def begins(self, key: str, kind: Kind, ordinal: int | None, began: float, attempt: int) -> None:
        """No body runs."""

    def beat(self, key: str, detail: str | None) -> None:
        """No body runs."""

    def failed(self, key: str, attempt: int, error: ErrorText) -> None:
        """No body runs."""

    async def history(self) -> History:
        return self._history

    def record_at_end(self, rows: Any) -> None:
        """No step is made."""

    async def _end(self, *_: Any, **__: Any) -> NoReturn:
        raise Evicted

    record = decide = receive = changed = suspend = transact = transact_blocking = _end
    start = call = continue_as_new = compensates = child_end = _end


async def replay_run(code: Code, history: History, payload: str) -> Divergence | None:
    try:
        arguments = code.decode(payload)
    except ValueError as error:
        return _misfit(error)
    found: Diverged | None = await replay(code, HistoryJournal(history), arguments)
    return None if found is None else _divergence(found)


async def displaced(code: Code, history: History, payload: str) -> list[Divergence]:
    """Where the code diverges from the history, place by place: at each, the records that it did not ask for are
    treated as records without a place. Those it asks for later are found anyway. The last divergence may have no such
    records: then something else is wrong there."""
    try:
        arguments = code.decode(payload)
    except ValueError as error:
        return [_misfit(error)]
    found, rows = list[Divergence](), list(history.rows)
    while True:
        parted = await replay(code, HistoryJournal(history._replace(rows=rows)), arguments)
        if parted is None:
            return found
        found.append(_divergence(parted))
        if not parted.unasked:
            return found
        rows = [_without_place(row) if row.record.key in parted.unasked else row for row in rows]


def _without_place(row: Stored) -> Stored:
    return row._replace(record=row.record._replace(ordinal=None))


def _misfit(error: ValueError) -> Divergence:
    return Divergence("", None, None, None, f"its input does not fit the code: {error}")


def _divergence(found: Diverged) -> Divergence:
    return Divergence(found.scope, found.n, found.recorded, found.asked, str(found), found.unasked)


def check(database: Database, tasks: TaskSet, workflow: str | None = None) -> Checked:
    """All open runs, or those of one workflow."""
    codes = {(one.name, one.version): one.code for one in tasks.declared(KIND).values()}
    checked, broken = 0, list[Broken]()
    unknown = Counter[tuple[str, int]]()
    after: UUID | None = None
    while page := database.run(functools.partial(runs.open_runs, workflow, after, PAGE)):
        after = page[-1].run_id
        known = [run for run in page if (run.workflow, run.version) in codes]
        unknown.update((run.workflow, run.version) for run in page if run not in known)
        histories = database.run(functools.partial(store.histories, [str(run.run_id) for run in known]))
        for run in known:
            if (found := histories.get(str(run.run_id))) is not None:  # else it ended meanwhile
                checked += 1
                code = codes[run.workflow, run.version]
                if (parted := asyncio.run(replay_run(code, found[0], run.payload))) is not None:
                    broken.append(Broken(run.run_id, run.workflow, run.id, run.version, parted))
    return Checked(checked, broken, [Unknown(*key, count) for key, count in sorted(unknown.items())])
