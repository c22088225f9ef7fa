"""Compensations: they undo the steps of a run that fails or is cancelled, last first."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ... import telemetry
from ...model.backoff import Backoff
from .bodies import Options, Result, call, name_of
from .core import Core, Scope
from .faults import StepFailed
from .journal import Record
from .replay import CallPlace
from .steps import Attempts

FOR_EVER = Options(retry=Backoff(first=2.0, cap=600.0), max_attempts=2**31)
_ALERT = 10  # attempts of one compensation


@dataclass(frozen=True, slots=True)
class _Push:
    key: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Saga:
    """The stack of a run. It is filled again by every replay, so nothing depends on the rows that show it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._stack: list[_Push] = []
        self.failed: list[str] = []  # compensations that gave up

    def push(
        self, scope: Scope, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        core = self._core
        key = core.replay.take_apart(f"saga/{scope.name}".rstrip("/"), name_of(fn, None, "on_failure")).key
        known = core.replay.find(CallPlace(key, "saga", None), "compensation") is not None
        if scope.lost and not known:
            return  # it was never reached
        self._stack.append(_Push(key.removeprefix("saga/"), fn, args, kwargs))
        if not known:
            core.later(Record(key, "compensation", "done", None))

    async def compensate(self, scope: Scope, *, goes_on: bool = False) -> None:
        """Run and empty the stack. A cancel does not reach it: what was done must be undone. `goes_on`: the run does not end
        with it."""
        before, scope.cancellable = scope.cancellable, False
        order = {row.record.key: n for n, row in enumerate(self._core.replay.rows())}
        # A replay of branches pushes in another order than the first run.
        self._stack.sort(key=lambda push: order.get(f"saga/{push.key}", len(order)))
        try:
            while self._stack:
                push = self._stack.pop()
                try:
                    await self._undo(scope, push)
                except BaseException:
                    self._stack.append(push)  # a branch that lost: the run still has to run it
                    raise
        finally:
            scope.cancellable = before
        if goes_on and not scope.lost:
            await self._core.compensates(False)

    async def _undo(self, scope: Scope, push: _Push) -> None:
        core = self._core
        place = CallPlace(f"undo/{push.key}", "undo", None)
        found = core.find(scope, place, "compensation")
        if found is None or found.record.outcome == "retrying":
            core.begins(scope)
            result = Result(push.fn, push.key)

            async def attempt(attempts: Attempts, number: int) -> str:
                if number == _ALERT:
                    telemetry.emit(
                        "workflow.compensation_fails",
                        level=40,
                        run_id=str(core.history.run_id),
                        key=place.key,
                    )
                info = (attempts.info, number)
                return result.encode(await call(push.fn, push.args, push.kwargs, info, result.is_async))

            if core.behind:
                await core.flush()
            await core.compensates(True)
            forever = replace(FOR_EVER)
            attempts = Attempts(
                core, scope, place, "compensation", forever, attempt, stoppable=result.is_async
            )
            found = await attempts.run(found)
            if found.record.outcome == "failed":
                telemetry.emit(
                    "workflow.not_undone", level=40, run_id=str(core.history.run_id), key=place.key
                )
        try:
            core.seen(scope, found)
        except StepFailed as error:
            self.failed.append(str(error))
