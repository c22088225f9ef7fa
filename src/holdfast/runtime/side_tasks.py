"""What a worker does beside its loop: short statements that nobody waits for. An error of the database is logged."""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from .. import telemetry
from ..errors import DatabaseError


class SideTasks:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, work: Coroutine[Any, Any, object], context: Context | None = None) -> None:
        task = self._loop.create_task(_quietly(work), context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def __bool__(self) -> bool:
        """Is one of them still at work?"""
        return bool(self._tasks)


async def _quietly(work: Coroutine[Any, Any, object]) -> None:
    try:
        await work
    except DatabaseError as error:
        telemetry.emit("worker.side_task_failed", level=logging.WARNING, error=str(error))
