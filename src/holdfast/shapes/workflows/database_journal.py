"""The journal of one run, on the database: implements journal.py over the recorder of its worker."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from ... import failpoints, telemetry
from ...db.faults import BadRow, Contended
from ...errors import ConfigurationError, DatabaseUnavailable, LeaseLost
from ...model.outcome import ErrorText
from ...model.signals import DeadLetter
from ...model.state import BUSY, LOST
from ...runtime.job import Job
from ...store.statement import Flow, Statement
from . import store
from .bodies import threads
from .ends import child_end
from .faults import Evicted
from .handover import Handover, settled
from .journal import (
    STICKY,
    CancelAsked,
    Decided,
    History,
    Kind,
    NewChild,
    NewJobs,
    Record,
    RecordRefused,
    Stored,
    Wait,
)
from .outgoing import NewEvent
from .recorder import BUSY_PAUSE, Recorder, recorder_of
from .rows import last_text, plain_row
from .working import AtWork, FailedAttempt, StepProgress, steps_text

T = TypeVar("T")
First = Callable[[], Flow[bool]]  # before the body of a transaction
Finish = Callable[[str], Flow[bool]]  # after it, with its result
_LEAST = 0.005  # seconds between two checks of a time that is over by our clock, and not by the database's
_NOTHING = store.Seen(0, 0, False, False)
TIMED_OUT = "its timeout is over"  # as the statements name it


class DatabaseJournal:
    def __init__(self, job: Job, *, sticky: float = STICKY, recorder: Recorder | None = None) -> None:
        """With it the run ends when its job does: by a row that is written with the outcome (ends.end_runs)."""
        self._job = job
        self._grant = job._claimed
        self._database = job._database
        self._recorder = recorder or recorder_of(job._database)
        self._sticky = sticky
        self._history: History | None = None
        self.cancelled = CancelAsked()
        self.paused = False
        self._news = asyncio.Event()
        self._beating = threading.Lock()
        self._beats: dict[str, str] = {}  # the last heartbeats of running steps
        self._at_work: dict[str, AtWork] = {}
        self._seen = self._known = _NOTHING
        if job._claimed.cancel_requested:
            self.cancelled.set()
        job.record(store.TABLE, {})
        self._recorder.watch(self._grant.id_text, self)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._recorder.time(), UTC)

    def time(self) -> float:
        return self._recorder.time()

    def heard(self, seen: store.Seen) -> None:
        """Called by the recorder: the result of the latest read."""
        if seen.cancelled or self._job._cancelled:
            self.cancelled.set(seen.why)
        self.paused = seen.paused
        self._seen = seen
        if seen != self._known:
            self._news.set()

    def lost(self) -> bool:
        return self._job.lost

    def begins(self, key: str, kind: Kind, ordinal: int | None, began: float, attempt: int) -> None:
        self._at_work[key] = AtWork(kind, began, attempt, ordinal)

    def at_work(self, before: float) -> StepProgress:
        """Called by the recorder: the steps that began before this moment, and have not ended."""
        era = 0 if self._history is None else self._history.era
        steps = steps_text(list(self._at_work.items()), before)
        return StepProgress(self._grant.id_text, self._grant.generation, era, steps)

    def beat(self, key: str, detail: str | None) -> None:
        """The progress of its job: the renewing thread writes the latest."""
        if detail is None:
            self._at_work.pop(key, None)
            if not self._beats:
                return
        with self._beating:
            if detail is None and self._beats.pop(key, None) is None:
                return
            if detail is not None:
                self._beats[key] = detail
            said = "; ".join(f"{key}: {text}" if text else key for key, text in self._beats.items())
            self._job.progress(0.0, said)

    def failed(self, key: str, attempt: int, error: ErrorText) -> None:
        self._recorder.failed(FailedAttempt(self._grant, key, attempt, error, self._job._worker, self.time()))

    # Reading ------------------------------------------------------------------------------------------------------------

    async def history(self) -> History:
        claimed = self._grant
        known = self._job.metadata.get("workflow") if claimed.generation == 1 else None
        if known is not None and "cancel" not in known:  # otherwise the row gives the reason
            at = datetime.fromisoformat(known["at"])
            over = "deadline" in known and datetime.fromisoformat(known["deadline"]) <= self.now()
            key = known.get("id", claimed.id_text)
            why = TIMED_OUT if over else None
            found = History(key, claimed.id, claimed.version, 0, at, [], over, "open", cancel_reason=why)
            if telemetry.audible(logging.DEBUG, "workflow.began"):
                telemetry.emit(
                    "workflow.began", level=logging.DEBUG, workflow=claimed.task, run_id=claimed.id_text
                )
        else:
            try:
                found = await self._recorder.history(claimed.id_text)
            except KeyError:
                raise DeadLetter(
                    f"{claimed.task} is a workflow: this job was not made by workflow_start(), or its run was removed"
                ) from None
        self._history = found
        self.paused = found.paused
        if found.cancel_requested:
            self.cancelled.set(found.cancel_reason)
        return found

    async def changed(self, until: datetime | None, *, resting: bool) -> bool:
        with self._recorder.closely(self._grant.id_text):
            if not resting:
                return await self._until(until, None)
            async with self._job._rest() as leave:
                return await self._until(until, leave)

    async def _until(self, until: datetime | None, leave: asyncio.Event | None) -> bool:
        last = time.monotonic() + self._sticky
        while True:
            self._news.clear()
            if self._seen != self._known:
                self._known = self._seen
                return True
            if leave is not None and (leave.is_set() or time.monotonic() >= last):
                return False
            pause = (
                BUSY_PAUSE if leave is not None else 2 * BUSY_PAUSE
            )  # how soon it notices that it should leave
            if until is not None:
                left = (until - self.now()).total_seconds()
                pause = min(pause, max(left, _LEAST))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()
                    continue
            if until is not None and until <= self.now():
                return True

    # Writing ------------------------------------------------------------------------------------------------------------

    def record(
        self, rows: Sequence[Record], *, state: str | None = None, events: Sequence[NewEvent] = ()
    ) -> Awaitable[datetime]:
        """With events it is a statement of this run alone: another publisher under the same key is waited for."""
        if not events:
            return self._recorder.record(self._grant, rows, state)
        return self._publish(rows, state, events)

    async def _publish(
        self, rows: Sequence[Record], state: str | None, events: Sequence[NewEvent]
    ) -> datetime:
        while True:
            try:
                answer, at = await self._between(
                    "publish", lambda: store.publish(self._grant, rows, events, state)
                )
            except BadRow as error:
                raise RecordRefused(str(error)) from None
            if at is not None:
                break
            await self._is_busy(answer)
        if telemetry.audible(logging.DEBUG):
            telemetry.emit("events.published", level=logging.DEBUG, events=len(events))
        return at

    def record_at_end(self, rows: Sequence[Record]) -> None:
        if (text := last_text(rows)) is not None:
            self._job._record_text(store.TABLE, text)
        else:
            self._job.record(store.TABLE, {"rows": [plain_row(row) for row in rows]})

    async def decide(self, wait: Wait, rows: Sequence[Record] = ()) -> Stored | None:
        found = await self._recorder.decide(self._grant, wait, rows)
        if found is not None and found.record.outcome == "cancelled" and self.cancelled.why is None:
            seen = await self._recorder.run(lambda: store.changed([self._grant.id_text]))
            self.cancelled.set(seen[self._grant.id_text].why)
        return found

    async def receive(self, wait: Wait, rows: Sequence[Record] = ()) -> Stored:
        """A statement of this run alone: it may have thousands to take."""
        while True:
            answer, found = await self._between("decide", lambda: store.receive(self._grant, wait, rows))
            if found is not None:
                return found
            await self._is_busy(answer)

    async def child_end(self, name: str) -> tuple[Decided, str | None, str | None] | None:
        return await self._recorder.run(lambda: child_end(self._grant.id, name))

    async def suspend(self, waits: Sequence[Wait]) -> bool:
        return await self._recorder.suspend(self._grant, waits)

    async def transact(self, run: Callable[[Any], Awaitable[str]], row: Callable[[str], Record]) -> Stored:
        return await self._transact(
            lambda finish, first: self._database.atransact(run, finish, None, first), row
        )

    async def transact_blocking(self, run: Callable[[Any], str], row: Callable[[str], Record]) -> Stored:
        return await self._transact(
            lambda finish, first: threads.run(lambda: self._database.transact(run, finish, None, first)), row
        )

    async def _transact(
        self, go: Callable[[Finish, First], Coroutine[Any, Any, str]], row: Callable[[str], Record]
    ) -> Stored:
        """A commit in doubt: the history decides. A second one under the same key waits for the first at the
        key of the record, and finds that it is there."""
        while True:
            made: list[tuple[Record, datetime]] = []
            handover = Handover()

            def first() -> Flow[bool]:
                state, _ = yield from store.lock(self._grant, "")
                return state == "ours"

            def finish(result: str) -> Flow[bool]:
                record = row(result)
                new, at = yield from store.put(self._grant, [record])
                made.append((record, at))  # noqa: B023
                failpoints.point("transact.before")
                return new == 1 and handover.commits()  # noqa: B023

            try:
                await settled(asyncio.get_running_loop().create_task(go(finish, first)), handover)
                failpoints.point("transact.done")
            except LeaseLost:
                return await self._found(made)
            except (DatabaseUnavailable, Contended):
                if not made:
                    raise  # of the function itself: it is the step's own failure
                found = await self._recorder.run(lambda: store.stored(self._grant.id, made[0][0].key))  # noqa: B023
                if found is None or found.record.outcome in ("retrying", "calling"):
                    continue
                return self._ours(found)
            record, at = made[0]
            return Stored(record, self._grant.generation, at)

    async def _found(self, made: Sequence[tuple[Record, datetime]]) -> Stored:
        """The record was there, or the run is not ours."""
        found = None
        if made:
            found = await self._recorder.run(lambda: store.stored(self._grant.id, made[0][0].key))
        if found is None:
            raise Evicted(f"run {self._grant.id_text} is no longer ours")
        return self._ours(found)

    def _ours(self, found: Stored) -> Stored:
        if found.generation != self._grant.generation:
            raise Evicted(f"run {self._grant.id_text} is no longer ours")
        return found

    async def compensates(self, yes: bool) -> None:
        await self._recorder.run(lambda: store.compensates(self._grant, yes))

    async def start(self, child: NewChild, row: Record) -> Stored:
        while True:
            answer = await self._between("child", lambda: store.child(self._grant, child, row))
            if answer.answer == "ours" and answer.at is not None:
                return Stored(row._replace(linked=answer.child), self._grant.generation, answer.at)
            if await self._is_busy(answer.answer):
                continue
            if answer.answer == "itself":
                raise ConfigurationError(
                    f"{child.workflow} {child.id!r} is this very run, which would wait for its own end. "
                    "Give the child another id"
                )
            raise ConfigurationError(
                f"child {child.workflow} of {self._grant.task}: queue {child.queue!r} does not exist, or is claimed by key. "
                f"Create it: holdfast queue create {child.queue}"
            )

    async def _between(self, name: str, make: Callable[[], Statement[T]]) -> T:
        """A write of this run alone, between two places where a test may stop it. What the database refuses because of its
        content it would refuse at every try: that is the code's error."""
        failpoints.point(f"{name}.before")
        try:
            answer = await self._recorder.run(make)
        except BadRow as error:
            if name not in ("call", "child"):
                raise
            raise ConfigurationError(f"the database refuses what is to be started: {error}") from None
        failpoints.point(f"{name}.done")
        return answer

    async def _is_busy(self, answer: str) -> bool:
        """Whether to try again: a moment has passed then. Raises Evicted."""
        if answer == LOST:
            raise Evicted(f"run {self._grant.id_text} is no longer ours")
        if answer == BUSY:
            await asyncio.sleep(BUSY_PAUSE)
        return answer == BUSY

    async def call(self, jobs: NewJobs, row: Record) -> None:
        while (answer := await self._between("call", lambda: store.call(self._grant, jobs, row))) != "ours":
            if not await self._is_busy(answer):
                raise ConfigurationError(answer)

    async def continue_as_new(self, payload: str, unseen: Sequence[str] = ()) -> History:
        history = self._history
        assert history is not None
        era = history.era
        while True:
            answer, at = await self._between("era", lambda: store.next_era(self._grant, era, payload, unseen))
            if answer == "ours" and at is not None:
                break
            if not await self._is_busy(answer):
                raise ConfigurationError(
                    "continue_as_new(): a child is still open. Wait for its end first, or start it with "
                    'on_cancel="abandon"'
                )
        cancelled = self.cancelled.is_set()
        self._history = history._replace(
            era=era + 1, created_at=at, rows=[], cancel_requested=cancelled, state="open", seed=None
        )
        return self._history
