"""A recorded call: it takes its key when it is called, runs when it is awaited, and its end is written once."""

import asyncio
import functools
import json
import logging
import math
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from ... import telemetry
from ...errors import InvalidPayload
from ...model.duration import seconds
from ...model.signals import Cancel, DeadLetter, HandlerSignal, Retry, Snooze
from ...model.text import describe
from ...runtime.handler import LONGEST_DELAY
from ...tasks.convert import Misfit
from .bodies import (
    LOOK,
    BadStepCall,
    Options,
    Result,
    StepInfo,
    TooLarge,
    call,
    detail_text,
    error_text,
    has_thread,
    in_context,
)
from .core import UNDECIDED, Core, Scope, cancelled, current
from .faults import Evicted, NonRetryable, UnscopedTask, WorkflowCancelled
from .journal import Kind, Record, Stored, Wait
from .messages import SignalMisfit
from .records import MOST_LATER
from .replay import CallPlace

T_co = TypeVar("T_co", covariant=True)
Attempt = Callable[["Attempts", int], Coroutine[Any, Any, Stored | str]]  # a record, or a result to record
_NO_THREAD = "its deadline came while it waited for a thread: too many continue after their timeouts"
# Errors that another attempt would end with too.
_FINAL = (NonRetryable, DeadLetter, Cancel, InvalidPayload, TooLarge, UnscopedTask, BadStepCall)


class Step(Generic[T_co]):
    """A recorded call: its key is taken, nothing has run. Await it, or give it to wf.gather / wf.first. Awaiting twice gives
    the same."""

    __slots__ = ("_act", "_core", "_decode", "_found", "_going", "_place", "_row", "_waited", "key")

    def __init__(
        self,
        core: Core,
        place: CallPlace,
        found: Stored | None,
        act: Callable[[Stored | None], Coroutine[Any, Any, Stored]],
        decode: Callable[[Stored], T_co],
    ) -> None:
        self.key = place.key
        self._place = place
        self._core = core
        self._found = found
        self._act = act
        self._decode = decode
        self._row: Stored | None = None
        self._going = False
        self._waited: asyncio.Future[None] | None = None  # by a second branch that was given the same step
        if found is not None and found.record.outcome not in UNDECIDED:
            self._row = found

    def __await__(self) -> Generator[Any, None, T_co]:
        scope = self._core.scope("step")
        return self._value(scope).__await__()

    async def _value(self, scope: Scope) -> T_co:
        if self._row is None:
            self._core.begins(scope, self._place, self._found)
        try:
            settled = await self._settled()
        except asyncio.CancelledError:
            self._core.cut(scope)
            raise
        row = self._core.seen(scope, settled)
        try:
            return self._decode(row)
        except SignalMisfit as error:
            self._core.misfit(scope, error)
        except Misfit as error:
            self._core.misfit(
                scope, Misfit(f"the recorded result of {self.key!r} does not fit the code: {error}")
            )

    async def _settled(self) -> Stored:
        """The record of its end; the call is made if there is none."""
        if self._row is None:
            if self._core.stopped is not None:
                raise self._core.stopped
            if not self._going:
                self._going = True
                try:
                    if self._core.behind or self._core.flushing:
                        await self._core.flush()
                    if self._core.journal.paused:
                        await self._core.while_paused(self.key)
                    self._core.check_length(self.key)
                    self._row = await self._act(self._found)
                finally:
                    self._going = False
                    if self._waited is not None:
                        self._waited.set_result(None)
                        self._waited = None
            else:
                if self._waited is None:
                    self._waited = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._waited)
                return await self._settled()
        return self._row


@dataclass(slots=True)
class Attempts:
    """Runs a body until it succeeds, fails for good or is cancelled, and records that."""

    core: Core
    scope: Scope
    place: CallPlace
    kind: Kind
    options: Options
    attempt: Attempt
    input_hash: bytes | None = None
    stoppable: bool = True  # False: a plain function in a thread, which cannot be ended
    cancellable: bool = True
    began: float = 0.0
    under_way: int = 0  # the number of the running attempt

    async def run(self, found: Stored | None) -> Stored:
        core = self.core
        number = 0
        self.cancellable = core.may_cancel(self.scope)
        self.began = core.journal.time()
        if found is not None:
            number, self.began = found.record.attempts, found.record.began or self.began
            if not await self._due(_until(found)):
                return await core.record(cancelled(self.place, self.kind, self.began))
        while True:
            may_begin = self.stoppable or has_thread() or await self._thread()
            if self.cancellable and core.journal.cancelled.is_set():
                return await core.record(cancelled(self.place, self.kind, self.began))
            number += 1
            made, error = await self._once(number) if may_begin else (None, StepTimeout(_NO_THREAD))
            if error is None:
                if isinstance(made, Stored):
                    return made
                return await self._done(number, made or "null")
            if isinstance(error, asyncio.CancelledError):
                continue  # the next read reports that it was cancelled
            number, error, delay = self._judged(error, number)
            if delay is None:
                return await core.record(self._failed(error, number))
            if not await self._pause(error, number, delay):
                return await core.record(cancelled(self.place, self.kind, self.began))

    async def _thread(self) -> bool:
        """Wait until a plain function may begin: its timeout counts from there. False: a cancel or the deadline came."""
        core = self.core
        left = math.inf if self.options.deadline is None else self.options.deadline
        end = core.loop.time() + left - (core.journal.time() - self.began)
        while not has_thread():
            if core.loop.time() >= end or (self.cancellable and core.journal.cancelled.is_set()):
                return False
            await asyncio.sleep(LOOK)
            if core.stopped is not None:
                raise core.stopped
        return True

    async def _done(self, number: int, result: str) -> Stored:
        """If the code runs alone it continues at once, and the record is written before the next call."""
        core = self.core
        if self.kind == "step" and len(result) <= MOST_LATER and core.goes_on_alone():
            at = core.replay.not_before(core.journal.now())
            return core.record_later(self._row("done", number, result, ended=at), at)
        return await core.record(self._row("done", number, result))

    async def _once(self, number: int) -> tuple[Stored | str | None, BaseException | None]:
        """One attempt in a separate task. A cancel of the run ends it; the workflow's own end does too."""
        core, place = self.core, self.place
        core.journal.begins(place.key, self.kind, place.ordinal, self.began, number)
        self.under_way = number
        limited = self.options.timeout is not None or self.options.deadline is not None
        body = self._limited(number) if limited else self.attempt(self, number)
        task = in_context(body, current, core.loop)
        if self.stoppable and self._interruptible():
            core.cancel_with(task)
        made, error = await self._ended(task)
        if core.stopped is not None:
            raise core.stopped
        if isinstance(error, Evicted):
            core.lost(error)
        ending = self._interruptible() and core.journal.cancelled.is_set()
        if isinstance(error, WorkflowCancelled) and ending:
            error = asyncio.CancelledError()  # of a heartbeat
        elif isinstance(error, asyncio.CancelledError) and not ending:
            error = RuntimeError("the step was cancelled by its own code")
        return made, error

    async def _ended(
        self, task: "asyncio.Task[Stored | str]"
    ) -> tuple[Stored | str | None, BaseException | None]:
        """A cancel of the waiting caller ends the task too, and is raised once it has ended, however it did."""
        core, me = self.core, asyncio.current_task(self.core.loop)
        assert me is not None
        cancels = me.cancelling()
        made: Stored | str | None = None
        error: BaseException | None = None
        try:
            made = await task
        except BaseException as raised:  # noqa: BLE001 it is the end of an attempt
            error = raised
            if raised.__traceback__ is not None:  # without this frame, which references the error
                raised.__traceback__ = raised.__traceback__.tb_next
        self.under_way = 0
        core.running.discard(task)
        core.journal.beat(self.place.key, None)
        if me.cancelling() > cancels:
            error = None
            raise asyncio.CancelledError
        return made, error

    def _interruptible(self) -> bool:
        """Whether a cancel of the run ends a running body."""
        return self.cancellable and self.options.on_cancel != "shield"

    async def _limited(self, number: int) -> Stored | str:
        left = [self.options.timeout] if self.options.timeout is not None else []
        if self.options.deadline is not None:
            left.append(max(0.0, self.began + self.options.deadline - self.core.journal.time()))
        limit = asyncio.timeout(min(left))
        try:
            async with limit:
                return await self.attempt(self, number)
        except TimeoutError:
            if not limit.expired():
                raise
            if not self.stoppable:
                telemetry.emit(
                    "workflow.step_overdue",
                    level=logging.WARNING,
                    run_id=str(self.core.history.run_id),
                    key=self.place.key,
                    attempt=number,
                    seconds=min(left),
                )
            raise StepTimeout(f"ran longer than its timeout of {min(left):g} s") from None

    def _judged(self, error: BaseException, number: int) -> tuple[int, BaseException, float | None]:
        """How many attempts are spent, with the error of the last one, and the seconds to the next; None: there is none."""
        if isinstance(error, Snooze):
            number -= 1  # it spends none
        else:
            self.core.journal.failed(self.place.key, number, describe(error))
        try:
            return number, error, self._delay(error, number)
        except (TypeError, ValueError) as wrong:  # of Retry(after=) or Snooze(after=)
            return number, wrong, None

    def _delay(self, error: BaseException, number: int) -> float | None:
        """Seconds to the next attempt; None: there is none."""
        if isinstance(error, _FINAL) or (
            number >= self.options.max_attempts and not isinstance(error, Snooze)
        ):
            return None
        if not isinstance(error, Exception | HandlerSignal):
            return None
        retry = self.options.retry
        if retry.deadline is not None and self.core.journal.time() >= self.began + seconds(retry.deadline):
            return None
        delay = retry.delay(number)
        if isinstance(error, Retry | Snooze) and error.after is not None:
            delay = min(seconds(error.after, f"{type(error).__name__}(after=)"), LONGEST_DELAY)
        if self.options.deadline is not None:
            over = self.core.journal.time() + delay >= self.began + self.options.deadline
            return None if over else delay
        return delay

    async def _pause(self, error: BaseException, number: int, delay: float) -> bool:
        """In memory when it is short, else by suspending. False: a cancel came first."""
        core = self.core
        telemetry.emit(
            "workflow.step_retry", key=self.place.key, attempt=number, error=_summary(error), delay=delay
        )
        until = core.journal.now() + timedelta(seconds=delay)
        if delay > core.sticky:
            text = json.loads(error_text(error, number)) | {"until": until.timestamp()}
            row = self._row("retrying", number, None, json.dumps(text))
            await core.record(row)
            return await self._due(until)
        if not self.cancellable:
            await asyncio.sleep(delay)
            return True
        try:
            await asyncio.wait_for(core.journal.cancelled.wait(), delay)
        except TimeoutError:
            return True
        return False

    async def _due(self, until: datetime) -> bool:
        wait = Wait(self.place.key, self.place.ordinal, "retry", until=until, cancellable=self.cancellable)
        return await self.core.waits.until_due(wait)

    def _failed(self, error: BaseException, number: int) -> Record:
        return self._row("failed", number, None, error_text(error, number))

    def _row(
        self,
        outcome: Any,
        number: int,
        result: str | None,
        error: str | None = None,
        ended: datetime | None = None,
    ) -> Record:
        place = self.place
        return Record(
            place.key,
            self.kind,
            outcome,
            place.ordinal,
            result,
            error,
            number,
            self.began,
            self.input_hash,
            None,
            ended,
        )

    def done(self, number: int, result: str) -> Record:
        return self._row("done", number, result)

    def info(self, number: int) -> StepInfo:
        """What current_step() gives in its body."""
        beat = functools.partial(self._beat, number)
        return StepInfo(idempotency_key(self.core, self.place.key), number, self.core.fence, beat)

    def _beat(self, number: int, detail: object) -> None:
        """In whatever thread the body runs."""
        core = self.core
        if core.stopped is not None or core.journal.lost():
            raise Evicted("the run is another owner's, or leaves memory")
        if self._interruptible() and core.journal.cancelled.is_set():
            raise WorkflowCancelled("the run was cancelled")
        if number != self.under_way:  # a thread continues when its attempt has timed out
            raise StepTimeout("this attempt is over: it ran longer than its timeout")
        core.journal.beat(self.place.key, "" if detail is None else detail_text(detail))


@dataclass(slots=True)
class Body:
    """A function that a step calls. It does not reference the step: a run without circular references is
    freed when it has ended, and the collector has nothing to find."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Result
    made: tuple[str, Any] | None = None  # what it returned here, as text and as it is

    async def attempt(self, attempts: Attempts, number: int) -> str:
        info, result = (attempts.info, number), self.result
        value = await call(self.fn, self.args, self.kwargs, info, result.is_async)
        text = result.encode(value)
        self.made = (text, value) if result.keeps(value) else None
        return text

    def decode(self, row: Stored) -> Any:
        if self.made is not None and self.made[0] is row.record.result:
            return self.made[1]
        return self.result.decode(row.record.result)


class StepTimeout(Exception):
    """An attempt took longer than using(timeout=)."""


def idempotency_key(core: Core, key: str) -> str:
    """An era has a history of its own, so the same key is another step there."""
    era = f"{core.history.era}:" if core.history.era else ""
    return f"{core.history.run_id}:{era}{key}"


def _until(found: Stored) -> datetime:
    until = json.loads(found.record.error or "{}").get("until")
    return datetime.fromtimestamp(until, UTC) if until is not None else found.at


def _summary(error: BaseException) -> str:
    text = json.loads(error_text(error, 0))
    return f"{text['kind']}: {text['message']}"
