"""The scheduler: a service of every worker. It declares the schedules of its code and fires what is due.

Any number of workers may run it: a schedule is fired by whoever locks it, and a slot by whoever writes its firing. The
clock is the database's. A worker fires the operators' schedules and those that its own code has, so that what was taken out
of the code stops with the last worker that has it.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Sequence
from datetime import datetime

from ... import telemetry
from ...db.database import Database
from ...errors import DatabaseUnavailable
from ...model.text import storable
from ...runtime.pulse import Pulse
from ...runtime.service import Service
from ...store.wake import Question
from . import store
from .spec import Fired, Spec

DECLARE_EVERY = 30.0
STALE = 120.0  # a declaration not repeated for so long is of no live worker
_LONGEST = 5.0  # between two looks: somebody may have added a schedule
_RETRY = 5.0  # after a schedule failed
_AT_ONCE = 1000


class Scheduler(Service):
    name = "schedules"

    def __init__(self, database: Database, specs: Sequence[Spec]) -> None:
        super().__init__()
        self._settings = database.settings
        self._session = database.session("schedules")
        self._specs = {spec.name: spec for spec in specs}
        self._declared_at: float | None = None
        self._told: set[tuple[str, str]] = set()
        self._failed: dict[str, float] = {}  # name -> when to try again
        self._working = asyncio.Lock()
        self._due_at: float | None = None  # as a pulse said
        self.question = Question(store.DUE_IN, (list(self._specs),))

    def on_answer(self, answer: float | None) -> None:
        """The pulse says in how many seconds a schedule is due. None: there is none."""
        self._due_at = None if answer is None else time.monotonic() + answer
        if answer is not None:
            self.wake()

    async def tick(self) -> float:
        if (
            self._declared_at is not None
            and self.pulse is not None
            and (quiet := self._quiet(self.pulse)) > 0
        ):
            return quiet
        async with self._working:
            await self._declare()
            more = await self._fire_due()
            ahead = await self._session.run(store.wait(list(self._specs)))
        # What is still due is another worker's, waits for a job to end, or failed: the poll is soon enough.
        pause = min(_LONGEST, self._settings.poll if more is None else _LONGEST, ahead or _LONGEST)
        return 0.0 if more else max(pause, 0.01)

    def _quiet(self, pulse: Pulse) -> float:
        """Seconds for which the pulse of a sleeping worker says that nothing is due, and nothing is to be declared."""
        now = time.monotonic()
        ends = [now + pulse.left]
        if self._due_at is not None:
            ends.append(self._due_at)
        if self._specs and self._declared_at is not None:
            ends.append(self._declared_at + DECLARE_EVERY)
        return min(ends) - now

    async def catch_up(self) -> bool:
        """True: something was fired. An outage is for the next look."""
        try:
            async with self._working:
                await self._declare()
                return bool(await self._fire_due())
        except DatabaseUnavailable:
            return False

    async def _declare(self) -> None:
        """At the start and now and then: others see that this code is alive, and what a rollback left is corrected."""
        if self._declared_at is not None and time.monotonic() - self._declared_at < DECLARE_EVERY:
            return
        specs = list(self._specs.values())
        if specs:
            differs = await self._session.flow(lambda: store.touch(specs, DECLARE_EVERY / 2))
            for name in differs:
                done = await self._session.flow(functools.partial(store.declare, self._specs[name], STALE))
                self._say_declared(name, done)
        self._declared_at = time.monotonic()

    def _say_declared(self, name: str, done: store.Declared) -> None:
        if (name, done) in self._told:
            return
        self._told.add((name, done))
        why = {
            "older": "live workers declare a newer one",
            "taken": "an operator added one of this name, which stays",
        }
        level = logging.WARNING if done in why else logging.INFO
        telemetry.emit(
            "schedule.declared", level=level, schedule=name, outcome=done, reason=why.get(done, "")
        )

    async def _fire_due(self) -> bool | None:
        """True: something was fired. None: nothing was, and something is due all the same."""
        now = time.monotonic()
        self._failed = {name: until for name, until in self._failed.items() if until > now}
        due = await self._session.run(store.due(list(self._specs), list(self._failed), _AT_ONCE))
        fired = [await self._fire(name) for name in due]
        if any(f is not None and (f.fired or f.more) for f in fired):
            return True
        return None if due or self._failed else False

    async def _fire(self, name: str) -> Fired | None:
        grace = self._settings.schedule_grace
        try:
            fired = await self._session.flow(functools.partial(store.fire, name, grace))
        except DatabaseUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 one schedule that cannot fire stops no other
            self._failed[name] = time.monotonic() + _RETRY
            problem = storable(f"{error}", 1000)
            telemetry.emit("schedule.failed", level=logging.ERROR, schedule=name, error=problem)
            await self._session.run(store.note_problem(name, problem))
            return None
        if fired is not None:
            _say_fired(fired)
        return fired

    async def finish(self) -> None:
        await self._session.close()


def _say_fired(f: Fired) -> None:
    for slot, job in f.fired:
        telemetry.emit("schedule.fired", schedule=f.name, task=f.task, slot=_text(slot), job=job)
    for slot in f.skipped:
        telemetry.emit(
            "schedule.skipped", schedule=f.name, task=f.task, slot=_text(slot), reason="a job of it is live"
        )
    if f.kept is not None:
        telemetry.emit("schedule.waits", schedule=f.name, task=f.task, slot=_text(f.kept))
    if f.passed is not None:
        telemetry.emit(
            "schedule.missed", level=logging.WARNING, schedule=f.name, task=f.task, since=_text(f.passed)
        )


def _text(slot: datetime) -> str:
    return slot.isoformat()
