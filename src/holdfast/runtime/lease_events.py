"""What the renewing thread finds out, brought to the worker: a job is lost or cancelled, the worker fenced or to drain."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import telemetry
from ..db.database import Database
from ..errors import DatabaseError
from .inflight import Running, Stop
from .renew import Renewal

if TYPE_CHECKING:
    from .worker import Worker


def renewal_for(worker: "Worker", database: Database, lease: float) -> Renewal:
    """A renewal that tells this worker."""

    def call(function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody left to tell
            worker.loop.call_soon_threadsafe(function, *arguments)

    def stop(running: Running, reason: Stop) -> None:
        """Called in the renewing thread. Sync handlers see it at once; an async one is cancelled in its own loop."""
        running.interrupt(reason)
        call(_cancel, worker, running)

    renewal = Renewal(database, worker.inflight, lambda: worker.membership.id, lease)
    renewal.on_fenced = lambda: call(_start_over, worker, worker.membership.id)
    renewal.on_drain = lambda identity: call(_drain_asked, worker, identity)
    renewal.on_stop = stop
    renewal.on_abandoned = lambda running: call(worker.end_abandoned, running)
    return renewal


def _cancel(worker: "Worker", running: Running) -> None:
    if worker.batches.drop(running) or worker.starter.early.drop(running):
        worker.end_unstarted(running)
    elif running.task is not None and running.is_async and not running.settling:
        running.task.cancel()


def _start_over(worker: "Worker", fenced: str) -> None:
    if worker.membership.id == fenced and not worker.stopping.is_set():
        worker.aside(_start_again(worker))


async def _start_again(worker: "Worker") -> None:
    await worker.membership.start_over()
    worker.look_again()  # nobody tells the old name anything
    while True:
        try:
            return await worker.membership.take_back_blame()
        except DatabaseError as error:
            telemetry.emit("worker.blame_stands", level=logging.WARNING, error=str(error))
            await asyncio.sleep(worker.settings.heartbeat)


def _drain_asked(worker: "Worker", identity: str) -> None:
    """An operator set our status: the same as a first signal, however often the heartbeat says it."""
    if worker.membership.id == identity and not worker.stopping.is_set():
        telemetry.emit("worker.drain_asked", worker=identity)
        worker.stop()
