"""One run in memory: its history, its scopes, and whether its code may continue."""

import asyncio
import json
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NoReturn

from ... import telemetry
from ...model.outcome import DeadLettered, Held, Outcome, Released
from ...model.text import describe
from ...tasks.convert import Misfit
from .faults import Diverged, Evicted, StepFailed, UnscopedTask, WorkflowCancelled
from .journal import STICKY, History, Journal, Kind, Record, RecordRefused, Stored, Wait
from .records import Records
from .replay import CallPlace, Replay
from .waits import Waits, interrupted

MAX_HISTORY = 10_000
UNDECIDED = ("retrying", "calling")  # records that are written with a later one


@dataclass(frozen=True, slots=True)
class Rules:
    """The part of a workflow's declaration that its runs need."""

    max_history: int = MAX_HISTORY
    sticky: float = STICKY  # seconds that a wait stays in memory
    verify: bool = False  # replay each run that completes once more (the test kit, and python -X dev)


@dataclass(slots=True, eq=False)
class Scope:
    """A line of execution: the function itself, or a branch of gather, first or branch."""

    core: "Core"
    name: str
    at: datetime  # of the last record that it has seen
    cancellable: bool = True
    cancel_raised: bool = (
        False  # here, or in a branch that ended: it is raised once in each line of execution
    )
    lost: bool = (
        False  # a branch that `first` did not take: it replays its records only, to find its compensations
    )
    ending: bool = False  # its branch was cancelled: it lost, or its call was cancelled
    task: "asyncio.Task[Any] | None" = None
    seeds: dict[str, int] = field(default_factory=dict)  # how often random() and uuid() were called


current: ContextVar[Scope | None] = ContextVar("holdfast_workflow_scope", default=None)


def _said_before() -> bool:
    """Whether the running code is in a replay, or leaves memory: its log lines were written before, or will be."""
    scope = current.get()
    if scope is None:
        return False
    core = scope.core
    return core.stopped is not None or not core._writes or core.replay.replaying


telemetry.hold_back(_said_before)


class Core(Records):
    def __init__(
        self,
        journal: Journal,
        history: History,
        rules: Rules,
        fence: str = "",
        *,
        behind: Literal["call", "refuse", "stop"] = "call",
    ) -> None:
        """`behind`: how a call without a record is treated. A replay that must find everything refuses it;
        a check of code against history stops there."""
        super().__init__(journal, Replay(history.rows), rules.max_history, writes=behind == "call")
        self.history = history
        self.rules = rules
        self.fence = fence
        self._behind = behind
        self._waits: Waits | None = None  # most runs wait for nothing
        self.root: asyncio.Task[Any] | None = None
        self.runnable = 1  # scopes and steps that do not wait for anybody else
        self.leave: Callable[[], None] | None = None  # called with it
        self.outcome: Outcome | None = None  # how it ends, if not by its function
        self._compensating = history.state == "compensating"  # as the database has it
        self.defers = True  # not where the code runs in a thread
        self.made: set[str] = set()  # scopes of named branches that have not begun
        self.running: set[asyncio.Task[Any]] = set()  # bodies that a cancel ends
        self.unknown_cut: UnscopedTask | None = None  # a call was cancelled, which no replay can know

    @property
    def sticky(self) -> float:
        return self.rules.sticky

    @property
    def waits(self) -> Waits:
        if self._waits is None:
            self._waits = Waits(self)
        return self._waits

    async def leave_memory(self) -> None:
        """Its code has ended, or was abandoned. References in a circle are cut."""
        if self._waits is not None:
            await self._waits.close()
        await self.close()
        if self.root is not None and self.root.done():
            self.root = self._waits = None

    # Whether the code may continue

    def scope(self, call: str) -> Scope:
        """The calling scope; no other may call."""
        if self.stopped is not None:
            raise self.stopped
        if self.unknown_cut is not None:
            raise self.unknown_cut
        scope = current.get()
        if scope is None or scope.core is not self or scope.task is not asyncio.current_task(self.loop):
            raise UnscopedTask(
                f"wf.{call}() was called from an asyncio task that is not the workflow's own, or inside a step. Use "
                "wf.gather(), wf.first() or wf.branch() instead of asyncio.gather() and create_task(), and call wf in the "
                "workflow's function alone"
            )
        return scope

    def cut(self, scope: Scope) -> None:
        """A call of this scope was cancelled. Only this module may do that: it is not raised here, because asyncio cancels
        every task when its loop ends."""
        if self.stopped is None and not scope.ending and not scope.lost:
            self.unknown_cut = UnscopedTask(
                "a call of wf was cancelled by asyncio.timeout(), wait_for() or task.cancel(), and a replay could not know "
                "that. Use wf.using(timeout=...) for a step, wf.signal(..., timeout=...), or wf.first(..., wf.sleep(...))"
            )

    def stop(self, raised: BaseException, outcome: Outcome) -> None:
        """Nothing is recorded from now on, and the code leaves memory."""
        if self.stopped is None:
            self.stopped, self.outcome = raised, outcome
            if self.leave is not None:
                self.leave()
        if self.root is not None:
            self.root.cancel()

    def lost(self, error: BaseException) -> NoReturn:
        """The database could not be written, or the run has another owner."""
        self.stop(error if isinstance(error, Evicted) else Evicted(), interrupted(error))
        assert self.stopped is not None
        raise self.stopped

    def refused(self, error: RecordRefused) -> NoReturn:
        """The database refuses both the result and its failure, and would at another try."""
        self.stop(Evicted(), DeadLettered(describe(error)))
        assert self.stopped is not None
        raise self.stopped

    def goes_on_alone(self) -> bool:
        """Whether this is the workflow's own function, in the event loop, and no branch runs beside it."""
        return self.defers and asyncio.current_task(self.loop) is self.root

    def busy(self, count: int = 1) -> None:
        self.runnable += count

    def idle(self) -> None:
        self.runnable -= 1
        if self.runnable <= 0 and self._waits is not None:
            self._waits.poke()

    # Places

    def find(self, scope: Scope, place: CallPlace, kind: Kind, *, later: bool = False) -> Stored | None:
        """`later`: it is made when it is awaited, if ever, and begins() is asked then."""
        if scope.lost:
            row = self.replay.stored(place.key)  # a call without a record is not made: see begins()
            return row if row is not None and row.record.kind == kind else None
        try:
            found = self.replay.find(place, kind)
        except Diverged as error:
            self.stop(error, Held(str(error)))
            raise
        if not later:
            self._check_beyond(place, found)
        return found

    def begins(self, scope: Scope, place: CallPlace | None = None, found: Stored | None = None) -> None:
        """Before a call is made that has no record of its end. A branch that lost was cancelled here: its records end."""
        if scope.lost:
            raise asyncio.CancelledError
        if place is not None:
            self._check_beyond(place, found)

    def _check_beyond(self, place: CallPlace, found: Stored | None) -> None:
        """A check replays only as far as the history."""
        if found is None and self._behind == "refuse":
            error = Diverged(
                f"diverged: a replay asks for {place.key!r}, which the first run did not; see holdfast workflow check",
                scope=place.scope,
                n=place.ordinal,
                asked=place.key,
            )
            self.stop(error, Held(str(error)))
            raise error
        if self._behind == "stop" and (found is None or found.record.outcome in UNDECIDED):
            self.stop(Evicted(), Released("the history ends here"))
            raise Evicted

    def misfit(self, scope: Scope, error: Misfit) -> NoReturn:
        """The recorded value is not of the type that the code has now."""
        if scope.lost:
            raise asyncio.CancelledError
        wrong = Diverged(f"diverged: {error}")
        self.stop(wrong, Held(str(wrong)))
        raise wrong from None

    def end(self, scope: Scope) -> None:
        try:
            self.replay.end(scope.name)
        except Diverged as error:
            self.stop(error, Held(str(error)))
            raise

    def may_cancel(self, scope: Scope) -> bool:
        """Whether a cancel would be raised at a call that begins now."""
        return scope.cancellable and not scope.cancel_raised

    def cancels(self, scope: Scope) -> WorkflowCancelled:
        """What a cancel raises, once in each line of execution."""
        scope.cancel_raised = True
        why = self.journal.cancelled.why
        return WorkflowCancelled(f"the run was cancelled: {why}" if why else "the run was cancelled")

    async def compensates(self, yes: bool) -> None:
        """Report it, if it is new."""
        if self._behind == "call" and self._compensating != yes:
            self._compensating = yes
            try:
                await self.journal.compensates(yes)
            except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees storage errors
                self.lost(error)

    async def while_paused(self, key: str) -> None:
        """A pause holds back a call that is not made yet. A running one ends, and then the run is put away. Checked
        again regularly, because a pause may end before that."""
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
        """The scope continues with this record. Raises what a replay of it raises."""
        scope.at = max(scope.at, row.at)
        record = row.record
        if record.outcome == "cancelled":
            raise self.cancels(scope)
        if record.outcome == "failed":
            raise failure(record)
        return row


def failure(record: Record) -> StepFailed:
    error = json.loads(record.error or "{}")
    return StepFailed(
        record.key,
        error.get("kind", "Failed"),
        error.get("message", ""),
        error.get("attempts", record.attempts),
        error.get("data"),
    )


def cancelled(place: CallPlace, kind: Kind, began: float) -> Record:
    return Record(place.key, kind, "cancelled", place.ordinal, began=began)
