"""The Job of an attempt, made when it is first asked for: most attempts of a batch never need theirs."""

import threading
from collections.abc import Callable

from ..db.database import Database
from .handler import Handler
from .inflight import Running
from .job import Job
from .record import Recorders, Rows


class JobMaker:
    def __init__(self, database: Database, worker: Callable[[], str], recorders: Recorders) -> None:
        self._database = database
        self._worker = worker
        self._recorders = recorders
        self._making = threading.Lock()

    def __call__(self, running: Running, handler: Handler) -> Job:
        """The attempt's Job: any thread of a batch handler may be the first to ask for it."""
        with self._making:
            if (job := running.job) is None:
                rows = Rows(self._recorders, in_transaction=handler.transaction != "none")
                running.job = job = Job(
                    running.claimed, self._database, self._worker(), handler.encode, running.on_change, rows
                )
                job._keep = handler.keep
                if running.stop:  # before anybody listened
                    running.interrupt(running.stop)
        return job
