"""The running attempt, as its handler sees it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, cast
from uuid import UUID

from ..db.database import Database
from ..db.guests import async_guest, sync_guest
from ..errors import InvalidPayload, JobSettled, LeaseLost, WrongConnection
from ..model.job import ClaimedJob, Grant
from ..model.outcome import Completed, Outcome, Settlement
from ..model.signals import Cancel
from ..model.text import storable
from ..store import owner
from ..store.settle import settle_in
from .record import Recorders, Rows

Q = ParamSpec("Q")
T = TypeVar("T")


def _plain_json(value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(
            f"the result of type {type(value).__name__} cannot be stored as JSON ({error}); return plain values"
        ) from None


def no_rest() -> AbstractAsyncContextManager[asyncio.Event]:
    raise RuntimeError("only a handler that drives its job can rest")


def _check_text(verb: str, what: str, text: str) -> None:
    """Before the database sees it: an error there would end the caller's transaction."""
    if not isinstance(text, str) or not text or storable(text, 512) != text:
        raise ValueError(f"job.{verb}() needs a {what} of 1 to 512 bytes without NUL, not {repr(text)[:60]}")


class Job:
    """One attempt at a job: `def send(job: Job, order_id: int)`."""

    def __init__(
        self,
        claimed: ClaimedJob,
        database: Database,
        worker: str,
        encode: Callable[[object], str] = _plain_json,
        on_change: "Callable[[Job], None]" = lambda _: None,
        rows: Rows | None = None,
    ) -> None:
        self._claimed = claimed
        self._database = database
        self._worker = worker
        self._encode = encode
        self._on_change = on_change
        self._lost = False  # both are set by the renewing thread
        self._cancelled = False
        self._completed = False
        self._beside = False  # it recorded steps or progress
        self._report: tuple[float, str] | None = None
        self._rows = rows or Rows(Recorders())
        self._keep: bool | None = None  # what its task says of completed jobs
        self._rest: Callable[[], AbstractAsyncContextManager[asyncio.Event]] = no_rest

    @property
    def id(self) -> UUID:
        return self._claimed.id

    @property
    def task(self) -> str:
        return self._claimed.task

    @property
    def queue(self) -> str:
        return self._claimed.queue

    @property
    def attempt(self) -> int:
        """1 for the first; crashes, releases and snoozes do not count."""
        return self._claimed.attempt

    @property
    def max_attempts(self) -> int:
        return self._claimed.max_attempts

    @property
    def generation(self) -> int:
        """How often this job has been claimed."""
        return self._claimed.generation

    @property
    def crashes(self) -> int:
        """How many processes died or fell silent with this job since an attempt last ended."""
        return self._claimed.crashes

    @property
    def partition_key(self) -> str | None:
        return self._claimed.partition_key

    @property
    def parent_id(self) -> UUID | None:
        """The job that named this one as its follow-up, or was given as `parent=`."""
        return self._claimed.parent_id

    @property
    def group_id(self) -> UUID | None:
        """The group that waits for this job."""
        return self._claimed.group_id

    @property
    def metadata(self) -> dict[str, Any]:
        return json.loads(self._claimed.metadata) if self._claimed.metadata else {}

    @property
    def fence(self) -> str:
        """Sortable text that rises with every owner of this job; outside stores can refuse a lower one."""
        return self._claimed.fence

    @property
    def lost(self) -> bool:
        """True once this attempt no longer owns the job."""
        return self._lost

    @property
    def _grant(self) -> Grant:
        return self._claimed.grant

    def check(self) -> None:
        """Raise if this attempt should stop: LeaseLost, or Cancel if the job was cancelled."""
        if self._lost:
            raise LeaseLost(
                f"job {self.id} is no longer owned by this attempt (generation {self.generation})"
            )
        if self._cancelled:
            raise Cancel("cancelled while running")

    def progress(self, fraction: float, message: str = "") -> None:
        """Report the progress of this attempt, 0 to 1. Cheap: written with the next heartbeat, never waited for, and kept
        until the job completes or is cancelled."""
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"progress must be between 0 and 1, not {fraction!r}")
        self._beside = True
        self._report = (float(fraction), storable(message, 1024))
        self._on_change(self)

    def record(self, table: str, row: Mapping[str, object]) -> None:
        """For tasks of shapes: a row that is written with the end of this attempt, in the same transaction, however the
        attempt ends: `job.record("webhook_attempts", {"status": 200})`. A stale owner's rows are never written."""
        self._unsettled()
        self._rows.add(table, row)

    def _record_text(self, table: str, row: str) -> None:
        """The same, of the JSON text of an object that was looked at."""
        self._unsettled()
        self._rows.add_text(table, row)

    def _ended(self, outcome: Outcome) -> Outcome:
        """The outcome with all that the attempt left beside it. It leaves nothing from here on."""
        if self._beside and isinstance(outcome, Completed):
            outcome = replace(outcome, beside=True)
        return self._rows.end(outcome)

    def _may_record(self, name: str) -> None:
        """Before the step runs: one that cannot be recorded would be repeated by every attempt."""
        self._unsettled()
        _check_text("once", "name", name)
        self._beside = True

    def once(self, name: str, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T:
        """Run fn unless this job already recorded `name`; record its JSON result, and return it from then on."""
        self._may_record(name)
        found, text = self._database.run(lambda: owner.once_get(self._grant, name))
        if not found:
            result = _plain_json(fn(*args, **kwargs))
            found, text = self._database.run(lambda: owner.once_put(self._grant, name, result))
        return cast(T, self._recorded(found, text))

    async def aonce(
        self, name: str, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T:
        self._may_record(name)
        found, text = await self._database.arun(lambda: owner.once_get(self._grant, name))
        if not found:
            result = _plain_json(await fn(*args, **kwargs))
            found, text = await self._database.arun(lambda: owner.once_put(self._grant, name, result))
        return cast(T, self._recorded(found, text))

    def _recorded(self, found: bool, text: str | None) -> Any:
        if not found:
            self._lose()
        return json.loads(text or "null")

    def guard(self, *, conn: object, resource: str) -> None:
        """Raise in this transaction unless the job is still ours; until the commit no other worker can take it."""
        _check_text("guard", "resource", resource)
        guest = sync_guest(conn, "guard", "aguard")
        self._in_transaction(guest.in_transaction(), guest.advice, "guard")
        if not guest.run(owner.guard(self._grant, resource, self.fence)):
            self._lose()

    async def aguard(self, *, conn: object, resource: str) -> None:
        _check_text("aguard", "resource", resource)
        guest = async_guest(conn, "aguard", "guard")
        self._in_transaction(await guest.in_transaction(), guest.advice, "aguard")
        if not await guest.arun(owner.guard(self._grant, resource, self.fence)):
            self._lose()

    def complete(self, *, conn: object, result: object = None) -> None:
        """Complete the job inside your own transaction: it is done if, and only if, that commits. LeaseLost: roll back."""
        self._rows.refuse_complete("complete")
        guest = sync_guest(conn, "complete", "acomplete")
        self._in_transaction(guest.in_transaction(), guest.advice, "complete")
        self._completion(guest.run(settle_in(self._settlement(result), self._worker)))

    async def acomplete(self, *, conn: object, result: object = None) -> None:
        self._rows.refuse_complete("acomplete")
        guest = async_guest(conn, "acomplete", "complete")
        self._in_transaction(await guest.in_transaction(), guest.advice, "acomplete")
        self._completion(await guest.arun(settle_in(self._settlement(result), self._worker)))

    def _settlement(self, result: object) -> Settlement:
        return Settlement(self._grant, Completed(self._encode(result), self._beside), keep=self._keep)

    def _completion(self, done: bool) -> None:
        if not done:
            self._unsettled()  # a completion that was rolled back may be tried again; one that stands may not
            self._lose()
        self._completes()

    def _completes(self) -> None:
        """From here on the row may be gone because we took it away."""
        self._completed = True
        self._on_change(self)

    def _unsettled(self) -> None:
        if self._completed:
            raise JobSettled(f"job {self.id} was already completed by this attempt")

    def _in_transaction(self, yes: bool, advice: str, method: str) -> None:
        if not yes:
            raise WrongConnection(
                f"job.{method}() needs an open transaction, and this connection is in autocommit mode without one; {advice}"
            )

    def _lose(self) -> None:
        self._lost = True
        self.check()
