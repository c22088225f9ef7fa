"""A worker's duties for workflows besides running them: report which it has, and end runs whose job is gone."""

import json
import logging
import time
from collections.abc import Mapping
from typing import Protocol

from ... import telemetry
from ...db.database import Database
from ...runtime.service import Service
from ...tasks.taskset import TaskSet
from . import ends
from .declare import KIND
from .recorder import forget, recorder_of

MOST_RUNS = 5000  # runs that one search reads
_EVERY = 10.0  # seconds between two searches of all workers together
_SAY = 3600.0


class Recording(Service):
    """Keeps the recorder of its worker's loop, and stops it after the last run."""

    name = "record"
    outlives_jobs = True
    topic = "+workflows"  # as holdfast.workflow_tell() names it

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._recorder = recorder_of(database)
        self._database = database
        self._recorder.users += 1

    def heard(self) -> None:
        self._recorder.look()

    async def tick(self) -> float:
        self._recorder.start()
        return 3600.0

    async def finish(self) -> None:
        self._recorder.users -= 1
        if self._recorder.users <= 0:
            await self._recorder.close()
            forget(self._database, self._recorder)


class Upkeep(Service):
    """`types`: name, version, queue and the JSON text of the input of each workflow in the code."""

    name = "workflows"

    def __init__(self, database: Database, types: list[tuple[str, int, str, str | None]]) -> None:
        super().__init__()
        self._database = database
        self._types = types
        self._said_at = -_SAY

    async def tick(self) -> float:
        await self._say()
        lost = await self._database.arun(lambda: ends.settle_lost(MOST_RUNS, _EVERY * 0.9))
        if lost.ended:
            telemetry.emit("workflow.ended_without_code", level=logging.WARNING, runs=lost.ended)
        return _EVERY

    async def _say(self) -> None:
        now = time.monotonic()
        if self._types and now - self._said_at >= _SAY:
            await self._database.arun(lambda: ends.seen(self._types))
            self._said_at = now


class Declared(Protocol):
    """A workflow in the code, as registries keep it: `registry._things["workflows"]["checkout version 2"]`."""

    name: str
    version: int
    queue: str
    input: object | None  # the names and types of its arguments, for people


def services(database: Database, tasks: TaskSet) -> list[Service]:
    declared: Mapping[str, Declared] = tasks.declared(KIND)
    if not declared:
        return []
    types = [
        (d.name, d.version, d.queue, None if d.input is None else json.dumps(d.input))
        for d in declared.values()
    ]
    return [Recording(database), Upkeep(database, types)]
