"""One run in memory: its history, what is to be written with the next record, and whether its code may go on."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NoReturn

from ...db.faults import BadRow
from ...errors import ConfigurationError, DatabaseUnavailable
from ...model.outcome import DeadLettered, Held, Outcome, Released
from ...model.text import describe, storable
from .faults import Diverged, Evicted, StepFailed, UnscopedTask, WorkflowCancelled, WorkflowFailed
from .journal import STICKY, History, Journal, Kind, NewChild, NewJobs, Record, RecordRefused, Stored, Wait
from .outgoing import NewEvent
from .replay import Place, Replay
from .waits import Waits, interrupted

MAX_HISTORY = 10_000
UNDECIDED = ("retrying", "calling")  # records that another follows


@dataclass(frozen=True, slots=True)
class Rules:
    """What the declaration of a workflow says of its runs."""

    max_history: int = MAX_HISTORY
    sticky: float = STICKY  # seconds that a wait stays in memory


@dataclass(slots=True, eq=False)
class Scope:
    """A line of execution: the function itself, or a branch of gather, first or branch."""

    core: "Core"
    name: str
    at: datetime  # of the last record that it has seen
    cancellable: bool = True
    task: "asyncio.Task[Any] | None" = None
    randoms: int = 0


current: ContextVar[Scope | None] = ContextVar("holdfast_workflow_scope", default=None)


class Core:
    def __init__(
        self,
        journal: Journal,
        history: History,
        rules: Rules,
        fence: str = "",
        *,
        behind: Literal["call", "refuse", "stop"] = "call",
    ) -> None:
        """`behind`: what becomes of a call that the history does not have. A replay that is to find everything refuses it;
        one that looks whether code and history go together stops there."""
        self.journal = journal
        self.history = history
        self.rules = rules
        self.fence = fence
        self._behind = behind
        self.replay = Replay(history.rows)
        self.waits = Waits(self)
        self.root: asyncio.Task[Any] | None = None
        self.runnable = 1  # scopes and steps that do not wait for anybody else
        self.stopped: BaseException | None = None  # what every call raises from now on
        self.leave: Callable[[], None] | None = None  # called with it
        self.outcome: Outcome | None = None  # how it ends, if not as its function says
        self.cancel_raised = False
        self.running: set[asyncio.Task[Any]] = set()  # bodies that a cancel ends
        self._pending: list[Record] = []
        self._outgoing: dict[str, tuple[Record, NewEvent]] = {}  # by their key, until they are written
        self._shown: str | None = None
        self._writing = 0  # records that are on their way

    @property
    def sticky(self) -> float:
        return self.rules.sticky

    # Whether the code may go on

    def scope(self, call: str) -> Scope:
        """The scope that calls; nobody else may."""
        if self.stopped is not None:
            raise self.stopped
        scope = current.get()
        if scope is None or scope.core is not self or scope.task is not asyncio.current_task():
            raise UnscopedTask(
                f"wf.{call}() was called from an asyncio task that is not the workflow's own, or inside a step. Use "
                "wf.gather(), wf.first() or wf.branch() instead of asyncio.gather() and create_task(), and call wf in the "
                "workflow's function alone"
            )
        return scope

    def stop(self, raised: BaseException, outcome: Outcome) -> None:
        """Nothing is recorded from now on, and the code leaves memory."""
        if self.stopped is None:
            self.stopped, self.outcome = raised, outcome
            if self.leave is not None:
                self.leave()
        if self.root is not None:
            self.root.cancel()

    def lost(self, error: BaseException) -> NoReturn:
        """The database could not be written, or the run is another owner's."""
        self.stop(error if isinstance(error, Evicted) else Evicted(), interrupted(error))
        assert self.stopped is not None
        raise self.stopped

    def refused(self, error: RecordRefused) -> NoReturn:
        """The database takes neither what happened nor that it failed, and would not at another try."""
        self.stop(Evicted(), DeadLettered(describe(error)))
        assert self.stopped is not None
        raise self.stopped

    def busy(self, count: int = 1) -> None:
        self.runnable += count

    def idle(self) -> None:
        self.runnable -= 1
        if self.runnable <= 0:
            self.waits.poke()

    # Places

    def find(self, place: Place, kind: Kind) -> Stored | None:
        try:
            found = self.replay.find(place, kind)
            if found is None and self._behind == "refuse":
                raise Diverged(
                    f"diverged: a replay asks for {place.key!r}, which the first run did not; see holdfast workflow check",
                    scope=place.scope,
                    n=place.ordinal,
                    asked=place.key,
                )
        except Diverged as error:
            self.stop(error, Held(str(error)))
            raise
        if self._behind == "stop" and (found is None or found.record.outcome in UNDECIDED):
            self.stop(Evicted(), Released("the history ends here"))
            raise Evicted
        return found

    def end(self, scope: Scope) -> None:
        try:
            self.replay.end(scope.name)
        except Diverged as error:
            self.stop(error, Held(str(error)))
            raise

    def may_cancel(self, scope: Scope) -> bool:
        """Whether a cancel would be raised at a call that begins now."""
        return scope.cancellable and not self.cancel_raised

    async def while_paused(self, key: str) -> None:
        """A pause keeps a call back that is not made yet. What is under way ends, and then the run is put away. Looked at
        again now and then, because a pause may end before that."""
        while self.journal.paused:
            until = self.journal.now() + timedelta(seconds=self.sticky + 1.0)
            if not await self.waits.until_due(Wait(key, None, "retry", until=until)):
                return  # cancelled

    def cancel_with(self, body: "asyncio.Task[Any]") -> None:
        """A cancel of the run ends this body."""
        self.running.add(body)
        if self.journal.cancelled.is_set():
            body.cancel()

    def cancel_bodies(self) -> None:
        for body in self.running:
            body.cancel()

    def seen(self, scope: Scope, row: Stored) -> Stored:
        """The scope goes on with this record. Raises what a replay of it raises."""
        scope.at = max(scope.at, row.at)
        record = row.record
        if record.outcome == "cancelled":
            self.cancel_raised = True
            raise WorkflowCancelled(_reason(record.error))
        if record.outcome == "failed":
            raise failure(record)
        return row

    # Records

    def later(self, row: Record) -> None:
        """To be written with the next record."""
        self._pending.append(row)

    def known(self) -> list[Stored]:
        """What is recorded, and the markers of patches that wait for another record: at the end there is none."""
        at = self.journal.now()
        markers = [Stored(row, 0, at) for row in self._pending if row.kind == "patch"]
        return [*self.replay.rows(), *markers]

    def publish_later(self, row: Record, event: NewEvent) -> None:
        """The same, with the event that it stands for."""
        self._outgoing[row.key] = (row, event)
        self._pending.append(row)

    async def published(self, key: str) -> Stored:
        """Durable when it returns. Where another branch is about to write it too, it is one event, by its id."""
        if self._outgoing.get(key, (None,))[0] in self._pending:
            await self.flush()
        elif (other := self._outgoing.get(key)) is not None:
            self._keep([other[0]], await self._written([other[0]]))
        found = self.replay.stored(key)
        assert found is not None
        return found

    def show(self, state: str) -> None:
        self._shown = state

    async def record(self, row: Record) -> Stored:
        """Durable when it returns."""
        if self.stopped is not None:
            raise self.stopped
        self._check_length(row)
        rows, shown = self._drain(), self._shown
        self._shown = None
        self._writing += 1
        try:
            try:
                at = await self._write([*rows, row], shown)
            except RecordRefused as refused:
                row = _refused(row, refused)
                at = await self._write([*rows, row], shown)
        except asyncio.CancelledError:
            self._pending[:0] = rows  # written or not: a second time changes nothing
            self._shown = self._shown or shown
            raise
        except RecordRefused as error:
            self.refused(error)
        except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees what befalls the storage
            self.lost(error)
        finally:
            self._writing -= 1
        self._keep([*rows, row], at)
        return Stored(row, 0, at)

    async def flush(self) -> None:
        """Before what is not written by record(), and before it is put away: what decides which way a replay goes must stand
        in front of it, and events do not wait for the end of a wait."""
        if any(row.kind in ("patch", "event") for row in self._pending):
            rows = self._drain()
            self._keep(rows, await self._written(rows))

    async def finish(self) -> None:
        """Events, with what stands before them, and what set_state() said last. Rows that wait for another record are of no
        use to anybody."""
        rows = self._drain() if self._outgoing else []
        if (rows or self._shown is not None) and self._behind == "call":
            self._keep(rows, await self._written(rows))

    async def _written(self, rows: list[Record]) -> datetime:
        shown, self._shown = self._shown, None
        try:
            return await self._write(rows, shown)
        except asyncio.CancelledError:
            self._pending[:0] = rows  # written or not: a second time changes nothing
            self._shown = self._shown or shown
            raise
        except RecordRefused as error:
            self.refused(error)
        except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees what befalls the storage
            self.lost(error)

    async def _write(self, rows: Sequence[Record], shown: str | None) -> datetime:
        events = [self._outgoing[row.key][1] for row in rows if row.key in self._outgoing]
        return await self.journal.record(rows, state=shown, events=events)

    async def decide(self, wait: Wait) -> Stored | None:
        if self.stopped is not None:
            raise self.stopped
        await self.flush()
        rows = self._drain()
        try:
            row = await self.journal.decide(wait, rows)
        except asyncio.CancelledError:
            self._pending[:0] = rows
            raise
        except RecordRefused as error:
            self.refused(error)
        except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees what befalls the storage
            self.lost(error)
        if row is None:
            self._pending[:0] = rows
            return None
        for other in rows:
            self.replay.keep(Stored(other, row.generation, row.at))
        self.replay.keep(row)
        return row

    async def transact(self, run: Callable[[Any], Awaitable[str]], row: Callable[[str], Record]) -> Stored:
        """What `run` raises, or its commit, is the failure of the step. An outage does not reach the code."""
        failed: list[BaseException] = []

        async def body(tx: Any) -> str:
            try:
                return await run(tx)
            except BaseException as error:
                failed.append(error)
                raise

        return await self._transacted(self.journal.transact(body, row), failed)

    async def transact_blocking(self, run: Callable[[Any], str], row: Callable[[str], Record]) -> Stored:
        """The same for a plain function."""
        failed: list[BaseException] = []

        def body(tx: Any) -> str:
            try:
                return run(tx)
            except BaseException as error:
                failed.append(error)
                raise

        return await self._transacted(self.journal.transact_blocking(body, row), failed)

    async def _transacted(self, writing: Awaitable[Stored], failed: list[BaseException]) -> Stored:
        try:
            kept = await writing
        except (DatabaseUnavailable, Evicted) as error:
            if failed and error is failed[0]:
                raise
            self.lost(error)
        except (
            BadRow
        ) as error:  # what its commit said: a deferred constraint, or a result that cannot be stored
            raise error.__cause__ or error from None
        self.replay.keep(kept)
        return kept

    async def start(self, child: NewChild, row: Record) -> Stored:
        self._check_length(row)
        try:
            kept = await self.journal.start(child, row)
        except ConfigurationError:
            raise
        except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees what befalls the storage
            self.lost(error)
        self.replay.keep(kept)
        return kept

    async def call(self, jobs: NewJobs, row: Record) -> None:
        self._check_length(row)
        try:
            await self.journal.call(jobs, row)
        except ConfigurationError:
            raise
        except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees what befalls the storage
            self.lost(error)
        self._keep([row], self.journal.now())

    def _drain(self) -> list[Record]:
        rows, self._pending = self._pending, []
        return rows

    def _keep(self, rows: Sequence[Record], at: datetime) -> None:
        for row in rows:
            self._outgoing.pop(row.key, None)
            self.replay.keep(Stored(row, 0, at))

    def _check_length(self, row: Record) -> None:
        length = len(self.replay) + self._writing
        if length >= self.rules.max_history and row.kind != "compensation":
            raise WorkflowFailed(
                f"the history has {length:,} records, which is the limit. Use wf.continue_as_new() now and then, "
                "or declare the workflow with a larger max_history",
                kind="HistoryTooLong",
            )


def failure(record: Record) -> StepFailed:
    error = json.loads(record.error or "{}")
    return StepFailed(
        record.key,
        error.get("kind", "Failed"),
        error.get("message", ""),
        error.get("attempts", record.attempts),
        error.get("data"),
    )


def _refused(row: Record, error: RecordRefused) -> Record:
    """What is recorded in its stead."""
    text = {"kind": "RecordRefused", "message": storable(str(error))[:8192], "attempts": row.attempts}
    return replace(row, outcome="failed", result=None, error=json.dumps(text))


def _reason(error: str | None) -> str:
    reason = json.loads(error).get("message") if error else None
    return f"the run was cancelled: {reason}" if reason else "the run was cancelled"


def cancelled(place: Place, kind: Kind, began: float) -> Record:
    return Record(place.key, kind, "cancelled", place.ordinal, began=began)
