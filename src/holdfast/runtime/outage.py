"""The end of an outage: the first session that reconnects ends the pauses of all loops of its worker.

The renewing thread needs no help: it never pauses for longer than a heartbeat.
"""

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ..db.reach import Reach

if TYPE_CHECKING:
    from .worker import Worker


def ending_pauses(worker: "Worker", reach: Reach) -> AbstractContextManager[None]:
    """While the block lasts, every loop of this worker tries again as soon as one of them reached the database."""
    services = (worker.settler, worker.sweeper, worker.ring, worker.notify, worker.tally, *worker.services)

    def retry() -> None:
        for service in services:
            service.retry_now()
        worker.look_again()

    def returned() -> None:
        """Called in the thread of the session."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            worker.loop.call_soon_threadsafe(retry)

    return reach.on_return(returned)
