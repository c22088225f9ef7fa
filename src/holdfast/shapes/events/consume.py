"""A consumer at work: events become jobs in the transaction that moves the position."""

from collections.abc import Sequence

from ... import failpoints
from ...db.database import Database
from ...errors import LeaseLost
from ...model.job import NewRow
from ...store import jobs
from ...store.statement import Flow
from ...tasks.definition import Definition
from ...tasks.writer import unknown_queue
from . import store
from .event import EventRow, job_payload, trace_of
from .store import Owned, Page


class Consume:
    """`keyed`: the queue of the jobs is claimed key by key."""

    batch = 1000
    stuck = False

    def __init__(
        self, database: Database, task: Definition, parameter: str, owned: Owned, lease: float, keyed: bool
    ) -> None:
        self._database = database
        self._task = task
        self._parameter = parameter  # of the event, in the payload
        self._owned = owned
        self._lease = lease
        self._keyed = keyed

    async def take(self, page: Page) -> bool:
        owned = self._owned
        rows = self._rows(page.events)
        covered = f"{{[{owned.position + 1},{page.position + 1})}}"

        def flow() -> Flow[bool]:
            if not (yield from store.advance(owned, page.position, page.seq, self._lease, covered)):
                return False
            if rows:
                for row, written in zip(rows, (yield from jobs.enqueue(rows)), strict=True):
                    if written.conflict is not None:
                        raise unknown_queue(row.queue, [])
            return True

        if not await self._database.arun(flow):
            raise LeaseLost
        failpoints.point("events.jobs.done")
        return True

    def _rows(self, events: Sequence[EventRow]) -> list[NewRow]:
        s = self._task.settings
        replay = self._owned.replay_of is not None
        done = _ranges(self._owned.delivered) if replay else []
        return [
            NewRow(
                self._task.name,
                job_payload(row, self._parameter, self._owned.era, replay=replay),
                s.queue,
                s.version,
                row.key or str(row.id) if self._keyed else row.key,
                s.priority,
                s.max_attempts,
                metadata=trace_of(row),
            )
            for row in events
            if not any(lower <= row.position < upper for lower, upper in done)
        ]


def _ranges(text: str) -> list[tuple[int, int]]:
    """A multirange of the database: lower bounds are in it, upper bounds are not."""
    parts = [part.strip("[)").split(",") for part in text.strip("{}").split("),") if part]
    return [(int(lower), int(upper)) for lower, upper in parts]
