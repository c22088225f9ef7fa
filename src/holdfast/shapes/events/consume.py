"""A consumer: events become jobs in the transaction that moves the position.

The subscription remembers which positions became jobs. So one that is moved back, and a replay, create no job twice. An
event that the database refuses as a job is set aside and recorded; the others continue.
"""

import logging
from collections.abc import Sequence

from ... import failpoints, telemetry
from ...db.database import Database
from ...db.faults import BadRow
from ...errors import LeaseLost
from ...model.job import NewRow
from ...model.text import storable
from ...store import jobs
from ...store.statement import Flow
from ...tasks.definition import Definition
from ...tasks.writer import unknown_queue
from . import store
from .event import EventRow, job_payload, trace_of
from .store import Owned, Page, Span

BATCH = 1000
_OF_THE_DATA = ("22", "23", "54")  # classes of SQLSTATE: bad values, broken constraints, limits


class Consume:
    """`keyed`: the queue of the jobs is claimed key by key."""

    stuck = False
    delay = 0.0

    def __init__(
        self, database: Database, task: Definition, parameter: str, owned: Owned, lease: float, keyed: bool
    ) -> None:
        self._database = database
        self._task = task
        self._parameter = parameter  # of the event, in the payload
        self._owned = owned
        self._lease = lease
        self._keyed = keyed
        self.batch = BATCH

    async def take(self, page: Page) -> bool:
        try:
            await self._enqueue(page)
        except _NeedsKeys:  # the queue is claimed key by key, and this app does not declare it
            self._keyed = True
            return False
        except BadRow as error:
            if (span := page.position - self._owned.position) > 1:  # the bad one is found by halving
                self.batch = span // 2
                return False
            if not page.events or error.sqlstate[:2] not in _OF_THE_DATA:
                raise
            await self._set_aside(page, error)
        self.batch = min(self.batch * 4, BATCH)
        failpoints.point("events.jobs.done")
        return True

    async def _enqueue(self, page: Page) -> None:
        def flow() -> Flow[bool]:
            known = yield from self._advance(page, [(self._owned.position + 1, page.position + 1)])
            if known is None:
                return False
            failpoints.point("events.advanced")
            if rows := [self._row(event) for event in page.events if not _within(event.position, known)]:
                written = yield from jobs.enqueue(rows)
                conflicts = {one.conflict for one in written if one.conflict is not None}
                if "key" in conflicts:
                    raise _NeedsKeys
                if conflicts:
                    raise unknown_queue(self._task.settings.queue, (yield from jobs.queue_names()))
            failpoints.point("events.enqueued")
            return True

        if not await self._database.arun(flow):
            raise LeaseLost

    def _advance(self, page: Page, becoming: Sequence[Span]) -> Flow[list[Span] | None]:
        """Move, and record which events become jobs. Returns those that did before; None: the subscription was lost."""
        owned = self._owned
        if owned.replay_of is None:
            return (yield from store.advance_jobs(owned, page.position, page.seq, self._lease, becoming))
        if not (yield from store.advance(owned, page.position, page.seq, self._lease)):
            return None
        yield from store.forget_skipped(owned, page.position)
        return (yield from store.deliver(owned.replay_of, becoming))

    async def _set_aside(self, page: Page, error: BadRow) -> None:
        """Pass an event that cannot become a job, and record it in the same transaction."""
        owned, (row,) = self._owned, page.events
        why = storable(f"it cannot become a job: {error}", 2000)

        def flow() -> Flow[bool]:
            if (yield from self._advance(page, [])) is None:
                return False
            yield from store.note_failures(owned, [(row, "skipped", why)])
            return True

        if not await self._database.arun(flow):
            raise LeaseLost
        telemetry.emit(
            "consumer.skipped",
            level=logging.ERROR,
            subscription=owned.name,
            position=row.position,
            error=why,
        )

    def _row(self, event: EventRow) -> NewRow:
        s = self._task.settings
        return NewRow(
            self._task.name,
            job_payload(event, self._parameter, self._owned.era, replay=self._owned.replay_of is not None),
            s.queue,
            s.version,
            event.key or str(event.id) if self._keyed else event.key,
            s.priority,
            s.max_attempts,
            metadata=trace_of(event),
        )


class _NeedsKeys(Exception):
    """The queue takes no job without a key."""


def _within(position: int, spans: Sequence[Span]) -> bool:
    return any(lower <= position < upper for lower, upper in spans)
