"""Drain: stop claiming, hand back what has not started, let the rest finish or release it, leave.

Nothing here may wait for longer than it says: a handler that never ends, or a database that is away, must not keep
the process.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from .. import telemetry
from ..errors import DatabaseError
from ..model.outcome import Released

if TYPE_CHECKING:
    from .worker import Worker

_LAST_WRITES = 5.0
_LAST_SUMS = 2.0


async def _briefly(work: Awaitable[object], seconds: float, what: str) -> None:
    try:
        await asyncio.wait_for(work, seconds)
    except (TimeoutError, DatabaseError) as error:
        telemetry.emit(
            "drain.incomplete", level=logging.WARNING, step=what, error=f"{type(error).__name__}: {error}"
        )


async def drain(worker: "Worker") -> None:
    worker.stopping.set()
    for service in worker.services:
        await service.stop()
    await worker.notify.stop()
    await _briefly(worker.membership.drain(), _LAST_WRITES, "say draining")  # its seats are free from here on
    await worker.ring.stop()
    unstarted = [*worker.lanes.waiting(), *worker.starter.clear(), *worker.batches.clear()]
    for running in unstarted:
        worker.conclude(running, Released("not started"))
    await _let_finish(worker)
    await _release_rest(worker)
    await _briefly(worker.settler.drained(), _LAST_WRITES, "settle the rest")
    await _briefly(worker.claimer.doubt.give_back(), _LAST_WRITES, "give back what a lost answer claimed")
    await worker.sweeper.stop()
    await worker.settler.stop()
    await _briefly(worker.tally.last(), _LAST_SUMS, "write down what was finished")
    await worker.tally.stop()
    await worker.renewal.stop()
    me = worker.membership.id  # it may have been fenced while it drained
    await _briefly(worker.membership.take_back_blame(me), _LAST_WRITES, "take back what a silence counted")
    await _briefly(worker.membership.leave(), _LAST_WRITES, "leave")
    await worker.claimer.close()
    await worker.membership.close()


async def _let_finish(worker: "Worker") -> None:
    """Until the last handler ends, the drain limit is reached, or someone asks to hurry."""
    tasks = [r.task for r in worker.inflight.select() if r.task is not None]
    if not tasks:
        return
    hurry = asyncio.ensure_future(worker.hurry.wait())
    finished = asyncio.ensure_future(asyncio.wait(tasks))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait(
            {hurry, finished}, timeout=worker.settings.drain, return_when=asyncio.FIRST_COMPLETED
        )
    hurry.cancel()
    finished.cancel()


async def _release_rest(worker: "Worker") -> None:
    """Async handlers are cancelled and processes killed, and give their outcome; a sync handler cannot be stopped and is
    released by its fence."""
    rest = worker.inflight.select(lambda r: r.task is not None and (not r.task.done() or r.abandoned))
    for running in rest:
        running.interrupt("release")
        if running.is_async and running.task is not None:
            running.task.cancel()
    ending = [r.task for r in rest if (r.is_async or r.in_process) and r.task is not None]
    if ending:
        await asyncio.wait(ending, timeout=2.0)
    for running in rest:
        worker.conclude(running, Released("the worker stopped before the handler ended"))
