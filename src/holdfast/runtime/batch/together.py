"""One call for many jobs when none of them has middleware or spans: all of them are in the call's own task.

They start together and end together, so none needs a task. A job that is lost, cancelled or released while the handler
runs leaves the batch; the handler continues for the others, and is stopped when none is left.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from ... import telemetry
from ...model.outcome import Outcome
from .. import report
from ..decide import unforeseen
from ..execute import Executor
from ..handler import Handler
from ..inflight import Running
from ..slots import Slots
from .call import run_each
from .gather import Group
from .handler_call import call_handler, outcome_of, stopped
from .items import Batch, Item

Conclude = Callable[[Running, Outcome], None]


class Dispatches(Protocol):
    def start(self) -> None:
        """Start what is due in the free slots."""


class Attempts(Protocol):
    """What happens to the jobs of a batch."""

    @property
    def dispatcher(self) -> Dispatches: ...

    def conclude(self, running: Running, outcome: Outcome) -> None: ...

    def end_unstarted(self, running: Running) -> None: ...

    def want_more(self) -> None: ...


@dataclass(slots=True, frozen=True)
class Calls:
    """How batches are called: each in one slot, in the current task, whose context no other code shares."""

    executor: Executor
    slots: Slots
    worker: Callable[[], str]
    attempts: Attempts

    async def run(self, group: Group, began: float) -> None:
        for running in group.members:
            if running.stop is not None:
                self.attempts.end_unstarted(running)
        members = [running for running in group.members if running.stop is None]
        try:
            await self._call(members, group.handler, began)
        finally:
            self.slots.finished(began, len(members))
            self.attempts.dispatcher.start()  # the next batch, before the ends of this one are written
            self.attempts.want_more()

    async def _call(self, members: Sequence[Running], handler: Handler, began: float) -> None:
        number = uuid4()
        for running in members:
            running.started_at, running.call = began, number
        if self.executor.layers:
            await run_each(members, handler, self.executor, self.worker, self.attempts.conclude)
            return
        if telemetry.audible(logging.DEBUG):
            for running in members:
                report.started(running, self.worker())
        await Together(handler, self.executor, self.worker, self.attempts.conclude).run(members)


class Together:
    def __init__(
        self, handler: Handler, executor: Executor, worker: Callable[[], str], conclude: Conclude
    ) -> None:
        self._handler = handler
        self._executor = executor
        self._worker = worker
        self._conclude = conclude
        self._items: dict[int, Item[Any]] = {}  # by id() of their Running: the jobs in this call
        self._task = asyncio.current_task()

    async def run(self, members: Sequence[Running]) -> None:
        for running in members:
            self._take(running)
        items = list(self._items.values())
        if not items:
            return
        telemetry.job_context.set(report.JobFields(items[0]._running.claimed, self._worker))
        ending = await call_handler(Batch(items), self._handler, self._executor.threads)
        left, self._items = self._items, {}
        for item in left.values():
            self._end(item._running, outcome_of(item, ending))

    def _take(self, running: Running) -> None:
        """Into the call; or it ends here, because it was cancelled or its payload does not fit."""
        try:
            found = self._executor.prepare(running)
            if not isinstance(found, Outcome):
                arguments = found[1] or {}
                item: Item[Any] = Item(arguments["item"], running, self._handler, self._executor.job_of)
                self._items[id(running)] = item
                running.task, running.leave = self._task, self._leave
                return
        except BaseException as error:  # noqa: BLE001 as for a job in a slot of its own
            found = unforeseen(error, running)
        self._conclude(running, found)

    def _leave(self, running: Running) -> None:
        item = self._items.pop(id(running), None)
        if item is None:
            return
        self._end(running, stopped(item))
        if not self._items and self._task is not None:
            self._task.cancel()  # no job is left

    def _end(self, running: Running, outcome: Outcome) -> None:
        self._conclude(running, outcome if running.job is None else running.job._ended(outcome))
