"""A batch that could not be settled as a whole: find which jobs wait and which one is at fault, and settle all others."""

import logging
from collections.abc import Awaitable, Callable, Sequence

from .. import failpoints, telemetry
from ..db.faults import BadRow, Contended, LockNotAvailable
from ..errors import DatabaseUnavailable
from ..model.breaker import BreakerChange
from ..model.outcome import DeadLettered, ErrorText, Failed, Settlement
from ..model.text import storable
from ..store.breaker import note_ends
from ..store.chains import GroupBusy
from ..store.settle import Exceptions, settle_and
from ..store.statement import Flow
from .record import RecorderFailed, Recorders

_FAILED = (Failed, DeadLettered)


class FailedBatch:
    def __init__(
        self,
        recorders: Recorders,
        write: Callable[[list[Settlement]], Awaitable[None]],
        wait: Callable[[list[Settlement]], None],
        give_up: Callable[[Settlement, str], Awaitable[None]],
    ) -> None:
        """`write` settles some of them, `wait` leaves them for a later try, apart, `give_up` makes one a dead letter."""
        self._recorders = recorders
        self._write = write
        self._wait = wait
        self._give_up = give_up
        self._stuck: set[str] = set()  # tables whose rows cannot be written now

    def flow(self, batch: Sequence[Settlement], worker: str) -> Flow[tuple[Exceptions, list[BreakerChange]]]:
        """Settle a batch with everything that belongs to its transaction."""
        self._recorders.writing = None
        return settle_and(batch, worker, self._beside)

    def _beside(self, batch: Sequence[Settlement], exceptions: Exceptions) -> Flow[list[BreakerChange]]:
        changes = yield from note_ends(batch, exceptions)
        yield from self._recorders.write(batch, exceptions)
        failpoints.point("settle.beside")
        return changes

    def settled(self, batch: Sequence[Settlement]) -> None:
        if self._stuck:
            self._stuck.difference_update(row.table for s in batch for row in s.outcome.rows)

    async def settle_in_parts(self, batch: list[Settlement], error: Exception) -> None:
        """Raises the error if it is not about a part of the batch."""
        table = self._recorders.writing
        if isinstance(error, GroupBusy):  # another session locks their group for a moment
            held_up = {str(job_id) for job_id in error.job_ids}
            await self._without(batch, lambda s: s.grant.id_text in held_up)
        elif isinstance(error, BadRow | LockNotAvailable | RecorderFailed):
            if len(batch) > 1:  # halved until the bad row is alone
                middle = len(batch) // 2
                await self._write(batch[:middle])
                await self._write(batch[middle:])
            elif isinstance(error, LockNotAvailable):  # on a key that a follow-up wants, or on a recorded row
                self._wait(batch)
            else:
                await self._give_up(batch[0], self._reason(batch[0], error))
        elif table is None or isinstance(error, DatabaseUnavailable | Contended):
            raise error
        else:
            self._say_stuck(table, error)
            await self._without(batch, lambda s: any(row.table == table for row in s.outcome.rows))

    async def _without(self, batch: list[Settlement], waits: Callable[[Settlement], bool]) -> None:
        if others := [s for s in batch if not waits(s)]:
            await self._write(others)
        self._wait(list(filter(waits, batch)))

    def _say_stuck(self, table: str, error: Exception) -> None:
        """No row can be written there: the table or a right is missing, or it took too long."""
        if table not in self._stuck:
            self._stuck.add(table)
            text = f"{type(error).__name__}: {error}"
            telemetry.emit("record.stuck", level=logging.ERROR, table=table, error=storable(text))

    def _reason(self, settlement: Settlement, error: Exception) -> str:
        outcome, table = settlement.outcome, self._recorders.writing
        if table is None:
            return f"{type(outcome).__name__} was refused by the database: {error}"
        ended = f"; the attempt ended with {outcome.error.summary}" if isinstance(outcome, _FAILED) else ""
        return f"its rows for {table} were refused, and it was {type(outcome).__name__}: {error}{ended}"


def buried(settlement: Settlement, reason: str) -> Settlement | None:
    """The same as a dead letter, without rows; None: the dead letter itself was refused."""
    if isinstance(settlement.outcome, DeadLettered) and not settlement.outcome.rows:
        return None
    return Settlement(settlement.grant, DeadLettered(ErrorText("SettleRefused", reason)))
